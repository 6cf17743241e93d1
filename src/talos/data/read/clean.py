"""Columns as they were found become clean ones (ids, times, numbers), a block of rows at a time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, NamedTuple

import polars as pl

from talos.checks import require
from talos.data.read.columns import KINDS, parsed_dates
from talos.data.vocabulary import INTEGER
from talos.errors import DataError, Option, first_line

__all__ = [
    "EXPECTED_ID",
    "POLARS_ERRORS",
    "SKIP",
    "BadBlockError",
    "BadRow",
    "Block",
    "Cleaner",
    "clean_ids",
    "is_integer_text",
    "polars_errors",
]

# What programs write where an id is missing; and control characters, which no text file can hold in one field.
_BAD_ID = r"(?i)^(nan|null|none|<na>)?$|\p{Cc}"
is_integer_text: Callable[[str], object] = re.compile(INTEGER).match

EXPECTED_ID = "an id in every row: a 64-bit integer, or text without control characters"
_EXPECTED = {
    "id": EXPECTED_ID,
    "time": "a number or a date, such as 2026-01-27 or 27.01.2026",
    "number": "a finite number",
}
_OTHER_TYPES = {"time": (pl.String, pl.Date, pl.Datetime), "number": (pl.String, pl.Boolean)}  # than numeric
_PLAIN_TYPES: Mapping[type[pl.DataType], type[pl.DataType]] = {
    pl.Categorical: pl.String,
    pl.Enum: pl.String,
    pl.Null: pl.Int64,
}
SKIP = Option("on_bad_row", "skip", "skips such rows")
# What polars raises; the last one where a name has half a character.
POLARS_ERRORS: tuple[type[BaseException], ...] = (
    pl.exceptions.PolarsError,
    pl.exceptions.PanicException,
    UnicodeEncodeError,
)


class BadBlockError(Exception):
    """A block of rows needs the careful pass, which looks at every row and knows its line."""


class BadRow(NamedTuple):
    """What is wrong with a row that has no values to clean, what was expected, and commands that help."""

    what: str
    expected: str
    commands: tuple[tuple[str, str], ...] = ()

    def error(self, where: str, *options: Option) -> DataError:
        """The error about this row."""
        return DataError(
            self.what, where=where, expected=self.expected, option=options, commands=self.commands
        )


class Block(NamedTuple):
    """Consecutive rows of a source: columns by role, and how many rows there were with those that were skipped.

    Ids are strings, or 64-bit integers where the source has types of its own.
    """

    frame: pl.DataFrame
    rows: int


@contextmanager
def polars_errors(
    where: str, expected: str = "data that is whole and can be parsed", *also: type[Exception]
) -> Iterator[None]:
    """Turn the errors of polars, panics included, of the disk, and others that are named, into a `DataError`."""
    try:
        yield
    except (*POLARS_ERRORS, *also, OSError) as error:  # type: ignore[misc]  # all of them are exceptions
        reason = getattr(error, "strerror", None) or first_line(error)[:160]
        raise DataError(f"cannot be read ({reason})", where=where, expected=expected) from error


@dataclass
class Cleaner:
    """Cleans the columns of one source.

    Attributes:
        where: the source, for messages.
        columns: role → name of the column in the source, for messages.
        skip: drop bad rows instead of raising an error.
        place: how messages name a row by its number.
        times: whether times written as text are dates or numbers, as the first readable one of the source is.
    """

    where: str
    columns: Mapping[str, str]
    skip: bool
    place: str = "line {}"
    times: Literal["dates", "numbers"] | None = None

    def quick(self, frame: pl.DataFrame) -> Block:
        """The block of a frame whose columns are named by role, if no value is bad; text ids are not looked at."""
        clean = {}
        for role in self.columns:
            is_text_id = KINDS[role] == "id" and frame[role].dtype == pl.String
            clean[role] = frame[role] if is_text_id else self._cleaned(role, frame[role])
            if clean[role].null_count() and KINDS[role] != "text":
                raise BadBlockError
        return Block(pl.DataFrame(clean), len(frame))

    def careful(
        self,
        frame: pl.DataFrame,
        numbers: Sequence[int] | pl.Series,
        faults: Mapping[int, BadRow] = MappingProxyType({}),
    ) -> Block:
        """The block without its bad rows; or an error about the first of them, named by its number.

        Args:
            frame: columns named by role.
            numbers: of the rows.
            faults: what is wrong with rows that have no values, by their numbers.
        """
        clean = pl.DataFrame({role: self._cleaned(role, frame[role]) for role in self.columns})
        bad = clean.select(pl.col(role).is_null() for role in self.columns if KINDS[role] != "text")
        any_bad = bad.select(pl.any_horizontal(pl.all())).to_series()
        if self.skip or not any_bad.any():
            return Block(clean.filter(~any_bad), len(frame))
        row = int(any_bad.arg_max() or 0)
        where = f"{self.where}, {self.place.format(numbers[row])}"
        if numbers[row] in faults:
            raise faults[numbers[row]].error(where, SKIP)
        role = next(role for role in bad.columns if bad[role][row])
        value, kind = frame[role][row], KINDS[role]
        missing = value is None or (isinstance(value, str) and not value.strip())
        what = f"no {role}" if missing else f"{value!r} is not a {'valid id' if kind == 'id' else role}"
        leave_out = () if kind == "id" else (Option(role, "", "leaves the column out"),)
        raise DataError(
            f"{what} in column {self.columns[role]!r}",
            where=where,
            expected=_EXPECTED[kind],
            option=(*leave_out, SKIP),
        )

    def _cleaned(self, role: str, found: pl.Series) -> pl.Series:
        """A clean column, in which bad values are missing; a `DataError` if no value can be good."""
        place, kind = f"{self.where}, column {self.columns[role]!r}", KINDS[role]
        found = found.cast(_PLAIN_TYPES.get(found.dtype.base_type(), found.dtype))
        if kind == "id":
            return clean_ids(found, place)
        if found.dtype == pl.String:
            found = found.str.strip_chars()
        if kind == "text":
            text = found.cast(pl.String, strict=False)
            return text.set(text == "", None)
        require(
            found.dtype.is_numeric() or found.dtype in _OTHER_TYPES[kind],
            f"values of type {found.dtype}",
            where=place,
            expected=_EXPECTED[kind],
            error=DataError,
        )
        if kind == "number":
            # Narrow before the check: a number too large for 32 bits is not finite.
            return _finite(found.cast(pl.Float64, strict=False).cast(pl.Float32, strict=False))
        if found.dtype == pl.String:
            return self._times_of_text(found)
        if found.dtype in (pl.Date, pl.Datetime):
            found = found.dt.epoch("s")
        return found.cast(pl.Int64, strict=False) if found.dtype.is_integer() else _whole_if_possible(found)

    def _times_of_text(self, text: pl.Series) -> pl.Series:
        """All numbers or all dates, as the first readable time of the source is."""
        if self.times == "dates":
            return parsed_dates(text)
        numbers = text.cast(pl.Int64, strict=False)
        if numbers.null_count():
            fractions = _whole_if_possible(text)
            numbers = fractions if fractions.null_count() < numbers.null_count() else numbers
        if self.times is None:
            first = numbers.is_not_null().index_of(True)
            dates = parsed_dates(text[:first])
            if dates.is_not_null().any():
                self.times = "dates"
                return dates if first is None else parsed_dates(text)
            self.times = None if first is None else "numbers"
        return numbers


def clean_ids(found: pl.Series, place: str) -> pl.Series:
    """Ids without blanks around them; one with a control character, or that stands for none, is missing."""
    if found.dtype == pl.String:
        found = found.str.strip_chars()
        return found.set(found.str.contains(_BAD_ID), None)
    if found.dtype.is_float():
        # pandas turns an integer column with missing values into floats
        found = _finite(found)
        fraction = "".join(map(repr, found.filter(~_is_whole(found))[:1]))
        require(
            not fraction,
            f"{fraction} as an id",
            where=place,
            expected="strings or whole numbers",
            error=DataError,
        )
    else:
        require(
            found.dtype.is_integer(),
            f"values of type {found.dtype}",
            where=place,
            expected=EXPECTED_ID,
            error=DataError,
        )
    return found.cast(pl.Int64, strict=False)


def _finite(numbers: pl.Series) -> pl.Series:
    """Numbers that are finite; others are missing."""
    return numbers.set(~numbers.is_finite(), None)


def _is_whole(numbers: pl.Series) -> pl.Series:
    return (numbers == numbers.floor()) & (numbers.abs() < 2.0**53)


def _whole_if_possible(found: pl.Series) -> pl.Series:
    """The finite ones of numbers, as integers if all of them are whole."""
    numbers = _finite(found.cast(pl.Float64, strict=False))
    return numbers.cast(pl.Int64) if _is_whole(numbers).all() else numbers
