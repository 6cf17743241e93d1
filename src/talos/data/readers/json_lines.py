"""Read JSON lines, or one JSON array: Amazon's reviews, and what most services export."""

from __future__ import annotations

import io
import json
import re
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import polars as pl

from talos.data.readers.cleaning import Cleaner, CleanTable, polars_errors
from talos.data.readers.columns import find_columns
from talos.data.readers.options import ReadOptions
from talos.data.readers.text import TextFile, first_lines, short
from talos.errors import DataError

__all__ = ["looks_like_json", "read_json"]

# Half of a character beyond the first 65,536, as JSON escapes it, without its other half.
_HALF_CHARACTER = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F]"
)
_INT64 = range(-(2**63), 2**63)
_TYPE_NAMES = {
    str: "string",
    bool: "truth value",
    int: "number",
    float: "number",
    list: "list",
    dict: "JSON object",
}


def looks_like_json(text: TextFile) -> bool:
    """Whether the first line opens an object or an array of objects."""
    first = next(iter(first_lines(text, 1)), "").lstrip()
    return first.startswith(("{", '[{"')) or first.rstrip() in ("[", "[{")


def read_json(text: TextFile, options: ReadOptions) -> CleanTable:
    """Read one JSON object per line, or one array of objects."""
    content = text.content().removeprefix(b"\xef\xbb\xbf")
    first: dict[str, Any] = {}
    names: dict[str, None] = {}
    fault = DataError(
        "no JSON object in the first lines", where=text.name, expected="one JSON object per line"
    )
    for _, record in islice(_records(content, text.name), 100):
        if isinstance(record, dict):
            first = first or record
            names |= dict.fromkeys(record)
        elif isinstance(record, DataError):
            fault = record
    if not names:
        raise fault
    keys = list(names)
    found = find_columns(options.wanted, keys, text.name)
    columns = {role: keys[place] for role, place in found.items()}
    file = _JSONFile(content, Cleaner(text.name, columns, options, text=False))
    return file.by_polars(first) or file.object_by_object()


