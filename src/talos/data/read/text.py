"""Open files, compressed or not, and guess the layout of text: separator, header, columns."""

from __future__ import annotations

import csv
import gzip
import io
import re
import reprlib
import shlex
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, BinaryIO

from talos.checks import require
from talos.data.read.clean import BadRow, polars_errors
from talos.data.read.columns import is_usual, untyped
from talos.errors import DataError

__all__ = ["File", "Layout", "fields_of", "guess_layout", "half_characters", "not_utf8", "rows_of"]

_SAMPLE = 256 << 10
_CHUNK = 16 << 20
# gzip makes text ten to fifty times smaller; a decompression bomb grows far more than that.
_MAX_RATIO = 250
_RATIO_FROM = 64 << 20
_LONGEST_FIELD = 64 << 20  # of a field that goes over several lines
_GZIP = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"
_SEPARATORS = ("::", "\t", ",", ";", "|", " ")
_SEPARATOR_OF = {"amazon": ",", "inter": "\t", "tsv": "\t"}  # formats
_USUAL_SEPARATOR = {".csv": ",", ".tsv": "\t", ".tab": "\t"}  # suffixes
# A number or one of Amazon's ids: no name of a column.
_VALUE = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?|(?=.*\d)[A-Z\d]{10,}")
# What a time is in a file without header: a date, or a number of at least a million.
_is_date = re.compile(r"\s*\d{4}[-/]\S{3}").match
_is_time = re.compile(r"\s*(\d{4}[-/]\S{3}|-?\d{7}|-?\d(\.\d+)?[eE]\+?(0?[6-9]|[1-9]\d))").match
# Finds what is no character by itself: bytes that are not UTF-8, once decoded, or half of an escaped pair.
half_characters = re.compile("[\ud800-\udfff]").search

_MAGIC = {
    b"PK\x03\x04": ("a zip archive", "unpack it first"),
    b"SQLite format 3\0": ("a SQLite database", "read it as sqlite:///FILE"),
    b"BZh": ("a bzip2 archive", "unpack it first"),
    b"\xfd7zXZ": ("an xz archive", "unpack it first"),
    b"\x28\xb5\x2f\xfd": ("a zstandard archive", "unpack it first"),
    b"\x89HDF": ("an HDF5 file", "export it as csv or parquet first"),
    b"\xff\xfe": ("UTF-16 text", "save it as UTF-8 first"),
    b"\xfe\xff": ("UTF-16 text", "save it as UTF-8 first"),
}


@dataclass(frozen=True)
class File:
    """A file: its path, what messages call it, and how large it may be unpacked."""

    path: Path
    name: str
    max_bytes: int

    @cached_property
    def magic(self) -> bytes:
        """The first bytes; an error if there are none."""
        with self.path.open("rb") as stream:
            found = stream.read(8)
        if not found:
            raise DataError("is empty", where=self.name, expected="one interaction per line")
        return found

    def open(self) -> BinaryIO:
        """A stream of the content, unpacked, without a byte order mark."""
        packed = self.magic.startswith(_GZIP)
        stream: BinaryIO = self.path.open("rb")
        if packed:
            stream = io.BufferedReader(_Unpacked(stream, self), 1 << 20)
        try:
            if stream.peek(3)[:3] == _BOM:  # type: ignore[attr-defined]  # both kinds of stream have it
                stream.read(3)
        except DataError:
            stream.close()
            raise
        return stream

    @cached_property
    def head(self) -> str:
        """Whole lines from the beginning; an error if this is no text."""
        with self.open() as stream:
            content = stream.read(_SAMPLE)
        check = partial(require, where=self.name, error=DataError)
        for magic, (what, hint) in _MAGIC.items():
            check(not content.startswith(magic), f"is {what}", expected="text or parquet", hint=hint)
        check(b"\0" not in content, "is a binary file (it holds zero bytes)", expected="text or parquet")
        end = len(content) if len(content) < _SAMPLE else content.rfind(b"\n") + 1 or _SAMPLE
        text = content[:end].decode("utf-8", "replace")
        check(bool(text.strip()), "is empty", expected="one interaction per line")
        return text

    def first_lines(self, count: int = 50) -> list[str]:
        """The first lines that are not blank."""
        return [line for line in self.head.splitlines() if line.strip()][:count]

    def about_how_many(self, sign: str) -> int:
        """An estimate of how often a sign is in the file: as often as in the first lines."""
        size = self.path.stat().st_size * (4 if self.magic.startswith(_GZIP) else 1)
        return size * self.head.count(sign) // len(self.head)

    def chunks(self, skip_lines: int = 0, *, quoted: bool = False) -> Iterator[bytes]:
        """The content in pieces of whole lines; with `quoted`, a line break within quotes ends no piece."""
        with self.open() as stream:
            for _ in range(skip_lines):
                stream.readline()
            rest = b""
            while block := stream.read(_CHUNK):
                block = rest + block
                end = block.rfind(b"\n") + 1
                # `in` is far quicker than `count`; after a quote that is not closed the reader will say so
                within_quotes = quoted and b'"' in block and block.count(b'"', 0, end) % 2
                if within_quotes and len(block) < _LONGEST_FIELD:
                    end = 0
                if end:
                    yield block[:end]
                rest = block[end:]
            if rest:
                yield rest


