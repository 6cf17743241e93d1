"""The formula: loss and gradients of a batch of rows with all their positives, in closed form.

A row is a query with a vector: a user, or a position in a history. For a loss a(s_ui, β_u) + c(s_ui, β_u)·R_u,
where R_u reduces φ over the negatives of row u, the value is

    L = Σ_u Σ_{i ∈ P_u} w_ui (A_u + λ c_ui R_u),     A_u = -(1/ρ) log( Σ_i w_ui e^{-ρ a_ui} / Σ_i w_ui )

with a weight w for every positive; A_u tends to the weighted mean of a for ρ → 0, the usual loss. The gradient has two
terms. That of Σ_u (λ Σ_i w_ui c_ui) R_u comes from `talos::sweep`. At every positive, once R_u is known,
w_ui (e^{ρ(A_u - a_ui)} ∂a_ui/∂s_ui + λ R_u ∂c_ui/∂s_ui) comes from autograd in the scores (`positive_terms`).
`_separable` puts them together.

A pairwise loss is Σ_u Σ_{i ∈ P_u} w_ui h(R_i), with R_i reduced over g(s_uj - s_ui): one pass over all pairs of a
positive and an item (`_pairwise`). A list loss says itself what whole lists cost (`lists`).

Items may be in several ranges: of a table that is too large for one pass, or of several processes. A first pass gives
each range's own Σφ; these are merged; a second pass over each range gives the gradients, with weights that are
multiplied by ∂R_u/∂R_u(range). The processes of a group all-gather R numbers between the two passes, and the K best
scores for exact thresholds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from talos.checks import require
from talos.distributed import SINGLE_PROCESS, Group
from talos.errors import ArgumentError
from talos.kernels import checks, core
from talos.kernels.core import Swept
from talos.kernels.csr import CSR
from talos.kernels.lists import list_sweep
from talos.kernels.ops import sweep
from talos.kernels.topk import largest
from talos.kernels.vectors import ItemVectors, Samples, drawn_positives, pair_scores
from talos.losses import ListLoss, PairPhi, PairwiseLoss, Phi, UserSeparableLoss
from talos.losses.functional import power_mean

__all__ = [
    "BatchLoss",
    "UserBatch",
    "batch_loss",
    "differentiable_user_batch_loss",
    "exact_user_batch_loss",
    "in_autograd",
    "kth_scores",
    "positive_terms",
    "user_batch_loss",
    "user_exponent",
]

BatchLoss: TypeAlias = UserSeparableLoss | PairwiseLoss | ListLoss
Reduction: TypeAlias = Literal["positives", "users", "sum"]

# Above this much workspace of the core the items are swept in ranges; each pass computes their scores again.
_MOST_BYTES = 1 << 29
# Numbers in tables and scores that never need so much.
_FEW_NUMBERS = 1 << 24
# Rows per block of such ranges, and items of the smallest ones.
_LARGE_BLOCK, _FEWEST_ITEMS = 256, 1024


@dataclass(frozen=True)
class UserBatch:
    """Loss and gradients of a batch of rows.

    Attributes:
        value: the loss; with items of several processes, this process's summand.
        user_gradient: (R, d); with items of several processes, by way of this process's items.
        item_gradient: (I, d).
        parameter_gradients: of the loss's own parameters, by name.
        thresholds: β as used or found, (R,); None where there was none.
    """

    value: Tensor
    user_gradient: Tensor
    item_gradient: Tensor
    parameter_gradients: dict[str, Tensor]
    thresholds: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class _Sweeps:
    """What all passes over the items of one batch have in common."""

    users: Tensor
    items: Tensor
    positives: CSR
    excluded: CSR | None
    samples: Samples | None
    item_weights: Tensor | None
    bfloat16: bool
    users_per_chunk: int | None
    group: Group

    def over(self, low: int, high: int) -> _Sweeps:
        """The same over a range of the items."""
        changed = {
            "items": self.items[low:high],
            "excluded": None if self.excluded is None else self.excluded.within(low, high),
            "users_per_chunk": self.users_per_chunk or _LARGE_BLOCK,
        }
        return _Sweeps(**vars(self) | changed)

    def ranges(self, k: int | None) -> list[tuple[int, int]]:
        """Ranges of the items for which the core's workspace is bounded, also while it finds K-th scores."""
        count, dim = self.items.shape
        if count * (dim + _LARGE_BLOCK) <= _FEW_NUMBERS:
            return [(0, count)]
        of_core = self.samples is None and core.supports("", (), self.users, self.items)
        need = partial(core.workspace_bytes, len(self.users), dim=dim, bfloat16=self.bfloat16)
        block = self.users_per_chunk
        if not of_core or need(num_items=count, k=k or 0, users_per_block=block) <= _MOST_BYTES:
            return [(0, count)]
        # each range computes its scores again for every pass, so the ranges may as well be small, with large blocks
        size, block = count, block or _LARGE_BLOCK
        while (
            size > _FEWEST_ITEMS
            and need(num_items=size, k=min(k or 0, size), users_per_block=block) > _MOST_BYTES
        ):
            size = -(-size // 2)
        return [(low, min(low + size, count)) for low in range(0, count, size)]

    def negatives(self) -> Tensor:
        """How many of these items are negatives of each row, (R,)."""
        whole = self.users.new_full((len(self.users),), len(self.items))
        return whole if self.excluded is None else whole - self.excluded.counts

    def run(
        self, phi: Phi | PairPhi | None, beta: Tensor | None, weights: Tensor | None, **how: Any
    ) -> Swept:
        """One pass over these items."""
        return sweep(
            self.users,
            self.items,
            self.excluded,
            beta,
            weights,
            phi=phi,
            samples=self.samples,
            item_weights=self.item_weights,
            users_per_chunk=self.users_per_chunk,
            bfloat16=self.bfloat16,
            **how,
        )

    def kth(self, k: int) -> Tensor:
        """The exact K-th best score of every row over all items of all processes, (R,)."""
        all_items = {"excluded": None, "samples": None, "item_weights": None, "bfloat16": False}
        plain = _Sweeps(**vars(self) | all_items)
        ranges = plain.ranges(k)
        if self.group.size == 1 and len(ranges) == 1:
            return plain.run(None, None, None, k=k).kth
        best = [
            plain.over(low, high).run(None, None, None, k=min(k, high - low), keep_best=True).best
            for low, high in ranges
            if high > low
        ]
        own = largest(torch.cat([self.users.new_full((len(self.users), k), -torch.inf), *best], dim=1), k)
        return largest(self.group.all_gather(own).movedim(0, 1).flatten(1), k).amin(dim=-1)


@torch.no_grad()
def batch_loss(
    users: Tensor,
    items: ItemVectors,
    positives: CSR,
    excluded: CSR | None,
    thresholds: Tensor | None,
    loss: BatchLoss,
    weights: Tensor,
    *,
    k: int | None = None,
    samples: Samples | None = None,
    item_weights: Tensor | None = None,
    bfloat16: bool = False,
    users_per_chunk: int | None = None,
    item_gradient: Tensor | None = None,
    user_ids: Tensor | None = None,
    group: Group = SINGLE_PROCESS,
) -> UserBatch:
    """The loss of a batch of rows and its gradients, for arguments that are known to fit each other.

    Args:
        users: (R, d), as they are scored.
        items: all items, or this process's.
        positives: of each row, ascending.
        excluded: items that are no negatives of each row, ascending; with `samples`, positions in its sample.
        thresholds: (R,) where the loss uses them and `k` is None.
        loss: a `UserSeparableLoss`, a `PairwiseLoss` or a `ListLoss`.
        weights: (P,), the weight of each positive in the loss.
        k: use the exact K-th best score of each row as its threshold.
        samples: items to take as negatives in place of all, see `talos.kernels.ops.sweep`.
        item_weights: how many items each candidate stands for.
        bfloat16: let the core round the factors of its products to bfloat16.
        users_per_chunk: rows at a time; chosen by cache size if None.
        item_gradient: (I, d), memory for the items' gradient; new memory if None.
        user_ids: (R,), for losses with `needs.ids`.
        group: the processes that have the other items; for user-separable losses.
    """
    rows = users.detach().to(items.scored.dtype).contiguous()
    sweeps = _Sweeps(
        users=rows,
        items=items.scored,
        positives=positives,
        excluded=excluded,
        samples=samples,
        item_weights=item_weights,
        bfloat16=bfloat16,
        users_per_chunk=users_per_chunk,
        group=group,
    )
    memory = torch.empty_like(items.scored) if item_gradient is None else item_gradient
    gradients = {"user_gradient": torch.empty_like(rows), "item_gradient": memory}
    learnt = dict(filter(lambda named: named[1].requires_grad, loss.named_parameters()))
    if isinstance(loss, ListLoss):
        values, by_parameter, beta = list_sweep(
            rows,
            items.scored,
            positives,
            loss,
            weights,
            learnt=learnt,
            ids=user_ids,
            k=k,
            bfloat16=bfloat16,
            **gradients,
        )
        value, slopes = (weights * values).sum(), None
    elif isinstance(loss, PairwiseLoss):
        value, slopes, beta = _pairwise(sweeps, loss.phi, weights, k, gradients)
        by_parameter = {}
    else:
        value, slopes, beta, by_parameter = _separable(
            sweeps, loss, thresholds, weights, k, gradients, learnt
        )
    _check_finite({"user_vectors": rows, "item_vectors": items.scored, "thresholds": beta})
    user_gradient = gradients["user_gradient"]
    item_gradient = items.gradient(gradients["item_gradient"], user_gradient, rows, positives, slopes)
    return UserBatch(value, user_gradient.to(users.dtype), item_gradient, by_parameter, beta)


def _separable(
    sweeps: _Sweeps,
    loss: UserSeparableLoss,
    thresholds: Tensor | None,
    weights: Tensor,
    k: int | None,
    gradients: dict[str, Tensor],
    learnt: Mapping[str, Tensor],
) -> tuple[Tensor, Tensor, Tensor | None, dict[str, Tensor]]:
    """Value, slopes of the positives, thresholds and parameter gradients of a + λcR, see the module."""
    users, positives, group, phi = sweeps.users, sweeps.positives, sweeps.group, loss.phi
    rows, count = positives.rows, len(users)
    weight = loss.constant_weight
    ranges = sweeps.ranges(k)
    constant, one_pass = phi.reduction == "constant", group.size == 1 and len(ranges) == 1
    # with a weight c that does not depend on β, the pass can find β itself
    in_pass = one_pass and k is not None and weight is not None and not constant and sweeps.samples is None
    if k is not None and not in_pass:
        thresholds = sweeps.kth(k)
    given = thresholds if loss.needs.threshold else None
    beta = None if given is None else given.detach().to(users.dtype)

    pos, merge = None, None if group.size == 1 else _log_sum_of(group)
    if weight is None:
        pos = pair_scores(users, sweeps.items, positives)
        own = None if beta is None else beta[rows]
        _, push = positive_terms(loss, pos, own, rows, count, weights, merge=merge)
    else:
        push = users.new_full((), loss.negative_weight * weight)
    # in double precision: thousands of positives of a row are added up one by one
    factors = users.new_zeros(count, dtype=torch.float64).index_add_(0, rows, (weights * push).double())
    factors = factors.to(users.dtype) if group.size == 1 else group.all_reduce_(factors.to(users.dtype))

    if constant:
        for gradient in gradients.values():
            gradient.zero_()
        negative, of_phi = users.new_full((count,), phi.scale), users.new_empty(0)
    elif not one_pass:
        negative, of_phi = _over_ranges(sweeps, ranges, phi, beta, factors, gradients)
    else:
        exact = {"k": k or 0, "kth_is_threshold": loss.needs.threshold} if in_pass else {}
        found = sweeps.run(phi, beta, factors, **exact, **gradients)
        negative, of_phi = found.sums, found.parameter_gradient
        if in_pass:
            thresholds = found.kth
            beta = thresholds if loss.needs.threshold else None
        if pos is None and sweeps.excluded is positives and sweeps.samples is None:
            pos = found.excluded_scores
    if pos is None:
        # in float32: the scores of a pass in bfloat16 are rounded
        pos = pair_scores(users, sweeps.items, positives)

    with torch.enable_grad():
        pos = pos.detach().requires_grad_()
        own = None if beta is None else beta[rows]
        values, push = positive_terms(loss, pos, own, rows, count, weights, merge=merge)
        value = (weights * (values + push * negative[rows])).sum()
        slopes, *of_positives = torch.autograd.grad(
            value, [pos, *learnt.values()], allow_unused=True, materialize_grads=True
        )
    by_parameter = dict(zip(learnt, of_positives, strict=True))
    for parameter, gradient in zip(phi.params, of_phi, strict=False):
        for name, one in learnt.items():
            if one is parameter:
                by_parameter[name] = by_parameter[name] + gradient
    return value.detach(), slopes, thresholds, by_parameter


def _check_finite(arguments: dict[str, Tensor | None]) -> None:
    """Raise an error that names the argument at fault unless all numbers are finite; costs a sum of each if they are.

    The loss would not show it: of infinite scores it can be finite.
    """
    for name, argument in arguments.items():
        if argument is not None and not math.isfinite(argument.sum()):
            wrong = (~torch.isfinite(argument)).nonzero()
            if len(wrong):  # a sum of large finite numbers can overflow
                found = f"is not finite in row {int(wrong[0, 0])}"
                raise ArgumentError(found, where=name, expected="finite numbers")


def positive_terms(
    loss: UserSeparableLoss,
    pos: Tensor,
    beta: Tensor | None,
    rows: Tensor,
    num_rows: int,
    weights: Tensor,
    *,
    merge: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """A_u of the row of each positive, and λc, the factor of R_u; both (P,).

    With R_u held fixed, the gradient of Σ_i w_i (A_i + λc_i R_u) in the scores is that of the loss.

    Args:
        loss: a, c, ρ and λ.
        pos: (P,), scores of the positives.
        beta: (P,), thresholds of their rows, where the loss uses them.
        rows: (P,), the row of each.
        num_rows: number of rows.
        weights: w (P,).
        merge: merges log-sums of the rows (num_rows,) with those of other processes.

    >>> from talos.losses import Softmax
    >>> first = torch.zeros(2, dtype=torch.int64)
    >>> positive_terms(Softmax(tau=0.5), torch.tensor([1.0, 0.0]), None, first, 1, torch.ones(2))
    (tensor([-2., -0.]), tensor([1., 1.]))
    """
    a, c = loss.positive_part(pos, beta)
    if loss.positive_power != 0:
        rho, own = loss.positive_power, a.detach()
        mean = power_mean(own, rho, rows, num_rows, weights, merge)[rows]
        # the value is the mean; its slope is that of a row's mean in one of its positives, times the weight of the row
        a = mean + torch.exp(rho * (mean - own)) * (a - own)
    return a, loss.negative_weight * c


def _over_ranges(
    sweeps: _Sweeps,
    ranges: list[tuple[int, int]],
    phi: Phi,
    beta: Tensor | None,
    factors: Tensor,
    gradients: dict[str, Tensor],
) -> tuple[Tensor, Tensor]:
    """R over the ranges of all processes, and the gradient in φ's parameters; writes the gradients of this process."""
    group, pieces = sweeps.group, [sweeps.over(*one) for one in ranges]
    own = torch.stack([piece.negatives() for piece in pieces])
    left = group.all_reduce_(own.sum(0))
    if phi.reduction == "log-sum":
        sums = torch.stack([piece.run(phi, beta, None).normalizer for piece in pieces])
        normalizer = torch.logsumexp(sums, dim=0)
        normalizer = normalizer if group.size == 1 else _log_sum_of(group)(normalizer)
        range_weights = torch.exp(sums - normalizer).masked_fill_(left == 0, 0.0)
    else:
        range_weights = own / left.clamp(min=1)
    found = _gradients_of(pieces, phi, beta, factors * range_weights, gradients)
    of_phi = sum((one.parameter_gradient for one in found), sweeps.users.new_zeros(()))
    if phi.reduction == "log-sum":
        return (phi.scale * normalizer).masked_fill(left == 0, 0.0), of_phi
    total = sum((one.normalizer for one in found), torch.zeros_like(left))
    return phi.scale * group.all_reduce_(total) / left.clamp(min=1), of_phi


def _gradients_of(
    pieces: list[_Sweeps],
    phi: Phi | PairPhi,
    beta: Tensor | None,
    weights: Tensor,
    gradients: dict[str, Tensor],
    **how: Any,
) -> list[Swept]:
    """The second pass over all ranges, each with its own weights; writes the gradients."""
    found, user_gradient = [], gradients["user_gradient"].zero_()
    of_items = torch.split(gradients["item_gradient"], [len(piece.items) for piece in pieces])
    for piece, own, memory in zip(pieces, weights, of_items, strict=True):
        of_users = torch.empty_like(user_gradient)
        found.append(piece.run(phi, beta, own, user_gradient=of_users, item_gradient=memory, **how))
        user_gradient += of_users
    return found


def _log_sum_of(group: Group) -> Callable[[Tensor], Tensor]:
    """Merges the log-sums (R,) of all processes."""
    return lambda own: torch.logsumexp(group.all_gather(own), dim=0)


def _pairwise(
    sweeps: _Sweeps, phi: PairPhi, weights: Tensor, k: int | None, gradients: dict[str, Tensor]
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Value, slopes of the positives and K-th scores of h(R_i), see the module."""
    users, positives, ranges = sweeps.users, sweeps.positives, sweeps.ranges(k)
    in_pass = sweeps.samples is None and len(ranges) == 1
    # if the excluded items are the positives, the pass has their scores anyway
    own = in_pass and sweeps.excluded is positives
    given = {"positives": (positives.start, None if own else pair_scores(users, sweeps.items, positives))}
    beta = None if k is None or in_pass else sweeps.kth(k)
    if len(ranges) == 1:
        found = sweeps.run(phi, None, weights, k=k or 0 if in_pass else 0, **given, **gradients)
        inner, slopes = found.sums, found.positive_slopes
        beta = found.kth if k is not None and in_pass else beta
    else:
        inner, slopes = _pairs_over_ranges(sweeps, ranges, phi, weights, given, gradients)
    values = phi.outer(inner.masked_fill(inner == -torch.inf, 0.0))
    return (weights * values).sum(), slopes, beta


def _pairs_over_ranges(
    sweeps: _Sweeps,
    ranges: list[tuple[int, int]],
    phi: PairPhi,
    weights: Tensor,
    given: dict[str, Any],
    gradients: dict[str, Tensor],
) -> tuple[Tensor, Tensor]:
    """R and the slopes of the positives over several ranges: first R of each range, then the gradients."""
    rows, pieces = sweeps.positives.rows, [sweeps.over(*one) for one in ranges]
    inners = torch.stack([piece.run(phi, None, None, **given).sums for piece in pieces])
    lowest = torch.finfo(inners.dtype).min
    # ∂R/∂R(range)
    if phi.reduction == "log-sum":
        inner = torch.logsumexp(inners, dim=0)
        range_weights = torch.exp(inners - inner.clamp(min=lowest))
    elif phi.reduction == "mean":
        counts = torch.stack([piece.negatives() for piece in pieces])
        range_weights = (counts / counts.sum(0).clamp(min=1))[:, rows]
        inner = (range_weights * inners).sum(0)
    else:
        inner, range_weights = inners.sum(0), torch.ones_like(inners)
    with torch.enable_grad():
        leaf = inner.clamp(min=lowest).requires_grad_()
        (outer,) = torch.autograd.grad((weights * phi.outer(leaf)).sum(), leaf)
    found = _gradients_of(pieces, phi, None, outer * range_weights, gradients, inner_only=True, **given)
    return inner, sum((one.positive_slopes for one in found), torch.zeros_like(inner))


@torch.no_grad()
def user_batch_loss(
    user_vectors: Tensor,
    item_vectors: Tensor,
    indptr: Tensor,
    indices: Tensor,
    thresholds: Tensor | None,
    loss: BatchLoss,
    *,
    k: int | None = None,
    reduction: Reduction = "positives",
    excluded: CSR | Literal["positives"] | None = "positives",
    item_ids: Tensor | None = None,
    sample_bounds: Tensor | None = None,
    weights: Tensor | None = None,
    positive_weights: Tensor | None = None,
    normalize_items: bool = False,
    bfloat16: bool = False,
    users_per_chunk: int | None = None,
    item_gradient: Tensor | None = None,
    user_ids: Tensor | None = None,
) -> UserBatch:
    """Loss of a batch of rows with all their positives, and its gradients, in closed form.

    Scores are the dot products of the vectors as given: normalise them first if scores are to be cosines. Half
    precision is converted to float32. The compiled core is used for float32 on the CPU and the losses that it
    implements; calls with `weights` run in torch.

    Args:
        user_vectors: (R, d), one for every row of the batch: a user, or a position in a history.
        item_vectors: (I, d), the whole table.
        indptr: (R + 1,), `indices[indptr[u]:indptr[u + 1]]` are the positives of row u.
        indices: their rows in `item_vectors`, each once per row.
        thresholds: (R,) where the loss uses them.
        loss: a `UserSeparableLoss`, a `PairwiseLoss` or a `ListLoss`. A `ListLoss` is for all items, each counting
            once: no sample, no `weights`, and nothing but the positives excluded.
        k: use each row's exact K-th best score over the whole table as threshold, in place of given ones. Over all
            items it is found in the same pass. Returned as `UserBatch.thresholds`.
        reduction: the mean over `positives` (as in the published code), the mean over rows (`users`) with at least one
            positive (the paper's formula), or the `sum` over positives; each weighted by n^(p-1) of its row, with
            p = `loss.user_power` and n the row's positives.
        excluded: items that are no negatives of each row, in CSR form: the row's `positives`, others, or None.
        item_ids: (n,), a sample of items, shared by all rows, to use as negatives in place of all items; an item
            that is drawn twice counts twice. Or (G, n), G samples.
        sample_bounds: (G + 1,), from 0 to R: rows `sample_bounds[g]` to below `sample_bounds[g + 1]` share sample g. G
            equal numbers of rows if None, of which the last may be smaller.
        weights: (n,) or (I,), how many items each negative stands for; for user-separable losses.
        positive_weights: (P,), how much each positive counts, above 0; 1 if None. A weight of 2 is a positive that
            occurs twice: n becomes the sum of a row's weights, and means over positives are weighted.
        normalize_items: divide the rows of `item_vectors` by their lengths first; the gradient is that of the
            rows as given.
        bfloat16: let the core round the factors of its three products to bfloat16 where the processor multiplies these
            faster. Scores, and thresholds found in the same pass, are then within 2⁻⁷ of the product of the
            lengths; thresholds that take a pass of their own and all sums are float32. No effect in torch
            and for losses whose `needs` say so.
        users_per_chunk: rows at a time; chosen by cache size if None.
        item_gradient: (I, d), memory that the core may return as the items' gradient. A training loop that keeps it
            from step to step saves the system the work of finding fresh pages for every step.
        user_ids: (R,), for losses with `needs.ids`.

    A row without positives contributes nothing. A row without negatives contributes the positives' part.

    >>> from talos.losses import Softmax
    >>> users, items = torch.eye(2), torch.eye(3)[:, :2]
    >>> batch = user_batch_loss(
    ...     users, items, torch.tensor([0, 1, 1]), torch.tensor([0]), None, Softmax(tau=1.0))
    >>> batch.value   # log(e^0 + e^0) - 1
    tensor(-0.3069)
    """
    checks.check_arguments(
        user_vectors,
        item_vectors,
        thresholds,
        loss,
        k=k,
        weights=weights,
        num_candidates=len(item_vectors) if item_ids is None else item_ids.shape[-1],
    )
    require(
        users_per_chunk is None or users_per_chunk >= 1,
        f"got {users_per_chunk}",
        where="users_per_chunk",
        expected="1 or more",
    )
    count, device, num_items = len(user_vectors), item_vectors.device, len(item_vectors)
    positives, positive_weights = checks.check_positives(
        indptr, indices, count, num_items, device, positive_weights
    )
    gone = positives if excluded == "positives" else excluded
    if gone is not None and gone is not positives:
        gone = checks.check_positives(*gone[:2], count, num_items, device, None, name="excluded")[0]
    if isinstance(loss, ListLoss):
        for name, fits in (("item_ids", item_ids is None), ("excluded", gone is positives)):
            require(fits, "is given", where=name, expected=f"nothing: {loss!r} is of whole lists")
    samples = None
    if item_ids is not None:
        samples = checks.check_samples(item_ids, sample_bounds, count, num_items, device)
        gone = None if gone is None else drawn_positives(gone, samples, num_items)
    items = ItemVectors(item_vectors, normalize=normalize_items)
    dtype = items.scored.dtype
    return batch_loss(
        user_vectors,
        items,
        positives,
        gone,
        thresholds,
        loss,
        _weights_of(positives, positive_weights, loss.user_power, reduction).to(dtype),
        k=k,
        samples=samples,
        item_weights=None if weights is None else weights.to(dtype),
        bfloat16=bfloat16,
        users_per_chunk=users_per_chunk,
        item_gradient=item_gradient,
        user_ids=checks.check_ids(user_ids, count, device) if loss.needs.ids else None,
    )


def user_exponent(power: float, reduction: Reduction) -> float:
    """The exponent e with which a user of n positives weighs n^e in a reduced loss, given its `user_power`.

    A mean over users is a mean over positives in which each user weighs n^(p-1) in place of n^p.

    >>> user_exponent(0.5, "positives"), user_exponent(1.0, "users")
    (0.5, 0.0)
    """
    return power - 1 if reduction == "users" else power


def _weights_of(positives: CSR, weights: Tensor | None, power: float, reduction: Reduction) -> Tensor:
    """The weight of each positive in the loss, (P,), in double precision."""
    rows = positives.rows
    own = torch.ones_like(rows, dtype=torch.float64) if weights is None else weights.double()
    mass = own.new_zeros(len(positives.start) - 1).index_add_(0, rows, own)
    found = own * mass[rows] ** (user_exponent(power, reduction) - 1)
    return found if reduction == "sum" else found / found.sum().clamp(min=torch.finfo(found.dtype).tiny)


@torch.no_grad()
def kth_scores(
    user_vectors: Tensor, item_vectors: Tensor, k: int, *, users_per_chunk: int | None = None
) -> Tensor:
    """The K-th best score of every row over all items, (R,), without a rows × items matrix.

    >>> kth_scores(torch.tensor([[1.0]]), torch.tensor([[0.1], [0.9], [0.5]]), k=2)
    tensor([0.5000])
    """
    checks.check_vectors(user_vectors, item_vectors)
    checks.check_k(k, len(item_vectors))
    dtype = torch.promote_types(user_vectors.dtype, torch.float32)
    nothing = torch.zeros(0, dtype=torch.int64)
    sweeps = _Sweeps(
        users=user_vectors.detach().to(dtype).contiguous(),
        items=item_vectors.detach().to(dtype).contiguous(),
        positives=CSR(nothing, nothing, nothing),
        excluded=None,
        samples=None,
        item_weights=None,
        bfloat16=False,
        users_per_chunk=users_per_chunk,
        group=SINGLE_PROCESS,
    )
    return sweeps.kth(k)


class _Differentiable(torch.autograd.Function):
    """Computes the gradients together with the value; the backward pass only hands them out."""

    @staticmethod
    def forward(
        ctx: Any,
        user_vectors: Tensor,
        item_vectors: Tensor,
        compute: Callable[[], UserBatch],
        names: list[str],
        *parameters: Tensor,
    ) -> Tensor:
        batch = compute()
        # None for a parameter without a gradient
        by_parameter = map(batch.parameter_gradients.get, names)
        ctx.save_for_backward(batch.user_gradient, batch.item_gradient, *by_parameter)
        return batch.value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor | None, ...]:
        found = ctx.saved_tensors
        if bool(outer != 1):  # a training step's loss is not scaled: this saves two passes over a table
            found = [None if one is None else (outer * one).to(one.dtype) for one in found]
        return (*found[:2], None, None, *found[2:])


def in_autograd(
    user_vectors: Tensor, item_vectors: Tensor, loss: BatchLoss, compute: Callable[[], UserBatch]
) -> Tensor:
    """The value of a batch, connected to both tables and the loss's learnt parameters.

    `compute` returns the loss and gradients of exactly these vectors.
    """
    named = dict(loss.named_parameters())
    given = user_vectors, item_vectors, compute, list(named), *named.values()
    return cast(Tensor, _Differentiable.apply(*given))  # type: ignore[no-untyped-call]


def differentiable_user_batch_loss(
    user_vectors: Tensor,
    item_vectors: Tensor,
    indptr: Tensor,
    indices: Tensor,
    thresholds: Tensor | None,
    loss: BatchLoss,
    **options: Any,
) -> Tensor:
    """`user_batch_loss` inside autograd: its value, with gradients for both tables and the loss's learnt parameters.

    For a training loop of your own, whatever computes the vectors. The options are those of `user_batch_loss`.

    >>> from talos.losses import Talos
    >>> users, items = torch.randn(2, 4, requires_grad=True), torch.randn(5, 4, requires_grad=True)
    >>> value = differentiable_user_batch_loss(
    ...     users, items, torch.tensor([0, 1, 3]), torch.tensor([0, 1, 2]), torch.zeros(2), Talos(tau=0.1))
    >>> value.backward(); items.grad.shape
    torch.Size([5, 4])
    """
    compute = partial(
        user_batch_loss, user_vectors, item_vectors, indptr, indices, thresholds, loss, **options
    )
    return in_autograd(user_vectors, item_vectors, loss, compute)


def exact_user_batch_loss(
    user_vectors: Tensor,
    item_vectors: Tensor,
    indptr: Tensor,
    indices: Tensor,
    k: int,
    loss: BatchLoss,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """The same with each row's exact K-th best score as threshold: the value, and these thresholds (R,).

    >>> from talos.losses import Talos
    >>> users, items = torch.eye(2), torch.tensor([[0.1, 0.3], [0.9, 0.2], [0.5, 0.1]])
    >>> value, beta = exact_user_batch_loss(
    ...     users, items, torch.tensor([0, 1, 2]), torch.tensor([1, 0]), 2, Talos(tau=0.1))
    >>> beta
    tensor([0.5000, 0.2000])
    """
    batch = user_batch_loss(user_vectors, item_vectors, indptr, indices, None, loss, k=k, **options)
    assert batch.thresholds is not None
    return in_autograd(user_vectors, item_vectors, loss, lambda: batch), batch.thresholds
