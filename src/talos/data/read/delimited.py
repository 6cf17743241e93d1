"""Delimited text: csv, tsv, other separators, RecBole .inter, MovieLens, Amazon ratings; and LightGCN's lines.

The quick pass gives pieces of the file to polars. The careful pass goes through Python's `csv` module, which knows the
line of each row.
"""

from __future__ import annotations

import csv
import io
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np
import polars as pl
from numpy.typing import NDArray

from talos.data.read.base import Reader
from talos.data.read.clean import SKIP, BadBlockError, Block, is_integer_text, polars_errors
from talos.data.read.columns import WantedColumn, find_columns
from talos.data.read.text import (
    File,
    Layout,
    fields_of,
    guess_layout,
    headerless_roles,
    lines_are_ragged,
    not_utf8,
)
from talos.errors import DataError, Option

__all__ = ["Delimited", "LightGCN", "QuoteError", "csv_rows"]

_QUOTE, _LINE, _RETURN = b'"'[0], b"\n"[0], b"\r"[0]


class Delimited(Reader):
    """Fields between separators, with or without a header."""

    formats = ("amazon", "csv", "inter", "movielens", "text", "tsv")
    text = True

    @classmethod
    def recognises(cls, file: File) -> bool:
        """Any text that no other reader recognises."""
        return True

    def open(self) -> None:
        """Find the layout, the columns and the types of times."""
        given = frozenset(one.given for one in self.wanted if one.given)
        self.layout = guess_layout(self.file, self.options.format, given)
        rows = [row for sample in self.file.samples for row in fields_of(sample, self.layout)]
        rows = rows if self.layout.headerless else rows[1:]
        if not rows and self.file.is_sampled_whole:
            raise DataError(
                "has a header and no rows", where=self.file.name, expected="one interaction per line"
            )
        where, wanted = self.file.name, self.wanted
        if self.layout.headerless:
            where, wanted = f"{where} (no header: columns are called by position)", self._placed(rows[0])

        def values(position: int) -> pl.Series:
            return pl.Series([row[position] for row in rows[:100] if position < len(row)], dtype=pl.String)

        self.found = find_columns(wanted, self.layout.names, where, values)
        self.take_columns(self.layout.names, self.found, self.layout.format)
        self.rows = round(self.file.size / max(self.file.mean_line, 1.0))
        # of times and ratings; ids are always read as text
        self.types: dict[str, pl.DataType] = dict.fromkeys(self.found, pl.String())
        for one in self.wanted:
            if one.kind == "number" and one.role in self.found:
                self.types[one.role] = pl.Float64()
            if one.kind == "time" and one.role in self.found:
                place = self.found[one.role]
                stamps = [row[place].strip() for row in rows if place < len(row)]
                if stamps and all(map(is_integer_text, stamps)):
                    self.types[one.role], self.cleaner.times = pl.Int64(), "numbers"

    def _placed(self, row: Sequence[str]) -> list[WantedColumn]:
        """The wanted columns of a file without header, by position.

        Columns that are not given are assumed in the usual order. If some are given, the order is not the usual one,
        and only the required ones of the others are assumed.
        """
        usual, placed = headerless_roles(row), []
        any_given = any(one.given for one in self.wanted)
        for one in self.wanted:
            given = one.given
            if given is None and one.role in usual and (one.required or not any_given):
                given = str(usual[one.role] + 1)
            if one.required and not given:
                raise DataError(
                    f"no header and no usual place for the {one.role} column",
                    where=self.file.name,
                    expected="its position",
                    option=Option(one.role, "3", "takes the third"),
                )
            placed.append(replace(one, given=given or ""))
        return placed

    def quick(self, rows: int) -> Iterator[Block]:
        """Pieces of the file as polars reads them; a piece that it may misread is a bad one."""
        separator, quoted = self.layout.separator, self.layout.quoted
        for chunk in self.file.chunks(self.layout.skip_lines, quoted=quoted):
            # A lone carriage return ends a line for Python's `csv`, and not for polars.
            if b"\r" in chunk and chunk.count(b"\r") > chunk.count(b"\r\n"):
                raise BadBlockError
            if quoted and odd_quotes(chunk, separator):
                raise BadBlockError
            if separator == "::":  # polars takes separators of one byte only
                chunk = chunk.replace(b"::", b"\t")
            try:
                block = self.cleaner.quick(self._parsed(chunk, self.types))
            except (DataError, BadBlockError):  # a number where there were none, a date in another form
                try:
                    block = self.cleaner.quick(self._parsed(chunk, {}))
                except DataError:
                    raise BadBlockError from None
            for start in range(0, block.rows, rows):
                yield Block(block.frame[start : start + rows], min(rows, block.rows - start))

    def _parsed(self, chunk: bytes, types: dict[str, pl.DataType]) -> pl.DataFrame:
        """The wanted columns of a piece, named by role. All columns are parsed, so that too many fields are noticed."""
        schema: dict[str, pl.DataType] = {str(n): pl.String() for n in range(len(self.layout.names))}
        schema |= {str(self.found[role]): kind for role, kind in types.items()}
        with polars_errors(self.file.name):
            frame = pl.read_csv(
                chunk,
                has_header=False,
                separator=self.layout.separator[:1] if self.layout.separator != "::" else "\t",
                quote_char='"' if self.layout.quoted else None,
                schema=schema,
                glob=False,
            )
        return frame.select([pl.col(str(place)).alias(role) for role, place in self.found.items()])

    def careful(self, rows: int) -> Iterator[Block]:
        """Rows with their lines."""
        kinds = {one.role: one.kind for one in self.wanted}
        needed = max(place for role, place in self.found.items() if kinds[role] != "text")
        width, single = len(self.layout.names), [self.found[role] for role in ("user", "item")]
        with io.TextIOWrapper(self.file.open(), "utf-8", "surrogateescape", newline="") as stream:
            for _ in range(self.layout.skip_lines):
                stream.readline()
            walk = csv_rows(stream, self.layout, single)
            while some := list(islice(walk, rows)):
                good, fault = [], None
                for line, row in some:
                    if isinstance(row, QuoteError) or not needed < len(row) <= width:
                        fault = fault or self._fault(line, row)
                        if not self.cleaner.skip:
                            break
                    else:
                        good.append((line, row))
                if not all(map(self._is_unicode, good)):
                    broken = next(line for line, row in good if not self._is_unicode((line, row)))
                    good = [one for one in good if self._is_unicode(one)]
                    if not self.cleaner.skip:
                        good, fault = [one for one in good if one[0] < broken], not_utf8(self.file, broken)
                columns = {
                    role: [row[place] if place < len(row) else "" for _, row in good]
                    for role, place in self.found.items()
                }
                frame = pl.DataFrame(columns, schema=dict.fromkeys(self.found, pl.String))
                block = self.cleaner.careful(frame, [line for line, _ in good])
                if fault is not None and not self.cleaner.skip:  # a bad row before it is named first
                    raise fault
                yield Block(block.frame, len(some))

    def _is_unicode(self, numbered: tuple[int, list[str]]) -> bool:
        row = numbered[1]
        try:
            text = "".join([row[place] for place in self.found.values() if place < len(row)])
            return text.isascii() or bool(text.encode())
        except UnicodeEncodeError:
            return False

    def _fault(self, line: int, row: list[str] | QuoteError) -> DataError:
        """The error about a row with a quote out of place, or with too few or too many fields."""
        where = f"{self.file.name}, line {line}"
        if isinstance(row, QuoteError):
            expected = 'quotes around a whole field, and "" for a quote within it'
            return DataError(str(row), where=where, expected=expected, option=SKIP)
        what = f"{len(row)} field{'s' * (len(row) > 1)}"
        return DataError(what, where=where, expected=str(len(self.layout.names)), option=SKIP)


