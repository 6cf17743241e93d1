"""Thresholds: for every user, an estimate of the score of their K-th best item.

Talos, AATP and SL@K compare scores with β_u, which moves as the model learns. Four estimators stand behind
one interface; a trainer asks `needs_full_row` whether sampled negatives will do, and calls `update` or
`update_rows` with detached scores once a step. All are `nn.Module`s that hold buffers only, so `state_dict`,
`load_state_dict` and `.to(device)` work as usual and no optimiser of the model ever touches them.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from talos.errors import ArgumentError, nearest

__all__ = [
    "SHORT_NAMES",
    "ExactQuantile",
    "FixedThreshold",
    "MonteCarloQuantile",
    "QuantileRegression",
    "Threshold",
    "by_name",
    "pinball",
]

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


class Threshold(nn.Module):
    """One threshold per user, and how it follows the scores.

    Attributes:
        needs_full_row: whether only `update_rows` (all items' scores) will do.
    """

    short_name: ClassVar[str] = ""
    needs_full_row: ClassVar[bool] = False
    per_user: ClassVar[tuple[str, ...]] = ()  # names of the buffers with one row per user

    @abstractmethod
    def value(self, users: Tensor) -> Tensor:
        """β (B,) of the users with these indices, detached."""

    @abstractmethod
    def update(
        self,
        users: Tensor,
        positives: Tensor,
        negatives: Tensor,
        *,
        mask: Tensor | None = None,
        owner: Tensor | None = None,
    ) -> None:
        """Follow the scores of positives and sampled negatives.

        Two layouts. Without `owner` each row is one positive with its own negatives, and a user may come in
        several rows. With `owner` each row is one user, once, and brings all positives that the user has.

        Args:
            users: (B,) indices.
            positives: scores, (B,) or, with `owner`, flat (P,).
            negatives: scores (B, N), drawn uniformly from what is no positive of the user.
            mask: (B, N), True where a negative is really a positive and is left out.
            owner: (P,), the row in `users` that each positive belongs to.
        """

    @abstractmethod
    def update_rows(self, users: Tensor, scores: Tensor) -> None:
        """Follow the scores (B, |I|) of all items, for users (B,) that occur once each."""

    def rest(self) -> None:
        """A step in which none of these users took part; those who follow by momentum move on."""
        return

    @torch.no_grad()
    def error_against(self, exact: Tensor | Threshold, users: Tensor | None = None) -> float:
        """Mean over users of |estimate - exact|: the quality of the estimate.

        Args:
            exact: the true K-th scores (B,), or an estimator that holds them.
            users: (B,) indices; all users, in order, where `exact` is a tensor and this is left out.

        >>> FixedThreshold(0.5).error_against(torch.tensor([0.5, 0.75]))
        0.125
        """
        if users is None:
            if isinstance(exact, Threshold):
                raise ArgumentError("is missing", where="users", expected="the users to compare on")
            users = torch.arange(len(exact), device=exact.device)
        truth = exact.value(users) if isinstance(exact, Threshold) else exact
        if truth.shape != users.shape:
            raise ArgumentError(_describe(truth), where="exact", expected=f"shape {tuple(users.shape)}")
        return (self.value(users) - truth).abs().mean().item()


class _PerUser(Threshold):
    """What the estimators with a table of one value per user share."""

    table: Tensor
    per_user: ClassVar[tuple[str, ...]] = ("table",)

    def __init__(self, num_users: int, *, k: int, num_items: int | None, start: float) -> None:
        super().__init__()
        self.num_users = _at_least_one("num_users", num_users)
        self.num_items = None if num_items is None else _at_least_one("num_items", num_items)
        self.k = _at_least_one("k", k)
        if num_items is not None and k > num_items:
            raise ArgumentError(f"got {k}", where="k", expected=f"1 to {num_items}, the number of items")
        self.register_buffer("table", torch.full((num_users,), float(start)))

    def value(self, users: Tensor) -> Tensor:
        """β (B,); a user never seen has the value that the table starts with."""
        return self.table[users]

    def extra_repr(self) -> str:
        """What was asked for, for `repr`."""
        return f"{self.num_users}, k={self.k}, num_items={self.num_items}"

    @torch.no_grad()
    def set(self, users: Tensor, values: Tensor) -> None:
        """Store values found elsewhere, such as by a kernel that sweeps over all items."""
        if values.shape != users.shape:
            raise ArgumentError(_describe(values), where="values", expected=f"shape {tuple(users.shape)}")
        _check_finite("values", values)
        self.table[users] = values.to(self.table.dtype)

    def _check_rows(self, users: Tensor, scores: Tensor) -> None:
        if scores.ndim != 2 or scores.shape[0] != users.shape[0] or scores.shape[1] < self.k:
            expected = f"shape ({users.shape[0]}, |I|) with at least k={self.k} items"
            raise ArgumentError(_describe(scores), where="scores", expected=expected)
        if self.num_items is not None and scores.shape[1] != self.num_items:
            expected = f"shape ({users.shape[0]}, {self.num_items}), all items"
            raise ArgumentError(_describe(scores), where="scores", expected=expected)


class QuantileRegression(_PerUser):
    """Quantile regression by stochastic steps on the sampled pinball loss, one parameter per user.

        Q_K(u) = 1/|I| · ( Σ_{i∈P_u} ρ(s_ui - β) + (|I|-|P_u|)/n · Σ_{j∈G_u} ρ(s_uj - β) )

    The weight makes Q_K unbiased for the pinball loss over all items, whose minimiser is the K-th best score.
    Its gradient needs no autograd: the slope of ρ is one number above β and another below, so
    ∂Q/∂β = K/|I| - (estimated share of items above β), a matter of counting.

    Where each row holds one positive (no `owner`) that positive stands for all |P_u| of them, and the rows of
    one user are averaged; both keep the expectation. With `num_positives` unknown, a row's own positive is
    taken to be the only one.

    The steps are those of plain Adam over all users, as published: in a step without them, users have a
    gradient of 0 and move on with what momentum they have. That matters: the second moment of a user in one
    step of m is 1/m of the squared gradient, so a visit moves them √m times as far as an Adam of their own
    would, and users that come a few times an epoch keep up. A user never seen has β = 0. Shengjia Zhang et
    al., WWW 2026.

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
    num_positives: Tensor | None

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
        super().__init__(num_users, k=k, num_items=num_items, start=0.0)
        if not lr > 0:
            raise ArgumentError(f"got {lr!r}", where="lr", expected="a number above 0")
        self.lr, self.betas = float(lr), betas
        self.register_buffer("mean", torch.zeros(num_users))
        self.register_buffer("square", torch.zeros(num_users))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        if num_positives is not None and num_positives.shape != (num_users,):
            expected = f"shape ({num_users},)"
            raise ArgumentError(_describe(num_positives), where="num_positives", expected=expected)
        self.register_buffer("num_positives", num_positives, persistent=False)

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
        """One step of Adam on Q_K for every user in the batch."""
        _check_batch(users, positives, negatives, mask, owner)
        _check_finite("positives", positives)
        if users.numel() == 0:
            return
        beta = self.table[users]
        above_negatives, sampled = _count_above("negatives", negatives, beta, mask)
        if owner is None:
            share = (positives > beta).to(self.table.dtype)
            own = self.num_positives
            count = torch.ones_like(share) if own is None else own[users].to(share.dtype)
            above_positives = count * share
        else:
            zeros = self.table.new_zeros(len(users))
            above_positives = zeros.index_add(0, owner, (positives > beta[owner]).to(zeros.dtype))
            count = zeros.index_add(0, owner, torch.ones_like(positives, dtype=zeros.dtype))
        assert self.num_items is not None
        others = (self.num_items - count).clamp(min=0)
        above = above_positives + others / sampled.clamp(min=1) * above_negatives
        # A row without a single negative left says nothing about the other items: no step.
        above = torch.where(sampled > 0, above, torch.full_like(above, float(self.k)))
        self._step(users, (self.k - above).to(self.table.dtype) / self.num_items)

    @torch.no_grad()
    def update_rows(self, users: Tensor, scores: Tensor) -> None:
        """One step on the pinball loss over all items."""
        self._check_rows(users, scores)
        if users.numel() == 0:
            return
        above, total = _count_above("scores", scores, self.table[users], None)
        self._step(users, ((self.k - above) / total).to(self.table.dtype))

    @torch.no_grad()
    def rest(self) -> None:
        """One step of Adam with a gradient of 0 for everybody."""
        self._step(self.steps.new_empty(0), self.table.new_empty(0))

    def _step(self, users: Tensor, gradient: Tensor) -> None:
        """One step of Adam: the users of the batch on the mean gradient of their rows, the others on 0."""
        users, gradient = _mean_by_user(users, gradient)
        fast, slow = self.betas
        self.steps += 1
        done = int(self.steps)
        self.mean.mul_(fast)[users] += (1 - fast) * gradient
        self.square.mul_(slow)[users] += (1 - slow) * gradient.square()
        scale = (self.square / (1 - slow**done)).sqrt_().add_(1e-8)
        self.table.addcdiv_(self.mean, scale, value=-self.lr / (1 - fast**done))


class ExactQuantile(_PerUser):
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
        _check_finite("scores", scores)
        if users.numel():
            self.set(users, _kth_largest(scores, self.k))


class MonteCarloQuantile(_PerUser):
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
        _check_batch(users, positives, negatives, mask, owner)
        _check_finite("positives", positives)
        _check_finite("negatives", negatives, mask)
        if users.numel() == 0:
            return
        lowest = torch.finfo(negatives.dtype).min
        if mask is not None:
            negatives = negatives.masked_fill(mask, lowest)
        own = positives.unsqueeze(-1) if owner is None else _padded(positives, owner, len(users), lowest)
        pool = torch.cat([own.to(negatives.dtype), negatives], dim=-1)
        best = torch.topk(pool, min(self.k, pool.shape[1]), dim=-1).values
        # Padding and masked entries sort last: the smallest real entry among the best is the answer.
        real = (best > lowest).sum(dim=-1)
        kth = best.gather(-1, (real - 1).clamp(min=0).unsqueeze(-1)).squeeze(-1)
        distinct, kth = _mean_by_user(users[real > 0], kth[real > 0].to(self.table.dtype))
        self.set(distinct, kth)

    @torch.no_grad()
    def update_rows(self, users: Tensor, scores: Tensor) -> None:
        """With all items at hand nothing is left to chance: the exact value."""
        self._check_rows(users, scores)
        _check_finite("scores", scores)
        if users.numel():
            self.set(users, _kth_largest(scores, self.k))


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
        _check_finite("value", constant)
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
        _check_batch(users, positives, negatives, mask, owner)

    def update_rows(self, users: Tensor, scores: Tensor) -> None:
        """Nothing to do."""

    def extra_repr(self) -> str:
        """The number, for `repr`."""
        return f"{self.constant.item():g}"


SHORT_NAMES: dict[str, type[Threshold]] = {
    exported.short_name: exported
    for exported in (globals().get(name) for name in __all__)
    if isinstance(exported, type) and issubclass(exported, Threshold) and exported.short_name
}
"""Short name → class, for configurations and the command line: the estimators among `__all__`."""


def by_name(
    name: str,
    *,
    num_users: int,
    k: int,
    num_items: int,
    num_positives: Tensor | None = None,
    **options: Any,
) -> Threshold:
    """The estimator of a short name; what describes the run goes to those that ask for it.

    >>> by_name("regression", num_users=3, k=2, num_items=10, lr=0.01)
    QuantileRegression(3, k=2, num_items=10)
    >>> by_name("fixed", num_users=3, k=2, num_items=10, value=0.2)
    FixedThreshold(0.2)
    >>> by_name("exakt", num_users=3, k=2, num_items=10)
    Traceback (most recent call last):
    talos.errors.ArgumentError: name: no threshold is called 'exakt'; expected ... (did you mean 'exact'?)
    """
    if name not in SHORT_NAMES:
        hint = nearest(name, SHORT_NAMES)
        raise ArgumentError(
            f"no threshold is called {name!r}", where="name", expected="a short name", hint=hint
        )
    estimator = SHORT_NAMES[name]
    accepted = inspect.signature(estimator).parameters
    run = {"num_users": num_users, "k": k, "num_items": num_items, "num_positives": num_positives}
    for option in options:
        if option not in accepted or option in run:
            hint = nearest(option, [argument for argument in accepted if argument not in run])
            raise ArgumentError(f"the threshold {name!r} has no such argument", where=option, hint=hint)
    return estimator(**{key: value for key, value in run.items() if key in accepted}, **options)


def _at_least_one(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ArgumentError(f"got {value!r}", where=name, expected="an integer of at least 1")
    return value


def _describe(value: Tensor) -> str:
    return f"has shape {tuple(value.shape)}, dtype {value.dtype}"


def _check_finite(name: str, values: Tensor, mask: Tensor | None = None) -> None:
    """An error for NaN and infinity. A sum is not finite if a term is not, and is the cheapest look at all."""
    if torch.isfinite(values.sum()):
        return
    bad = ~torch.isfinite(values) if mask is None else ~torch.isfinite(values) & ~mask
    if bad.any():
        found = f"has {values[bad][0].item()}, shape {tuple(values.shape)}"
        raise ArgumentError(found, where=name, expected="finite numbers")


def _check_batch(
    users: Tensor, positives: Tensor, negatives: Tensor, mask: Tensor | None, owner: Tensor | None
) -> None:
    if users.ndim != 1 or users.is_floating_point():
        raise ArgumentError(_describe(users), where="users", expected="indices of shape (B,)")
    rows = len(users)
    wanted = users.shape if owner is None else owner.shape
    if positives.ndim != 1 or positives.shape != wanted:
        raise ArgumentError(_describe(positives), where="positives", expected=f"shape {tuple(wanted)}")
    if negatives.ndim != 2 or negatives.shape[0] != rows:
        raise ArgumentError(_describe(negatives), where="negatives", expected=f"shape ({rows}, N)")
    if mask is not None and (mask.shape != negatives.shape or mask.dtype != torch.bool):
        expected = f"booleans of shape {tuple(negatives.shape)}"
        raise ArgumentError(_describe(mask), where="mask", expected=expected)


def _count_above(name: str, scores: Tensor, beta: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """How many scores of each row are above its β, and how many there are, both (B,); NaN is an error."""
    rows, columns = scores.shape
    exact = torch.promote_types(scores.dtype, torch.float32)
    above = scores.new_empty(rows, dtype=exact)
    # Blocks of rows on the CPU, so that the temporary stays in cache; sums of floats are vectorised where
    # sums of booleans are not.
    cached = _BLOCK * torch.get_num_threads()
    block = max(1, cached // max(1, columns)) if scores.device.type == "cpu" else max(1, rows)
    ones = scores.new_empty(min(block, rows), columns, dtype=exact)
    checksum = torch.zeros((), device=scores.device)  # read while in cache; NaN comes through
    for start in range(0, rows, block):
        here = slice(start, min(start + block, rows))
        checksum = checksum + scores[here].sum()
        higher = torch.gt(scores[here], beta[here].unsqueeze(-1), out=ones[: here.stop - start])
        if mask is not None:
            higher.masked_fill_(mask[here], 0.0)
        torch.sum(higher, dim=-1, out=above[here])
    if not torch.isfinite(checksum):
        _check_finite(name, scores, mask)
    total = torch.full_like(above, columns) if mask is None else (~mask).sum(dim=-1).to(exact)
    return above, total


def _mean_by_user(users: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct users and the mean of the values of each."""
    distinct, row_of, count = torch.unique(users, return_inverse=True, return_counts=True)
    return distinct, values.new_zeros(len(distinct)).index_add(0, row_of, values) / count


def _kth_largest(scores: Tensor, k: int) -> Tensor:
    return torch.topk(scores, k, dim=-1, sorted=False).values.amin(dim=-1)


def _padded(flat: Tensor, owner: Tensor, rows: int, filler: float) -> Tensor:
    """Ragged values (P,) with their rows (P,) as a matrix, the rest filled."""
    order = torch.argsort(owner, stable=True)
    count = torch.bincount(owner, minlength=rows)
    start = torch.cumsum(count, 0) - count
    row = owner[order]
    column = torch.arange(len(flat), device=flat.device) - start[row]
    width = int(count.max()) if len(flat) else 0
    padded = flat.new_full((rows, width), filler)
    padded[row, column] = flat[order]
    return padded
