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
    from talos.studies.tune.data import FitParts, fit_parts
    from talos.studies.tune.results import (
        FinalResult,
        Summary,
        TrialRow,
        Tuned,
        finalize,
        open_study,
        stored_final,
    )
    from talos.studies.tune.search import resolve_space, run_study, tune, tune_models
    from talos.studies.tune.settings import TuneSettings, read_folder
    from talos.studies.tune.space import Choice, Range, Space, check_space, default_point, default_space
    from talos.studies.tune.storage import check_reachable, import_optuna, parse_storage

__all__ = [
    "Choice", "FinalResult", "FitParts", "Range", "Space", "Summary", "TrialRow", "TuneSettings", "Tuned",
    "check_reachable", "check_space", "default_point", "default_space", "finalize", "fit_parts", "import_optuna",
    "open_study", "parse_storage", "read_folder", "resolve_space", "run_study", "stored_final", "tune", "tune_models",
]  # fmt: skip

# names are imported on first use, so that a space can be checked before torch is loaded
_NAMES_OF = {
    "space": ("Choice", "Range", "Space", "check_space", "default_point", "default_space"),
    "storage": ("check_reachable", "import_optuna", "parse_storage"),
    "settings": ("TuneSettings", "read_folder"),
    "data": ("FitParts", "fit_parts"),
    "results": ("FinalResult", "Summary", "TrialRow", "Tuned", "finalize", "open_study", "stored_final"),
    "search": ("resolve_space", "run_study", "tune", "tune_models"),
}


def __getattr__(name: str) -> Any:
    for module, names in _NAMES_OF.items():
        if name in names:
            return getattr(import_module(f"talos.studies.tune.{module}"), name)
    raise AttributeError(f"module 'talos.studies.tune' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
