"""The tables of the paper, the rows of each, and the settings of the run behind every row.

A run follows one of three protocols, whose values are in `data/recipes.toml`:

    paper   1,024 negatives per positive (BPR 1), the threshold estimator of the method's authors, the printed
            hyperparameters. Slow on a CPU.
    fast    all items and exact thresholds for losses whose negative part depends on the user alone; fewer negatives
            per positive for the others. Where the printed learning rate or temperature does not suit that, a few
            candidates are tried and validation Precision@20 decides.
    equal   one protocol for all losses, with one search for each; see `equal_recipe`.

`Recipe.deviations` lists whatever differs from the paper; tables print it beside the numbers. `data/tables.toml` has
the tables. Rows share runs: Talos on Beauty with MF is one fit, whichever of the overall table, the ablation and the
temperature curve needs it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from typing import Any, Literal, TypeAlias

from talos.config import RunConfig
from talos.files import digest_of
from talos_paper import published
from talos_paper.datasets import Scenario

__all__ = [
    "BACKBONES",
    "EXPERIMENTS",
    "GRIDS",
    "LOSSES",
    "NOT_RUN",
    "Experiment",
    "Fidelity",
    "OptionSearch",
    "Protocol",
    "Recipe",
    "Row",
    "Searched",
    "Settings",
    "Trial",
    "equal_recipe",
    "recipe",
    "schedule_of",
    "shown_setting",
]

Fidelity: TypeAlias = Literal["fast", "paper"]
Protocol: TypeAlias = Literal["fast", "paper", "equal"]
Settings: TypeAlias = Mapping[str, Any]

LOSSES = (
    "talos", "sl", "bsl", "psl", "llpauc", "bpr", "aatp", "smoothi@k", "rs@k", "advinfonce", "sl@k",
)  # fmt: skip
"""Short names, the most informative first."""

BACKBONES = ("mf", "lightgcn", "xsimgcl")

_DATA = published.read_toml("recipes")
_AS_IN_THE_PAPER: Settings = _DATA["as_in_the_paper"]
_EQUAL: dict[str, Any] = _DATA["equal"]
GRIDS: Mapping[str, Mapping[str, Sequence[Any]]] = _EQUAL["grid"]
"""Loss → the grid of the protocol `equal`: option → values, in the order in which they are searched."""


Trial: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Searched:
    """What a search tried, in this order, what became of it, and the place of the best."""

    candidates: list[dict[str, Any]]
    trials: list[Trial]
    best: int


@dataclass(frozen=True, kw_only=True)
class OptionSearch:
    """Option by option: all values of one, the others at the best so far, then those of the next.

    Every value is trained for a few epochs, the two best and the best so far for some more, and the best of these is
    kept. After the last option the search goes round again, until it has tried `settings` of them or a whole round has
    nothing new. Values next to the best one on the grid come first, where not all can be tried any more.

    What a value of the first option, the learning rate, is worth shows late. So at the end, in addition, all its values
    are tried with what was found for the other options, and the best so far and the best of them are trained for longer
    still.

    Attributes:
        grid: option → its values, in order; the most influential options first.
        settings: how many different settings are tried at most before the end.
        epochs: after which all values of an option are compared, then the two best, and at the end those of the first.
    """

    grid: Mapping[str, Sequence[Any]]
    settings: int = 16
    epochs: tuple[int, int, int] = (5, 15, 40)

    def run(self, start: Settings, train: Callable[[Settings, int], tuple[float, Trial]]) -> Searched:
        """Search from a setting; `train` gives the figure of a setting after so many epochs, and what to keep of it.

        >>> peak = lambda one, epochs: (-abs(one["a"] - 3) - abs(one["b"] - 20), {"epochs": epochs})
        >>> found = OptionSearch(grid={"a": (1, 2, 3), "b": (10, 20)}).run({"a": 1, "b": 10}, peak)
        >>> found.candidates[found.best], len(found.candidates)
        ({'a': 3, 'b': 20}, 6)
        """
        best = {name: start[name] for name in self.grid}
        tried: list[dict[str, Any]] = [best]
        trials: dict[int, Trial] = {}

        def figure(one: dict[str, Any], leg: int) -> float:
            value, trial = train(one, self.epochs[leg])
            place = tried.index(one)
            if trials.get(place, {}).get("leg", 0) <= leg:
                trials[place] = {"leg": leg, **trial}
            return value

        def add(name: str, most: int) -> None:
            """Values of an option that are not tried yet, with the best of the others."""
            others = [{**best, name: value} for value in self._around(name, best[name])]
            tried.extend([one for one in others if one not in tried][: max(0, most - len(tried))])

        def ahead(name: str) -> list[dict[str, Any]]:
            """All tried values of an option, with the best of the others, from the best after a few epochs."""
            values = [one for one in tried if {**best, name: one[name]} == one]
            return sorted(values, key=lambda one: -figure(one, 0))

        before = 0
        while len(tried) > before:
            before = len(tried)
            for name in self.grid:
                add(name, self.settings)
                best = max([best, *ahead(name)[:2]], key=lambda one: figure(one, 1))
        first = next(iter(self.grid))
        add(first, len(tried) + len(self.grid[first]))
        other = [one for one in ahead(first) if one != best][:1]
        best = max([best, *other], key=lambda one: figure(one, 2))
        return Searched(tried, [trials[place] for place in range(len(tried))], tried.index(best))

    def _around(self, name: str, value: Any) -> list[Any]:
        """The other values of an option, the nearest on the grid first."""
        values = list(self.grid[name])
        # a number may lie between two of the grid, or beyond it
        distance = [
            0 if one == value else 1 if isinstance(value, str) else abs(one - value) for one in values
        ]
        here = distance.index(min(distance))
        others = [place for place in range(len(values)) if values[place] != value]
        return [values[place] for place in sorted(others, key=lambda place: abs(place - here))]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The settings of the runs behind a row of a table, without the seed.

    Attributes:
        dataset: name as in `talos_paper.datasets.DATASETS`.
        scenario: `iid` or `temporal`.
        fidelity: the protocol, in the name of the run.
        settings: every value that determines the run, by dotted name of the run config.
        search: candidate changes to the settings, between which validation decides; empty without a search.
        options: a search from option to option in place of such candidates; None without one.
        printed: what the paper prints for this row, by the same dotted names.
        ks: list lengths of the test metrics.
        probe: whether mean scores and thresholds are recorded after each epoch.
    """

    dataset: str
    scenario: Scenario = "iid"
    fidelity: Protocol = "fast"
    settings: Settings
    search: Sequence[Settings] = ()
    options: OptionSearch | None = None
    printed: Settings = field(default_factory=dict)
    ks: tuple[int, ...] = (20, 50, 80)
    probe: bool = False

    @property
    def backbone(self) -> str:
        """Short name of the backbone."""
        return str(self.settings["backbone.name"])

    @property
    def loss(self) -> str:
        """Short name of the loss."""
        return str(self.settings["loss.name"])

    @property
    def searched(self) -> tuple[str, ...]:
        """The dotted names of what a search is about."""
        found = [name for candidate in self.search for name in candidate]
        return tuple(dict.fromkeys([*found, *(self.options.grid if self.options else ())]))

    @property
    def watched(self) -> str:
        """The validation metric of early stopping and of the choice between candidates."""
        return f"precision@{self.settings['k']}"

    @property
    def key(self) -> str:
        """The stem of its file name: the main choices in words, and a digest of everything that determines the run."""
        text = re.sub(r"[^a-z0-9]+", "", self.loss)
        tail: dict[str, Any] = {"settings": dict(self.settings), "search": [dict(one) for one in self.search]}
        if self.probe:
            tail["probe"] = True
        if self.options:
            tail["options"] = asdict(self.options)
        return f"{self.scenario}-{self.backbone}-{text}-{self.fidelity}-{digest_of(tail)[:8]}"

    def with_settings(self, changes: Settings) -> Recipe:
        """The recipe with changed values and without a search."""
        return replace(self, settings={**self.settings, **changes}, search=(), options=None)

    def candidates(self) -> list[Recipe]:
        """The recipes between which validation decides; only itself without a search."""
        return [self.with_settings(one) for one in self.search] or [self]

    def config(self, seed: int) -> RunConfig:
        """The run config, with random initial vectors, float32 and the last weights as they are, as in the paper."""
        return RunConfig().with_values({**_AS_IN_THE_PAPER, **self.settings, "seed": seed})

    def deviations(self) -> tuple[str, ...]:
        """Everything that differs from the paper's own run, in words."""
        found = []
        for name, value in self.settings.items():
            if value == _AS_IN_THE_PAPER.get(name):
                continue
            there = self.printed.get(name)
            if name == "training.batch_size" and self.settings["negatives"].startswith(("all", "shared")):
                found.append(f"batches of {value} users (paper {there} positives)")
            elif name == "training.epochs" and value != there:
                found.append(f"at most {value} epochs (paper: no limit named)")
            elif there is None:
                found.append(shown_setting(name, value))
            elif there != value:
                found.append(f"{shown_setting(name, value)} (paper {_text(there)})")
        return tuple(found)


