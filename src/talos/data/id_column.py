"""A column of ids becomes a vocabulary and codes, a block at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from talos.data.arrays import Codes, new_ids, remap_
from talos.data.vocabulary import Vocabulary
from talos.errors import DataError, Option

__all__ = ["INTEGER", "Growing", "IdColumn", "are_integers", "mixed_ids"]

INTEGER = r"^(0|-?[1-9][0-9]{0,17})$"
"""An integer in the one spelling that a number is printed in; 18 digits always fit into 64 bits."""

_ROWS_AT_ONCE = 1 << 20


def are_integers(ids: pl.Series) -> bool:
    """Whether all of these strings are integers in the one spelling that a number is printed in."""
    return bool(ids.str.contains(INTEGER).all())


def mixed_ids(role: str) -> DataError:
    """The error about ids of two types."""
    return DataError(
        f"{role} ids are strings in one file and integers in another",
        expected="ids of one type",
        option=Option("ids", "string", "makes them all strings"),
    )


class Growing:
    """An array that is filled block by block; it has room for the expected number of values, and grows."""

    def __init__(self, expected: int, dtype: Any) -> None:
        self._array = np.empty(max(expected, 1), dtype)
        self.length = 0

    def room(self, count: int) -> NDArray[Any]:
        """The place for the next values."""
        start, self.length = self.length, self.length + count
        if self.length > len(self._array):
            larger = np.empty(max(self.length, len(self._array) * 9 // 8), self._array.dtype)
            larger[:start] = self._array[:start]
            self._array = larger
        return self._array[start : self.length]

    @property
    def values(self) -> NDArray[Any]:
        """The values so far."""
        return self._array[: self.length]

    def convert(self, dtype: Any) -> None:
        """Change the type of all values."""
        self._array = self._array.astype(dtype)


class IdColumn:
    """The ids of users or items as they come: codes, and in the end a vocabulary, ascending.

    Text ids become integers if all of them are integers. Integers are kept as they are, in 32 bits, until their range
    is known: then a table of that range can take the place of a hash table.

    Args:
        role: of the column, for messages.
        as_strings: whether integers become strings.
        check: called with ids that are new, where they are strings; raises an error if one cannot be used.
        drained: whether codes are taken out by `drain` as they come: then integers are hashed from the first on.

    >>> column = IdColumn("user")
    >>> column.add(pl.Series([7, 9, 7]))
    >>> vocabulary, codes = column.finish()
    >>> vocabulary.ids.to_list(), codes.tolist()
    ([7, 9], [0, 1, 0])
    """

    def __init__(
        self,
        role: str,
        *,
        as_strings: bool = False,
        check: Callable[[pl.Series], None] | None = None,
        drained: bool = False,
    ) -> None:
        self.role, self.as_strings, self.check = role, as_strings, check
        self._codes: Growing | None = None
        self._fresh: list[pl.Series] = []  # new ids of each block, in the order of their codes
        # None: `_codes` are the integers themselves
        self._ids = new_ids() if as_strings or drained else None
        self._spelled = as_strings  # whether `_ids` holds strings
        self._kinds: set[str] = set()
        self._empty: pl.DataType = pl.Int64()  # the type of a column without ids

    def __len__(self) -> int:
        return 0 if self._codes is None else self._codes.length

    def add(self, ids: pl.Series, *, text: bool = False, expected: int = 0) -> None:
        """Take the next block of strings or 64-bit integers, none of them missing.

        Args:
            ids: the block.
            text: whether strings may be integers as they are written in a text file.
            expected: about how many ids there are in all.
        """
        if not len(ids):
            self._empty = ids.dtype
            return
        if self._codes is None:
            self._codes = Growing(max(expected, len(ids)), np.int32)
        if ids.dtype == pl.String:
            self._kinds.add("text" if text else "string")
            self._spell()
        else:
            self._kinds.add("integer")
            if self._ids is None and ids.is_between(-(2**31), 2**31 - 1).all():
                self._codes.room(len(ids))[:] = ids.to_numpy()
                return
            self._hash_integers()
            ids = ids.cast(pl.String) if self._spelled else ids
        self._encode(ids, self._codes.room(len(ids)))

    def _encode(self, ids: pl.Series, out: Codes) -> None:
        assert self._ids is not None
        found = self._ids.encode(ids, out)
        assert found is not None, "a missing id"
        if len(found[1]):
            new = ids.gather(found[1])
            if self.check is not None and new.dtype == pl.String:
                self.check(new)
            self._fresh.append(new)

    def _hash_integers(self) -> None:
        """Codes in place of the integers so far."""
        if self._ids is None and self._codes is not None:
            self._ids, values = new_ids(), self._codes.values
            for start in range(0, len(values), _ROWS_AT_ONCE):
                some = values[start : start + _ROWS_AT_ONCE]
                self._encode(pl.Series(some.astype(np.int64)), some)

    def _spell(self) -> None:
        """Strings in place of the integers so far; their codes stay."""
        if not self._spelled:
            self._hash_integers()
            self._ids, before = new_ids(), self._fresh
            self._spelled, self._fresh = True, []
            for ids in before:
                self._encode(ids.cast(pl.String), np.empty(len(ids), np.int32))

    def finish(self) -> tuple[Vocabulary, Codes]:
        """The vocabulary, ascending, and the code of each row."""
        if self._codes is None:
            return Vocabulary(pl.Series([], dtype=self._empty)), np.empty(0, np.int32)
        codes = self._codes.values
        if self._ids is None:
            low = int(codes.min())
            width = int(codes.max()) - low + 1
            if width <= max(4 * len(codes), 1 << 16):
                return self._by_table(codes, low, width)
            self._hash_integers()
        vocabulary, position = self.order()
        remap_(codes, position)
        return vocabulary, codes

    def drain(self) -> Codes:
        """The codes of the rows since the last call; they are not kept, and `order` says what they become."""
        assert self._codes is not None
        codes, self._codes = self._codes.values, None
        return codes

    def order(self) -> tuple[Vocabulary, Codes]:
        """The vocabulary, ascending, and the position in it of each code so far."""
        assert self._ids is not None
        distinct = pl.concat(self._fresh)
        if self._spelled and not self.as_strings and "string" not in self._kinds and are_integers(distinct):
            distinct = distinct.cast(pl.Int64)
        elif self._spelled and not self.as_strings and "integer" in self._kinds:
            raise mixed_ids(self.role)
        # Sorting and looking up the codes again takes a fifth of the time of finding the order.
        ascending = distinct.sort()
        found = self._ids.encode(ascending.cast(pl.String) if self._spelled else ascending)
        assert found is not None
        position = np.empty(len(ascending), np.int32)
        position[found[0]] = np.arange(len(ascending), dtype=np.int32)
        self._ids, self._fresh = None, []
        return Vocabulary(ascending.rename("")), position

    def _by_table(self, codes: Codes, low: int, width: int) -> tuple[Vocabulary, Codes]:
        """From integers within a narrow range to codes, by a table of that range."""
        present = np.zeros(width, bool)
        for start in range(0, len(codes), _ROWS_AT_ONCE):
            present[codes[start : start + _ROWS_AT_ONCE].astype(np.int64) - low] = True
        position = np.cumsum(present, dtype=np.int32)
        position -= 1
        remap_(codes, position, low)
        return Vocabulary(pl.Series(np.flatnonzero(present).astype(np.int64) + low)), codes
