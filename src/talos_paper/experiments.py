"""The tables and figures of the paper by name: the rows of each, the run behind a row, and what was published for it.

Rows share runs: Talos on Beauty with MF is one fit, whether the overall table, the ablation or the temperature curve
needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

from talos.errors import ConfigError, nearest
from talos_paper import published
from talos_paper.equal import ON_GRAPHS, equal_recipe, schedule_of
from talos_paper.recipes import BACKBONES, LOSSES, Fidelity, Recipe, recipe, with_both_weights

__all__ = ["ADAPTIVE", "EXPERIMENTS", "NOT_RUN", "SHARED", "TUNED", "Experiment", "Row", "by_name"]

TUNED = "talos, tuned on validation"
ADAPTIVE = "talos, adaptive τ"
SHARED = "talos, 1,024 negatives shared by users"
_TOP_20 = ("precision@20", "recall@20", "ndcg@20", "mrr@20")
_SLOW = ("advinfonce", "smoothi@k", "rs@k")
_THREE_SEEDS = (
    "talos",
    "sl",
    "psl",
    "bsl",
)  # their results are so close that one seed does not decide the order
_TAUS = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3)
# The fast recipe with one change at a time, then the library's own default with one change at a time.
_WARM: dict[str, Any] = {"training.init": "als", "optimizer.lr_decay": 0.97}
_TUNED_CANDIDATES: tuple[dict[str, Any], ...] = (
    {},
    {"training.reduction": "users"},
    {"optimizer.lr_decay": 0.97},
    _WARM,
    {**_WARM, "training.reduction": "users"},
    {**_WARM, "optimizer.lr": 0.05},
    {**_WARM, "loss.tau": 0.12},
    {**_WARM, "training.batch_size": 256},
    {**_WARM, "optimizer.weight_decay": 1e-5},
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of a table: the runs it needs and the numbers it is compared with.

    Attributes:
        dataset: name of the data set.
        group: what the rows of one table have in common, such as the backbone.
        method: name of the row.
        recipe: settings of its runs.
        seeds: number of runs, one for each seed from 0.
        published: metric → number in the paper; empty where it has none.
        metrics: the columns of the table.
        core: whether the row belongs to the core set, the results that are run first.
        order: rows with a lower number are run first.
    """

    dataset: str
    group: str = "mf"
    method: str
    recipe: Recipe
    seeds: int = 1
    published: Mapping[str, float] = field(default_factory=dict)
    metrics: tuple[str, ...] = _TOP_20
    core: bool = True
    order: int = 5


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A table or figure of the paper.

    Attributes:
        name: on the command line.
        title: heading of its page.
        paper: where it stands in the paper.
        datasets: the data sets it is made for, those of the core set first.
        core_datasets: the data sets that belong to the core set.
        make_rows: (data set, fidelity) → the rows; None for a measurement that needs no fit.
    """

    name: str
    title: str
    paper: str
    datasets: tuple[str, ...]
    core_datasets: tuple[str, ...]
    make_rows: Callable[[str, Fidelity], Iterator[Row]] | None = None

    def rows(self, dataset: str, fidelity: Fidelity = "fast") -> list[Row]:
        """The rows for a data set, in the order of the table; none for a measurement."""
        if self.make_rows is None:
            return []
        core = dataset in self.core_datasets
        return [replace(row, core=row.core and core) for row in self.make_rows(dataset, fidelity)]


def by_name(name: str) -> Experiment:
    """The experiment of a name.

    >>> by_name("ablation").title
    'Ablation'
    """
    if name not in EXPERIMENTS:
        raise ConfigError(f"{name!r} is not known", where="TABLE", hint=nearest(name, [*EXPERIMENTS, "all"]))
    return EXPERIMENTS[name]


# -------------------------------------------------------------------- the experiments, in the order of the paper

EXPERIMENTS: dict[str, Experiment] = {}
"""Name → experiment, in the order of the paper."""

_RowMaker: TypeAlias = Callable[[str, Fidelity], Iterator[Row]]


def _add(
    name: str,
    *,
    title: str,
    paper: str,
    datasets: tuple[str, ...],
    core: tuple[str, ...],
    make_rows: _RowMaker | None = None,
) -> None:
    """Add an experiment; without `make_rows` it is a measurement."""
    EXPERIMENTS[name] = Experiment(
        name=name, title=title, paper=paper, datasets=datasets, core_datasets=core, make_rows=make_rows
    )


def _table(name: str, **facts: Any) -> Callable[[_RowMaker], _RowMaker]:
    """Add an experiment whose rows the decorated function makes."""

    def decorate(make_rows: _RowMaker) -> _RowMaker:
        _add(name, **facts, make_rows=make_rows)
        return make_rows

    return decorate


NOT_RUN: dict[str, str] = {
    "Figure 1 (two rankings of ten items; relations between losses)": "a drawing; nothing to measure",
    "tables of hyperparameters": "`talos_paper.published.hyperparameters`; the recipes start from them",
    "tables of notation": "nothing to measure",
    "overall performance on Gowalla and Games": "by the protocol of `equal`, with the published figures beside it",
}
"""What else the paper has → why there is no command for it."""


def _printed(table: str, dataset: str, method: str, **keys: Any) -> dict[str, float]:
    """Metric → published number."""
    name = "movielens" if dataset == "movielens-100k" else dataset
    found = published.numbers(table=table, dataset=name, method=method, **keys)
    return {entry.metric: entry.value for entry in found}


_add(
    "statistics",
    title="Data sets",
    paper="the table of dataset statistics",
    datasets=("beauty", "gowalla", "games", "movielens-100k"),
    core=("beauty", "gowalla", "games"),
)
_add(
    "inconsistency",
    title="How often other metrics disagree with Precision@20 and Recall@20",
    paper="Table 1, inconsistency of AUC, LLPAUC, NDCG and NDCG@20 with top-K accuracy",
    datasets=("beauty", "gowalla", "games"),
    core=("beauty", "gowalla", "games"),
)


@_table(
    "overall",
    title="Overall performance",
    paper="Table 2 (Precision and Recall) and its companion in the appendix (NDCG and MRR)",
    datasets=("beauty",),
    core=("beauty",),
)
def _overall(dataset: str, fidelity: Fidelity) -> Iterator[Row]:
    """Every loss on every backbone; on MF also three variants of Talos that the paper does not have."""
    for backbone, first in zip(BACKBONES, (0, 5, 7), strict=True):
        for loss in LOSSES:
            yield Row(
                dataset=dataset,
                group=backbone,
                method=loss,
                recipe=recipe(dataset, backbone, loss, fidelity=fidelity),
                seeds=3 if loss in _THREE_SEEDS and backbone == "mf" else 1,
                published=_printed("overall", dataset, loss, backbone=backbone),
                order=first + (loss in _SLOW and backbone != "mf"),
            )
    if fidelity == "fast":
        talos = partial(Row, dataset=dataset, published=_printed("overall", dataset, "talos", backbone="mf"))
        sampled = recipe(dataset, "mf", "talos", fidelity="paper")
        yield talos(method="talos, 1,024 negatives", recipe=sampled, core=False)
        yield talos(method=SHARED, recipe=_shared(dataset), core=False)
        yield talos(method=ADAPTIVE, recipe=_adaptive(dataset), core=False)
        tuned = recipe(dataset, "mf", "talos", search=_TUNED_CANDIDATES)
        yield talos(method=TUNED, recipe=tuned, seeds=5, order=8)


@_table(
    "equal",
    title="Equal footing",
    paper="Table 2 and its companion in the appendix, by one protocol for all losses that the paper does not have",
    datasets=("beauty", "games", "gowalla"),
    core=(),
)
def _equal(dataset: str, _: Fidelity) -> Iterator[Row]:
    """Every loss on MF with three seeds, some on the graph backbones, all with the same search."""
    for backbone in BACKBONES:
        for loss in LOSSES if backbone == "mf" else ON_GRAPHS:
            yield Row(
                dataset=dataset,
                group=backbone,
                method=loss,
                recipe=equal_recipe(dataset, backbone, loss),
                seeds=3 if backbone == "mf" else 1,
                published=_printed("overall", dataset, loss, backbone=backbone),
                order=10 + 10 * (loss in _SLOW) + 30 * (backbone != "mf"),
            )


def _shared(dataset: str) -> Recipe:
    """One draw of 1,024 negatives for some users of a batch at a time; the search is over how many share one.

    The library's own settings for it: a start from ALS, a falling rate, and regression at a rate of .01.
    """
    changes = {**_WARM, "training.batch_size": 512, "threshold.lr": 0.01}
    made = recipe(dataset, "mf", "talos", fidelity="paper")
    return replace(
        made,
        fidelity="fast",
        settings={**made.settings, **changes},
        search=tuple({"negatives": f"shared:1024/{users}"} for users in (16, 32, 64, 128, 512)),
    )


def _adaptive(dataset: str) -> Recipe:
    """One radius η for all users in place of one τ; the loss is then no longer separable, so negatives are sampled.

    On Beauty a Talos run at τ = .1 has a mean radius of .6 nats over 256 negatives: candidates are .3, .6 and 1.2.
    """
    made = recipe(dataset, "mf", "talos", fidelity="paper", changes={"negatives": "256"})
    return replace(
        made,
        fidelity="fast",
        settings={name: value for name, value in made.settings.items() if name != "loss.tau"},
        search=tuple({"loss.eta": eta} for eta in (0.3, 0.6, 1.2)),
        printed={**made.printed, "negatives": "1024"},
    )


@_table(
    "varying-k",
    title="Talos trained for K of 20, 50 and 80",
    paper="the two tables of performance with varying K",
    datasets=("beauty", "gowalla", "games"),
    core=("beauty",),
)
def _varying_k(dataset: str, fidelity: Fidelity) -> Iterator[Row]:
    """Talos trained for each K, and the other losses; beyond Beauty by the protocol of `equal`, with its runs."""
    row = partial(Row, dataset=dataset, metrics=("recall@20", "recall@50", "recall@80"), order=3)

    def made(loss: str, k: int = 20) -> Recipe:
        if dataset == "beauty":
            return recipe(dataset, "mf", loss, fidelity=fidelity, k=k)
        return equal_recipe(dataset, "mf", loss, k=k)

    for loss in LOSSES:
        if loss not in ("talos", "bpr"):
            yield row(method=loss, recipe=made(loss), published=_printed("varying-k", dataset, loss))
    for k in (20, 50, 80):
        method = f"talos@{k}"
        yield row(method=method, recipe=made("talos", k), published=_printed("varying-k", dataset, method))


@_table(
    "temporal",
    title="Temporal shift",
    paper="the table of temporal shift",
    datasets=("beauty", "movielens-100k"),
    core=("beauty", "movielens-100k"),
)
def _temporal(dataset: str, fidelity: Fidelity) -> Iterator[Row]:
    """Training on the past, testing on the future."""
    for loss in LOSSES:
        yield Row(
            dataset=dataset,
            method=loss,
            recipe=recipe(dataset, "mf", loss, scenario="temporal", fidelity=fidelity),
            published=_printed("temporal", dataset, loss),
            order=(1 if dataset == "movielens-100k" else 4) + 4 * (loss in _SLOW),
        )


def _talos(
    dataset: str, fidelity: Fidelity, changes: Mapping[str, Any], search: Sequence[Mapping[str, Any]] = ()
) -> Recipe:
    """Talos on MF with changed settings: on Beauty as in the paper, elsewhere by the protocol of `equal`."""
    if dataset == "beauty":
        return recipe(dataset, "mf", "talos", fidelity=fidelity, changes=changes, search=search or None)
    made = equal_recipe(dataset, "mf", "talos").with_settings({"optimizer.lr": 0.1, **changes})
    return replace(made, search=tuple(search))


@_table(
    "ablation",
    title="Ablation",
    paper="the table of the ablation study",
    datasets=("beauty", "gowalla", "games"),
    core=("beauty",),
)
def _ablation(dataset: str, fidelity: Fidelity) -> Iterator[Row]:
    """Talos without one of its parts; beyond Beauty by the protocol of `equal`, as the next table."""
    variants: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
        "talos": ({}, []),
        "talos w/o quantile": (
            {"loss.quantile": False, "threshold.name": "none"},
            [{"loss.tau": tau} for tau in (0.05, 0.1)],
        ),
        "talos w/o outside": ({"loss.temperature": "inner"}, [{"loss.tau": tau} for tau in (0.1, 0.2)]),
        "talos w/o denominator": ({"loss.denominator": False}, [{"optimizer.lr": lr} for lr in (0.1, 0.01)]),
    }
    for method, (changes, search) in variants.items():
        made = _talos(dataset, fidelity, changes, search)
        if changes.get("threshold.name") == "none":
            made = replace(made, settings={k: v for k, v in made.settings.items() if k != "threshold.lr"})
        printed = _printed("ablation", dataset, method)
        yield Row(dataset=dataset, method=method, recipe=made, published=printed, order=2)


@_table(
    "temperature",
    title="Sensitivity to the temperature τ",
    paper="the figure of sensitivity to τ",
    datasets=("beauty", "gowalla", "games"),
    core=("beauty",),
)
def _temperature(dataset: str, fidelity: Fidelity) -> Iterator[Row]:
    """Talos over τ, with SL at its best."""
    row = partial(Row, dataset=dataset, order=6)
    for tau in _TAUS:
        yield row(method=f"talos τ={tau:g}", recipe=_talos(dataset, fidelity, {"loss.tau": tau}))
    on_beauty = dataset == "beauty"
    rival = recipe(dataset, "mf", "sl", fidelity=fidelity) if on_beauty else equal_recipe(dataset, "mf", "sl")
    yield row(method="sl", recipe=rival)


@_table(
    "slatk",
    title="Against SL@K",
    paper="the three tables that compare with SL@K: temporal shift, number of negatives, varying K",
    datasets=("movielens-100k", "beauty"),
    core=("movielens-100k", "beauty"),
)
def _slatk(dataset: str, fidelity: Fidelity) -> Iterator[Row]:
    """Talos and SL@K: under temporal shift, with few negatives, and (on MovieLens) for several K."""
    row = partial(Row, dataset=dataset, metrics=("precision@20", "recall@20"))
    for loss in ("talos", "sl@k"):
        yield row(
            group="temporal shift",
            method=loss,
            recipe=recipe(dataset, "mf", loss, scenario="temporal", fidelity=fidelity),
            published=_printed("slatk-temporal", "games" if dataset == "beauty" else dataset, loss),
            order=1 if dataset == "movielens-100k" else 4,
        )
    for n in (8, 16, 32):
        for loss in ("talos", "sl@k"):
            printed = _printed("slatk-negatives", dataset, loss, setting=f"n={n}")
            made = _few_negatives(dataset, loss, n)
            yield row(group=f"{n} negatives", method=loss, recipe=made, published=printed)
    if dataset == "movielens-100k":
        for k in (20, 50, 80, 100, 200, 400):
            for loss in ("talos", "sl@k"):
                metric = f"precision@{k}"
                printed = _printed("slatk-k", dataset, loss)
                yield row(
                    group=f"K = {k}",
                    method=loss,
                    recipe=recipe(dataset, "mf", loss, fidelity=fidelity, k=k),
                    published={metric: printed[metric]} if metric in printed else {},
                    metrics=(metric,),
                    order=1,
                )


def _few_negatives(dataset: str, loss: str, n: int) -> Recipe:
    """`n` negatives per positive, with the threshold estimator of the method's authors."""
    made = recipe(dataset, "mf", loss, fidelity="paper", changes={"negatives": str(n), "optimizer.lr": 0.1})
    tried = [{"loss.tau": tau} for tau in (0.1, 0.2)]
    return replace(made, search=tuple(with_both_weights(tried) if loss == "sl@k" else tried))


