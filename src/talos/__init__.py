"""Talos: recommenders trained for Precision@K and Recall@K directly.

The public names are here and are imported on first use, so that `import talos` is quick and the command line
can answer without loading torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from talos import baselines as baselines
    from talos import errors as errors
    from talos import exports as exports
    from talos import losses as losses
    from talos import negatives as negatives
    from talos import registry as registry
    from talos import thresholds as thresholds
    from talos.data import datasets as datasets
    from talos.data import shards as shards
    from talos.data.interactions import Interactions as Interactions
    from talos.data.open import open_split as open_split
    from talos.data.open import read as read
    from talos.data.splits import Split as Split
    from talos.data.splits import k_core as k_core
    from talos.data.splits import min_rating as min_rating
    from talos.evaluation import metrics as metrics
    from talos.evaluation import significance as significance
    from talos.evaluation.evaluate import Report as Report
    from talos.evaluation.evaluate import evaluate as evaluate
    from talos.evaluation.evaluate import evaluate_lists as evaluate_lists
    from talos.evaluation.ranking import top_k as top_k
    from talos.model.recommender import Recommender as Recommender
    from talos.studies import tune as tuning  # noqa: F401
    from talos.studies.tune import tune as tune

__version__ = "0.3.0.dev0"  # pyproject.toml reads it from here

_MODULES = {
    "baselines": "baselines",
    "datasets": "data.datasets",
    "errors": "errors",
    "exports": "exports",
    "losses": "losses",
    "metrics": "evaluation.metrics",
    "negatives": "negatives",
    "registry": "registry",
    "shards": "data.shards",
    "significance": "evaluation.significance",
    "thresholds": "thresholds",
    "tuning": "studies.tune",
}
_HOME = {
    "Interactions": "data.interactions",
    "Recommender": "model.recommender",
    "Report": "evaluation.evaluate",
    "Split": "data.splits",
    "evaluate": "evaluation.evaluate",
    "evaluate_lists": "evaluation.evaluate",
    "k_core": "data.splits",
    "min_rating": "data.splits",
    "open_split": "data.open",
    "read": "data.open",
    "top_k": "evaluation.ranking",
    "tune": "studies.tune",
}

__all__ = [*_MODULES, *_HOME]  # names are imported on first use below


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"talos.{_MODULES[name]}")
    if name in _HOME:
        return getattr(import_module(f"talos.{_HOME[name]}"), name)
    raise AttributeError(f"module 'talos' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