class _Unpacked(io.RawIOBase):
    """The content of a gzip file; a decompression bomb is noticed while it is small."""

    def __init__(self, stream: BinaryIO, file: File) -> None:
        self._stream, self._file, self._total = stream, file, 0
        self._content = gzip.GzipFile(fileobj=stream)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with polars_errors(self._file.name, "a whole .gz file", EOFError, zlib.error):
            count = self._content.readinto(buffer)
        self._total += count
        most = min(self._file.max_bytes, max(_RATIO_FROM, _MAX_RATIO * self._stream.tell()))
        require(
            self._total <= most,
            f"exceeds {most:,} bytes when decompressed",
            where=self._file.name,
            expected=f"at most {self._file.max_bytes:,} bytes, and less than {_MAX_RATIO} times the size",
            hint="decompress it yourself if you trust it",
            error=DataError,
        )
        return count

    def close(self) -> None:
        self._stream.close()
        super().close()


# ----------------------------------------------------------------------- layout


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The layout of a delimited text file.

    Attributes:
        format: what `Provenance` calls it.
        separator: between the fields.
        names: of the columns; their positions if there is no header.
        usual: of a file without header what its columns are for, by the usual orders.
        skip_lines: the header and the blank lines before it; 0 without a header.
        quoted: whether quotes mean anything.
    """

    format: str
    separator: str
    names: tuple[str, ...]
    usual: tuple[str, ...]
    skip_lines: int
    quoted: bool


def guess_layout(file: File, format: str | None = None, given: frozenset[str] = frozenset()) -> Layout:  # noqa: A002
    """Guess separator, header and column names.

    Args:
        file: the file.
        format: what is known of the format, such as "tsv".
        given: the columns that the caller named.
    """
    lines = file.first_lines()
    name = format or ("inter" if ".inter" in file.path.suffixes else "text")
    separator = _SEPARATOR_OF.get(name) or _separator(file, lines)
    quoted = name != "inter" and separator != "::"
    first = next(iter(rows_of(lines[:1], separator, quoted)), [])
    require(
        len(first) > 1,
        f"one field in the first line ({reprlib.repr(lines[0])})",
        where=file.name,
        expected="at least a user and an item, separated by comma, tab, ';', '|', '::' or blank",
        error=DataError,
    )
    headerless = name in ("amazon", "movielens") or not _is_header(first, given)
    if name in ("csv", "tsv", "text"):
        name = {",": "csv", "\t": "tsv"}.get(separator, "text")
        if headerless and len(first) == 4:
            name = {"::": "movielens", "\t": "movielens", ",": "amazon"}.get(separator, name)
    blank = next(n for n, line in enumerate(file.head.split("\n")) if line.strip())
    names = tuple(str(n + 1) if headerless else untyped(field.strip()) for n, field in enumerate(first))
    return Layout(
        format=name,
        separator=separator,
        names=names,
        usual=_usual_order(first) if headerless else (),
        skip_lines=0 if headerless else blank + 1,
        quoted=quoted,
    )


def fields_of(lines: Iterable[str], separator: str, quoted: bool, *, strict: bool = False) -> Any:
    """Python's csv reader, which knows separators of one sign only."""
    if separator == "::":
        lines, separator = (line.replace("::", "\t") for line in lines), "\t"
    return csv.reader(lines, delimiter=separator, quotechar='"' if quoted else None, strict=strict)


def rows_of(lines: Iterable[str], separator: str, quoted: bool) -> list[list[str]]:
    """The fields of each row of a sample."""
    rows: list[list[str]] = []
    with suppress(csv.Error):  # a field too long for the module ends the sample
        rows.extend(fields_of(lines, separator, quoted))
    return [row for row in rows if row]


def _separator(file: File, lines: list[str]) -> str:
    usual = [_USUAL_SEPARATOR.get(suffix.lower(), "") for suffix in file.path.suffixes]
    candidates = [one for one in (*usual, *_SEPARATORS) if one and one in lines[0]]
    for separator in candidates:
        widths = {len(row) for line in lines for row in rows_of([line], separator, separator != "::")}
        if len(widths) == 1 and widths != {1}:
            return separator
    # no separator fits all lines, so some lines are bad: the first line decides
    return candidates[0] if candidates else ","


def _is_header(first: list[str], given: frozenset[str]) -> bool:
    """Whether the first line has names: usual ones, given ones, or nothing that can only be a value."""
    fields = {field.strip() for field in first}
    if any(is_usual(field) or untyped(field) != field for field in fields):
        return True
    if given and given <= {str(n + 1) for n in range(len(first))}:
        return given <= fields  # columns by position, unless the line has these numbers as names
    if {name.casefold() for name in given} & {field.casefold() for field in fields}:
        return True
    return not any(map(_VALUE.fullmatch, fields))


def _usual_order(row: Sequence[str]) -> tuple[str, ...]:
    """What the columns of a file without header are for; empty if the row fits no usual order.

    The orders are: user item; user item rating (or time); user item rating time (or time rating); and Gowalla's
    check-ins: user time latitude longitude place.
    """
    if len(row) == 5 and _is_date(row[1]):
        return ("user", "timestamp", "latitude", "longitude", "item")
    if len(row) > 4 or _is_date(row[1]):
        return ()
    swapped = [bool(_is_time(field)) for field in row[2:]] in ([True], [True, False])
    return ("user", "item", *(("timestamp", "rating") if swapped else ("rating", "timestamp")))[: len(row)]


def not_utf8(file: File) -> BadRow:
    """What is wrong with a line whose bytes are not UTF-8."""
    converted = shlex.quote(f"utf8-{file.path.name}")
    command = f"iconv -f latin1 -t utf-8 {shlex.quote(file.name)} > {converted}"
    return BadRow(
        "bytes that are not UTF-8",
        "UTF-8 text",
        ((command, "converts Latin-1, which older programs of Windows write"),),
    )
