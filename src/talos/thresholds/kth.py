"""Thresholds that are looked up and not learnt: the K-th score of all items or of a sample, or a fixed number."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from talos.checks import check_finite
from talos.errors import ArgumentError
from talos.thresholds.base import PerUser, Sample, Threshold, mean_by_user

__all__ = ["ExactQuantile", "FixedThreshold", "MonteCarloQuantile", "padded"]


class _KthScore(PerUser):
    @torch.no_grad()
    def update_rows(self, users: Tensor, scores: Tensor) -> None:
        """Store the K-th largest of each row."""
        self._check_rows(users, scores)
        check_finite("scores", scores)
        self.set(users, torch.topk(scores, self.k, dim=-1, sorted=False).values.amin(dim=-1))


class ExactQuantile(_KthScore):
    """The K-th largest score of the full row, as of the last time that row was seen.

    Args:
        num_users: rows.
        k: K, from 1 to the number of items.
        num_items: |I|, to check rows against; may be left out.
        unseen: the value of users whose row was never given.

    >>> beta = ExactQuantile(2, k=2)
    >>> beta.update_rows(torch.tensor([1]), torch.tensor([[0.1, 0.9, 0.5]]))
    >>> beta.value(torch.tensor([0, 1])).tolist()
    [0.0, 0.5]
    """

    short_name = "exact"
    exact = True
    needs_full_row = True

    def update_sample(self, sample: Sample) -> None:
        """Raise: a sample does not determine the exact value."""
        raise ArgumentError(
            f"a sample of {tuple(sample.negatives.shape)} scores",
            where="negatives",
            expected="full rows by `update_rows` for an exact threshold",
        )


class MonteCarloQuantile(_KthScore):
    """The K-th largest of a user's positives and sampled negatives together, as SL@K estimates it.

    It is biased downwards: among n of |I| items the K-th best is, on average, number K·|I|/n of all. The rows
    of a user who occurs more than once are averaged; with fewer than K scores left the smallest is taken. Full
    rows (`update_rows`) give the exact value. Weiqin Yang et al., KDD 2025.

    Args:
        num_users: rows.
        k: K.
        num_items: |I|, to check rows and K against; may be left out.
        unseen: the value of users never seen.

    >>> beta = MonteCarloQuantile(1, k=2)
    >>> beta.update(torch.tensor([0]), torch.tensor([0.7]), torch.tensor([[0.1, 0.9, 0.5]]))
    >>> beta.value(torch.tensor([0])).item()
    0.699...
    """

    short_name = "monte-carlo"
    pools_positives = True

    def update_sample(self, sample: Sample) -> None:
        """Store the K-th largest of each row's positives and negatives."""
        users, positives, negatives, owner = sample.users, sample.positives, sample.negatives, sample.owner
        check_finite("positives", positives)
        check_finite("negatives", negatives, sample.mask)
        if users.numel() == 0:
            return
        lowest = torch.finfo(negatives.dtype).min
        if sample.mask is not None:
            negatives = negatives.masked_fill(sample.mask, lowest)
        own = positives.unsqueeze(-1) if owner is None else padded(positives, owner, len(users), lowest)
        pool = torch.cat([own.to(negatives.dtype), negatives], dim=-1)
        best = torch.topk(pool, min(self.k, pool.shape[1]), dim=-1).values
        # Padding and masked entries sort last: the smallest real entry among the best is the answer.
        real = (best > lowest).sum(dim=-1)
        kth = best.gather(-1, (real - 1).clamp(min=0).unsqueeze(-1)).squeeze(-1)
        self.set(*mean_by_user(users[real > 0], kth[real > 0].to(self.table.dtype)))


class FixedThreshold(Threshold):
    """One number for all users, which never changes.

    Args:
        value: the threshold.

    >>> FixedThreshold(0.3).value(torch.tensor([4, 2])).tolist()
    [0.3..., 0.3...]
    """

    short_name = "fixed"
    constant: Tensor

    def __init__(self, value: float = 0.0) -> None:
        super().__init__()
        self._value = float(value)
        self.register_buffer("constant", torch.tensor(self._value))
        check_finite("value", self.constant)

    def value(self, users: Tensor) -> Tensor:
        """The number, (B,)."""
        return self.constant.expand(users.shape)

    def update_sample(self, sample: Sample) -> None:
        """Do nothing."""

    def update_rows(self, users: Tensor, scores: Tensor) -> None:
        """Do nothing."""

    def constructor_options(self) -> dict[str, Any]:
        """The option that makes an equal threshold, for `talos.registry`."""
        return {"value": self._value}

    def extra_repr(self) -> str:
        """The number, for `repr`."""
        return f"{self.constant.item():g}"


def padded(flat: Tensor, rows: Tensor, count: int, filler: float, *, at_least: int = 0) -> Tensor:
    """Values (P,) with the row of each (P,) as a matrix of `count` rows and at least so many columns.

    >>> padded(torch.tensor([0.5, 0.1, 0.7]), torch.tensor([1, 0, 1]), 2, 0.0)
    tensor([[0.1000, 0.0000],
            [0.5000, 0.7000]])
    """
    order = torch.argsort(rows, stable=True)
    row, lengths = rows[order], torch.bincount(rows, minlength=count)
    column = torch.arange(len(flat), device=flat.device) - (lengths.cumsum(0) - lengths)[row]
    matrix = flat.new_full((count, max(at_least, int(lengths.max()))), filler)
    matrix[row, column] = flat[order]
    return matrix
