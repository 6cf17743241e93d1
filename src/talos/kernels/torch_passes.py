"""The passes over the items in plain torch: readable, for every device and precision, and the core's oracle.

Scores of a few users at a time are computed in tiles of items. φ and its slope are taken from a tile while it is in
cache; only the slopes of these few users are kept until the sum over items, by which they are divided, is known.
Nothing of size users × items exists, and no autograd graph.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from talos.data.csr import meetings
from talos.errors import ArgumentError
from talos.kernels.protocols import (
    LogSumPairs,
    LogSumPart,
    MeanPart,
    NegativePart,
    PairSweep,
    PairwisePart,
    Samples,
    SampleScores,
    SumPairs,
    Sweep,
)

__all__ = ["TorchPasses", "best_scores", "largest"]

# Slopes kept at a time: 16 MB in float32, near the cache. Fewer users at a time would be worse: every product
# reads all items.
_KEPT = 2**22
# Columns per group when the K best of a row are selected.
_GROUP = 16
# Lengths below this are raised to it, as in `F.normalize`.
_SHORTEST = 1e-12


class TorchPasses:
    """`Passes` in torch.

    Args:
        item_vectors: (I, d).
        indptr: (B + 1,), CSR of the positives; None where only scores are wanted.
        indices: (P,), rows of `item_vectors`.
        dtype: what to compute in; that of `item_vectors` if None.
        normalize: divide the item vectors by their lengths.
        exclude_positives: whether a user's positives are left out of their negatives.
        samples: items to use as negatives in place of all.
        weights: (n,) or (I,), how much each negative counts; the same for every sample.
        users_per_chunk: users at a time in a sweep; by default as many as keep a few MB of slopes.
        items_per_tile: items at a time.

    >>> from talos.losses import Softmax
    >>> passes = TorchPasses(torch.zeros(3, 2))
    >>> passes.sweep(torch.eye(2), None, Softmax(tau=1.0).negative_part, torch.ones(2)).negative   # log 3
    tensor([1.0986, 1.0986])
    """

    def __init__(
        self,
        item_vectors: Tensor,
        indptr: Tensor | None = None,
        indices: Tensor | None = None,
        *,
        dtype: torch.dtype | None = None,
        normalize: bool = False,
        exclude_positives: bool = True,
        samples: Samples | None = None,
        weights: Tensor | None = None,
        users_per_chunk: int | None = None,
        items_per_tile: int = 4096,
    ) -> None:
        self.rows, self.normalize = item_vectors.detach(), normalize
        rows = self.rows.to(dtype or self.rows.dtype)
        self.table = F.normalize(rows, dim=-1) if normalize else rows
        self.samples = samples
        self.weights = None if weights is None else weights.to(self.table.dtype)
        none = torch.zeros(0, dtype=torch.int64, device=self.table.device)
        self.indices = none if indices is None else indices
        self.indptr = none if indptr is None else indptr
        self.count = none if indptr is None else indptr.diff()
        self.owner = torch.arange(len(self.count), device=self.count.device).repeat_interleave(self.count)
        self.excluded = indptr if exclude_positives else None
        self.users_per_chunk, self.items_per_tile = users_per_chunk, items_per_tile

    def parts(self, num_users: int) -> list[TorchPasses]:
        """These passes alone: a few users at a time need little memory."""
        return [self]

    def num_negatives(self) -> Tensor:
        """How many items of the table are negatives of each user, (B,)."""
        return len(self.table) - (self.count if self.excluded is not None else torch.zeros_like(self.count))

    def best(self, users: Tensor, k: int) -> Tensor:
        """The K best scores (B, K) of every user, in any order."""
        return best_scores(users, self.table, k)

    def kth(self, users: Tensor, k: int) -> Tensor:
        """The K-th best score (B,) of every user."""
        return self.best(users, k).amin(dim=-1)

    def sweep(
        self,
        users: Tensor,
        thresholds: Tensor | None,
        part: NegativePart,
        coefficients: Tensor | None,
        *,
        k: int | None = None,
        kth_is_threshold: bool = False,
    ) -> Sweep:
        """Σφ over each user's negatives and the gradients, a few users at a time."""
        gradient = users.new_empty(0) if coefficients is None else torch.zeros_like(self.table)
        weight = users.new_zeros(len(users)) if coefficients is None else coefficients
        found = []
        for group, sample in self._groups(len(users)):
            items = self.table if sample is None else self.table[sample]
            of_items = (
                None if coefficients is None else gradient if sample is None else torch.zeros_like(items)
            )
            for some in self.chunks(group, _fitting(len(items))):
                beta = None if thresholds is None else thresholds[some]
                found.append(
                    self._sweep_chunk(
                        users[some],
                        beta,
                        weight[some],
                        part,
                        items,
                        self._excluded_pairs(some, sample),
                        of_items,
                        k=k if kth_is_threshold else None,
                    )
                )
            if sample is not None and of_items is not None:
                gradient.index_add_(0, sample, of_items)
        if k is None:
            kth = None
        elif kth_is_threshold:
            kth = torch.cat([users.new_empty(0), *(one.kth for one in found if one.kth is not None)])
        else:
            kth = self.kth(users, k)
        names = found[0].parameter_gradients if found else ()
        return Sweep(
            torch.cat([users.new_empty(0), *(one.negative for one in found)]),
            torch.cat([users.new_empty(0), *(one.normalizer for one in found)]),
            torch.cat([users.new_empty(0, users.shape[1]), *(one.user_gradient for one in found)]),
            gradient,
            {name: torch.stack([one.parameter_gradients[name] for one in found]).sum() for name in names},
            kth,
        )

    def _groups(self, num_users: int) -> Iterable[tuple[slice, Tensor | None]]:
        """Users who have the same candidates, and these: a sample (n,), or None for the whole table."""
        return [(slice(0, num_users), None)] if self.samples is None else self.samples.groups()

    def chunks(self, users: slice, about: int) -> Iterator[slice]:
        """About as many of these users at a time, unless `users_per_chunk` says how many."""
        chunk = self.users_per_chunk or _equal_chunks(users.stop - users.start, about)
        for start in range(users.start, users.stop, chunk):
            yield slice(start, min(start + chunk, users.stop))

    def _sweep_chunk(
        self,
        users: Tensor,
        thresholds: Tensor | None,
        coefficients: Tensor,
        part: NegativePart,
        items: Tensor,
        excluded: tuple[Tensor, Tensor],
        item_gradient: Tensor | None,
        *,
        k: int | None,
    ) -> Sweep:
        """`sweep` for users (c, d) whose slopes are kept together, over the candidates `items` (n, d).

        `excluded` are the rows and columns (m,), (m,) of the pairs that are no negatives, sorted by column. Their φ is
        set to 0 within the tile; subtracting it from the sum afterwards would cancel digits. `item_gradient` (n, d)
        is added to in place; without it slopes are not kept. With `k` all scores are computed before φ, and kept.
        """
        rows, cols = excluded
        weights = self.weights
        count, candidates = len(users), len(items)
        starts = range(0, candidates, self.items_per_tile)
        cuts = torch.searchsorted(cols, torch.tensor([*starts, candidates], device=cols.device)).tolist()
        kept = k is not None or item_gradient is not None
        slopes = users.new_empty(count, candidates if kept else 0)  # with `k` the scores until they are used
        if k is not None:
            for start in starts:
                here = slice(start, min(start + self.items_per_tile, candidates))
                torch.mm(users, items[here].T, out=slopes[:, here])
            thresholds = largest(slopes, k).amin(dim=-1)
        beta = None if thresholds is None else thresholds.unsqueeze(-1)
        total, peaks = users.new_empty(2, count, len(starts))
        parameter_sums: dict[str, Tensor] = {}
        log_sum = part.reduction == "log-sum"
        # The weight of each user's negatives, and who has any: counted, because a difference of sums is seldom 0.
        if weights is None:
            mass = users.new_full((count,), candidates).index_add(0, rows, -users.new_ones(len(cols)))
            left = mass > 0
        else:
            heavy = weights.double()
            mass = heavy.sum().repeat(count).index_add_(0, rows, -heavy[cols]).to(users.dtype)
            some = (weights > 0).long()
            left = some.sum().repeat(count).index_add_(0, rows, -some[cols]) > 0

        for tile, start in enumerate(starts):
            here = slice(start, min(start + self.items_per_tile, candidates))
            scores = users @ items[here].T if k is None else slopes[:, here]
            gone = rows[cuts[tile] : cuts[tile + 1]], cols[cuts[tile] : cuts[tile + 1]] - start
            if log_sum:
                log_phi, slope = cast(LogSumPart, part).log_phi_and_slope(scores, beta)
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
                    parameter_sums[name] = parameter_sums.get(name, 0.0) + piece.sum(dim=-1)

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

        user_gradient = torch.zeros_like(users)
        if item_gradient is None:
            item_gradient = users.new_empty(0)
        else:
            for tile, start in enumerate(starts):
                here = slice(start, min(start + self.items_per_tile, candidates))
                # The factors go to the short side of each product, which saves a pass over all slopes.
                weight = factor[:, tile : tile + 1]
                user_gradient.addcmul_(weight, slopes[:, here] @ items[here])
                item_gradient[here].addmm_(slopes[:, here].T, weight * users)
        return Sweep(negative, normalizer, user_gradient, item_gradient, parameter_sums, thresholds)

    def pair_sweep(
        self,
        users: Tensor,
        part: PairwisePart,
        coefficients: Tensor | None,
        *,
        positives: tuple[Tensor, Tensor] | None = None,
        inner_only: bool = False,
        k: int | None = None,
    ) -> PairSweep:
        """R_i of every positive and the gradients, a few users and a few of their positives at a time."""
        if positives is None:
            positives = self.indptr, self.positive_scores(users)
        start, pos = positives
        inner, wanted = torch.empty_like(pos), coefficients is not None
        slopes = torch.empty_like(pos if wanted else pos[:0])
        user_gradient = users.new_zeros(len(users) if wanted else 0, users.shape[1])
        item_gradient = torch.zeros_like(self.table) if wanted else users.new_empty(0)
        for group, sample in self._groups(len(users)):
            items = self.table if sample is None else self.table[sample]
            of_items = item_gradient if sample is None or not wanted else torch.zeros_like(items)
            for some in self.chunks(group, _fitting(len(items))):
                scores = users[some] @ items.T
                present = self._presence(some, sample)
                by_item = torch.zeros_like(scores) if wanted else scores[:0]
                ends = start[some.start : some.stop + 1]
                rows = torch.arange(len(scores), device=ends.device).repeat_interleave(ends.diff())
                few = max(1, _KEPT // max(1, scores.shape[1]))
                for offset in range(0, len(rows), few):
                    row = rows[offset : offset + few]
                    here = slice(int(ends[0]) + offset, int(ends[0]) + offset + len(row))
                    d = scores[row] - pos[here].unsqueeze(-1)
                    inner[here], slope = _inner_and_slope(part, d, present[row])
                    if coefficients is None:
                        continue
                    weight = coefficients[here]
                    if not inner_only:
                        weight = weight * part.outer_slope(inner[here].clamp(min=torch.finfo(pos.dtype).min))
                    slope.mul_(weight.unsqueeze(-1))
                    slopes[here] = -slope.sum(dim=-1)
                    by_item.index_add_(0, row, slope)
                if wanted:
                    user_gradient[some] = by_item @ items
                    of_items.addmm_(by_item.T, users[some])
            if wanted and sample is not None:
                item_gradient.index_add_(0, sample, of_items)
        return PairSweep(
            inner, slopes, user_gradient, item_gradient, None if k is None else self.kth(users, k)
        )

    def positive_scores(self, users: Tensor) -> Tensor:
        """The scores of the positives, (P,)."""
        return (users[self.owner] * self.table[self.indices]).sum(dim=-1)

    def sample_scores(self, users: Tensor) -> SampleScores:
        """The scores of the positives and of each user's sample."""
        assert self.samples is not None
        negatives = users.new_empty(len(users), self.samples.items.shape[1])
        mask = torch.zeros_like(negatives, dtype=torch.bool)
        for group, sample in self.samples.groups():
            torch.mm(users[group], self.table[sample].T, out=negatives[group])
            mask[group][self._excluded_pairs(group, sample)] = True
        return SampleScores(self.owner, self.positive_scores(users), negatives, mask)

    def _presence(self, users: slice, sample: Tensor | None) -> Tensor:
        """How much each candidate counts as a negative of these users, (c, n): its weight, and 0 for a positive."""
        candidates = len(self.table) if sample is None else len(sample)
        ones = self.table.new_ones(candidates) if self.weights is None else self.weights
        present = ones.repeat(users.stop - users.start, 1)
        present[self._excluded_pairs(users, sample)] = 0.0
        return present

    def _excluded_pairs(self, users: slice, sample: Tensor | None) -> tuple[Tensor, Tensor]:
        """Rows and columns of the candidates that are positives of these users, sorted by column."""
        none = torch.zeros(0, dtype=torch.int64, device=self.table.device)
        if self.excluded is None:
            return none, none
        ends = self.excluded[users.start : users.stop + 1]
        rows = torch.arange(users.stop - users.start, device=ends.device).repeat_interleave(ends.diff())
        columns = self.indices[int(ends[0]) : int(ends[-1])]
        if sample is not None:
            rows, columns = meetings(rows, columns, sample)
        columns, order = torch.sort(columns)
        return rows[order], columns

    def add_positives(
        self, user_gradient: Tensor, item_gradient: Tensor, users: Tensor, slopes: Tensor
    ) -> Tensor:
        """Add the positives' slopes to both gradients; returns that of the item vectors as they were given."""
        user_gradient.index_add_(0, self.owner, slopes.unsqueeze(-1) * self.table[self.indices])
        item_gradient.index_add_(0, self.indices, slopes.unsqueeze(-1) * users[self.owner])
        return self.through_lengths(item_gradient)

    def through_lengths(self, item_gradient: Tensor) -> Tensor:
        """From the gradient with respect to the vectors that are scored to that of the vectors as they were given."""
        if not self.normalize:
            return item_gradient.to(self.rows.dtype)
        # From the gradient g in v = r/|r| to that in r: (g - ⟨g, v⟩v)/|r|; rounded last, so that half precision can
        # overflow in the result only.
        lengths = self.rows.to(item_gradient.dtype).norm(dim=-1, keepdim=True)
        along = (item_gradient * self.table).sum(dim=-1, keepdim=True)
        along.masked_fill_(lengths <= _SHORTEST, 0.0)
        gradient = item_gradient.addcmul(along, self.table, value=-1).div_(lengths.clamp_(min=_SHORTEST))
        return gradient.to(self.rows.dtype)


def _inner_and_slope(part: PairwisePart, d: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
    """R (p,) of differences (p, n) that count as much as `present` says, and ∂R/∂d (p, n)."""
    if part.reduction == "log-sum":
        pairs = cast(LogSumPairs, part)
        log_g = pairs.log_g(d) + present.log()
        inner = torch.logsumexp(log_g, dim=-1)
        share = torch.exp(log_g - inner.clamp(min=torch.finfo(d.dtype).min).unsqueeze(-1))
        return inner, share * pairs.dlog_g(d)
    sums = cast(SumPairs, part)
    if part.reduction == "mean":
        present = present / present.sum(dim=-1, keepdim=True).clamp(min=torch.finfo(d.dtype).tiny)
    return (present * sums.g(d)).sum(dim=-1), present * sums.dg(d)


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


def largest(scores: Tensor, k: int) -> Tensor:
    """The K largest of each row (B, n) in any order, selected from the best groups of sixteen where that is less work.

    The K best of a row lie in at most K groups, and these are among the K groups with the largest maxima.

    >>> largest(torch.arange(100.0).unsqueeze(0), 1)
    tensor([[99.]])
    """
    groups = scores.shape[1] // _GROUP
    if groups >= 2 * k:
        # Group g holds the columns g, g + groups, …: the maxima are taken of whole rows, which vectorises.
        grouped = scores[:, : groups * _GROUP].view(len(scores), _GROUP, groups)
        best = torch.topk(grouped.amax(dim=1), k, dim=-1, sorted=False).indices
        inside = grouped.gather(2, best.unsqueeze(1).expand(-1, _GROUP, -1)).flatten(1)
        scores = torch.cat([inside, scores[:, groups * _GROUP :]], dim=1)
    return torch.topk(scores, k, dim=-1, sorted=False).values


def _fitting(candidates: int) -> int:
    """Users per chunk whose slopes with as many candidates each take a few MB."""
    return max(16, min(128, _KEPT // max(1, candidates)))


def _equal_chunks(users: int, about: int) -> int:
    """Users per chunk so that all chunks are about equal: a last chunk of a few would read all items for those few."""
    return max(1, -(-users // max(1, round(users / about))))
