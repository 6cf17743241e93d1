"""Tuning that cannot leak: trials see train and validation, and the test part is opened once, at the end.

>>> from talos.datasets import synthetic
>>> split = synthetic(users=40, items=30, interactions=400).split()
>>> space = {"loss": {"tau": [0.1, 0.2]}, "optimizer": {"lr": {"low": 0.01, "high": 0.1, "log": True}}}
>>> tuned = tune(split, space, trials=3, k=5, dim=4, epochs=2, evaluate_every=1)
>>> len(tuned.summary.rows), tuned.summary.metric
(3, 'precision@5')
"""

from __future__ import annotations

from talos.tuning.check import check_space
from talos.tuning.data import fit_parts
from talos.tuning.defaults import default_space
from talos.tuning.finalize import Final, finalize, stored_final
from talos.tuning.run import Tuned, open_study, resolve_space, run_study, tune
from talos.tuning.settings import Settings, read_folder
from talos.tuning.space import Choice, Range, Space
from talos.tuning.storage import check_reachable, import_optuna, parse_storage
from talos.tuning.summary import Summary, TrialRow

__all__ = [
    "Choice",
    "Final",
    "Range",
    "Settings",
    "Space",
    "Summary",
    "TrialRow",
    "Tuned",
    "check_reachable",
    "check_space",
    "default_space",
    "finalize",
    "fit_parts",
    "import_optuna",
    "open_study",
    "parse_storage",
    "read_folder",
    "resolve_space",
    "run_study",
    "stored_final",
    "tune",
]
