"""Kernels: from vectors to loss and gradients without ever holding users × items.

`user_batch_loss` takes user vectors, item vectors, positives and thresholds and a loss that can go over all items, and
returns the loss with both gradients in closed form; `differentiable_user_batch_loss` is the same within
autograd, `exact_user_batch_loss` finds the exact thresholds in the same pass, and `divided_batch_loss` is for
items that are divided among processes. They share one formula (`batch`), carried out by the compiled core where
it is built and applies (`core_passes`) and in readable torch elsewhere (`torch_passes`); `status` tells which.
"""

from __future__ import annotations

from talos.kernels.batch import (
    UserBatch,
    differentiable_divided_loss,
    differentiable_user_batch_loss,
    divided_batch_loss,
    divided_kth_scores,
    exact_user_batch_loss,
    kth_scores,
    user_batch_loss,
    user_exponent,
)
from talos.kernels.least_squares import alternating_least_squares
from talos.kernels.library import status
from talos.kernels.protocols import (
    Exchange,
    ListLoss,
    LossParts,
    NegativePart,
    PairwiseLoss,
    PairwisePart,
    SampleScores,
)

__all__ = [
    "Exchange",
    "ListLoss",
    "LossParts",
    "NegativePart",
    "PairwiseLoss",
    "PairwisePart",
    "SampleScores",
    "UserBatch",
    "alternating_least_squares",
    "differentiable_divided_loss",
    "differentiable_user_batch_loss",
    "divided_batch_loss",
    "divided_kth_scores",
    "exact_user_batch_loss",
    "kth_scores",
    "status",
    "user_batch_loss",
    "user_exponent",
]
