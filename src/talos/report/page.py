"""The page: HTML and CSS without scripts and without anything fetched; every text from outside is escaped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from talos.report.style import STYLE
from talos.report.svg import KeyKind, legend_key

__all__ = ["Figure", "Section", "Table", "page", "table_html", "tiles"]


@dataclass(frozen=True)
class Table:
    """Header and rows of plain text."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Figure:
    """A plot with its title, the names of its series, its numbers, and what to know when reading it."""

    title: str
    svg: str
    table: Table
    legend: Sequence[str] = ()
    note: str = ""
    key: KeyKind = "dots"

    def html(self) -> str:
        """The figure; the numbers are folded away below it."""
        parts = ["<figure>", f"<h3>{escape(self.title)}</h3>"]
        if self.legend:
            keys = (
                f"<li>{legend_key(place, self.key)}{escape(name)}</li>"
                for place, name in enumerate(self.legend)
            )
            parts.append(f'<ul class="legend">{"".join(keys)}</ul>')
        parts.append(self.svg)
        if self.note:
            parts.append(f"<figcaption>{escape(self.note)}</figcaption>")
        parts.append(f"<details><summary>Numbers</summary>{table_html(self.table)}</details>")
        return "\n".join([*parts, "</figure>"])


@dataclass(frozen=True)
class Section:
    """A heading with ready HTML and figures below it."""

    title: str
    figures: Sequence[Figure] = ()
    html: str = ""
    note: str = ""

    def text(self) -> str:
        """The section as HTML."""
        parts = ["<section>", f"<h2>{escape(self.title)}</h2>"]
        if self.note:
            parts.append(f"<p>{escape(self.note)}</p>")
        if self.html:
            parts.append(self.html)
        if self.figures:
            parts += ['<div class="figures">', *(figure.html() for figure in self.figures), "</div>"]
        return "\n".join([*parts, "</section>"])


def page(title: str, subtitle: str, sections: Sequence[Section], *, date: str | None = None) -> str:
    """A whole HTML file; the policy in its head forbids scripts and requests, whatever a title may hold.

    >>> "<script>" in page("<script>alert(1)</script>", "", [])
    False
    """
    dated = f"<p>Written {escape(date)} by talos.</p>" if date else "<p>Written by talos.</p>"
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{escape(title)}</title>",
            f"<style>{STYLE}</style>",
            "</head>",
            "<body>",
            f"<header><h1>{escape(title)}</h1><p>{escape(subtitle)}</p></header>",
            "<main>",
            *(section.text() for section in sections),
            "</main>",
            f"<footer>{dated}</footer>",
            "</body>",
            "</html>",
            "",
        ]
    )


def table_html(table: Table) -> str:
    """A table that scrolls sideways where it is too wide; cells that are numbers stand to the right.

    >>> "<b>" in table_html(Table(["a"], [["<b>"]]))
    False
    """
    columns = list(zip(*table.rows, strict=True)) or [()] * len(table.header)
    sides = [
        bool(column) and place > 0 and all(map(_is_number, column)) for place, column in enumerate(columns)
    ]
    head = "".join(
        f'<th scope="col"{_side(side)}>{escape(cell)}</th>'
        for cell, side in zip(table.header, sides, strict=True)
    )
    rows = []
    for first, *rest in table.rows:
        cells = "".join(
            f"<td{_side(side)}>{escape(cell)}</td>" for cell, side in zip(rest, sides[1:], strict=True)
        )
        rows.append(f'<tr><th scope="row">{escape(first)}</th>{cells}</tr>')
    body = "\n".join(rows)
    return (
        '<div class="wide" tabindex="0" role="region" aria-label="Table">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def tiles(values: Sequence[tuple[str, str, str]]) -> str:
    """The few most important numbers: name, value, and what to hold it against."""
    parts = [
        f"<div><dt>{escape(name)}</dt><dd><strong>{escape(value)}</strong> <span>{escape(beside)}</span></dd></div>"
        for name, value, beside in values
    ]
    return f'<dl class="tiles">{"".join(parts)}</dl>'


def _is_number(cell: str) -> bool:
    return not cell or ((cell[:1].isdigit() or cell[:1] in "+-–<") and "±" not in cell)


def _side(right: bool) -> str:
    return ' class="n"' if right else ""
