"""What a reader is: a class that recognises its kind of file, finds its columns, and gives its rows in blocks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import ClassVar

import polars as pl

from talos.data.interactions import Provenance
from talos.data.options import SourceOptions
from talos.data.read.clean import POLARS_ERRORS, BadBlockError, BadRow, Block, Cleaner
from talos.data.read.columns import KINDS, guesses
from talos.data.read.text import File
from talos.data.vocabulary import are_integers

__all__ = ["Reader", "TextReader"]


class Reader(ABC):
    """One file that is open for reading.

    Args:
        file: the file.
        options: how to read it.
        wanted: role → name of the columns to look for.

    Attributes:
        formats: the values of the option `format` that choose this reader.
        text: whether ids are text, which may be integers in the end.
        cleaner: cleans the columns.
        provenance: what was found, without the numbers of rows.
        rows: about how many there are; 0 if that is not known.
    """

    formats: ClassVar[tuple[str, ...]] = ()
    text: ClassVar[bool] = False
    rows: int = 0

    def __init__(self, file: File, options: SourceOptions, wanted: Mapping[str, str | None]) -> None:
        self.file, self.options, self.wanted = file, options, wanted
        self.open()

    @classmethod
    def recognises(cls, file: File) -> bool:
        """Whether a file is of this kind, where the caller does not say it."""
        return False

    @abstractmethod
    def open(self) -> None:
        """Find the columns and call `take_columns`; set `rows` if it is known."""

    @abstractmethod
    def quick(self, rows: int) -> Iterator[Block]:
        """All rows in blocks of at most `rows`; a `BadBlockError` if the careful pass is needed."""

    @abstractmethod
    def careful(self, rows: int) -> Iterator[Block]:
        """All rows in blocks of at most `rows`; a `DataError` that names the row if one is bad."""

    def take_columns(
        self,
        names: Sequence[str],
        found: Mapping[str, int],
        format: str,  # noqa: A002
        place: str = "line {}",
    ) -> None:
        """Keep what was found out: the names of all columns, the position of each role, the format."""
        columns = {role: names[position] for role, position in found.items()}
        self.cleaner = Cleaner(self.file.name, columns, self.options.on_bad_row == "skip", place)
        self.provenance = Provenance(
            source=self.file.name,
            format=format,
            guesses=guesses(self.wanted, names, found),
            unused=tuple(name for position, name in enumerate(names) if position not in found.values()),
        )


class TextReader(Reader):
    """Text: the quick pass parses pieces of the file with polars, the careful pass knows the line of each row.

    Attributes:
        numbers: role → the type that polars parses faster than text, and may fail to.
        skip_lines: the lines before the first row.
        quoted: whether a line break within quotes ends no row.
    """

    text = True
    numbers: dict[str, type[pl.DataType]]
    skip_lines: int = 0
    quoted: bool = False

    @abstractmethod
    def parsed(self, chunk: bytes, types: Mapping[str, type[pl.DataType]]) -> pl.DataFrame:
        """The columns of a piece by role; a `BadBlockError` where polars would misread it without an error."""

    @abstractmethod
    def numbered_rows(self) -> Iterator[tuple[int, Sequence[object] | BadRow]]:
        """The number of each row, and its values in the order of `cleaner.columns`."""

    def find_numbers(self, found: Mapping[str, int], values: Callable[[int], pl.Series]) -> None:
        """Set `numbers` by the first values of each column."""
        self.numbers = {role: pl.Float64 for role in found if KINDS[role] == "number"}
        if "timestamp" in found:
            times = values(found["timestamp"])
            if len(times) and are_integers(times):
                self.numbers["timestamp"], self.cleaner.times = pl.Int64, "numbers"

    def quick(self, rows: int) -> Iterator[Block]:
        """All rows as polars parses them."""
        try:
            for chunk in self.file.chunks(self.skip_lines, quoted=self.quoted):
                try:
                    frame = self.parsed(chunk, self.numbers)
                except POLARS_ERRORS:
                    frame = self.parsed(chunk, {})
                for some in self.cleaner.quick(frame).frame.iter_slices(rows):
                    yield Block(some, len(some))
        except POLARS_ERRORS:
            raise BadBlockError from None

    def careful(self, rows: int) -> Iterator[Block]:
        """All rows, each looked at."""
        schema = dict.fromkeys(self.cleaner.columns, pl.String)
        numbered, nothing = self.numbered_rows(), [None] * len(schema)
        while some := list(islice(numbered, rows)):
            faults = {number: row for number, row in some if isinstance(row, BadRow)}
            values = [nothing if isinstance(row, BadRow) else row for _, row in some]
            frame = pl.DataFrame(values, schema, orient="row")
            yield self.cleaner.careful(frame, [number for number, _ in some], faults)
