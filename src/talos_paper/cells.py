"""The rows of the paper's tables: which run makes which number, and what was published for it.

Cells share runs: Talos on Beauty with MF is one fit, whether the overall table, the ablation or the temperature
curve asks for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from talos_paper import published
from talos_paper.data import Scenario
from talos_paper.recipes import BACKBONES, LOSSES, Fidelity, Recipe, recipe

__all__ = [
    "ADAPTIVE",
    "TUNED",
    "Cell",
    "ablation",
    "inflation",
    "overall",
    "quantile_error",
    "slatk",
    "temperature",
    "temporal",
    "varying_k",
]

TOP = ("precision@20", "recall@20", "ndcg@20", "mrr@20")
_SLOW = ("advinfonce", "smoothi@k", "rs@k")
SEVERAL = ("talos", "sl", "psl", "bsl")  # the losses of which the order matters most: three seeds
TUNED = "talos, tuned on validation"
ADAPTIVE = "talos, adaptive τ"
# One thing at a time around the fast recipe, then around the library's own default.
_WARM: dict[str, Any] = {"training.init": "als", "optimizer.lr_decay": 0.97}
TUNED_CANDIDATES: tuple[dict[str, Any], ...] = (
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
TAUS = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One row of one of our tables.

    Attributes:
        experiment: name of the experiment.
        dataset: name of the data set.
        group: what the rows of one table share, such as the backbone.
        method: name of the row.
        recipe: the run behind it.
        seeds: how many are asked for.
        published: metric → number of the paper; empty where it has none.
        metrics: what is shown.
        needed: whether the result is part of the core set.
        rank: runs of a lower rank come first.
        beyond: whether the paper has no such row.
    """

    experiment: str
    dataset: str
    group: str
    method: str
    recipe: Recipe
    seeds: int = 1
    published: Mapping[str, float] = field(default_factory=dict)
    metrics: tuple[str, ...] = TOP
    needed: bool = True
    rank: int = 5
    beyond: bool = False


def _paper(table: str, dataset: str, method: str, **keys: Any) -> dict[str, float]:
    """Metric → published number."""
    name = "movielens" if dataset == "movielens-100k" else dataset
    return {
        entry.metric: entry.value
        for entry in published.figures(table=table, dataset=name, method=method, **keys)
    }


def _both_tables(dataset: str, backbone: str, loss: str) -> dict[str, float]:
    """P/R@20 and NDCG/MRR@20 stand in two tables of the paper."""
    return _paper("overall", dataset, loss, backbone=backbone)


def overall(dataset: str, fidelity: Fidelity) -> Iterator[Cell]:
    """Every loss on every backbone, and beyond the paper on MF."""
    for place, backbone in enumerate(BACKBONES):
        for loss in LOSSES:
            yield Cell(
                experiment="overall",
                dataset=dataset,
                group=backbone,
                method=loss,
                recipe=recipe(dataset, backbone, loss, fidelity=fidelity),
                seeds=3 if loss in SEVERAL and backbone == "mf" else 1,
                published=_both_tables(dataset, backbone, loss),
                rank=(0, 5, 7)[place] + (loss in _SLOW and backbone != "mf"),
                beyond=loss == "sl@k",
            )
    if fidelity == "fast":
        yield Cell(
            experiment="overall",
            dataset=dataset,
            group="mf",
            method="talos, 1,024 negatives",
            recipe=recipe(dataset, "mf", "talos", fidelity="paper"),
            published=_both_tables(dataset, "mf", "talos"),
            needed=False,
            beyond=True,
        )
        yield Cell(
            experiment="overall",
            dataset=dataset,
            group="mf",
            method=ADAPTIVE,
            recipe=_adaptive(dataset),
            published=_both_tables(dataset, "mf", "talos"),
            needed=False,
            beyond=True,
        )
        yield Cell(
            experiment="overall",
            dataset=dataset,
            group="mf",
            method=TUNED,
            recipe=recipe(dataset, "mf", "talos", search=TUNED_CANDIDATES),
            seeds=5,
            published=_both_tables(dataset, "mf", "talos"),
            rank=8,
            beyond=True,
        )


def _adaptive(dataset: str) -> Recipe:
    """The same radius η for every user in place of the same τ: no longer separable, so with sampled negatives.

    A Talos run at τ = .1 has a mean radius of .6 nats over 256 negatives on Beauty: that, half and twice of it.
    """
    made = recipe(dataset, "mf", "talos", fidelity="paper", changes={"negatives": "256"})
    settings = {name: value for name, value in made.settings.items() if name != "loss.tau"}
    return replace(
        made,
        fidelity="fast",
        settings=settings,
        search=tuple({"loss.eta": eta} for eta in (0.3, 0.6, 1.2)),
        printed={**made.printed, "negatives": "1024"},
    )


def varying_k(dataset: str, fidelity: Fidelity) -> Iterator[Cell]:
    """Talos for each K against the others."""
    metrics = ("recall@20", "recall@50", "recall@80")
    for loss in LOSSES:
        if loss not in ("talos", "bpr"):
            yield Cell(
                experiment="varying-k",
                dataset=dataset,
                group="mf",
                method=loss,
                recipe=recipe(dataset, "mf", loss, fidelity=fidelity),
                published=_paper("varying-k", dataset, loss),
                metrics=metrics,
                rank=3,
                beyond=loss == "sl@k",
            )
    for k in (20, 50, 80):
        yield Cell(
            experiment="varying-k",
            dataset=dataset,
            group="mf",
            method=f"talos@{k}",
            recipe=recipe(dataset, "mf", "talos", fidelity=fidelity, k=k),
            published=_paper("varying-k", dataset, f"talos@{k}"),
            metrics=metrics,
            rank=3,
        )


