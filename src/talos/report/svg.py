"""Plots as SVG: lines, bars, points and intervals in a frame with axes. Places are computed here, templates draw them.

No plotting library draws them, because a report holds no scripts and must work without a network
(Optuna's plots, for example, are pages of plotly). Every plot is 330 units wide, about the width of a phone and of a
column on a desktop, so that its text is as large as the page's. Colours are classes (`c0`, `c1`, …) whose values the
page sets for light and dark mode; series also differ by dashes and marks, not by colour alone.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from talos.report.page import COLOURS, WIDTH, Figure, Plot, TextTable, fixed, number, render

__all__ = [
    "BOTH",
    "BOTTOM",
    "COLOURS",
    "WIDTH",
    "Frame",
    "Plot",
    "Series",
    "bars",
    "grouped_bars",
    "histogram",
    "intervals",
    "line_chart",
    "lines",
    "scale",
    "scatter",
    "span",
    "stairs",
    "ticks",
]

HEIGHT = 222
LEFT, RIGHT, TOP, BOTTOM = 48, 12, 32, 42
_SMALLEST = 1e-12  # differences below this are invisible in a plot


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` values at equal, round distances within low … high.

    >>> ticks(0, 1)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    >>> ticks(3, 3)
    [3]
    """
    if not high > low:
        return [low]
    rough = (high - low) / count
    power = 10 ** math.floor(math.log10(rough))
    step = min((size * power for size in (1, 2, 2.5, 5, 10)), key=lambda size: abs(math.log(size / rough)))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{place * step:.12g}") for place in range(first, last + 1)]


