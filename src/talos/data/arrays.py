"""Work on arrays of tens of millions of rows: ids to codes, rows into CSR, values by position.

The compiled library does it (`talos.data.compiled`). Where that is not built, or with `TALOS_KERNEL=torch`, the short
reference here does the same, several times slower.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from talos.data import compiled

__all__ = ["Codes", "PlainIds", "SortedRows", "new_ids", "remap_", "sort_rows", "take"]

Codes: TypeAlias = NDArray[np.int32]
"""Positions of users or items in their vocabularies."""


class PlainIds:
    """The reference of `talos.data.compiled.IdEncoder`.

    >>> [part.tolist() for part in PlainIds().encode(pl.Series(["b", "a", "b"]))]
    [[0, 1, 0], [0, 1]]
    """

    def __init__(self) -> None:
        self._known: dict[Any, int] = {}

    def encode(self, ids: pl.Series, out: Codes | None = None) -> tuple[Codes, NDArray[np.int64]] | None:
        """The code of each id, in `out` if given, and where new ids stand; None if an id is missing."""
        if ids.null_count():
            return None
        before, known = len(self._known), self._known
        codes = np.fromiter((known.setdefault(one, len(known)) for one in ids.to_list()), np.int32, len(ids))
        fresh = np.unique(codes, return_index=True)
        if out is not None:
            out[:] = codes
        return (codes if out is None else out), fresh[1][fresh[0] >= before]


def new_ids() -> compiled.IdEncoder | PlainIds:
    """An encoder of ids."""
    return compiled.IdEncoder() if compiled.available() else PlainIds()


def remap_(values: Codes, position: Codes, low: int = 0) -> None:
    """`values[:] = position[values - low]`, in place; every value must be there."""
    if compiled.available():
        compiled.remap_(values, position, low)
    else:
        values[:] = position[values.astype(np.int64) - low]


@dataclass(frozen=True)
class SortedRows:
    """Distinct (user, item) pairs in CSR form, and the input row that each was kept from.

    `repeats` counts the input rows of each pair; None if every pair occurred once.
    """

    indptr: NDArray[np.int64]  # (num_users + 1,)
    items: Codes
    rows: NDArray[Any]  # beside `items`; int64, or uint32 from the compiled library
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

    With `in_place` the compiled library may overwrite `users` and `items`.
    """
    if compiled.available():
        found = compiled.sort_pairs(users, items, num_users, num_items, timestamps, in_place=in_place)
        if found is not None:
            return SortedRows(*found)
    order = np.lexsort((items, users) if timestamps is None else (timestamps, items, users))
    users, codes = users[order], items[order].astype(np.int32)
    last = np.ones(len(users), bool)
    last[:-1] = (users[1:] != users[:-1]) | (codes[1:] != codes[:-1])
    indptr = np.searchsorted(users[last], np.arange(num_users + 1)).astype(np.int64)
    repeats = None if last.all() else np.diff(np.flatnonzero(last), prepend=-1).astype(np.int32)
    return SortedRows(indptr, codes[last], order[last], repeats)


def take(values: NDArray[Any], places: NDArray[Any]) -> NDArray[Any]:
    """The values at the given positions, all of which must exist."""
    if places.dtype == np.uint32 and values.dtype.itemsize in (4, 8) and compiled.available():
        return compiled.take(values, places)
    found: NDArray[Any] = values[places]
    return found
