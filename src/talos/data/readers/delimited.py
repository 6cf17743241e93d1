"""Read delimited text: csv, tsv, other separators, RecBole .inter, MovieLens, Amazon ratings, LightGCN lines.

There are three attempts, each slower and more exact than the one before: polars with the types that samples of the file
suggest; polars with strings only; and Python's `csv` module, which knows the line of each row.
"""

from __future__ import annotations

import csv
import io
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from talos.data.readers.cleaning import (
    CleanTable,
    clean_columns,
    clean_rows,
    is_integer_text,
    polars_errors,
    time_dtype,
)
from talos.data.readers.columns import find_columns
from talos.data.readers.options import ReadOptions
from talos.data.readers.text import (
    Layout,
    TextFile,
    csv_reader,
    fields_of,
    guess_layout,
    headerless_roles,
)
from talos.errors import DataError

__all__ = ["DelimitedFile", "read_delimited", "read_lightgcn"]

# Above this size only the wanted columns are parsed, to save memory; polars then does not notice that a row has more
# fields than the header.
_PROJECT_ABOVE = 1 << 30
_ROWS_AT_ONCE = 200_000


def read_delimited(text: TextFile, options: ReadOptions) -> CleanTable:
    """Read a delimited text file."""
    file, sampled = DelimitedFile.inspect(text, options)
    return (
        file.by_polars(file.guess_dtypes(sampled))
        or file.by_polars(dict.fromkeys(file.found, pl.String()))
        or file.row_by_row()
    )


def _find_columns(text: TextFile, layout: Layout, options: ReadOptions, row: Sequence[str]) -> dict[str, int]:
    """The position of each wanted column; `row` is the first one."""
    if not layout.headerless:
        return find_columns(options.wanted, layout.names, text.name)
    # Without a header columns are called 1, 2, …, and those that are not given are assumed in the usual order. If some
    # are given the order is not the usual one, and of the others only the required ones are assumed.
    usual = headerless_roles(row)
    any_given = any(one.given for one in options.wanted)
    placed = []
    for one in options.wanted:
        given = one.given or ""
        if one.given is None and one.role in usual and (one.required or not any_given):
            given = str(usual[one.role] + 1)
        if one.required and not given:
            raise DataError(
                f"no header and no usual place for the {one.role} column",
                where=text.name,
                expected=f"its position, such as {one.role}='3'",
            )
        placed.append(replace(one, given=given))
    return find_columns(placed, layout.names, f"{text.name} (no header: columns are called by position)")