def span(values: Iterable[float], *, zero: bool = False, pad: float = 0.05) -> tuple[float, float]:
    """The range of the finite values with some room at the ends; with `zero`, 0 is one of the values.

    >>> span([1.0, 3.0], pad=0)
    (1.0, 3.0)
    """
    finite = [value for value in values if math.isfinite(value)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    if zero:
        low, high = min(0.0, low), max(0.0, high)
    size = max(abs(low), abs(high))
    if high - low <= max(1e-9 * size, _SMALLEST):  # all equal: any range around them will do
        apart = size / 2 if size > _SMALLEST else 0.5
        return (low, 1.0) if zero else (low - apart, high + apart)
    room = (high - low) * pad
    return (low if zero and low == 0 else low - room), (high if zero and high == 0 else high + room)


def scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """A linear map from low … high to start … end, with two decimal places.

    >>> scale(0, 10, 100, 200)(5)
    150.0
    """
    return lambda value: round(start + (value - low) / (high - low) * (end - start), 2)


@dataclass(frozen=True)
class Series:
    """A named series of points."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]


@dataclass(frozen=True)
class Frame:
    """The frame of a plot: its description for screen readers, the names of its axes, and its height."""

    label: str
    x: str
    y: str
    height: int = HEIGHT

    def draw(
        self, template: str, x: Callable[[float], float], y: Callable[[float], float], **drawing: Any
    ) -> Plot:
        """The plot that a template draws into this frame; it places values by `x` and `y`, and points by `at`."""
        sides = {"left": LEFT, "right": WIDTH - RIGHT, "top": TOP, "bottom": self.height - BOTTOM}
        scales: dict[str, Any] = {"x": x, "y": y, "at": lambda points: [(x(a), y(b)) for a, b in points]}
        return Plot(
            self.label, self.height, render(template, frame=self, **sides, **scales, **drawing).strip()
        )

    def draw_axes(
        self,
        template: str,
        x: tuple[float, float],
        y: tuple[float, float],
        labels: Iterable[tuple[float, str]],
        *,
        inset: float = 0,
        **drawing: Any,
    ) -> Plot:
        """The same with two axes of these ends and labels below."""
        across = scale(*x, LEFT + inset, WIDTH - RIGHT - inset)
        up = scale(*y, self.height - BOTTOM, TOP)
        return self.draw(template, across, up, labels=labels, ticks=ticks(*y, 4), **drawing)


def stairs(points: Sequence[tuple[float, float]], end: float) -> list[tuple[float, float]]:
    """The corners of stairs that keep the height of each point until the next one, and of the last one until `end`.

    >>> stairs([(0, 5), (1, 7)], 3)
    [(0, 5), (1, 5), (1, 7), (3, 7)]
    """
    return [
        corner for (x, y), (after, _) in pairwise([*points, (end, 0.0)]) for corner in ((x, y), (after, y))
    ]


def lines(
    series: Sequence[Series],
    frame: Frame,
    *,
    zero: bool = True,
    steps: bool = False,
    mark: tuple[float, str] | None = None,
    whole: bool = False,
) -> Plot:
    """A line plot with one line for each series.

    Args:
        series: at most `COLOURS` of them.
        frame: description and axes.
        zero: the vertical axis starts at 0.
        steps: draw stairs with a light area below, for histograms: `ys[i]` is the height from `xs[i]` to `xs[i+1]`.
        mark: a vertical line at a value, with a label.
        whole: ticks of the horizontal axis are whole numbers.

    >>> picture = lines([Series("a", [1, 2], [0.5, 1.0])], Frame("a rises", "x", "y"))
    >>> picture.label, picture.body.count("<circle")
    ('a rises', 2)
    """
    low, high = span([*(x for one in series for x in one.xs), *([mark[0]] if mark else [])], pad=0.0)
    heights = span([y for one in series for y in one.ys], zero=zero)
    labels = [
        (value, number(value)) for value in ticks(low, high, 6) if not whole or float(value).is_integer()
    ]
    drawn = [list(zip(one.xs, one.ys, strict=True)) for one in series]
    if steps:
        drawn = [stairs(line, high) for line in drawn]
    how: dict[str, Any] = {"inset": 0 if steps else 6, "steps": steps, "mark": mark}
    return frame.draw_axes("lines.svg", (low, high), heights, labels, series=drawn, **how)


def bars(
    groups: Sequence[str],
    series: Sequence[tuple[str, Sequence[float]]],
    frame: Frame,
    *,
    top: float | None = None,
) -> Plot:
    """A bar chart with one bar for each series in every group; `top` fixes the upper end of the axis.

    >>> bars(["a", "b"], [("model", [1, 2])], Frame("two bars", "group", "height")).body.count("<rect")
    2
    """
    low, high = span([value for _, values in series for value in values], zero=True)
    room = (WIDTH - RIGHT - LEFT) / len(groups)
    widest = max(len(name) for name in groups) * 6.4 + 2  # 6.4 is about the width of a letter
    every = max(1, -int(-widest // room))  # only every n-th name is shown if all would overlap
    labels = [(place + 0.5, groups[place]) for place in range(0, len(groups), every)]
    gap = min(0.3 * room, 14) if room > 12 else 1
    wide = (room - gap) / len(series)
    drawn = [
        (place, LEFT + group * room + gap / 2 + place * wide, value)
        for place, (_, values) in enumerate(series)
        for group, value in enumerate(values)
    ]
    return frame.draw_axes("bars.svg", (0, len(groups)), (low, top or high), labels, bars=drawn, wide=wide)


def scatter(
    points: Sequence[tuple[float, float, str]],
    frame: Frame,
    *,
    x: tuple[float, float],
    y: tuple[float, float],
    labels: Sequence[tuple[float, str]],
    line: tuple[str, Sequence[tuple[float, float]]] = ("", ()),
) -> Plot:
    """A scatter plot of points with a class each, above a line.

    Args:
        points: x, y and class, such as `f0` or `ring c6`.
        frame: description and axes.
        x: ends of the horizontal axis.
        y: ends of the vertical axis.
        labels: places and texts below the horizontal axis.
        line: class and corners.

    >>> dots = [(1, 1, "f0"), (2, 3, "ring c6")]
    >>> str(scatter(dots, Frame("two", "x", "y"), x=(1, 2), y=(1, 3), labels=[(1, "1")])).count("<circle")
    2
    """
    return frame.draw_axes("scatter.svg", x, y, labels, inset=8, line=line, points=points)


def intervals(
    rows: Sequence[tuple[str, Sequence[float]]], frame: Frame, *, zero: bool = False, filled: bool = False
) -> Plot:
    """One row for each name: single values as rings, their mean as a dot, mean ± standard deviation as a bar.

    Names stand above their rows; the height of the frame follows from the number of rows.

    Args:
        rows: names and values.
        frame: description and horizontal axis.
        zero: the axis starts at 0.
        filled: draw the mean as a bar from 0 instead.

    >>> str(intervals([("a", [1, 2])], Frame("one row", "x", ""))).count("<circle")
    3
    """
    edge, first, height = 14, 4, 38 * len(rows)
    low, high = span([value for _, values in rows for value in values], zero=zero or filled, pad=0.08)
    drawn = []
    for name, values in rows:
        mean, std = statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0
        drawn.append((name, values, mean, (max(low, mean - std), min(high, mean + std))))
    return replace(frame, height=first + height + BOTTOM).draw(
        "intervals.svg",
        scale(low, high, edge, WIDTH - RIGHT - 8),
        scale(0, len(rows), first, first + height),
        ticks=ticks(low, high, 5),
        rows=drawn,
        filled=filled,
        first=first,
        edge=edge,
    )


# ------------------------------------------------------------------------------- figures: a plot and its numbers

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
        **options: for `lines`.

    >>> chart = line_chart("Loss", [Series("loss", [1, 2], [0.5, 0.25])], "epoch", "mean loss")
    >>> chart.plot.label, chart.table.rows[1]
    ('Line chart of mean loss against epoch: loss from 0.5 to 0.25', ['2', '0.2500'])
    """
    drawn = series[:COLOURS]
    ends = "; ".join(f"{one.name} from {number(one.ys[0])} to {number(one.ys[-1])}" for one in drawn)
    plot = lines(drawn, Frame(f"Line chart of {y} against {x}: {ends}", x, y), **options)
    if len(series) > COLOURS:
        note = f"{note} The plot shows the first {COLOURS} of {len(series)} {of}s.".strip()
    return Figure(
        title,
        plot,
        table or _numbers(series, x, y, of, digits),
        legend=[one.name for one in drawn] if len(series) > 1 else (),
        note=note,
    )


def _numbers(series: Sequence[Series], x: str, y: str, of: str, digits: int) -> TextTable:
    """One column for each series if all have the same places, else one row for each point."""
    if all(one.xs == series[0].xs for one in series):
        rows = [
            [number(at), *(fixed(value, digits) for value in values)]
            for at, *values in zip(series[0].xs, *(one.ys for one in series), strict=True)
        ]
        return TextTable([x, *(one.name for one in series)] if len(series) > 1 else [x, y], rows)
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
    stepped = [Series(name, edges, [*count, count[-1]]) for name, count in counts.items()]
    rows = [
        [f"{low:.3f} to {high:.3f}", *map(number, values)]
        for (low, high), *values in zip(pairwise(edges), *counts.values(), strict=True)
    ]
    return Figure(
        title,
        lines(stepped, frame, steps=True, mark=mark),
        TextTable([frame.x, *counts], rows),
        legend=list(counts),
        note=note,
        key="line",
    )


def grouped_bars(title: str, frame: Frame, means: Sequence[Sequence[float]], table: TextTable) -> Figure:
    """Bars of the model and of popularity for the groups that the first column of the table names."""
    groups, series = [row[0] for row in table.rows], list(zip(BOTH, means, strict=True))
    return Figure(title, bars(groups, series, frame), table, legend=BOTH, key="box")
