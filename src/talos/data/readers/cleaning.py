"""Turn columns as they were found into clean ones (ids, times, numbers), and say which rows are bad and why."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import polars as pl

from talos.data.readers.columns import WantedColumn
from talos.data.readers.options import IdMode, ReadOptions
from talos.errors import DataError, first_line

__all__ = [
    "BadValues",
    "CleanTable",
    "clean_columns",
    "clean_rows",
    "drop_bad_rows",
    "is_integer_text",
    "polars_errors",
    "time_dtype",
]

# What programs write where an id is missing.
_MISSING = r"(?i)^(nan|null|none|<na>)?$"
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
)
_EXPECTED = {
    "id": "an id in every row",
    "time": "a number or an ISO date",
    "number": "a finite number",
}


@dataclass(frozen=True, kw_only=True)
class CleanTable:
    """What each reader returns: clean columns named by role, and where they came from."""

    frame: pl.DataFrame
    source: str
    format: str
    rows: int
    bad_rows: int = 0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class BadValues:
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


def clean_rows(
    frame: pl.DataFrame,
    columns: Mapping[str, str],
    options: ReadOptions,
    *,
    where: str,
    text: bool,
    place: Callable[[int], str],
) -> tuple[pl.DataFrame, int]:
    """The clean columns without the bad rows, and how many those were; see the two functions below."""
    cleaned, problems = clean_columns(frame, columns, options, where=where, text=text)
    return drop_bad_rows(cleaned, problems, columns, options, place)


def clean_columns(
    frame: pl.DataFrame, columns: Mapping[str, str], options: ReadOptions, *, where: str, text: bool
) -> tuple[pl.DataFrame, list[BadValues]]:
    """Clean every column of a frame, keeping all rows.

    Args:
        frame: columns named by role.
        columns: what the source calls the column of each role, for messages.
        options: which columns are wanted, and what ids may be.
        where: the source, for messages.
        text: whether the values are text: then ids that are all integers become integers.

    Returns:
        The columns, and for each column with bad values which these are.
    """
    problems: list[BadValues] = []
    cleaned: list[pl.Series] = []
    for wanted in options.wanted:
        if wanted.role not in frame.columns:
            continue
        found = frame[wanted.role]
        place = f"{where}, column {columns[wanted.role]!r}"
        if wanted.kind == "id":
            column, bad = _clean_ids(found, place, text=text, ids=options.ids)
        elif wanted.kind == "time":
            column, bad = _clean_times(found, place)
        elif wanted.kind == "number":
            column, bad = _clean_numbers(found, place)
        else:
            column, bad = found.cast(pl.String, strict=False), None
        if bad is not None and bad.any():
            problems.append(BadValues(wanted, bad, found))
        cleaned.append(column)
    return pl.DataFrame(cleaned), problems


def drop_bad_rows(
    frame: pl.DataFrame,
    problems: Sequence[BadValues],
    columns: Mapping[str, str],
    options: ReadOptions,
    place: Callable[[int], str],
) -> tuple[pl.DataFrame, int]:
    """Drop and count the bad rows, or raise for the first one if `on_bad_row` says so.

    `place` gives the position of a row in the words of a message, such as "x.csv, line 7".
    """
    if not problems:
        return frame, 0
    bad = problems[0].bad
    for problem in problems[1:]:
        bad = bad | problem.bad
    if options.on_bad_row == "skip":
        return frame.filter(~bad), int(bad.sum())
    row = int(bad.arg_max() or 0)
    problem = next(problem for problem in problems if problem.bad[row])
    wanted, value = problem.column, problem.found[row]
    optional = "" if wanted.required else f"{wanted.role}='' leaves the column out, "
    if value is None or (isinstance(value, str) and not value.strip()):
        what = f"no {wanted.role}"
    else:
        what = f"{value!r} is not a {'valid id' if wanted.kind == 'id' else wanted.role}"
    raise DataError(
        f"{what} in column {columns[wanted.role]!r}",
        where=place(row),
        expected=_EXPECTED[wanted.kind],
        hint=f"{optional}on_bad_row='skip' skips such rows",
    )


def time_dtype(samples: Sequence[str]) -> pl.DataType:
    """The type to parse a text column of times as, judging by some of its values."""
    if all(map(is_integer_text, samples)):
        return pl.Int64()
    as_float = pl.Series(samples, dtype=pl.String).cast(pl.Float64, strict=False)
    return pl.String() if as_float.null_count() else pl.Float64()


# Each of the three cleaners takes a column and its place for messages, and returns the clean column and a flag on each
# bad row, None if there is none. A type that no row can have is a `DataError`.


def _clean_ids(
    found: pl.Series, place: str, *, text: bool, ids: IdMode
) -> tuple[pl.Series, pl.Series | None]:
    kind = found.dtype
    if kind in (pl.Categorical, pl.Enum):
        found, kind = found.cast(pl.String), pl.String()
    if kind == pl.String:
        if text:
            found = found.str.strip_chars()
        bad = found.str.contains(_MISSING).fill_null(True)
        if text and ids == "auto":
            integer = found.str.contains(_INTEGER)
            if (integer | bad).all() and not bad.all():
                return found.cast(pl.Int64, strict=False), bad
        return found, bad
    if kind == pl.Null:
        return found.cast(pl.Int64), found.is_null()
    if kind.is_float():
        # pandas turns an integer column with missing values into floats
        numbers = found.cast(pl.Float64)
        bad = ~numbers.is_finite().fill_null(False)
        fractions = numbers.filter(~bad)
        fractions = fractions.filter((fractions != fractions.floor()) | (fractions.abs() >= 2.0**53))
        if len(fractions):
            raise DataError(f"{fractions[0]!r} as an id", where=place, expected="strings or whole numbers")
        found = numbers.set(bad, None).cast(pl.Int64, strict=False)
        return (found if ids == "auto" else found.cast(pl.String)), bad
    if kind.is_integer():
        codes = found.cast(pl.Int64, strict=False)
        bad_codes = codes.is_null() if codes.null_count() else None
        return (codes if ids == "auto" else codes.cast(pl.String)), bad_codes
    raise DataError(
        f"values of type {_type_name(kind)}", where=place, expected="ids: all strings or all integers"
    )


def _clean_times(found: pl.Series, place: str) -> tuple[pl.Series, pl.Series | None]:
    kind = found.dtype
    if kind in (pl.Categorical, pl.Enum):
        found, kind = found.cast(pl.String), pl.String()
    if kind == pl.String:
        return _parse_times(found.str.strip_chars())
    if kind.is_integer():
        whole = found.cast(pl.Int64, strict=False)
        return whole, whole.is_null() if whole.null_count() else None
    if kind.is_float() or kind.is_decimal():
        return _whole_if_possible(found.cast(pl.Float64))
    if kind in (pl.Date, pl.Datetime):
        seconds = found.dt.epoch("s").cast(pl.Int64)
        return seconds, seconds.is_null() if seconds.null_count() else None
    if kind == pl.Null:
        return found.cast(pl.Int64), found.is_null()
    raise DataError(
        f"values of type {_type_name(kind)}", where=place, expected="timestamps: numbers or dates"
    )


def _parse_times(text: pl.Series) -> tuple[pl.Series, pl.Series | None]:
    """Times from strings: all numbers or all dates, whichever the first readable value is."""
    whole = text.cast(pl.Int64, strict=False)
    if whole.null_count() == 0:
        return whole, None
    numbers = text.cast(pl.Float64, strict=False)
    numbers = numbers.set(~numbers.is_finite().fill_null(False), None)
    seconds = pl.Series(text.name, [None], dtype=pl.Int64).new_from_index(0, len(text))
    remaining = text
    for layout in _TIME_FORMATS:
        parsed = remaining.str.to_datetime(layout, strict=False, time_unit="us", ambiguous="null")
        seconds = seconds.fill_null(parsed.dt.epoch("s").cast(pl.Int64)) if parsed.len() else seconds
        if seconds.null_count() == 0:
            return seconds, None
    first_number = numbers.is_not_null().arg_max() if numbers.null_count() < len(text) else None
    first_date = seconds.is_not_null().arg_max() if seconds.null_count() < len(text) else None
    if first_date is not None and (first_number is None or first_date < first_number):
        return seconds, seconds.is_null()
    if whole.null_count() == numbers.null_count():
        return whole, whole.is_null()
    return _whole_if_possible(numbers)


def _whole_if_possible(numbers: pl.Series) -> tuple[pl.Series, pl.Series | None]:
    bad = ~numbers.is_finite().fill_null(False)
    good = numbers.filter(~bad) if bad.any() else numbers
    if bool(((good == good.floor()) & (good.abs() < 2.0**53)).all()):
        numbers = numbers.set(bad, None).cast(pl.Int64, strict=False)
    return numbers, bad


def _clean_numbers(found: pl.Series, place: str) -> tuple[pl.Series, pl.Series | None]:
    kind = found.dtype
    if kind in (pl.Categorical, pl.Enum):
        found, kind = found.cast(pl.String), pl.String()
    if not (kind.is_numeric() or kind in (pl.String, pl.Boolean, pl.Null)):
        raise DataError(f"values of type {_type_name(kind)}", where=place, expected="numbers")
    if kind == pl.String:
        found = found.str.strip_chars()
    # narrowed before the check, so that what is too large for 32 bits counts as not finite
    numbers = found.cast(pl.Float64, strict=False).cast(pl.Float32, strict=False)
    return numbers, ~numbers.is_finite().fill_null(False)


def _type_name(kind: pl.DataType) -> str:
    return "mixed Python objects" if kind == pl.Object else str(kind)
