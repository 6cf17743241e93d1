"""The passes over the items by the compiled core, and the calls that hand it its arguments."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from typing import Final, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from talos.errors import ArgumentError
from talos.kernels import library
from talos.kernels.core_samples import (
    checked_samples,
    core_sample_scores,
    drawn_positives,
    in_groups,
    pair_scores,
)
from talos.kernels.library import Positives, Rows, Task
from talos.kernels.protocols import (
    MeanPart,
    NegativePart,
    PairSweep,
    PairwisePart,
    Samples,
    SampleScores,
    Sweep,
)

__all__ = [
    "CorePasses",
    "CoreSweep",
    "add_positives_",
    "core_pair_sweep",
    "core_sweep",
    "supports",
    "unit_rows",
    "workspace_bytes",
]

# kind → the core's number for it (`Kind` in core/sweep.h)
_KINDS: Final = {
    "exp": 1,
    "sigmoid-power": 2,
    "hinge": 3,
    "partial-auc": 4,
    "softplus-pairs": 5,
    "sigmoid-power-pairs": 6,
    "sigmoid-rank-pairs": 7,
}
# How many trailing parameters the core requires to be positive (default: all of them).
_POSITIVE: Final = {"partial-auc": 2}
# Above this much workspace the items are processed in parts, at the price of computing scores again for each pass.
_MOST_BYTES: Final = 1 << 29
# Users per block of such parts, and items of the smallest ones.
_LARGE_BLOCK: Final = 256
_FEWEST_ITEMS: Final = 1024
# Sums per user that the core returns for a part with learnt scalars.
_MOMENTS: Final = 2


def supports(part: NegativePart | PairwisePart | None, *tensors: Tensor | None) -> bool:
    """Whether the core implements this part of a loss and takes these tensors: float32 on the CPU.

    `part` is None for K-th scores alone. Does not tell whether the core is built, see `library.available`.

    >>> from talos.losses import Softmax
    >>> vectors = torch.zeros(2, 3)
    >>> supports(Softmax().negative_part, vectors), supports(Softmax().negative_part, vectors.double())
    (True, False)
    """
    if part is not None:
        if part.kind not in _KINDS:
            return False
        params = part.params
        if any(not p > 0 for p in params[len(params) - _POSITIVE.get(part.kind, len(params)) :]):
            return False
    return all(t is None or (t.dtype == torch.float32 and t.device.type == "cpu") for t in tensors)


class CorePasses:
    """`Passes` by the compiled core, for arguments that it `supports`.

    Args:
        item_vectors: (I, d).
        indptr: (B + 1,), CSR of the positives as `check_positives` returns it; None where only scores are wanted.
        indices: (P,), rows of `item_vectors`; sorted here within each user if they don't ascend.
        normalize: divide the item vectors by their lengths.
        exclude_positives: whether a user's positives are left out of their negatives.
        samples: items to use as negatives in place of all.
        bfloat16: see `core_sweep`.
        users_per_chunk: users per block of a sweep; chosen by cache size if None.
        item_gradient: (I, d), memory for the gradient of a sweep over all items; new memory if None.
        unit_items: (I, d), memory for the normalised vectors; new memory if None.
    """

    def __init__(
        self,
        item_vectors: Tensor,
        indptr: Tensor | None = None,
        indices: Tensor | None = None,
        *,
        normalize: bool = False,
        exclude_positives: bool = True,
        samples: Samples | None = None,
        bfloat16: bool = False,
        users_per_chunk: int | None = None,
        item_gradient: Tensor | None = None,
        unit_items: Tensor | None = None,
    ) -> None:
        self.samples = samples
        self.shared_by_all = samples is not None and len(samples.items) == 1
        self.item_gradient = None if self.shared_by_all else item_gradient
        self.table, self.lengths = item_vectors.detach().contiguous(), None
        self.indptr = torch.zeros(1, dtype=torch.int64) if indptr is None else indptr
        self.indices = torch.zeros(0, dtype=torch.int64) if indices is None else indices
        if normalize:
            self.table, self.lengths = unit_rows(self.table, out=unit_items)
        self.count = self.indptr.diff()
        self.owner = torch.arange(len(self.count)).repeat_interleave(self.count)
        if not bool(((self.indices.diff() > 0) | (self.owner.diff() > 0)).all()):
            self.indices = self.indices[torch.argsort(self.owner * len(self.table) + self.indices)]
        # A sample that all users share is an item table like any other, and is swept by all threads. Of several samples
        # each is swept by one thread.
        self.candidates = self.table
        if samples is not None and self.shared_by_all:
            self.candidates = self.table[samples.items[0]]
        self.excluded: tuple[Tensor, Tensor] | None = None
        if exclude_positives and indptr is not None:
            self.excluded = (self.indptr, self.indices)
            if samples is not None:
                self.excluded = drawn_positives(self.indptr, self.indices, samples, len(self.table))
        self.bfloat16, self.users_per_chunk = bfloat16, users_per_chunk

    def parts(self, num_users: int) -> list[CorePasses]:
        """Passes over ranges of the table for which the core's workspace is bounded; a sample is never split."""
        items = len(self.table)
        if self.samples is not None or self._workspace(num_users, items, self.users_per_chunk) <= _MOST_BYTES:
            return [self]
        # Each part computes its scores again for every pass. So the parts may as well be small, with large blocks.
        each, block = items, self.users_per_chunk or _LARGE_BLOCK
        while each > _FEWEST_ITEMS and self._workspace(num_users, each, block) > _MOST_BYTES:
            each = -(-each // 2)
        return [self._part(start, min(start + each, items)) for start in range(0, items, each)]

    def _workspace(self, num_users: int, items: int, users_per_block: int | None) -> int:
        return workspace_bytes(
            num_users,
            items,
            self.table.shape[1],
            k=items,
            bfloat16=self.bfloat16,
            users_per_block=users_per_block,
        )

    def _part(self, start: int, stop: int) -> CorePasses:
        """Passes over the items from `start` to `stop`."""
        here = (self.indices >= start) & (self.indices < stop)
        counts = torch.bincount(self.owner[here], minlength=len(self.count))
        return CorePasses(
            self.table[start:stop],
            F.pad(counts.cumsum(0), (1, 0)),
            self.indices[here] - start,
            exclude_positives=self.excluded is not None,
            bfloat16=self.bfloat16,
            users_per_chunk=self.users_per_chunk or _LARGE_BLOCK,
        )

    def num_negatives(self) -> Tensor:
        """How many items of the table are negatives of each user, (B,)."""
        return len(self.table) - (self.count if self.excluded is not None else torch.zeros_like(self.count))

    def best(self, users: Tensor, k: int) -> Tensor:
        """The K best scores (B, K) of every user, in any order; in the arithmetic of the sweep."""
        found = core_sweep(
            users,
            self.table,
            part=None,
            k=k,
            keep_best=True,
            bfloat16=self.bfloat16,
            users_per_block=self.users_per_chunk,
        ).best
        assert found is not None
        return found

    def kth(self, users: Tensor, k: int) -> Tensor:
        """The K-th best score (B,) of every user, in float32."""
        found = core_sweep(users, self.table, part=None, k=k, users_per_block=self.users_per_chunk).kth
        assert found is not None
        return found

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
        """Σφ over each user's negatives, the gradients and the K-th best scores, in one pass."""
        found = core_sweep(
            users,
            self.candidates,
            part=part,
            coefficients=coefficients,
            thresholds=thresholds,
            k=k or 0,
            kth_is_threshold=kth_is_threshold,
            gradients=coefficients is not None,
            excluded=self.excluded,
            users_per_block=self.users_per_chunk,
            bfloat16=self.bfloat16,
            item_gradient=self.item_gradient,
            samples=None if self.shared_by_all else self.samples,
        )
        positive_scores = found.excluded_scores if self.samples is None else None  # of the sampled ones alone
        item_gradient = found.item_gradient if coefficients is None else self._of_table(found.item_gradient)
        by_parameter = {}
        if found.moments is not None:
            by_parameter = dict(cast(MeanPart, part).from_moments(found.moments.sum(0)))
        return Sweep(
            found.negative,
            found.normalizer,
            found.user_gradient,
            item_gradient,
            by_parameter,
            found.kth,
            positive_scores,
        )

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
        """R_i of every positive, the gradients and the K-th best scores, in one pass."""
        start, scores = positives or (self.indptr, None)
        if scores is None and (self.excluded is None or self.samples is not None):
            scores = self.positive_scores(users)
        found = core_pair_sweep(
            users,
            self.candidates,
            start,
            scores,
            part=part,
            coefficients=coefficients,
            inner_only=inner_only,
            k=k or 0,
            excluded=self.excluded,
            users_per_block=self.users_per_chunk,
            bfloat16=self.bfloat16,
            item_gradient=self.item_gradient,
            samples=None if self.shared_by_all else self.samples,
        )
        if coefficients is None:
            return found
        return replace(found, item_gradient=self._of_table(found.item_gradient))

    def _of_table(self, gradient: Tensor) -> Tensor:
        """The gradient of the whole table, (I, d), from that of the candidates."""
        if self.samples is None or not self.shared_by_all:
            return gradient
        return torch.zeros_like(self.table).index_add_(0, self.samples.items[0], gradient)

    def positive_scores(self, users: Tensor) -> Tensor:
        """The scores of the positives, (P,)."""
        return pair_scores(users, self.table, self.indptr, self.indices)

    def sample_scores(self, users: Tensor) -> SampleScores:
        """The scores of the positives and of each user's sample."""
        assert self.samples is not None
        negatives = core_sample_scores(users, self.table, self.samples)
        mask = torch.zeros(negatives.shape, dtype=torch.bool)
        if self.excluded is not None:
            start, places = self.excluded
            mask[torch.arange(len(users)).repeat_interleave(start.diff()), places] = True
        return SampleScores(self.owner, self.positive_scores(users), negatives, mask)

    def add_positives(
        self, user_gradient: Tensor, item_gradient: Tensor, users: Tensor, slopes: Tensor
    ) -> Tensor:
        """Add the positives' slopes to both gradients; returns that of the item vectors as they were given."""
        add_positives_(
            user_gradient,
            item_gradient,
            users,
            self.table,
            self.indptr,
            self.indices,
            slopes,
            lengths=self.lengths,
        )
        return item_gradient


@dataclass(frozen=True)
class CoreSweep:
    """What the core returns for a batch of users; what was not requested is None or empty.

    Attributes:
        negative: R_u, (B,).
        normalizer: log Σφ for "log-sum", Σφ for "mean", (B,).
        user_gradient: of Σ_u coefficient_u · R_u, (B, d).
        item_gradient: of the same, (n, d).
        kth: K-th best scores, (B,).
        best: the K best scores in any order, (B, K).
        excluded_scores: scores of the excluded pairs, (m,).
        moments: for a part with learnt scalars, (B, 2): from their sum over users `MeanPart.from_moments` computes
            the gradients of Σ_u coefficient_u · R_u in these scalars.
    """

    negative: Tensor
    normalizer: Tensor
    user_gradient: Tensor
    item_gradient: Tensor
    kth: Tensor | None
    best: Tensor | None
    excluded_scores: Tensor | None
    moments: Tensor | None


def core_sweep(
    user_vectors: Tensor,
    item_vectors: Tensor,
    *,
    part: NegativePart | None,
    coefficients: Tensor | None = None,
    thresholds: Tensor | None = None,
    k: int = 0,
    kth_is_threshold: bool = False,
    keep_best: bool = False,
    gradients: bool = True,
    excluded: tuple[Tensor, Tensor] | None = None,
    threads: int | None = None,
    users_per_block: int | None = None,
    level: str | None = None,
    bfloat16: bool = False,
    item_gradient: Tensor | None = None,
    samples: Samples | None = None,
) -> CoreSweep:
    """One pass of the core over all items, for a whole batch of users.

    Args:
        user_vectors: (B, d), float32.
        item_vectors: (n, d), float32.
        part: φ; None for the K-th scores alone.
        coefficients: (B,), the factor of each R_u in the gradients; not needed without gradients.
        thresholds: (B,), or None for 0.
        k: find the K-th best scores, if above 0.
        kth_is_threshold: use them as β.
        keep_best: return all K best scores, not only the K-th.
        gradients: whether to compute them; without them a pass is only the scores and φ.
        excluded: (B + 1,) and (m,): CSR of the pairs that are no negatives, ascending within each user.
        threads: as many as torch uses if None. For a given number, results are identical from run to run.
        users_per_block: chosen by cache size if None.
        level: one of `library.levels()`; the highest if None.
        bfloat16: round the factors of all products to bfloat16 (8 bits of precision, sums in float32), at twice the
            speed where the processor has instructions for it; see `library.has_bfloat16`.
        item_gradient: (n, d), float32 memory for the items' gradient; new memory if None.
        samples: go over these items in place of all; `excluded` are then places in the user's sample, and results do
            not depend on the number of threads. Not together with `k`.

    >>> found = core_sweep(torch.tensor([[1.0]]), torch.tensor([[0.1], [0.9], [0.5]]), part=None, k=2) \
            if library.available() else None
    >>> found is None or found.kth.tolist() == [0.5]
    True
    """
    core, at = library.level_of(level)
    num_items, dim = item_vectors.shape
    num_users = len(user_vectors)
    users = library.floats("user_vectors", user_vectors, num_users, dim)
    items = library.floats("item_vectors", item_vectors, num_items, dim)
    gradients = gradients and part is not None
    if gradients and coefficients is None:
        raise ArgumentError("is missing", where="coefficients", expected=f"shape ({num_users},)")
    most, columns = (num_items, num_items) if samples is None else (0, samples.items.shape[1])
    if not 0 <= k <= most:
        raise ArgumentError(f"got {k}", where="k", expected=f"0 to {most}, the number of items")

    def sized(wanted: bool, *shape: int) -> Tensor:
        return users.new_empty(shape if wanted else 0)

    has_moments = gradients and part is not None and part.kind == "partial-auc"
    result = CoreSweep(
        negative=sized(part is not None, num_users),
        normalizer=sized(part is not None, num_users),
        user_gradient=sized(gradients, num_users, dim),
        item_gradient=sized(gradients, num_items, dim)
        if item_gradient is None
        else library.output("item_gradient", item_gradient, num_items, dim),
        kth=users.new_empty(num_users) if k else None,
        best=users.new_empty(num_users, k) if k and keep_best else None,
        excluded_scores=None if excluded is None else users.new_empty(len(excluded[1])),
        moments=users.new_zeros(num_users, _MOMENTS) if has_moments else None,
    )
    start = pairs = None
    if excluded is not None:
        start, pairs = library.offsets_and_indices(*excluded, num_users, columns)
    beta = None if thresholds is None else library.floats("thresholds", thresholds, num_users)
    factors = None if coefficients is None else library.floats("coefficients", coefficients, num_users)
    if num_users == 0 or columns == 0:
        for tensor in (result.negative, result.normalizer, result.user_gradient, result.item_gradient):
            tensor.zero_()
        if part is not None and part.reduction == "log-sum":
            result.normalizer.fill_(-torch.inf)
        return result
    task = Task(
        users=num_users,
        items=num_items,
        dim=dim,
        user_vectors=users.data_ptr(),
        item_vectors=items.data_ptr(),
        excluded_start=library.pointer(start),
        excluded=library.pointer(pairs),
        thresholds=library.pointer(beta),
        coefficients=library.pointer(factors),
        kind=0 if part is None else _KINDS[part.kind],
        params=() if part is None else part.params,
        scale=1.0 if part is None else part.scale,
        bfloat16=bfloat16,
        k=k,
        kth_is_threshold=kth_is_threshold,
        threads=threads or torch.get_num_threads(),
        users_per_block=users_per_block or 0,
        team=library.team(),
        negative=result.negative.data_ptr(),
        normalizer=result.normalizer.data_ptr(),
        user_gradient=result.user_gradient.data_ptr() if gradients else None,
        item_gradient=result.item_gradient.data_ptr() if gradients else None,
        kth=library.pointer(result.kth),
        best=library.pointer(result.best),
        excluded_scores=library.pointer(result.excluded_scores),
        moments=library.pointer(result.moments),
    )
    _run(core, at, task, samples)
    return result


def _run(core: ctypes.CDLL, level: int, task: Task, samples: Samples | None) -> None:
    """Give a task its workspace and carry it out, over all items or over samples."""
    if samples is None:
        workspace = library.scratch.take(core.talos_core_workspace_bytes(level, ctypes.byref(task)))
        task.workspace = workspace.data_ptr()
        core.talos_core_sweep(level, ctypes.byref(task))
        return
    samples = checked_samples(samples, task.users, task.items)
    groups = in_groups(task, samples)
    workspace = library.scratch.take(core.talos_core_group_workspace_bytes(level, ctypes.byref(groups)))
    groups.task.workspace = workspace.data_ptr()
    core.talos_core_group_sweep(level, ctypes.byref(groups))


def core_pair_sweep(
    user_vectors: Tensor,
    item_vectors: Tensor,
    start: Tensor,
    scores: Tensor | None,
    *,
    part: PairwisePart,
    coefficients: Tensor | None = None,
    inner_only: bool = False,
    k: int = 0,
    excluded: tuple[Tensor, Tensor] | None = None,
    threads: int | None = None,
    users_per_block: int | None = None,
    level: str | None = None,
    bfloat16: bool = False,
    item_gradient: Tensor | None = None,
    samples: Samples | None = None,
) -> PairSweep:
    """One pass of the core over all pairs of a positive and an item, for a whole batch of users.

    Arguments that `core_sweep` has too mean the same.

    Args:
        user_vectors: (B, d), float32.
        item_vectors: (n, d), float32.
        start: (B + 1,), offsets of the users' positives.
        scores: (P,), scores of the positives; None if these are the excluded items, whose scores the pass has anyway.
        part: g and h.
        coefficients: (P,), the factor of each h(R_i) in the gradients; None for R_i alone.
        inner_only: gradients of Σ coefficient_i · R_i in place of h(R_i).
        k: find the K-th best scores, if above 0.
        excluded: (B + 1,) and (m,): CSR of the pairs that are no negatives, ascending within each user.
        threads: as many as torch uses if None.
        users_per_block: chosen by cache size if None.
        level: one of `library.levels()`; the highest if None.
        bfloat16: round the factors of all products to bfloat16.
        item_gradient: (n, d), float32 memory for the items' gradient; new memory if None.
        samples: go over these items in place of all.

    >>> from talos.losses import BPR
    >>> found = core_pair_sweep(
    ...     torch.ones(1, 1), torch.zeros(4, 1), torch.tensor([0, 1]), torch.zeros(1), part=BPR().pairwise_part
    ... ) if library.available() else None
    >>> found is None or round(float(found.inner), 4) == 0.6931   # log 2
    True
    """
    core, at = library.level_of(level)
    num_items, dim = item_vectors.shape
    num_users = len(user_vectors)
    users = library.floats("user_vectors", user_vectors, num_users, dim)
    items = library.floats("item_vectors", item_vectors, num_items, dim)
    most, columns = (num_items, num_items) if samples is None else (0, samples.items.shape[1])
    if not 0 <= k <= most:
        raise ArgumentError(f"got {k}", where="k", expected=f"0 to {most}, the number of items")
    gone_start = gone = gone_scores = None
    if excluded is not None:
        gone_start, gone = library.offsets_and_indices(*excluded, num_users, columns)
        gone_scores = users.new_empty(len(gone))
    if scores is None and gone_scores is None:
        raise ArgumentError("is missing", where="scores", expected="one score per positive")
    count = len(gone_scores) if scores is None and gone_scores is not None else int(start[-1])
    pos = gone_scores if scores is None else library.floats("scores", scores, count)
    own = torch.arange(count, device="cpu")  # any valid column: only the offsets are looked at
    start, _ = library.offsets_and_indices(
        start, own.clamp_(max=max(0, num_items - 1)), num_users, max(1, num_items)
    )
    factors = None if coefficients is None else library.floats("coefficients", coefficients, count)
    wanted = coefficients is not None
    empty = users.new_empty(0)
    result = PairSweep(
        inner=users.new_empty(count),
        slopes=users.new_empty(count) if wanted else empty,
        user_gradient=users.new_empty(num_users, dim) if wanted else empty,
        item_gradient=empty
        if not wanted
        else users.new_empty(num_items, dim)
        if item_gradient is None
        else library.output("item_gradient", item_gradient, num_items, dim),
        kth=users.new_empty(num_users) if k else None,
    )
    if num_users == 0 or columns == 0:
        for tensor in (result.inner, result.slopes, result.user_gradient, result.item_gradient):
            tensor.zero_()
        if part.reduction == "log-sum":
            result.inner.fill_(-torch.inf)
        return result
    task = Task(
        users=num_users,
        items=num_items,
        dim=dim,
        user_vectors=users.data_ptr(),
        item_vectors=items.data_ptr(),
        excluded_start=library.pointer(gone_start),
        excluded=library.pointer(gone),
        excluded_scores=library.pointer(gone_scores),
        kind=_KINDS[part.kind],
        params=part.params,
        scale=1.0,
        bfloat16=bfloat16,
        k=k,
        threads=threads or torch.get_num_threads(),
        users_per_block=users_per_block or 0,
        team=library.team(),
        positive_start=start.data_ptr(),
        positive_scores=library.pointer(pos),
        positive_coefficients=library.pointer(factors),
        inner_only=inner_only,
        user_gradient=result.user_gradient.data_ptr() if wanted else None,
        item_gradient=result.item_gradient.data_ptr() if wanted else None,
        kth=library.pointer(result.kth),
        inner=result.inner.data_ptr(),
        positive_slopes=result.slopes.data_ptr() if wanted else None,
    )
    _run(core, at, task, samples)
    return result


def workspace_bytes(
    num_users: int,
    num_items: int,
    dim: int,
    *,
    k: int = 0,
    bfloat16: bool = False,
    users_per_block: int | None = None,
    threads: int | None = None,
    level: str | None = None,
) -> int:
    """The workspace that `core_sweep` takes for these sizes and options.

    >>> not library.available() or workspace_bytes(512, 10_000, 64) < workspace_bytes(512, 100_000, 64)
    True
    """
    core, at = library.level_of(level)
    task = Task(
        users=num_users,
        items=num_items,
        dim=dim,
        k=k,
        bfloat16=bfloat16,
        threads=threads or torch.get_num_threads(),
        users_per_block=users_per_block or 0,
    )
    return int(core.talos_core_workspace_bytes(at, ctypes.byref(task)))


def unit_rows(
    table: Tensor, *, out: Tensor | None = None, level: str | None = None, threads: int | None = None
) -> tuple[Tensor, Tensor]:
    """Rows divided by their lengths (at least 1e-12, as in `F.normalize`), written to `out`, and the lengths.

    >>> unit, lengths = unit_rows(torch.tensor([[3.0, 4.0]])) if library.available() else (None, torch.tensor([5.0]))
    >>> lengths
    tensor([5.])
    """
    core, at = library.level_of(level)
    rows = library.floats("table", table, *table.shape)
    unit = torch.empty_like(rows) if out is None else library.output("out", out, *rows.shape)
    lengths = rows.new_empty(len(rows))
    task = Rows(
        count=len(rows),
        dim=rows.shape[1],
        threads=threads or torch.get_num_threads(),
        team=library.team(),
        rows=rows.data_ptr(),
        unit=unit.data_ptr(),
        lengths=lengths.data_ptr(),
    )
    core.talos_core_unit_rows(at, ctypes.byref(task))
    return unit, lengths


def add_positives_(
    user_gradient: Tensor,
    item_gradient: Tensor,
    user_vectors: Tensor,
    item_vectors: Tensor,
    indptr: Tensor,
    indices: Tensor,
    slopes: Tensor,
    *,
    lengths: Tensor | None = None,
    level: str | None = None,
    threads: int | None = None,
) -> None:
    """Add ∂L/∂s of the positives to both gradients, in place.

    With `lengths` the items' gradient is then converted from that of the unit vectors to that of the rows
    before normalisation.

    Args:
        user_gradient: (B, d), added to.
        item_gradient: (I, d), added to.
        user_vectors: (B, d).
        item_vectors: (I, d).
        indptr: (B + 1,).
        indices: (P,), ascending within each user.
        slopes: (P,), ∂L/∂s of each.
        lengths: (I,), by which the item vectors were divided; None if they were not.
        level: one of `library.levels()`; the highest if None.
        threads: as many as torch uses if None.
    """
    core, at = library.level_of(level)
    (num_users, dim), num_items = user_vectors.shape, len(item_vectors)
    users = library.floats("user_vectors", user_vectors, num_users, dim)
    items = library.floats("item_vectors", item_vectors, num_items, dim)
    start, items_of = library.offsets_and_indices(indptr, indices, num_users, num_items)
    slope = library.floats("slopes", slopes, len(items_of))
    task = Positives(
        users=num_users,
        items=num_items,
        dim=dim,
        threads=threads or torch.get_num_threads(),
        team=library.team(),
        start=start.data_ptr(),
        items_of=items_of.data_ptr(),
        slopes=slope.data_ptr(),
        user_vectors=users.data_ptr(),
        item_vectors=items.data_ptr(),
        lengths=library.pointer(None if lengths is None else library.floats("lengths", lengths, num_items)),
        user_gradient=library.output("user_gradient", user_gradient, num_users, dim).data_ptr(),
        item_gradient=library.output("item_gradient", item_gradient, num_items, dim).data_ptr(),
    )
    core.talos_core_add_positives(at, ctypes.byref(task))
