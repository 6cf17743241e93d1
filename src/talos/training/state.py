"""What a run is at a moment: where it is, what it has learnt, what it was given; as checkpoints hold it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from talos.config import RunConfig
from talos.errors import ConfigError, DataError
from talos.training.checkpoint import flatten, unflatten
from talos.training.objective import Objective

__all__ = ["Position", "check_same_run", "load_weights", "weights_of"]


@dataclass
class Position:
    """Where a run is: epochs done, the pass within the epoch, steps done in the pass; and the best so far."""

    epoch: int = 0
    pass_number: int = 0  # 0 is the model's own pass, further ones belong to adversaries
    step: int = 0
    loss_sum: float = 0.0
    seconds: float = 0.0
    best: float = -math.inf
    best_epoch: int = 0
    best_metrics: dict[str, float] = field(default_factory=dict)
    finished: bool = False


def weights_of(objective: Objective) -> dict[str, Tensor]:
    """What the finished model is made of."""
    parts = {"backbone": objective.backbone, "threshold": objective.threshold}
    states = {name: part.state_dict() for name, part in parts.items() if part is not None}
    return flatten("best", states)[0]


def load_weights(objective: Objective, weights: Mapping[str, Tensor]) -> None:
    """Back to what `weights_of` gave."""
    objective.backbone.load_state_dict(unflatten("best.backbone", weights))
    if objective.threshold is not None:
        objective.threshold.load_state_dict(unflatten("best.threshold", weights))


def check_same_run(facts: Mapping[str, Any], config: RunConfig, data: Mapping[str, Any]) -> None:
    """An error if a checkpoint's facts are of other data or another config than these.

    >>> config = RunConfig(k=5)
    >>> check_same_run({"data": {"train": 1}, "config": config.as_dict()}, RunConfig(k=6), {"train": 1})
    Traceback (most recent call last):
    talos.errors.ConfigError: --resume: k differ from those of the checkpoint; expected the settings it began with
    """
    if facts["data"] != data:
        raise DataError(
            "the data differ from those of the checkpoint",
            where="--resume",
            expected="the data it began with",
        )
    ours, theirs = config.as_dict(), dict(facts["config"])
    # rows are rows, whoever has them: a run may go on divided in another way, and on another processor
    free = {name: getattr(config.training, name) for name in ("parallel", "arithmetic")}
    theirs["training"] = {**theirs["training"], **free}
    different = [name for name, value in ours.items() if theirs.get(name) != value]
    if different:
        raise ConfigError(
            f"{', '.join(different)} differ from those of the checkpoint",
            where="--resume",
            expected="the settings it began with",
        )
