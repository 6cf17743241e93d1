"""A column of ids becomes a vocabulary and codes, a block at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from talos.data.arrays import Codes, IdEncoder, take
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

    def __len__(self) -> int:
        return self._length

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


class IdColumn:
    """The ids of users or items as they come: codes, and in the end a vocabulary, ascending.

    All ids have the type of the first block, strings or integers; those of text files become integers in the end if all
    of them are integers.

    Args:
        role: of the column, for messages.
        as_strings: whether integers become strings.
        check: called with ids that are new, where they are strings; raises an error if one cannot be used.

    >>> column = IdColumn("user")
    >>> column.add(pl.Series([7, 9, 7]))
    >>> vocabulary, codes = column.finish()
    >>> vocabulary.ids.to_list(), codes.tolist()
    ([7, 9], [0, 1, 0])
    """

    def __init__(
        self, role: str, *, as_strings: bool = False, check: Callable[[pl.Series], None] | None = None
    ) -> None:
        self.role, self.as_strings, self.check = role, as_strings, check
        self._type: pl.DataType | None = None
        self._kinds: set[str] = set()
        self._encoder = IdEncoder()
        self._new: list[pl.Series] = []  # the new ids of each block, in the order of their codes
        self._rows = Growing()  # what `add` keeps: codes, or integers as they are until `finish`

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, ids: pl.Series, *, text: bool = False, expected: int = 0) -> None:
        """Take the next block of strings or 64-bit integers, none of them missing.

        Args:
            ids: the block.
            text: whether strings may be integers as they are written in a text file.
            expected: about how many ids there are in all.
        """
        ids = self._typed(ids, text=text)
        if ids.dtype == pl.String:
            self._rows.add(self._encoded(ids), expected)
        else:
            short = ids.is_between(-(2**31), 2**31 - 1).all()
            self._rows.add(ids.to_numpy().astype(np.int32 if short else np.int64, copy=False), expected)

    def codes_of(self, ids: pl.Series, *, text: bool = False) -> Codes:
        """The codes of the next block, which are not kept here: `order` says what they become in the end."""
        return self._encoded(self._typed(ids, text=text))

    def _typed(self, ids: pl.Series, *, text: bool) -> pl.Series:
        """A block in the type of the first one. In the end `order` says whether integers may be strings."""
        if self.as_strings:
            ids, text = ids.cast(pl.String), False
        self._kinds.add("integer" if ids.dtype != pl.String else "text" if text else "string")
        if self._type is None:
            self._type = ids.dtype
        if ids.dtype == self._type or ids.dtype != pl.String:
            return ids.cast(self._type)
        if self.check is not None:
            self.check(ids)
        if "string" in self._kinds or not are_integers(ids):
            raise mixed_ids(self.role)
        return ids.cast(self._type)

    def _encoded(self, ids: pl.Series) -> Codes:
        codes, places = self._encoder.encode(ids)
        self._new.append(ids.gather(places))
        if self.check is not None and ids.dtype == pl.String:
            self.check(self._new[-1])
        return codes

    def finish(self) -> tuple[Vocabulary, Codes]:
        """The vocabulary, ascending, and the code of each row that was added."""
        rows = self._rows.values
        if self._type != pl.String:
            found = _by_table(rows)
            if found is not None:
                return found
            rows = self._encoded(pl.Series(rows, dtype=pl.Int64))
        vocabulary, position = self.order()
        return vocabulary, take(position, rows, out=rows)

    def order(self) -> tuple[Vocabulary, Codes]:
        """The vocabulary, ascending, and the position in it of each code so far."""
        ids = new = pl.concat(self._new)
        if new.dtype == pl.String and "string" not in self._kinds and are_integers(new):
            ids = new.cast(pl.Int64)
        elif new.dtype == pl.String and "integer" in self._kinds:
            raise mixed_ids(self.role)
        # Sorting and looking up the codes again takes a fifth of the time of finding the order.
        ascending = ids.sort()
        before, _ = self._encoder.encode(ascending.cast(new.dtype))
        position = np.empty(len(ids), np.int32)
        position[before] = np.arange(len(ids), dtype=np.int32)
        return Vocabulary(ascending.rename("")), position


def _by_table(values: NDArray[Any]) -> tuple[Vocabulary, Codes] | None:
    """The vocabulary and the codes of integers by a table of their range; None if that is too wide."""
    low, high = (int(values.min()), int(values.max())) if len(values) else (0, -1)
    width = high - low + 1
    if width > max(4 * len(values), 1 << 16):
        return None
    present = np.zeros(width, bool)
    codes = values.astype(np.int32, copy=False)  # written over
    blocks = [slice(start, start + _ROWS_AT_ONCE) for start in range(0, len(values), _ROWS_AT_ONCE)]
    for here in blocks:
        present[values[here].astype(np.int64) - low] = True
    position = np.cumsum(present, dtype=np.int32) - np.int32(1)
    for here in blocks:
        codes[here] = position[values[here].astype(np.int64) - low]
    return Vocabulary(pl.Series(np.flatnonzero(present).astype(np.int64) + low)), codes
