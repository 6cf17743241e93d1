"""The threshold that is looked up: the K-th score of all items, or of a sample."""

from __future__ import annotations

import torch
from torch import Tensor

from talos.errors import ArgumentError
from talos.thresholds.base import PerUser
from talos.thresholds.checks import check_batch, check_finite
from talos.thresholds.rows import kth_largest, mean_by_user, padded

__all__ = ["ExactQuantile", "MonteCarloQuantile"]


class ExactQuantile(PerUser):
    """The K-th largest score of the full row, as of the last time that row was seen.

    Args:
        num_users: rows.
        k: K, from 1 to the number of items.
        num_items: |I|, to check rows against; may be left out.
        unseen: the value for users whose row never came.

    >>> beta = ExactQuantile(2, k=2)
    >>> beta.update_rows(torch.tensor([1]), torch.tensor([[0.1, 0.9, 0.5]]))
    >>> beta.value(torch.tensor([0, 1])).tolist()
    [0.0, 0.5]
    """

    short_name = "exact"
    needs_full_row = True

    def __init__(self, num_users: int, *, k: int, num_items: int | None = None, unseen: float = 0.0) -> None:
        super().__init__(num_users, k=k, num_items=num_items, start=unseen)

    def update(
        self,
        users: Tensor,
        positives: Tensor,
        negatives: Tensor,
        *,
        mask: Tensor | None = None,
        owner: Tensor | None = None,
    ) -> None:
        """Not to be had from a sample: an error."""
        raise ArgumentError(
            f"a sample of {tuple(negatives.shape)} scores",
            where="negatives",
            expected="full rows by `update_rows` for an exact threshold",
        )

    @torch.no_grad()
    def update_rows(self, users: Tensor, scores: Tensor) -> None:
        """Store the K-th largest of each row."""
        self._check_rows(users, scores)
        check_finite("scores", scores)
        if users.numel():
            self.set(users, kth_largest(scores, self.k))


class MonteCarloQuantile(PerUser):
    """The K-th largest of a user's positives and sampled negatives together: what SL@K does.

    It is biased downwards: among n of |I| items the K-th best is, on average, number K·|I|/n of all. The rows
    of a user who comes more than once are averaged; with fewer than K scores left the smallest is taken.
    Weiqin Yang et al., KDD 2025.

    Args:
        num_users: rows.
        k: K.
        num_items: |I|, to check rows and K against; may be left out.
        unseen: the value for users never seen.

    >>> beta = MonteCarloQuantile(1, k=2)
    >>> beta.update(torch.tensor([0]), torch.tensor([0.7]), torch.tensor([[0.1, 0.9, 0.5]]))
    >>> beta.value(torch.tensor([0])).item()
    0.699...
    """

    short_name = "monte-carlo"

    def __init__(self, num_users: int, *, k: int, num_items: int | None = None, unseen: float = 0.0) -> None:
        super().__init__(num_users, k=k, num_items=num_items, start=unseen)

    @torch.no_grad()
    def update(
        self,
        users: Tensor,
        positives: Tensor,
        negatives: Tensor,
        *,
        mask: Tensor | None = None,
        owner: Tensor | None = None,
    ) -> None:
        """Store the K-th largest of each row's positives and negatives."""
        check_batch(users, positives, negatives, mask, owner)
        check_finite("positives", positives)
        check_finite("negatives", negatives, mask)
        if users.numel() == 0:
            return
        lowest = torch.finfo(negatives.dtype).min
        if mask is not None:
            negatives = negatives.masked_fill(mask, lowest)
        own = positives.unsqueeze(-1) if owner is None else padded(positives, owner, len(users), lowest)
        pool = torch.cat([own.to(negatives.dtype), negatives], dim=-1)
        best = torch.topk(pool, min(self.k, pool.shape[1]), dim=-1).values
        # Padding and masked entries sort last: the smallest real entry among the best is the answer.
        real = (best > lowest).sum(dim=-1)
        kth = best.gather(-1, (real - 1).clamp(min=0).unsqueeze(-1)).squeeze(-1)
        distinct, kth = mean_by_user(users[real > 0], kth[real > 0].to(self.table.dtype))
        self.set(distinct, kth)

    @torch.no_grad()
    def update_rows(self, users: Tensor, scores: Tensor) -> None:
        """With all items at hand nothing is left to chance: the exact value."""
        self._check_rows(users, scores)
        check_finite("scores", scores)
        if users.numel():
            self.set(users, kth_largest(scores, self.k))
