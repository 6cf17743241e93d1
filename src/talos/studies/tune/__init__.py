"""Tuning without leaks: trials see train and validation only; the test part is evaluated once, by `finalize`.

>>> from talos.data.datasets import synthetic
>>> from talos.studies.tune import tune
>>> split = synthetic(users=40, items=30, interactions=400).split()
>>> space = {"loss": {"tau": [0.1, 0.2]}, "optimizer": {"lr": {"low": 0.01, "high": 0.1, "log": True}}}
>>> tuned = tune(split, space, trials=3, k=5, dim=4, epochs=2, evaluate_every=1)
>>> len(tuned.rows), tuned.settings.metric
(3, 'precision@5')
"""

from __future__ import annotations

from importlib.util import find_spec

from talos.errors import MissingExtraError

if find_spec("optuna") is None:
    raise MissingExtraError("tuning", extra="tune")

from talos.studies.tune.data import FitParts, fit_parts
from talos.studies.tune.search import run_study, tune
from talos.studies.tune.space import Space, check_space, default_point, default_space
from talos.studies.tune.study import (
    FinalResult,
    TrialRow,
    Tuned,
    TuneSettings,
    check_reachable,
    finalize,
    open_study,
    parse_storage,
    stored_final,
)

__all__ = [
    "FinalResult", "FitParts", "Space", "TrialRow", "TuneSettings", "Tuned", "check_reachable", "check_space",
    "default_point", "default_space", "finalize", "fit_parts", "open_study", "parse_storage", "run_study",
    "stored_final", "tune",
]  # fmt: skip
