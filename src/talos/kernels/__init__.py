"""Kernels: from vectors to loss and gradients without ever holding rows × items.

`user_batch_loss` takes the vectors of a batch of rows and of all items, positives, thresholds and a loss; it returns
the loss with both gradients. `differentiable_user_batch_loss` is the same within autograd, `exact_user_batch_loss`
finds exact thresholds in the same pass. The formula is in `batch`. The pass over the items is the operator
`talos::sweep` (`ops`): the compiled core where it is built and applies (`core`), readable torch elsewhere
(`torch_passes`); `status` tells which.
"""

from talos.kernels.batch import (
    UserBatch,
    differentiable_user_batch_loss,
    exact_user_batch_loss,
    kth_scores,
    user_batch_loss,
    user_exponent,
)
from talos.kernels.core import status
from talos.kernels.least_squares import alternating_least_squares

__all__ = [
    "UserBatch",
    "alternating_least_squares",
    "differentiable_user_batch_loss",
    "exact_user_batch_loss",
    "kth_scores",
    "status",
    "user_batch_loss",
    "user_exponent",
]