@_table(
    "quantile-error",
    title="Estimated against exact thresholds",
    paper="the table of quantile estimation errors",
    datasets=("beauty", "movielens-100k", "gowalla", "games"),
    core=("beauty", "movielens-100k"),
)
def _quantile_error(dataset: str, fidelity: Fidelity) -> Iterator[Row]:
    """The thresholds that each estimator ends with, against the exact ones."""
    scheduled = dataset in ("gowalla", "games")  # there an epoch with sampled negatives takes up to a minute
    methods: tuple[tuple[str, str, Fidelity], ...] = (
        ("regression", "talos", "paper"),
        ("monte-carlo", "sl@k", "paper"),
        ("exact", "talos", "fast"),
    )
    for method, loss, own_fidelity in methods:
        made = recipe(dataset, "mf", loss, fidelity=own_fidelity)
        if scheduled:
            # the last weights as they are: thresholds are learnt for these, not for an average of weights
            made = made.with_settings({**schedule_of(dataset), "training.averaging": 1.0})
        if method == "monte-carlo":
            # It keeps no state, so a short run shows its error; regression needs the whole run to settle.
            epochs = 10 if scheduled else 40
            short = {**made.settings, "training.epochs": epochs, "training.patience": 15}
            # elsewhere validation preferred the detached weight by far to the other
            tried = [] if scheduled else with_both_weights([{}])
            made = replace(made, settings=short, search=tuple(tried))
        yield Row(
            dataset=dataset,
            method=method,
            recipe=made,
            published=_printed("quantile-error", dataset, method),
            metrics=("error", "fresh error", "recall@20"),
            order=2,
        )


@_table(
    "inflation",
    title="Score inflation without the denominator",
    paper="the remark on score inflation (no figure in the paper)",
    datasets=("beauty",),
    core=("beauty",),
)
def _inflation(dataset: str, fidelity: Fidelity) -> Iterator[Row]:
    """Mean scores epoch by epoch, with and without the denominator."""
    fixed = {"training.epochs": 30, "training.patience": 1000, "training.evaluate_every": 5}
    for method, changes in (("talos", {}), ("talos w/o denominator", {"loss.denominator": False})):
        made = recipe(
            dataset, "mf", "talos", fidelity=fidelity, changes={**fixed, **changes}, search=(), probe=True
        )
        yield Row(dataset=dataset, method=method, recipe=made, order=0)


_add(
    "efficiency",
    title="Seconds an epoch, as ratios to SL",
    paper="the table of computational time",
    datasets=("beauty", "gowalla", "games"),
    core=("beauty",),
)
_add(
    "theory",
    title="The bound, its gap and the interval of τ",
    paper="Theorems 1 and 2 (no figure in the paper)",
    datasets=("made-up",),
    core=("made-up",),
)
