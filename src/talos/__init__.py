"""Talos: recommenders trained for Precision@K and Recall@K directly.

The public names are here and are imported on first use, so that `import talos` is quick and the command line
can answer without loading torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from talos import datasets as datasets
    from talos import errors as errors
    from talos import exports as exports
    from talos import losses as losses
    from talos import metrics as metrics
    from talos import negatives as negatives
    from talos import shards as shards
    from talos import significance as significance
    from talos import thresholds as thresholds
    from talos import tuning as tuning
    from talos.evaluation import Report as Report
    from talos.evaluation import evaluate as evaluate
    from talos.evaluation import evaluate_lists as evaluate_lists
    from talos.interactions import Interactions as Interactions
    from talos.ranking import top_k as top_k
    from talos.readers import read as read
    from talos.recommender import Recommender as Recommender
    from talos.splits import Split as Split
    from talos.splits import k_core as k_core
    from talos.splits import min_rating as min_rating
    from talos.tuning import tune as tune

__version__ = "0.1.0"

_MODULES = (
    "datasets",
    "errors",
    "exports",
    "losses",
    "metrics",
    "negatives",
    "shards",
    "significance",
    "thresholds",
    "tuning",
)
_HOME = {
    "Interactions": "interactions",
    "Recommender": "recommender",
    "Report": "evaluation",
    "Split": "splits",
    "evaluate": "evaluation",
    "evaluate_lists": "evaluation",
    "k_core": "splits",
    "min_rating": "splits",
    "read": "readers",
    "top_k": "ranking",
    "tune": "tuning",
}

__all__ = [*_MODULES, *_HOME]  # names are imported on first use below


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"talos.{name}")
    if name in _HOME:
        return getattr(import_module(f"talos.{_HOME[name]}"), name)
    raise AttributeError(f"module 'talos' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
