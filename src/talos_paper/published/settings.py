"""The hyperparameters that the paper searched, and the best values that it reports."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from talos.errors import ArgumentError, ConfigError, nearest

if TYPE_CHECKING:
    from talos.config import RunConfig

__all__ = ["GRID", "OFF_GRID", "hyperparameters", "search_space"]

_LR = (0.1, 0.01, 0.001)
_WEIGHT_DECAY = (0.0, 1e-4, 1e-6, 1e-8)
_CONTRAST_WEIGHT = (0.2, 0.1, 0.05, 0.01)
_TAU = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3)

# The options of a loss beyond learning rate and weight decay, in the order of the table "Hyperparameters to be
# searched", which is also that of the column "others" in the tables of best values.
_OTHERS: dict[str, dict[str, tuple[float, ...]]] = {
    "bpr": {},
    "aatp": {"lr_quantile": (0.1, 0.01, 1e-3, 1e-4)},
    "rs@k": {"tau1": (0.01, *_TAU), "tau2": (1.0, 2.0, 3.0, 4.0, 5.0)},
    "smoothi@k": {"tau": _TAU, "delta": _TAU},
    "llpauc": {"alpha": (0.1, 0.3, 0.5, 0.7, 0.9), "beta": (0.01, 0.1)},
    "sl": {"tau": _TAU},
    "advinfonce": {
        "adv_every": (5, 10, 15, 20),
        "adv_epochs": (5, 10, 15, 20, 25, 30),
        "adv_lr": (1e-4, 1e-5),
        "tau": _TAU,
    },
    "bsl": {"tau1": _TAU, "tau2": _TAU},
    "psl": {"tau": _TAU},
    "talos": {"tau": _TAU},
}


def _grid(loss: str) -> Mapping[str, tuple[float, ...]]:
    bpr = loss == "bpr"
    searched = {
        "lr": (*_LR, 1e-4) if bpr else _LR,
        "weight_decay": (0.0, 1e-3, 1e-4, 1e-5, 1e-6, 1e-8) if bpr else _WEIGHT_DECAY,
        "contrast_weight": _CONTRAST_WEIGHT,
    }
    return MappingProxyType(searched | _OTHERS[loss])


GRID: Mapping[str, Mapping[str, tuple[float, ...]]] = MappingProxyType(
    {loss: _grid(loss) for loss in _OTHERS}
)
"""Loss → hyperparameter → the values that the paper searched.

