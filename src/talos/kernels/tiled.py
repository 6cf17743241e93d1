"""The readable kernel: loss and gradients over all items, tile by tile, in plain torch.

For a batch of users with all their positives a user-separable loss needs every user × item score once. The
scores of a few users at a time are made in tiles of items; what each negative adds and the slope of that are
taken from a tile while it is in cache, and only the slopes of these few users are kept until the sum over
items, by which they are divided, is known. Nothing of size users × items exists, and no autograd graph.

It is the reference for faster ones: `sweep` is the inner function that a compiled core replaces.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, cast

import torch
from torch import Tensor

from talos.errors import ArgumentError
from talos.kernels.checks import check_arguments, check_finite
from talos.kernels.parts import LogSumPart, LossParts, MeanPart, NegativePart

__all__ = ["Sweep", "UserBatch", "best_scores", "kth_scores", "sweep", "sweep_users", "user_batch_loss"]

# Slopes kept at a time: 16 MB in float32, near the cache. Fewer users at a time would be worse: every product
# reads all items.
_KEPT = 2**22
# Columns whose maximum is looked at first when the K-th best of a row is wanted.
_GROUP = 16


@dataclass(frozen=True)
class Sweep:
    """What one pass over the items gives for a few users.

    Attributes:
        negative: R_u, (c,).
        normalizer: log Σφ for "log-sum", Σφ for "mean", (c,).
        user_gradient: Σ_j of coefficient_u · ∂R_u/∂s_uj · v_j, (c, d); 0 where no gradients were asked for.
        parameter_gradients: Σ_u of coefficient_u · ∂R_u/∂p, by parameter.
        thresholds: β_u as it was used, (c,); None where there was none.
    """

    negative: Tensor
    normalizer: Tensor
    user_gradient: Tensor
    parameter_gradients: dict[str, Tensor] = field(default_factory=dict)
    thresholds: Tensor | None = None


@dataclass(frozen=True)
class UserBatch:
    """Loss and gradients of a batch of users.

    Attributes:
        value: the loss, reduced as asked.
        user_gradient: (B, d).
        item_gradient: (I, d).
        parameter_gradients: of the loss's own scalars, by name.
        per_user: mean loss over each user's positives, (B,); 0 for a user without any.
        num_positives: (B,).
        normalizer: Z_u: log Σφ for "log-sum" losses, Σφ for "mean" ones, (B,).
        thresholds: β_u as it was used, (B,); None where there was none.
    """

    value: Tensor
    user_gradient: Tensor
    item_gradient: Tensor
    parameter_gradients: dict[str, Tensor]
    per_user: Tensor
    num_positives: Tensor
    normalizer: Tensor
    thresholds: Tensor | None = None


def sweep(
    user_vectors: Tensor,
    item_vectors: Tensor,
    thresholds: Tensor | None,
    coefficients: Tensor,
    part: NegativePart,
    excluded: tuple[Tensor, Tensor],
    item_gradient: Tensor | None,
    *,
    k: int | None = None,
    weights: Tensor | None = None,
    items_per_tile: int = 4096,
) -> Sweep:
    """One pass over the items for a few users: R_u, and the gradient of Σ_u coefficient_u · R_u.

    Args:
        user_vectors: (c, d).
        item_vectors: candidates (n, d).
        thresholds: (c,) or None.
        coefficients: (c,) what each R_u counts.
        part: φ and how it is summed.
        excluded: rows and columns (m,), (m,) of the pairs that are no negatives, sorted by column. They are
            set to nothing within their tile; subtracting them afterwards would cancel digits.
        item_gradient: (n, d), added to in place; None where no gradients are wanted, and the slopes are not kept.
        k: take each user's K-th best score as threshold: all scores are made first, and stay for the rest.
        weights: (n,) what each candidate counts in the sum.
        items_per_tile: columns handled at a time.

    A user with no negative left has R_u = 0 and no gradient.

    >>> from talos.losses import Softmax
    >>> none = torch.zeros(0, dtype=torch.long)
    >>> users, items = torch.eye(2), torch.zeros(3, 2)
    >>> part = Softmax(tau=1.0).negative_part
    >>> sweep(users, items, None, torch.ones(2), part, (none, none), torch.zeros(3, 2)).negative   # log 3
    tensor([1.0986, 1.0986])
    """
    rows, cols = excluded
    users, candidates = len(user_vectors), len(item_vectors)
    starts = range(0, candidates, items_per_tile)
    cuts = torch.searchsorted(cols, torch.tensor([*starts, candidates], device=cols.device)).tolist()
    kept = k is not None or item_gradient is not None
    slopes = user_vectors.new_empty(
        users, candidates if kept else 0
    )  # with `k` the scores until they are used
    if k is not None:
        for start in starts:
            here = slice(start, min(start + items_per_tile, candidates))
            torch.mm(user_vectors, item_vectors[here].T, out=slopes[:, here])
        thresholds = kth_largest(slopes, k)
    beta = None if thresholds is None else thresholds.unsqueeze(-1)
    total, peaks = user_vectors.new_empty(2, users, len(starts))
    parameter_sums: dict[str, Tensor] = {}
    log_sum = part.reduction == "log-sum"
    # The weight left of each user's candidates; also tells who has none.
    mass = user_vectors.new_full((users,), candidates) if weights is None else weights.sum().expand(users)
    lost = user_vectors.new_ones(len(cols)) if weights is None else weights[cols]
    mass = mass.index_add(0, rows, -lost)

    for tile, start in enumerate(starts):
        here = slice(start, min(start + items_per_tile, candidates))
        scores = user_vectors @ item_vectors[here].T if k is None else slopes[:, here]
        gone = rows[cuts[tile] : cuts[tile + 1]], cols[cuts[tile] : cuts[tile + 1]] - start
        if log_sum:
            kind = cast(LogSumPart, part)
            log_phi, slope = kind.log_phi_and_slope(scores, beta)
            if weights is not None:
                log_phi = log_phi + weights[here].log()
            log_phi[gone] = -math.inf
            # A maximum and a log-sum per tile; the log-sum over tiles of these is the log-sum over items.
            highest = log_phi.amax(dim=-1, keepdim=True).clamp_(min=torch.finfo(total.dtype).min)
            phi = log_phi.sub_(highest).exp_()
            tile_sum = phi.sum(dim=-1)
            total[:, tile] = highest.squeeze(-1) + tile_sum.log()
            if item_gradient is None:
                continue
            # Relative to the tile's maximum, which is no more than the whole sum: `share` below is at most 1.
            peaks[:, tile] = highest.squeeze(-1)
            torch.mul(phi, slope, out=slopes[:, here])
        else:
            mean = cast(MeanPart, part)
            phi, slope = mean.phi(scores, beta), mean.dphi(scores, beta)
            by_parameter = mean.dphi_dparameters(scores, beta)
            for piece in (phi, slope, *by_parameter.values()):
                if weights is not None:
                    piece.mul_(weights[here])
                piece[gone] = 0.0
            total[:, tile] = phi.sum(dim=-1)
            if item_gradient is not None:
                slopes[:, here] = slope
            for name, piece in by_parameter.items():
                so_far = parameter_sums.get(name, 0.0)
                parameter_sums[name] = so_far + piece.sum(dim=-1)

    left = mass > 0
    nothing = torch.zeros_like(coefficients)
    if log_sum:
        normalizer = torch.logsumexp(total, dim=-1)
        negative = torch.where(left, part.scale * normalizer, nothing)
        share = torch.exp(peaks - normalizer.clamp(min=torch.finfo(total.dtype).min).unsqueeze(-1))
        factor = torch.where(left, part.scale * coefficients, nothing).unsqueeze(-1) * share
    else:
        normalizer = total.sum(dim=-1)
        per_item = torch.where(left, part.scale / mass.clamp(min=torch.finfo(mass.dtype).tiny), nothing)
        negative = per_item * normalizer
        factor = (per_item * coefficients).unsqueeze(-1).expand_as(total)
        parameter_sums = {name: (per_item * coefficients * s).sum() for name, s in parameter_sums.items()}

    user_gradient = torch.zeros_like(user_vectors)
    for tile, start in enumerate(starts if item_gradient is not None else ()):
        here = slice(start, min(start + items_per_tile, candidates))
        # the factors go to the short side of each product: a pass over all slopes saved
        weight = factor[:, tile : tile + 1]
        user_gradient.addcmul_(weight, slopes[:, here] @ item_vectors[here])
        item_gradient[here].addmm_(slopes[:, here].T, weight * user_vectors)  # type: ignore[index]  # there is one
    return Sweep(negative, normalizer, user_gradient, parameter_sums, thresholds)


def sweep_users(
    users: Tensor,
    candidates: Tensor,
    thresholds: Tensor | None,
    coefficients: Tensor,
    part: NegativePart,
    positives: tuple[Tensor, Tensor] | None,
    item_gradient: Tensor | None,
    *,
    k: int | None = None,
    item_ids: Tensor | None = None,
    weights: Tensor | None = None,
    users_per_chunk: int | None = None,
    items_per_tile: int = 4096,
) -> Sweep:
    """`sweep` for any number of users (B, d), a few at a time; the results are of all of them.

    Args:
        users: (B, d).
        candidates: (n, d).
        thresholds: (B,) or None.
        coefficients: (B,).
        part: φ and how it is summed.
        positives: (B + 1,) and (P,): CSR of what is left out of the negatives; None to leave out nothing.
        item_gradient: (n, d), added to in place, or None.
        k: take each user's K-th best score as threshold.
        item_ids: the items that the candidates are, where they are a sample.
        weights: (n,).
        users_per_chunk: users at a time; by default as many as keep a few MB of slopes.
        items_per_tile: items at a time.

    >>> from talos.losses import Softmax
    >>> users, items, part = torch.eye(2), torch.zeros(3, 2), Softmax(tau=1.0).negative_part
    >>> sweep_users(users, items, None, torch.ones(2), part, None, None).negative   # log 3
    tensor([1.0986, 1.0986])
    """
    chunk = users_per_chunk or _equal_chunks(len(users), max(16, min(128, _KEPT // max(1, len(candidates)))))
    found = []
    for start in range(0, len(users), chunk):
        some = slice(start, min(start + chunk, len(users)))
        none = torch.zeros(0, dtype=torch.int64, device=users.device)
        excluded = (none, none)
        if positives is not None:
            indptr, indices = positives
            ends = indptr[some.start : some.stop + 1]
            rows = torch.repeat_interleave(torch.arange(some.stop - start, device=users.device), ends.diff())
            excluded = excluded_pairs(rows, indices[int(ends[0]) : int(ends[-1])], item_ids)
        found.append(
            sweep(
                users[some],
                candidates,
                None if thresholds is None else thresholds[some],
                coefficients[some],
                part,
                excluded,
                item_gradient,
                k=k,
                weights=weights,
                items_per_tile=items_per_tile,
            )
        )
    names = found[0].parameter_gradients if found else ()
    beta = [one.thresholds for one in found if one.thresholds is not None]
    return Sweep(
        torch.cat([users.new_empty(0), *(one.negative for one in found)]),
        torch.cat([users.new_empty(0), *(one.normalizer for one in found)]),
        torch.cat([users.new_empty(0, users.shape[1]), *(one.user_gradient for one in found)]),
        {name: torch.stack([one.parameter_gradients[name] for one in found]).sum() for name in names},
        torch.cat(beta) if beta else None,
    )


@torch.no_grad()
def user_batch_loss(
    user_vectors: Tensor,
    item_vectors: Tensor,
    indptr: Tensor,
    indices: Tensor,
    thresholds: Tensor | None,
    loss: LossParts,
    *,
    k: int | None = None,
    reduction: Literal["positives", "users", "sum"] = "positives",
    exclude_positives: bool = True,
    item_ids: Tensor | None = None,
    weights: Tensor | None = None,
    scale: float = 1.0,
    users_per_chunk: int | None = None,
    items_per_tile: int = 4096,
) -> UserBatch:
    """Loss of a batch of users with all their positives, and its gradients, in closed form.

    Scores are the products of the vectors as given: normalise them first where cosines are meant. Half
    precision is computed with in float32.

    Args:
        user_vectors: (B, d), one row per user of the batch.
        item_vectors: (I, d), the whole table.
        indptr: (B + 1,), `indices[indptr[u]:indptr[u + 1]]` are the positives of the u-th row.
        indices: their rows in `item_vectors`, each once per user.
        thresholds: (B,) where the loss has one.
        loss: a `UserSeparableLoss`, or anything of that shape.
        k: take as thresholds, in place of given ones, each user's exact K-th best score over the whole table.
        reduction: the mean over `positives` (the published code), the mean over `users` with at least one
            (the paper's formula), or their `sum` over positives.
        exclude_positives: whether a user's positives are left out of their negatives.
        item_ids: (n,) a sample of items, shared by all users, to take as negatives in place of all items;
            repetitions count again.
        weights: what each of the negatives counts, (n,) or (I,); for samples that are not uniform.
        scale: what the value and all gradients are multiplied by.
        users_per_chunk: users at a time; by default as many as keep a few MB of slopes.
        items_per_tile: items at a time.

    A user without positives contributes nothing. A user without negatives contributes the positives' part.

    >>> from talos.losses import Softmax
    >>> users, items = torch.eye(2), torch.eye(3)[:, :2]
    >>> batch = user_batch_loss(
    ...     users, items, torch.tensor([0, 1, 1]), torch.tensor([0]), None, Softmax(tau=1.0))
    >>> batch.value, batch.num_positives   # log(e^0 + e^0) - 1, and a user with nothing
    (tensor(-0.3069), tensor([1, 0]))
    """
    asked = thresholds if k is None else user_vectors.new_zeros(len(user_vectors))
    check_arguments(user_vectors, item_vectors, indptr, indices, asked, item_ids, weights, loss)
    dtype = torch.promote_types(user_vectors.dtype, torch.float32)
    users, table = user_vectors.to(dtype), item_vectors.to(dtype)
    candidates = table if item_ids is None else table[item_ids]
    weights = None if weights is None else weights.to(dtype)
    part = loss.negative_part
    count = indptr.diff()
    owner = torch.repeat_interleave(torch.arange(len(count), device=count.device), count)
    share = shares(count, reduction, dtype) * scale
    per_positive = share[owner]
    pos = (users[owner] * table[indices]).sum(dim=-1)

    # What each R_u counts may depend on β; where it does not, β can be found on the way.
    constant = constant_weight(loss)
    sums = part.reduction != "constant"
    fused = k is not None and item_ids is None and constant is not None and loss.needs.threshold and sums
    beta = None if thresholds is None or not loss.needs.threshold else thresholds.detach().to(dtype)
    if k is not None:
        beta = users.new_empty(len(users)) if fused else kth_scores(users, table, k)
    if constant is None:
        c = loss.positive_part(pos, None if beta is None else beta[owner])[1].detach()
        coefficients = users.new_zeros(len(users)).index_add(0, owner, per_positive * c)
    else:
        coefficients = constant * share * count

    user_gradient, item_gradient = torch.zeros_like(users), torch.zeros_like(table)
    negative_gradient = item_gradient if item_ids is None else torch.zeros_like(candidates)
    by_parameter: dict[str, Tensor] = {}
    negative = users.new_full((len(users),), part.scale)
    normalizer = torch.zeros_like(negative)
    if sums:
        found = sweep_users(
            users,
            candidates,
            None if fused or not loss.needs.threshold else beta,
            coefficients,
            part,
            (indptr, indices) if exclude_positives else None,
            negative_gradient,
            k=k if fused else None,
            item_ids=item_ids,
            weights=weights,
            users_per_chunk=users_per_chunk,
            items_per_tile=items_per_tile,
        )
        negative, normalizer, user_gradient = found.negative, found.normalizer, found.user_gradient
        by_parameter |= found.parameter_gradients
        beta = found.thresholds if fused else beta
    if item_ids is not None:
        item_gradient.index_add_(0, item_ids, negative_gradient)

    pos_beta = None if beta is None or not loss.needs.threshold else beta[owner]
    a, c = (x.detach() for x in loss.positive_part(pos, pos_beta))
    slope = per_positive * loss.da(pos, pos_beta).detach()
    user_gradient.index_add_(0, owner, slope.unsqueeze(-1) * table[indices])
    item_gradient.index_add_(0, indices, slope.unsqueeze(-1) * users[owner])
    for name, derivative in loss.da_dparameters(pos, pos_beta).items():
        by_parameter[name] = by_parameter.get(name, 0.0) + (per_positive * derivative).sum()
    values = a + c * negative[owner]
    check_finite(values, user_vectors=user_vectors, item_vectors=item_vectors, thresholds=beta)
    per_user = users.new_zeros(len(users)).index_add(0, owner, values) / count.clamp(min=1)
    return UserBatch(
        value=(per_positive * values).sum(),
        user_gradient=user_gradient.to(user_vectors.dtype),
        item_gradient=item_gradient.to(item_vectors.dtype),
        parameter_gradients=by_parameter,
        per_user=per_user,
        num_positives=count,
        normalizer=normalizer,
        thresholds=beta,
    )


@torch.no_grad()
def kth_scores(
    user_vectors: Tensor, item_vectors: Tensor, k: int, *, users_per_chunk: int | None = None
) -> Tensor:
    """The K-th best score of every user over all items, (B,), without a users × items matrix.

    >>> kth_scores(torch.tensor([[1.0]]), torch.tensor([[0.1], [0.9], [0.5]]), k=2)
    tensor([0.5000])
    """
    return best_scores(user_vectors, item_vectors, k, users_per_chunk=users_per_chunk).amin(dim=-1)


@torch.no_grad()
def best_scores(
    user_vectors: Tensor, item_vectors: Tensor, k: int, *, users_per_chunk: int | None = None
) -> Tensor:
    """The K best scores of every user over all items in any order, (B, K), without a users × items matrix.

    >>> best_scores(torch.tensor([[1.0]]), torch.tensor([[0.1], [0.9], [0.5]]), k=2).sort().values
    tensor([[0.5000, 0.9000]])
    """
    if not 1 <= k <= len(item_vectors):
        raise ArgumentError(f"got {k}", where="k", expected=f"1 to {len(item_vectors)}, the number of items")
    dtype = torch.promote_types(user_vectors.dtype, torch.float32)
    items = item_vectors.to(dtype).T
    best = user_vectors.new_empty(len(user_vectors), k, dtype=dtype)
    chunk = users_per_chunk or max(16, min(64, _KEPT // len(item_vectors)))
    for start in range(0, len(user_vectors), chunk):
        scores = user_vectors[start : start + chunk].to(dtype) @ items
        best[start : start + chunk] = largest(scores, k)
    return best


def kth_largest(scores: Tensor, k: int) -> Tensor:
    """The K-th largest of each row (B, n), exactly.

    >>> kth_largest(torch.arange(100.0).unsqueeze(0), 3)
    tensor([97.])
    """
    return largest(scores, k).amin(dim=-1)


def largest(scores: Tensor, k: int) -> Tensor:
    """The K largest of each row (B, n) in any order, from the best groups of sixteen where that is less work.

    The K best of a row lie in at most K groups, and these are among the K groups with the largest maxima.

    >>> largest(torch.arange(100.0).unsqueeze(0), 1)
    tensor([[99.]])
    """
    groups = scores.shape[1] // _GROUP
    if groups >= 2 * k:
        # Group g holds the columns g, g + groups, …: the maxima are of whole rows, and so vectorised.
        grouped = scores[:, : groups * _GROUP].view(len(scores), _GROUP, groups)
        best = torch.topk(grouped.amax(dim=1), k, dim=-1, sorted=False).indices
        inside = grouped.gather(2, best.unsqueeze(1).expand(-1, _GROUP, -1)).flatten(1)
        scores = torch.cat([inside, scores[:, groups * _GROUP :]], dim=1)
    return torch.topk(scores, k, dim=-1, sorted=False).values


def _equal_chunks(users: int, about: int) -> int:
    """How many users at a time: about so many, without a last few that would read all items for themselves."""
    return max(1, -(-users // max(1, round(users / about))))


def constant_weight(loss: LossParts) -> float | None:
    """The weight c of a loss a + c·R if it is the same for every score and threshold, or None.

    Then what each R_u counts is known before thresholds are, and one pass can find both. Asked of the loss by
    evaluating it: a weight that depends on the score or on β differs somewhere on this grid.
    """
    steps = torch.tensor([-1.0, -0.3, 0.4, 1.0])
    s, beta = steps.repeat_interleave(4), steps.repeat(4)
    c = loss.positive_part(s, beta if loss.needs.threshold else None)[1].detach()
    return float(c[0]) if bool((c == c[0]).all()) else None


def shares(count: Tensor, reduction: Literal["positives", "users", "sum"], dtype: torch.dtype) -> Tensor:
    """What one positive of each user counts in the loss, (B,), from how many each has."""
    if reduction == "users":
        return 1 / (count.clamp(min=1).to(dtype) * max(1, int((count > 0).sum())))
    each = 1.0 if reduction == "sum" else 1 / max(1, int(count.sum()))
    return torch.full_like(count, each, dtype=dtype)


def excluded_pairs(rows: Tensor, ids: Tensor, item_ids: Tensor | None) -> tuple[Tensor, Tensor]:
    """The (row, column) pairs at which a user meets a positive of theirs, sorted by column."""
    if item_ids is not None:
        # A positive may have been drawn any number of times: a range of the sorted sample.
        sample, position = torch.sort(item_ids)
        first = torch.searchsorted(sample, ids)
        times = torch.searchsorted(sample, ids, right=True) - first
        rows = torch.repeat_interleave(rows, times)
        offset = torch.arange(len(rows), device=rows.device)
        offset -= torch.repeat_interleave(torch.cumsum(times, 0) - times, times)
        ids = position[torch.repeat_interleave(first, times) + offset]
    columns, order = torch.sort(ids)
    return rows[order], columns
