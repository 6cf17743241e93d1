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
from talos.data.read.columns import KINDS, find_columns
from talos.data.read.text import File, half_characters

__all__ = ["JSONLines"]

# Half of a character beyond the first 65,536, as JSON escapes it, without its other half.
_HALF_CHARACTER = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F]"
)


class JSONLines(TextReader):
    """One JSON object per line, or one array of objects."""

    formats = ("jsonl", "json", "ndjson")

    @classmethod
    def recognises(cls, file: File) -> bool:
        """Whether the first line opens an object or an array of objects."""
        first = file.first_lines(1)[0].strip()
        return first.startswith(("{", '[{"')) or first in ("[", "[{")

    def open(self) -> None:
        """Take the keys of the first hundred objects as columns."""
        self.is_array = self.file.head.lstrip().startswith("[")
        sample = list(islice(self._records(), 100))
        records = [record for _, record in sample if isinstance(record, dict)]
        keys = list(dict.fromkeys(key for record in records for key in record))
        if not keys:
            number, first = sample[0] if sample else (1, [])
            fault = (
                first if isinstance(first, BadRow) else BadRow(reprlib.repr(first), "JSON objects with keys")
            )
            raise fault.error(f"{self.file.name}, line {number}")

        def values(position: int) -> pl.Series:
            found = [record[keys[position]] for record in records if record.get(keys[position]) is not None]
            texts = (value if isinstance(value, str) else repr(value) for value in found)
            return pl.Series([text.encode(errors="replace").decode() for text in texts], dtype=pl.String)

        found = find_columns(self.wanted, keys, self.file.name, values)
        self.take_columns(keys, found, "jsonl", "object {}" if self.is_array else "line {}")
        self.find_numbers(found, values)
        for role in ("user", "item"):
            if all(type(record.get(keys[found[role]])) is int for record in records):
                self.numbers[role] = pl.Int64
        self.rows = self.file.about_how_many("\n")

    def parsed(self, chunk: bytes, types: Mapping[str, type[pl.DataType]]) -> pl.DataFrame:
        """The wanted columns of some lines."""
        # polars would make every half the same sign; `in` is far quicker than the pattern
        if self.is_array or (b"\\u" in chunk and _HALF_CHARACTER.search(chunk)):
            raise BadBlockError
        columns = self.cleaner.columns
        frame = pl.read_ndjson(
            chunk, schema={key: types.get(role, pl.String) for role, key in columns.items()}
        )
        # polars turns numbers and objects into strings where the schema wants strings: count the quotes
        for key in (columns[role] for role in ("user", "item") if role not in types):
            opened = (f'{json.dumps(key)}:{gap}"'.encode() for gap in ("", " "))
            if sum(map(chunk.count, opened)) != len(frame):
                raise BadBlockError
        frame = frame.select(pl.col(key).alias(role) for role, key in columns.items())
        return frame.cast({"user": pl.String, "item": pl.String})

    def numbered_rows(self) -> Iterator[tuple[int, list[Any] | BadRow]]:
        """Objects as Python's parser reads them, which knows the line of each."""
        for number, record in self._records():
            yield number, record if isinstance(record, BadRow) else self._row(record)

    def _row(self, record: Any) -> list[str | None] | BadRow:
        """The value of each role as text, as a number may be written as a string."""
        if not isinstance(record, dict):
            return BadRow(reprlib.repr(record), "a JSON object")
        row: list[str | None] = []
        for role, key in self.cleaner.columns.items():
            value, is_id = record.get(key), KINDS[role] == "id"
            if value is not None and type(value) not in ((str, int) if is_id else (str, int, float)):
                expected = "text or an integer" if is_id else "text or a number"
                return BadRow(f"{reprlib.repr(value)} in {key!r}", expected)
            if isinstance(value, str) and half_characters(value):
                return BadRow(f"half a character in {key!r}", "valid Unicode")
            row.append(value if value is None or isinstance(value, str) else repr(value))
        return row

    def _records(self) -> Iterator[tuple[int, Any]]:
        """Number and value of each record; the value of one that cannot be parsed is a `BadRow`."""
        with self.file.open() as stream:
            for number, text in enumerate([stream.read()] if self.is_array else stream, 1):
                if not text.strip():
                    continue
                try:
                    record = json.loads(text)
                except (ValueError, RecursionError) as error:
                    reason = str(error) if self.is_array else getattr(error, "msg", type(error).__name__)
                    record = BadRow(f"not JSON ({reason})", "JSON objects, one per line or in one array")
                if self.is_array and isinstance(record, list):
                    yield from enumerate(record, 1)
                else:
                    yield number, record
