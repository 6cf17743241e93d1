"""A threshold that follows each user's samples: it starts at the first sample's own quantile and takes short steps."""

from __future__ import annotations

import torch
from torch import Tensor

from talos.thresholds.base import Sample, mean_by_user
from talos.thresholds.kth import padded
from talos.thresholds.regression import SampledQuantile

__all__ = ["RunningQuantile"]

# Where steps are cut. Near the quantile, samples with so many more negatives above β than expected are rare: cut much
# earlier, steps would be too short on one side on average, and β too low.
_FURTHEST = 3.0


class RunningQuantile(SampledQuantile):
    """Quantile regression for users who are seen about once an epoch, in batches of users with shared negatives.

    The first sample of a user sets β to that sample's own estimate of the K-th best score: positives count as one item,
    a negative as the w = (|I| - |P_u|)/n items that it stands for. The t-th sample moves it by

        β ← β + lr·t^(-1/2) · clip( (A - K)/max(K, w), -3, 3 )

    with A the estimated number of items above β. A is unbiased, so away from the clip the step is, on average, down the
    gradient of the pinball loss over all items, whose minimiser is the K-th best score; and steps that shrink as 1/√t
    average the noise of single samples while β follows the scores, which change as the model learns.

    Only users in the sample move. `QuantileRegression` steps with Adam over all users, as published. There a user in
    one of m steps moves by about √m·lr each time, and every step costs work for every user: right for a few dozen steps
    an epoch, too far and too slow for thousands.

    Args:
        num_users: rows.
        k: K, from 1 to |I|.
        num_items: |I|.
        lr: the step that a negative more or less above β makes.
        num_positives: (num_users,) |P_u|, for samples in which one positive stands for all of a user's.

    >>> beta = RunningQuantile(1, k=2, num_items=5)
    >>> users, owner = torch.tensor([0]), torch.tensor([0])
    >>> beta.update(users, torch.tensor([0.9]), torch.tensor([[0.1, 0.6]]), owner=owner)
    >>> beta.value(users)   # one positive, and a negative that stands for two items
    tensor([0.6000])
    """

    short_name = "running"
    per_user = ("table", "visits")
    visits: Tensor

    def __init__(
        self,
        num_users: int,
        *,
        k: int,
        num_items: int,
        lr: float = 0.05,
        num_positives: Tensor | None = None,
    ) -> None:
        super().__init__(num_users, k=k, num_items=num_items, lr=lr, num_positives=num_positives)
        self.register_buffer("visits", torch.zeros(num_users, dtype=torch.int32))

    def move(self, sample: Sample, above: Tensor, sampled: Tensor, weight: Tensor) -> None:
        """Set β of users seen for the first time, move that of the others."""
        users, visits = sample.users, self.visits[sample.users]
        rate = self.lr / visits.clamp(min=1).to(above.dtype).sqrt()
        further = ((above - self.k) / weight.clamp(min=self.k)).clamp(-_FURTHEST, _FURTHEST)
        moved = self.table[users] + rate * further
        if bool((visits == 0).any()):
            moved = torch.where(visits == 0, self._start(sample, weight), moved)
        told = sampled > 0  # a row with every negative masked tells nothing about the other items
        distinct, beta = mean_by_user(users[told], moved[told])
        self.table[distinct] = beta.to(self.table.dtype)
        self.visits[distinct] += 1

    def _start(self, sample: Sample, weight: Tensor) -> Tensor:
        """The K-th best score (B,) that each row by itself suggests."""
        lowest = torch.finfo(sample.negatives.dtype).min
        left = sample.negatives if sample.mask is None else sample.negatives.masked_fill(sample.mask, lowest)
        # enough of the best negatives to stand for K items; the fewer each of them stands for, the more it takes
        needed = float((self.k / weight.clamp(min=1.0)).max())
        best = torch.topk(left, min(left.shape[1], int(needed) + 1), dim=-1).values
        beta, passed = best[:, 0], torch.zeros_like(weight, dtype=torch.bool)
        for rank in range(best.shape[1]):
            candidate = best[:, rank]
            least = candidate if sample.owner is None else candidate[sample.owner]
            total = (rank + 1) * weight + self._per_row(sample, sample.positives >= least)
            beta = torch.where(passed, beta, candidate)
            passed |= total >= self.k
        if sample.owner is not None:
            own = padded(sample.positives, sample.owner, len(beta), lowest, at_least=self.k)
            beta = torch.maximum(beta, torch.topk(own, self.k, dim=-1, sorted=False).values.amin(dim=-1))
        return beta.to(self.table.dtype)
