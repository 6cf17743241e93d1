"""A threshold that is learnt: quantile regression on the pinball loss."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from talos.checks import check_finite, describe, positive_number
from talos.errors import ArgumentError
from talos.thresholds.base import PerUser, Sample, mean_by_user

__all__ = ["ItemsAbove", "QuantileRegression", "SampledQuantile", "count_above", "items_above", "pinball"]

# Elements per thread in a block of rows on the CPU: a temporary of this size stays in the second-level cache.
_BLOCK = 2**17


def pinball(x: Tensor, level: float) -> Tensor:
    """Pinball loss ρ(x) = level·(x)+ + (1 - level)·(-x)+, whose mean over s - β is least at a quantile β.

    With level 1 - K/|I| and the scores of all |I| items that quantile is the K-th best score. Roger Koenker,
    "Quantile Regression", Cambridge University Press 2005.

    >>> pinball(torch.tensor([2.0, -2.0]), level=0.75).tolist()
    [1.5, 0.5]
    """
    return level * x.clamp(min=0) + (1 - level) * (-x).clamp(min=0)


class SampledQuantile(PerUser):
    """A threshold that moves by how many of all items a sample says are above it; subclasses say how far.

    Args:
        num_users: rows.
        k: K, from 1 to |I|.
        num_items: |I|.
        lr: the scale of a step.
        num_positives: (num_users,) |P_u|, for samples in which one positive stands for all of a user's.
    """

    num_items: int
    num_positives: Tensor | None

    def __init__(
        self, num_users: int, *, k: int, num_items: int, lr: float, num_positives: Tensor | None
    ) -> None:
        super().__init__(num_users, k=k, num_items=num_items)
        self.lr = positive_number("lr", lr)
        if num_positives is not None and num_positives.shape != (num_users,):
            expected = f"shape ({num_users},)"
            raise ArgumentError(describe(num_positives), where="num_positives", expected=expected)
        self.register_buffer("num_positives", num_positives, persistent=False)

    def update_sample(self, sample: Sample) -> None:
        """Count the items above β and move it."""
        check_finite("positives", sample.positives)
        if sample.users.numel():
            beta, own = self.table[sample.users], self.num_positives
            self.move(sample, items_above(sample, beta, num_items=self.num_items, num_positives=own))

    @abstractmethod
    def move(self, sample: Sample, found: ItemsAbove) -> None:
        """Move β of the sample's users, of whom there is at least one."""


class QuantileRegression(SampledQuantile):
    """Quantile regression by stochastic steps on the sampled pinball loss, one parameter per user.

        Q_K(u) = 1/|I| · ( Σ_{i∈P_u} ρ(s_ui - β) + (|I|-|P_u|)/n · Σ_{j∈G_u} ρ(s_uj - β) )

    The weight makes Q_K unbiased for the pinball loss over all items, whose minimiser is the K-th best score.
    Its gradient needs no autograd: the slope of ρ is one number above β and another below, so
    ∂Q/∂β = K/|I| - (estimated share of items above β), which is a count.

    Where each row has one positive (no `owner`) that positive stands for all |P_u| of them, and the rows of
    one user are averaged; both keep the expectation. Without `num_positives`, a row's own positive is taken to
    be the user's only one.

    The steps are those of plain Adam over all users, as published: users outside the mini-batch have a gradient
    of 0 and still move by their momentum. This matters: the second moment of a user who is in one of m steps is
    1/m of the squared gradient, so a step moves them √m times as far as with an Adam of their own, and users
    who occur a few times an epoch keep up. A user never seen has β = 0. Shengjia Zhang et al., WWW 2026.

    Args:
        num_users: rows.
        k: K, from 1 to |I|.
        num_items: |I|.
        lr: Adam's learning rate; a step of β is about this long at most.
        num_positives: (num_users,) |P_u|, for the weight.
        betas: Adam's decay rates.

    >>> beta = QuantileRegression(1, k=1, num_items=4, lr=0.1)
    >>> users, scores = torch.tensor([0]), torch.tensor([[0.1, 0.2, 0.6, 0.4]])
    >>> for _ in range(50):
    ...     beta.update_rows(users, scores)
    >>> 0.4 < beta.value(users).item() < 0.8   # any number next below the best score leaves one item above it
    True
    """

    short_name = "regression"
    per_user = ("table", "mean", "square")
    mean: Tensor
    square: Tensor
    steps: Tensor

    def __init__(
        self,
        num_users: int,
        *,
        k: int,
        num_items: int,
        lr: float = 1e-3,
        num_positives: Tensor | None = None,
        betas: tuple[float, float] = (0.9, 0.999),
    ) -> None:
        super().__init__(num_users, k=k, num_items=num_items, lr=lr, num_positives=num_positives)
        self.betas = betas
        given: Any = betas
        plain = isinstance(given, Sequence) and len(given) == 2
        if not plain or not all(type(one) in (int, float) and 0 <= one < 1 for one in given):
            raise ArgumentError(f"got {betas!r}", where="betas", expected="two numbers from 0 to below 1")
        self.register_buffer("mean", torch.zeros(num_users))
        self.register_buffer("square", torch.zeros(num_users))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def move(self, sample: Sample, found: ItemsAbove) -> None:
        """One step of Adam on Q_K for every user in the batch."""
        # A row with every negative masked tells nothing about the other items: a gradient of 0.
        above = torch.where(found.sampled > 0, found.above, torch.full_like(found.above, float(self.k)))
        self._step(sample.users, (self.k - above).to(self.table.dtype) / self.num_items)

    @torch.no_grad()
    def update_rows(self, users: Tensor, scores: Tensor) -> None:
        """One step on the pinball loss over all items."""
        self._check_rows(users, scores)
        if users.numel() == 0:
            return
        above, total = count_above("scores", scores, self.table[users], None)
        self._step(users, ((self.k - above) / total).to(self.table.dtype))

    @torch.no_grad()
    def rest(self) -> None:
        """One step of Adam with a gradient of 0 for everybody."""
        self._step(self.steps.new_empty(0), self.table.new_empty(0))

    def _step(self, users: Tensor, gradient: Tensor) -> None:
        """One step of Adam: the users of the batch on the mean gradient of their rows, the others on 0."""
        users, gradient = mean_by_user(users, gradient)
        fast, slow = self.betas
        self.steps += 1
        done = int(self.steps)
        self.mean.mul_(fast)[users] += (1 - fast) * gradient
        self.square.mul_(slow)[users] += (1 - slow) * gradient.square()
        scale = (self.square / (1 - slow**done)).sqrt_().add_(1e-8)
        self.table.addcdiv_(self.mean, scale, value=-self.lr / (1 - fast**done))


