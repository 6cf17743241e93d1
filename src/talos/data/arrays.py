"""Work on arrays of tens of millions of rows, on all cores: sort rows into CSR, and take values by position."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from talos.data import compiled

__all__ = ["Codes", "SortedRows", "in_threads", "sort_rows", "take"]

Codes: TypeAlias = NDArray[np.int32]
"""Positions of users or items in their vocabularies."""

# Rows in a block: few enough to stay in a core's cache, because for tens of millions of rows fresh memory costs
# more than the arithmetic.
_BLOCK = 1 << 17


@dataclass(frozen=True)
class SortedRows:
    """Distinct (user, item) pairs in CSR form, and the input row that each was kept from.

    `repeats` counts the input rows of each pair; None if every pair occurred once.
    """

    indptr: NDArray[np.int64]  # (num_users + 1,)
    items: Codes
    rows: NDArray[Any]  # beside `items`; int64, or uint32 from the compiled library
    repeats: NDArray[np.int32] | None = None


def in_threads(work: Callable[[int], None], over: range) -> None:
    """Call `work` with each number of a range, in as many threads as there are cores if the numbers are many.

    Meant for numpy, which releases Python's lock while it computes.
    """
    if len(over) < 8:
        for i in over:
            work(i)
    else:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for _ in pool.map(work, over):
                pass


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

    Runs in the compiled library where it is built; with `in_place` that may overwrite `users` and `items`. Elsewhere
    user, item and row number are packed into one 64-bit integer where they fit: sorting plain integers is several
    times faster than sorting keys with a payload.
    """
    if compiled.available():
        found = compiled.sort_pairs(users, items, num_users, num_items, timestamps, in_place=in_place)
        if found is not None:
            return SortedRows(*found)
    n = len(users)
    user_bits, item_bits, row_bits = (max(0, size - 1).bit_length() for size in (num_users, num_items, n))
    if user_bits + item_bits + row_bits <= 64:
        packed = pl.Series(_pack(users, items, item_bits, row_bits)).sort().to_numpy()
        codes, rows, last = _unpack(packed, item_bits, row_bits)
        first_of_user = np.arange(num_users, dtype=np.uint64) << np.uint64(item_bits + row_bits)
        starts = np.searchsorted(packed, first_of_user)
    else:
        rows = np.lexsort((items, users))
        codes, sorted_users = items[rows].astype(np.int32), users[rows]
        last = np.ones(n, bool)
        last[:-1] = (sorted_users[1:] != sorted_users[:-1]) | (codes[1:] != codes[:-1])
        starts = np.searchsorted(sorted_users, np.arange(num_users))
    indptr = np.append(starts, n).astype(np.int64)
    if not last.all():
        if timestamps is not None:
            _move_latest_to_end(rows, last, timestamps)
        indptr -= np.searchsorted(np.flatnonzero(~last), indptr)
        codes, rows = _compressed(last, codes, rows)
        return SortedRows(indptr, codes, rows, np.diff(np.flatnonzero(last), prepend=-1).astype(np.int32))
    return SortedRows(indptr, codes, rows)


def take(values: NDArray[Any], places: NDArray[Any]) -> NDArray[Any]:
    """The values at the given positions, all of which must exist."""
    if places.dtype == np.uint32 and values.dtype.itemsize in (4, 8):
        return compiled.take(values, places)
    found = np.empty(len(places), values.dtype)

    def take_block(start: int) -> None:
        some = places[start : start + _BLOCK]
        # "clip" writes straight into the output, where the default would go through a buffer
        np.take(values, some, out=found[start : start + len(some)], mode="clip")

    in_threads(take_block, range(0, len(places), _BLOCK))
    return found


def _compressed(
    keep: NDArray[np.bool_], codes: Codes, rows: NDArray[np.int64]
) -> tuple[Codes, NDArray[np.int64]]:
    """Both arrays where `keep` is true."""
    starts = range(0, len(keep), _BLOCK)
    ends = np.cumsum([np.count_nonzero(keep[start : start + _BLOCK]) for start in starts])
    kept_codes, kept_rows = np.empty(ends[-1], codes.dtype), np.empty(ends[-1], rows.dtype)

    def compress_block(start: int) -> None:
        end = int(ends[start // _BLOCK])
        flags = keep[start : start + _BLOCK]
        here = slice(end - int(np.count_nonzero(flags)), end)
        kept_codes[here] = codes[start : start + _BLOCK][flags]
        kept_rows[here] = rows[start : start + _BLOCK][flags]

    in_threads(compress_block, starts)
    return kept_codes, kept_rows


def _unpack(
    packed: NDArray[np.uint64], item_bits: int, row_bits: int
) -> tuple[Codes, NDArray[np.int64], NDArray[np.bool_]]:
    """Items and row numbers of sorted packed rows, and a flag on the last row of each pair."""
    n = len(packed)
    codes, rows, last = np.empty(n, np.int32), np.empty(n, np.int64), np.ones(n, bool)
    shift, item_mask, row_mask = (
        np.uint64(row_bits),
        np.uint64((1 << item_bits) - 1),
        np.uint64((1 << row_bits) - 1),
    )

    def unpack_block(start: int) -> None:
        stop = min(start + _BLOCK, n)
        block = packed[start : stop + 1]  # one row more, to compare the block's last row with its successor
        last[start : start + len(block) - 1] = (block[1:] ^ block[:-1]) > row_mask
        block = block[: stop - start]
        rows[start:stop] = block & row_mask
        codes[start:stop] = (block >> shift) & item_mask

    in_threads(unpack_block, range(0, n, _BLOCK))
    return codes, rows, last


def _pack(
    users: NDArray[np.integer[Any]], items: NDArray[np.integer[Any]], item_bits: int, row_bits: int
) -> NDArray[np.uint64]:
    """One integer per row: user, item and row number, from the highest bits to the lowest."""
    packed = np.empty(len(users), np.uint64)

    def pack_block(start: int) -> None:
        block = users[start : start + _BLOCK].astype(np.uint64)
        block <<= np.uint64(item_bits)
        block |= items[start : start + _BLOCK].astype(np.uint64)
        block <<= np.uint64(row_bits)
        block |= np.arange(start, start + len(block), dtype=np.uint64)
        packed[start : start + len(block)] = block

    in_threads(pack_block, range(0, len(users), _BLOCK))
    return packed


def _move_latest_to_end(rows: NDArray[np.int64], last: NDArray[np.bool_], timestamps: NDArray[Any]) -> None:
    """Overwrite the last row number of each repeated pair with that of the pair's latest row.

    `rows` is sorted by pair and then by row number; `last` flags the end of each pair's rows.
    """
    repeats = np.flatnonzero(~last)
    # the rows of a repeated pair are all that are not its last, and the row after them
    member = np.zeros(len(rows), bool)
    member[repeats] = True
    member[repeats + 1] = True
    places = np.flatnonzero(member)
    ends = np.flatnonzero(last[places])
    starts = np.concatenate([[0], ends[:-1] + 1])
    stamps = timestamps[rows[places]]
    latest = np.repeat(np.maximum.reduceat(stamps, starts), np.diff(np.append(starts, len(places))))
    # among equal timestamps the highest row number wins
    winner = np.maximum.reduceat(np.where(stamps == latest, np.arange(len(places)), -1), starts)
    rows[places[ends]] = rows[places[winner]]
