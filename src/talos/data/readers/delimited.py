"""Delimited text: csv, tsv, other separators, RecBole .inter, MovieLens, Amazon ratings, LightGCN lines.

Three attempts, each slower and more exact than the one before: polars with the types that samples of the file
suggest; polars with strings only; and the `csv` module, which knows on which line each row stands.
"""

from __future__ import annotations

import csv
import io
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from talos.data.readers.columns import Role, resolve
from talos.data.readers.options import Options
from talos.data.readers.table import Table, polars_errors
from talos.data.readers.text import Layout, Text, fields_of, headerless_roles, layout_of, rows_of
from talos.data.readers.values import Problem, clean, is_integer_text, settle, time_dtype
from talos.errors import DataError

__all__ = ["Job", "job_of", "read_delimited", "read_lightgcn"]

# Above this size only the needed columns are parsed, to save memory; polars then no longer sees that a row
# has more fields than the header.
_PROJECT_ABOVE = 1 << 30
_ROWS_AT_ONCE = 200_000


def read_delimited(text: Text, roles: Sequence[Role], options: Options) -> Table:
    """Read a delimited text file."""
    job, rows = job_of(text, roles, options)
    return job.typed(rows) or job.as_strings() or job.row_by_row()


def job_of(text: Text, roles: Sequence[Role], options: Options) -> tuple[Job, list[list[str]]]:
    """How a file is to be read, and the fields of some of its rows."""
    layout = layout_of(text, options.format, roles)
    rows = [row for piece in text.samples() for row in fields_of(piece, layout)]
    if not layout.headerless:
        rows = rows[1:]
    if not rows:
        raise DataError("has a header and no rows", where=text.name, expected="one interaction a line")
    found = _find_columns(text, layout, roles, rows[0])
    columns = {name: layout.names[position] for name, position in found.items()}
    if layout.headerless:
        columns = {name: f"{position + 1}" for name, position in found.items()}
    if layout.separator == "::":
        # polars knows separators of one byte only.
        text = Text(text.name, text.path, text.content().replace(b"::", b"\t"), text.size)
        layout = _with_tabs(layout)
    return Job(text, layout, roles, found, columns, options), rows


def _with_tabs(layout: Layout) -> Layout:
    return Layout(
        format=layout.format,
        separator="\t",
        names=layout.names,
        skip_lines=layout.skip_lines,
        headerless=layout.headerless,
        quoted=False,
    )


def _find_columns(text: Text, layout: Layout, roles: Sequence[Role], row: Sequence[str]) -> dict[str, int]:
    if not layout.headerless:
        return resolve(roles, layout.names, text.name)
    usual = headerless_roles(row)
    # A file without header has columns called 1, 2, …; roles that are not given stand in the usual places,
    # unless some are given: then nothing is known about the others.
    any_given = any(role.given for role in roles)
    placed = [
        Role(
            name=role.name,
            kind=role.kind,
            required=role.required,
            given=str(usual[role.name] + 1)
            if role.given is None and role.name in usual and (role.required or not any_given)
            else role.given or "",
        )
        for role in roles
    ]
    missing = next((role for role in placed if role.required and not role.given), None)
    if missing is not None:
        raise DataError(
            f"no header and no usual place for the {missing.name} column",
            where=text.name,
            expected=f"its position, such as {missing.name}='3'",
        )
    return resolve(placed, layout.names, f"{text.name} (no header: columns are called by position)")