@dataclass(frozen=True)
class DelimitedFile:
    """A delimited text file, what its columns are, and the ways to read it.

    Attributes:
        text: the file.
        layout: separator, header and column names.
        found: the position of each role's column.
        columns: the name of each role's column, for messages.
        options: how to read it.
    """

    text: TextFile
    layout: Layout
    found: Mapping[str, int]
    columns: Mapping[str, str]
    options: ReadOptions

    @classmethod
    def inspect(cls, text: TextFile, options: ReadOptions) -> tuple[DelimitedFile, list[list[str]]]:
        """Find out a file's layout and columns; also returns the fields of some of its rows."""
        layout = guess_layout(text, options)
        rows = [row for piece in text.samples() for row in fields_of(piece, layout)]
        if not layout.headerless:
            rows = rows[1:]
        if not rows:
            raise DataError("has a header and no rows", where=text.name, expected="one interaction per line")
        found = _find_columns(text, layout, options, rows[0])
        columns = {role: layout.names[position] for role, position in found.items()}
        if layout.separator == "::":  # polars takes separators of one byte only
            text = replace(text, data=text.content().replace(b"::", b"\t"))
            layout = replace(layout, separator="\t", quoted=False)
        return cls(text, layout, found, columns, options), rows

    def guess_dtypes(self, rows: Sequence[Sequence[str]]) -> dict[str, pl.DataType]:
        """The type of each role's column, judging by some rows."""
        dtypes: dict[str, pl.DataType] = {}
        for one in self.options.wanted:
            position = self.found.get(one.role)
            if position is None:
                continue
            values = [row[position].strip() for row in rows if position < len(row)]
            if one.kind == "id":
                whole = self.options.ids == "auto" and all(map(is_integer_text, values))
                dtypes[one.role] = pl.Int64() if whole else pl.String()
            elif one.kind == "time":
                dtypes[one.role] = time_dtype(values)
            else:
                dtypes[one.role] = pl.Float64() if one.kind == "number" else pl.String()
        return dtypes

    def scan(self, dtypes: Mapping[str, pl.DataType]) -> pl.LazyFrame:
        """A scan of the wanted columns, named by role."""
        settings, wanted = self._settings(dtypes)
        return pl.scan_csv(self.text.source, **settings).select(wanted)

    def _settings(self, dtypes: Mapping[str, pl.DataType]) -> tuple[dict[str, Any], list[pl.Expr]]:
        """The arguments of polars' csv reader, and the expressions that select the wanted columns."""
        schema: dict[str, pl.DataType] = {str(n): pl.String() for n in range(len(self.layout.names))}
        schema |= {str(self.found[role]): dtype for role, dtype in dtypes.items()}
        wanted = [pl.col(str(position)).alias(role) for role, position in self.found.items()]
        settings = {
            "has_header": False,
            "skip_lines": self.layout.skip_lines,
            "separator": self.layout.separator,
            "quote_char": '"' if self.layout.quoted else None,
            "schema": schema,
            "glob": False,
        }
        return settings, wanted

    def by_polars(self, dtypes: Mapping[str, pl.DataType]) -> CleanTable | None:
        """Read by polars with these types; None if anything is wrong with any row."""
        try:
            with polars_errors(self.text.name):
                if self.text.size > _PROJECT_ABOVE:
                    frame = self.scan(dtypes).collect()
                else:
                    settings, wanted = self._settings(dtypes)
                    frame = pl.read_csv(self.text.source, **settings).select(wanted)
                cleaned, problems = clean_columns(
                    frame, self.columns, self.options, where=self.text.name, text=True
                )
        except DataError:
            return None  # a later attempt says better what is wrong
        return None if problems or not len(cleaned) else self._table(cleaned, len(cleaned), 0)

    def row_by_row(self) -> CleanTable:
        """Read by the `csv` module."""
        frames: list[pl.DataFrame] = []
        lines = array("q")
        bad = 0
        for chunk in self.chunks():
            frame = pl.DataFrame(chunk.values, schema=dict.fromkeys(self.found, pl.String))
            if chunk.fault is not None and self.options.on_bad_row == "raise":
                self._clean(frame, chunk.lines)  # a row before it may be bad as well, and is named first
                raise chunk.fault
            bad += chunk.bad
            frames.append(frame)
            lines.extend(chunk.lines)
        whole = pl.concat(frames) if frames else pl.DataFrame(schema=dict.fromkeys(self.found, pl.String))
        rows = len(whole) + bad
        cleaned, more = self._clean(whole, lines)
        return self._table(cleaned, rows, bad + more)

    def _clean(self, frame: pl.DataFrame, lines: Sequence[int]) -> tuple[pl.DataFrame, int]:
        name = self.text.name
        return clean_rows(
            frame,
            self.columns,
            self.options,
            where=name,
            text=True,
            place=lambda row: f"{name}, line {lines[row]}",
        )

    def _table(self, frame: pl.DataFrame, rows: int, bad: int) -> CleanTable:
        return CleanTable(
            frame=frame, source=self.text.name, format=self.layout.format, rows=rows, bad_rows=bad
        )

    def chunks(self, rows: int = _ROWS_AT_ONCE) -> Iterator[_Chunk]:
        """Rows as strings with their lines, up to `rows` at a time; a chunk ends at a row that cannot be split."""
        width = len(self.layout.names)
        positions = list(self.found.values())
        reach = max(positions) + 1
        stream = io.TextIOWrapper(self.text.open(), "utf-8-sig", errors="surrogateescape", newline="")
        with stream:
            for _ in range(self.layout.skip_lines):
                stream.readline()
            reader = csv_reader(stream, self.layout.separator, self.layout.quoted)
            chunk = _Chunk(self.found)
            while True:
                line = self.layout.skip_lines + reader.line_num + 1
                place = f"{self.text.name}, line {line}"
                try:
                    row = next(reader)
                    if not row or (len(row) == 1 and not row[0].strip()):
                        continue
                    if not reach <= len(row) <= width:
                        raise DataError(
                            f"{len(row)} field{'s' * (len(row) > 1)}",
                            where=place,
                            expected=str(width),
                            hint="on_bad_row='skip' skips such rows",
                        )
                    values = [row[position] for position in positions]
                    "".join(values).encode()
                except StopIteration:
                    break
                except DataError as fault:
                    chunk.note(fault)
                except csv.Error as error:
                    chunk.note(DataError(f"not a csv row ({error})", where=place, expected=f"{width} fields"))
                except UnicodeEncodeError:
                    chunk.note(DataError("bytes that are not UTF-8", where=place, expected="UTF-8 text"))
                else:
                    chunk.add(line, values)
                if len(chunk.lines) >= rows or chunk.fault is not None:
                    yield chunk
                    chunk = _Chunk(self.found)
            yield chunk


class _Chunk:
    """Some rows as columns of strings, their lines, and the error about the row after them, if there is one."""

    def __init__(self, roles: Iterable[str]) -> None:
        self.values: dict[str, list[str]] = {role: [] for role in roles}
        self.lines = array("q")
        self.fault: DataError | None = None
        self.bad = 0

    def add(self, line: int, values: Sequence[str]) -> None:
        for column, value in zip(self.values.values(), values, strict=True):
            column.append(value)
        self.lines.append(line)

    def note(self, fault: DataError) -> None:
        self.fault = fault
        self.bad += 1


def read_lightgcn(text: TextFile, options: ReadOptions) -> CleanTable:
    """Read lines `user item item …`; a line with a user alone holds no interaction."""
    lines = pl.Series(text.content().removeprefix(b"\xef\xbb\xbf").split(b"\n"), dtype=pl.Binary)
    decoded = lines.cast(pl.String, strict=False)
    bad = decoded.is_null()
    if bad.any() and options.on_bad_row == "raise":
        line = int(bad.arg_max() or 0) + 1
        raise DataError("bytes that are not UTF-8", where=f"{text.name}, line {line}", expected="UTF-8 text")
    tokens = decoded.str.extract_all(r"\S+")
    frame = (
        pl.DataFrame({"user": tokens.list.first(), "item": tokens.list.slice(1)})
        .with_row_index("line", 1)
        .filter(pl.col("item").list.len() > 0)
        .explode("item")
    )
    if not len(frame):
        raise DataError(
            "no line with a user and an item", where=text.name, expected="lines 'user item item …'"
        )
    columns = {"user": "user", "item": "item"}
    place = frame["line"]
    cleaned, more = clean_rows(
        frame,
        columns,
        options,
        where=text.name,
        text=True,
        place=lambda row: f"{text.name}, line {place[row]}",
    )
    skipped = int(bad.sum())
    rows = len(frame) + skipped
    return CleanTable(frame=cleaned, source=text.name, format="lightgcn", rows=rows, bad_rows=skipped + more)