_WORDS = {
    "negatives": "negatives",
    "threshold.name": "thresholds",
    "training.batch_size": "batch",
    "training.reduction": "loss averaged over",
    "optimizer.weight_decay": "weight decay",
    "loss.alpha": "α",
    "loss.beta": "β",
    "loss.delta": "δ",
    "loss.tau": "τ",
    "loss.tau1": "τ1",
    "loss.tau2": "τ2",
    "loss.tau_w": "τ_w",
    "loss.eta": "radius η",
    "loss.detach_weight": "weight detached",
    "loss.offset": "offset of log Σ",
    "training.init": "start from",
    "backbone.contrast_weight": "contrast weight",
    "backbone.contrast_rows": "rows contrasted at most",
}


def shown_setting(name: str, value: Any) -> str:
    """A setting and its value in the words of the pages.

    >>> shown_setting("optimizer.weight_decay", 1e-6), shown_setting("training.patience", 15)
    ('weight decay 1e-06', 'patience 15')
    """
    return f"{_WORDS.get(name, name.rpartition('.')[2])} {_text(value)}"


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def recipe(
    dataset: str,
    backbone: str,
    loss: str,
    *,
    scenario: Scenario = "iid",
    fidelity: Fidelity = "fast",
    k: int = 20,
    changes: Settings | None = None,
    probe: bool = False,
) -> Recipe:
    """The recipe of a data set, a backbone and a loss.

    Args:
        dataset: name as in `talos_paper.datasets.DATASETS`.
        backbone: short name.
        loss: short name.
        scenario: `iid` or `temporal`.
        fidelity: see the module.
        k: list length to optimise for.
        changes: values that the row is about (an ablation, a temperature, a number of negatives); these do not count
            as deviations.
        probe: record mean scores and thresholds after each epoch.

    >>> recipe("beauty", "mf", "talos", fidelity="paper").deviations()
    ()
    >>> recipe("beauty", "mf", "talos").deviations()[:2]
    ('negatives all (paper 1024)', 'thresholds exact (paper regression)')
    """
    # the paper calls the temporal data set Games in this table and Beauty in that of the results
    there = "games" if (dataset, scenario) == ("beauty", "temporal") else dataset
    best = published.hyperparameters(there, backbone, loss, scenario=scenario)
    printed = _printed(best or _DATA["default"][loss], backbone, loss, k)
    settings, search = dict(printed), list[Settings]()
    if fidelity == "fast":
        settings, search = _fast(settings, dataset, backbone, loss, scenario)
    if best is None:  # values that are not printed cannot differ from the paper's
        printed = {
            name: value
            for name, value in printed.items()
            if name in ("loss.name", "optimizer.lr_decay") or not name.startswith(("loss.", "optimizer.lr"))
        }
    return Recipe(
        dataset=dataset,
        scenario=scenario,
        fidelity=fidelity,
        settings=settings | dict(changes or {}),
        search=tuple(search),
        printed=printed | dict(changes or {}),
        ks=(20, 50, 80, 100, 200, 400) if dataset == "movielens-100k" else (20, 50, 80),
        probe=probe,
    )


