"""Plots as SVG text: lines, bars, points and intervals in a frame with axes; and number formats and scales for them.

They are drawn here and not by a plotting library, because a report holds no scripts and must work without a network
(Optuna's plots, for example, are pages of plotly). Every plot is 330 units wide, about the width of a phone and of a
column on a desktop, so that its text is as large as the page's. Colours are classes (`c0`, `c1`, …) whose values the
page sets for light and dark mode; series also differ by dashes and marks, not by colour alone.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Literal, TypeAlias

from markupsafe import Markup

__all__ = [
    "Frame",
    "Plot",
    "Scale",
    "Series",
    "bars",
    "fixed",
    "intervals",
    "legend_key",
    "lines",
    "number",
    "path",
    "scatter",
    "svg_text",
]

KeyKind: TypeAlias = Literal["dots", "line", "box"]

COLOURS = 7
WIDTH, HEIGHT = 330, 222
LEFT, RIGHT, TOP, BOTTOM = 48, 12, 32, 42
_DASHES = ("", "6 3", "2 3", "8 3 2 3", "4 2", "1 2", "10 4")
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
    low = low if zero and low == 0 else low - room
    high = high if zero and high == 0 else high + room
    return low, high


@dataclass(frozen=True)
class Scale:
    """A linear map from low … high to start … end.

    >>> Scale(0, 10, 100, 200)(5)
    150.0
    """

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The position of a value."""
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 2)


def number(value: float | int | None, digits: int = 4) -> str:
    """A number as text: thousands with commas, at most `digits` decimal places.

    >>> number(12345), number(0.25), number(0.123456), number(3.0), number(0.00001234), number(None)
    ('12,345', '0.25', '0.1235', '3', '1.23e-05', '–')
    """
    if value is None or not math.isfinite(value):
        return "–"
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) < 10 ** (-digits):
        return f"{value:.3g}"
    text = f"{value:,.{digits if abs(value) < 10 else 1}f}"
    return text.rstrip("0").rstrip(".")


def fixed(value: float | None, digits: int = 4) -> str:
    """A number as text for a column of a table: always `digits` decimal places.

    >>> fixed(0.2), fixed(1234.5, 1), fixed(None)
    ('0.2000', '1,234.5', '–')
    """
    return "–" if value is None or not math.isfinite(value) else f"{value:,.{digits}f}"


