"""Open files, compressed or not, and guess the layout of text: separator, header, columns."""

from __future__ import annotations

import csv
import gzip
import io
import shlex
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from talos.data.read.clean import is_integer_text
from talos.data.read.columns import folded, is_usual, untyped
from talos.errors import DataError

if TYPE_CHECKING:
    import _csv

    from _typeshed import WriteableBuffer

__all__ = [
    "File",
    "Layout",
    "csv_reader",
    "fields_of",
    "guess_layout",
    "headerless_roles",
    "lines_are_ragged",
    "not_utf8",
    "short",
]

_SAMPLE = 256 << 10
_CHUNK = 16 << 20
# gzip makes text ten to fifty times smaller; a decompression bomb grows far more than that.
_MAX_RATIO = 250
_RATIO_FROM = 64 << 20
_LONGEST_FIELD = 1 << 20  # of a field that goes over several lines
_BOM = b"\xef\xbb\xbf"
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

    @cached_property
    def size(self) -> int:
        """In bytes; of compressed text an estimate."""
        size = self.path.stat().st_size
        return 4 * size if self._is_packed else size

    @property
    def _is_packed(self) -> bool:
        return self.magic.startswith(b"\x1f\x8b")

    def open(self) -> BinaryIO:
        """A stream of the content, unpacked, without a byte order mark."""
        stream: BinaryIO = self.path.open("rb")
        if self._is_packed:
            stream = io.BufferedReader(_Unpacked(stream, self), 1 << 20)
        try:
            if stream.peek(3)[:3] == _BOM:  # type: ignore[attr-defined]  # both kinds of stream have it
                stream.read(3)
        except DataError:
            stream.close()
            raise
        return stream

    @property
    def samples(self) -> list[str]:
        """Whole lines from the beginning, the middle and the end; the beginning alone of a compressed file.

        Raises:
            DataError: this is no text.
        """
        return self._sampled[0]

    @property
    def is_sampled_whole(self) -> bool:
        """Whether the samples are all there is."""
        return self._sampled[1]

    @cached_property
    def _sampled(self) -> tuple[list[str], bool]:
        with self.open() as stream:
            head = stream.read(_SAMPLE + 1)
            pieces, whole = [head], len(head) <= _SAMPLE
            if not whole and not self._is_packed:
                for start in (self.size // 2, self.size - _SAMPLE):
                    stream.seek(max(start, _SAMPLE))
                    piece = stream.read(_SAMPLE)
                    pieces.append(piece[piece.find(b"\n") + 1 : piece.rfind(b"\n") + 1])
        for magic, (what, hint) in _MAGIC.items():
            if head.startswith(magic):
                raise DataError(f"is {what}", where=self.name, expected="text or parquet", hint=hint)
        if b"\0" in head:
            raise DataError(
                "is a binary file (it holds zero bytes)", where=self.name, expected="text or parquet"
            )
        if not head.strip():
            raise DataError("is empty", where=self.name, expected="one interaction per line")
        if not whole:
            pieces[0] = head[: head.rfind(b"\n") + 1] or head
        return [piece.decode("utf-8", "replace") for piece in pieces], whole

    @property
    def mean_line(self) -> float:
        """The mean length of the sampled lines."""
        return sum(map(len, self.samples)) / max(1, sum(sample.count("\n") for sample in self.samples))

    def first_lines(self, count: int = 50) -> list[str]:
        """The first lines that are not blank."""
        return [line for line in self.samples[0].splitlines() if line.strip()][:count]

    def chunks(self, skip_lines: int = 0, *, quoted: bool = False) -> Iterator[bytes]:
        """The content in pieces of whole lines; with `quoted`, a line break within quotes ends no piece."""
        with self.open() as stream:
            for _ in range(skip_lines):
                stream.readline()
            rest = b""
            while block := stream.read(_CHUNK):
                block = rest + block
                end = last = block.rfind(b"\n") + 1
                inside = quoted and b'"' in block and block.count(b'"', 0, end) % 2  # `in` is far quicker
                while inside:
                    before = block.rfind(b"\n", 0, end - 1) + 1
                    inside ^= block.count(b'"', before, end) % 2
                    end = before
                if last - end > _LONGEST_FIELD:  # a quote that is not closed: the reader will say so
                    end = last
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

    def readinto(self, buffer: WriteableBuffer) -> int:
        try:
            count = self._content.readinto(buffer)
        except EOFError:
            raise self._error("ends in the middle: truncated gzip data") from None
        except (OSError, zlib.error) as error:
            raise self._error(f"is damaged gzip data ({error})") from error
        self._total, limit = self._total + count, self._file.max_bytes
        if self._total > limit or self._total > max(_RATIO_FROM, _MAX_RATIO * self._stream.tell()):
            large = (
                f"exceeds {limit:,} bytes" if self._total > limit else f"grows more than {_MAX_RATIO}-fold"
            )
            raise DataError(
                f"{large} when decompressed",
                where=self._file.name,
                expected=f"at most {limit:,} bytes, and no decompression bomb",
                hint="decompress it yourself if you trust it",
            )
        return count

    def close(self) -> None:
        self._stream.close()
        super().close()

    def _error(self, what: str) -> DataError:
        return DataError(what, where=self._file.name, expected="a whole .gz file")


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


def lines_are_ragged(text: File) -> bool:
    """Whether the file looks like LightGCN's `u i1 i2 …`: integers separated by blanks, in lines of any length.

    The thresholds leave room for a few bad rows in a table, and for a few bad ids in a file of LightGCN's.
    """
    lines = text.first_lines(2000)
    rows = [line.split(" ") for line in map(str.strip, lines)]
    if not rows or not all(map(is_integer_text, rows[0])) or any("\t" in line for line in lines):
        return False
    tokens = [token for row in rows for token in row if token]
    rows_of_usual_width = Counter(map(len, rows)).most_common(1)[0][1]
    integers = sum(1 for token in tokens if is_integer_text(token))
    return (
        integers >= 0.8 * len(tokens) and rows_of_usual_width <= 0.8 * len(rows) and max(map(len, rows)) > 4
    )


def guess_layout(text: File, format: str | None = None, given: frozenset[str] = frozenset()) -> Layout:  # noqa: A002
    """Guess separator, header and column names.

    Args:
        text: the file.
        format: what is known of the format, such as "tsv".
        given: the columns that the caller named.
    """
    lines = text.first_lines()
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


def _separator(text: File, lines: Sequence[str]) -> str:
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


def _is_header(first: Sequence[str], given: frozenset[str]) -> bool:
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


def not_utf8(text: File, line: int) -> DataError:
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
