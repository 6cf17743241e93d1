"""Training: a config and interactions → a trained model that survives interruption."""

from __future__ import annotations

from talos.training.callbacks import Callback, History, PlainProgress, Records, TensorBoard, progress
from talos.training.parallel.choose import divided_by
from talos.training.plan import Plan, make_plan, plan_for
from talos.training.stopping import InterruptedRunError
from talos.training.trainer import Trainer

__all__ = [
    "Callback",
    "History",
    "InterruptedRunError",
    "PlainProgress",
    "Plan",
    "Records",
    "TensorBoard",
    "Trainer",
    "divided_by",
    "make_plan",
    "plan_for",
    "progress",
]
