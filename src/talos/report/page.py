"""The page of a report: HTML and CSS without scripts or anything to fetch; every text from outside is escaped.

Text has a contrast of at least 4.5:1 against its background and lines one of 3:1, in light and dark mode; a test checks
it. The colours of series are those of Okabe and Ito, made darker or lighter where a background requires it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from talos.report.svg import KeyKind, legend_key

__all__ = [
    "STYLE",
    "Figure",
    "Section",
    "TextTable",
    "is_page",
    "page",
    "table_html",
    "tiles",
]

# name → its colour in light and in dark mode
_COLOURS = {
    "back": ("#ffffff", "#14171b"),
    "card": ("#f6f7f9", "#1c2026"),
    "text": ("#1b1f24", "#e8eaed"),
    "muted": ("#57606a", "#a5adb8"),
    "rule": ("#d6dae0", "#3a414b"),
    "c0": ("#0072b2", "#56b4e9"),
    "c1": ("#c85200", "#f08a3c"),
    "c2": ("#00805d", "#34c79d"),
    "c3": ("#b0578f", "#e0a0c8"),
    "c4": ("#946200", "#f0e442"),
    "c5": ("#2f7fae", "#8fb8ff"),
    "c6": ("#555555", "#b8bec7"),
}
LIGHT = {name: light for name, (light, _) in _COLOURS.items()}
DARK = {name: dark for name, (_, dark) in _COLOURS.items()}


def _variables(values: dict[str, str]) -> str:
    return "".join(f"--{name}:{value};" for name, value in values.items())


_SERIES = "".join(f".c{i}{{stroke:var(--c{i})}}.f{i}{{fill:var(--c{i})}}" for i in range(7))

STYLE = f"""
:root{{color-scheme:light dark;{_variables(LIGHT)}}}
@media (prefers-color-scheme:dark){{:root{{{_variables(DARK)}}}}}
*{{box-sizing:border-box}}
body{{margin:0 auto;max-width:1180px;padding:16px;background:var(--back);color:var(--text);
font:16px/1.45 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}}
h1{{font-size:1.5rem;margin:.4rem 0 .2rem;overflow-wrap:anywhere}}
h2{{font-size:1.2rem;margin:2rem 0 .6rem;padding-top:.6rem;border-top:1px solid var(--rule)}}
h3{{font-size:1rem;margin:0 0 .4rem}}
header p,footer p,section>p,figcaption{{color:var(--muted);margin:.2rem 0}}
figcaption{{font-size:.85rem}}
.figures{{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,340px),1fr));gap:16px;align-items:start}}
figure,.card{{margin:0;padding:12px;background:var(--card);border-radius:8px;min-width:0}}
figure>svg{{display:block;width:100%;height:auto}}
.legend{{list-style:none;display:flex;flex-wrap:wrap;gap:.1rem .9rem;margin:0 0 .3rem;padding:0;font-size:.85rem}}
.legend li{{display:flex;align-items:center;gap:.35rem}}
.legend svg{{width:22px;height:10px;overflow:visible}}
text{{font:12px system-ui,-apple-system,"Segoe UI",Roboto,Arial,sans-serif;fill:var(--muted)}}
text.name{{fill:var(--text)}}
.grid{{stroke:var(--rule);stroke-width:.7}}
.axis{{stroke:var(--muted);stroke-width:1}}
.mark{{stroke:var(--text);stroke-width:1;stroke-dasharray:3 3}}
.equal{{stroke:var(--muted);stroke-width:1;fill:none}}
.line{{fill:none;stroke-width:2;stroke-linejoin:round}}
.area{{opacity:.16}}
.point{{fill-opacity:.5}}
.ring{{fill:none;stroke-width:1.2}}
{_SERIES}
details{{margin-top:.5rem;font-size:.85rem}}
summary{{cursor:pointer;color:var(--muted);padding:.3rem 0}}
.wide{{overflow-x:auto;max-width:100%;margin-top:.4rem;--here:var(--back);background:
linear-gradient(to right,var(--here) 40%,transparent) left/36px 100% no-repeat local,
linear-gradient(to left,var(--here) 40%,transparent) right/36px 100% no-repeat local,
linear-gradient(to right,var(--rule),transparent) left/14px 100% no-repeat scroll,
linear-gradient(to left,var(--rule),transparent) right/14px 100% no-repeat scroll}}
figure .wide{{--here:var(--card)}}
table{{border-collapse:collapse;font-size:.85rem;font-variant-numeric:tabular-nums}}
th,td{{padding:.2rem .6rem .2rem 0;text-align:left;border-bottom:1px solid var(--rule);white-space:nowrap}}
thead th{{white-space:normal;vertical-align:bottom}}
th[scope=row]{{font-weight:normal}}
.n{{text-align:right}}
.tiles{{display:grid;grid-template-columns:repeat(auto-fit,minmax(140px,1fr));gap:12px;margin:1rem 0}}
.tiles div{{padding:12px;background:var(--card);border-radius:8px}}
.tiles dt{{color:var(--muted);font-size:.85rem}}
.tiles dd{{margin:0}}
.tiles strong{{font-size:1.35rem;display:block}}
.tiles span{{color:var(--muted);font-size:.85rem}}
.card ol{{margin:.3rem 0 0;padding-left:1.8rem}}
.card li{{overflow-wrap:anywhere}}
.card p{{margin:.2rem 0;color:var(--muted);font-size:.9rem;overflow-wrap:anywhere}}
.hit{{color:var(--c2);font-weight:600;white-space:nowrap}}
"""


@dataclass(frozen=True)
class TextTable:
    """Header and rows of plain text."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Figure:
    """A plot with its title, legend, table of numbers and a note on how to read it."""

    title: str
    svg: str
    table: TextTable
    legend: Sequence[str] = ()
    note: str = ""
    key: KeyKind = "dots"

    def html(self) -> str:
        """The figure as HTML, with its numbers in a table that can be unfolded."""
        parts = ["<figure>", f"<h3>{escape(self.title)}</h3>"]
        if self.legend:
            names = enumerate(self.legend)
            keys = (f"<li>{legend_key(place, self.key)}{escape(name)}</li>" for place, name in names)
            parts.append(f'<ul class="legend">{"".join(keys)}</ul>')
        parts.append(self.svg)
        if self.note:
            parts.append(f"<figcaption>{escape(self.note)}</figcaption>")
        parts.append(f"<details><summary>Numbers</summary>{table_html(self.table)}</details>")
        return "\n".join([*parts, "</figure>"])


