"""The compiled core: found, loaded and called here; torch and the core meet in pointers and in nothing else.

The core is built with the package where a C++ compiler is there (`setup.py`), and holds one version for each
instruction set; which of them runs is decided when it is loaded. `TALOS_KERNEL` says which kernel to use:

- `auto` (the default): the core where it is there and applies, torch elsewhere;
- `compiled`: the same, but a missing core is an error;
- `torch`: never the core.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

import torch
from torch import Tensor

from talos.errors import ArgumentError
from talos.kernels.layout import LeastSquares, Positives, Rows, Task, Team
from talos.kernels.parts import MeanPart, NegativePart

__all__ = [
    "LEVELS",
    "CoreSweep",
    "add_positives_",
    "available",
    "core_sweep",
    "has_bfloat16",
    "least_squares_",
    "levels",
    "parameter_gradients",
    "status",
    "supports",
    "unit_rows",
]

# Instruction sets, lowest first, as the core numbers them.
LEVELS: Final = ("plain", "AVX2", "AVX-512")
_VERSION: Final = 7
# kind → the core's number for it
_KINDS: Final = {"exp": 1, "sigmoid-power": 2, "hinge": 3, "partial-auc": 4}
# Of how many of its numbers, from the last, the core asks that they be above 0; of all, if it is not here.
_POSITIVE: Final = {"partial-auc": 2}
_MOMENTS: Final = 2
_LARGE_PAGE: Final = 1 << 21
_CHOICES: Final = ("auto", "compiled", "torch")


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


class _Memory(threading.local):
    """Scratch memory, kept from call to call: fresh pages would cost a good part of a small step."""

    def __init__(self) -> None:
        self.block = torch.empty(0)

    def take(self, size: int) -> Tensor:
        """At least so many bytes."""
        if self.block.numel() * 4 < size:
            self.block = torch.empty(0)  # let go first: both at once may be too much
            self.block = _pages(size)
        return self.block


def _pages(size: int) -> Tensor:
    """Fresh memory, in large pages where the system gives them: a sweep jumps from tile to tile."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(-(-size // 4))
    pages = mmap.mmap(-1, -(-size // _LARGE_PAGE) * _LARGE_PAGE + _LARGE_PAGE)
    with contextlib.suppress(OSError):  # a kernel without them
        pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=torch.float32)


_memory = _Memory()


@functools.cache
def _load() -> tuple[ctypes.CDLL | None, str]:
    """The library, or None and why."""
    folder = Path(__file__).parent
    found = sorted(path for path in folder.glob("_core*") if path.suffix in (".so", ".dylib", ".pyd"))
    if not found:
        return None, "the core was not built (no C++ compiler when the package was installed?)"
    try:
        library = ctypes.CDLL(str(found[0]))
        version, size = library.talos_core_version(), library.talos_core_task_bytes()
    except (OSError, AttributeError) as error:
        return None, f"the core cannot be loaded ({error})"
    if (version, size) != (_VERSION, ctypes.sizeof(Task)):
        return (
            None,
            f"the core is of version {version} where {_VERSION} is expected: install the package again",
        )
    library.talos_core_workspace_bytes.restype = ctypes.c_int64
    for name in ("sweep", "unit_rows", "add_positives", "least_squares"):
        getattr(library, f"talos_core_{name}").restype = None
    return library, ""


@functools.cache
def _team() -> Team:
    """The entry points of torch's own pool of threads, to work in it; without them the core starts its own."""
    beside = sorted(Path(torch.__file__).parent.glob("lib/lib*omp*"))  # libgomp, libiomp5, libomp
    nearby = sorted(Path(torch.__file__).parents[1].glob("torch.libs/lib*omp*"))
    for place in (None, *map(str, beside), *map(str, nearby)):
        try:
            library = ctypes.CDLL(place)
            found = library.GOMP_parallel, library.omp_get_num_threads
        except (OSError, AttributeError):
            continue
        return Team(*(ctypes.cast(function, ctypes.c_void_p) for function in found))
    return Team()


def _choice() -> str:
    choice = os.environ.get("TALOS_KERNEL", "auto")
    if choice not in _CHOICES:
        raise ArgumentError(f"{choice!r}", where="TALOS_KERNEL", expected="'auto', 'compiled' or 'torch'")
    return choice


def available() -> bool:
    """Whether the core is there and not ruled out by `TALOS_KERNEL`.

    >>> isinstance(available(), bool)
    True
    """
    choice = _choice()
    if choice == "torch":
        return False
    library, why = _load()
    if library is None and choice == "compiled":
        raise ArgumentError("'compiled'", where="TALOS_KERNEL", expected=f"'auto' or 'torch', because {why}")
    return library is not None


def levels() -> tuple[str, ...]:
    """The instruction sets that the core can use on this processor, lowest first; empty without the core.

    >>> set(levels()) <= set(LEVELS)
    True
    """
    library, _ = _load()
    return () if library is None else LEVELS[: library.talos_core_best_level() + 1]


def has_bfloat16() -> bool:
    """Whether the core has products of bfloat16 that this processor can run.

    >>> isinstance(has_bfloat16(), bool)
    True
    """
    library, _ = _load()
    return library is not None and bool(library.talos_core_has_bfloat16())


def status() -> str:
    """One line: which kernel is used on the CPU, and why if it is not the core.

    >>> status().startswith(("compiled core, ", "torch, because "))
    True
    """
    if _choice() == "torch":
        return "torch, because TALOS_KERNEL says so"
    if not available():
        return f"torch, because {_load()[1]}"
    threads = torch.get_num_threads()
    return f"compiled core, {levels()[-1]}, {threads} thread{'s' if threads != 1 else ''}"


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
        level: one of `levels()`; the highest if None.
        bfloat16: let products be made of numbers rounded to it (8 bits of precision, sums in float32) where
            the processor has instructions for that: twice as fast, see `has_bfloat16`.

    >>> found = core_sweep(torch.tensor([[1.0]]), torch.tensor([[0.1], [0.9], [0.5]]), part=None, k=2) \
            if available() else None
    >>> found is None or found.kth.tolist() == [0.5]
    True
    """
    library, at = _library(level)
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
        team=_team(),
        negative=result.negative.data_ptr(),
        normalizer=result.normalizer.data_ptr(),
        user_gradient=result.user_gradient.data_ptr() if gradients else None,
        item_gradient=result.item_gradient.data_ptr() if gradients else None,
        kth=_pointer(result.kth),
        best=_pointer(result.best),
        excluded_scores=_pointer(result.excluded_scores),
        moments=_pointer(result.moments),
    )
    memory = _memory.take(library.talos_core_workspace_bytes(at, ctypes.byref(task)))
    task.workspace = memory.data_ptr()
    library.talos_core_sweep(at, ctypes.byref(task))
    return result


def unit_rows(
    table: Tensor, *, level: str | None = None, threads: int | None = None
) -> tuple[Tensor, Tensor]:
    """Rows divided by their lengths (at least 1e-12, as `F.normalize` has it), and the lengths.

    >>> unit, lengths = unit_rows(torch.tensor([[3.0, 4.0]])) if available() else (None, torch.tensor([5.0]))
    >>> lengths
    tensor([5.])
    """
    library, at = _library(level)
    rows = table.detach().contiguous()
    unit, lengths = torch.empty_like(rows), rows.new_empty(len(rows))
    task = Rows(
        count=len(rows),
        dim=rows.shape[1],
        threads=threads or torch.get_num_threads(),
        team=_team(),
        rows=rows.data_ptr(),
        unit=unit.data_ptr(),
        lengths=lengths.data_ptr(),
    )
    library.talos_core_unit_rows(at, ctypes.byref(task))
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
        level: one of `levels()`; the highest if None.
        threads: as many as torch uses if None.
    """
    library, at = _library(level)
    tensors = [t.detach().contiguous() for t in (indptr, indices, slopes, user_vectors, item_vectors)]
    start, items_of, slope, users, items = tensors
    task = Positives(
        users=len(users),
        items=len(items),
        dim=users.shape[1],
        threads=threads or torch.get_num_threads(),
        team=_team(),
        start=start.data_ptr(),
        items_of=items_of.data_ptr(),
        slopes=slope.data_ptr(),
        user_vectors=users.data_ptr(),
        item_vectors=items.data_ptr(),
        lengths=_pointer(lengths),
        user_gradient=user_gradient.data_ptr(),
        item_gradient=item_gradient.data_ptr(),
    )
    library.talos_core_add_positives(at, ctypes.byref(task))


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
        level: one of `levels()`; the highest if None.
        threads: as many as torch uses if None.
    """
    library, at = _library(level)
    start, items_of, other, matrix = (t.contiguous() for t in (indptr, indices, fixed, gram))
    task = LeastSquares(
        rows=len(solution),
        dim=solution.shape[1],
        threads=threads or torch.get_num_threads(),
        steps=steps,
        team=_team(),
        start=start.data_ptr(),
        items_of=items_of.data_ptr(),
        fixed=other.data_ptr(),
        gram=matrix.data_ptr(),
        weight=weight,
        solution=solution.data_ptr(),
    )
    library.talos_core_least_squares(at, ctypes.byref(task))


def _library(level: str | None) -> tuple[ctypes.CDLL, int]:
    library, why = _load()
    if library is None:
        raise ArgumentError("no compiled core", where="TALOS_KERNEL", expected=why)
    return library, LEVELS.index(level or levels()[-1])


def _has_moments(part: NegativePart | None) -> bool:
    return part is not None and part.kind == "partial-auc"


def parameter_gradients(part: NegativePart, found: CoreSweep) -> dict[str, Tensor]:
    """Of Σ_u coefficient_u · R_u in the scalars that the negatives' part of the loss has learnt, by name."""
    if found.moments is None:
        return {}
    return dict(cast(MeanPart, part).from_moments(found.moments.sum(0)))


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
