"""Kernels: from vectors to loss and gradients without ever holding users × items.

`user_batch_loss` takes user vectors, item vectors, positives and thresholds and a user-separable loss, and
returns the loss with both gradients in closed form; `differentiable_user_batch_loss` is the same within
autograd. What is here is the readable version in plain torch, and the reference for faster ones.
"""

from __future__ import annotations

from talos.kernels.parts import LossParts, NegativePart
from talos.kernels.tiled import (
    Sweep,
    UserBatch,
    differentiable_user_batch_loss,
    kth_scores,
    sweep,
    user_batch_loss,
)

__all__ = [
    "LossParts",
    "NegativePart",
    "Sweep",
    "UserBatch",
    "differentiable_user_batch_loss",
    "kth_scores",
    "sweep",
    "user_batch_loss",
]