def _printed(best: Mapping[str, float], backbone: str, loss: str, k: int) -> dict[str, Any]:
    """The settings of the paper's own run, with our defaults where it prints none."""
    elsewhere = (
        "lr",
        "weight_decay",
        "contrast_weight",
        "lr_quantile",
    )  # every other name is an option of the loss
    threshold = _DATA["threshold"].get(loss, "none")
    settings: dict[str, Any] = {
        "k": k,
        "backbone.name": backbone,
        "backbone.dim": 64,
        "loss.name": loss,
        **{f"loss.{name}": value for name, value in best.items() if name not in elsewhere},
        "negatives": "1" if loss == "bpr" else "1024",
        "threshold.name": threshold,
        "optimizer.lr": best["lr"],
        "optimizer.weight_decay": best.get("weight_decay", 0.0),
        "optimizer.lr_decay": 1.0,
        "training.epochs": 200,  # the paper names no limit
        "training.batch_size": 1024,
        "training.evaluate_every": 5,
        "training.patience": 25,
    }
    if threshold == "regression":
        settings["threshold.lr"] = best.get("lr_quantile", 1e-3)
    if backbone == "xsimgcl":
        settings["backbone.contrast_weight"] = best.get("contrast_weight", 0.01)
    return settings


def _fast(
    settings: dict[str, Any], dataset: str, backbone: str, loss: str, scenario: Scenario
) -> tuple[dict[str, Any], list[Settings]]:
    """The settings after the rules of the protocol, and the candidates of its search."""
    own = {"losses": loss, "backbones": backbone, "scenarios": scenario, "datasets": dataset}
    search: list[Settings] = []
    for rule in _DATA["fast"]:
        if all(value in rule.get(key, [value]) for key, value in own.items()):
            settings = settings | rule.get("set", {})
            settings |= {name: max(settings[name], least) for name, least in rule.get("at_least", {}).items()}
            settings = {name: value for name, value in settings.items() if name not in rule.get("drop", [])}
            search = rule.get("search", search)
    if backbone != "mf":  # candidates that repeat the settings are left out
        search = [
            one for one in search if not one or any(settings[name] != value for name, value in one.items())
        ]
    return settings, search


