"""How commands print: tables for people, one JSON object for programs, progress on stderr."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Sequence
from typing import Any

import typer

__all__ = ["print_facts", "print_json", "print_table", "say"]


def print_json(value: Any) -> None:
    """Print one JSON value, the only thing on stdout."""
    typer.echo(json.dumps(_finite(value), indent=2, ensure_ascii=False))


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, title: str | None = None) -> None:
    """Print a table: columns of numbers are aligned to the right, all others to the left.

    >>> print_table(["metric", "@10"], [["recall", "0.5"]])
    metric  @10
    -----------
    recall  0.5
    """
    columns = list(zip(header, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    sides = [">" if all(_is_number(cell) for cell in column[1:]) else "<" for column in columns]
    lines = ["  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)).rstrip()
             for row in [header, *rows]]  # fmt: skip
    rule = "-" * max(len(line) for line in lines)
    typer.echo("\n".join([*([title, ""] if title else []), lines[0], rule, *lines[1:]]))


def print_facts(facts: Sequence[tuple[str, str]], *, title: str) -> None:
    """Print a title, and below it one line for each name with its text."""
    width = max(len(name) for name, _ in facts)
    typer.echo("\n".join([title, *(f"  {name:<{width}}  {text}" for name, text in facts)]))


def say(text: str) -> None:
    """Print a line of progress or advice on stderr; if nobody can read it any more, the work goes on all the same."""
    with contextlib.suppress(OSError, ValueError):
        typer.echo(text, err=True)


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
