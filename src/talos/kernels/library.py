"""The compiled core as a shared library: its structs, where it is found, and what it can do on this processor.

The core is built with the package if there is a C++ compiler (`setup.py`). It contains one version per
instruction set; the best one that this processor supports is selected at load time. The environment variable
`TALOS_KERNEL` chooses the kernel:

- `auto` (the default): the core where it is built and applies, torch elsewhere;
- `compiled`: the same, but a missing core is an error;
- `torch`: never the core.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import os
import sys
import threading
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from talos.errors import ArgumentError
from talos.files import built_library
from talos.kernels.checks import checked_indices

__all__ = [
    "AdamRows",
    "Distinct",
    "DrawnPositives",
    "Groups",
    "LeastSquares",
    "Lists",
    "Pairs",
    "Positives",
    "Rows",
    "Task",
    "Team",
    "available",
    "floats",
    "has_bfloat16",
    "level_of",
    "levels",
    "offsets_and_indices",
    "output",
    "pointer",
    "scratch",
    "status",
    "team",
]

_VERSION: Final = 11
_LARGE_PAGE: Final = 1 << 21
_CPU: Final = torch.device("cpu")
_CHOICES: Final = ("auto", "compiled", "torch")


# The structs below repeat those of core/*.h in the order of their fields; `_load` compares the size of `Task`.
_POINTER, _INT64, _INT32, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_float


def _fields(*runs: tuple[Any, str]) -> list[tuple[str, Any]]:
    """Fields of a struct from runs of one type: (type, "name name …")."""
    return [(name, kind) for kind, names in runs for name in names.split()]


class Team(ctypes.Structure):
    """`talos::Team` of core/sweep.h."""

    _fields_ = _fields((_POINTER, "parallel size"))


class Rows(ctypes.Structure):
    """`talos::Rows` of core/sweep.h."""

    _fields_ = _fields((_INT64, "count dim threads"), (Team, "team"), (_POINTER, "rows unit lengths"))


class Task(ctypes.Structure):
    """`talos::Task` of core/sweep.h."""

    _fields_ = _fields(
        (_INT64, "users items dim"),
        (_POINTER, "user_vectors item_vectors excluded_start excluded thresholds coefficients"),
        (_INT32, "kind"),
        (_FLOAT * 5, "params"),
        (_FLOAT, "scale"),
        (_INT32, "bfloat16"),
        (_INT64, "k"),
        (_INT32, "kth_is_threshold threads"),
        (_INT64, "users_per_block"),
        (Team, "team"),
        (_POINTER, "positive_start positive_scores positive_coefficients"),
        (_INT32, "inner_only"),
        (
            _POINTER,
            "workspace negative normalizer user_gradient item_gradient kth best excluded_scores moments "
            "inner positive_slopes",
        ),
    )


class Positives(ctypes.Structure):
    """`talos::Positives` of core/sweep.h."""

    _fields_ = _fields(
        (_INT64, "users items dim threads"),
        (Team, "team"),
        (_POINTER, "start items_of slopes user_vectors item_vectors lengths user_gradient item_gradient"),
    )


class LeastSquares(ctypes.Structure):
    """`talos::LeastSquares` of core/sweep.h."""

    _fields_ = _fields(
        (_INT64, "rows dim threads steps"),
        (Team, "team"),
        (_POINTER, "start items_of weights fixed gram"),
        (_FLOAT, "weight"),
        (_POINTER, "solution"),
    )


class Groups(ctypes.Structure):
    """`talos::Groups` of core/samples.h."""

    _fields_ = _fields((Task, "task"), (_INT64, "groups sample"), (_POINTER, "first drawn scores"))


class Pairs(ctypes.Structure):
    """`talos::Pairs` of core/samples.h."""

    _fields_ = _fields(
        (_INT64, "users dim threads"),
        (Team, "team"),
        (_POINTER, "start items_of user_vectors item_vectors scores"),
    )


class AdamRows(ctypes.Structure):
    """`talos::AdamRows` of core/samples.h."""

    _fields_ = _fields(
        (_INT64, "count dim threads"),
        (Team, "team"),
        (_POINTER, "rows gradient parameter mean square"),
        (_FLOAT, "rest1 beta2 rest2 epsilon weight_decay rate root_correction"),
    )


class Lists(ctypes.Structure):
    """`talos::Lists` of core/lists.h."""

    _fields_ = _fields(
        (_INT64, "users items k threads"),
        (Team, "team"),
        (_POINTER, "start items_of coefficients"),
        (_FLOAT, "inverse_tau delta"),
        (_POINTER, "workspace scores values"),
    )


class Distinct(ctypes.Structure):
    """`talos::Distinct` of core/sets.h."""

    _fields_ = _fields((_INT64, "count bound"), (_POINTER, "values workspace distinct places"))


class DrawnPositives(ctypes.Structure):
    """`talos::DrawnPositives` of core/sets.h."""

    _fields_ = _fields(
        (_INT64, "groups sample items"),
        (_POINTER, "first drawn start items_of"),
        (_INT64, "room"),
        (_POINTER, "found_start found"),
    )


@functools.cache
def _load() -> tuple[ctypes.CDLL | None, str]:
    """The library, or None and the reason why it is missing."""
    found = built_library(__file__, "_core")
    if found is None:
        return None, "the core was not built (no C++ compiler when the package was installed?)"
    try:
        library = ctypes.CDLL(str(found))
        version, size = library.talos_core_version(), library.talos_core_task_bytes()
    except (OSError, AttributeError) as error:
        return None, f"the core cannot be loaded ({error})"
    if (version, size) != (_VERSION, ctypes.sizeof(Task)):
        return (
            None,
            f"the core is of version {version} where {_VERSION} is expected: install the package again",
        )
    for name in (
        "workspace_bytes",
        "group_workspace_bytes",
        "smooth_places_workspace_bytes",
        "distinct_workspace_bytes",
        "distinct",
    ):
        getattr(library, f"talos_core_{name}").restype = ctypes.c_int64
    library.talos_core_level_name.restype = ctypes.c_char_p
    library.talos_core_drawn_positives.restype = ctypes.c_int64
    library.talos_core_distinct_workspace_bytes.argtypes = [ctypes.c_int64]
    for name in ("sweep", "unit_rows", "add_positives", "least_squares"):
        getattr(library, f"talos_core_{name}").restype = None
    for name in ("group_sweep", "group_scores", "pair_scores", "adam_rows", "smooth_places"):
        getattr(library, f"talos_core_{name}").restype = None
    return library, ""


@functools.cache
def team() -> Team:
    """Entry points of the OpenMP runtime that torch uses, so that the core runs in the same thread pool.

    Empty if none is found; the core then starts threads of its own.
    """
    beside = sorted(Path(torch.__file__).parent.glob("lib/lib*omp*"))  # libgomp, libiomp5, libomp
    nearby = sorted(Path(torch.__file__).parents[1].glob("torch.libs/lib*omp*"))
    loaded = () if sys.platform == "win32" else (None,)  # what the process has loaded already
    for place in (*loaded, *map(str, beside), *map(str, nearby)):
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
    """Whether the core is built, can be loaded and is not ruled out by `TALOS_KERNEL`.

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
    """Instruction sets of the core that this processor supports, lowest first; empty without the core.

    >>> set(levels()) <= {"plain", "AVX2", "AVX-512", "NEON"}
    True
    """
    library, _ = _load()
    if library is None:
        return ()
    numbers = range(library.talos_core_best_level() + 1)
    return tuple(library.talos_core_level_name(number).decode() for number in numbers)