class QuoteError(ValueError):
    """A quote that is not closed, or text after a closing quote."""


def csv_rows(
    stream: io.TextIOBase, layout: Layout, single: Sequence[int] = ()
) -> Iterator[tuple[int, list[str] | QuoteError]]:
    r"""The line of each row, and its fields or what is wrong with its quotes: then the next line is the next row.

    Args:
        stream: the rows, opened with `newline=""`.
        layout: of the file; lines are counted from its first row.
        single: the positions of fields that cannot have a line break, such as ids.

    >>> layout = Layout(format="csv", separator=",", names=("a", "b"), skip_lines=0, headerless=True)
    >>> [row for _, row in csv_rows(io.StringIO('a,"b ""c"" d"\nd,"e\nf,g\n'), layout)]
    [['a', 'b "c" d'], QuoteError('a quote opens in this row and is not closed'), ['f', 'g']]
    """
    again: deque[str] = deque()  # lines that a broken row took
    number = layout.skip_lines
    while text := again.popleft() if again else next(stream, ""):
        number += 1
        if not layout.quoted or '"' not in text:
            if text.strip():
                yield number, text.rstrip("\r\n").split(layout.separator)
            continue
        taken = [text]

        def lines(taken: list[str] = taken) -> Iterator[str]:
            yield taken[0]
            while more := again.popleft() if again else next(stream, ""):
                taken.append(more)
                yield more

        try:
            row = next(csv.reader(lines(), delimiter=layout.separator, strict=True))
            fault = "a quote opens in this row and is not closed in its line"
            broken = any(len(row[n].strip().splitlines()) > 1 for n in single if n < len(row))
        except csv.Error as error:
            follows, broken = "expected after" in str(error) and len(taken) == 1, True
            fault = (
                "a quoted field is followed by text"
                if follows
                else "a quote opens in this row and is not closed"
            )
        if broken:
            yield number, QuoteError(fault)
            again.extendleft(reversed(taken[1:]))
        else:
            yield number, row
            number += len(taken) - 1


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
    places: NDArray[np.int64] = np.flatnonzero(near == _QUOTE)
    if len(places) % 2:
        return True
    mark, left, right = separator.encode()[0], near[places[0::2] - 1], near[places[1::2] + 1]
    fine_left = (left == mark) | (left == _LINE) | (left == _QUOTE)
    fine_right = (right == mark) | (right == _LINE) | (right == _RETURN) | (right == _QUOTE)
    return not (fine_left.all() and fine_right.all())


