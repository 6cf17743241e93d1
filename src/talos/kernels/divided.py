"""The catalogue in parts: loss and gradients of a batch of users whose items lie with several processes.

Every rank has a range of the items and owns some users of the batch. What it has to know of other ranks' items are
two numbers a user: β_u, the K-th of all scores, and log Σφ (or Σφ) over all items. So there are up to three passes
over a rank's own items, with a small exchange after each:

1. the K best scores of every user; the K-th of all ranks' best is β_u             (only for exact thresholds)
2. log Σφ; their log-sum is that of all items                                       ("mean" parts do without)
3. gradients, with the coefficients c_u · Σφ(own items)/Σφ(all items): the rank's part of both

The rank that has a positive's item handles the positive. Gradients of the items are complete where they are; those of
the users are summed up by their owners. A batch of B users costs each rank about B·(2d + K + 4) numbers sent and
received, however many items and ranks there are.

Both kernels do the passes: the compiled core where it applies, tiled torch elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from talos.errors import ArgumentError
from talos.kernels import compiled, library, tiled
from talos.kernels.checks import check_arguments, check_finite
from talos.kernels.engine import in_autograd, through_lengths
from talos.kernels.parts import LossParts, NegativePart

__all__ = [
    "DividedBatch",
    "Exchange",
    "differentiable_divided_loss",
    "divided_batch_loss",
    "divided_kth_scores",
]


class Exchange(Protocol):
    """The rows of one batch, of which every rank owns some consecutive ones; all ranks call it in the same order."""

    def spread(self, rows: Tensor) -> Tensor:
        """(own, …) of every rank → (B, …): the owners' rows, for everybody."""

    def collect(self, rows: Tensor) -> Tensor:
        """(B, …) of every rank → (ranks, own, …): what each of them has in the rows that this rank owns."""


@dataclass(frozen=True)
class DividedBatch:
    """One rank's part of a batch.

    Attributes:
        value: sums to the loss over the ranks.
        user_gradient: of the users that this rank owns, complete, (own, d).
        item_gradient: of its items, complete, (n, d).
        parameter_gradients: of the loss's own scalars, by name; they sum over the ranks.
        thresholds: β of the users that this rank owns, (own,); None where there was none.
        normalizer: log Σφ or Σφ over all items, of everybody, (B,); 0 where there is no sum.
    """

    value: Tensor
    user_gradient: Tensor
    item_gradient: Tensor
    parameter_gradients: dict[str, Tensor]
    thresholds: Tensor | None
    normalizer: Tensor


