"""JSON lines, or one JSON array: Amazon's reviews, and what most services export."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import polars as pl

from talos.data.read.base import Reader
from talos.data.read.clean import SKIP, BadBlockError, Block, polars_errors
from talos.data.read.columns import find_columns
from talos.data.read.text import File, short
from talos.errors import DataError

__all__ = ["JSONLines"]

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


class JSONLines(Reader):
    """One JSON object per line, or one array of objects."""

    formats = ("jsonl", "json", "ndjson")

    @classmethod
    def recognises(cls, file: File) -> bool:
        """Whether the first line opens an object or an array of objects."""
        first = next(iter(file.first_lines(1)), "").lstrip()
        return first.startswith(("{", '[{"')) or first.rstrip() in ("[", "[{")

    def open(self) -> None:
        """Take the keys of the first hundred objects as columns."""
        self.is_array = self.file.samples[0].lstrip()[:1] == "["
        self.first: dict[str, Any] = {}
        names: dict[str, None] = {}
        where = self.file.name
        fault = DataError(
            "no JSON object in the first lines", where=where, expected="one JSON object per line"
        )
        records = [record for _, record in islice(self._records(), 100)]
        for record in records:
            if isinstance(record, dict):
                self.first = self.first or record
                names |= dict.fromkeys(record)
            elif isinstance(record, DataError):
                fault = record
        if not names:
            raise fault
        keys = list(names)

        def values(position: int) -> pl.Series:
            found = [record.get(keys[position]) for record in records if isinstance(record, dict)]
            plain = [one if isinstance(one, str) else repr(one) for one in found if one is not None]
            return pl.Series(plain, dtype=pl.String)

        found = find_columns(self.wanted, keys, where, values)
        self.take_columns(keys, found, "jsonl", "object {}" if self.is_array else "line {}")
        self.rows = round(self.file.size / max(self.file.mean_line, 1.0))

    def quick(self, rows: int) -> Iterator[Block]:
        """Pieces of the file as polars reads them, with the types of the first object."""
        if self.is_array:
            raise BadBlockError
        columns = self.cleaner.columns
        wanted = {one.role: one for one in self.wanted if one.role in columns}
        schema: dict[str, pl.DataType] = {}
        for role, one in wanted.items():
            value = self.first.get(columns[role])
            whole = one.kind == "id" or (one.kind == "time" and isinstance(value, int))
            if one.kind == "text" or isinstance(value, str):
                schema[columns[role]] = pl.String()
            else:
                schema[columns[role]] = pl.Int64() if whole else pl.Float64()
        texts = [
            columns[r] for r, one in wanted.items() if one.kind == "id" and schema[columns[r]] == pl.String
        ]
        for chunk in self.file.chunks():
            if _HALF_CHARACTER.search(chunk):  # polars would make every half the same sign
                raise BadBlockError
            try:
                with polars_errors(self.file.name):
                    frame = pl.read_ndjson(chunk, schema=schema)
            except DataError:
                raise BadBlockError from None
            # polars turns numbers and objects into strings where the schema wants strings: count the quotes
            for key in texts:
                opened = (f'{json.dumps(key)}:{gap}"'.encode() for gap in ("", " "))
                if sum(map(chunk.count, opened)) != len(frame):
                    raise BadBlockError
            block = self.cleaner.quick(
                frame.select([pl.col(key).alias(role) for role, key in columns.items()])
            )
            for start in range(0, block.rows, rows):
                yield Block(block.frame[start : start + rows], min(rows, block.rows - start))

    def careful(self, rows: int) -> Iterator[Block]:
        """Objects as Python's parser reads them, which knows the line of each."""
        types: dict[str, type] = {}  # of the ids of each role, set by the first one
        records = self._records()
        while some := list(islice(records, rows)):
            good: list[tuple[int, dict[str, Any]]] = []
            fault: DataError | None = None
            for number, record in some:
                try:
                    good.append((number, self._checked(record, number, types)))
                except DataError as error:
                    fault = error
                    if not self.cleaner.skip:
                        break
            with polars_errors(self.file.name, "values of one type", TypeError, ValueError, OverflowError):
                columns = [
                    self._column(role, [row[role] for _, row in good], types) for role in self.cleaner.columns
                ]
                block = self.cleaner.careful(pl.DataFrame(columns), [number for number, _ in good])
            if (
                fault is not None and not self.cleaner.skip
            ):  # a row before it may be bad as well, and is named first
                raise fault
            yield Block(block.frame, block.rows + len(some) - len(good))

    def _checked(self, record: Any, number: int, types: dict[str, type]) -> dict[str, Any]:
        """The value of each role in a record, or a `DataError` if one is of the wrong type."""
        place = f"{self.file.name}, {self.cleaner.place.format(number)}"
        if isinstance(record, DataError):
            raise record
        if not isinstance(record, dict):
            raise DataError(f"a {_type_name(record)}", where=place, expected="a JSON object", option=SKIP)
        row = {role: record.get(key) for role, key in self.cleaner.columns.items()}
        for role, value in row.items():
            key = self.cleaner.columns[role]
            if role in ("user", "item") and value is not None:
                expected = types.setdefault(role, type(value)) if type(value) in (str, int) else None
                if type(value) is not expected or (isinstance(value, int) and value not in _INT64):
                    allowed = {str: "strings, as before", int: "64-bit integers, as before"}
                    kind = allowed[types[role]] if role in types else "strings or integers"
                    what = f"{short(value)} is a {_type_name(value)} in {key!r}"
                    raise DataError(what, where=place, expected=f"ids of one type: {kind}", option=SKIP)
            elif not isinstance(value, (str, int, float, type(None))):
                raise DataError(f"{short(value)} in {key!r}", where=place, expected=f"a {role}", option=SKIP)
            if isinstance(value, str) and not _is_unicode(value):
                raise DataError(
                    f"half a character in {key!r}", where=place, expected="valid Unicode", option=SKIP
                )
        return row

    def _column(self, role: str, values: list[Any], types: Mapping[str, type]) -> pl.Series:
        if role in ("user", "item"):
            return pl.Series(
                role, values, dtype=pl.String if types.get(role) is str else pl.Int64, strict=True
            )
        # a number may be written as a string: make all of them strings, parsed later
        texts = [None if v is None else v if isinstance(v, str) else repr(v) for v in values]
        return pl.Series(role, texts, dtype=pl.String)

    def _records(self) -> Iterator[tuple[int, Any]]:
        """Number and value of each record; the value of one that cannot be parsed is a `DataError`."""
        name = self.file.name
        with self.file.open() as stream:
            if self.is_array:
                try:
                    yield from enumerate(json.loads(stream.read()), 1)
                except (ValueError, RecursionError) as error:
                    what = f"is not JSON ({error})"
                    raise DataError(what, where=name, expected="an array of objects") from error
                return
            for number, line in enumerate(stream, 1):
                if line.strip():
                    try:
                        yield number, json.loads(line)
                    except (ValueError, RecursionError) as error:
                        reason = getattr(error, "msg", None) or type(error).__name__
                        what, place = f"not JSON ({reason})", f"{name}, line {number}"
                        yield (
                            number,
                            DataError(what, where=place, expected="one JSON object per line", option=SKIP),
                        )


def _is_unicode(value: str) -> bool:
    return value.isascii() or not any("\ud800" <= sign <= "\udfff" for sign in value)


def _type_name(value: object) -> str:
    return _TYPE_NAMES.get(type(value), "null")