@dataclass(frozen=True)
class Series:
    """A named series of points."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]


@dataclass(frozen=True)
class Plot:
    """A drawing: its description for screen readers, its height, and SVG elements. `str` gives the whole SVG.

    >>> str(Plot("nothing", 10, "")).startswith('<svg viewBox="0 0 330 10" role="img" aria-label="nothing"')
    True
    """

    label: str
    height: int
    body: str

    def __str__(self) -> str:
        """The SVG element around the drawing."""
        head = f'<svg viewBox="0 0 {WIDTH} {self.height}" role="img" aria-label="{escape(self.label)}"'
        return f'{head} xmlns="http://www.w3.org/2000/svg">\n{self.body}\n</svg>'

    __html__ = __str__  # templates insert it as it is: every text in it is escaped already


@dataclass(frozen=True)
class Frame:
    """The frame of a plot: its description for screen readers, the names of its axes, and its height."""

    label: str
    x: str
    y: str
    height: int = HEIGHT

    def wrap(self, body: Sequence[str]) -> Plot:
        """The plot with these elements."""
        return Plot(self.label, self.height, "\n".join(body))

    def axes(self, x: Scale, y: Scale, xs: Sequence[tuple[float, str]]) -> list[str]:
        """Grid lines, tick labels and the names of both axes."""
        bottom = self.height - BOTTOM
        parts = []
        for value in ticks(y.low, y.high, 4):
            place = y(value)
            parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{place}" y2="{place}"/>')
            parts.append(svg_text(LEFT - 5, place + 4, number(value), "end"))
        parts.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{bottom}" y2="{bottom}"/>')
        parts += [svg_text(x(place), bottom + 15, text, "middle") for place, text in xs]
        parts.append(svg_text(2, 12, self.y, "start", "name"))
        parts.append(svg_text((LEFT + WIDTH - RIGHT) / 2, self.height - 6, self.x, "middle", "name"))
        return parts


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
    all_x = [value for one in series for value in one.xs] + ([mark[0]] if mark else [])
    low, high = span(all_x, pad=0.0)
    x = Scale(low, high, LEFT + (0 if steps else 6), WIDTH - RIGHT - (0 if steps else 6))
    bottom = frame.height - BOTTOM
    y = Scale(*span([value for one in series for value in one.ys], zero=zero), bottom, TOP)
    places = [value for value in ticks(low, high, 6) if not whole or float(value).is_integer()]
    parts = frame.axes(x, y, [(value, number(value)) for value in places])
    if mark is not None:
        at = x(mark[0])
        parts.append(f'<line class="mark" x1="{at}" x2="{at}" y1="{TOP - 12}" y2="{bottom}"/>')
        late = at > WIDTH * 0.7  # to the right of the line the label would leave the picture
        parts.append(svg_text(at - 4 if late else at + 4, TOP - 4, mark[1], "end" if late else "start"))
    for place, one in enumerate(series):
        corners = [(x(a), y(b)) for a, b in zip(one.xs, one.ys, strict=True)]
        if steps:
            ends = [*(a for a, _ in corners[1:]), x(high)]
            corners = [corner for (a, b), c in zip(corners, ends, strict=True) for corner in ((a, b), (c, b))]
            area = [(corners[0][0], bottom), *corners, (corners[-1][0], bottom)]
            parts.append(f'<path class="area f{place}" d="{path(area)}Z"/>')
        parts.append(_line(place, path(corners)))
        if not steps and len(corners) <= 16:
            parts += [_dot(a, b, place) for a, b in corners]
    return frame.wrap(parts)


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
    bottom = frame.height - BOTTOM
    low, high = span([value for _, values in series for value in values], zero=True)
    y = Scale(low, top or high, bottom, TOP)
    room = (WIDTH - RIGHT - LEFT) / len(groups)
    x = Scale(0, len(groups), LEFT, WIDTH - RIGHT)
    widest = max(len(name) for name in groups) * 6.4 + 2  # 6.4 is about the width of a letter
    every = max(1, -int(-widest // room))  # only every n-th name is shown if all would overlap
    parts = frame.axes(x, y, [(place + 0.5, groups[place]) for place in range(0, len(groups), every)])
    gap = min(0.3 * room, 14) if room > 12 else 1
    width = (room - gap) / len(series)
    for place, (_, values) in enumerate(series):
        for group, value in enumerate(values):
            left, upper = LEFT + group * room + gap / 2 + place * width, y(value)
            tall = round(max(0.0, bottom - upper), 2)
            parts.append(
                f'<rect class="f{place}" x="{left:.2f}" y="{upper}" width="{max(1.0, width - 1):.2f}" height="{tall}"/>'
            )
    return frame.wrap(parts)


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
    across, up = Scale(*x, LEFT + 8, WIDTH - RIGHT - 8), Scale(*y, frame.height - BOTTOM, TOP)
    parts = frame.axes(across, up, labels)
    corners = [(across(a), up(b)) for a, b in line[1]]
    parts += [f'<path class="{line[0]}" d="{path(corners)}"/>'] if corners else []
    parts += [f'<circle class="{look}" cx="{across(a)}" cy="{up(b)}" r="2.6"/>' for a, b, look in points]
    return frame.wrap(parts)


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
    step, top, left = 38, 4, 14
    bottom = top + step * len(rows)
    low, high = span([value for _, values in rows for value in values], zero=zero or filled, pad=0.08)
    x = Scale(low, high, left, WIDTH - RIGHT - 8)
    parts = []
    for value in ticks(low, high, 5):
        parts.append(f'<line class="grid" x1="{x(value)}" x2="{x(value)}" y1="{top}" y2="{bottom}"/>')
        parts.append(svg_text(x(value), bottom + 15, number(value), "middle"))
    parts.append(svg_text(WIDTH / 2, bottom + BOTTOM - 6, frame.x, "middle", "name"))
    for place, (name, values) in enumerate(rows):
        middle, colour = top + step * (place + 0.5) + 9, place % COLOURS
        mean = statistics.fmean(values)
        parts.append(svg_text(left, middle - 11, name, "start", "name"))
        if filled:
            parts.append(
                f'<rect class="f0" x="{left}" y="{middle - 5}" width="{x(mean) - left:.2f}" height="11"/>'
            )
            continue
        std = statistics.stdev(values) if len(values) > 1 else 0.0
        ends = [(x(max(low, mean - std)), middle), (x(min(high, mean + std)), middle)]
        parts.append(f'<path class="line c{colour}" d="{path(ends)}"/>')
        parts += [f'<circle class="ring c{colour}" cx="{x(value)}" cy="{middle}" r="3"/>' for value in values]
        parts.append(f'<circle class="f{colour}" cx="{x(mean)}" cy="{middle}" r="4"/>')
    return replace(frame, height=bottom + BOTTOM).wrap(parts)


def legend_key(place: int, kind: KeyKind) -> Markup:
    """The picture of a series in a legend, 22 by 10: its line, its line with its mark, or a box."""
    if kind == "box":
        return Markup(f'<rect class="f{place}" x="6" y="0" width="10" height="10"/>')
    return Markup(_line(place, "M0,5L22,5") + (_dot(11.0, 5.0, place) if kind == "dots" else ""))


def _line(place: int, path: str) -> str:
    dash = f' stroke-dasharray="{_DASHES[place]}"' if _DASHES[place] else ""
    return f'<path class="line c{place}"{dash} d="{path}"/>'


def _dot(x: float, y: float, place: int) -> str:
    """A mark in the shape of the series."""
    if place % 3 == 1:
        return f'<rect class="f{place}" x="{x - 2.6:.2f}" y="{y - 2.6:.2f}" width="5.2" height="5.2"/>'
    if place % 3 == 2:
        return f'<path class="f{place}" d="M{x},{y - 3.6:.2f}l3.4,6h-6.8Z"/>'
    return f'<circle class="f{place}" cx="{x}" cy="{y}" r="2.8"/>'


def path(corners: Sequence[tuple[float, float]]) -> str:
    """The path through these corners."""
    return "M" + "L".join(f"{x:g},{y:g}" for x, y in corners)


def svg_text(x: float, y: float, text: str, anchor: str, kind: str = "tick") -> str:
    """A text element; `kind` is its class."""
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>'
