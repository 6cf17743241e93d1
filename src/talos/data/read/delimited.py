"""Delimited text: csv, tsv, other separators, RecBole .inter, MovieLens, Amazon ratings; and LightGCN's lines."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

import numpy as np
import polars as pl

from talos.data.id_column import are_integers
from talos.data.read.base import TextReader
from talos.data.read.clean import POLARS_ERRORS, BadBlockError, BadRow, is_integer_text
from talos.data.read.columns import WantedColumn, find_columns
from talos.data.read.text import File, Layout, guess_layout, half_characters, not_utf8, rows_of
from talos.errors import DataError, Option

__all__ = ["Delimited", "LightGCN", "csv_rows"]

_is_date = re.compile(r"\s*\d{4}[-/]\S{3}").match
# Between blanks of ASCII: Python and polars differ in the others.
_TOKEN = r"[^ \t\r\n\v\f]+"


class Delimited(TextReader):
    """Fields between separators, with or without a header."""

    formats = ("amazon", "csv", "inter", "movielens", "text", "tsv")
    text = True

    @classmethod
    def recognises(cls, file: File) -> bool:
        """Any text that no other reader recognises."""
        return True

    def open(self) -> None:
        """Find the layout and the columns."""
        given = frozenset(one.given for one in self.wanted if one.given)
        self.layout = layout = guess_layout(self.file, self.options.format, given)
        rows = rows_of(self.file.head.splitlines(keepends=True), layout.separator, layout.quoted)
        rows = rows[0 if layout.headerless else 1 :][:100]

        def values(position: int) -> pl.Series:
            return pl.Series([row[position] for row in rows if position < len(row)], dtype=pl.String)

        where, wanted = self.file.name, self.wanted
        if layout.headerless:
            where, wanted = f"{where} (no header: columns are called by position)", self._by_position()
        self.found = find_columns(wanted, layout.names, where, values)
        self.take_columns(layout.names, self.found, layout.format)
        self.rows = self.file.about_how_many("\n")
        # For polars, which parses numbers faster than text; ids are always read as text.
        self.numbers: dict[str, type[pl.DataType]] = {}
        for one in self.wanted:
            if one.role in self.found and one.kind == "number":
                self.numbers[str(self.found[one.role])] = pl.Float64
            elif one.role in self.found and one.kind == "time" and are_integers(values(self.found[one.role])):
                self.numbers[str(self.found[one.role])], self.cleaner.times = pl.Int64, "numbers"

    def _by_position(self) -> list[WantedColumn]:
        """The wanted columns of a file without header, those that are not given in the usual order.

        If some are given, the order is not the usual one, and only the required ones of the others are assumed.
        """
        any_given = any(one.given for one in self.wanted)
        usual = {role: str(n) for n, role in enumerate(_usual_order(self.layout.first), 1)}
        placed = []
        for one in self.wanted:
            if one.given is None:
                assumed = one.required or not any_given
                one = replace(one, given=usual.get(one.role, "") if assumed else "")
            if one.required and not one.given:
                raise DataError(
                    f"no header and no usual place for the {one.role} column",
                    where=self.file.name,
                    expected="its position",
                    option=Option(one.role, "3", "takes the third"),
                )
            placed.append(one)
        return placed

    def pieces(self) -> Iterator[pl.DataFrame]:
        """Pieces of the file; all columns are parsed, so that too many fields are noticed."""
        layout = self.layout
        separator = "\t" if layout.separator == "::" else layout.separator  # polars takes one byte only
        schema = {str(n): pl.String for n in range(len(layout.names))}
        columns = [pl.col(str(place)).alias(role) for role, place in self.found.items()]
        for chunk in self.file.chunks(layout.skip_lines, quoted=layout.quoted):
            # A lone carriage return ends a line for Python's `csv`, and not for polars.
            if b"\r" in chunk and chunk.count(b"\r") > chunk.count(b"\r\n"):
                raise BadBlockError
            if layout.quoted and odd_quotes(chunk, separator):
                raise BadBlockError
            parsed = partial(
                pl.read_csv,
                chunk.replace(b"::", b"\t") if layout.separator == "::" else chunk,
                has_header=False,
                separator=separator,
                quote_char='"' if layout.quoted else None,
                glob=False,
            )
            try:
                frame = parsed(schema=schema | self.numbers)
            except POLARS_ERRORS:  # perhaps only of another form of number, or a date: the cleaner knows more forms
                frame = parsed(schema=schema)
            yield frame.select(columns)

    def numbered_rows(self) -> Iterator[tuple[int, list[str] | BadRow]]:
        """Rows with their lines; titles may be missing at the end of a row."""
        needed = [self.found[one.role] for one in self.wanted if one.kind != "text" and one.role in self.found]
        ids = [self.found["user"], self.found["item"]]
        for line, row in csv_rows(self.file, self.layout, max(needed) + 1, ids):
            if not isinstance(row, BadRow):
                row = [row[place] if place < len(row) else "" for place in self.found.values()]
                row = not_utf8(self.file) if half_characters("".join(row)) else row
            yield line, row


def _usual_order(row: Sequence[str]) -> tuple[str, ...]:
    """The role of each column in a file without header; empty if the row fits no usual order.

    The orders are: user item; user item rating (or time); user item rating time (or time rating); and Gowalla's
    check-ins: user time latitude longitude place.
    """
    times = [_is_time(field) for field in row]
    if _is_date(row[1]):
        return ("user", "timestamp", "latitude", "longitude", "item") if len(row) == 5 else ()
    if len(row) < 4:
        return ("user", "item", "timestamp" if times[-1] else "rating")[: len(row)]
    if len(row) == 4 and times[2:] == [True, False]:
        return ("user", "item", "timestamp", "rating")
    return ("user", "item", "rating", "timestamp") if len(row) == 4 else ()


def _is_time(field: str) -> bool:
    try:
        return abs(float(field)) > 1e6
    except ValueError:
        return bool(_is_date(field))


def csv_rows(
    file: File, layout: Layout, fewest: int, one_line: Sequence[int] = ()
) -> Iterator[tuple[int, list[str] | BadRow]]:
    r"""The line of each row, and its fields or what is wrong with it.

    After a quote that is out of place the next line is the next row. Bytes that are not UTF-8 become half characters.

    Args:
        file: the file.
        layout: of the file.
        fewest: how many fields a row must have.
        one_line: the positions of fields that cannot have a line break, such as ids.

    >>> import tempfile
    >>> from pathlib import Path
    >>> layout = Layout(format="csv", separator=",", first=("a", "b"), skip_lines=1, headerless=False)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "x.csv")
    ...     _ = path.write_text('a,b\na,"b ""c"" d"\nd,"e\nf,g\n')
    ...     [row if isinstance(row, list) else row.what for _, row in csv_rows(File(path, "x", 99), layout, 2)]
    [['a', 'b "c" d'], 'a quote opens in this row and is not closed', ['f', 'g']]
    """
    again: deque[str] = deque()  # lines that a row with a quote out of place took
    taken: list[str] = []  # the lines of a row
    number, width = layout.skip_lines, len(layout.names)
    with io.TextIOWrapper(file.open(), "utf-8", "surrogateescape", newline="") as stream:

        def next_line() -> str:
            taken.append(again.popleft() if again else stream.readline())
            return taken[-1]

        for _ in range(layout.skip_lines):
            stream.readline()
        while text := next_line():
            number += 1
            row: list[str] | BadRow = text.rstrip("\r\n").split(layout.separator)
            if layout.quoted and '"' in text:
                row = _quoted_row(chain([text], iter(next_line, "")), layout.separator, one_line)
                if isinstance(row, BadRow):
                    again.extendleft(reversed(taken[1:]))
                    del taken[1:]
            if not isinstance(row, BadRow) and not fewest <= len(row) <= width:
                row = BadRow(f"{len(row)} field{'s' * (len(row) > 1)}", str(width))
            if text.strip():
                yield number, row
            number += len(taken) - 1
            taken.clear()


def _quoted_row(lines: Iterable[str], separator: str, one_line: Sequence[int]) -> list[str] | BadRow:
    """The first row of lines."""
    reader = csv.reader(lines, delimiter=separator, strict=True)
    fault = "a quote opens in this row and is not closed"
    try:
        row = next(reader)
        if not any(len(row[n].strip().splitlines()) > 1 for n in one_line if n < len(row)):
            return row
        fault += " in its line"
    except csv.Error as error:
        if "expected after" in str(error) and reader.line_num == 1:
            fault = "a quoted field is followed by text"
    return BadRow(fault, 'quotes around a whole field, and "" for a quote within it')


def odd_quotes(chunk: bytes, separator: str) -> bool:
    r"""Whether a quote stands where a quoted field neither begins nor ends, or the last one is not closed.

    Polars reads such text without an error, and wrongly. Every quote opens or closes, in turn; the two of `""` within a
    field close it and open it again. One that opens stands after a separator, a line end or a closing quote, and one
    that closes stands before a separator, a line end or an opening quote.

    >>> odd_quotes(b'u,"i\n1,2\n', ","), odd_quotes(b'"a ""b"" c",7\n', ",")
    (True, False)
    """
    if b'"' not in chunk:
        return False
    near = np.frombuffer(b"\n" + chunk + b"\n", np.uint8)
    quotes = np.flatnonzero(near == ord('"'))
    before, after = near[quotes[0::2] - 1], near[quotes[1::2] + 1]
    fine = list(f'{separator}\n"'.encode())
    return len(quotes) % 2 == 1 or not (np.isin(before, fine).all() and np.isin(after, [*fine, ord("\r")]).all())


class LightGCN(TextReader):
    """Lines `user item item …`; a line with a user alone holds no interaction."""

    formats = ("lightgcn",)
    text = True

    @classmethod
    def recognises(cls, file: File) -> bool:
        """Whether lines have integers between blanks, in any number.

        The thresholds leave room for a few bad rows in a table, and for a few bad ids in a file of LightGCN's.
        """
        rows = [line.strip().split(" ") for line in file.first_lines(2000)]
        if "\t" in file.head or not all(map(is_integer_text, rows[0])):
            return False
        tokens = [token for row in rows for token in row if token]
        rows_of_usual_width = Counter(map(len, rows)).most_common(1)[0][1]
        integers = sum(1 for token in tokens if is_integer_text(token))
        return (
            integers >= 0.8 * len(tokens)
            and rows_of_usual_width <= 0.8 * len(rows)
            and max(map(len, rows)) > 4
        )

    def open(self) -> None:
        """Take the two columns that there are."""
        self.take_columns(("user", "item"), {"user": 0, "item": 1}, "lightgcn")
        self.rows = self.file.about_how_many(" ")

    def pieces(self) -> Iterator[pl.DataFrame]:
        """The interactions of some lines."""
        for chunk in self.file.chunks():
            tokens = pl.Series(chunk.split(b"\n")).cast(pl.String).str.extract_all(_TOKEN)
            frame = pl.DataFrame({"user": tokens.list.first(), "item": tokens.list.slice(1)})
            yield frame.filter(pl.col("item").list.len() > 0).explode("item")

    def numbered_rows(self) -> Iterator[tuple[int, list[str] | BadRow]]:
        """Each interaction, numbered by its line."""
        with io.TextIOWrapper(self.file.open(), "utf-8", "surrogateescape", newline="\n") as stream:
            for number, line in enumerate(stream, 1):
                if half_characters(line):
                    yield number, not_utf8(self.file)
                    continue
                user, *items = re.findall(_TOKEN, line) or [""]
                for item in items:
                    yield number, [user, item]