class LightGCN(Reader):
    """Lines `user item item …`; a line with a user alone holds no interaction."""

    formats = ("lightgcn",)
    text = True

    @classmethod
    def recognises(cls, file: File) -> bool:
        """Whether lines have integers between blanks, in any number."""
        return lines_are_ragged(file)

    def open(self) -> None:
        """Take the two columns that there are."""
        self.take_columns(("user", "item"), {"user": 0, "item": 1}, "lightgcn")
        self.rows = self.file.size // 6
        if not any(len(line.split()) > 1 for line in self.file.first_lines(1 << 20)):
            expected = "lines 'user item item …'"
            raise DataError("no line with a user and an item", where=self.file.name, expected=expected)

    def quick(self, rows: int) -> Iterator[Block]:
        """The same as `careful`, which is quick enough."""
        return self.careful(rows)

    def careful(self, rows: int) -> Iterator[Block]:
        """Blocks of some lines; `rows` is exceeded by at most one line's items."""
        number = 1
        for chunk in self.file.chunks():
            lines = pl.Series(chunk.removesuffix(b"\n").split(b"\n"), dtype=pl.Binary)
            decoded = lines.cast(pl.String, strict=False)
            bad = decoded.is_null()
            if bad.any() and not self.cleaner.skip:
                raise not_utf8(self.file, number + int(bad.arg_max() or 0))
            tokens = decoded.str.extract_all(r"\S+")
            frame = (
                pl.DataFrame({"user": tokens.list.first(), "item": tokens.list.slice(1)})
                .with_row_index("line", number)
                .filter(pl.col("item").list.len() > 0)
                .explode("item")
            )
            number += len(lines)
            for some in frame.iter_slices(rows):
                yield self.cleaner.careful(some.drop("line"), some["line"])
            if bad.any():
                yield Block(frame.drop("line").clear(), int(bad.sum()))
