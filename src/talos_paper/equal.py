"""Eleven losses on equal footing: one protocol that every loss follows, written down before any run.

    items       all items as negatives, exact thresholds; SmoothI@K with one list per user (docs/losses.md)
    start       alternating least squares, dimension 64, K = 20, seed 0 for the search
    rate        falls by 3 % an epoch, by 7 % on Gowalla, where an epoch has six times the positives and a fit that
                falls by 7 % is as good after 30 epochs as one by 3 % after 40; weights are averaged over epochs
    stopping    25 epochs (on Gowalla 15) without a validation Precision@20 that is .1 % better, at most 300, which none
                may need
    search      12 settings of the paper's own grids: what it prints as best for this data set, and 11 points that are
                spread over the grid in the same way for every loss. After a few epochs the better third goes on, then
                the better half, then the best (successive halving by validation Precision@20): the same number of
                epochs for every loss
    result      three seeds of the best setting on MF, one on the graph backbones; test once, in the paper's dialect

Nothing here knows which loss it favours: `GRIDS` and the three constants below are all there is to choose.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count, islice
from typing import Any, Final

from talos_paper.recipes import LOSSES, Recipe, recipe

__all__ = [
    "GRIDS",
    "ON_GRAPHS",
    "PROTOCOL",
    "READINGS",
    "SETTINGS",
    "equal_recipe",
    "legs_of",
    "schedule_of",
    "spread",
]

SETTINGS: Final = 12
"""Settings that are tried for each loss."""

PROTOCOL: Final = (
    "One protocol for all losses: all items as negatives and exact thresholds, a start from least squares, a learning "
    "rate that falls by 3 % an epoch (Gowalla: 7 %), weights averaged over epochs, 25 epochs of patience (Gowalla: "
    "15), in which a figure must rise by .1 % to count.",
    f"The search of every loss tries {SETTINGS} settings of the paper's own grids and drops the worse ones by "
    "validation Precision@20 after a few epochs each; all have the same number of epochs. The best setting is run with "
    "three seeds on MF, with one on the other backbones. What every setting reached is in `searches/`. A run stops by "
    "itself; one that its limit of 300 epochs stopped would be marked.",
)
"""The protocol in the words of the page."""

READINGS: Final[Mapping[str, str]] = {
    "beauty": "On MF, BSL chose equal temperatures, with which it is SL.",
    "games": "On MF, Talos is level with SL, BSL, PSL and SL@K in Precision@20 and Recall@20 and ahead of all of them "
    "in NDCG@20 and MRR@20: what it gains here lies above the 20th place. The grid's temperatures are not the reason: "
    "with 0.12, between two of them, Recall@20 is 0.1948, 0.1935 and 0.1951 (seeds 0 to 2). With all items and this "
    "start the rivals are above their published figures and Talos is not; the data are not quite the paper's.",
}
"""Data set → what there is to say about its results."""

ON_GRAPHS: Final = ("talos", "sl", "psl", "bpr", "sl@k")
"""Losses that are also compared on LightGCN and XSimGCL."""

_TAU: Final = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3)
_COSINE: Final[Mapping[str, Sequence[Any]]] = {
    "optimizer.lr": (0.1, 0.01, 0.001),
    "optimizer.weight_decay": (0.0, 1e-8, 1e-6, 1e-4),
}
_DOT: Final[Mapping[str, Sequence[Any]]] = {
    "optimizer.lr": (0.1, 0.01, 0.001, 1e-4),
    "optimizer.weight_decay": (0.0, 1e-8, 1e-6, 1e-5, 1e-4, 1e-3),
}
GRIDS: Final[Mapping[str, Mapping[str, Sequence[Any]]]] = {
    "talos": {"loss.tau": _TAU, **_COSINE},
    "sl": {"loss.tau": _TAU, **_COSINE},
    "bsl": {"loss.tau1": _TAU, "loss.tau2": _TAU, **_COSINE},
    "psl": {"loss.tau": _TAU, **_COSINE},
    # σ of the cosine as in the paper's comparison, or of the product as its authors have it
    "llpauc": {
        "loss.alpha": (0.1, 0.3, 0.5, 0.7, 0.9),
        "loss.beta": (0.01, 0.1),
        "loss.scores": ("cosine", "dot"),
        **_COSINE,
    },
    "bpr": _DOT,
    "aatp": _COSINE,
    "smoothi@k": {"loss.tau": _TAU, "loss.delta": _TAU, **_COSINE},
    "rs@k": {"loss.tau1": (0.01, *_TAU), "loss.tau2": (1.0, 2.0, 3.0, 4.0, 5.0), **_COSINE},
    "advinfonce": {
        "loss.tau": _TAU,
        "loss.adv_every": (5, 10, 15, 20),
        "loss.adv_epochs": (5, 10, 15, 20, 25, 30),
        "loss.adv_lr": (1e-4, 1e-5),
        **_COSINE,
    },
    # the paper does not print the range of the second temperature: that of the first, and its authors' default of 1
    "sl@k": {"loss.tau": _TAU, "loss.tau_w": (0.1, 0.2, 0.3, 0.5, 1.0, 2.0), **_COSINE},
}
"""Loss → the paper's grid: option → values."""

