"""Plots as SVG text: lines, bars, points and intervals in a frame with axes; and number formats and scales for them.

They are drawn here and not by a plotting library, because a report holds no scripts and must work without a network
(Optuna's plots, for example, are pages of plotly). Every plot is 330 units wide, about the width of a phone and of a
column on a desktop, so that its text is as large as the page's. Colours are classes (`c0`, `c1`, …) whose values the
page sets for light and dark mode; series also differ by dashes and marks, not by colour alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Literal, TypeAlias

__all__ = [
    "Frame",
    "Scale",
    "Series",
    "bars",
    "fixed",
    "intervals",
    "legend_key",
    "lines",
    "number",
    "points",
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
class Frame:
    """The frame of a plot: its description for screen readers, the names of its axes, and its height."""

    label: str
    x: str
    y: str
    height: int = HEIGHT

    def wrap(self, body: Sequence[str]) -> str:
        """The SVG element around the drawing."""
        head = f'<svg viewBox="0 0 {WIDTH} {self.height}" role="img" aria-label="{escape(self.label)}"'
        return "\n".join([f'{head} xmlns="http://www.w3.org/2000/svg">', *body, "</svg>"])

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
) -> str:
    """A line plot with one line for each series.

    Args:
        series: at most `COLOURS` of them.
        frame: description and axes.
        zero: the vertical axis starts at 0.
        steps: draw stairs with a light area below, for histograms: `ys[i]` is the height from `xs[i]` to `xs[i+1]`.
        mark: a vertical line at a value, with a label.
        whole: ticks of the horizontal axis are whole numbers.

    >>> picture = lines([Series("a", [1, 2], [0.5, 1.0])], Frame("a rises", "x", "y"))
    >>> 'role="img"' in picture, 'aria-label="a rises"' in picture
    (True, True)
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
            parts.append(f'<path class="area f{place}" d="{_path(area)}Z"/>')
        parts.append(_line(place, _path(corners)))
        if not steps and len(corners) <= 16:
            parts += [_dot(a, b, place) for a, b in corners]
    return frame.wrap(parts)


def bars(
    groups: Sequence[str],
    series: Sequence[tuple[str, Sequence[float]]],
    frame: Frame,
    *,
    top: float | None = None,
) -> str:
    """A bar chart with one bar for each series in every group; `top` fixes the upper end of the axis.

    >>> bars(["a", "b"], [("model", [1, 2])], Frame("two bars", "group", "height")).count("<rect")
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


def points(xs: Sequence[float], ys: Sequence[float], frame: Frame) -> str:
    """A scatter plot of translucent points, with the line on which x and y are equal."""
    low, high = span([*xs, *ys])
    bottom = frame.height - BOTTOM
    x, y = Scale(low, high, LEFT, WIDTH - RIGHT), Scale(low, high, bottom, TOP)
    parts = frame.axes(x, y, [(value, number(value)) for value in ticks(low, high, 5)])
    parts.append(f'<path class="equal" d="{_path([(x(low), y(low)), (x(high), y(high))])}"/>')
    parts += [
        f'<circle class="point f0" cx="{x(a)}" cy="{y(b)}" r="2.2"/>' for a, b in zip(xs, ys, strict=True)
    ]
    return frame.wrap(parts)


def intervals(rows: Sequence[tuple[str, Sequence[float]]], frame: Frame, *, zero: bool = False) -> str:
    """One row for each name: single values as rings, their mean as a dot, mean ± standard deviation as a bar.

    Names stand above their rows; the height of the frame follows from the number of rows.
    """
    step, top, left_edge = 38, 4, 14
    frame = replace(frame, height=top + step * len(rows) + BOTTOM)
    bottom = frame.height - BOTTOM
    low, high = span([value for _, values in rows for value in values], zero=zero, pad=0.08)
    x = Scale(low, high, left_edge, WIDTH - RIGHT - 8)
    parts = []
    for value in ticks(low, high, 5):
        place = x(value)
        parts.append(f'<line class="grid" x1="{place}" x2="{place}" y1="{top}" y2="{bottom}"/>')
        parts.append(svg_text(place, bottom + 15, number(value), "middle"))
    parts.append(svg_text(WIDTH / 2, frame.height - 6, frame.x, "middle", "name"))
    for place, (name, values) in enumerate(rows):
        middle = top + step * (place + 0.5) + 9
        colour = place % COLOURS
        mean = sum(values) / len(values)
        std = (sum((value - mean) ** 2 for value in values) / max(1, len(values) - 1)) ** 0.5
        parts.append(svg_text(left_edge, middle - 11, name, "start", "name"))
        left, right = x(max(low, mean - std)), x(min(high, mean + std))
        parts.append(f'<line class="line c{colour}" x1="{left}" x2="{right}" y1="{middle}" y2="{middle}"/>')
        parts += [f'<circle class="ring c{colour}" cx="{x(value)}" cy="{middle}" r="3"/>' for value in values]
        parts.append(f'<circle class="f{colour}" cx="{x(mean)}" cy="{middle}" r="4"/>')
    return frame.wrap(parts)


def legend_key(place: int, kind: KeyKind) -> str:
    """The picture of a series in a legend: its line, its line with its mark, or a box."""
    drawn = _line(place, "M0,5L22,5")
    if kind == "box":
        drawn = f'<rect class="f{place}" x="6" y="0" width="10" height="10"/>'
    elif kind == "dots":
        drawn += _dot(11.0, 5.0, place)
    return f'<svg viewBox="0 0 22 10" aria-hidden="true">{drawn}</svg>'


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


def _path(corners: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:g},{y:g}" for x, y in corners)


def svg_text(x: float, y: float, text: str, anchor: str, kind: str = "tick") -> str:
    """A text element; `kind` is its class."""
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>'
