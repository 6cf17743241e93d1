"""The settings of every run: the paper's best hyperparameters, and where we deviate from them.

A run has one of two fidelities:

    paper   1,024 negatives per positive (BPR 1), the threshold estimator of the method's authors, the printed
            hyperparameters. Slow on a CPU.
    fast    all items and exact thresholds for losses whose negative part depends on the user alone; fewer negatives
            per positive for the others. Where the printed learning rate or temperature does not suit that, a few
            candidates are tried and validation Precision@20 decides.

`Recipe.deviations` lists whatever differs from the paper; tables print it beside the numbers.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, TypeAlias, get_args

from talos.config import RunConfig
from talos.errors import ConfigError, nearest
from talos.files import digest_of
from talos_paper import published
from talos_paper.data import DATASETS, Scenario
from talos_paper.search import OptionSearch

__all__ = [
    "BACKBONES",
    "LOSSES",
    "Fidelity",
    "Protocol",
    "Recipe",
    "recipe",
    "shown_setting",
    "with_both_weights",
]

Fidelity: TypeAlias = Literal["fast", "paper"]
Protocol: TypeAlias = Literal["fast", "paper", "equal"]
Settings: TypeAlias = Mapping[str, Any]

LOSSES = (
    "talos", "sl", "bsl", "psl", "llpauc", "bpr", "aatp", "smoothi@k", "rs@k", "advinfonce", "sl@k",
)  # fmt: skip
"""Short names, the most informative first."""

BACKBONES = ("mf", "lightgcn", "xsimgcl")

_SEPARABLE = ("talos", "sl", "bsl", "llpauc", "aatp", "sl@k")
# Negatives per positive of the other losses under `fast`, chosen so that an epoch takes a few seconds.
_FAST_NEGATIVES = {"psl": 256, "rs@k": 256, "smoothi@k": 64, "advinfonce": 32, "bpr": 1}
# The keys of `published.hyperparameters` that are options of a loss.
_OPTIONS = ("tau", "tau1", "tau2", "tau_w", "delta", "alpha", "beta", "adv_every", "adv_epochs", "adv_lr")
# For losses and data sets for which the paper prints no hyperparameters.
_DEFAULTS: dict[str, dict[str, float]] = {
    "talos": {"lr": 0.1, "tau": 0.1},
    "sl": {"lr": 0.1, "tau": 0.2},
    "bsl": {"lr": 0.1, "tau1": 0.15, "tau2": 0.2},
    "psl": {"lr": 0.1, "tau": 0.1},
    "llpauc": {"lr": 0.01, "alpha": 0.7, "beta": 0.1},
    "bpr": {"lr": 0.01, "weight_decay": 1e-5},
    "aatp": {"lr": 0.01},
    "smoothi@k": {"lr": 0.1, "tau": 0.2, "delta": 0.05},
    "rs@k": {"lr": 0.1, "tau1": 0.05, "tau2": 5.0},
    "advinfonce": {"lr": 0.1, "tau": 0.2, "adv_every": 15, "adv_epochs": 25, "adv_lr": 1e-5},
    "sl@k": {"lr": 0.1, "tau": 0.2, "tau_w": 1.0},
}
# BPR: near zero its mean loss has a gradient, along each pair of singular directions, of the singular value of
# (positives - negatives) / 2 per interaction after propagation. On Beauty the largest is 1.1e-4 on XSimGCL and 1.3e-4
# on LightGCN, the 64th 8e-6 and 2e-5. A direction whose value is below the (coupled) weight decay shrinks to nothing,
# so the printed 1e-4 leaves one of 64 directions on XSimGCL; the paper's own penalty is probably a weaker one.
# LLPAUC: the pair that validation chose on MF, and its neighbour on the paper's grid.
_TRIED_ON_GRAPHS: dict[tuple[str, str], tuple[Settings, ...]] = {
    ("lightgcn", "bpr"): (
        {},
        {"optimizer.weight_decay": 1e-6},
        {"optimizer.lr": 1e-3, "optimizer.weight_decay": 1e-6},
    ),
    ("xsimgcl", "bpr"): ({}, {"optimizer.weight_decay": 1e-6}),
    ("lightgcn", "llpauc"): (
        {},
        {"loss.alpha": 0.7, "loss.beta": 0.1},
        {"loss.alpha": 0.5, "loss.beta": 0.1},
    ),
    ("xsimgcl", "llpauc"): ({}, {"loss.alpha": 0.7, "loss.beta": 0.1}, {"loss.alpha": 0.5, "loss.beta": 0.1}),
}
# What no table of the paper prints and its runs have, where our own default is another.
_AS_IN_THE_PAPER: Settings = {
    "training.init": "random",
    "training.arithmetic": "float32",
    "training.averaging": 1.0,
    "training.prior": 0.0,
}
# The middle of the paper's grid for BPR, whose own ends are four rates and seven weight decays.
_BPR_GRID: tuple[Settings, ...] = tuple(
    {"optimizer.lr": lr, "optimizer.weight_decay": decay}
    for lr in (0.1, 0.01, 0.001)
    for decay in (1e-4, 1e-5, 1e-6)
)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The settings of the runs behind a row of a table, without the seed.

    Attributes:
        dataset: name as in `talos_paper.data.DATASETS`.
        scenario: `iid` or `temporal`.
        fidelity: `fast` or `paper`; `equal` for the protocol of `talos_paper.equal`.
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
        """The recipe with changed values and without a search; a new loss or backbone drops the old one's options."""
        kept = dict(self.settings)
        for name in ("loss", "backbone"):
            if changes.get(f"{name}.name", kept[f"{name}.name"]) != kept[f"{name}.name"]:
                kept = {key: value for key, value in kept.items() if not key.startswith(f"{name}.")}
        return replace(self, settings=kept | dict(changes), search=(), options=None)

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
            if name == "training.batch_size" and str(self.settings["negatives"]).startswith(
                ("all", "shared")
            ):
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
    search: Sequence[Settings] | None = None,
    ks: tuple[int, ...] | None = None,
    probe: bool = False,
) -> Recipe:
    """The recipe of a data set, a backbone and a loss.

    Args:
        dataset: name as in `talos_paper.data.DATASETS`.
        backbone: short name.
        loss: short name.
        scenario: `iid` or `temporal`.
        fidelity: see the module.
        k: list length to optimise for.
        changes: values that the row is about (an ablation, a temperature, a number of negatives); these do not count
            as deviations.
        search: candidates in place of those of `fast`.
        ks: list lengths of the test metrics; the paper's for this data set if not given.
        probe: record mean scores and thresholds after each epoch.

    >>> recipe("beauty", "mf", "talos", fidelity="paper").deviations()
    ()
    >>> recipe("beauty", "mf", "talos").deviations()[:2]
    ('negatives all (paper 1024)', 'thresholds exact (paper regression)')
    """
    choices: tuple[tuple[str, Collection[str], str], ...] = (
        (dataset, DATASETS, "dataset"),
        (backbone, BACKBONES, "backbone"),
        (loss, LOSSES, "loss"),
    )
    for name, names, where in choices:
        if name not in names:
            raise ConfigError(f"{name!r} is not known", where=where, hint=nearest(name, names))
    if fidelity not in get_args(Fidelity):
        raise ConfigError(f"{fidelity!r}", where="fidelity", hint=nearest(fidelity, get_args(Fidelity)))
    printed = _printed(dataset, backbone, loss, scenario, k)
    settings = dict(printed)
    tried: Sequence[Settings] = ()
    if fidelity == "fast":
        known = dataset != "movielens-100k"
        settings, tried = _fast(settings, backbone, loss, scenario, printed=known)
    if (
        _best(dataset, backbone, loss, scenario) is None
    ):  # values that are not printed cannot differ from the paper's
        printed = {
            name: value
            for name, value in printed.items()
            if name in ("loss.name", "optimizer.lr_decay") or not name.startswith(("loss.", "optimizer.lr"))
        }
    settings |= changes or {}
    printed |= changes or {}
    if ks is None:
        ks = (20, 50, 80, 100, 200, 400) if dataset == "movielens-100k" else (20, 50, 80)
    return Recipe(
        dataset=dataset,
        scenario=scenario,
        fidelity=fidelity,
        settings=settings,
        search=tuple(tried if search is None else search),
        printed=printed,
        ks=ks,
        probe=probe,
    )