# ------------------------------------------------------------------------------------------------- equal footing


def schedule_of(dataset: str) -> dict[str, Any]:
    """Start, learning-rate decay, averaging and stopping of the protocol `equal`.

    >>> schedule_of("gowalla")["training.patience"]
    15
    """
    return {**_EQUAL["schedule"], **(_EQUAL["on_gowalla"] if dataset == "gowalla" else {})}


def equal_recipe(dataset: str, backbone: str, loss: str, *, k: int = 20) -> Recipe:
    """The recipe of a loss under the protocol `equal`, trained for lists of length `k`.

        items       all items as negatives, exact thresholds; SmoothI@K with one list per user (docs/losses.md)
        start       alternating least squares, dimension 64, K = 20, seed 0 for the search
        rate        falls by 3 % an epoch, by 7 % on Gowalla; weights are averaged over epochs
        stopping    25 epochs (on Gowalla 15) without a validation Precision@20 that is .1 % better, at most 300, which
                    none may need
        search      over the paper's own grids, from what it prints as best for this loss, backbone and data set
                    (`OptionSearch`)
        batches     of 512 users; of 1,024 on the graph backbones, where every step goes over the whole graph
        XSimGCL     contrasts at most 1,024 users and 1,024 items of a batch, as many as the paper's batches can have
        result      three seeds of the best setting on MF, one on the graph backbones; test once, in the paper's dialect

    Nothing here knows which loss it favours: `data/recipes.toml` has all there is to choose.

    >>> made = equal_recipe("beauty", "mf", "psl")
    >>> made.settings["negatives"], made.searched
    ('all', ('optimizer.lr', 'optimizer.weight_decay', 'loss.tau'))
    """
    made = recipe(dataset, backbone, loss, fidelity="paper", k=k)
    settings = {name: value for name, value in made.settings.items() if name != "threshold.lr"}
    settings |= {**schedule_of(dataset), "negatives": "all"}
    settings["training.batch_size"] = 512 if backbone == "mf" else 1024
    if settings["threshold.name"] != "none":
        settings["threshold.name"] = "exact"
    if backbone == "xsimgcl":
        settings["backbone.contrast_rows"] = 1024
    if "loss.scores" in GRIDS[loss]:
        settings["loss.scores"] = "cosine"
    epochs = _EQUAL["epochs"].get(dataset, _EQUAL["epochs"]["default"])
    options = OptionSearch(grid=GRIDS[loss], settings=_EQUAL["settings"], epochs=tuple(epochs))
    return replace(made, fidelity="equal", settings=settings, options=options)


# ------------------------------------------------------------------------------------- the tables and their rows

_TABLES = published.read_toml("tables")
_METRICS = ("precision@20", "recall@20", "ndcg@20", "mrr@20")
_SLOW = ("advinfonce", "smoothi@k", "rs@k")

