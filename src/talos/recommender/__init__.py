"""The front door: fit, evaluate, recommend, save, load."""

from __future__ import annotations

from talos.recommender.popularity import popularity_report
from talos.recommender.recommender import Recommender

__all__ = ["Recommender", "popularity_report"]
