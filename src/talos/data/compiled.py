"""The compiled part of reading: ids to codes by a hash table, and rows sorted by user and item.

It is built with the package if there is a C++ compiler (`setup.py`, `core/encode.cpp`); without it, or with
`TALOS_KERNEL=torch`, numpy and polars do the same, several times slower.
"""

from __future__ import annotations

import ctypes
import functools
import os
import secrets
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from talos.errors import ArgumentError
from talos.files import built_library

__all__ = ["IdEncoder", "available", "remap_", "sort_pairs", "take"]

_VERSION = 1
_MOST_BUCKETS = 1 << 14
_POINTER, _INT64 = ctypes.c_void_p, ctypes.c_int64


class _SortTask(ctypes.Structure):
    """`SortTask` of core/encode.cpp."""

    _fields_ = [
        *((name, _INT64) for name in ("rows", "num_users", "num_items", "threads")),
        *((name, _POINTER) for name in ("users", "items", "packed", "indptr", "bucket_start")),
        *((name, _POINTER) for name in ("sorted_items", "kept_rows", "repeats")),
        *((name, _POINTER) for name in ("whole_stamps", "float_stamps")),
    ]


@functools.cache
def _library() -> ctypes.CDLL | None:
    """The library, if it was built for this version of the package."""
    found = built_library(__file__, "_encode")
    if found is None:
        return None
    try:
        library = ctypes.CDLL(str(found))
        if library.talos_rows_version() != _VERSION:
            return None
    except (OSError, AttributeError):
        return None
    library.talos_ids_new.restype, library.talos_ids_new.argtypes = _POINTER, [ctypes.c_uint64]
    library.talos_ids_free.argtypes = [_POINTER]
    for name in ("talos_ids_strings", "talos_ids_integers"):
        function = getattr(library, name)
        function.restype, function.argtypes = _INT64, [_POINTER, _POINTER, _INT64, _POINTER, _POINTER]
    library.talos_rows_remap.argtypes = [_POINTER, _INT64, _POINTER, _INT64, _INT64]
    library.talos_rows_sort.restype, library.talos_rows_sort.argtypes = _INT64, [_POINTER]
    library.talos_rows_emit.argtypes = [_POINTER]
    library.talos_rows_take.argtypes = [_POINTER, _INT64, _POINTER, _INT64, _POINTER, _INT64]
    return library


def available() -> bool:
    """Whether the library is there and wanted."""
    return os.environ.get("TALOS_KERNEL", "auto") != "torch" and _library() is not None


def _loaded() -> ctypes.CDLL:
    library = _library()
    assert library is not None, "check `available` first"
    return library


def _threads() -> int:
    return os.cpu_count() or 1


class IdEncoder:
    """Codes of ids that come in blocks, in the order of first occurrence; all strings or all 64-bit integers.

    >>> encoder = IdEncoder() if available() else None
    >>> encoder and [part.tolist() for part in encoder.encode(pl.Series(["b", "a", "b"]))]
    [[0, 1, 0], [0, 1]]
    >>> encoder and [part.tolist() for part in encoder.encode(pl.Series(["c", "a"]))]
    [[2, 1], [0]]
    """

    def __init__(self) -> None:
        library = _loaded()
        self._free, self._ids = library.talos_ids_free, library.talos_ids_new(secrets.randbits(64))

    def __del__(self) -> None:
        if getattr(self, "_ids", None):
            self._free(self._ids)

    def encode(
        self, ids: pl.Series, out: NDArray[np.int32] | None = None
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]] | None:
        """The code of each id, in `out` if given, and where new ids stand; None if an id is missing."""
        rows, library = len(ids), _loaded()
        codes = np.empty(rows, np.int32) if out is None else out
        _check(codes, rows)
        fresh = np.empty(rows, np.int64)
        if ids.dtype == pl.String:
            capsule = ids.__arrow_c_stream__(None)
            count = library.talos_ids_strings(
                self._ids, _pointer_in(capsule), rows, codes.ctypes.data, fresh.ctypes.data
            )
        else:
            if ids.null_count():
                return None
            values = np.ascontiguousarray(ids.to_numpy(), np.int64)
            count = library.talos_ids_integers(
                self._ids, values.ctypes.data, rows, codes.ctypes.data, fresh.ctypes.data
            )
        return None if count < 0 else (codes, fresh[:count].copy())


