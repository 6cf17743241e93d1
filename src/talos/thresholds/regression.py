"""A threshold that is learnt: quantile regression on the pinball loss."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from talos.checks import check_finite, describe, positive_number, require
from talos.thresholds.base import PerUser, Sample, mean_by_user

__all__ = ["QuantileRegression", "SampledQuantile", "count_above", "pinball"]

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
        require(
            num_positives is None or num_positives.shape == (num_users,),
            describe(num_positives),
            where="num_positives",
            expected=f"shape ({num_users},)",
        )
        self.register_buffer("num_positives", num_positives, persistent=False)

    def update_sample(self, sample: Sample) -> None:
        """Count the items above β and move it."""
        check_finite("positives", sample.positives)
        self._update(sample, "negatives")

    @torch.no_grad()
    def update_rows(self, users: Tensor, scores: Tensor) -> None:
        """Count the items above β and move it: a sample of all items, in which each stands for itself."""
        self._check_rows(users, scores)
        self._update(Sample(users, scores.new_empty(0), scores, None, users[:0]), "scores")

    def _update(self, sample: Sample, name: str) -> None:
        if sample.users.numel():
            beta = self.table[sample.users]
            of_negatives, sampled = count_above(name, sample.negatives, beta, sample.mask)
            higher = sample.positives > (beta if sample.owner is None else beta[sample.owner])
            count = self._per_row(sample, torch.ones_like(higher))
            weight = (self.num_items - count).clamp(min=0) / sampled.clamp(min=1)
            above = self._per_row(sample, higher) + weight * of_negatives
            self.move(sample, above, sampled, weight)

    def _per_row(self, sample: Sample, flags: Tensor) -> Tensor:
        """How many positives of each row (B,) have a flag.

        Without `owner` a row's positive stands for all of its user's; for one where their number is not known.
        """
        found = flags.to(self.table.dtype)
        if sample.owner is not None:
            return found.new_zeros(len(sample.users)).index_add(0, sample.owner, found)
        own = self.num_positives
        return found if own is None else found * own[sample.users].to(found.dtype)

    @abstractmethod
    def move(self, sample: Sample, above: Tensor, sampled: Tensor, weight: Tensor) -> None:
        """Move β of the sample's users, of whom there is at least one.

        For each row (B,), `above` estimates without bias how many of all items score above β, `sampled` counts the
        negatives that are not masked, and each of these stands for `weight` items, (|I| - |P_u|)/n.
        """


class QuantileRegression(SampledQuantile):
    """Quantile regression by stochastic steps on the sampled pinball loss, one parameter per user.

        Q_K(u) = 1/|I| · ( Σ_{i∈P_u} ρ(s_ui - β) + (|I|-|P_u|)/n · Σ_{j∈G_u} ρ(s_uj - β) )

    The weight makes Q_K unbiased for the pinball loss over all items, whose minimiser is the K-th best score.
    Its gradient needs no autograd: the slope of ρ is one number above β and another below, so
    ∂Q/∂β = K/|I| - (estimated fraction of items above β), which is a count.

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
        require(
            plain and all(type(one) in (int, float) and 0 <= one < 1 for one in given),
            f"got {betas!r}",
            where="betas",
            expected="two numbers from 0 to below 1",
        )
        self.register_buffer("mean", torch.zeros(num_users))
        self.register_buffer("square", torch.zeros(num_users))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def move(self, sample: Sample, above: Tensor, sampled: Tensor, weight: Tensor) -> None:
        """One step of Adam on Q_K for every user in the batch."""
        # A row with every negative masked tells nothing about the other items: a gradient of 0.
        above = torch.where(sampled > 0, above, torch.full_like(above, float(self.k)))
        self._step(sample.users, (self.k - above).to(self.table.dtype) / self.num_items)

    @torch.no_grad()
    def step_without_users(self) -> None:
        """One step of Adam with a gradient of 0 for all users."""
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
