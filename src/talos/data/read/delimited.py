"""Delimited text: csv, tsv, other separators, RecBole .inter, MovieLens, Amazon ratings; and LightGCN's lines."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import polars as pl

from talos.data.read.base import TextReader
from talos.data.read.clean import BadBlockError, BadRow, Block, is_integer_text
from talos.data.read.columns import KINDS, find_columns
from talos.data.read.text import File, Layout, fields_of, guess_layout, half_characters, not_utf8, rows_of

__all__ = ["Delimited", "LightGCN", "csv_rows"]

# Between blanks of ASCII: Python and polars differ in the others.
_TOKEN = r"[^ \t\r\n\v\f]+"
_QUOTES = 'quotes around a whole field, and "" for a quote within it'


class Delimited(TextReader):
    """Fields between separators, with or without a header."""

    formats = ("amazon", "csv", "inter", "movielens", "text", "tsv")

    @classmethod
    def recognises(cls, file: File) -> bool:
        """Any text that no other reader recognises."""
        return True

    def open(self) -> None:
        """Find the layout and the columns."""
        given = frozenset(name for name in self.wanted.values() if name)
        self.layout = layout = guess_layout(self.file, self.options.format, given)
        self.skip_lines, self.quoted = layout.skip_lines, layout.quoted
        sample = rows_of(self.file.head.splitlines(keepends=True), layout.separator, layout.quoted)
        rows = sample[1:101] if layout.skip_lines else sample[:100]

        def values(position: int) -> pl.Series:
            return pl.Series([row[position] for row in rows if position < len(row)], dtype=pl.String)

        where, labels = self.file.name, None
        if not layout.skip_lines:
            where += " (no header: columns are called by position)"
            # If some are given, the order is not the usual one: no more is assumed than necessary.
            labels = [label if not given or KINDS.get(label) == "id" else "" for label in layout.usual]
        self.found = find_columns(self.wanted, layout.names, where, values, labels)
        self.take_columns(layout.names, self.found, layout.format)
        self.find_numbers(self.found, values)
        self.rows = self.file.about_how_many("\n")

    def quick(self, rows: int) -> Iterator[Block]:
        """All rows as polars parses them, for which a lone carriage return, as in the header, ends no line."""
        if "\r" in self.file.head.replace("\r\n", "\n"):
            raise BadBlockError
        yield from super().quick(rows)

    def parsed(self, chunk: bytes, types: Mapping[str, type[pl.DataType]]) -> pl.DataFrame:
        """The wanted columns of a piece; all columns are parsed, so that too many fields are noticed."""
        separator = self.layout.separator
        lone_return = b"\r" in chunk and chunk.count(b"\r") > chunk.count(b"\r\n")
        if lone_return or (self.quoted and odd_quotes(chunk, separator)):
            raise BadBlockError
        if separator == "::":  # polars takes separators of one byte only
            chunk, separator = chunk.replace(b"::", b"\t"), "\t"
        schema: dict[str, type[pl.DataType]] = {str(n): pl.String for n in range(len(self.layout.names))}
        schema |= {str(self.found[role]): kind for role, kind in types.items()}
        frame = pl.read_csv(
            chunk,
            has_header=False,
            separator=separator,
            quote_char='"' if self.quoted else None,
            schema=schema,
            glob=False,
        )
        return frame.select(pl.col(str(place)).alias(role) for role, place in self.found.items())

    def numbered_rows(self) -> Iterator[tuple[int, list[str] | BadRow]]:
        """Rows with their lines; titles may be missing at the end of a row."""
        needed = max(place for role, place in self.found.items() if KINDS[role] != "text")
        return csv_rows(
            self.file,
            self.layout,
            list(self.found.values()),
            fewest=needed + 1,
            one_line=[self.found["user"], self.found["item"]],
        )


def csv_rows(
    file: File, layout: Layout, places: Sequence[int], *, fewest: int, one_line: Sequence[int] = ()
) -> Iterator[tuple[int, list[str] | BadRow]]:
    r"""The line of each row, and its fields at some positions or what is wrong with it.

    Args:
        file: the file.
        layout: of the file.
        places: the positions of the fields that are wanted.
        fewest: how many fields a row must have; those that are missing are empty.
        one_line: the positions of fields that cannot have a line break, such as ids.

    Raises:
        DataError: a row of several lines is bad: skipping it could skip good rows after a quote that is not closed.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "x.csv")
    ...     _ = path.write_text('user,item\na,"b ""c"" d"\nd,"e"x\nf,g\n')
    ...     file = File(path, "x.csv", 1000)
    ...     rows = list(csv_rows(file, guess_layout(file), [1], fewest=2))
    >>> [row if isinstance(row, list) else row.what for _, row in rows]
    [['b "c" d'], 'a quote is out of place (\',\' expected after \'"\')', ['g']]
    """
    width = len(layout.names)
    with io.TextIOWrapper(file.open(), "utf-8", "surrogateescape", newline="") as stream:
        for _ in range(layout.skip_lines):
            stream.readline()
        rows = fields_of(stream, layout.separator, layout.quoted, strict=True)
        while True:
            number = layout.skip_lines + rows.line_num + 1
            row: list[str] | BadRow
            try:
                fields = next(rows)
            except StopIteration:
                return
            except csv.Error as error:
                row, fields = BadRow(f"a quote is out of place ({error})", _QUOTES), []
            else:
                if not layout.separator.join(fields).strip():
                    continue
                row = [fields[place] if place < len(fields) else "" for place in places]
                if not fewest <= len(fields) <= width:
                    row = BadRow(f"{len(fields)} field{'s' * (len(fields) > 1)}", str(width))
            several = layout.skip_lines + rows.line_num > number
            if several and (isinstance(row, BadRow) or any("\n" in fields[n].strip() for n in one_line)):
                unclosed = BadRow("a quote opens in this row and is not closed in its line", _QUOTES)
                raise unclosed.error(f"{file.name}, line {number}")
            if isinstance(row, list) and half_characters("".join(row)):
                row = not_utf8(file)
            yield number, row


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
    mark, quote, line, carriage = f'{separator}"\n\r'.encode()
    quotes = np.flatnonzero(near == quote)
    if len(quotes) % 2:
        return True
    before, after = near[quotes[0::2] - 1], near[quotes[1::2] + 1]
    fine_before = (before == mark) | (before == line) | (before == quote)
    fine_after = (after == mark) | (after == line) | (after == quote) | (after == carriage)
    return not (fine_before.all() and fine_after.all())


class LightGCN(TextReader):
    """Lines `user item item …`; a line with a user alone holds no interaction."""

    formats = ("lightgcn",)

    @classmethod
    def recognises(cls, file: File) -> bool:
        """Whether lines have integers between blanks, in any number.

        The thresholds leave room for a few bad rows in a table, and for a few bad ids in a file of LightGCN's.
        """
        rows = [line.split() for line in file.first_lines(2000)]
        tokens = [token for row in rows for token in row]
        integers = sum(1 for token in tokens if is_integer_text(token))
        widths = Counter(map(len, rows))
        return (
            "\t" not in file.head
            and all(map(is_integer_text, rows[0]))
            and integers >= 0.8 * len(tokens)
            and max(widths.values()) <= 0.8 * len(rows)
            and max(widths) > 4
        )

    def open(self) -> None:
        """Take the two columns that there are."""
        self.take_columns(("user", "item"), {"user": 0, "item": 1}, "lightgcn")
        self.rows = self.file.about_how_many(" ")
        self.numbers = {}

    def parsed(self, chunk: bytes, types: Mapping[str, type[pl.DataType]]) -> pl.DataFrame:
        """The interactions of some lines."""
        tokens = pl.Series(chunk.split(b"\n")).cast(pl.String).str.extract_all(_TOKEN)
        frame = pl.DataFrame({"user": tokens.list.first(), "item": tokens.list.slice(1)})
        return frame.filter(pl.col("item").list.len() > 0).explode("item")

    def numbered_rows(self) -> Iterator[tuple[int, list[str] | BadRow]]:
        """Each interaction, numbered by its line."""
        with io.TextIOWrapper(self.file.open(), "utf-8", "surrogateescape", newline="\n") as stream:
            for number, line in enumerate(stream, 1):
                if half_characters(line):
                    yield number, not_utf8(self.file)
                else:
                    user, *items = re.findall(_TOKEN, line) or [""]
                    yield from ((number, [user, item]) for item in items)