@dataclass(frozen=True)
class _JSONFile:
    """A JSON file, the key of each role, and two ways to read it: quickly, or with the place of each bad value."""

    content: bytes
    cleaner: Cleaner

    def by_polars(self, first: Mapping[str, Any]) -> CleanTable | None:
        """Read by polars, with the types of the first object; None if anything is wrong with any row."""
        if _is_array(self.content) or _HALF_CHARACTER.search(self.content):
            return None  # polars would make every half of a character the same sign
        wanted = [one for one in self.cleaner.options.wanted if one.role in self.cleaner.columns]
        schema: dict[str, pl.DataType] = {}
        for one in wanted:
            value = first.get(self.cleaner.columns[one.role])
            whole = one.kind == "id" or (one.kind == "time" and isinstance(value, int))
            if one.kind == "text" or isinstance(value, str):
                schema[self.cleaner.columns[one.role]] = pl.String()
            else:
                schema[self.cleaner.columns[one.role]] = pl.Int64() if whole else pl.Float64()
        try:
            with polars_errors(self.cleaner.where):
                frame = pl.read_ndjson(io.BytesIO(self.content), schema=schema)
                frame = frame.select([pl.col(key).alias(role) for role, key in self.cleaner.columns.items()])
                # polars turns numbers and objects into strings where the schema wants strings: count the quotes
                for one in wanted:
                    key = self.cleaner.columns[one.role]
                    if one.kind == "id" and schema[key] == pl.String:
                        opened = (f'{json.dumps(key)}:{gap}"'.encode() for gap in ("", " "))
                        if sum(map(self.content.count, opened)) != len(frame):
                            return None
                cleaned = self.cleaner.again().clean(frame) if len(frame) else None
        except DataError:
            return None
        return None if cleaned is None else self._table(cleaned, len(cleaned))

    def object_by_object(self) -> CleanTable:
        """Read by Python's parser, which knows the line of each object."""
        types: dict[str, type] = {}  # of each role's ids, set by the first one
        values: dict[str, list[Any]] = {role: [] for role in self.cleaner.columns}
        numbers = array("q")
        bad = 0
        for number, record in _records(self.content, self.cleaner.where):
            try:
                row = self._checked(record, number, types)
            except DataError:
                if self.cleaner.options.on_bad_row == "raise":
                    self._clean(values, numbers)  # a row before it may be bad as well, and is named first
                    raise
                bad += 1
                continue
            numbers.append(number)
            for role, value in row.items():
                values[role].append(value)
        frame, more = self._clean(values, numbers)
        return self._table(frame, len(numbers) + bad, bad + more)

    def _checked(self, record: Any, number: int, types: dict[str, type]) -> dict[str, Any]:
        """The value of each role in a record, or a `DataError` if one is of the wrong type."""
        place = f"{self.cleaner.where}, {self._place.format(number)}"
        if isinstance(record, DataError):
            raise record
        if not isinstance(record, dict):
            raise DataError(f"a {_type_name(record)}", where=place, expected="a JSON object")
        row = {role: record.get(key) for role, key in self.cleaner.columns.items()}
        for role, value in row.items():
            key = self.cleaner.columns[role]
            if role in ("user", "item") and value is not None:
                expected = types.setdefault(role, type(value)) if type(value) in (str, int) else None
                if type(value) is not expected or (isinstance(value, int) and value not in _INT64):
                    allowed = {str: "strings, as before", int: "64-bit integers, as before"}
                    kind = allowed[types[role]] if role in types else "strings or integers"
                    raise DataError(
                        f"{short(value)} is a {_type_name(value)} in {key!r}",
                        where=place,
                        expected=f"ids of one type: {kind}",
                    )
            elif not isinstance(value, (str, int, float, type(None))):
                raise DataError(f"{short(value)} in {key!r}", where=place, expected=f"a {role}")
            if isinstance(value, str) and not _is_unicode(value):
                raise DataError(f"half a character in {key!r}", where=place, expected="valid Unicode")
        return row

    def _clean(self, values: Mapping[str, list[Any]], numbers: array[int]) -> tuple[pl.DataFrame, int]:
        with polars_errors(self.cleaner.where):
            series = []
            for role, column in values.items():
                if role in ("user", "item"):
                    series.append(pl.Series(role, column, strict=True))
                else:  # a number may be written as a string: make all of them strings, parsed later
                    texts = [None if v is None else v if isinstance(v, str) else repr(v) for v in column]
                    series.append(pl.Series(role, texts, dtype=pl.String))
            return self.cleaner.again().clean_rows(pl.DataFrame(series), numbers, self._place)

    def _table(self, frame: pl.DataFrame, rows: int, bad: int = 0) -> CleanTable:
        return CleanTable(frame, self.cleaner.provenance("jsonl", rows, bad))

    @property
    def _place(self) -> str:
        return "object {}" if _is_array(self.content[:1000]) else "line {}"


def _is_array(content: bytes) -> bool:
    return content.lstrip()[:1] == b"["


def _records(content: bytes, name: str) -> Iterator[tuple[int, Any]]:
    """Number and value of each record; the value of one that cannot be parsed is a `DataError`."""
    if _is_array(content):
        try:
            yield from enumerate(json.loads(content), 1)
        except (ValueError, RecursionError) as error:
            raise DataError(f"is not JSON ({error})", where=name, expected="an array of objects") from error
        return
    for number, line in enumerate(io.BytesIO(content), 1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except (ValueError, RecursionError) as error:
                reason = getattr(error, "msg", None) or type(error).__name__
                place = f"{name}, line {number}"
                fault = DataError(f"not JSON ({reason})", where=place, expected="one JSON object per line")
                yield number, fault


def _is_unicode(value: str) -> bool:
    try:
        return value.isascii() or bool(value.encode())
    except UnicodeEncodeError:
        return False


def _type_name(value: object) -> str:
    return _TYPE_NAMES.get(type(value), "null")