NOT_RUN: dict[str, str] = _TABLES["not_run"]
"""What else the paper has → why there is no command for it."""


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
    group: str
    method: str
    recipe: Recipe
    seeds: int
    published: Mapping[str, float]
    metrics: tuple[str, ...]
    core: bool
    order: int


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A table or figure of the paper.

    Attributes:
        name: on the command line.
        title: heading of its page.
        paper: where it stands in the paper.
        datasets: the data sets it is made for, those of the core set first.
        core: the data sets that belong to the core set.
        metrics: the columns of its tables.
        specs: its rows as `data/tables.toml` has them; none for a measurement that needs no fit.
    """

    name: str
    title: str
    paper: str
    datasets: Sequence[str]
    core: Sequence[str]
    metrics: Sequence[str] = _METRICS
    specs: Sequence[Mapping[str, Any]] = field(default=(), repr=False)

    def rows(self, dataset: str, fidelity: Fidelity = "fast") -> list[Row]:
        """The rows for a data set, in the order of the table; none for a measurement.

        >>> [row.method for row in EXPERIMENTS["inflation"].rows("beauty")]
        ['talos', 'talos w/o denominator']
        """
        found = []
        for spec in self.specs:
            if dataset in spec.get("datasets", self.datasets) and spec.get("asked", fidelity) == fidelity:
                losses = spec.get("losses", ["talos"])
                varied = (
                    spec.get("backbones", ["mf"]),
                    spec.get("values", [None]),
                    LOSSES if losses == "all" else losses,
                )
                found += [self._row(spec, dataset, fidelity, *one) for one in product(*varied)]
        return found

    def _row(
        self, spec: Mapping[str, Any], dataset: str, fidelity: Fidelity, backbone: str, value: Any, loss: str
    ) -> Row:
        def filled(text: str) -> str:
            return text.format(value=value)

        method = filled(spec.get("method", loss))
        metrics = tuple(filled(metric) for metric in spec.get("metrics", self.metrics))
        keys = {
            "table": self.name,
            "dataset": "movielens" if dataset == "movielens-100k" else dataset,
            "method": method,
            "backbone": backbone,
            **{key: filled(name) for key, name in spec.get("published", {}).items()},
        }
        entries = published.numbers(**keys)
        return Row(
            dataset=dataset,
            group=filled(spec.get("group", backbone)),
            method=method,
            recipe=_recipe(spec, dataset, fidelity, backbone, value, loss),
            seeds=3 if loss in spec.get("three_seeds", []) else spec.get("seeds", 1),
            published={entry.metric: entry.value for entry in entries if entry.metric in metrics},
            metrics=metrics,
            core=dataset in self.core and spec.get("core", True),
            order=spec.get("order", 5) + (loss in _SLOW),
        )


def _recipe(
    spec: Mapping[str, Any], dataset: str, fidelity: Fidelity, backbone: str, value: Any, loss: str
) -> Recipe:
    protocol, vary = spec.get("protocol", fidelity), spec.get("vary")
    changes = dict(spec.get("changes", {}))
    k = value if vary == "k" else 20
    if vary not in (None, "k"):
        changes[vary] = value
    if protocol == "equal":
        made = equal_recipe(dataset, backbone, loss, k=k)
        made = made.with_settings(changes) if changes else made
    else:
        scenario, probe = spec.get("scenario", "iid"), spec.get("probe", False)
        options: dict[str, Any] = {"scenario": scenario, "k": k, "changes": changes, "probe": probe}
        made = recipe(dataset, backbone, loss, fidelity=protocol, **options)
    if "schedule" in spec:
        made = made.with_settings({**schedule_of(dataset), **spec["schedule"]})
    settings = {**made.settings, **spec.get("settings", {})}
    return replace(
        made,
        fidelity=spec.get("shown_as", made.fidelity),
        settings={name: one for name, one in settings.items() if name not in spec.get("drop", [])},
        search=tuple(spec.get("search_of", {}).get(loss, spec.get("search", made.search))),
    )


EXPERIMENTS: dict[str, Experiment] = {
    facts["name"]: Experiment(
        specs=facts.get("rows", []), **{key: value for key, value in facts.items() if key != "rows"}
    )
    for facts in _TABLES["table"]
}
"""Name → experiment, in the order of the paper."""