def has_bfloat16() -> bool:
    """Whether the core was built with bfloat16 products and this processor supports them.

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
    """The library, and its number for an instruction set of `levels()`; that of the highest if None."""
    library, why = _load()
    if library is None:
        raise ArgumentError("no compiled core", where="TALOS_KERNEL", expected=why)
    names = levels()
    return library, names.index(name) if name else len(names) - 1


def floats(name: str, values: Tensor, *shape: int) -> Tensor:
    """An argument as the core reads it: float32, contiguous, on the CPU and of this shape; converted if need be."""
    if values.shape != shape or values.device.type != "cpu" or not values.dtype.is_floating_point:
        found = f"has shape {tuple(values.shape)}, type {values.dtype} on {values.device}"
        raise ArgumentError(found, where=name, expected=f"shape {shape}, floating-point numbers on the CPU")
    return values.detach().to(torch.float32).contiguous()


def output(name: str, values: Tensor, *shape: int) -> Tensor:
    """A tensor that the core writes to, which can't be converted: an error unless it is as `floats` returns it."""
    if values.data_ptr() != floats(name, values, *shape).data_ptr():
        found = f"has type {values.dtype} and strides {values.stride()}"
        raise ArgumentError(found, where=name, expected="float32, contiguous")
    return values


def pointer(tensor: Tensor | None) -> int | None:
    """The address of a tensor's numbers as the core takes it; null for None."""
    return None if tensor is None else tensor.data_ptr()


def offsets_and_indices(indptr: Tensor, indices: Tensor, rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """CSR offsets (rows + 1,) and columns as the core reads them; an error unless they stay within bounds."""
    indptr = checked_indices("indptr", indptr, None, _CPU)
    indices = checked_indices("indices", indices, columns, _CPU)
    if len(indptr) != rows + 1 or int(indptr[0]) < 0 or int(indptr[-1]) > len(indices):
        raise ArgumentError(
            f"{len(indptr)} offsets up to {int(indptr[-1]) if len(indptr) else 0}",
            where="indptr",
            expected=f"{rows + 1} offsets up to {len(indices)}",
        )
    if bool((indptr.diff() < 0).any()):
        raise ArgumentError("does not ascend", where="indptr", expected="ascending offsets")
    return indptr, indices


class _Memory(threading.local):
    """One workspace per thread, kept between calls: touching fresh pages would cost a good part of a small step."""

    def __init__(self) -> None:
        self.block = torch.empty(0)

    def take(self, size: int) -> Tensor:
        """A block of at least `size` bytes."""
        if self.block.numel() * 4 < size:
            self.block = torch.empty(0)  # freed first: both at once may not fit into memory
            self.block = _pages(size)
        return self.block


def _pages(size: int) -> Tensor:
    """New memory, in huge pages where the system has them: a sweep jumps from tile to tile."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(-(-size // 4))
    pages = mmap.mmap(-1, -(-size // _LARGE_PAGE) * _LARGE_PAGE + _LARGE_PAGE)
    with contextlib.suppress(OSError):  # a Linux kernel without huge pages
        pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=torch.float32)


scratch: Final = _Memory()
