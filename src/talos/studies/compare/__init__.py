"""Compare several models on one split over several seeds: a table of means and of significance tests.

>>> from talos.config import RunConfig
>>> from talos.data.datasets import synthetic
>>> split = synthetic(users=40, items=30, interactions=400).split()
>>> small = RunConfig.from_dict({"k": 5, "backbone": {"name": "mf", "dim": 4}, "training": {"epochs": 2}})
>>> models = {"talos": small, "sl": small.with_values({"loss.name": "sl"})}
>>> table = compare(split, models, seeds=2, metrics=["recall@5"])
>>> [row.model for row in table.rows], table.first
(['talos', 'sl'], 'talos')
"""

from __future__ import annotations

from talos.studies.compare.run import CompareSettings, compare, compare_runs, load, models_for
from talos.studies.compare.table import Against, ComparisonTable, ModelRow, RunResult

__all__ = [
    "Against",
    "CompareSettings",
    "ComparisonTable",
    "ModelRow",
    "RunResult",
    "compare",
    "compare_runs",
    "load",
    "models_for",
]
