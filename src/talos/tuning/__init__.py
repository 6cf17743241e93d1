"""Tuning that cannot leak: trials see train and validation, and the test part is opened once, at the end.

>>> from talos.datasets import synthetic
>>> from talos.tuning import tune
>>> split = synthetic(users=40, items=30, interactions=400).split()
>>> space = {"loss": {"tau": [0.1, 0.2]}, "optimizer": {"lr": {"low": 0.01, "high": 0.1, "log": True}}}
>>> tuned = tune(split, space, trials=3, k=5, dim=4, epochs=2, evaluate_every=1)
>>> len(tuned.summary.rows), tuned.summary.metric
(3, 'precision@5')
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from talos.tuning.check import check_space as check_space
    from talos.tuning.data import fit_parts as fit_parts
    from talos.tuning.defaults import default_space as default_space
    from talos.tuning.final import Final as Final
    from talos.tuning.final import finalize as finalize
    from talos.tuning.final import stored_final as stored_final
    from talos.tuning.run import Tuned as Tuned
    from talos.tuning.run import open_study as open_study
    from talos.tuning.run import resolve_space as resolve_space
    from talos.tuning.run import run_study as run_study
    from talos.tuning.run import tune as tune
    from talos.tuning.settings import Settings as Settings
    from talos.tuning.settings import read_folder as read_folder
    from talos.tuning.space import Choice as Choice
    from talos.tuning.space import Range as Range
    from talos.tuning.space import Space as Space
    from talos.tuning.storage import check_reachable as check_reachable
    from talos.tuning.storage import import_optuna as import_optuna
    from talos.tuning.storage import parse_storage as parse_storage
    from talos.tuning.summary import Summary as Summary
    from talos.tuning.summary import TrialRow as TrialRow

_HOME = {
    "Choice": "space",
    "Final": "final",
    "Range": "space",
    "Settings": "settings",
    "Space": "space",
    "Summary": "summary",
    "TrialRow": "summary",
    "Tuned": "run",
    "check_reachable": "storage",
    "check_space": "check",
    "default_space": "defaults",
    "finalize": "final",
    "fit_parts": "data",
    "import_optuna": "storage",
    "open_study": "run",
    "parse_storage": "storage",
    "read_folder": "settings",
    "resolve_space": "run",
    "run_study": "run",
    "stored_final": "final",
    "tune": "run",
}

__all__ = [*_HOME]  # imported on first use: what is wrong with a space is said before torch is loaded


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"talos.tuning.{_HOME[name]}"), name)
    raise AttributeError(f"module 'talos.tuning' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