@torch.no_grad()
def divided_batch_loss(
    user_vectors: Tensor,
    item_vectors: Tensor,
    indptr: Tensor,
    indices: Tensor,
    thresholds: Tensor | None,
    loss: LossParts,
    exchange: Exchange,
    *,
    degrees: Tensor,
    num_items: int,
    k: int | None = None,
    reduction: Literal["positives", "users"] = "positives",
    normalize_items: bool = False,
    bfloat16: bool = False,
) -> DividedBatch:
    """`user_batch_loss` over all items, where each rank has some of them; every rank calls it for the same batch.

    Args:
        user_vectors: (own, d), of the users of the batch that this rank owns, as they are scored.
        item_vectors: (n, d), this rank's items.
        indptr: (B + 1,), of all users of the batch.
        indices: those of their positives that are this rank's items, as rows of `item_vectors`, ascending.
        thresholds: (own,) where the loss has one.
        loss: a `UserSeparableLoss`, or anything of that shape.
        exchange: the way to the other ranks.
        degrees: (B,) positives of each user over all ranks.
        num_items: of all ranks.
        k: take as thresholds, in place of given ones, each user's exact K-th best score over all items.
        reduction: the mean over `positives`, or over `users` with at least one.
        normalize_items: divide the rows of `item_vectors` by their lengths first; the gradient is that of the
            rows as given.
        bfloat16: as in `user_batch_loss`; positives' own scores stay float32 here.

    >>> from talos.losses import Softmax
    >>> class Alone:
    ...     def spread(self, rows): return rows
    ...     def collect(self, rows): return rows.unsqueeze(0)
    >>> users, items = torch.eye(2), torch.eye(3)[:, :2]
    >>> batch = divided_batch_loss(
    ...     users, items, torch.tensor([0, 1, 1]), torch.tensor([0]), None, Softmax(tau=1.0), Alone(),
    ...     degrees=torch.tensor([1, 0]), num_items=3)
    >>> batch.value   # log(e^0 + e^0) - 1
    tensor(-0.3069)
    """
    dtype = torch.promote_types(user_vectors.dtype, torch.float32)
    users = exchange.spread(user_vectors.detach().to(dtype))
    asked = None if not loss.needs.threshold else users.new_zeros(len(users))
    check_arguments(users, item_vectors, indptr, indices, asked, None, None, loss)
    part = loss.negative_part
    use_core = compiled.supports(part, users, item_vectors) and library.available()
    rows = item_vectors.detach().to(dtype)
    passes = (
        _CorePasses(rows, indptr, indices, normalize=normalize_items, bfloat16=bfloat16)
        if use_core
        else _TorchPasses(rows, indptr, indices, normalize=normalize_items)
    )

    own_beta = thresholds
    if k is not None:
        own_beta = _kth_of_all(passes, users, k, exchange)
    beta = None
    if loss.needs.threshold:
        if own_beta is None:
            raise ArgumentError("is missing", where="thresholds", expected=f"shape ({len(user_vectors)},)")
        beta = exchange.spread(own_beta.detach().to(dtype))

    local = indptr.diff()
    owner = torch.repeat_interleave(torch.arange(len(users), device=local.device), local)
    pos = (users[owner] * passes.table[indices]).sum(dim=-1)
    pos_beta = None if beta is None else beta[owner]
    a, c = (x.detach() for x in loss.positive_part(pos, pos_beta))
    share = tiled.shares(degrees, reduction, dtype)
    constant = tiled.constant_weight(loss)
    if constant is None:
        own_part = users.new_zeros(len(users)).index_add_(0, owner, share[owner] * c)
        coefficients = exchange.spread(exchange.collect(own_part).sum(0))
    else:
        coefficients = constant * share * degrees

    mass = (num_items - degrees).to(dtype)  # negatives of each user
    item_gradient, user_gradient = torch.zeros_like(passes.table), torch.zeros_like(users)
    by_parameter: dict[str, Tensor] = {}
    negative, normalizer = users.new_full((len(users),), part.scale), users.new_zeros(len(users))
    if part.reduction == "log-sum":
        sums = passes.sums(users, beta, part)
        normalizer = exchange.spread(torch.logsumexp(exchange.collect(sums), dim=0))
        negative = (part.scale * normalizer).masked_fill_(mass == 0, 0.0)
        coefficients = coefficients * torch.exp(sums - normalizer).masked_fill_(mass == 0, 0.0)
        found = passes.gradients(users, beta, part, coefficients)
        user_gradient, item_gradient = found.user_gradient, found.item_gradient
    elif part.reduction == "mean":
        here = (len(item_vectors) - local).to(dtype)
        found = passes.gradients(users, beta, part, coefficients * here / mass.clamp(min=1))
        user_gradient, item_gradient = found.user_gradient, found.item_gradient
        by_parameter |= found.parameter_gradients
        normalizer = exchange.spread(exchange.collect(found.normalizer).sum(0))
        negative = part.scale * normalizer / mass.clamp(min=1)

    slope = share[owner] * loss.da(pos, pos_beta).detach()
    item_gradient = passes.add_positives_(user_gradient, item_gradient, users, owner, slope)
    for name, derivative in loss.da_dparameters(pos, pos_beta).items():
        by_parameter[name] = by_parameter.get(name, 0.0) + (share[owner] * derivative).sum()
    values = a + c * negative[owner]
    check_finite(values, user_vectors=users, item_vectors=item_vectors, thresholds=beta)
    return DividedBatch(
        value=(share[owner] * values).sum(),
        user_gradient=exchange.collect(user_gradient).sum(0).to(user_vectors.dtype),
        item_gradient=item_gradient.to(item_vectors.dtype),
        parameter_gradients=by_parameter,
        thresholds=own_beta,
        normalizer=normalizer,
    )


