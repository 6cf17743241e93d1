"""Open text files, compressed or not, and guess their layout: separator, header, columns."""

from __future__ import annotations

import csv
import io
import shlex
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING

from talos.data.readers.cleaning import is_integer_text
from talos.data.readers.columns import folded, is_usual, untyped
from talos.data.readers.options import ReadOptions
from talos.errors import DataError

if TYPE_CHECKING:
    import _csv

__all__ = [
    "Layout",
    "TextFile",
    "csv_reader",
    "fields_of",
    "first_lines",
    "guess_layout",
    "headerless_roles",
    "lines_are_ragged",
    "not_utf8",
    "open_text",
    "short",
]

_SAMPLE = 256 << 10
_CHUNK = 4 << 20
# gzip makes text ten to fifty times smaller; what grows far more than that is a decompression bomb.
_MAX_RATIO = 250
_RATIO_FROM = 64 << 20
_SEPARATORS = ("::", "\t", ",", ";", "|", " ")
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
class TextFile:
    """A text file."""

    name: str  # for messages
    path: Path
    data: bytes | None  # the content if it was compressed; None if it is read from the disk
    size: int  # in bytes, decompressed

    @property
    def source(self) -> bytes | Path:
        """What polars should read."""
        return self.path if self.data is None else self.data

    def open(self) -> IO[bytes]:
        """A stream of the content."""
        return self.path.open("rb") if self.data is None else io.BytesIO(self.data)

    def content(self) -> bytes:
        """The whole content."""
        return self.path.read_bytes() if self.data is None else self.data

    @cached_property
    def samples(self) -> list[str]:
        """Whole lines from the beginning, the middle and the end; all lines of a small file."""
        with self.open() as stream:
            head = stream.read(_SAMPLE if self.size > 3 * _SAMPLE else -1)
            pieces = [head]
            if self.size > 3 * _SAMPLE:
                pieces = [head[: head.rfind(b"\n") + 1] or head]
                for start in (self.size // 2, self.size - _SAMPLE):
                    stream.seek(start)
                    piece = stream.read(_SAMPLE)
                    pieces.append(piece[piece.find(b"\n") + 1 : piece.rfind(b"\n") + 1])
        return [piece.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace") for piece in pieces]


def open_text(path: Path, name: str, max_bytes: int) -> TextFile:
    """Open a text file, decompressing gzip; binary files and decompression bombs are refused."""
    with path.open("rb") as stream:
        head = stream.read(_SAMPLE)
    if head.startswith(b"\x1f\x8b"):
        data = _gunzip(path, name, max_bytes)
        head = data[:_SAMPLE]
        text = TextFile(name, path, data, len(data))
    else:
        text = TextFile(name, path, None, path.stat().st_size)
    for magic, (what, hint) in _MAGIC.items():
        if head.startswith(magic):
            raise DataError(f"is {what}", where=name, expected="text or parquet", hint=hint)
    if b"\0" in head:
        raise DataError("is a binary file (it holds zero bytes)", where=name, expected="text or parquet")
    if not head.removeprefix(b"\xef\xbb\xbf").strip():
        raise DataError("is empty", where=name, expected="one interaction per line")
    return text


def _gunzip(path: Path, name: str, max_bytes: int) -> bytes:
    """Decompress in pieces, so that a decompression bomb is noticed while it is small."""
    pieces: list[bytes] = []
    total = read = 0
    whole = False
    unpack = zlib.decompressobj(31)
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            read += len(block)
            piece = b""
            # a full piece may leave output inside zlib even if no input is left
            while block or len(piece) == _CHUNK:
                try:
                    piece = unpack.decompress(block, _CHUNK)
                except zlib.error as error:
                    raise DataError(
                        f"is damaged gzip data ({error})", where=name, expected="a whole .gz file"
                    ) from error
                total += len(piece)
                if total > max_bytes or (total > _RATIO_FROM and total > _MAX_RATIO * read):
                    large = (
                        f"exceeds {max_bytes:,} bytes"
                        if total > max_bytes
                        else f"grows more than {_MAX_RATIO}-fold"
                    )
                    raise DataError(
                        f"{large} when decompressed",
                        where=name,
                        expected=f"at most {max_bytes:,} bytes, and no decompression bomb",
                        hint="if you trust it, decompress it yourself or raise max_bytes",
                    )
                pieces.append(piece)
                whole = unpack.eof
                block = unpack.unconsumed_tail
                if whole:  # a gzip file may consist of several members
                    block = unpack.unused_data.lstrip(b"\0")
                    unpack = zlib.decompressobj(31)
                    piece = b""
    if not whole:
        raise DataError("ends in the middle: truncated gzip data", where=name, expected="a whole .gz file")
    return b"".join(pieces)


# ----------------------------------------------------------------------- layout


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The layout of a delimited text file."""

    format: str
    separator: str
    names: tuple[str, ...]
    skip_lines: int  # the header and the blank lines before it
    headerless: bool
    quoted: bool = True


def first_lines(text: TextFile, count: int = 50) -> list[str]:
    """The first lines that are not blank."""
    return [line for line in text.samples[0].splitlines() if line.strip()][:count]


def lines_are_ragged(text: TextFile) -> bool:
    """Whether the file looks like LightGCN's `u i1 i2 …`: integers separated by blanks, in lines of any length.

    The thresholds leave room for a few bad rows in a table, and for a few bad ids in a file of LightGCN's.
    """
    lines = first_lines(text, 2000)
    rows = [line.split(" ") for line in map(str.strip, lines)]
    if not rows or not all(map(is_integer_text, rows[0])) or any("\t" in line for line in lines):
        return False
    tokens = [token for row in rows for token in row if token]
    rows_of_usual_width = Counter(map(len, rows)).most_common(1)[0][1]
    integers = sum(1 for token in tokens if is_integer_text(token))
    return (
        integers >= 0.8 * len(tokens) and rows_of_usual_width <= 0.8 * len(rows) and max(map(len, rows)) > 4
    )


def guess_layout(text: TextFile, options: ReadOptions) -> Layout:
    """Guess separator, header and column names, as far as `options.format` does not say them."""
    format = options.format  # noqa: A001
    lines = first_lines(text)
    if not lines:
        raise DataError("is empty", where=text.name, expected="one interaction per line")
    inter = format == "inter" or (format is None and ".inter" in text.path.suffixes)
    if inter or format == "tsv":
        separator = "\t"
    elif format == "amazon":
        separator = ","
    else:
        separator = _separator(text, lines)
    quoted = not inter and separator != "::"
    first = _fields(lines[0], separator, quoted)
    given = {one.given for one in options.wanted if one.given}
    if len(first) < 2:
        raise DataError(
            f"one field in the first line ({short(lines[0])})",
            where=text.name,
            expected="at least a user and an item, separated by comma, tab, ';', '|', '::' or blank",
        )
    headerless = format in ("amazon", "movielens") or not _is_header(first, given)
    names = map(str, range(1, len(first) + 1)) if headerless else (untyped(name.strip()) for name in first)
    blank = next((n for n, line in enumerate(text.samples[0].split("\n")) if line.strip()), 0)
    return Layout(
        format="inter" if inter else _format_name(format, separator, headerless, first),
        separator=separator,
        names=tuple(names),
        skip_lines=0 if headerless else blank + 1,
        headerless=headerless,
        quoted=quoted,
    )


def csv_reader(lines: Iterable[str], separator: str, quoted: bool) -> _csv.Reader:
    """A reader of the `csv` module for this separator."""
    return csv.reader(lines, delimiter=separator, quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE)


def fields_of(sample: str, layout: Layout) -> list[list[str]]:
    """The fields of each row of a sample."""
    if layout.separator == "::":
        return [line.split("::") for line in sample.splitlines() if line.strip()]
    reader = csv_reader(io.StringIO(sample, newline=""), layout.separator, layout.quoted)
    rows: list[list[str]] = []
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return rows
        except csv.Error:  # the other rows can still be used
            continue
        if row:
            rows.append(row)


def headerless_roles(row: Sequence[str]) -> dict[str, int]:
    """The position of each role in a file without header, by the usual orders; empty if the row fits none.

    The orders are: user item; user item rating (or time); user item rating time (or time rating); and Gowalla's
    check-ins: user time latitude longitude place.
    """
    if len(row) > 1 and _is_date(row[1]):
        return {"user": 0, "timestamp": 1, "item": 4} if len(row) == 5 else {}
    if len(row) > 4:
        return {}
    found = {"user": 0, "item": 1}
    if len(row) == 3:
        found["timestamp" if _is_time(row[2]) else "rating"] = 2
    elif len(row) == 4:
        swapped = _is_time(row[2]) and not _is_time(row[3])
        found |= {"timestamp": 2, "rating": 3} if swapped else {"rating": 2, "timestamp": 3}
    return found


def _is_time(token: str) -> bool:
    try:
        return abs(float(token)) > 1e6
    except ValueError:
        return _is_date(token)


def _is_date(token: str) -> bool:
    token = token.strip()
    return len(token) >= 8 and token[:4].isdigit() and token[4] in "-/"


def _separator(text: TextFile, lines: Sequence[str]) -> str:
    usual = {".csv": ",", ".tsv": "\t", ".tab": "\t"}
    hinted = next((usual[suffix.lower()] for suffix in text.path.suffixes if suffix.lower() in usual), None)
    candidates = [one for one in ([hinted] if hinted else []) + [*_SEPARATORS] if one in lines[0]]
    for separator in candidates:
        widths = {len(_fields(line, separator, separator != "::")) for line in lines}
        if len(widths) == 1 and widths != {1}:
            return separator
    # no separator fits all lines, so some lines are bad: the first line decides
    return candidates[0] if candidates else ","


def _fields(line: str, separator: str, quoted: bool) -> list[str]:
    if separator == "::":
        return line.split("::")
    try:
        return next(csv_reader([line], separator, quoted), [])
    except csv.Error:
        return line.split(separator)


def _is_header(first: Sequence[str], given: set[str]) -> bool:
    tokens = [token.strip() for token in first]
    usual = any(is_usual(token) or untyped(token) != token for token in tokens)
    if given and not usual and all(_is_position(name, len(tokens)) for name in given - set(tokens)):
        # columns called by position: there is no header, unless each is also found by name, or one only by name
        return given <= set(tokens) or not all(_is_position(name, len(tokens)) for name in given)
    known = {name.casefold() for name in given if not name.isdigit()}
    if any(is_usual(token) or token.casefold() in known or untyped(token) != token for token in tokens):
        return True
    return not any(_is_number(token) or _is_amazon_id(token) for token in tokens)


def _is_position(name: str, columns: int) -> bool:
    return name.isdecimal() and 1 <= int(name[:9]) <= columns


def _is_number(token: str) -> bool:
    try:
        float(token)
    except ValueError:
        return False
    return True


def _is_amazon_id(token: str) -> bool:
    return len(token) >= 10 and token.isalnum() and token.upper() == token and any(map(str.isdigit, token))


def _format_name(format: str | None, separator: str, headerless: bool, first: Sequence[str]) -> str:  # noqa: A002
    if format not in (None, "csv", "tsv", "text"):
        return str(format)
    if headerless and (separator == "::" or (separator == "\t" and len(first) == 4)):
        return "movielens"
    if headerless and separator == "," and len(first) == 4 and folded(first[0]) and not first[0].isdigit():
        return "amazon"
    return {",": "csv", "\t": "tsv"}.get(separator, "text")


def not_utf8(text: TextFile, line: int) -> DataError:
    """The error about a line whose bytes are not UTF-8."""
    name = shlex.quote(text.name)
    command = f"iconv -f latin1 -t utf-8 {name} > {shlex.quote(f'utf8-{text.path.name}')}"
    return DataError(
        "bytes that are not UTF-8",
        where=f"{text.name}, line {line}",
        expected="UTF-8 text",
        commands=[(command, "converts Latin-1, which older programs of Windows write")],
    )


def short(value: object) -> str:
    """A value as Python writes it, cut to 40 characters."""
    shown = repr(value)
    return shown if len(shown) <= 40 else shown[:37] + "..."
