"""The compiled core as a library: where it is, whether it is used, and what it can do on this processor.

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
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from talos.errors import ArgumentError
from talos.kernels.layout import Task, Team

__all__ = ["LEVELS", "available", "has_bfloat16", "level_of", "levels", "scratch", "status", "team"]

# Instruction sets, lowest first, as the core numbers them.
LEVELS: Final = ("plain", "AVX2", "AVX-512")
_VERSION: Final = 7
_LARGE_PAGE: Final = 1 << 21
_CHOICES: Final = ("auto", "compiled", "torch")


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
def team() -> Team:
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
    half = ", bfloat16" if has_bfloat16() else ""
    return f"compiled core, {levels()[-1]}, {threads} thread{'s' if threads != 1 else ''}{half}"


def level_of(name: str | None) -> tuple[ctypes.CDLL, int]:
    """The library, and its number for an instruction set of `levels()`; the highest if None."""
    library, why = _load()
    if library is None:
        raise ArgumentError("no compiled core", where="TALOS_KERNEL", expected=why)
    return library, LEVELS.index(name or levels()[-1])


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


scratch: Final = _Memory()
