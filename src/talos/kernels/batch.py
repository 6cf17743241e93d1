"""The user-batch formula: loss and gradients of a batch of users with all their positives, in closed form.

For a loss a(s_ui, β_u) + c(s_ui, β_u)·R_u, where R_u reduces φ over the negatives of user u, the value is

    L = Σ_u share_u Σ_{i ∈ P_u} (A_u + λ c_ui R_u),     A_u = -(1/ρ) log mean_{i ∈ P_u} e^{-ρ a_ui}

where share_u is n_u^(p-1) over the sum of n^p in the batch, and A_u tends to the mean of a for ρ → 0, the usual loss.
With coefficient_u = λ share_u Σ_i c_ui, the gradient is that of Σ_u coefficient_u R_u plus share_u t_ui ∂a_ui/∂s_ui at
every positive, with t_ui = n_u softmax_i(-ρ a_ui) = e^{ρ(A_u - a_ui)}, which is 1 for ρ = 0. `_batch_loss` is the one
place that has this. What goes over all items is done by `Passes`: those of the compiled core where it applies
(`core_passes`), those in readable torch elsewhere (`torch_passes`).

The items may be divided among several processes. Each process then has a range of the items, owns some users of the
batch, and needs to know two numbers per user about the other items: β_u, the K-th best of all scores, and
log Σφ (or Σφ) over all items. That takes up to three passes over its own items, each followed by a small exchange:

1. the K best scores of every user; the K-th of all processes' best is β_u        (only for exact thresholds)
2. log Σφ over its own items; the log-sum of all processes' is that of all items  (not for "mean" parts)
3. gradients, with coefficient_u · Σφ(own items)/Σφ(all items)

and, for ρ > 0, one number per user about the positives of the other processes, log Σ e^{-ρ a}.

The process that has a positive's item handles the positive. Item gradients are complete where the items are; user
gradients are summed by the users' owners. A batch of B users costs each process about B·(2d + K + 4) numbers sent and
received, however many items and processes there are. With a single process all of this reduces to one pass.

A pairwise loss, h(R_i) with R_i reduced over g(s_uj - s_ui), has no part of the user alone. Its value is
Σ_u share_u Σ_{i ∈ P_u} w_i h(R_i), and one pass over all pairs of a positive and an item gives R_i and the gradients
(`_pairwise_losses`). It is not divided among processes: every process would need the scores of all positives. Nor is a
loss of whole lists (`lists`), which has a value for every positive too.

A table so large that a single pass of the core would need too much memory is processed in parts in the same way, one
after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from talos.errors import ArgumentError
from talos.kernels import core_passes, library
from talos.kernels.checks import (
    check_arguments,
    check_finite,
    check_k,
    check_positive_weights,
    check_positives,
    check_vectors,
    checked_indices,
)
from talos.kernels.core_passes import CorePasses
from talos.kernels.lists import list_sweep
from talos.kernels.protocols import (
    BatchLoss,
    Exchange,
    ListLoss,
    LossParts,
    NegativePart,
    PairSweep,
    PairwiseLoss,
    PairwisePart,
    Passes,
    PositiveSweep,
    Samples,
    SampleScores,
    Sweep,
)
from talos.kernels.torch_passes import TorchPasses, best_scores, largest

__all__ = [
    "UserBatch",
    "differentiable_divided_loss",
    "differentiable_user_batch_loss",
    "divided_batch_loss",
    "divided_kth_scores",
    "exact_user_batch_loss",
    "kth_scores",
    "user_batch_loss",
    "user_exponent",
]


@dataclass(frozen=True)
class UserBatch:
    """Loss and gradients of a batch of users.

    Where items are divided among processes, B counts all users of the batch and `own` those that this process owns;
    `value`, `parameter_gradients` and `per_user` are this process's part, to be summed over the processes.

    Attributes:
        value: the reduced loss.
        user_gradient: (own, d), complete.
        item_gradient: (I, d), complete.
        parameter_gradients: of the loss's own parameters, by name.
        per_user: mean loss over each user's positives, (B,); 0 for a user without any.
        num_positives: (B,).
        normalizer: log Σφ for "log-sum" losses, Σφ for "mean" ones, over all items, (B,); 0 where there is no sum, and
            for pairwise losses and those of whole lists, which have no such sum.
        thresholds: β_u as used or found, (own,); None where there was none.
    """

    value: Tensor
    user_gradient: Tensor
    item_gradient: Tensor
    parameter_gradients: dict[str, Tensor]
    per_user: Tensor
    num_positives: Tensor
    normalizer: Tensor
    thresholds: Tensor | None = None


@torch.no_grad()
def user_batch_loss(
    user_vectors: Tensor,
    item_vectors: Tensor,
    indptr: Tensor,
    indices: Tensor,
    thresholds: Tensor | Callable[[SampleScores], Tensor] | None,
    loss: BatchLoss,
    *,
    k: int | None = None,
    reduction: Literal["positives", "users", "sum"] = "positives",
    exclude_positives: bool = True,
    item_ids: Tensor | None = None,
    sample_bounds: Tensor | None = None,
    weights: Tensor | None = None,
    positive_weights: Tensor | None = None,
    normalize_items: bool = False,
    scale: float = 1.0,
    bfloat16: bool = False,
    users_per_chunk: int | None = None,
    items_per_tile: int = 4096,
    item_gradient: Tensor | None = None,
    unit_items: Tensor | None = None,
    user_ids: Tensor | None = None,
) -> UserBatch:
    """Loss of a batch of users with all their positives, and its gradients, in closed form.

    Scores are the dot products of the vectors as given: normalise them first if scores are to be cosines. Half
    precision is converted to float32. The compiled core is used for float32 on the CPU and the losses that it
    implements; calls with `weights` run in torch.

    Args:
        user_vectors: (B, d), one row per user of the batch.
        item_vectors: (I, d), the whole table.
        indptr: (B + 1,), `indices[indptr[u]:indptr[u + 1]]` are the positives of the u-th row.
        indices: their rows in `item_vectors`, each once per user.
        thresholds: (B,) where the loss uses them; or, with `item_ids`, a function that returns them when it is called
            with the scores of the batch, for thresholds that are estimated from samples.
        loss: a `UserSeparableLoss`, a `PairwiseLoss` or a `ListLoss`, or anything with one of these interfaces. A
            `ListLoss` is for all items, each counting once: no sample and no `weights`; positives are what it says.
        k: use each user's exact K-th best score over the whole table as threshold, in place of given ones. Over all
            items it is found in the same pass. Returned as `UserBatch.thresholds`.
        reduction: the mean over `positives` (as in the published code), the mean over `users` with at least one
            positive (the paper's formula), or the `sum` over positives; each weighted by n^(p-1) of its user, with
            p = `loss.user_power` and n the user's positives.
        exclude_positives: whether a user's positives are left out of their negatives.
        item_ids: (n,), a sample of items, shared by all users, to use as negatives in place of all items; an item
            that is drawn twice counts twice. Or (G, n), a sample for each of G groups of users.
        sample_bounds: (G + 1,), from 0 to B: users `sample_bounds[g]` to below `sample_bounds[g + 1]` share sample g. G
            equal parts of the users if None, of which the last may be shorter.
        weights: (n,) or (I,), how much each negative counts; for samples that are not uniform.
        positive_weights: (P,), how much each positive counts, above 0; 1 if None. A weight of 2 is a positive that
            occurs twice: n becomes the sum of a user's weights, and means over positives are weighted.
        normalize_items: divide the rows of `item_vectors` by their lengths first; the gradient is that of the
            rows as given.
        scale: factor of the value and of all gradients, at no cost.
        bfloat16: let the core round the factors of its three products to bfloat16 where the processor multiplies these
            faster. Scores, and thresholds found in the same pass, are then within 2⁻⁷ of the product of the
            lengths; thresholds that take a pass of their own and all sums are float32. No effect in torch
            and for losses whose `needs` say so.
        users_per_chunk: users at a time; chosen by cache size if None.
        items_per_tile: items at a time, in torch.
        item_gradient: (I, d), memory that the core may return as the items' gradient. A training loop that keeps it
            from step to step saves the system the work of finding fresh pages for every step.
        unit_items: (I, d), memory that the core may use for the normalised items, likewise.
        user_ids: (B,), for losses with `needs.ids`.

    A user without positives contributes nothing. A user without negatives contributes the positives' part.

    >>> from talos.losses import Softmax
    >>> users, items = torch.eye(2), torch.eye(3)[:, :2]
    >>> batch = user_batch_loss(
    ...     users, items, torch.tensor([0, 1, 1]), torch.tensor([0]), None, Softmax(tau=1.0))
    >>> batch.value, batch.num_positives   # log(e^0 + e^0) - 1, and a user without positives
    (tensor(-0.3069), tensor([1, 0]))
    """
    if k is not None:
        if thresholds is not None:
            raise ArgumentError("are given together with k", where="thresholds", expected="one of the two")
        check_k(k, len(item_vectors))
    device, num_items = item_vectors.device, len(item_vectors)
    samples = (
        None if item_ids is None else _samples(item_ids, sample_bounds, len(user_vectors), num_items, device)
    )
    estimate = thresholds if callable(thresholds) else None
    if estimate is not None and samples is None:
        raise ArgumentError("is a function", where="thresholds", expected="a tensor where there is no sample")
    given = user_vectors.new_zeros(len(user_vectors)) if callable(thresholds) else thresholds
    sampled = None if samples is None else samples.items.shape[1]
    check_arguments(user_vectors, item_vectors, given, loss, k=k, weights=weights, num_candidates=sampled)
    indptr, indices = check_positives(indptr, indices, len(user_vectors), num_items, device)
    if positive_weights is not None:
        indices, positive_weights = check_positive_weights(positive_weights, indptr, indices, num_items)
    for name, size in (("users_per_chunk", users_per_chunk), ("items_per_tile", items_per_tile)):
        if size is not None and size < 1:
            raise ArgumentError(f"got {size}", where=name, expected="1 or more")
    in_torch = partial(
        TorchPasses,
        item_vectors,
        indptr,
        indices,
        dtype=torch.promote_types(user_vectors.dtype, torch.float32),
        normalize=normalize_items,
        users_per_chunk=users_per_chunk,
    )
    if isinstance(loss, ListLoss):
        for name, fits in (
            ("item_ids", samples is None),
            ("weights", weights is None),
            ("exclude_positives", exclude_positives),
        ):
            if not fits:
                raise ArgumentError("is given", where=name, expected=f"nothing: {loss!r} is of whole lists")
        lists = in_torch()
        ids = _ids(user_ids, len(user_vectors), device) if loss.needs.ids else None
        return _loss_by_positives(
            lists,
            user_vectors,
            loss,
            partial(_list_losses, lists, loss, ids=ids, k=k, bfloat16=bfloat16),
            reduction=reduction,
            scale=scale,
            weights=positive_weights,
        )
    passes: Passes
    part = _part_of(loss)
    if weights is None and _core_applies(part, user_vectors, item_vectors, given):
        user_vectors = user_vectors.contiguous()
        passes = CorePasses(
            item_vectors,
            indptr,
            indices,
            normalize=normalize_items,
            exclude_positives=exclude_positives,
            samples=samples,
            bfloat16=bfloat16,
            users_per_chunk=users_per_chunk,
            item_gradient=item_gradient,
            unit_items=unit_items,
        )
    else:
        passes = in_torch(
            exclude_positives=exclude_positives,
            samples=samples,
            weights=weights,
            items_per_tile=items_per_tile,
        )
    if isinstance(loss, PairwiseLoss):
        return _loss_by_positives(
            passes,
            user_vectors,
            loss,
            partial(_pairwise_losses, passes, loss, k=k, in_one_pass=samples is None),
            reduction=reduction,
            scale=scale,
            weights=positive_weights,
        )
    positive_scores = None
    if estimate is not None:
        scores = passes.sample_scores(user_vectors.detach().to(passes.table.dtype))
        given, positive_scores = estimate(scores), scores.positives
    return _batch_loss(
        passes,
        user_vectors,
        given,
        loss,
        k=k,
        in_one_pass=samples is None,
        reduction=reduction,
        scale=scale,
        local=indptr.diff(),
        weights=positive_weights,
        positive_scores=positive_scores,
    )


def _ids(user_ids: Tensor | None, num_users: int, device: torch.device) -> Tensor:
    """The ids of the users (B,), as a loss asks for them."""
    ids = None if user_ids is None else checked_indices("user_ids", user_ids, None, device)
    if ids is None or len(ids) != num_users:
        found = "is missing" if ids is None else f"has {len(ids)} ids"
        raise ArgumentError(found, where="user_ids", expected=f"an id for each of {num_users} users")
    if len(ids) > 0 and int(ids.min()) < 0:
        raise ArgumentError(f"has {int(ids.min())}", where="user_ids", expected="0 or more")
    return ids


def _samples(
    item_ids: Tensor, bounds: Tensor | None, num_users: int, num_items: int, device: torch.device
) -> Samples:
    """Samples as the passes take them; an error unless every user has one."""
    if item_ids.ndim not in (1, 2) or (item_ids.ndim == 2 and len(item_ids) == 0 and num_users):
        expected = "shape (n,), or (G, n) with a sample for every user"
        raise ArgumentError(f"has shape {tuple(item_ids.shape)}", where="item_ids", expected=expected)
    items = checked_indices("item_ids", item_ids.flatten(), num_items, device)
    items = items.view(item_ids.shape if item_ids.ndim == 2 else (1, -1))
    if bounds is None:
        size = -(-num_users // max(1, len(items)))
        bounds = (torch.arange(len(items) + 1, device=device) * size).clamp_(max=num_users)
    else:
        bounds = checked_indices("sample_bounds", bounds, num_users + 1, device)
        ends = bounds.shape == (len(items) + 1,) and bool((bounds.diff() >= 0).all())
        if not ends or int(bounds[0]) != 0 or int(bounds[-1]) != num_users:
            expected = f"{len(items) + 1} ascending bounds from 0 to {num_users}"
            raise ArgumentError(f"got {bounds.tolist()}", where="sample_bounds", expected=expected)
    return Samples(items, bounds)


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
) -> UserBatch:
    """`user_batch_loss` over items that are divided among processes; a collective call, for the same batch on all.

    Args:
        user_vectors: (own, d), of the users of the batch that this process owns.
        item_vectors: (n, d), this process's items.
        indptr: (B + 1,), of all users of the batch.
        indices: (P,), those of their positives that are this process's items, as rows of `item_vectors`.
        thresholds: (own,) where the loss uses them.
        loss: a `UserSeparableLoss`, or anything with that interface.
        exchange: communication with the other processes.
        degrees: (B,), positives of each user over all processes.
        num_items: of all processes.
        k: use each user's exact K-th best score over all items as threshold, in place of given ones.
        reduction: the mean over `positives`, or over `users` with at least one.
        normalize_items: divide the rows of `item_vectors` by their lengths first; the gradient is that of the
            rows as given.
        bfloat16: as in `user_batch_loss`; the scores of positives stay float32 here.

    >>> from talos.losses import Softmax
    >>> users, items = torch.eye(2), torch.eye(3)[:, :2]
    >>> batch = divided_batch_loss(
    ...     users, items, torch.tensor([0, 1, 1]), torch.tensor([0]), None, Softmax(tau=1.0), ALONE,
    ...     degrees=torch.tensor([1, 0]), num_items=3)
    >>> batch.value   # log(e^0 + e^0) - 1
    tensor(-0.3069)
    """
    check_arguments(user_vectors, item_vectors, thresholds, loss, k=k)
    indptr, indices = check_positives(indptr, indices, len(degrees), len(item_vectors), item_vectors.device)
    dtype = torch.promote_types(user_vectors.dtype, torch.float32)
    passes: Passes
    if _core_applies(loss.negative_part, user_vectors.to(dtype), item_vectors):
        passes = CorePasses(item_vectors, indptr, indices, normalize=normalize_items, bfloat16=bfloat16)
    else:
        passes = TorchPasses(item_vectors, indptr, indices, dtype=dtype, normalize=normalize_items)
    return _batch_loss(
        passes,
        user_vectors,
        thresholds,
        loss,
        k=k,
        reduction=reduction,
        exchange=exchange,
        local=indptr.diff(),
        degrees=degrees,
        num_items=num_items,
    )


def _part_of(loss: LossParts | PairwiseLoss) -> NegativePart | PairwisePart:
    """What a loss sums over the items."""
    return loss.pairwise_part if isinstance(loss, PairwiseLoss) else loss.negative_part


class _Alone:
    """The `Exchange` of a single process: every row is its own."""

    def spread(self, rows: Tensor) -> Tensor:
        return rows

    def collect(self, rows: Tensor) -> Tensor:
        return rows.unsqueeze(0)


ALONE: Final = _Alone()


def _batch_loss(
    passes: Passes,
    user_vectors: Tensor,
    thresholds: Tensor | None,
    loss: LossParts,
    *,
    k: int | None,
    reduction: Literal["positives", "users", "sum"],
    local: Tensor,
    in_one_pass: bool = True,
    scale: float = 1.0,
    exchange: Exchange = ALONE,
    degrees: Tensor | None = None,
    num_items: int = 0,
    weights: Tensor | None = None,
    positive_scores: Tensor | None = None,
) -> UserBatch:
    """The formula, see the module.

    `local` (B,) are the positives of each user on this process, `degrees` those on all. `in_one_pass` says that the
    sweep goes over the whole table, so that it can find K-th scores as well. `weights` (P,) are those of the positives,
    for a single process: n_u is then their sum, and the means over positives are weighted. `positive_scores` (P,) are
    used if they are known already.
    """
    part, has_beta = loss.negative_part, loss.needs.threshold
    rho, factor = loss.positive_power, loss.negative_weight
    degrees = local if degrees is None else degrees
    dtype, owner = passes.table.dtype, passes.owner
    parts = passes.parts(len(local))
    whole = exchange is ALONE and len(parts) == 1
    users = exchange.spread(user_vectors.detach().to(dtype))
    mass = degrees
    if weights is not None:
        weights = weights.to(dtype)
        mass = users.new_zeros(len(users)).index_add_(0, owner, weights)
    share = _shares(mass, user_exponent(loss.user_power, reduction), reduction, dtype) * scale
    per_positive = share[owner] if weights is None else share[owner] * weights

    # The coefficient of R_u may depend on β. Where it does not, β can be found during the sweep.
    weight = constant_weight(loss)
    fused = k is not None and in_one_pass and whole and weight is not None
    fused = fused and part.reduction != "constant"
    if k is not None and not fused:
        thresholds = _kth_over_all(parts, users, k, exchange)
    elif thresholds is not None:
        thresholds = thresholds.detach().to(dtype) if has_beta else None
    beta = exchange.spread(thresholds) if has_beta and thresholds is not None else None

    pos = positive_scores
    if weight is None:
        pos = passes.positive_scores(users) if pos is None else pos
        c = loss.positive_part(pos, None if beta is None else beta[owner])[1].detach()
        coefficients = users.new_zeros(len(users)).index_add_(0, owner, factor * per_positive * c)
        coefficients = exchange.spread(_total(coefficients, exchange))
    else:
        coefficients = factor * weight * share * mass

    if part.reduction == "constant":
        found = _constant_sweep(passes, users, part)
    elif not whole:
        negatives = passes.num_negatives() if exchange is ALONE else num_items - degrees
        found = _sweep_in_parts(parts, users, beta, part, coefficients, exchange, negatives)
    else:
        found = passes.sweep(
            users, beta, part, coefficients, k=k if fused else None, kth_is_threshold=fused and has_beta
        )
    if fused:
        thresholds = found.kth
        beta = thresholds if has_beta else None

    if pos is None:
        pos = found.positive_scores
    if pos is None:
        pos = passes.positive_scores(users)
    pos_beta = None if beta is None else beta[owner]
    a, c = (x.detach() for x in loss.positive_part(pos, pos_beta))
    pulls = per_positive
    if rho != 0:
        mean = _power_mean(a, rho, owner, mass, exchange, weights)[owner]
        a, pulls = mean, per_positive * torch.exp(rho * (mean - a))
    slopes = pulls * loss.da(pos, pos_beta).detach()
    item_gradient = passes.add_positives(found.user_gradient, found.item_gradient, users, slopes)
    by_parameter = dict(found.parameter_gradients)
    for name, derivative in loss.da_dparameters(pos, pos_beta).items():
        by_parameter[name] = by_parameter.get(name, 0.0) + (pulls * derivative).sum()
    values = a + factor * c * found.negative[owner]
    check_finite(user_vectors=users, item_vectors=passes.table, thresholds=beta)
    return UserBatch(
        value=(per_positive * values).sum(),
        user_gradient=_total(found.user_gradient, exchange).to(user_vectors.dtype),
        item_gradient=item_gradient,
        parameter_gradients=by_parameter,
        per_user=users.new_zeros(len(users)).index_add_(
            0, owner, values if weights is None else weights * values
        )
        / torch.where(mass > 0, mass, 1),
        num_positives=degrees,
        normalizer=found.normalizer,
        thresholds=thresholds,
    )


def _loss_by_positives(
    passes: Passes,
    user_vectors: Tensor,
    loss: PairwiseLoss | ListLoss,
    evaluate: Callable[[Tensor, Tensor], PositiveSweep],
    *,
    reduction: Literal["positives", "users", "sum"],
    scale: float,
    weights: Tensor | None,
) -> UserBatch:
    """The formula of a loss that is a sum over positives, see the module; the arguments are those of `_batch_loss`.

    `evaluate` is given the users' vectors (B, d) and the weight of each positive in the loss (P,).
    """
    owner, dtype = passes.owner, passes.table.dtype
    users = user_vectors.detach().to(dtype)
    counts = torch.bincount(owner, minlength=len(users))
    weights = None if weights is None else weights.to(dtype)
    mass = counts if weights is None else users.new_zeros(len(users)).index_add_(0, owner, weights)
    share = _shares(mass, user_exponent(loss.user_power, reduction), reduction, dtype) * scale
    per_positive = share[owner] if weights is None else share[owner] * weights
    found = evaluate(users, per_positive)
    check_finite(user_vectors=users, item_vectors=passes.table)
    of_users = found.values if weights is None else weights * found.values
    return UserBatch(
        value=(per_positive * found.values).sum(),
        user_gradient=found.user_gradient.to(user_vectors.dtype),
        item_gradient=found.item_gradient,
        parameter_gradients=found.parameter_gradients,
        per_user=users.new_zeros(len(users)).index_add_(0, owner, of_users) / torch.where(mass > 0, mass, 1),
        num_positives=counts,
        normalizer=users.new_zeros(len(users)),
        thresholds=found.kth,
    )


def _list_losses(
    passes: TorchPasses,
    loss: ListLoss,
    users: Tensor,
    per_positive: Tensor,
    *,
    ids: Tensor | None,
    k: int | None,
    bfloat16: bool,
) -> PositiveSweep:
    """Values and gradients of a list loss; the items' gradient is that of the rows as they were given."""
    found = list_sweep(passes, users, loss, per_positive, ids=ids, k=k, bfloat16=bfloat16)
    return replace(found, item_gradient=passes.through_lengths(found.item_gradient))


def _pairwise_losses(
    passes: Passes,
    loss: PairwiseLoss,
    users: Tensor,
    per_positive: Tensor,
    *,
    k: int | None,
    in_one_pass: bool,
) -> PositiveSweep:
    """Values and gradients of a pairwise loss, likewise."""
    part = loss.pairwise_part
    parts = passes.parts(len(users))
    found = (
        passes.pair_sweep(users, part, per_positive, k=k if in_one_pass else None)
        if len(parts) == 1
        else _pair_sweep_in_parts(passes, parts, users, part, per_positive)
    )
    thresholds = found.kth
    if k is not None and thresholds is None:
        thresholds = _kth_over_all(parts, users, k, ALONE)
    values = part.outer(found.inner.masked_fill(found.inner == -torch.inf, 0.0))
    item_gradient = passes.add_positives(found.user_gradient, found.item_gradient, users, found.slopes)
    return PositiveSweep(values, found.user_gradient, item_gradient, kth=thresholds)


def _pair_sweep_in_parts(
    passes: Passes, parts: Sequence[Passes], users: Tensor, part: PairwisePart, coefficients: Tensor
) -> PairSweep:
    """`Passes.pair_sweep` over several parts of a table: first R_i of each, then the gradients."""
    owner = passes.owner
    start = F.pad(torch.bincount(owner, minlength=len(users)).cumsum(0), (1, 0))
    positives = start, passes.positive_scores(users)
    inners = torch.stack([one.pair_sweep(users, part, None, positives=positives).inner for one in parts])
    # ∂R_i/∂R_i(part): what a part's own R_i counts in that of all items
    if part.reduction == "log-sum":
        inner = torch.logsumexp(inners, dim=0)
        shares = torch.exp(inners - inner.clamp(min=torch.finfo(users.dtype).min))
    elif part.reduction == "mean":
        counts = torch.stack([one.num_negatives() for one in parts]).to(users.dtype)
        shares = (counts / counts.sum(0).clamp(min=1))[:, owner]
        inner = (shares * inners).sum(0)
    else:
        inner, shares = inners.sum(0), torch.ones_like(inners)
    outer = coefficients * part.outer_slope(inner.clamp(min=torch.finfo(users.dtype).min))
    slopes, user_gradient = torch.zeros_like(inner), torch.zeros_like(users)
    item_gradient, first = users.new_empty(len(passes.table), users.shape[1]), 0
    for one, share in zip(parts, shares, strict=True):
        found = one.pair_sweep(users, part, outer * share, positives=positives, inner_only=True)
        slopes += found.slopes
        user_gradient += found.user_gradient
        item_gradient[first : first + len(one.table)] = found.item_gradient
        first += len(one.table)
    return PairSweep(inner, slopes, user_gradient, item_gradient)


def _constant_sweep(passes: Passes, users: Tensor, part: NegativePart) -> Sweep:
    """R = scale for everybody: no pass is needed."""
    negative = users.new_full((len(users),), part.scale)
    return Sweep(
        negative, torch.zeros_like(negative), torch.zeros_like(users), torch.zeros_like(passes.table)
    )


def _sweep_in_parts(
    parts: Sequence[Passes],
    users: Tensor,
    beta: Tensor | None,
    part: NegativePart,
    coefficients: Tensor,
    exchange: Exchange,
    negatives: Tensor,
) -> Sweep:
    """`Passes.sweep` with R_u over the parts here and on all other processes; `negatives` (B,) counts those of all.

    The gradients are this process's: all of its items', and of the users' what its items contribute.
    """
    mass = negatives.to(users.dtype)
    if part.reduction == "log-sum":
        sums = torch.stack([one.sweep(users, beta, part, None).normalizer for one in parts])
        local = torch.logsumexp(sums, dim=0)
        normalizer = exchange.spread(torch.logsumexp(exchange.collect(local), dim=0))
        negative = (part.scale * normalizer).masked_fill_(mass == 0, 0.0)
        shares = torch.exp(sums - normalizer).masked_fill_(mass == 0, 0.0)
    else:
        shares = torch.stack([one.num_negatives() for one in parts]).to(users.dtype) / mass.clamp(min=1)
    user_gradient, sums = torch.zeros_like(users), users.new_zeros(len(users))
    item_gradient = users.new_empty(0)
    if len(parts) > 1:
        item_gradient = users.new_empty(sum(len(one.table) for one in parts), users.shape[1])
    by_parameter: dict[str, Tensor] = {}
    first = 0
    for one, share in zip(parts, shares, strict=True):
        found = one.sweep(users, beta, part, coefficients * share)
        user_gradient += found.user_gradient
        sums += found.normalizer
        if len(parts) > 1:
            item_gradient[first : first + len(one.table)] = found.item_gradient
            first += len(one.table)
        else:
            item_gradient = found.item_gradient
        for name, gradient in found.parameter_gradients.items():
            by_parameter[name] = by_parameter.get(name, 0.0) + gradient
    if part.reduction == "mean":
        normalizer = exchange.spread(_total(sums, exchange))
        negative = part.scale * normalizer / mass.clamp(min=1)
    # No scores of positives: a sweep's may be rounded to bfloat16.
    return Sweep(negative, normalizer, user_gradient, item_gradient, by_parameter)


def _kth_over_all(parts: Sequence[Passes], users: Tensor, k: int, exchange: Exchange) -> Tensor:
    """The K-th best score over the parts here and on all other processes (own,), from the K best of each."""
    if exchange is ALONE and len(parts) == 1:
        return parts[0].kth(users, k)
    best = users.new_empty(len(users), 0)
    for one in parts:
        if len(one.table):
            best = torch.cat([best, one.best(users, min(k, len(one.table)))], dim=1)
            best = largest(best, min(k, best.shape[1]))
    # A process with fewer than K items sends fewer scores.
    theirs = exchange.collect(F.pad(best, (0, k - best.shape[1]), value=-torch.inf))
    return largest(theirs.movedim(0, 1).flatten(1), k).amin(dim=-1)


def _total(rows: Tensor, exchange: Exchange) -> Tensor:
    """The sum over processes (own, …) of their values (B, …)."""
    parts = exchange.collect(rows)
    return parts[0] if len(parts) == 1 else parts.sum(0)


def _power_mean(
    a: Tensor, rho: float, owner: Tensor, mass: Tensor, exchange: Exchange, weights: Tensor | None
) -> Tensor:
    """A_u = -(1/ρ) log mean_i e^{-ρ a_i} of every user, (B,); its derivative in a_i is e^{ρ(A_u - a_i)} w_i/n_u."""
    highest = a.new_full(mass.shape, -torch.inf).scatter_reduce_(0, owner, -rho * a, "amax")
    terms = torch.exp(-rho * a - highest[owner])
    total = a.new_zeros(mass.shape).index_add_(0, owner, terms if weights is None else weights * terms)
    local = torch.where(total > 0, highest + total.log(), -torch.inf)
    whole = exchange.spread(torch.logsumexp(exchange.collect(local), dim=0))
    return torch.where(mass > 0, (mass.to(a.dtype).log() - whole) / rho, 0.0)


def user_exponent(power: float, reduction: Literal["positives", "users", "sum"]) -> float:
    """The exponent e with which a user of n positives weighs n^e in a reduced loss, given its `user_power`.

    A mean over users is a mean over positives in which each user weighs n^(p-1) in place of n^p.

    >>> user_exponent(0.5, "positives"), user_exponent(1.0, "users")
    (0.5, 0.0)
    """
    return power - 1 if reduction == "users" else power


def _shares(
    count: Tensor, exponent: float, reduction: Literal["positives", "users", "sum"], dtype: torch.dtype
) -> Tensor:
    """The weight of one positive of each user in the loss, (B,), given how many (or how much) each user has."""
    if reduction == "sum" and exponent == 1:
        return torch.ones_like(count, dtype=dtype)
    if exponent == 1:
        return torch.full_like(count, 1 / (float(count.sum()) or 1.0), dtype=dtype)
    some = torch.where(count > 0, count, 1).to(torch.float64)
    if reduction == "sum":
        return (some ** (exponent - 1)).to(dtype)
    total = float((some**exponent * (count > 0)).sum()) or 1.0  # 0: there are no positives to share
    return (some ** (exponent - 1) / total).to(dtype)


def constant_weight(loss: LossParts) -> float | None:
    """The weight c of a loss a + c·R if it is the same for every score and threshold, else None.

    If it is, the coefficients of R_u are known before the thresholds are, and one pass can find both. Determined by
    evaluating the loss: a weight that depends on the score or on β differs somewhere on this grid.
    """
    steps = torch.tensor([-1.0, -0.3, 0.4, 1.0])
    s, beta = steps.repeat_interleave(4), steps.repeat(4)
    c = loss.positive_part(s, beta if loss.needs.threshold else None)[1].detach()
    return float(c[0]) if bool((c == c[0]).all()) else None


def _core_applies(part: NegativePart | PairwisePart | None, *tensors: Tensor | None) -> bool:
    return core_passes.supports(part, *tensors) and library.available()


@torch.no_grad()
def kth_scores(
    user_vectors: Tensor, item_vectors: Tensor, k: int, *, users_per_chunk: int | None = None
) -> Tensor:
    """The K-th best score of every user over all items, (B,), without a users × items matrix.

    >>> kth_scores(torch.tensor([[1.0]]), torch.tensor([[0.1], [0.9], [0.5]]), k=2)
    tensor([0.5000])
    """
    check_vectors(user_vectors, item_vectors)
    check_k(k, len(item_vectors))
    if _core_applies(None, user_vectors, item_vectors):
        passes = CorePasses(item_vectors, users_per_chunk=users_per_chunk)
        return _kth_over_all(passes.parts(len(user_vectors)), user_vectors, k, ALONE)
    return best_scores(user_vectors, item_vectors, k, users_per_chunk=users_per_chunk).amin(dim=-1)


@torch.no_grad()
def divided_kth_scores(user_vectors: Tensor, item_vectors: Tensor, k: int, exchange: Exchange) -> Tensor:
    """The K-th best score over all processes' items, of the users (own, d) that this process owns, (own,).

    >>> divided_kth_scores(torch.tensor([[1.0]]), torch.tensor([[0.1], [0.9], [0.5]]), 2, ALONE)
    tensor([0.5000])
    """
    check_vectors(user_vectors, item_vectors)
    users = exchange.spread(user_vectors)
    passes = (CorePasses if _core_applies(None, users, item_vectors) else TorchPasses)(item_vectors)
    return _kth_over_all(passes.parts(len(users)), users, k, exchange)


class _Differentiable(torch.autograd.Function):
    """Computes the gradients together with the value; the backward pass only hands them out."""

    @staticmethod
    def forward(
        ctx: Any,
        user_vectors: Tensor,
        item_vectors: Tensor,
        compute: Callable[[Tensor, Tensor], UserBatch],
        names: list[str],
        *parameters: Tensor,
    ) -> tuple[Tensor, Tensor]:
        batch = compute(user_vectors, item_vectors)
        zero = batch.value.new_zeros(())
        by_parameter = [batch.parameter_gradients.get(name, zero) for name in names]
        ctx.save_for_backward(batch.user_gradient, batch.item_gradient, *by_parameter)
        ctx.parameter_types = [p.dtype for p in parameters]
        beta = batch.value.new_empty(0) if batch.thresholds is None else batch.thresholds.clone()
        ctx.mark_non_differentiable(beta)
        return batch.value, beta

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        users, items, *parameters = ctx.saved_tensors
        if bool(outer != 1):  # a training step's loss is not scaled: this saves two passes over a table
            users, items = (outer * users).to(users.dtype), (outer * items).to(items.dtype)
        scaled = [
            (outer * gradient).to(dtype)
            for gradient, dtype in zip(parameters, ctx.parameter_types, strict=True)
        ]
        return (users, items, None, None, *scaled)


def _in_autograd(
    compute: Callable[..., UserBatch],
    user_vectors: Tensor,
    item_vectors: Tensor,
    loss: BatchLoss,
    **arguments: Any,
) -> tuple[Tensor, Tensor]:
    """Value and thresholds of a batch, connected to both tables and the loss's learnt scalars."""
    named = list(loss.named_parameters())
    found: tuple[Tensor, Tensor] = _Differentiable.apply(  # type: ignore[no-untyped-call]
        user_vectors,
        item_vectors,
        partial(compute, loss=loss, **arguments),
        [name for name, _ in named],
        *(value for _, value in named),
    )
    return found


def differentiable_user_batch_loss(
    user_vectors: Tensor,
    item_vectors: Tensor,
    indptr: Tensor,
    indices: Tensor,
    thresholds: Tensor | Callable[[SampleScores], Tensor] | None,
    loss: BatchLoss,
    **options: Any,
) -> Tensor:
    """`user_batch_loss` inside autograd: its value, with gradients for both tables and the loss's learnt scalars.

    For backbones that compute the vectors themselves. The options are those of `user_batch_loss`.

    >>> from talos.losses import Talos
    >>> users, items = torch.randn(2, 4, requires_grad=True), torch.randn(5, 4, requires_grad=True)
    >>> value = differentiable_user_batch_loss(
    ...     users, items, torch.tensor([0, 1, 3]), torch.tensor([0, 1, 2]), torch.zeros(2), Talos(tau=0.1))
    >>> value.backward(); items.grad.shape
    torch.Size([5, 4])
    """
    given = {"indptr": indptr, "indices": indices, "thresholds": thresholds, **options}
    return _in_autograd(user_batch_loss, user_vectors, item_vectors, loss, **given)[0]


def exact_user_batch_loss(
    user_vectors: Tensor,
    item_vectors: Tensor,
    indptr: Tensor,
    indices: Tensor,
    k: int,
    loss: BatchLoss,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """The same with each user's exact K-th best score as threshold: the value, and these thresholds (B,).

    >>> from talos.losses import Talos
    >>> users, items = torch.eye(2), torch.tensor([[0.1, 0.3], [0.9, 0.2], [0.5, 0.1]])
    >>> value, beta = exact_user_batch_loss(
    ...     users, items, torch.tensor([0, 1, 2]), torch.tensor([1, 0]), 2, Talos(tau=0.1))
    >>> beta
    tensor([0.5000, 0.2000])
    """
    given = {"indptr": indptr, "indices": indices, "thresholds": None, "k": k, **options}
    return _in_autograd(user_batch_loss, user_vectors, item_vectors, loss, **given)


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
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """`divided_batch_loss` inside autograd: this process's part of the value, and the thresholds (own,) of its users.

    >>> from talos.losses import Talos
    >>> users, items = torch.eye(2), torch.tensor([[0.1, 0.3], [0.9, 0.2], [0.5, 0.1]], requires_grad=True)
    >>> value, beta = differentiable_divided_loss(
    ...     users, items, torch.tensor([0, 1, 2]), torch.tensor([1, 0]), None, Talos(tau=0.1), ALONE,
    ...     degrees=torch.tensor([1, 1]), num_items=3, k=2)
    >>> beta, items.grad
    (tensor([0.5000, 0.2000]), None)
    """
    positives = {"indptr": indptr, "indices": indices, "degrees": degrees}
    given = {"thresholds": thresholds, "exchange": exchange, "num_items": num_items, **positives, **options}
    return _in_autograd(divided_batch_loss, user_vectors, item_vectors, loss, **given)
