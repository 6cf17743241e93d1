"""Memory that every step frees and takes again.

A step makes tables of the size of the model (unit vectors, gradients) and lets them go. glibc gives blocks of that size
back to the system at once, and the next step gets fresh pages, each of which the system must find and clear: a sixth
of an epoch. Keeping them is a matter of two numbers. When training ends they are left where glibc's own adjustment,
which they replace, would be after tables of a few dozen megabytes. Whoever has set one of them keeps it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterator
from typing import Any, Final

__all__ = ["freed_memory_kept"]

# mallopt's names for the two numbers, from malloc.h
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
# Where glibc's own adjustment ends up after tables of a few dozen megabytes.
_USUAL_MMAP, _USUAL_TRIM = 32 << 20, 64 << 20
# How a user sets them.
_VARIABLES: Final = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")
# Blocks of the largest size that a step may have at a time, generously.
_BLOCKS: Final = 16
_LARGEST_INT: Final = 2**31 - 1


@contextlib.contextmanager
def freed_memory_kept(largest: int) -> Iterator[None]:
    """Let this process keep freed blocks of up to `largest` bytes, and some of them at a time, for the next use.

    Afterwards freed memory goes back to the system again, what is free now at once. Without effect where the
    environment sets malloc's numbers, and on anything but glibc (jemalloc and tcmalloc, too).

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
        if not set_number(_MMAP_THRESHOLD, mmap):  # older ones refuse more than that
            set_number(_MMAP_THRESHOLD, _USUAL_MMAP)
        set_number(_TRIM_THRESHOLD, trim)
        yield
    finally:
        set_number(_MMAP_THRESHOLD, _USUAL_MMAP)
        set_number(_TRIM_THRESHOLD, _USUAL_TRIM)
        ctypes.CDLL(None).malloc_trim(0)


@functools.cache
def _mallopt() -> Callable[[int, int], Any] | None:
    """Glibc's function that sets one of malloc's numbers; None where the C library is another one."""
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version, library.malloc_trim  # noqa: B018  # there, or an AttributeError
        return library.mallopt
    except (AttributeError, OSError, TypeError):  # Windows takes no None
        return None
