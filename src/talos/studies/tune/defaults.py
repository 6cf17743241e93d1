"""The space that is searched unless told otherwise: what matters most for each loss and backbone.

Every default of the config lies within it, so that the first trial can be the defaults themselves and the result
is never worse than they are on the validation set.
"""

from __future__ import annotations

from typing import Any

from talos.config import RunConfig
from talos.studies.tune.space import Space

__all__ = ["default_space"]

_TAU = {"low": 0.03, "high": 0.4, "log": True}
_OF_LOSS: dict[str, dict[str, Any]] = {
    "talos": {"tau": _TAU},
    "sl": {"tau": _TAU},
    "psl": {"tau": _TAU},
    "bsl": {"tau1": _TAU, "tau2": _TAU},
    "sl@k": {"tau": _TAU, "tau_w": {"low": 0.1, "high": 3.0, "log": True}},
    "advinfonce": {"tau": _TAU, "adv_every": {"low": 5, "high": 20}, "adv_epochs": {"low": 5, "high": 30}},
    "llpauc": {"alpha": {"low": 0.1, "high": 0.9}, "beta": {"low": 0.01, "high": 0.9, "log": True}},
    "rs@k": {"tau1": {"low": 0.01, "high": 0.3, "log": True}, "tau2": {"low": 0.5, "high": 5.0}},
    "smoothi@k": {"tau": _TAU, "delta": {"low": 0.03, "high": 0.3}},
    "aatp": {},
    "bpr": {},
}
_OF_BACKBONE: dict[str, dict[str, Any]] = {
    "mf": {},
    "lightgcn": {"layers": [1, 2, 3]},
    "xsimgcl": {"layers": [2, 3], "contrast_weight": {"low": 0.01, "high": 0.3, "log": True}},
}


def default_space(config: RunConfig) -> Space:
    """The space for the loss and the backbone of a config.

    >>> list(default_space(RunConfig()).entries)
    ['loss.tau', 'optimizer.lr', 'optimizer.weight_decay', 'optimizer.lr_decay']
    """
    dot = config.loss.name == "bpr"  # its scores are not bounded, and so its steps are smaller
    values: dict[str, Any] = {
        "loss": _OF_LOSS.get(config.loss.name, {}),
        "backbone": _OF_BACKBONE.get(config.backbone.name, {}),
        "optimizer": {
            "lr": {"low": 1e-4, "high": 0.1, "log": True}
            if dot
            else {"low": 0.005, "high": 0.3, "log": True},
            "weight_decay": [0.0, 1e-8, 1e-6, 1e-5, 1e-4] if dot else [0.0, 1e-8, 1e-6, 1e-4],
            "lr_decay": [1.0, 0.97, 0.94, 0.9],
        },
    }
    return Space.from_dict(values)
