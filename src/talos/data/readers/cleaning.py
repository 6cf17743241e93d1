"""Turn columns as they were found into clean ones (ids, times, numbers), and say which rows are bad and why."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import polars as pl

from talos.data.interactions import Provenance
from talos.data.readers.columns import WantedColumn, guesses
from talos.data.readers.options import IdMode, ReadOptions
from talos.errors import DataError, first_line

__all__ = [
    "EXPECTED_ID",
    "CleanTable",
    "Cleaner",
    "are_integers",
    "clean_ids",
    "is_integer_text",
    "polars_errors",
    "time_dtype",
    "union_of",
    "unusual_ids",
]

# What programs write where an id is missing; and control characters, which no text file can hold in one field.
_BAD_ID = r"(?i)^(nan|null|none|<na>)?$|\p{Cc}"
# An integer in the one spelling that a number is printed in; 18 digits always fit into 64 bits.
_INTEGER = r"^(0|-?[1-9][0-9]{0,17})$"
is_integer_text: Callable[[str], object] = re.compile(_INTEGER).match

_TIME_FORMATS = (
    "%Y-%m-%d",
    "%Y-%m-%d %H:%M:%S%.f",
    "%Y-%m-%dT%H:%M:%S%.f",
    "%Y-%m-%dT%H:%M:%S%.f%#z",
    "%Y-%m-%d %H:%M:%S%.f%#z",
    "%Y-%m-%d %H:%M",
    "%Y-%m-%dT%H:%M",
    "%Y/%m/%d",
    "%Y/%m/%d %H:%M:%S",
    # with dots the day comes first wherever people write so; with slashes nobody can know
    "%d.%m.%Y",
    "%d.%m.%Y %H:%M",
    "%d.%m.%Y %H:%M:%S",
)
EXPECTED_ID = "an id in every row: a 64-bit integer, or text without control characters"
_EXPECTED = {
    "id": EXPECTED_ID,
    "time": "a number or a date, such as 2026-01-27 or 27.01.2026",
    "number": "a finite number",
}


class CleanTable(NamedTuple):
    """What each reader returns: clean columns named by role, and where they came from."""

    frame: pl.DataFrame
    provenance: Provenance


class _BadValues(NamedTuple):
    """The rows of one column whose value cannot be used."""

    column: WantedColumn
    bad: pl.Series  # bool, one flag per row
    found: pl.Series  # the column before it was cleaned


@contextmanager
def polars_errors(where: str, expected: str = "data that can be parsed") -> Iterator[None]:
    """Turn whatever polars raises, panics included, into a `DataError`."""
    try:
        yield
    except DataError:
        raise
    except (
        pl.exceptions.PolarsError,
        pl.exceptions.PanicException,
        ValueError,
        TypeError,
        OverflowError,
    ) as error:
        reason = first_line(error)[:160]
        raise DataError(f"cannot be read ({reason})", where=where, expected=expected) from error


@dataclass(frozen=True)
class Cleaner:
    """Cleans the columns of one source, as a whole or a block at a time.

    Attributes:
        where: the source, for messages.
        columns: what the source calls the column of each role, for messages.
        options: which columns are wanted, and what ids may be.
        text: whether the values are text: then ids become integers if those of all good rows are.
        times: what the first readable time of the blocks so far was: `dates` or `numbers`; its key is the role.
    """

    where: str
    columns: Mapping[str, str]
    options: ReadOptions
    text: bool
    times: dict[str, str] = field(default_factory=dict)

    def provenance(self, format: str, rows: int, bad_rows: int = 0) -> Provenance:  # noqa: A002
        """Where the clean columns came from."""
        said = guesses(self.options.wanted, self.columns)
        return Provenance(source=self.where, format=format, rows=rows, bad_rows=bad_rows, guesses=said)

    def again(self) -> Cleaner:
        """One for reading the source from its beginning once more."""
        return replace(self, times={})

    def clean(self, frame: pl.DataFrame) -> pl.DataFrame | None:
        """The clean columns of a frame whose columns are named by role; None if any value is bad."""
        cleaned, problems = self._clean(frame)
        return None if problems else cleaned

    def clean_rows(
        self, frame: pl.DataFrame, numbers: Sequence[int] | pl.Series, place: str = "line {}"
    ) -> tuple[pl.DataFrame, int]:
        """The clean columns without the bad rows, and how many those were; or an error, if `on_bad_row` says so.

        The error names the first bad row by its number, in the words of `place`.
        """
        cleaned, problems = self._clean(frame)
        if not problems:
            return cleaned, 0
        bad = problems[0].bad
        for problem in problems[1:]:
            bad = bad | problem.bad
        if self.options.on_bad_row == "skip":
            return cleaned.filter(~bad), int(bad.sum())
        row = int(bad.arg_max() or 0)
        problem = next(problem for problem in problems if problem.bad[row])
        wanted, value = problem.column, problem.found[row]
        optional = "" if wanted.required else f"{wanted.role}='' leaves the column out, "
        if value is None or (isinstance(value, str) and not value.strip()):
            what = f"no {wanted.role}"
        else:
            what = f"{value!r} is not a {'valid id' if wanted.kind == 'id' else wanted.role}"
        raise DataError(
            f"{what} in column {self.columns[wanted.role]!r}",
            where=f"{self.where}, {place.format(numbers[row])}",
            expected=_EXPECTED[wanted.kind],
            hint=f"{optional}on_bad_row='skip' skips such rows",
        )

    def _clean(self, frame: pl.DataFrame) -> tuple[pl.DataFrame, list[_BadValues]]:
        problems: list[_BadValues] = []
        cleaned: list[pl.Series] = []
        for wanted in self.options.wanted:
            if wanted.role not in frame.columns:
                continue
            found = frame[wanted.role]
            if found.dtype in (pl.Categorical, pl.Enum):
                found = found.cast(pl.String)
            elif found.dtype == pl.Null:
                found = found.cast(pl.Int64)
            place = f"{self.where}, column {self.columns[wanted.role]!r}"
            if wanted.kind == "id":
                column, bad = clean_ids(found, place, self.options.ids_of(wanted.role))
            elif wanted.kind == "time":
                column, bad = _clean_times(found, place, self.times, wanted.role)
            elif wanted.kind == "number":
                column, bad = _clean_numbers(found, place)
            else:
                cleaned.append(found.cast(pl.String, strict=False).str.strip_chars())
                continue
            cleaned.append(column)
            if bad.any():
                problems.append(_BadValues(wanted, bad, found))
        return self._with_integers(pl.DataFrame(cleaned), problems), problems

    def _with_integers(self, frame: pl.DataFrame, problems: Sequence[_BadValues]) -> pl.DataFrame:
        """Ids of a text as integers if those of all rows without a problem are; others do not count."""
        if not self.text:
            return frame
        good = pl.repeat(True, len(frame), dtype=pl.Boolean, eager=True)
        for problem in problems:
            good &= ~problem.bad
        for one in self.options.wanted:
            if one.kind != "id" or one.role not in frame.columns or self.options.ids_of(one.role) != "auto":
                continue
            ids = frame[one.role]
            if ids.dtype == pl.String and good.any() and (ids.str.contains(_INTEGER) | ~good).all():
                frame = frame.with_columns(ids.cast(pl.Int64, strict=False))
        return frame


def unusual_ids(ids: pl.Series) -> bool:
    """Whether there is an id among these strings that is bad or is written with blanks around it."""
    found, bad = clean_ids(ids, "ids")
    return bool(bad.any()) or bool((found != ids).any())


def are_integers(ids: pl.Series) -> bool:
    """Whether all of these strings are integers in the one spelling that a number is printed in."""
    return bool(ids.str.contains(_INTEGER).all())


def time_dtype(samples: Sequence[str]) -> pl.DataType:
    """The type to parse a text column of times as, judging by some of its values."""
    if all(map(is_integer_text, samples)):
        return pl.Int64()
    as_float = pl.Series(samples, dtype=pl.String).cast(pl.Float64, strict=False)
    return pl.String() if as_float.null_count() else pl.Float64()


# Each of the three cleaners takes a column and its place for messages, and returns the clean column and a flag per
# row, true for a bad one. A type that no row can have is a `DataError`.


def clean_ids(found: pl.Series, place: str, ids: IdMode = "auto") -> tuple[pl.Series, pl.Series]:
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
        codes = numbers.set(bad, None).cast(pl.Int64, strict=False)
    elif found.dtype.is_integer():
        codes = found.cast(pl.Int64, strict=False)
    else:
        raise _wrong_type(found, place, "ids: all strings or all integers")
    return (codes if ids == "auto" else codes.cast(pl.String)), codes.is_null()


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
    seconds = whole.clear(len(whole))
    for layout in _TIME_FORMATS:
        parsed = text.str.to_datetime(layout, strict=False, time_unit="us", ambiguous="null")
        seconds = seconds.fill_null(parsed.dt.epoch("s").cast(pl.Int64))
        if seconds.null_count() == 0:
            break
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
    # narrowed before the check, so that what is too large for 32 bits counts as not finite
    numbers = found.cast(pl.Float64, strict=False).cast(pl.Float32, strict=False)
    return numbers, ~numbers.is_finite().fill_null(False)


def _wrong_type(found: pl.Series, place: str, expected: str) -> DataError:
    kind = "mixed Python objects" if found.dtype == pl.Object else str(found.dtype)
    return DataError(f"values of type {kind}", where=place, expected=expected)


def union_of(files: Sequence[Provenance], source: str = "", notes: tuple[str, ...] = ()) -> Provenance:
    """The provenance of files that are read as one table."""
    return Provenance(
        source=source,
        format=" + ".join(dict.fromkeys(one.format for one in files)),
        rows=sum(one.rows for one in files),
        bad_rows=sum(one.bad_rows for one in files),
        notes=notes + tuple(note for one in files for note in one.notes),
        guesses="; ".join(dict.fromkeys(one.guesses for one in files if one.guesses)),
    )
