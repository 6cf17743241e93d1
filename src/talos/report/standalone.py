"""A plot as an SVG file of its own, for pages and notebooks that do not have the style of a report."""

from __future__ import annotations

from html import escape

from talos.report.page import STYLE, Figure
from talos.report.svg import WIDTH, legend_key

__all__ = ["standalone"]

# The lines of the style sheet that a plot needs.
_KEPT = (
    ":root",
    "@media",
    "text",
    ".grid",
    ".axis",
    ".mark",
    ".equal",
    ".line",
    ".area",
    ".point",
    ".ring",
    ".c0",
)


def standalone(figure: Figure) -> str:
    """A plot as an SVG file of its own, with title, legend and the colours of light and dark mode.

    >>> from talos.report.page import TextTable
    >>> from talos.report.svg import Frame, bars
    >>> plot = bars(["a", "b"], [("model", [1, 2])], Frame("two bars", "group", "height"))
    >>> standalone(Figure("Two bars", plot, TextTable(["group", "model"], []))).startswith("<svg ")
    True
    """
    style = "\n".join(line for line in STYLE.splitlines() if line.startswith(_KEPT))
    head, _, rest = figure.svg.partition("\n")
    body = rest.rpartition("</svg>")[0]
    height = float(head.split('viewBox="0 0 ')[1].split('"')[0].split()[1])
    label = head.split('aria-label="')[1].split('"')[0]
    rows = _legend_rows(figure)
    top = 22 + 16 * len(rows)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height + top:g}" width="{2 * WIDTH}" '
        f'role="img" aria-label="{label}">',
        f"<style>{style}</style>",
        f'<rect width="{WIDTH}" height="{height + top:g}" style="fill:var(--card)"/>',
        f'<text class="name" x="4" y="15" style="font-weight:600">{escape(figure.title)}</text>',
        *rows,
        f'<g transform="translate(0,{top})">',
        body.rstrip(),
        "</g>",
        "</svg>",
        "",
    ]
    return "\n".join(parts)


def _legend_rows(figure: Figure) -> list[str]:
    """Keys and names of the legend, as many in a line as fit."""
    rows: list[str] = []
    x = 4.0
    parts: list[str] = []
    for place, name in enumerate(figure.legend):
        width = 32 + 6.6 * len(name)
        if x + width > WIDTH and parts:
            rows.append("".join(parts))
            x, parts = 4.0, []
        y = 22 + 16 * len(rows)
        drawn = legend_key(place, figure.key).replace(
            "<svg ", f'<svg x="{x:g}" y="{y}" width="22" height="10" ', 1
        )
        parts.append(f'{drawn}<text x="{x + 26:g}" y="{y + 9}">{escape(name)}</text>')
        x += width
    if parts:
        rows.append("".join(parts))
    return rows
