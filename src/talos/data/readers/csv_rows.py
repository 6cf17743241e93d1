"""Rows of delimited text with the line of each, and with the line where a quote opened that is not closed.

Python's `csv` module takes the rest of a file into the field whose quote is not closed, and goes on after a closing
quote as if nothing had been. Here both are an error about the line where the quote opened, and the next row is that of
the next line.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import IO

__all__ = ["QuoteError", "csv_rows"]

_LONGEST_FIELD = 1 << 17
"""Characters of a field that goes over several lines; a quote that is closed later is taken for one that is not."""


class QuoteError(ValueError):
    """A quote that is not closed, or that something follows; `line` is where it opens."""

    def __init__(self, what: str, line: int) -> None:
        super().__init__(what)
        self.line = line


def csv_rows(
    stream: IO[str], separator: str, *, quoted: bool, first: int = 1, single: frozenset[int] = frozenset()
) -> Iterator[tuple[int, list[str] | QuoteError]]:
    r"""The number of the first line of each row, and its fields or what is wrong with its quotes.

    Args:
        stream: opened with `newline=""`.
        separator: one character.
        quoted: whether quotes mean anything.
        first: the number of the stream's first line.
        single: the positions of fields that cannot have a line break, such as ids.

    >>> import io
    >>> [row for _, row in csv_rows(io.StringIO('a,"b ""c"" d"\nd,"e\nf,g\n'), ",", quoted=True)]
    [['a', 'b "c" d'], QuoteError('a quote opens in this line and is not closed'), ['f', 'g']]
    """
    lines = _Lines(stream, first)
    while (line := lines.take()) is not None:
        number = lines.number
        if not quoted or '"' not in line:
            yield number, line.rstrip("\r\n").split(separator)
            continue
        try:
            row = _quoted_row(line, lines, separator, single)
        except QuoteError as error:
            lines.back_to(error.line)
            yield number, error
        else:
            lines.forget()
            yield number, row


class _Lines:
    """Lines with their numbers, some of which can be given back."""

    def __init__(self, stream: IO[str], first: int) -> None:
        self.stream, self.number = stream, first - 1
        self._again: deque[str] = deque()
        self._taken: list[str] = []  # since `forget`

    def take(self) -> str | None:
        line = self._again.popleft() if self._again else self.stream.readline()
        if not line:
            return None
        self.number += 1
        self._taken.append(line)
        if '"' not in line and len(self._taken) == 1:
            self._taken.clear()
        return line

    def back_to(self, number: int) -> None:
        """Give back the lines after this one."""
        while self.number > number:
            self._again.appendleft(self._taken.pop())
            self.number -= 1
        self._taken.clear()

    def forget(self) -> None:
        self._taken.clear()


def _quoted_row(line: str, lines: _Lines, separator: str, single: frozenset[int]) -> list[str]:
    """The fields of a row that has a quote in its first line; more lines are taken if a field goes over them."""
    fields: list[str] = []
    place = 0
    while True:
        if line[place : place + 1] != '"':
            end = line.find(separator, place)
            if end < 0:
                fields.append(line[place:].rstrip("\r\n"))
                return fields
            fields.append(line[place:end])
            place = end + 1
            continue
        opened, pieces, length, start = lines.number, [], 0, place + 1
        while (end := _closing(line, start)) < 0:
            pieces.append(line[start:])
            length += len(line) - start
            more = lines.take() if length <= _LONGEST_FIELD else None
            if more is None:
                raise QuoteError("a quote opens in this line and is not closed", opened)
            line, start = more, 0
        pieces.append(line[start:end])
        field, rest = "".join(pieces).replace('""', '"'), line[end + 1 :].rstrip("\r\n")
        several = lines.number > opened
        if rest and not rest.startswith(separator):
            what = "a quote opens in this line and is not closed"
            raise QuoteError(what if several else f"a quoted field is followed by {rest[:20]!r}", opened)
        if several and len(fields) in single and len(field.strip().splitlines()) > 1:
            raise QuoteError("a quote opens in this line and is not closed in it", opened)
        fields.append(field)
        if not rest:
            return fields
        place = end + 1 + len(separator)


def _closing(line: str, start: int) -> int:
    """The position of the quote that ends a field which began before `start`; -1 if it goes on in the next line."""
    while (end := line.find('"', start)) >= 0:
        if line[end + 1 : end + 2] != '"':
            return end
        start = end + 2
    return -1
