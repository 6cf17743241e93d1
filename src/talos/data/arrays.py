"""Work on arrays of tens of millions of rows: ids to codes, rows into CSR, values by position.

Ids and rows go through a compiled library, which is built with the package if there is a C++ compiler (`setup.py`,
`core/encode.cpp`). Without it, or with `TALOS_KERNEL=torch`, the short reference beside each use of it does the same,
several times slower.
"""

from __future__ import annotations

import ctypes
import functools
import os
import secrets
import weakref
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from talos.checks import require
from talos.files import built_library

__all__ = ["ROWS_AT_ONCE", "Codes", "Growing", "IdEncoder", "SortedRows", "library", "sort_rows", "take"]

Codes: TypeAlias = NDArray[np.int32]
"""Positions of users or items in their vocabularies."""

_VERSION = 1
_MOST_BUCKETS = 1 << 14
ROWS_AT_ONCE = 1 << 20
_POINTER, _INT64 = ctypes.c_void_p, ctypes.c_int64
_pointer_in = ctypes.PYFUNCTYPE(_POINTER, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {  # of core/encode.cpp: result and arguments
    "talos_ids_new": (_POINTER, [ctypes.c_uint64]),
    "talos_ids_free": (None, [_POINTER]),
    "talos_ids_strings": (_INT64, [_POINTER, _POINTER, _INT64, _POINTER, _POINTER]),
    "talos_ids_integers": (_INT64, [_POINTER, _POINTER, _INT64, _POINTER, _POINTER]),
    "talos_rows_sort": (_INT64, [_POINTER]),
    "talos_rows_emit": (None, [_POINTER]),
}


class _SortTask(ctypes.Structure):
    """`SortTask` of core/encode.cpp."""

    _fields_ = [
        *((name, _INT64) for name in ("rows", "num_users", "num_items", "threads")),
        *((name, _POINTER) for name in ("users", "items", "packed", "indptr", "bucket_start")),
        *((name, _POINTER) for name in ("sorted_items", "kept_rows", "repeats")),
        *((name, _POINTER) for name in ("whole_stamps", "float_stamps")),
    ]


@functools.cache
def _built() -> ctypes.CDLL | None:
    """The library, if it was built for this version of the package."""
    found = built_library(__file__, "_encode")
    try:
        core = None if found is None else ctypes.CDLL(str(found))
        if core is None or core.talos_rows_version() != _VERSION:
            return None
    except (OSError, AttributeError):
        return None
    for name, signature in _SIGNATURES.items():
        function = getattr(core, name)
        function.restype, function.argtypes = signature
    return core


def library() -> ctypes.CDLL | None:
    """The compiled library, if it is there and wanted."""
    return None if os.environ.get("TALOS_KERNEL") == "torch" else _built()


class IdEncoder:
    """Codes of ids that come in blocks, in the order of first occurrence; all strings or all 64-bit integers.

    >>> encoder = IdEncoder()
    >>> [part.tolist() for part in encoder.encode(pl.Series(["b", "a", "b"]))]
    [[0, 1, 0], [0, 1]]
    >>> [part.tolist() for part in encoder.encode(pl.Series(["c", "a"]))]
    [[2, 1], [0]]
    """

    def __init__(self) -> None:
        self._core = library()
        if self._core is None:
            self._known: dict[Any, int] = {}
        else:
            self._ids = self._core.talos_ids_new(secrets.randbits(64))
            weakref.finalize(self, self._core.talos_ids_free, self._ids)

    def encode(self, ids: pl.Series) -> tuple[Codes, NDArray[np.int64]]:
        """The code of each id, and the positions of those that are new."""
        require(not ids.null_count(), "a missing id", where="ids", expected="an id in every row")
        if self._core is None:
            known, before = self._known, len(self._known)
            codes = np.fromiter(
                (known.setdefault(one, len(known)) for one in ids.to_list()), np.int32, len(ids)
            )
            distinct, first = np.unique(codes, return_index=True)
            return codes, first[distinct >= before]
        codes, fresh = np.empty(len(ids), np.int32), np.empty(len(ids), np.int64)
        outputs = len(ids), codes.ctypes.data, fresh.ctypes.data
        if ids.dtype == pl.String:
            capsule = ids.__arrow_c_stream__(None)
            stream = _pointer_in(capsule, b"arrow_array_stream")
            count = self._core.talos_ids_strings(self._ids, stream, *outputs)
        else:
            values = np.ascontiguousarray(ids.to_numpy(), np.int64)
            count = self._core.talos_ids_integers(self._ids, values.ctypes.data, *outputs)
        if count < 0:
            raise RuntimeError("this version of polars stores strings in another way")
        return codes, fresh[:count].copy()


class Growing:
    """An array that is filled block by block.

    >>> column = Growing()
    >>> column.add(np.array([1, 2]), expected=3)
    >>> column.add(np.array([0.5]))
    >>> column.values.tolist()
    [1.0, 2.0, 0.5]
    """

    def __init__(self) -> None:
        self._array: NDArray[Any] = np.empty(0, bool)
        self._length = 0

    @property
    def values(self) -> NDArray[Any]:
        """The values so far."""
        return self._array[: self._length]

    def add(self, block: NDArray[Any], expected: int = 0) -> None:
        """Take the next values, of about `expected` in all; their type is one that has room for each block's."""
        kind, end = np.promote_types(self._array.dtype, block.dtype), self._length + len(block)
        if end > len(self._array) or kind != self._array.dtype:
            larger = np.empty(max(end, expected, len(self._array) * 9 // 8), kind)
            larger[: self._length] = self.values
            self._array = larger
        self._array[self._length : end] = block
        self._length = end


@dataclass(frozen=True)
class SortedRows:
    """Distinct (user, item) pairs in CSR form, and the input row that each was kept from.

    `repeats` counts the input rows of each pair; None if every pair occurred once.
    """

    indptr: NDArray[np.int64]  # (num_users + 1,)
    items: Codes
    rows: NDArray[np.uint32]  # beside `items`
    repeats: NDArray[np.int32] | None = None


def sort_rows(
    users: NDArray[np.integer[Any]],
    items: NDArray[np.integer[Any]],
    num_users: int,
    num_items: int,
    timestamps: NDArray[Any] | None,
    *,
    in_place: bool = False,
) -> SortedRows:
    """Sort rows by (user, item) and keep one row of each pair: the latest, or the last where times are equal or absent.

    With `in_place` the result may be written over `users` and `items`.
    """
    core = library()
    if core is not None and len(users) and (timestamps is None or timestamps.dtype in (np.int64, np.float64)):
        found = _sort_compiled(core, users, items, num_users, num_items, timestamps, in_place)
        if found is not None:
            return found
    order = np.lexsort((items, users) if timestamps is None else (timestamps, items, users))
    users, codes = users[order], items[order].astype(np.int32)
    last = np.ones(len(users), bool)
    last[:-1] = (users[1:] != users[:-1]) | (codes[1:] != codes[:-1])
    indptr = np.searchsorted(users[last], np.arange(num_users + 1)).astype(np.int64)
    repeats = None if last.all() else np.diff(np.flatnonzero(last), prepend=-1).astype(np.int32)
    return SortedRows(indptr, codes[last], order[last].astype(np.uint32), repeats)


def _sort_compiled(
    core: ctypes.CDLL,
    users: NDArray[np.integer[Any]],
    items: NDArray[np.integer[Any]],
    num_users: int,
    num_items: int,
    timestamps: NDArray[Any] | None,
    in_place: bool,
) -> SortedRows | None:
    """`sort_rows` by the library, in 8 bytes a row beside the result; None if a row does not fit into 64 bits."""
    made = np.ascontiguousarray if in_place else np.array
    kept: NDArray[np.int32] = made(users, np.int32)  # the result is written over these two
    codes: Codes = made(items, np.int32)
    rows, indptr = len(users), np.empty(num_users + 1, np.int64)
    packed, bucket_start = np.empty(rows, np.uint64), np.empty(_MOST_BUCKETS + 1, np.int64)
    task = _SortTask(
        rows=rows,
        num_users=num_users,
        num_items=num_items,
        threads=os.cpu_count() or 1,
        users=kept.ctypes.data,
        items=codes.ctypes.data,
        packed=packed.ctypes.data,
        indptr=indptr.ctypes.data,
        bucket_start=bucket_start.ctypes.data,
        sorted_items=codes.ctypes.data,
        kept_rows=kept.ctypes.data,
    )
    distinct = core.talos_rows_sort(ctypes.byref(task))
    if distinct < 0:
        return None
    repeats = None
    if distinct < rows:
        repeats = np.empty(distinct, np.int32)
        task.repeats = repeats.ctypes.data
        if timestamps is not None:
            stamps = np.ascontiguousarray(timestamps)
            kind = "whole_stamps" if stamps.dtype == np.int64 else "float_stamps"
            setattr(task, kind, stamps.ctypes.data)
    core.talos_rows_emit(ctypes.byref(task))
    return SortedRows(indptr, codes[:distinct], kept.view(np.uint32)[:distinct], repeats)


def take(
    values: NDArray[Any], positions: NDArray[np.integer[Any]], out: NDArray[Any] | None = None
) -> NDArray[Any]:
    """The values at the given positions, all of which must exist, without a 64-bit copy of all positions.

    They are written to `out`, if it is given, which may be `positions`.

    >>> take(np.array([5, 7]), np.array([1, 0, 1], np.uint32)).tolist()
    [7, 5, 7]
    """
    found = np.empty(len(positions), values.dtype) if out is None else out
    for start in range(0, len(positions), ROWS_AT_ONCE):
        here = slice(start, start + ROWS_AT_ONCE)
        np.take(values, positions[here].astype(np.int64), out=found[here], mode="clip")
    return found
