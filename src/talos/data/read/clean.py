"""Columns as they were found become clean ones (ids, times, numbers), a block of rows at a time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import polars as pl

from talos.data.id_column import INTEGER
from talos.data.read.columns import WantedColumn
from talos.data.read.dates import parsed_dates
from talos.errors import DataError, Option, first_line

__all__ = [
    "EXPECTED_ID",
    "SKIP",
    "BadBlockError",
    "Block",
    "Cleaner",
    "clean_ids",
    "is_integer_text",
    "polars_errors",
    "unusual_ids",
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
SKIP = Option("on_bad_row", "skip", "skips such rows")


class BadBlockError(Exception):
    """A block of rows needs the careful pass, which looks at every row and knows its line."""


class Block(NamedTuple):
    """Consecutive rows of a source: columns by role, and how many rows there were with those that were skipped.

    Ids are strings, or 64-bit integers where the source has types of its own.
    """

    frame: pl.DataFrame
    rows: int

    @property
    def bad(self) -> int:
        """Rows that were skipped."""
        return self.rows - len(self.frame)


@contextmanager
def polars_errors(
    where: str, expected: str = "data that can be parsed", *also: type[Exception]
) -> Iterator[None]:
    """Turn the errors of polars, panics included, and others that are named, into a `DataError`."""
    try:
        yield
    except DataError:
        raise
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, *also) as error:  # type: ignore[misc]  # a tuple
        reason = first_line(error)[:160]
        raise DataError(f"cannot be read ({reason})", where=where, expected=expected) from error


@dataclass(frozen=True)
class Cleaner:
    """Cleans the columns of one source.

    Attributes:
        where: the source, for messages.
        columns: role → name of the column in the source, for messages.
        wanted: the columns that were looked for.
        skip: drop bad rows instead of raising an error.
        place: how messages name a row by its number.
        times: whether the first readable time of the source was a date or a number; its key is the role.
    """

    where: str
    columns: Mapping[str, str]
    wanted: Sequence[WantedColumn]
    skip: bool
    place: str = "line {}"
    times: dict[str, str] = field(default_factory=dict)

    def quick(self, frame: pl.DataFrame) -> Block:
        """The block of a frame whose columns are named by role, if no value is bad; text ids are not looked at."""
        columns: list[pl.Series] = []
        for wanted, found in self._found(frame):
            if wanted.kind == "id" and found.dtype == pl.String:
                column, bad = found, found.is_null()
            else:
                column, bad = self._cleaned(wanted, found)
            if bad.any():
                raise BadBlockError
            columns.append(column)
        return Block(pl.DataFrame(columns), len(frame))

    def careful(self, frame: pl.DataFrame, numbers: Sequence[int] | pl.Series) -> Block:
        """The block without its bad rows; or an error about the first of them, named by its number."""
        columns: list[pl.Series] = []
        problems: list[tuple[WantedColumn, pl.Series, pl.Series]] = []
        for wanted, found in self._found(frame):
            column, bad = self._cleaned(wanted, found)
            columns.append(column)
            if bad.any():
                problems.append((wanted, found, bad))
        cleaned = pl.DataFrame(columns)
        if not problems:
            return Block(cleaned, len(frame))
        any_bad = pl.select(pl.any_horizontal([bad for _, _, bad in problems])).to_series()
        if self.skip:
            return Block(cleaned.filter(~any_bad), len(frame))
        row = int(any_bad.arg_max() or 0)
        wanted, found, _ = next(problem for problem in problems if problem[2][row])
        value, name = found[row], repr(self.columns[wanted.role])
        missing = value is None or (isinstance(value, str) and not value.strip())
        bad_value = f"{value!r} is not a {'valid id' if wanted.kind == 'id' else wanted.role}"
        leave_out = () if wanted.required else (Option(wanted.role, "", "leaves the column out"),)
        raise DataError(
            f"{f'no {wanted.role}' if missing else bad_value} in column {name}",
            where=f"{self.where}, {self.place.format(numbers[row])}",
            expected=_EXPECTED[wanted.kind],
            option=(*leave_out, SKIP),
        )

    def _found(self, frame: pl.DataFrame) -> Iterator[tuple[WantedColumn, pl.Series]]:
        """Each wanted column of a frame, with plain types."""
        for wanted in self.wanted:
            if wanted.role in frame.columns:
                found = frame[wanted.role]
                if found.dtype in (pl.Categorical, pl.Enum):
                    found = found.cast(pl.String)
                yield wanted, found.cast(pl.Int64) if found.dtype == pl.Null else found

    def _cleaned(self, wanted: WantedColumn, found: pl.Series) -> tuple[pl.Series, pl.Series]:
        """A clean column, and a flag for each row whose value is bad; a `DataError` if no value can be good."""
        place = f"{self.where}, column {self.columns[wanted.role]!r}"
        if wanted.kind == "id":
            return clean_ids(found, place)
        if wanted.kind == "time":
            return _clean_times(found, place, self.times, wanted.role)
        if wanted.kind == "number":
            return _clean_numbers(found, place)
        text = found.cast(pl.String, strict=False).str.strip_chars()
        return text.set(text == "", None), pl.repeat(False, len(found), eager=True)


def unusual_ids(ids: pl.Series) -> bool:
    """Whether there is an id among these strings that is bad or is written with blanks around it."""
    found, bad = clean_ids(ids, "ids")
    return bool(bad.any()) or bool((found != ids).any())


def clean_ids(found: pl.Series, place: str) -> tuple[pl.Series, pl.Series]:
    """Ids without blanks around them, and which of them are missing or hold a control character."""
    if found.dtype == pl.String:
        found = found.str.strip_chars()
        return found, found.str.contains(_BAD_ID).fill_null(True)
    if found.dtype.is_float():
        # pandas turns an integer column with missing values into floats
        numbers = found.cast(pl.Float64)
        bad = ~numbers.is_finite().fill_null(False)
        fractions = numbers.filter(~bad & ~_is_whole(numbers))
        if len(fractions):
            raise DataError(f"{fractions[0]!r} as an id", where=place, expected="strings or whole numbers")
        found = numbers.set(bad, None)
    elif not found.dtype.is_integer():
        raise _wrong_type(found, place, "ids: all strings or all integers")
    codes = found.cast(pl.Int64, strict=False)
    return codes, codes.is_null()


def _clean_times(
    found: pl.Series, place: str, known: dict[str, str], role: str
) -> tuple[pl.Series, pl.Series]:
    kind = found.dtype
    if kind == pl.String:
        return _parse_times(found.str.strip_chars(), known, role)
    if kind.is_float() or kind.is_decimal():
        return _whole_if_possible(found.cast(pl.Float64))
    if kind in (pl.Date, pl.Datetime):
        found = found.dt.epoch("s")
    elif not kind.is_integer():
        raise _wrong_type(found, place, "timestamps: numbers or dates")
    whole = found.cast(pl.Int64, strict=False)
    return whole, whole.is_null()


def _parse_times(text: pl.Series, known: dict[str, str], role: str) -> tuple[pl.Series, pl.Series]:
    """Times from strings: all numbers or all dates, whichever the first readable value of the source is."""
    whole = text.cast(pl.Int64, strict=False)
    if whole.null_count() == 0 and len(whole) and known.setdefault(role, "numbers") == "numbers":
        return whole, whole.is_null()
    numbers = text.cast(pl.Float64, strict=False)
    numbers = numbers.set(~numbers.is_finite().fill_null(False), None)
    seconds = parsed_dates(text).rename(text.name)
    first_date, first_number = _first_value(seconds), _first_value(numbers)
    if role not in known and first_date != first_number:
        known[role] = "dates" if first_date < first_number else "numbers"
    if known.get(role) == "dates":
        return seconds, seconds.is_null()
    if whole.null_count() == numbers.null_count():
        return whole, whole.is_null()
    return _whole_if_possible(numbers)


def _first_value(column: pl.Series) -> int:
    """The position of the first value that is not missing; the length if there is none."""
    return int(column.is_not_null().arg_max() or 0) if column.null_count() < len(column) else len(column)


def _whole_if_possible(numbers: pl.Series) -> tuple[pl.Series, pl.Series]:
    bad = ~numbers.is_finite().fill_null(False)
    if (_is_whole(numbers) | bad).all():
        numbers = numbers.set(bad, None).cast(pl.Int64, strict=False)
    return numbers, bad


def _is_whole(numbers: pl.Series) -> pl.Series:
    return (numbers == numbers.floor()) & (numbers.abs() < 2.0**53)


def _clean_numbers(found: pl.Series, place: str) -> tuple[pl.Series, pl.Series]:
    if found.dtype == pl.String:
        found = found.str.strip_chars()
    elif not (found.dtype.is_numeric() or found.dtype == pl.Boolean):
        raise _wrong_type(found, place, "numbers")
    # Narrow before the check: a number too large for 32 bits is not finite.
    numbers = found.cast(pl.Float64, strict=False).cast(pl.Float32, strict=False)
    return numbers, ~numbers.is_finite().fill_null(False)


def _wrong_type(found: pl.Series, place: str, expected: str) -> DataError:
    kind = "mixed Python objects" if found.dtype == pl.Object else str(found.dtype)
    return DataError(f"values of type {kind}", where=place, expected=expected)