def _best(dataset: str, backbone: str, loss: str, scenario: Scenario) -> dict[str, float] | None:
    # the paper calls the temporal data set Games in this table and Beauty in that of the results
    name = "games" if (dataset, scenario) == ("beauty", "temporal") else dataset
    return published.hyperparameters(name, backbone, loss, scenario=scenario)


def _printed(dataset: str, backbone: str, loss: str, scenario: Scenario, k: int) -> dict[str, Any]:
    """The settings of the paper's own run, with our defaults where it prints none."""
    best = _best(dataset, backbone, loss, scenario) or _DEFAULTS[loss]
    threshold = {"talos": "regression", "aatp": "regression", "sl@k": "monte-carlo"}.get(loss, "none")
    settings: dict[str, Any] = {
        "k": k,
        "backbone.name": backbone,
        "backbone.dim": 64,
        "loss.name": loss,
        **{f"loss.{name}": best[name] for name in _OPTIONS if name in best},
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
    for name in ("loss.adv_every", "loss.adv_epochs"):
        if name in settings:
            settings[name] = int(settings[name])
    if threshold == "regression":
        settings["threshold.lr"] = best.get("lr_quantile", 1e-3)
    if backbone == "xsimgcl":
        settings["backbone.contrast_weight"] = best.get("contrast_weight", 0.01)
    return settings


def _fast(
    settings: dict[str, Any], backbone: str, loss: str, scenario: Scenario, *, printed: bool
) -> tuple[dict[str, Any], list[Settings]]:
    """The settings with all items and exact thresholds, or fewer negatives; and the candidates of a search."""
    settings = dict(settings)
    if loss in _SEPARABLE:
        settings |= {"negatives": "all", "training.batch_size": 512}
        if settings["threshold.name"] != "none":
            settings["threshold.name"] = "exact"
            settings.pop("threshold.lr", None)
    else:
        settings["negatives"] = str(_FAST_NEGATIVES[loss])
        if backbone != "mf" and loss != "bpr":
            settings["training.batch_size"] = 4096  # each batch propagates through the whole graph
    if loss == "bpr":
        settings = _fast_bpr(settings, backbone, scenario)
        searched = backbone == "mf" and scenario == "iid"
        return settings, list(_BPR_GRID) if searched else _tried_on_graph(settings, backbone, loss)
    # Initial vectors from N(0, 1) have a length of 8: at a learning rate of .001 they take thousands of steps to turn.
    if backbone != "xsimgcl" and settings["optimizer.lr"] < 0.1 and loss not in ("llpauc", "aatp"):
        settings["optimizer.lr"] = 0.1
    # The printed .001 is for batches of positives; batches of users make only some thirty steps per epoch. On MF
    # validation chose .01 for these two.
    if loss in ("llpauc", "aatp") and (backbone == "lightgcn" or scenario == "temporal"):
        settings["optimizer.lr"] = max(settings["optimizer.lr"], 0.01)
    if backbone == "lightgcn" or scenario == "temporal" or loss in ("advinfonce", "smoothi@k", "llpauc"):
        settings |= {"training.epochs": 60, "training.patience": 15}
    if backbone == "xsimgcl":
        settings |= {"training.epochs": 50, "training.patience": 15}
        if loss == "bsl":
            settings["loss.tau2"] = 0.2  # printed as 0.02, which is not on the paper's grid
        settings["optimizer.lr"] = max(settings["optimizer.lr"], 0.01)
    if backbone != "mf":
        return settings, _tried_on_graph(settings, backbone, loss)
    return settings, _tried(loss, scenario, printed=printed)


def _tried_on_graph(settings: Settings, backbone: str, loss: str) -> list[Settings]:
    """The settings themselves, and the candidates that change something."""
    return [
        one
        for one in _TRIED_ON_GRAPHS.get((backbone, loss), ())
        if not one or any(settings[name] != value for name, value in one.items())
    ]


def _tried(loss: str, scenario: Scenario, *, printed: bool) -> list[Settings]:
    """Candidates on MF: neighbours of the printed values on the paper's grid; a wider range where none is printed."""
    if not printed and loss in ("talos", "sl", "sl@k"):
        return [{"loss.tau": tau} for tau in (0.05, 0.1, 0.15, 0.2, 0.25)]
    if not printed and loss == "bsl":
        return [{"loss.tau2": tau} for tau in (0.05, 0.1, 0.15, 0.2, 0.25)]
    if scenario == "temporal" and printed:
        return []
    if loss == "sl":
        return [{"loss.tau": tau} for tau in (0.15, 0.2)]
    if loss == "bsl":
        return [{"loss.tau2": tau} for tau in (0.15, 0.2)]
    if loss == "llpauc":  # the printed pair, and pairs of the grid that the paper says it searched
        return [
            {"loss.alpha": a, "loss.beta": b} for a, b in ((0.6, 0.9), (0.7, 0.1), (0.7, 0.01), (0.1, 0.1))
        ]
    if loss == "aatp":
        return [{"optimizer.lr": lr} for lr in (0.01, 0.1)]
    if loss == "rs@k":
        return [{}, {"loss.tau1": 0.05, "loss.tau2": 5.0}]
    if loss == "sl@k":
        return [{"loss.tau": tau} for tau in (0.15, 0.2)]
    return []


def with_both_weights(candidates: Sequence[Settings]) -> list[Settings]:
    """Each candidate of SL@K twice: its weight detached, as its paper writes it, and not, as in its authors' code.

    >>> with_both_weights([{"loss.tau": 0.2}])
    [{'loss.tau': 0.2}, {'loss.tau': 0.2, 'loss.detach_weight': False}]
    """
    return [one for tried in candidates for one in (tried, {**tried, "loss.detach_weight": False})]


def _fast_bpr(settings: dict[str, Any], backbone: str, scenario: Scenario) -> dict[str, Any]:
    """BPR needs another learning rate: with the printed one it stops early, before N(0, 1) vectors have moved."""
    if backbone != "xsimgcl":
        settings |= {"optimizer.lr": 0.01, "optimizer.weight_decay": 1e-5, "training.patience": 50}
        settings["training.epochs"] = 200 if backbone == "mf" and scenario == "iid" else 100
    else:
        settings |= {"training.epochs": 50, "training.patience": 15, "training.batch_size": 4096}
    return settings