def differentiable_divided_loss(
    user_vectors: Tensor,
    item_vectors: Tensor,
    indptr: Tensor,
    indices: Tensor,
    thresholds: Tensor | None,
    loss: LossParts,
    exchange: Exchange,
    *,
    degrees: Tensor,
    num_items: int,
    k: int | None = None,
    reduction: Literal["positives", "users"] = "positives",
    normalize_items: bool = False,
    bfloat16: bool = False,
) -> tuple[Tensor, Tensor]:
    """`divided_batch_loss` inside autograd: this rank's part of the value, and the thresholds (own,) of its users.

    >>> from talos.losses import Talos
    >>> class Alone:
    ...     def spread(self, rows): return rows
    ...     def collect(self, rows): return rows.unsqueeze(0)
    >>> users, items = torch.eye(2), torch.tensor([[0.1, 0.3], [0.9, 0.2], [0.5, 0.1]], requires_grad=True)
    >>> value, beta = differentiable_divided_loss(
    ...     users, items, torch.tensor([0, 1, 2]), torch.tensor([1, 0]), None, Talos(tau=0.1), Alone(),
    ...     degrees=torch.tensor([1, 1]), num_items=3, k=2)
    >>> beta, items.grad
    (tensor([0.5000, 0.2000]), None)
    """
    compute = partial(
        divided_batch_loss,
        indptr=indptr,
        indices=indices,
        thresholds=thresholds,
        loss=loss,
        exchange=exchange,
        degrees=degrees,
        num_items=num_items,
        k=k,
        reduction=reduction,
        normalize_items=normalize_items,
        bfloat16=bfloat16,
    )
    return in_autograd(user_vectors, item_vectors, loss, compute)


@torch.no_grad()
def divided_kth_scores(user_vectors: Tensor, item_vectors: Tensor, k: int, exchange: Exchange) -> Tensor:
    """The K-th best score over all ranks' items of the users (own, d) that this rank owns, (own,).

    >>> class Alone:
    ...     def spread(self, rows): return rows
    ...     def collect(self, rows): return rows.unsqueeze(0)
    >>> divided_kth_scores(torch.tensor([[1.0]]), torch.tensor([[0.1], [0.9], [0.5]]), 2, Alone())
    tensor([0.5000])
    """
    users = exchange.spread(user_vectors)
    plain = all(t.dtype == torch.float32 and t.device.type == "cpu" for t in (users, item_vectors))
    passes = (_CorePasses if plain and library.available() else _TorchPasses)(item_vectors)
    return _kth_of_all(passes, users, k, exchange)


def _kth_of_all(passes: _TorchPasses | _CorePasses, users: Tensor, k: int, exchange: Exchange) -> Tensor:
    """The K-th best of the users that this rank owns, from the K best of every rank for everybody."""
    there = min(k, len(passes.table))
    best = passes.best(users, there) if there else users.new_empty(len(users), 0)
    # fewer than K items on a rank: places without a score
    theirs = exchange.collect(F.pad(best, (0, k - best.shape[1]), value=-torch.inf))
    return tiled.kth_largest(theirs.movedim(0, 1).flatten(1), k)


class _TorchPasses:
    """The passes over a rank's items, in torch."""

    def __init__(
        self,
        rows: Tensor,
        indptr: Tensor | None = None,
        indices: Tensor | None = None,
        *,
        normalize: bool = False,
    ) -> None:
        self.rows, self.normalize = rows, normalize
        self.table = F.normalize(rows) if normalize else rows
        self.positives = None if indptr is None or indices is None else (indptr, indices)

    def best(self, users: Tensor, k: int) -> Tensor:
        """The K best scores of each user."""
        return tiled.best_scores(users, self.table, k)

    def sums(self, users: Tensor, beta: Tensor | None, part: NegativePart) -> Tensor:
        """Each user's log Σφ or Σφ."""
        nothing = users.new_zeros(len(users))
        return tiled.sweep_users(users, self.table, beta, nothing, part, self.positives, None).normalizer

    def gradients(
        self, users: Tensor, beta: Tensor | None, part: NegativePart, coefficients: Tensor
    ) -> _Gradients:
        """Gradients of Σ_u coefficient_u · R_u, with R_u of these items alone."""
        items = torch.zeros_like(self.table)
        found = tiled.sweep_users(users, self.table, beta, coefficients, part, self.positives, items)
        return _Gradients(found.normalizer, found.user_gradient, items, found.parameter_gradients)

    def add_positives_(
        self, user_gradient: Tensor, item_gradient: Tensor, users: Tensor, owner: Tensor, slope: Tensor
    ) -> Tensor:
        """Add ∂L/∂s of the positives to both; returns the items' gradient as that of the rows as given."""
        assert self.positives is not None
        items = self.positives[1]
        user_gradient.index_add_(0, owner, slope.unsqueeze(-1) * self.table[items])
        item_gradient.index_add_(0, items, slope.unsqueeze(-1) * users[owner])
        return through_lengths(item_gradient, self.table, self.rows) if self.normalize else item_gradient


