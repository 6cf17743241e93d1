"""How commands print: tables for people, one JSON object for programs, progress on stderr."""

from __future__ import annotations

import contextlib
import json
import math
import re
import unicodedata
from collections.abc import Sequence
from typing import Any

import typer

from talos.data.databases import without_passwords

__all__ = ["LONGEST_MESSAGE", "print_facts", "print_json", "print_table", "printable", "say"]

LONGEST_MESSAGE = 4000
"""Characters of a message; a path may have 4096 bytes."""

_LONGEST_CELL = 200
# Joiners are part of words and of emoji; every other invisible character may deceive.
_INVISIBLE_BUT_HARMLESS = "\u200c\u200d"
# What JSON may hold as it is and a terminal may obey: DEL, C1 controls, line ends, marks of direction, half characters.
_NOT_IN_JSON = re.compile("[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str, *, longest: int = _LONGEST_CELL) -> str:
    r"""A text from a file as a terminal may show it: control characters are escaped, the middle of a long one left out.

    >>> printable("a\x1b[2Jb\u202ec"), printable("Ünï 北京")
    ('a\\x1b[2Jb\\u202ec', 'Ünï 北京')
    >>> printable("a" * 1_000_000, longest=20)
    'aaaaaaaaaa… (999,980 more) …aaaaaaaaaa'
    """
    if len(text) > longest:
        half = longest // 2
        text = f"{text[:half]}… ({len(text) - 2 * half:,} more) …{text[-half:]}"
    if text.isprintable():
        return text
    return "".join(map(_escaped, text))


def _escaped(letter: str) -> str:
    if letter.isprintable() or letter in _INVISIBLE_BUT_HARMLESS or unicodedata.category(letter) == "Zs":
        return letter
    return letter.encode("unicode_escape", "surrogatepass").decode()


def print_json(value: Any) -> None:
    """Print one JSON value, the only thing on stdout."""
    text = json.dumps(_finite(value), indent=2, ensure_ascii=False)
    typer.echo(_NOT_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text))


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, title: str | None = None) -> None:
    """Print a table: columns of numbers are aligned to the right, all others to the left.

    >>> print_table(["metric", "@10"], [["recall", "0.5"]])
    metric  @10
    -----------
    recall  0.5
    """
    rows = [[printable(cell) for cell in row] for row in rows]
    columns = list(zip(header, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    sides = [">" if all(_is_number(cell) for cell in column[1:]) else "<" for column in columns]
    lines = ["  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)).rstrip()
             for row in [header, *rows]]  # fmt: skip
    rule = "-" * max(len(line) for line in lines)
    typer.echo("\n".join([*([printable(title), ""] if title else []), lines[0], rule, *lines[1:]]))


def print_facts(facts: Sequence[tuple[str, str]], *, title: str) -> None:
    """Print a title, and below it one line for each name with its text."""
    width = max(len(name) for name, _ in facts)
    lines = (f"  {name:<{width}}  {printable(text, longest=LONGEST_MESSAGE)}" for name, text in facts)
    typer.echo("\n".join([printable(title), *lines]))


def say(text: str, *, lines: bool = False) -> None:
    """Print a line of progress or advice on stderr; several, already made printable, if `lines`.

    If nobody can read it any more, the work goes on all the same.
    """
    text = without_passwords(text)
    with contextlib.suppress(OSError, ValueError):
        typer.echo(text if lines else printable(text, longest=LONGEST_MESSAGE), err=True)


def _finite(value: Any) -> Any:
    """The value with null for NaN and infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _is_number(cell: str) -> bool:
    return not cell or cell.replace(",", "").rstrip("%").lstrip("+-").replace(".", "", 1).isdigit()