def _check(array: NDArray[Any], rows: int) -> None:
    """The library writes to plain pointers: what it gets must be as long as it thinks, and in one piece."""
    if not (array.ndim == 1 and len(array) == rows and array.flags.c_contiguous):
        raise ArgumentError(
            f"an array of shape {array.shape}", where="array", expected=f"({rows},), contiguous"
        )


def _pointer_in(capsule: object) -> int:
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return int(get(capsule, b"arrow_array_stream"))


def remap_(values: NDArray[np.int32], position: NDArray[np.int32], low: int = 0) -> None:
    """`values[:] = position[values - low]`, in place; every value must be there."""
    _check(values, len(values))
    _check(position, len(position))
    _loaded().talos_rows_remap(values.ctypes.data, len(values), position.ctypes.data, low, _threads())


def sort_pairs(
    users: NDArray[np.integer[Any]],
    items: NDArray[np.integer[Any]],
    num_users: int,
    num_items: int,
    timestamps: NDArray[Any] | None,
    *,
    in_place: bool = False,
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.uint32], NDArray[np.int32] | None] | None:
    """What `talos.data.arrays.sort_rows` returns: indptr, items, rows and repeats; None if it cannot be done here.

    Takes 8 bytes a row beside the result. With `in_place` items and rows are written over `items` and `users`.
    """
    rows, library = len(users), _loaded()
    stamps = None if timestamps is None else np.ascontiguousarray(timestamps)
    if rows == 0 or (stamps is not None and stamps.dtype not in (np.int64, np.float64)):
        return None
    own_users, own_items = np.ascontiguousarray(users, np.int32), np.ascontiguousarray(items, np.int32)
    packed, indptr = np.empty(rows, np.uint64), np.empty(num_users + 1, np.int64)
    bucket_start = np.empty(_MOST_BUCKETS + 1, np.int64)
    task = _SortTask(
        rows=rows,
        num_users=num_users,
        num_items=num_items,
        threads=_threads(),
        users=own_users.ctypes.data,
        items=own_items.ctypes.data,
        packed=packed.ctypes.data,
        indptr=indptr.ctypes.data,
        bucket_start=bucket_start.ctypes.data,
    )
    distinct = library.talos_rows_sort(ctypes.byref(task))
    if distinct < 0:
        return None
    # what is ours to overwrite, because the caller says so or because it is a copy, becomes the result
    kept = own_users.view(np.uint32) if in_place or own_users is not users else np.empty(distinct, np.uint32)
    codes = own_items if in_place or own_items is not items else np.empty(distinct, np.int32)
    kept, codes = kept[:distinct], codes[:distinct]
    repeats = None if distinct == rows else np.empty(distinct, np.int32)
    task.sorted_items, task.kept_rows = codes.ctypes.data, kept.ctypes.data
    task.repeats = None if repeats is None else repeats.ctypes.data
    if stamps is not None and repeats is not None:
        task.whole_stamps = stamps.ctypes.data if stamps.dtype == np.int64 else None
        task.float_stamps = stamps.ctypes.data if stamps.dtype == np.float64 else None
    library.talos_rows_emit(ctypes.byref(task))
    return indptr, codes, kept, repeats


def take(values: NDArray[Any], rows: NDArray[np.uint32]) -> NDArray[Any]:
    """The values of 4 or 8 bytes at the given positions, all of which must exist."""
    _check(rows, len(rows))
    values, out = np.ascontiguousarray(values), np.empty(len(rows), values.dtype)
    size = values.dtype.itemsize
    _loaded().talos_rows_take(
        values.ctypes.data, size, rows.ctypes.data, len(rows), out.ctypes.data, _threads()
    )
    return out
