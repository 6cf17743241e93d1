"""Training: from a config and interactions to a trained model, with checkpoints to resume from."""

from __future__ import annotations

from talos.training.callbacks import (
    Callback,
    History,
    InterruptedRunError,
    PlainProgress,
    PlanLines,
    Records,
    TensorBoard,
    progress,
)
from talos.training.plan import Plan, make_plan, plan_for
from talos.training.race import RaceResult, check_path, make_trainer
from talos.training.trainer import Trainer

__all__ = [
    "Callback",
    "History",
    "InterruptedRunError",
    "PlainProgress",
    "Plan",
    "PlanLines",
    "RaceResult",
    "Records",
    "TensorBoard",
    "Trainer",
    "check_path",
    "make_plan",
    "make_trainer",
    "plan_for",
    "progress",
]