@dataclass(frozen=True)
class Job:
    """A delimited file, what its columns are, and the attempts at reading it."""

    text: Text
    layout: Layout
    roles: Sequence[Role]
    found: Mapping[str, int]
    columns: Mapping[str, str]
    options: Options

    def typed(self, rows: Sequence[Sequence[str]]) -> Table | None:
        """Attempt 1: let polars parse numbers, as the samples suggest."""
        return self._by_polars(self.dtypes(rows))

    def dtypes(self, rows: Sequence[Sequence[str]]) -> dict[str, pl.DataType]:
        """What some rows suggest that each role's column holds."""
        dtypes: dict[str, pl.DataType] = {}
        for role in self.roles:
            position = self.found.get(role.name)
            if position is None:
                continue
            values = [row[position].strip() for row in rows if position < len(row)]
            if role.kind == "id":
                whole = self.options.ids == "auto" and all(map(is_integer_text, values))
                dtypes[role.name] = pl.Int64() if whole else pl.String()
            elif role.kind == "time":
                dtypes[role.name] = time_dtype(values)
            else:
                dtypes[role.name] = pl.Float64() if role.kind == "number" else pl.String()
        return dtypes

    def as_strings(self) -> Table | None:
        """Attempt 2: strings only, and their types from all of them."""
        return self._by_polars({name: pl.String() for name in self.found})

    def scan(self, dtypes: Mapping[str, pl.DataType]) -> pl.LazyFrame:
        """The columns by role, not read yet."""
        settings, wanted = self._settings(dtypes)
        return pl.scan_csv(self.text.source, **settings).select(wanted)

    def _settings(self, dtypes: Mapping[str, pl.DataType]) -> tuple[dict[str, Any], list[pl.Expr]]:
        """What polars is told about the file, and the columns that are wanted of it."""
        schema: dict[str, pl.DataType] = {str(n): pl.String() for n in range(len(self.layout.names))}
        schema |= {str(self.found[name]): dtype for name, dtype in dtypes.items()}
        wanted = [pl.col(str(position)).alias(name) for name, position in self.found.items()]
        settings = {
            "has_header": False,
            "skip_lines": self.layout.skip_lines,
            "separator": self.layout.separator,
            "quote_char": '"' if self.layout.quoted else None,
            "schema": schema,
            "glob": False,
        }
        return settings, wanted

    def _by_polars(self, dtypes: Mapping[str, pl.DataType]) -> Table | None:
        try:
            with polars_errors(self.text.name):
                if self.text.size > _PROJECT_ABOVE:
                    frame = self.scan(dtypes).collect()
                else:
                    settings, wanted = self._settings(dtypes)
                    frame = pl.read_csv(self.text.source, **settings).select(wanted)
                cleaned, problems = self._clean(frame)
        except DataError:
            return None  # the next attempt says better what is wrong
        return None if problems or not len(cleaned) else self._table(cleaned, len(cleaned), 0)

    def row_by_row(self) -> Table:
        """Attempt 3: every row with its line."""
        frames: list[pl.DataFrame] = []
        lines = array("q")
        bad = 0
        for chunk in self.chunks():
            frame = pl.DataFrame(chunk.values, schema=dict.fromkeys(self.found, pl.String))
            if chunk.fault is not None and self.options.on_bad_row == "raise":
                self._settled(frame, chunk.lines)  # an earlier row may be bad as well
                raise chunk.fault
            bad += chunk.bad
            frames.append(frame)
            lines.extend(chunk.lines)
        whole = pl.concat(frames) if frames else pl.DataFrame(schema=dict.fromkeys(self.found, pl.String))
        rows = len(whole) + bad
        cleaned, more = self._settled(whole, lines)
        return self._table(cleaned, rows, bad + more)

    def _settled(self, frame: pl.DataFrame, lines: Sequence[int]) -> tuple[pl.DataFrame, int]:
        cleaned, problems = self._clean(frame)
        name = self.text.name
        mode = self.options.on_bad_row
        return settle(cleaned, problems, self.columns, mode, lambda row: f"{name}, line {lines[row]}")

    def _clean(self, frame: pl.DataFrame) -> tuple[pl.DataFrame, list[Problem]]:
        return clean(frame, self.roles, self.columns, where=self.text.name, text=True, ids=self.options.ids)

    def _table(self, frame: pl.DataFrame, rows: int, bad: int) -> Table:
        return Table(frame=frame, source=self.text.name, format=self.layout.format, rows=rows, bad_rows=bad)

    def chunks(self, rows: int = _ROWS_AT_ONCE) -> Iterator[_Chunk]:
        """Rows with their lines, some at a time; a bad one ends its chunk."""
        width = len(self.layout.names)
        needed = list(self.found.items())
        reach = max(self.found.values()) + 1
        stream = io.TextIOWrapper(self.text.open(), "utf-8-sig", errors="surrogateescape", newline="")
        with stream:
            for _ in range(self.layout.skip_lines):
                stream.readline()
            reader = rows_of(stream, self.layout.separator, self.layout.quoted)
            chunk = _Chunk({name: [] for name, _ in needed})
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
                    values = [row[position] for _, position in needed]
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
                    chunk = _Chunk({name: [] for name, _ in needed})
            yield chunk


class _Chunk:
    """Some rows as columns of strings, their lines, and what was wrong with the row after them, if it was."""

    def __init__(self, values: dict[str, list[str]]) -> None:
        self.values = values
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


def read_lightgcn(text: Text, roles: Sequence[Role], options: Options) -> Table:
    """Read lines `user item item …`; a user without items is no interaction."""
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
    cleaned, problems = clean(frame, roles, columns, where=text.name, text=True, ids=options.ids)
    place = frame["line"]
    cleaned, more = settle(
        cleaned, problems, columns, options.on_bad_row, lambda row: f"{text.name}, line {place[row]}"
    )
    skipped = int(bad.sum())
    rows = len(frame) + skipped
    return Table(frame=cleaned, source=text.name, format="lightgcn", rows=rows, bad_rows=skipped + more)
