"""From columns as they were found to clean ones: ids, times and numbers; says which rows are bad and why."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import polars as pl

from talos.data.readers.columns import Role
from talos.errors import DataError

__all__ = ["IdMode", "OnBadRow", "Problem", "clean", "is_integer_text", "settle", "time_dtype"]

OnBadRow = Literal["raise", "skip"]
IdMode = Literal["auto", "string"]

# What programs write where an id is missing.
_MISSING = r"(?i)^(nan|null|none|<na>)?$"
# An integer in the one spelling that survives the way to a number and back; 18 digits always fit.
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


@dataclass(frozen=True)
class Problem:
    """Rows of one column that cannot be used."""

    role: Role
    bad: pl.Series  # bool, one flag a row
    found: pl.Series  # the column as it was


def clean(
    frame: pl.DataFrame,
    roles: Sequence[Role],
    columns: Mapping[str, str],
    *,
    where: str,
    text: bool,
    ids: IdMode,
) -> tuple[pl.DataFrame, list[Problem]]:
    """Clean each role's column of a frame whose columns are named by role.

    Args:
        frame: one column a role that was found.
        roles: what each column is.
        columns: the name of each role's column in the source, for messages.
        where: the source, for messages.
        text: values come from a text file: strings that are all integers become integers.
        ids: `string` keeps (or makes) ids strings.
    """
    problems: list[Problem] = []
    cleaned: list[pl.Series] = []
    for role in roles:
        if role.name not in frame.columns:
            continue
        found = frame[role.name]
        place = f"{where}, column {columns[role.name]!r}"
        if role.kind == "id":
            column, bad = _clean_ids(found, place, text=text, ids=ids)
        elif role.kind == "time":
            column, bad = _clean_times(found, place)
        elif role.kind == "number":
            column, bad = _clean_numbers(found, place)
        else:
            column, bad = found.cast(pl.String, strict=False), None
        if bad is not None and bad.any():
            problems.append(Problem(role, bad, found))
        cleaned.append(column)
    return pl.DataFrame(cleaned), problems


def settle(
    frame: pl.DataFrame,
    problems: Sequence[Problem],
    columns: Mapping[str, str],
    on_bad_row: OnBadRow,
    place: Callable[[int], str],
) -> tuple[pl.DataFrame, int]:
    """Leave out and count the bad rows, or raise for the first one; `place` says where a row is."""
    if not problems:
        return frame, 0
    bad = problems[0].bad
    for problem in problems[1:]:
        bad = bad | problem.bad
    if on_bad_row == "skip":
        return frame.filter(~bad), int(bad.sum())
    row = int(bad.arg_max() or 0)
    raise fault(next(problem for problem in problems if problem.bad[row]), row, columns, place(row))


def fault(problem: Problem, row: int, columns: Mapping[str, str], place: str) -> DataError:
    """The error for one bad value."""
    role, value = problem.role, problem.found[row]
    optional = "" if role.required else f"{role.name}='' leaves the column out, "
    empty = value is None or (isinstance(value, str) and not value.strip())
    what = (
        f"no {role.name}" if empty else f"{value!r} is not a {'valid id' if role.kind == 'id' else role.name}"
    )
    return DataError(
        f"{what} in column {columns[role.name]!r}",
        where=place,
        expected=_EXPECTED[role.kind],
        hint=f"{optional}on_bad_row='skip' skips such rows",
    )


def time_dtype(samples: Sequence[str]) -> pl.DataType:
    """How a text column of times is best parsed, judging by some of its values."""
    if all(map(is_integer_text, samples)):
        return pl.Int64()
    as_float = pl.Series(samples, dtype=pl.String).cast(pl.Float64, strict=False)
    return pl.String() if as_float.null_count() else pl.Float64()


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
        return found.cast(pl.Int64), pl.Series(found.name, [True], dtype=pl.Boolean).new_from_index(
            0, len(found)
        )
    if kind.is_float():
        # What pandas makes of an integer column with gaps.
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
        return (
            codes if ids == "auto" else codes.cast(pl.String)
        ), codes.is_null() if codes.null_count() else None
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
    """Times from strings: numbers if the first one that can be read is a number, else dates."""
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
    # Narrowed here and not later, so that what is too large for 32 bits is seen as not finite.
    numbers = found.cast(pl.Float64, strict=False).cast(pl.Float32, strict=False)
    return numbers, ~numbers.is_finite().fill_null(False)


def _type_name(kind: pl.DataType) -> str:
    return "mixed Python objects" if kind == pl.Object else str(kind)
