"""Pages from templates: one table type, one figure type, and the templates that show them as HTML, SVG or Markdown.

Pages hold no scripts and fetch nothing; every text from outside is escaped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from talos.report.render import COLOURS, LIGHT, WIDTH, fixed, number, plain, render
from talos.report.svg import Frame, KeyKind, Plot, Series, bars, lines

__all__ = [
    "BOTH",
    "Figure",
    "TextTable",
    "grouped_bars",
    "histogram",
    "is_page",
    "line_chart",
    "markdown",
    "standalone",
]


@dataclass(frozen=True)
class TextTable:
    """Header and rows of plain text. The first column has names.

    >>> TextTable(["K", "recall", "ended by"], [["5", "0.1", "patience"]]).numeric
    [False, True, False]
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    @property
    def numeric(self) -> list[bool]:
        """For each column, whether all its cells are numbers: such columns are aligned to the right."""
        columns = list(zip(*self.rows, strict=True)) or [()] * len(self.header)
        return [
            place > 0
            and bool(cells)
            and all(not cell or (cell[0] in "+-–<0123456789" and "±" not in cell) for cell in cells)
            for place, cells in enumerate(columns)
        ]


@dataclass(frozen=True)
class Figure:
    """A plot with its title, legend, table of numbers and a note on how to read it."""

    title: str
    plot: Plot
    table: TextTable
    legend: Sequence[str] = ()
    note: str = ""
    key: KeyKind = "dots"


BOTH = ("model", "popularity")  # the two series of most figures of a run


def line_chart(
    title: str,
    series: Sequence[Series],
    x: str,
    y: str,
    *,
    of: str = "series",
    digits: int = 4,
    table: TextTable | None = None,
    note: str = "",
    **options: Any,
) -> Figure:
    """A line chart of at most `COLOURS` of the series; the table has all of them.

    Args:
        title: title of the figure.
        series: named points; all with at least one.
        x: name of the horizontal axis.
        y: name of the vertical axis.
        of: what a series is, for the table and the note.
        digits: decimal places in the table.
        table: the numbers; made from the series if None.
        note: how to read it.
        **options: for `talos.report.svg.lines`.

    >>> chart = line_chart("Loss", [Series("loss", [1, 2], [0.5, 0.25])], "epoch", "mean loss")
    >>> chart.plot.label, chart.table.rows[1]
    ('Line chart of mean loss against epoch: loss from 0.5 to 0.25', ['2', '0.2500'])
    """
    drawn = series[:COLOURS]
    ends = "; ".join(f"{one.name} from {number(one.ys[0])} to {number(one.ys[-1])}" for one in drawn)
    plot = lines(drawn, Frame(f"Line chart of {y} against {x}: {ends}", x, y), **options)
    if len(series) > COLOURS:
        note = f"{note} The plot shows the first {COLOURS} of {len(series)} {of}s.".strip()
    names = [one.name for one in series]
    legend = names[:COLOURS] if len(series) > 1 else ()
    return Figure(title, plot, table or _numbers(series, x, y, of, digits), legend=legend, note=note)


def _numbers(series: Sequence[Series], x: str, y: str, of: str, digits: int) -> TextTable:
    """One column for each series if all have the same places, else one row for each point."""
    if all(one.xs == series[0].xs for one in series):
        header = [x, *(one.name for one in series)] if len(series) > 1 else [x, y]
        values = zip(series[0].xs, *(one.ys for one in series), strict=True)
        return TextTable(
            header, [[number(at), *(fixed(value, digits) for value in row)] for at, *row in values]
        )
    rows = [
        [one.name, number(at), fixed(value, digits)]
        for one in series
        for at, value in zip(one.xs, one.ys, strict=True)
    ]
    return TextTable([of, x, y], rows)


def histogram(
    title: str,
    counts: Mapping[str, Sequence[float]],
    edges: Sequence[float],
    frame: Frame,
    *,
    note: str,
    mark: tuple[float, str] | None = None,
) -> Figure:
    """A histogram of each series as stairs; `edges` are the borders of the bins, one more than there are bins.

    >>> chart = histogram("Users", {"recall": [3, 1]}, [0, 0.5, 1], Frame("two bins", "recall", "users"), note="")
    >>> chart.table.rows[0]
    ['0.000 to 0.500', '3']
    """
    series = [Series(name, edges, [*count, count[-1]]) for name, count in counts.items()]
    bins = zip(pairwise(edges), *counts.values(), strict=True)
    rows = [[f"{low:.3f} to {high:.3f}", *map(number, values)] for (low, high), *values in bins]
    plot = lines(series, frame, steps=True, mark=mark)
    return Figure(
        title, plot, TextTable([frame.x, *counts], rows), legend=list(counts), note=note, key="line"
    )


def grouped_bars(title: str, frame: Frame, means: Sequence[Sequence[float]], table: TextTable) -> Figure:
    """Bars of the model and of popularity for the groups that the first column of the table names."""
    plot = bars([row[0] for row in table.rows], list(zip(BOTH, means, strict=True)), frame)
    return Figure(title, plot, table, legend=BOTH, key="box")


def is_page(text: str) -> bool:
    """Whether a text, or its beginning, is a report that this library has written.

    >>> is_page(render("page.html", title="Run", date=None)), is_page("my notes")
    (True, False)
    """
    return f":root{{color-scheme:light dark;--back:{LIGHT['back']};" in text


def standalone(figure: Figure) -> str:
    """A plot as an SVG file of its own, with title, legend and the colours of light and dark mode.

    >>> from talos.report.svg import Frame, bars
    >>> plot = bars(["a", "b"], [("model", [1, 2])], Frame("two bars", "group", "height"))
    >>> standalone(Figure("Two bars", plot, TextTable(["group", "model"], []))).startswith("<svg ")
    True
    """
    rows: list[list[tuple[int, str, float, int]]] = [[]] if figure.legend else []
    x = 4.0
    for place, name in enumerate(figure.legend):
        width = 32 + 6.6 * len(name)
        if x + width > WIDTH and rows[-1]:
            rows.append([])
            x = 4.0
        rows[-1].append((place, name, x, 6 + 16 * len(rows)))
        x += width
    return render("figure.svg", figure=figure, legend=rows, top=22 + 16 * len(rows), width=WIDTH) + "\n"


def markdown(table: TextTable) -> str:
    r"""A table as Markdown.

    >>> print(markdown(TextTable(["metric", "model"], [["a|b", "0.1"]])))
    | metric | model |
    | --- | ---: |
    | a\|b | 0.1 |
    """
    cells = [[plain(cell) for cell in row] for row in (table.header, *table.rows)]
    cells.insert(1, ["---:" if right else "---" for right in table.numeric])
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)