@dataclass(frozen=True)
class ItemsAbove:
    """What a sample says of the items that score above β, for each of its rows (B,).

    Attributes:
        above: how many of all items do, estimated without bias.
        sampled: negatives that were not masked.
        weight: how many items each of these stands for, (|I| - |P_u|)/n.
    """

    above: Tensor
    sampled: Tensor
    weight: Tensor


def items_above(sample: Sample, beta: Tensor, *, num_items: int, num_positives: Tensor | None) -> ItemsAbove:
    """Estimate how many items score above β (B,): positives are counted, negatives are counted and weighted.

    Without `owner` a row's positive stands for all `num_positives` (num_users,) of its user; for one if that is None.

    >>> sample = Sample(torch.tensor([0]), torch.tensor([0.9]), torch.tensor([[0.1, 0.6]]), None, None)
    >>> items_above(sample, torch.tensor([0.5]), num_items=5, num_positives=None).above   # 1 and half of 4
    tensor([3.])
    """
    users, positives, owner = sample.users, sample.positives, sample.owner
    of_negatives, sampled = count_above("negatives", sample.negatives, beta, sample.mask)
    if owner is None:
        higher = (positives > beta).to(beta.dtype)
        count = torch.ones_like(higher) if num_positives is None else num_positives[users].to(higher.dtype)
        of_positives = count * higher
    else:
        zeros = beta.new_zeros(len(users))
        of_positives = zeros.index_add(0, owner, (positives > beta[owner]).to(zeros.dtype))
        count = zeros.index_add(0, owner, torch.ones_like(positives, dtype=zeros.dtype))
    weight = (num_items - count).clamp(min=0) / sampled.clamp(min=1)
    return ItemsAbove(of_positives + weight * of_negatives, sampled, weight)


def count_above(name: str, scores: Tensor, beta: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """How many scores of each row are above its β, and how many there are, both (B,); NaN raises."""
    rows, columns = scores.shape
    exact = torch.promote_types(scores.dtype, torch.float32)
    above = scores.new_empty(rows, dtype=exact)
    # Blocks of rows on the CPU, so that the temporary stays in cache; of floats, whose sums are vectorised (those
    # of booleans are not).
    cached = _BLOCK * torch.get_num_threads()
    block = max(1, cached // max(1, columns)) if scores.device.type == "cpu" else max(1, rows)
    ones = scores.new_empty(min(block, rows), columns, dtype=exact)
    checksum = torch.zeros((), device=scores.device)  # NaN if a score is; summed while the block is in cache
    for start in range(0, rows, block):
        here = slice(start, min(start + block, rows))
        checksum = checksum + scores[here].sum()
        higher = torch.gt(scores[here], beta[here].unsqueeze(-1), out=ones[: here.stop - start])
        torch.sum(higher, dim=-1, out=above[here])
    if not torch.isfinite(checksum):
        check_finite(name, scores, mask)
    total = torch.full_like(above, columns)
    if mask is not None:  # few are masked, so they are subtracted
        row, column = mask.nonzero(as_tuple=True)
        above.index_add_(0, row, -(scores[row, column] > beta[row]).to(exact))
        total.index_add_(0, row, -torch.ones_like(row, dtype=exact))
    return above, total
