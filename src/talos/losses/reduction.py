"""From the unreduced values of a loss to one number: the choice of who weighs how much."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["reduce_per_positive", "reduce_per_user"]


def reduce_per_positive(values: Tensor) -> Tensor:
    """The mean over positives, so that a user weighs as many as they have: what the published code does.

    An empty batch gives 0, still attached to the graph.

    >>> reduce_per_positive(torch.tensor([1.0, 1.0, 4.0])).item()
    2.0
    """
    return values.sum() / max(1, values.numel())


def reduce_per_user(values: Tensor, users: Tensor) -> Tensor:
    """The mean over users of the mean over their positives: the formula of the paper.

    >>> reduce_per_user(torch.tensor([1.0, 1.0, 4.0]), torch.tensor([7, 7, 3])).item()
    2.5
    """
    distinct, row_of, count = torch.unique(users, return_inverse=True, return_counts=True)
    per_user: Tensor = (values / count[row_of]).sum() / max(1, distinct.numel())
    return per_user
