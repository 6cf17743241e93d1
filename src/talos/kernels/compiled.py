"""The compiled core as it is called: torch and the core meet in pointers and in nothing else."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Final, cast

import torch
from torch import Tensor

from talos.kernels import library
from talos.kernels.layout import LeastSquares, Positives, Rows, Task
from talos.kernels.parts import MeanPart, NegativePart

__all__ = [
    "CoreSweep",
    "add_positives_",
    "core_sweep",
    "least_squares_",
    "parameter_gradients",
    "supports",
    "unit_rows",
]

# kind → the core's number for it
_KINDS: Final = {"exp": 1, "sigmoid-power": 2, "hinge": 3, "partial-auc": 4}
# Of how many of its numbers, from the last, the core asks that they be above 0; of all, if it is not here.
_POSITIVE: Final = {"partial-auc": 2}
_MOMENTS: Final = 2


@dataclass(frozen=True)
class CoreSweep:
    """What the core gives for a batch of users; what was not asked for is None, or empty.

    Attributes:
        negative: R_u, (B,).
        normalizer: log Σφ for "log-sum", Σφ for "mean", (B,).
        user_gradient: of Σ_u coefficient_u · R_u, (B, d).
        item_gradient: likewise, (n, d).
        kth: K-th best scores, (B,).
        best: the K best scores in any order, (B, K).
        excluded_scores: scores of the excluded pairs, (m,).
        moments: of a part with learnt scalars, (B, 2): `MeanPart.from_moments` makes of their sum the gradients of
            Σ_u coefficient_u · R_u in these scalars.
    """

    negative: Tensor
    normalizer: Tensor
    user_gradient: Tensor
    item_gradient: Tensor
    kth: Tensor | None
    best: Tensor | None
    excluded_scores: Tensor | None
    moments: Tensor | None


def supports(part: NegativePart, *tensors: Tensor | None) -> bool:
    """Whether the core can do this part of a loss on these vectors, leaving aside whether it is there.

    It knows `exp`, `sigmoid-power`, `hinge` and `partial-auc`, in float32 on the CPU.

    >>> from talos.losses import Softmax
    >>> vectors = torch.zeros(2, 3)
    >>> supports(Softmax().negative_part, vectors), supports(Softmax().negative_part, vectors.double())
    (True, False)
    """
    if part.kind not in _KINDS:
        return False
    params = part.params
    if any(not p > 0 for p in params[len(params) - _POSITIVE.get(part.kind, len(params)) :]):
        return False
    return all(t is None or (t.dtype == torch.float32 and t.device.type == "cpu") for t in tensors)


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
) -> CoreSweep:
    """One pass of the core over all items; what `talos.kernels.sweep` does in torch, for a whole batch.

    Args:
        user_vectors: (B, d), float32.
        item_vectors: (n, d), float32.
        part: φ; None for the K-th scores alone.
        coefficients: (B,) what each R_u counts; not needed without gradients.
        thresholds: (B,) or None for 0.
        k: find the K-th best scores, if above 0.
        kth_is_threshold: take them as β.
        keep_best: report all K best scores, not the K-th alone.
        gradients: whether they are wanted; without them a pass is the scores and φ.
        excluded: (B + 1,) and (m,): CSR of the pairs that are no negatives, ascending within each user.
        threads: as many as torch uses if None. Results are the same from run to run for each number.
        users_per_block: chosen by cache size if None.
        level: one of `library.levels()`; the highest if None.
        bfloat16: let products be made of numbers rounded to it (8 bits of precision, sums in float32) where
            the processor has instructions for that, which make products at twice the rate; see
            `library.has_bfloat16`.

    >>> found = core_sweep(torch.tensor([[1.0]]), torch.tensor([[0.1], [0.9], [0.5]]), part=None, k=2) \
            if library.available() else None
    >>> found is None or found.kth.tolist() == [0.5]
    True
    """
    core, at = library.level_of(level)
    users, items = user_vectors.detach().contiguous(), item_vectors.detach().contiguous()
    (num_users, dim), num_items = users.shape, len(items)
    gradients = gradients and part is not None

    def sized(wanted: bool, *shape: int) -> Tensor:
        return users.new_empty(shape if wanted else 0)

    result = CoreSweep(
        negative=sized(part is not None, num_users),
        normalizer=sized(part is not None, num_users),
        user_gradient=sized(gradients, num_users, dim),
        item_gradient=sized(gradients, num_items, dim),
        kth=users.new_empty(num_users) if k else None,
        best=users.new_empty(num_users, k) if k and keep_best else None,
        excluded_scores=None if excluded is None else users.new_empty(len(excluded[1])),
        moments=users.new_zeros(num_users, _MOMENTS) if gradients and _has_moments(part) else None,
    )
    start, pairs = (None, None) if excluded is None else (t.contiguous() for t in excluded)
    beta = None if thresholds is None else thresholds.detach().contiguous()
    counts = None if coefficients is None else coefficients.contiguous()
    if num_users == 0 or num_items == 0:
        for tensor in (result.negative, result.normalizer, result.user_gradient, result.item_gradient):
            tensor.zero_()
        return result
    task = Task(
        users=num_users,
        items=num_items,
        dim=dim,
        user_vectors=users.data_ptr(),
        item_vectors=items.data_ptr(),
        excluded_start=_pointer(start),
        excluded=_pointer(pairs),
        thresholds=_pointer(beta),
        coefficients=_pointer(counts),
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
        kth=_pointer(result.kth),
        best=_pointer(result.best),
        excluded_scores=_pointer(result.excluded_scores),
        moments=_pointer(result.moments),
    )
    memory = library.scratch.take(core.talos_core_workspace_bytes(at, ctypes.byref(task)))
    task.workspace = memory.data_ptr()
    core.talos_core_sweep(at, ctypes.byref(task))
    return result


def unit_rows(
    table: Tensor, *, level: str | None = None, threads: int | None = None
) -> tuple[Tensor, Tensor]:
    """Rows divided by their lengths (at least 1e-12, as `F.normalize` has it), and the lengths.

    >>> unit, lengths = unit_rows(torch.tensor([[3.0, 4.0]])) if library.available() else (None, torch.tensor([5.0]))
    >>> lengths
    tensor([5.])
    """
    core, at = library.level_of(level)
    rows = table.detach().contiguous()
    unit, lengths = torch.empty_like(rows), rows.new_empty(len(rows))
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
    """Add ∂L/∂s of the positives to both gradients; with `lengths`, go from unit items back to the rows.

    Args:
        user_gradient: (B, d), added to.
        item_gradient: (I, d), added to.
        user_vectors: (B, d).
        item_vectors: (I, d).
        indptr: (B + 1,).
        indices: (P,), ascending within each user.
        slopes: (P,) ∂L/∂s of each.
        lengths: (I,) what the items were divided by, if they were.
        level: one of `library.levels()`; the highest if None.
        threads: as many as torch uses if None.
    """
    core, at = library.level_of(level)
    tensors = [t.detach().contiguous() for t in (indptr, indices, slopes, user_vectors, item_vectors)]
    start, items_of, slope, users, items = tensors
    task = Positives(
        users=len(users),
        items=len(items),
        dim=users.shape[1],
        threads=threads or torch.get_num_threads(),
        team=library.team(),
        start=start.data_ptr(),
        items_of=items_of.data_ptr(),
        slopes=slope.data_ptr(),
        user_vectors=users.data_ptr(),
        item_vectors=items.data_ptr(),
        lengths=_pointer(lengths),
        user_gradient=user_gradient.data_ptr(),
        item_gradient=item_gradient.data_ptr(),
    )
    core.talos_core_add_positives(at, ctypes.byref(task))


def least_squares_(
    solution: Tensor,
    indptr: Tensor,
    indices: Tensor,
    fixed: Tensor,
    gram: Tensor,
    *,
    weight: float,
    steps: int,
    level: str | None = None,
    threads: int | None = None,
) -> None:
    """Half a sweep of alternating least squares, see `talos.kernels.least_squares`.

    Args:
        solution: (R, d), where to start from and where the result goes; float32 and contiguous, as all here.
        indptr: (R + 1,).
        indices: (P,) rows of `fixed`.
        fixed: (C, d).
        gram: (d, d).
        weight: α.
        steps: of conjugate gradients.
        level: one of `library.levels()`; the highest if None.
        threads: as many as torch uses if None.
    """
    core, at = library.level_of(level)
    start, items_of, other, matrix = (t.contiguous() for t in (indptr, indices, fixed, gram))
    task = LeastSquares(
        rows=len(solution),
        dim=solution.shape[1],
        threads=threads or torch.get_num_threads(),
        steps=steps,
        team=library.team(),
        start=start.data_ptr(),
        items_of=items_of.data_ptr(),
        fixed=other.data_ptr(),
        gram=matrix.data_ptr(),
        weight=weight,
        solution=solution.data_ptr(),
    )
    core.talos_core_least_squares(at, ctypes.byref(task))


def _has_moments(part: NegativePart | None) -> bool:
    return part is not None and part.kind == "partial-auc"


def parameter_gradients(part: NegativePart, found: CoreSweep) -> dict[str, Tensor]:
    """Of Σ_u coefficient_u · R_u in the scalars that the negatives' part of the loss has learnt, by name."""
    if found.moments is None:
        return {}
    return dict(cast(MeanPart, part).from_moments(found.moments.sum(0)))


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
