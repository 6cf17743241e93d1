"""Vocabularies: the caller's ids of users or items, the position of each, and columns of ids that become both."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from talos.checks import require
from talos.data.arrays import ROWS_AT_ONCE, Codes, Growing, IdEncoder, take
from talos.errors import DataError, Option

__all__ = [
    "INTEGER",
    "IdColumn",
    "Ids",
    "Vocabulary",
    "are_integers",
    "as_id_series",
    "spelled_as",
]

INTEGER = r"^(0|-?[1-9][0-9]{0,17})$"
"""An integer in the one spelling that a number is printed in; 18 digits always fit into 64 bits."""

# So few ids are looked up one by one, which is quicker than a search by polars: that wakes its threads and waits for
# them, on a busy machine for as long as a time slice of every other process takes.
_FEW = 16

Ids: TypeAlias = pl.Series | Sequence[str] | Sequence[int] | Sequence[str | int] | NDArray[Any]


class Vocabulary:
    """Distinct ids in ascending order; the position of an id is its code, so equal sets of ids get equal codes.

    Args:
        ids: distinct, ascending ids, all strings or all integers.

    >>> animals = Vocabulary.of(["dog", "cat", "dog"])
    >>> animals.ids.to_list()
    ['cat', 'dog']
    >>> animals.encode(["dog", "bird"]).tolist()
    [1, -1]
    >>> animals.decode([1, 0]).to_list()
    ['dog', 'cat']
    """

    def __init__(self, ids: pl.Series) -> None:
        self.ids = ids

    @classmethod
    def of(cls, ids: Ids) -> Vocabulary:
        """The vocabulary of all distinct values of `ids`."""
        return cls(as_id_series(ids, "ids").unique().sort())

    def __len__(self) -> int:
        return len(self.ids)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Vocabulary) and self.ids.dtype == other.ids.dtype and self.ids.equals(other.ids)
        )

    def __repr__(self) -> str:
        return f"Vocabulary({len(self)} {'strings' if self.ids.dtype == pl.String else 'integers'})"

    def encode(self, ids: Ids) -> NDArray[np.int64]:
        """Positions of `ids`, -1 for those that are not there; an integer equals the string it is printed as.

        >>> Vocabulary.of(["7", "08", "x"]).encode([7, 8]).tolist()
        [1, -1]
        >>> Vocabulary.of([7, 8]).encode(["08", "7", "x"]).tolist()
        [-1, 0, -1]
        """
        wanted = spelled_as(as_id_series(ids, "ids"), self.ids.dtype)
        if len(wanted) <= _FEW or len(self) == 0:
            return np.array([self._position(one) for one in wanted.to_list()], np.int64)
        places = np.minimum(np.asarray(self.ids.search_sorted(wanted), np.int64), len(self) - 1)
        found = self.ids.gather(places).eq_missing(wanted).to_numpy()
        return np.where(found, places, -1)

    def _position(self, wanted: str | int | None) -> int:
        """The position of one id, -1 if it is not there."""
        place = len(self) if wanted is None else bisect_left(self.ids, wanted)
        return place if place < len(self) and self.ids[place] == wanted else -1

    def decode(self, codes: NDArray[np.integer[Any]] | Sequence[int]) -> pl.Series:
        """The ids at the given positions."""
        return self.ids[
            np.asarray(codes, np.int64)
        ]  # `gather` makes a query plan first, for half of its time


def spelled_as(ids: pl.Series, dtype: pl.DataType) -> pl.Series:
    """Ids as integers or as strings; null where a string is not what an integer is printed as.

    >>> spelled_as(pl.Series(["7", "08", "x"]), pl.Int64()).to_list()
    [7, None, None]
    >>> spelled_as(pl.Series([7, 8]), pl.String()).to_list()
    ['7', '8']
    """
    if ids.dtype == dtype or dtype == pl.String:
        return ids.cast(dtype)
    numbers = ids.cast(pl.Int64, strict=False)
    return numbers.set((numbers.cast(pl.String) != ids).fill_null(value=False), None)


def as_id_series(ids: Ids | Iterable[Any], name: str) -> pl.Series:
    """Ids as a polars series of strings or 64-bit integers; a `DataError` that names `name` if they are neither."""
    expected = "all strings or all integers"
    try:
        series = ids if isinstance(ids, pl.Series) else pl.Series(name, ids, strict=True)
    except UnicodeEncodeError as error:
        found = error.object[error.start : error.end]
        raise DataError(f"half a character ({found!r})", where=name, expected="valid Unicode") from None
    except (TypeError, pl.exceptions.PolarsError, OverflowError) as error:
        raise DataError("mixed types", where=name, expected=expected) from error
    check = partial(require, where=name, error=DataError)
    row = series.is_null().arg_max() if series.null_count() else None
    check(row is None, f"missing id at row {row}", expected="an id in every row")
    if series.dtype in (pl.String, pl.Categorical, pl.Enum):
        return series.cast(pl.String)
    fits = len(series) == 0 or series.dtype.is_integer()
    check(fits, f"values of type {series.dtype}", expected=expected)
    numbers = series.cast(pl.Int64, strict=False)
    check(not numbers.null_count(), "an integer beyond 64 bits", expected="ids within 64 bits")
    return numbers


def are_integers(ids: pl.Series) -> bool:
    """Whether all of these strings are integers in the one spelling that a number is printed in."""
    return bool(ids.str.contains(INTEGER).all())


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
        self, role: str, *, as_strings: bool = False, check: Callable[[pl.Series], None] = lambda _: None
    ) -> None:
        self.role, self.as_strings, self.check = role, as_strings, check
        self._type: pl.DataType | None = None
        self._kinds: set[str] = set()
        self._encoder = IdEncoder()
        self._new: list[pl.Series] = []  # the new ids of each block, in the order of their codes
        self._rows = Growing()  # what `add` keeps: codes, or integers as they are until `finish`

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
        self._type = self._type or ids.dtype
        if ids.dtype == pl.String and self._type != pl.String:
            self.check(ids)
            if "string" in self._kinds or not are_integers(ids):
                raise _mixed_ids(self.role)
        return ids.cast(self._type)

    def _encoded(self, ids: pl.Series) -> Codes:
        codes, places = self._encoder.encode(ids)
        self._new.append(ids.gather(places))
        if ids.dtype == pl.String:
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
            raise _mixed_ids(self.role)
        # Sorting and looking up the codes again takes a fifth of the time of finding the order.
        ascending = ids.sort()
        before, _ = self._encoder.encode(ascending.cast(new.dtype))
        position = np.empty(len(ids), np.int32)
        position[before] = np.arange(len(ids), dtype=np.int32)
        return Vocabulary(ascending.rename("")), position


def _mixed_ids(role: str) -> DataError:
    """The error about ids of two types."""
    return DataError(
        f"{role} ids are strings in one file and integers in another",
        expected="ids of one type",
        option=Option("ids", "string", "makes them all strings"),
    )


def _by_table(values: NDArray[Any]) -> tuple[Vocabulary, Codes] | None:
    """The vocabulary and the codes of integers, which are written over; None if a table of their range is too large."""
    low, high = (int(values.min()), int(values.max())) if len(values) else (0, -1)
    width = high - low + 1
    if width > min(max(4 * len(values), 1 << 16), 1 << 31):
        return None
    values -= low
    present = np.zeros(width, bool)
    for start in range(0, len(values), ROWS_AT_ONCE):  # numpy makes 64-bit copies of positions
        present[values[start : start + ROWS_AT_ONCE]] = True
    position = np.cumsum(present, dtype=np.int32) - np.int32(1)
    codes = take(position, values, out=values if values.dtype == np.int32 else None)
    return Vocabulary(pl.Series(np.flatnonzero(present).astype(np.int64) + low)), codes