@dataclass(frozen=True)
class Section:
    """A heading with a note, HTML and figures below it."""

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


def is_page(text: str) -> bool:
    """Whether a text, or its beginning, is a report that this library has written.

    >>> is_page("<html><style>" + STYLE), is_page("my notes")
    (True, False)
    """
    return f":root{{color-scheme:light dark;{_variables(LIGHT)[:40]}" in text


def page(title: str, subtitle: str, sections: Sequence[Section], *, date: str | None = None) -> str:
    """A complete HTML file; the policy in its head forbids scripts and requests, whatever a title may contain.

    >>> "<script>" in page("<script>alert(1)</script>", "", [])
    False
    """
    dated = f"<p>Written {escape(date)} by talos.</p>" if date else "<p>Written by talos.</p>"
    body = "\n".join(section.text() for section in sections)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<header><h1>{escape(title)}</h1><p>{escape(subtitle)}</p></header>
<main>
{body}
</main>
<footer>{dated}</footer>
</body>
</html>
"""


def table_html(table: TextTable) -> str:
    """A table that scrolls sideways if it is too wide; columns of numbers are aligned to the right.

    >>> "<b>" in table_html(TextTable(["a"], [["<b>"]]))
    False
    """
    columns = list(zip(*table.rows, strict=True)) or [()] * len(table.header)
    # the first column has names; a column without rows is aligned like text
    numbers = [
        place > 0 and bool(column) and all(map(_is_number, column)) for place, column in enumerate(columns)
    ]
    sides = [' class="n"' if right else "" for right in numbers]
    head = "".join(
        f'<th scope="col"{side}>{escape(cell)}</th>' for cell, side in zip(table.header, sides, strict=True)
    )
    rows = []
    for first, *rest in table.rows:
        cells = "".join(f"<td{side}>{escape(cell)}</td>" for cell, side in zip(rest, sides[1:], strict=True))
        rows.append(f'<tr><th scope="row">{escape(first)}</th>{cells}</tr>')
    body = "\n".join(rows)
    return (
        '<div class="wide" tabindex="0" role="region" aria-label="Table">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def tiles(values: Sequence[tuple[str, str, str]]) -> str:
    """The few most important numbers: name, value, and what to compare it with."""
    parts = [
        f"<div><dt>{escape(name)}</dt><dd><strong>{escape(value)}</strong> <span>{escape(beside)}</span></dd></div>"
        for name, value, beside in values
    ]
    return f'<dl class="tiles">{"".join(parts)}</dl>'


def _is_number(cell: str) -> bool:
    return not cell or ((cell[:1].isdigit() or cell[:1] in "+-–<") and "±" not in cell)
