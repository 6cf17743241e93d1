"""Read delimited text: csv, tsv, other separators, RecBole .inter, MovieLens, Amazon ratings, LightGCN lines.

There are three attempts, each slower and more exact than the one before: polars with the types that samples of the file
suggest; polars with strings only; and row by row in Python, which knows the line of each row.
"""

from __future__ import annotations

import io
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import polars as pl

from talos.data.interactions import Provenance
from talos.data.readers.cleaning import Cleaner, CleanTable, is_integer_text, polars_errors, time_dtype
from talos.data.readers.columns import find_columns
from talos.data.readers.csv_rows import QuoteError, csv_rows
from talos.data.readers.options import ReadOptions
from talos.data.readers.scanning import Oddities, find_oddities
from talos.data.readers.text import Layout, TextFile, fields_of, guess_layout, headerless_roles, not_utf8
from talos.errors import DataError

__all__ = ["DelimitedFile", "read_delimited", "read_lightgcn"]

# Above this size only the wanted columns are parsed, to save memory; polars then does not notice that a row has more
# fields than the header.
_PROJECT_ABOVE = 1 << 30
_ROWS_AT_ONCE = 1 << 17


def read_delimited(text: TextFile, options: ReadOptions) -> CleanTable:
    """Read a delimited text file."""
    file = DelimitedFile.inspect(text, options)
    for dtypes in file.attempts():
        if (frame := file.by_polars(dtypes)) is not None:
            return CleanTable(frame, file.provenance(len(frame)))
    ((frame, rows, bad),) = file.row_by_row(sys.maxsize)
    return CleanTable(frame, file.provenance(rows, bad))


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
    """A delimited text file, its layout, the position of each role's column, and the ways to read it."""

    text: TextFile
    layout: Layout
    found: Mapping[str, int]
    sampled: Sequence[Sequence[str]]  # the fields of some rows
    cleaner: Cleaner

    @classmethod
    def inspect(cls, text: TextFile, options: ReadOptions) -> DelimitedFile:
        """Find out a file's layout and columns."""
        layout = guess_layout(text, options)
        rows = [row for sample in text.samples for row in fields_of(sample, layout)]
        if not layout.headerless:
            rows = rows[1:]
        if not rows:
            raise DataError("has a header and no rows", where=text.name, expected="one interaction per line")
        found = _find_columns(text, layout, options, rows[0])
        columns = {role: layout.names[position] for role, position in found.items()}
        if layout.separator == "::":  # polars takes separators of one byte only
            text = replace(text, data=text.content().replace(b"::", b"\t"))
            layout = replace(layout, separator="\t", quoted=False)
        return cls(text, layout, found, rows, Cleaner(text.name, columns, options, text=True))

    def provenance(self, rows: int, bad_rows: int = 0) -> Provenance:
        """Where the rows came from."""
        return self.cleaner.provenance(self.layout.format, rows, bad_rows)

    def attempts(self) -> Iterator[dict[str, pl.DataType]]:
        """The types of each role's column to read it with by polars: judging by the sample, then strings only.

        None at all if there is a quote that polars would misread, and no numbers as ids if one of them is spelt in a
        way that a number is not printed in, anywhere in the file.
        """
        dtypes = self._sampled_types()
        odd = self._oddities(spellings=any(dtypes[role] == pl.Int64 for role in ("user", "item")))
        if odd.quotes:
            return
        if not odd.spellings:
            yield dtypes
        yield dict.fromkeys(self.found, pl.String())

    def _oddities(self, *, spellings: bool) -> Oddities:
        with self.text.open() as stream:
            return find_oddities(
                stream, self.layout.separator, quoted=self.layout.quoted, spellings=spellings
            )

    def _sampled_types(self) -> dict[str, pl.DataType]:
        options, dtypes = self.cleaner.options, dict[str, pl.DataType]()
        for one in options.wanted:
            position = self.found.get(one.role)
            if position is None:
                continue
            values = [row[position].strip() for row in self.sampled if position < len(row)]
            if one.kind == "id":
                whole = options.ids_of(one.role) == "auto" and all(map(is_integer_text, values))
                dtypes[one.role] = pl.Int64() if whole else pl.String()
            elif one.kind == "time":
                dtypes[one.role] = time_dtype(values)
            else:
                dtypes[one.role] = pl.Float64() if one.kind == "number" else pl.String()
        return dtypes

    def scan(self, dtypes: Mapping[str, pl.DataType]) -> pl.LazyFrame:
        """A scan of the wanted columns, named by role."""
        schema: dict[str, pl.DataType] = {str(n): pl.String() for n in range(len(self.layout.names))}
        schema |= {str(self.found[role]): dtype for role, dtype in dtypes.items()}
        scan = pl.scan_csv(
            self.text.source,
            has_header=False,
            skip_lines=self.layout.skip_lines,
            separator=self.layout.separator,
            quote_char='"' if self.layout.quoted else None,
            schema=schema,
            glob=False,
        )
        return scan.select([pl.col(str(position)).alias(role) for role, position in self.found.items()])

    def by_polars(self, dtypes: Mapping[str, pl.DataType]) -> pl.DataFrame | None:
        """The clean columns, read by polars with these types; None if anything is wrong with any row."""
        flags = pl.QueryOptFlags(projection_pushdown=self.text.size > _PROJECT_ABOVE)
        try:
            with polars_errors(self.text.name):
                frame = self.scan(dtypes).collect(optimizations=flags)
                return self.cleaner.again().clean(frame) if len(frame) else None
        except DataError:
            return None  # a later attempt says better what is wrong

    def row_by_row(self, most: int) -> Iterator[tuple[pl.DataFrame, int, int]]:
        """Read by `csv_rows`: clean columns of up to `most` rows, with the number of rows and of bad ones."""
        schema, cleaner = dict.fromkeys(self.found, pl.String), self.cleaner.again()
        frames, lines, faults = [pl.DataFrame(schema=schema)], array("q"), 0

        def cleaned() -> tuple[pl.DataFrame, int, int]:
            frame, bad = cleaner.clean_rows(pl.concat(frames), lines)
            return frame, len(lines) + faults, bad + faults

        for values, some, fault in self._chunks(min(most, _ROWS_AT_ONCE)):
            if len(lines) + len(some) > most:
                yield cleaned()
                frames, lines, faults = frames[:1], array("q"), 0
            frames.append(pl.DataFrame(values, schema=schema))
            lines.extend(some)
            if fault is not None:
                faults += 1
                if self.cleaner.options.on_bad_row == "raise":
                    cleaned()  # a row before it may be bad as well, and is named first
                    raise fault
        yield cleaned()

    def _chunks(self, most: int) -> Iterator[tuple[dict[str, list[str]], array[int], DataError | None]]:
        """Up to `most` rows as columns of strings, their lines, and the error about the row after them, if any."""
        width = len(self.layout.names)
        reach = max(self.found.values()) + 1
        stream = io.TextIOWrapper(self.text.open(), "utf-8-sig", errors="surrogateescape", newline="")
        with stream:
            for _ in range(self.layout.skip_lines):
                stream.readline()
            single = frozenset(self.found[role] for role in ("user", "item"))
            rows = csv_rows(
                stream,
                self.layout.separator,
                quoted=self.layout.quoted,
                first=self.layout.skip_lines + 1,
                single=single,
            )
            columns: dict[str, list[str]] = {role: [] for role in self.found}
            lines, fault = array("q"), None
            for line, row in rows:
                if isinstance(row, QuoteError):
                    fault = DataError(
                        str(row),
                        where=f"{self.text.name}, line {row.line}",
                        expected='quotes around a whole field, and "" for a quote within it',
                        hint="on_bad_row='skip' skips such rows",
                    )
                elif len(row) == 1 and not row[0].strip():
                    continue
                elif not reach <= len(row) <= width:
                    fault = DataError(
                        f"{len(row)} field{'s' * (len(row) > 1)}",
                        where=f"{self.text.name}, line {line}",
                        expected=str(width),
                        hint="on_bad_row='skip' skips such rows",
                    )
                else:
                    values = [row[position] for position in self.found.values()]
                    try:
                        "".join(values).encode()
                    except UnicodeEncodeError:
                        fault = not_utf8(self.text, line)
                    else:
                        for column, value in zip(columns.values(), values, strict=True):
                            column.append(value)
                        lines.append(line)
                if len(lines) >= most or fault is not None:
                    yield columns, lines, fault
                    columns = {role: [] for role in self.found}
                    lines, fault = array("q"), None
            yield columns, lines, None


def read_lightgcn(text: TextFile, options: ReadOptions) -> CleanTable:
    """Read lines `user item item …`; a line with a user alone holds no interaction."""
    lines = pl.Series(text.content().removeprefix(b"\xef\xbb\xbf").split(b"\n"), dtype=pl.Binary)
    decoded = lines.cast(pl.String, strict=False)
    bad = decoded.is_null()
    if bad.any() and options.on_bad_row == "raise":
        line = int(bad.arg_max() or 0) + 1
        raise not_utf8(text, line)
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
    cleaner = Cleaner(text.name, {"user": "user", "item": "item"}, options, text=True)
    cleaned, more = cleaner.clean_rows(frame, frame["line"])
    skipped = int(bad.sum())
    rows = len(frame) + skipped
    return CleanTable(
        cleaned, Provenance(source=text.name, format="lightgcn", rows=rows, bad_rows=skipped + more)
    )
