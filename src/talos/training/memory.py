"""Memory that every step frees and allocates again, kept in between.

A step makes tables of the size of the model (gradients, unit vectors) and frees them. glibc returns blocks of that size
to the system at once, and the next step gets new pages, which the system must find and clear: about a fifth of the
processor time of an epoch on Beauty. `GradientBuffers` reuses the gradients that training itself makes;
`freed_memory_kept` is for the tables of the kernels, and can go when they reuse theirs.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import torch
from torch import Tensor

__all__ = ["GradientBuffers", "freed_memory_kept"]

# mallopt's parameters, from malloc.h
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
# The values at which glibc's own adjustment ends after tables of a few dozen megabytes.
_USUAL_MMAP, _USUAL_TRIM = 32 << 20, 64 << 20
# How many blocks of the largest size a step may have at a time; a generous bound.
_BLOCKS: Final = 16
_LARGEST_INT: Final = 2**31 - 1


@contextlib.contextmanager
def freed_memory_kept(largest: int) -> Iterator[None]:
    """Within this block glibc keeps freed memory, up to some blocks of `largest` bytes, for the next allocation.

    Afterwards it returns free memory to the system again. Replaces what the environment variables
    MALLOC_MMAP_THRESHOLD_ and MALLOC_TRIM_THRESHOLD_ set. No effect with another C library or allocator.
    """
    set_number = _mallopt()
    if set_number is None:
        yield
        return
    mmap, trim = (
        max(least, min(wanted, _LARGEST_INT))
        for least, wanted in ((_USUAL_MMAP, largest + (1 << 16)), (_USUAL_TRIM, _BLOCKS * largest))
    )
    try:
        if not set_number(_MMAP_THRESHOLD, mmap):  # older versions refuse more than that
            set_number(_MMAP_THRESHOLD, _USUAL_MMAP)
        set_number(_TRIM_THRESHOLD, trim)
        yield
    finally:
        set_number(_MMAP_THRESHOLD, _USUAL_MMAP)
        set_number(_TRIM_THRESHOLD, _USUAL_TRIM)
        ctypes.CDLL(None).malloc_trim(0)


@functools.cache
def _mallopt() -> Callable[[int, int], Any] | None:
    """The `mallopt` of glibc; None where the C library is another one."""
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version, library.malloc_trim  # noqa: B018  # raises AttributeError elsewhere
        return library.mallopt
    except (AttributeError, OSError, TypeError):  # Windows takes no None
        return None


class GradientBuffers:
    """One buffer for the gradient of each parameter, handed out for a backward pass and taken back after the step.

    Autograd keeps a gradient as `parameter.grad` without a copy only if nobody else holds it, so a buffer that is
    handed out is forgotten here until `reclaim_` finds it in `parameter.grad`.

    >>> buffers, table = GradientBuffers(), torch.nn.Parameter(torch.ones(3, 2))
    >>> buffers.rows(table, torch.tensor([2])).sum().backward()
    >>> table.grad.tolist(), buffers.reclaim_([table])
    ([[0.0, 0.0], [0.0, 0.0], [1.0, 1.0]], None)
    >>> table.grad is None
    True
    """

    def __init__(self) -> None:
        self._free: dict[Tensor, Tensor] = {}

    def take(self, parameter: Tensor) -> Tensor:
        """A tensor like the parameter, with any values."""
        buffer = self._free.pop(parameter, None)
        return torch.empty_like(parameter) if buffer is None else buffer

    def reclaim_(self, parameters: Iterable[Tensor]) -> None:
        """Clear the gradients of parameters, and keep the memory of dense ones for the next step."""
        for parameter in parameters:
            gradient, parameter.grad = parameter.grad, None
            if gradient is not None and gradient.layout == torch.strided and gradient.is_contiguous():
                self._free[parameter] = gradient

    def rows(self, table: Tensor, rows: Tensor) -> Tensor:
        """Distinct rows (m,) of a parameter, (m, d); the gradient of the whole table is written to its buffer."""
        found: Tensor = _Rows.apply(table, rows, self)  # type: ignore[no-untyped-call]
        return found


class _Rows(torch.autograd.Function):
    """Look-up of distinct rows whose backward pass allocates nothing of the table's size."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, rows: Tensor, buffers: GradientBuffers) -> Tensor:
        ctx.table, ctx.rows, ctx.buffers = table, rows, buffers
        return table.index_select(0, rows)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.buffers.take(ctx.table).zero_().index_copy_(0, ctx.rows, gradient), None, None
