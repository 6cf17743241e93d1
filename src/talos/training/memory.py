"""Memory that every step frees and allocates again, kept by the C library in between.

A step makes tables of the size of the model (unit vectors, gradients) and frees them. glibc returns blocks of that size
to the system at once, and the next step gets new pages, which the system must find and clear: about a fifth of the
processor time of an epoch. `talos.training.gradient_buffers` reuses the gradients that training itself makes; this
module can go when the kernels reuse theirs.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterator
from typing import Any, Final

__all__ = ["freed_memory_kept"]

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

    >>> with freed_memory_kept(1 << 20):
    ...     pass
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
