"""Tuning that cannot leak: trials see train and validation, and the test part is opened once, at the end.

>>> from talos.data.datasets import synthetic
>>> from talos.studies.tune import tune
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
    from talos.studies.tune.check import check_space as check_space
    from talos.studies.tune.data import fit_parts as fit_parts
    from talos.studies.tune.defaults import default_space as default_space
    from talos.studies.tune.final import Final as Final
    from talos.studies.tune.final import finalize as finalize
    from talos.studies.tune.final import stored_final as stored_final
    from talos.studies.tune.run import Tuned as Tuned
    from talos.studies.tune.run import open_study as open_study
    from talos.studies.tune.run import resolve_space as resolve_space
    from talos.studies.tune.run import run_study as run_study
    from talos.studies.tune.run import tune as tune
    from talos.studies.tune.settings import Settings as Settings
    from talos.studies.tune.settings import read_folder as read_folder
    from talos.studies.tune.space import Choice as Choice
    from talos.studies.tune.space import Range as Range
    from talos.studies.tune.space import Space as Space
    from talos.studies.tune.storage import check_reachable as check_reachable
    from talos.studies.tune.storage import import_optuna as import_optuna
    from talos.studies.tune.storage import parse_storage as parse_storage
    from talos.studies.tune.summary import Summary as Summary
    from talos.studies.tune.summary import TrialRow as TrialRow

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
        return getattr(import_module(f"talos.studies.tune.{_HOME[name]}"), name)
    raise AttributeError(f"module 'talos.studies.tune' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
