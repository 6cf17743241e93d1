"""Tuning without leaks: trials see train and validation only; the test part is evaluated once, by `finalize`.

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
    from talos.studies.tune.data import FitParts as FitParts
    from talos.studies.tune.data import fit_parts as fit_parts
    from talos.studies.tune.defaults import default_space as default_space
    from talos.studies.tune.results import FinalResult as FinalResult
    from talos.studies.tune.results import Summary as Summary
    from talos.studies.tune.results import TrialRow as TrialRow
    from talos.studies.tune.results import Tuned as Tuned
    from talos.studies.tune.results import finalize as finalize
    from talos.studies.tune.results import open_study as open_study
    from talos.studies.tune.results import stored_final as stored_final
    from talos.studies.tune.search import resolve_space as resolve_space
    from talos.studies.tune.search import run_study as run_study
    from talos.studies.tune.search import tune as tune
    from talos.studies.tune.search import tune_models as tune_models
    from talos.studies.tune.settings import TuneSettings as TuneSettings
    from talos.studies.tune.settings import read_folder as read_folder
    from talos.studies.tune.space import Choice as Choice
    from talos.studies.tune.space import Range as Range
    from talos.studies.tune.space import Space as Space
    from talos.studies.tune.space import check_space as check_space
    from talos.studies.tune.space import default_point as default_point
    from talos.studies.tune.storage import check_reachable as check_reachable
    from talos.studies.tune.storage import import_optuna as import_optuna
    from talos.studies.tune.storage import parse_storage as parse_storage

_HOME = {
    "Choice": "space",
    "FinalResult": "results",
    "FitParts": "data",
    "Range": "space",
    "Space": "space",
    "Summary": "results",
    "TrialRow": "results",
    "TuneSettings": "settings",
    "Tuned": "results",
    "check_reachable": "storage",
    "check_space": "space",
    "default_point": "space",
    "default_space": "defaults",
    "finalize": "results",
    "fit_parts": "data",
    "import_optuna": "storage",
    "open_study": "results",
    "parse_storage": "storage",
    "read_folder": "settings",
    "resolve_space": "search",
    "run_study": "search",
    "stored_final": "results",
    "tune": "search",
    "tune_models": "search",
}

__all__ = [*_HOME]  # imported on first use, so that a space can be checked before torch is loaded


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"talos.studies.tune.{_HOME[name]}"), name)
    raise AttributeError(f"module 'talos.studies.tune' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