Names are those of `talos`: the options of the loss, `lr` and `weight_decay` of the optimizer,
`contrast_weight` of XSimGCL (the paper's wl; on that backbone alone). `lr_quantile` of AATP is the rate of its
quantile regression, `lr` among the options of the threshold.

>>> GRID["talos"]["tau"]
(0.05, 0.1, 0.15, 0.2, 0.25, 0.3)
"""

# backbone, loss, learning rate, weight decay, contrast weight of XSimGCL, then the options as in `_OTHERS`
_IID = {
    "gowalla": """
        mf       bpr         1e-3 1e-8 -
        mf       aatp        1e-3 1e-6 -    1e-4
        mf       rs@k        1e-1 0    -    0.01 2
        mf       smoothi@k   1e-3 0    -    0.1 0.05
        mf       sl          1e-1 0    -    0.1
        mf       bsl         1e-1 0    -    0.1 0.1
        mf       psl         1e-1 0    -    0.05
        mf       advinfonce  1e-1 0    -    15 25 1e-5 0.1
        mf       llpauc      1e-3 1e-6 -    0.8 0.01
        mf       talos       1e-2 0    -    0.05
        lightgcn bpr         1e-3 1e-8 -
        lightgcn aatp        1e-3 0    -    1e-2
        lightgcn rs@k        1e-2 0    -    0.1 5
        lightgcn smoothi@k   1e-3 1e-8 -    0.1 0.05
        lightgcn sl          1e-1 0    -    0.1
        lightgcn bsl         1e-1 0    -    0.05 0.1
        lightgcn psl         1e-2 0    -    0.05
        lightgcn advinfonce  1e-2 0    -    5 30 1e-5 0.1
        lightgcn llpauc      1e-3 1e-8 -    0.1 0.05
        lightgcn talos       1e-2 0    -    0.05
        xsimgcl  bpr         1e-3 0    0.05
        xsimgcl  aatp        1e-4 1e-6 0.05 1e-4
        xsimgcl  rs@k        1e-2 0    0.01 0.1 5
        xsimgcl  smoothi@k   1e-2 0    0.01 0.1 0.1
        xsimgcl  sl          1e-3 0    0.01 0.1
        xsimgcl  bsl         1e-2 0    0.01 0.05 0.1
        xsimgcl  psl         1e-1 0    0.01 0.05
        xsimgcl  advinfonce  1e-3 0    0.01 15 30 1e-5 0.1
        xsimgcl  llpauc      1e-3 1e-8 0.01 0.1 0.01
        xsimgcl  talos       1e-1 0    0.01 0.05
    """,
    "beauty": """
        mf       bpr         1e-3 1e-6 -
        mf       aatp        1e-2 0    -    1e-3
        mf       rs@k        1e-1 1e-8 -    0.01 1
        mf       smoothi@k   1e-1 1e-8 -    0.2 0.05
        mf       sl          1e-3 1e-8 -    0.15
        mf       bsl         1e-1 0    -    0.05 0.15
        mf       psl         1e-1 0    -    0.1
        mf       advinfonce  1e-1 0    -    15 30 1e-5 0.15
        mf       llpauc      1e-2 1e-6 -    0.6 0.9
        mf       talos       1e-1 1e-8 -    0.1
        lightgcn bpr         1e-3 1e-6 -
        lightgcn aatp        1e-3 1e-8 -    1e-4
        lightgcn rs@k        1e-3 0    -    0.1 5
        lightgcn smoothi@k   1e-3 1e-8 -    0.2 0.05
        lightgcn sl          1e-1 0    -    0.2
        lightgcn bsl         1e-1 0    -    0.15 0.2
        lightgcn psl         1e-1 0    -    0.1
        lightgcn advinfonce  1e-1 0    -    5 25 1e-5 0.2
        lightgcn llpauc      1e-2 1e-6 -    0.1 0.1
        lightgcn talos       1e-1 0    -    0.1
        xsimgcl  bpr         1e-2 1e-4 0.2
        xsimgcl  aatp        1e-2 1e-8 0.05 1e-3
        xsimgcl  rs@k        1e-3 0    0.01 0.15 5
        xsimgcl  smoothi@k   1e-2 0    0.01 0.1 0.05
        xsimgcl  sl          1e-3 0    0.01 0.2
        xsimgcl  bsl         1e-3 1e-8 0.01 0.15 0.02
        xsimgcl  psl         1e-2 0    0.01 0.1
        xsimgcl  advinfonce  1e-3 0    0.01 10 20 1e-5 0.2
        xsimgcl  llpauc      1e-2 1e-6 0.01 0.1 0.01
        xsimgcl  talos       1e-1 0    0.01 0.1
    """,
    "games": """
        mf       bpr         1e-2 1e-6 -
        mf       aatp        1e-3 1e-6 -    1e-2
        mf       rs@k        1e-1 1e-8 -    0.05 5
        mf       smoothi@k   1e-2 0    -    0.15 0.05
        mf       sl          1e-2 1e-6 -    0.2
        mf       bsl         1e-1 0    -    0.05 0.2
        mf       psl         1e-1 0    -    0.1
        mf       advinfonce  1e-1 1e-8 -    15 5 1e-5 0.2
        mf       llpauc      1e-2 1e-6 -    0.5 0.9
        mf       talos       1e-1 0    -    0.1
        lightgcn bpr         1e-3 1e-6 -
        lightgcn aatp        1e-1 0    -    1e-2
        lightgcn rs@k        1e-1 0    -    0.1 5
        lightgcn smoothi@k   1e-3 1e-8 -    0.15 0.05
        lightgcn sl          1e-1 0    -    0.2
        lightgcn bsl         1e-1 1e-8 -    0.05 0.2
        lightgcn psl         1e-1 0    -    0.1
        lightgcn advinfonce  1e-1 0    -    20 15 1e-5 0.2
        lightgcn llpauc      1e-2 1e-6 -    0.1 0.1
        lightgcn talos       1e-1 0    -    0.1
        xsimgcl  bpr         1e-3 1e-6 0.1
        xsimgcl  aatp        1e-2 1e-8 0.01 1e-2
        xsimgcl  rs@k        1e-3 1e-8 0.01 0.15 5
        xsimgcl  smoothi@k   1e-1 0    0.01 0.15 0.05
        xsimgcl  sl          1e-2 0    0.01 0.2
        xsimgcl  bsl         1e-2 0    0.01 0.05 0.2
        xsimgcl  psl         1e-2 0    0.01 0.1
        xsimgcl  advinfonce  1e-2 0    0.01 15 20 1e-4 0.2
        xsimgcl  llpauc      1e-3 1e-6 0.01 0.6 0.05
        xsimgcl  talos       1e-2 1e-8 0.01 0.1
    """,
    "electronics": """
        mf       bpr         1e-3 1e-6 -
        mf       aatp        1e-2 0    -    1e-4
        mf       rs@k        1e-3 1e-6 -    0.05 5
        mf       smoothi@k   1e-3 1e-8 -    0.15 0.2
        mf       sl          1e-3 1e-6 -    0.2
        mf       bsl         1e-2 1e-8 -    0.1 0.2
        mf       psl         1e-3 1e-8 -    0.1
        mf       advinfonce  1e-2 1e-8 -    10 30 1e-5 0.15
        mf       llpauc      1e-3 1e-6 -    0.6 0.05
        mf       talos       1e-3 1e-6 -    0.1
        lightgcn bpr         1e-3 1e-6 -
        lightgcn aatp        1e-1 0    -    1e-2
        lightgcn rs@k        1e-3 1e-6 -    0.15 4
        lightgcn smoothi@k   1e-3 1e-8 -    0.15 0.1
        lightgcn sl          1e-2 0    -    0.2
        lightgcn bsl         1e-2 0    -    0.1 0.2
        lightgcn psl         1e-3 1e-8 -    0.1
        lightgcn advinfonce  1e-2 0    -    15 30 1e-5 0.2
        lightgcn llpauc      1e-3 1e-6 -    0.5 0.01
        lightgcn talos       1e-1 0    -    0.1
        xsimgcl  bpr         1e-3 1e-5 0.2
        xsimgcl  aatp        1e-3 1e-8 0.01 1e-2
        xsimgcl  rs@k        1e-2 1e-6 0.01 0.1 4
        xsimgcl  smoothi@k   1e-3 1e-8 0.01 0.1 0.1
        xsimgcl  sl          1e-1 0    0.01 0.2
        xsimgcl  bsl         1e-2 0    0.01 0.25 0.25
        xsimgcl  psl         1e-2 0    0.01 0.1
        xsimgcl  advinfonce  1e-3 0    0.01 15 30 1e-5 0.2
        xsimgcl  llpauc      1e-2 1e-6 0.05 0.7 0.01
        xsimgcl  talos       1e-1 0    0.01 0.1
    """,
}

_OOD = {
    "gowalla": """
        mf       bpr         1e-3 1e-8 -
        mf       aatp        1e-3 1e-6 -    1e-4
        mf       rs@k        1e-2 1e-8 -    0.05 5
        mf       smoothi@k   1e-3 0    -    0.1 0.1
        mf       sl          1e-1 0    -    0.1
        mf       bsl         1e-1 0    -    0.1 0.1
        mf       psl         1e-1 0    -    0.05
        mf       advinfonce  1e-1 0    -    5 30 1e-5 0.1
        mf       llpauc      1e-3 1e-6 -    0.7 0.01
        mf       talos       1e-1 0    -    0.05
    """,
    "games": """
        mf       bpr         1e-3 1e-6 -
        mf       aatp        1e-3 1e-6 -    1e-2
        mf       rs@k        1e-1 1e-8 -    0.05 5
        mf       smoothi@k   1e-1 0    -    0.1 0.05
        mf       sl          1e-2 0    -    0.2
        mf       bsl         1e-2 0    -    0.1 0.2
        mf       psl         1e-2 1e-8 -    0.1
        mf       advinfonce  1e-2 0    -    5 5 1e-5 0.2
        mf       llpauc      1e-3 1e-6 -    0.6 0.7
        mf       talos       1e-2 1e-6 -    0.1
    """,
}


def _read(blocks: dict[str, str]) -> dict[tuple[str, str, str], dict[str, float]]:
    best = {}
    for dataset, block in blocks.items():
        for line in block.strip().splitlines():
            backbone, loss, lr, weight_decay, contrast, *others = line.split()
            values = {"lr": float(lr), "weight_decay": float(weight_decay)}
            if contrast != "-":
                values["contrast_weight"] = float(contrast)
            for name, word in zip(_OTHERS[loss], others, strict=True):
                values[name] = int(word) if name in ("adv_every", "adv_epochs") else float(word)
            best[dataset, backbone, loss] = values
    return best


_BEST = {"iid": _read(_IID), "ood": _read(_OOD)}

_LLPAUC = "not among the values that the paper says it searched for LLPAUC"
OFF_GRID: Mapping[tuple[str, str, str, str, str], str] = MappingProxyType(
    {
        ("iid", "gowalla", "mf", "llpauc", "alpha"): _LLPAUC,
        ("iid", "beauty", "mf", "llpauc", "alpha"): _LLPAUC,
        ("iid", "beauty", "mf", "llpauc", "beta"): _LLPAUC,
        ("iid", "games", "mf", "llpauc", "beta"): _LLPAUC,
        ("iid", "electronics", "mf", "llpauc", "alpha"): _LLPAUC,
        ("iid", "electronics", "mf", "llpauc", "beta"): _LLPAUC,
        ("iid", "gowalla", "lightgcn", "llpauc", "beta"): _LLPAUC,
        ("iid", "games", "xsimgcl", "llpauc", "alpha"): _LLPAUC,
        ("iid", "games", "xsimgcl", "llpauc", "beta"): _LLPAUC,
        ("ood", "games", "mf", "llpauc", "alpha"): _LLPAUC,
        ("ood", "games", "mf", "llpauc", "beta"): _LLPAUC,
        ("iid", "beauty", "xsimgcl", "bsl", "tau2"): "0.02 is not among the values searched; 0.2 is",
        ("iid", "gowalla", "xsimgcl", "aatp", "lr"): "1e-4 was searched for BPR alone",
    }
)
"""(scenario, dataset, backbone, loss, hyperparameter) → note, for best values that are not on the grid.

>>> OFF_GRID["iid", "beauty", "xsimgcl", "bsl", "tau2"]
'0.02 is not among the values searched; 0.2 is'
"""


def hyperparameters(
    dataset: str, backbone: str, loss: str, *, scenario: str = "iid"
) -> dict[str, float] | None:
    """The values that the paper reports as best, as printed; None where it reports none.

    Args:
        dataset: `gowalla`, `beauty`, `games` or `electronics`; with temporal shift `gowalla` or `games` (which the
            table of results calls Beauty).
        backbone: `mf`, `lightgcn` or `xsimgcl`; with temporal shift `mf`.
        loss: short name of the loss.
        scenario: `iid`, or `ood` (also `temporal`) for the split by time.

    Returns:
        Names as in `GRID`; `contrast_weight` on XSimGCL only. A fresh dictionary at each call.

    >>> hyperparameters("beauty", "mf", "talos")
    {'lr': 0.1, 'weight_decay': 1e-08, 'tau': 0.1}
    >>> hyperparameters("gowalla", "mf", "advinfonce", scenario="ood")
    {'lr': 0.1, 'weight_decay': 0.0, 'adv_every': 5, 'adv_epochs': 30, 'adv_lr': 1e-05, 'tau': 0.1}
    >>> hyperparameters("beauty", "mf", "sl@k") is None
    True
    """
    name = "ood" if scenario == "temporal" else scenario
    if name not in _BEST:
        raise ArgumentError(
            f"no scenario is called {scenario!r}", where="scenario", hint=nearest(scenario, _BEST)
        )
    found = _BEST[name].get((dataset, backbone, loss))
    return None if found is None else dict(found)


_CONFIG_KEYS = {
    "lr": "optimizer.lr",
    "weight_decay": "optimizer.weight_decay",
    "contrast_weight": "backbone.contrast_weight",
    "lr_quantile": "threshold.lr",
}


def search_space(base: RunConfig) -> dict[str, Any]:
    """The values that the paper searched for the loss of a config, by key of the config: `talos tune --space paper`."""
    loss = base.loss.name
    if loss not in GRID:
        raise ConfigError(
            f"the paper has no grid for the loss {loss!r}",
            where="--space paper",
            expected=f"one of {', '.join(sorted(GRID))}",
            hint="--space default has one",
        )
    space: dict[str, Any] = {
        _CONFIG_KEYS.get(name, f"loss.{name}"): list(values)
        for name, values in GRID[loss].items()
        if name != "contrast_weight" or base.backbone.name == "xsimgcl"
    }
    if "threshold.lr" in space:  # the learning rate of a quantile regression, so there has to be one
        space["threshold.name"] = "regression"
    return space
