"""The threshold that stays where it is."""

from __future__ import annotations

import torch
from torch import Tensor

from talos.thresholds.base import Threshold
from talos.thresholds.checks import check_batch, check_finite

__all__ = ["FixedThreshold"]


class FixedThreshold(Threshold):
    """One number for everybody, always.

    Args:
        value: the threshold.

    >>> FixedThreshold(0.3).value(torch.tensor([4, 2])).tolist()
    [0.3..., 0.3...]
    """

    short_name = "fixed"
    constant: Tensor

    def __init__(self, value: float = 0.0) -> None:
        super().__init__()
        constant = torch.tensor(float(value))
        check_finite("value", constant)
        self.register_buffer("constant", constant)

    def value(self, users: Tensor) -> Tensor:
        """The number, (B,)."""
        return self.constant.expand(users.shape)

    def update(
        self,
        users: Tensor,
        positives: Tensor,
        negatives: Tensor,
        *,
        mask: Tensor | None = None,
        owner: Tensor | None = None,
    ) -> None:
        """Nothing to do."""
        check_batch(users, positives, negatives, mask, owner)

    def update_rows(self, users: Tensor, scores: Tensor) -> None:
        """Nothing to do."""

    def extra_repr(self) -> str:
        """The number, for `repr`."""
        return f"{self.constant.item():g}"
