"""JSON lines, or one JSON array: Amazon's reviews, and what most services export."""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import polars as pl

from talos.data.read.base import TextReader
from talos.data.read.clean import BadBlockError, BadRow
from talos.data.read.columns import find_columns
from talos.data.read.text import File, half_characters
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
    type(None): "null",
}


class JSONLines(TextReader):
    """One JSON object per line, or one array of objects."""

    formats = ("jsonl", "json", "ndjson")

    @classmethod
    def recognises(cls, file: File) -> bool:
        """Whether the first line opens an object or an array of objects."""
        first = file.first_lines(1)[0].strip()
        return first.startswith(("{", '[{"')) or first in ("[", "[{")

    def open(self) -> None:
        """Take the keys of the first hundred objects as columns; ids are of the type of the first one."""
        self.is_array = self.file.head.lstrip().startswith("[")
        sample = list(islice(self._records(), 100))
        records = [record for _, record in sample if isinstance(record, dict)]
        keys = list(dict.fromkeys(key for record in records for key in record))
        if not keys:
            nothing = (1, BadRow("no JSON object in the first lines", "one JSON object per line"))
            number, fault = next((one for one in sample if isinstance(one[1], BadRow)), nothing)
            raise fault.error(f"{self.file.name}, line {number}")

        def values(position: int) -> pl.Series:
            found = [record[keys[position]] for record in records if record.get(keys[position]) is not None]
            texts = (value if isinstance(value, str) else repr(value) for value in found)
            return pl.Series([text.encode(errors="replace").decode() for text in texts], dtype=pl.String)

        found = find_columns(self.wanted, keys, self.file.name, values)
        self.take_columns(keys, found, "jsonl", "object {}" if self.is_array else "line {}")
        self.find_numbers(found, values)
        self.rows = self.file.about_how_many("\n")
        self.ids: dict[str, type] = {}
        for role in ("user", "item"):
            ids = (record.get(keys[found[role]]) for record in records)
            self.ids[role] = next((type(one) for one in ids if type(one) in (str, int)), str)
        self.types = {role: pl.Int64 for role, kind in self.ids.items() if kind is int}

    def parsed(self, chunk: bytes, types: Mapping[str, type[pl.DataType]]) -> pl.DataFrame:
        """The wanted columns of some lines."""
        if self.is_array or _HALF_CHARACTER.search(chunk):  # polars would make every half the same sign
            raise BadBlockError
        columns = self.cleaner.columns
        frame = pl.read_ndjson(
            chunk, schema={key: types.get(role, pl.String) for role, key in columns.items()}
        )
        # polars turns numbers and objects into strings where the schema wants strings: count the quotes
        for key in (columns[role] for role, kind in self.ids.items() if kind is str):
            opened = (f'{json.dumps(key)}:{gap}"'.encode() for gap in ("", " "))
            if sum(map(chunk.count, opened)) != len(frame):
                raise BadBlockError
        return frame.select(pl.col(key).alias(role) for role, key in columns.items())

    def numbered_rows(self) -> Iterator[tuple[int, list[Any] | BadRow]]:
        """Objects as Python's parser reads them, which knows the line of each."""
        for number, record in self._records():
            yield number, record if isinstance(record, BadRow) else self._row(record)

    def _row(self, record: Any) -> list[Any] | BadRow:
        """The value of each role: ids as they are, others as text, as a number may be written as a string."""
        if not isinstance(record, dict):
            return BadRow(f"a {_TYPE_NAMES[type(record)]}", "a JSON object")
        row: list[Any] = []
        for role, key in self.cleaner.columns.items():
            value, kind = record.get(key), self.ids.get(role)
            if kind is not None and value is not None:
                if type(value) is not kind or (kind is int and value not in _INT64):
                    what = f"{reprlib.repr(value)} is a {_TYPE_NAMES[type(value)]} in {key!r}"
                    expected = "strings" if kind is str else "64-bit integers"
                    return BadRow(what, f"ids of one type: {expected}, as before")
            elif not isinstance(value, (str, int, float, type(None))):
                return BadRow(f"{reprlib.repr(value)} in {key!r}", f"a {role}")
            if isinstance(value, str) and half_characters(value):
                return BadRow(f"half a character in {key!r}", "valid Unicode")
            row.append(value if kind is not None or value is None or isinstance(value, str) else repr(value))
        return row

    def _records(self) -> Iterator[tuple[int, Any]]:
        """Number and value of each record; the value of one that cannot be parsed is a `BadRow`."""
        with self.file.open() as stream:
            if self.is_array:
                try:
                    yield from enumerate(json.loads(stream.read()), 1)
                except (ValueError, RecursionError) as error:
                    what = f"is not JSON ({error})"
                    raise DataError(what, where=self.file.name, expected="an array of objects") from error
                return
            for number, line in enumerate(stream, 1):
                if line.strip():
                    try:
                        record = json.loads(line)
                    except (ValueError, RecursionError) as error:
                        reason = getattr(error, "msg", None) or type(error).__name__
                        record = BadRow(f"not JSON ({reason})", "one JSON object per line")
                    yield number, record