def temporal(dataset: str, fidelity: Fidelity) -> Iterator[Cell]:
    """Training on the past, testing on the future."""
    scenario: Scenario = "temporal"
    for loss in LOSSES:
        yield Cell(
            experiment="temporal",
            dataset=dataset,
            group="mf",
            method=loss,
            recipe=recipe(dataset, "mf", loss, scenario=scenario, fidelity=fidelity),
            published=_paper("temporal", dataset, loss),
            rank=(1 if dataset == "movielens-100k" else 4) + 4 * (loss in _SLOW),
            beyond=loss in ("sl@k", "bpr"),
        )


def ablation(dataset: str, fidelity: Fidelity) -> Iterator[Cell]:
    """Talos without one of its parts."""
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
        made = recipe(
            dataset, "mf", "talos", fidelity=fidelity, changes=changes, search=search if changes else None
        )
        if changes.get("threshold.name") == "none":
            made = replace(made, settings={k: v for k, v in made.settings.items() if k != "threshold.lr"})
        yield Cell(
            experiment="ablation",
            dataset=dataset,
            group="mf",
            method=method,
            recipe=made,
            published=_paper("ablation", dataset, method),
            rank=2,
        )


def temperature(dataset: str, fidelity: Fidelity) -> Iterator[Cell]:
    """Talos over τ, with SL at its best."""
    for tau in TAUS:
        yield Cell(
            experiment="temperature",
            dataset=dataset,
            group="mf",
            method=f"talos τ={tau:g}",
            recipe=recipe(dataset, "mf", "talos", fidelity=fidelity, changes={"loss.tau": tau}),
            rank=6,
        )
    yield Cell(
        experiment="temperature",
        dataset=dataset,
        group="mf",
        method="sl",
        recipe=recipe(dataset, "mf", "sl", fidelity=fidelity),
        rank=6,
    )


def slatk(dataset: str, fidelity: Fidelity) -> Iterator[Cell]:
    """Talos and SL@K in three settings."""
    for loss in ("talos", "sl@k"):
        yield Cell(
            experiment="slatk",
            dataset=dataset,
            group="temporal shift",
            method=loss,
            recipe=recipe(dataset, "mf", loss, scenario="temporal", fidelity=fidelity),
            published=_paper("slatk-temporal", "games" if dataset == "beauty" else dataset, loss),
            metrics=("precision@20", "recall@20"),
            rank=1 if dataset == "movielens-100k" else 4,
        )
    for n in (8, 16, 32):
        for loss in ("talos", "sl@k"):
            yield Cell(
                experiment="slatk",
                dataset=dataset,
                group=f"{n} negatives",
                method=loss,
                recipe=_sampled(dataset, loss, n),
                published=_paper("slatk-negatives", dataset, loss, setting=f"n={n}"),
                metrics=("precision@20", "recall@20"),
                rank=5,
            )
    if dataset == "movielens-100k":
        for k in (20, 50, 80, 100, 200, 400):
            for loss in ("talos", "sl@k"):
                metric = f"precision@{k}"
                found = _paper("slatk-k", dataset, loss)
                yield Cell(
                    experiment="slatk",
                    dataset=dataset,
                    group=f"K = {k}",
                    method=loss,
                    recipe=recipe(dataset, "mf", loss, fidelity=fidelity, k=k),
                    published={metric: found[metric]} if metric in found else {},
                    metrics=(metric,),
                    rank=1,
                )


def _sampled(dataset: str, loss: str, n: int) -> Recipe:
    """A few negatives per positive, with the threshold estimator of the method's authors."""
    made = recipe(dataset, "mf", loss, fidelity="paper", changes={"negatives": str(n), "optimizer.lr": 0.1})
    short = {**made.settings, "training.epochs": 60, "training.patience": 10}
    return replace(made, settings=short, search=tuple({"loss.tau": tau} for tau in (0.1, 0.2)))


def quantile_error(dataset: str, fidelity: Fidelity) -> Iterator[Cell]:
    """Thresholds as each method estimates them."""
    rows: tuple[tuple[str, str, Fidelity], ...] = (
        ("regression", "talos", "paper"),
        ("monte-carlo", "sl@k", "paper"),
        ("exact", "talos", "fast"),
    )
    for method, loss, kept in rows:
        made = recipe(dataset, "mf", loss, fidelity=kept)
        if (
            method == "monte-carlo"
        ):  # has no state: its error is that of the model of the day. Regression must settle
            made = replace(made, settings={**made.settings, "training.epochs": 40, "training.patience": 15})
        yield Cell(
            experiment="quantile-error",
            dataset=dataset,
            group="mf",
            method=method,
            recipe=made,
            published=_paper("quantile-error", dataset, method),
            metrics=("error", "recall@20"),
            rank=2,
            beyond=method == "exact",
        )


def inflation(dataset: str, fidelity: Fidelity) -> Iterator[Cell]:
    """Scores epoch by epoch, with and without the denominator."""
    fixed = {"training.epochs": 30, "training.patience": 1000, "training.evaluate_every": 5}
    for method, changes in (("talos", {}), ("talos w/o denominator", {"loss.denominator": False})):
        yield Cell(
            experiment="inflation",
            dataset=dataset,
            group="mf",
            method=method,
            recipe=recipe(
                dataset, "mf", "talos", fidelity=fidelity, changes={**fixed, **changes}, search=(), probe=True
            ),
            rank=0,
        )
