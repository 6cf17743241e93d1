"""Every number that the paper prints, as data: results, improvements, hyperparameters.

From "Talos: Optimizing Top-K Accuracy in Recommender Systems" (WWW 2026). Numbers are as printed, misprints
included: those carry a note in `misprint` (results) or `OFF_GRID` (hyperparameters).

>>> value(table="overall", dataset="gowalla", backbone="mf", method="talos", metric="precision@20")
0.0642
>>> hyperparameters("gowalla", "mf", "talos")
{'lr': 0.01, 'weight_decay': 0.0, 'tau': 0.05}
"""

from __future__ import annotations

from talos_paper.published.settings import GRID, OFF_GRID, hyperparameters
from talos_paper.published.tables import (
    IMPROVEMENTS,
    NUMBERS,
    Improvement,
    PublishedNumber,
    mended,
    numbers,
    value,
)

__all__ = [
    "GRID",
    "IMPROVEMENTS",
    "NUMBERS",
    "OFF_GRID",
    "Improvement",
    "PublishedNumber",
    "hyperparameters",
    "mended",
    "numbers",
    "value",
]