_FIXED: Final[Mapping[str, Any]] = {
    "training.init": "als",
    "training.arithmetic": "auto",
    "training.averaging": 0.2,
    "optimizer.lr_decay": 0.97,
    "training.epochs": 300,
    "training.evaluate_every": 5,
    "training.patience": 25,
    "training.min_gain": 0.001,
}
_ON_GOWALLA: Final[Mapping[str, Any]] = {"optimizer.lr_decay": 0.93, "training.patience": 15}
_PRIMES: Final = (2, 3, 5, 7, 11, 13)


def schedule_of(dataset: str) -> dict[str, Any]:
    """Start, learning-rate decay, averaging and stopping of the protocol.

    >>> schedule_of("gowalla")["training.patience"]
    15
    """
    return {**_FIXED, **(_ON_GOWALLA if dataset == "gowalla" else {})}


def legs_of(dataset: str) -> tuple[tuple[int, int], ...]:
    """After how many epochs how many settings go on; fewer on Gowalla, where an epoch has six times the positives.

    >>> legs_of("beauty"), legs_of("gowalla")
    (((5, 4), (20, 2), (40, 1)), ((2, 4), (6, 2), (12, 1)))
    """
    return ((2, 4), (6, 2), (12, 1)) if dataset == "gowalla" else ((5, 4), (20, 2), (40, 1))


def spread(grid: Mapping[str, Sequence[Any]], number: int) -> list[dict[str, Any]]:
    """Distinct points that cover a grid evenly: a Halton sequence, a prime number for each option.

    A grid with fewer points is returned whole, in the order of the sequence.

    >>> spread({"a": (1, 2), "b": (10, 20, 30)}, 3)
    [{'a': 2, 'b': 20}, {'a': 1, 'b': 30}, {'a': 2, 'b': 10}]
    """
    size = 1
    for values in grid.values():
        size *= len(values)

    def points() -> Any:
        seen: list[dict[str, Any]] = []
        for place in count(1):
            if len(seen) == size:
                return
            one = {
                name: values[int(_radical_inverse(place, prime) * len(values))]
                for prime, (name, values) in zip(_PRIMES, grid.items(), strict=False)
            }
            if one not in seen:
                seen.append(one)
                yield one

    return list(islice(points(), number))


def _radical_inverse(place: int, base: int) -> float:
    """The digits of a number behind the point, in reverse order: evenly spread over [0, 1).

    >>> [_radical_inverse(place, 2) for place in (1, 2, 3)]
    [0.5, 0.25, 0.75]
    """
    value, scale = 0.0, 1.0
    while place:
        scale /= base
        value += scale * (place % base)
        place //= base
    return value


def equal_recipe(dataset: str, backbone: str, loss: str, *, k: int = 20) -> Recipe:
    """The recipe of a loss under the protocol, trained for lists of length `k`.

    >>> made = equal_recipe("beauty", "mf", "psl")
    >>> made.settings["negatives"], len(made.search), made.search[0]
    ('all', 12, {'loss.tau': 0.1, 'optimizer.lr': 0.1, 'optimizer.weight_decay': 0.0})
    """
    assert loss in LOSSES
    made = recipe(dataset, backbone, loss, fidelity="paper", k=k)
    settings = {name: value for name, value in made.settings.items() if name != "threshold.lr"}
    settings |= {**schedule_of(dataset), "negatives": "all", "training.batch_size": 512}
    if settings["threshold.name"] != "none":
        settings["threshold.name"] = "exact"
    grid = GRIDS[loss]
    printed = {
        name: value for name, value in {"loss.scores": "cosine", **made.settings}.items() if name in grid
    }
    others = [one for one in spread(grid, SETTINGS) if one != printed]
    return replace(
        made,
        fidelity="equal",
        settings=settings,
        search=(printed, *others[: SETTINGS - 1]),
        legs=legs_of(dataset),
    )