class _CorePasses:
    """The same by the compiled core, for arguments that it takes."""

    def __init__(
        self,
        rows: Tensor,
        indptr: Tensor | None = None,
        indices: Tensor | None = None,
        *,
        normalize: bool = False,
        bfloat16: bool = False,
    ) -> None:
        self.bfloat16 = bfloat16
        self.lengths: Tensor | None = None
        self.table = rows.detach().contiguous()
        if normalize:
            self.table, self.lengths = compiled.unit_rows(self.table)
        self.positives = None
        if indptr is not None and indices is not None:
            self.positives = (indptr, _trusted(indptr, indices, len(rows)))

    def _sweep(self, users: Tensor, **how: Any) -> compiled.CoreSweep:
        return compiled.core_sweep(users, self.table, bfloat16=self.bfloat16, **how)

    def best(self, users: Tensor, k: int) -> Tensor:
        """The K best scores of each user."""
        found = self._sweep(users, part=None, k=k, keep_best=True)
        assert found.best is not None
        return found.best

    def sums(self, users: Tensor, beta: Tensor | None, part: NegativePart) -> Tensor:
        """Each user's log Σφ or Σφ."""
        found = self._sweep(users, part=part, thresholds=beta, excluded=self.positives, gradients=False)
        return found.normalizer

    def gradients(
        self, users: Tensor, beta: Tensor | None, part: NegativePart, coefficients: Tensor
    ) -> _Gradients:
        """Gradients of Σ_u coefficient_u · R_u, with R_u of these items alone."""
        found = self._sweep(
            users, part=part, coefficients=coefficients, thresholds=beta, excluded=self.positives
        )
        by_parameter = compiled.parameter_gradients(part, found)
        return _Gradients(found.normalizer, found.user_gradient, found.item_gradient, by_parameter)

    def add_positives_(
        self, user_gradient: Tensor, item_gradient: Tensor, users: Tensor, owner: Tensor, slope: Tensor
    ) -> Tensor:
        """Add ∂L/∂s of the positives to both; returns the items' gradient as that of the rows as given."""
        assert self.positives is not None
        compiled.add_positives_(
            user_gradient, item_gradient, users, self.table, *self.positives, slope, lengths=self.lengths
        )
        return item_gradient


@dataclass(frozen=True)
class _Gradients:
    """What the last pass gives."""

    normalizer: Tensor  # (B,) of these items alone
    user_gradient: Tensor  # (B, d), their part
    item_gradient: Tensor  # (n, d)
    parameter_gradients: dict[str, Tensor]


def _trusted(indptr: Tensor, indices: Tensor, items: int) -> Tensor:
    """The core trusts its indices to the point of writing where they point to: they are looked at first."""
    if indices.numel():
        low, high = (int(bound) for bound in torch.aminmax(indices))
        if low < 0 or high >= items:
            raise ArgumentError(f"{low} to {high}", where="indices", expected=f"0 to {items - 1}")
        rises = indices.diff() > 0
        starts = indptr[1:-1]  # of all users but the first: there it may fall
        rises[starts[(starts > 0) & (starts < len(indices))] - 1] = True
        if not bool(rises.all()):
            raise ArgumentError(
                "do not ascend", where="indices", expected="each user's items in ascending order"
            )
    return indices
