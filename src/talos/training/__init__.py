"""Training: from a config and interactions to a trained model, with checkpoints to resume from."""

from talos.training.callbacks import (
    Callback,
    History,
    InterruptedRunError,
    PlainProgress,
    PlanLines,
    Records,
    progress,
)
from talos.training.loggers import LOGGERS, MLflow, TensorBoard, WandB
from talos.training.plan import Plan, check_memory, make_plan, plan_for
from talos.training.trainer import Trainer

__all__ = [
    "LOGGERS",
    "Callback",
    "History",
    "InterruptedRunError",
    "MLflow",
    "PlainProgress",
    "Plan",
    "PlanLines",
    "Records",
    "TensorBoard",
    "Trainer",
    "WandB",
    "check_memory",
    "make_plan",
    "plan_for",
    "progress",
]
