"""Kernels: from vectors to loss and gradients without ever holding users × items.

`user_batch_loss` takes user vectors, item vectors, positives and thresholds and a user-separable loss, and
returns the loss with both gradients in closed form; `differentiable_user_batch_loss` is the same within
autograd, and `exact_user_batch_loss` finds the exact thresholds on the way. They run in the compiled core
(`compiled`) where it is built and applies, and in the readable version in plain torch (`tiled`), which is also
what the core is checked against, everywhere else; `status` says which. `divided_batch_loss` and its kin are the same
for items that lie with several processes.
"""

from __future__ import annotations

from talos.kernels.divided import (
    DividedBatch,
    Exchange,
    differentiable_divided_loss,
    divided_batch_loss,
    divided_kth_scores,
)
from talos.kernels.engine import (
    differentiable_user_batch_loss,
    exact_user_batch_loss,
    kth_scores,
    user_batch_loss,
)
from talos.kernels.least_squares import alternating_least_squares
from talos.kernels.library import status
from talos.kernels.parts import LossParts, NegativePart
from talos.kernels.tiled import Sweep, UserBatch, sweep

__all__ = [
    "DividedBatch",
    "Exchange",
    "LossParts",
    "NegativePart",
    "Sweep",
    "UserBatch",
    "alternating_least_squares",
    "differentiable_divided_loss",
    "differentiable_user_batch_loss",
    "divided_batch_loss",
    "divided_kth_scores",
    "exact_user_batch_loss",
    "kth_scores",
    "status",
    "sweep",
    "user_batch_loss",
]
