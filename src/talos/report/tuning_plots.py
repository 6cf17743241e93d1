"""The plots of a search: values in order, shares, parallel coordinates, one parameter at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Literal

from talos.report.scales import Scale, number, span, ticks
from talos.report.svg import BOTTOM, LEFT, RIGHT, TOP, WIDTH, Frame

__all__ = ["Axis", "history", "parallel", "shares", "slices"]

_SEVERAL = 6  # distinct values up to which a parameter's values stand side by side


@dataclass(frozen=True, kw_only=True)
class Axis:
    """How the values of one parameter are laid out between 0 and 1.

    >>> Axis.of("tau", [0.1, 0.2]).share(0.2), Axis.of("lr", [10.0**-i for i in range(7)]).share(1e-3)
    (0.75, 0.5)
    """

    name: str
    kind: Literal["named", "even", "ratio"]
    low: float
    high: float
    values: tuple[Any, ...]

    @classmethod
    def of(cls, name: str, values: Sequence[Any]) -> Axis:
        """The layout that suits these values."""
        numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
        distinct = sorted(set(values), key=lambda value: value if numbers else str(value))
        if not numbers or len(distinct) <= _SEVERAL:
            return cls(name=name, kind="named", low=0.0, high=1.0, values=tuple(distinct))
        low, high = float(distinct[0]), float(distinct[-1])
        if low > 0 and high / low > 8:
            return cls(name=name, kind="ratio", low=math.log10(low), high=math.log10(high), values=())
        return cls(name=name, kind="even", low=low, high=high, values=())

    def share(self, value: Any) -> float:
        """Where a value lies."""
        if self.kind == "named":
            return (self.values.index(value) + 0.5) / len(self.values)
        at = math.log10(value) if self.kind == "ratio" else float(value)
        return round((at - self.low) / (self.high - self.low), 4) if self.high > self.low else 0.5

    def labels(self, count: int) -> list[tuple[float, str]]:
        """Places and what to write there."""
        if self.kind == "named":
            return [(self.share(value), _short(value)) for value in self.values]
        if self.kind == "even":
            return [(self.share(value), number(value)) for value in ticks(self.low, self.high, count)]
        powers = range(math.floor(self.low), math.ceil(self.high) + 1)
        steps = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
        inside = [one for one in steps if self.low - 1e-9 <= math.log10(one) <= self.high + 1e-9]
        kept = inside[:: max(1, -(-len(inside) // (count + 2)))]
        return [(self.share(value), _short(value)) for value in kept]


def history(values: Sequence[tuple[int, float, bool]], frame: Frame) -> str:
    """Values in order: dots, rings where the flag is off, and a staircase of the best dot so far."""
    x = Scale(*_wide([float(place) for place, *_ in values]), LEFT + 6, WIDTH - RIGHT - 6)
    y = Scale(*span([value for _, value, _ in values]), frame.height - BOTTOM, TOP)
    places = [value for value in ticks(x.low, x.high, 6) if float(value).is_integer()]
    parts = frame.axes(x, y, [(value, number(value)) for value in places])
    corners: list[str] = []
    best = -math.inf
    for place, value, whole in values:
        if whole and value > best:
            corners += [f"{x(place)},{y(best)}"] if best > -math.inf else []
            corners.append(f"{x(place)},{y(value)}")
            best = value
    if corners:
        corners.append(f"{x(values[-1][0])},{y(best)}")
        parts.append(f'<path class="line c1" d="M{"L".join(corners)}"/>')
    parts += [_spot(x(place), y(value), whole) for place, value, whole in values]
    return frame.wrap(parts)


def slices(values: Sequence[tuple[float, float, bool]], axis: Axis, frame: Frame) -> str:
    """The value of each trial against where its parameter lies."""
    x = Scale(0.0, 1.0, LEFT + 8, WIDTH - RIGHT - 8)
    y = Scale(*span([value for _, value, _ in values]), frame.height - BOTTOM, TOP)
    parts = frame.axes(x, y, axis.labels(5))
    parts += [_spot(x(place), y(value), whole) for place, value, whole in values]
    return frame.wrap(parts)


def shares(ranked: Sequence[tuple[str, float]], frame: Frame) -> str:
    """Horizontal bars with names above them and their share at the end."""
    step, top = 34, 6
    frame = Frame(frame.label, frame.x, frame.y, top + step * len(ranked) + 8)
    highest = max(share for _, share in ranked) or 1.0
    x = Scale(0.0, highest, 4, WIDTH - 60)
    parts = []
    for place, (name, share) in enumerate(ranked):
        upper = top + step * place
        parts.append(_text(4, upper + 11, name, "start", "name"))
        wide = max(1.0, x(share) - 4)
        parts.append(f'<rect class="f0" x="4" y="{upper + 16}" width="{wide:.2f}" height="11"/>')
        parts.append(_text(wide + 10, upper + 26, f"{share:.0%}", "start"))
    return frame.wrap(parts)


def parallel(rows: Sequence[Sequence[float]], axes: Sequence[Axis], frame: Frame) -> str:
    """One line a row through vertical axes; rows come worst first, the last is the best."""
    top, bottom = 42, 250
    frame = Frame(frame.label, frame.x, frame.y, bottom + 8)
    x = Scale(0, len(axes) - 1, 16, WIDTH - 16)
    y = Scale(0.0, 1.0, bottom - 6, top + 6)
    parts = []
    for place, axis in enumerate(axes):
        at = x(place)
        side = "start" if place == 0 else "end" if place == len(axes) - 1 else "middle"
        short = axis.name.rpartition(".")[2]
        edge = 2 if place == 0 else WIDTH - 2 if place == len(axes) - 1 else at
        parts.append(_text(edge, 12 if place % 2 == 0 else 27, short, side, "name"))
        parts.append(f'<line class="axis" x1="{at}" x2="{at}" y1="{top}" y2="{bottom}"/>')
    fine = len(rows) - max(1, len(rows) // 4)
    for place, row in enumerate(rows):
        path = "L".join(f"{x(i)},{y(share)}" for i, share in enumerate(row))
        last = place == len(rows) - 1
        look = ("c1", 2.6, 1.0) if last else ("c0", 1.3, 0.75) if place >= fine else ("c6", 0.8, 0.3)
        parts.append(
            f'<path class="line {look[0]}" style="stroke-width:{look[1]}" opacity="{look[2]}" d="M{path}"/>'
        )
    for place, axis in enumerate(axes):
        final = place == len(axes) - 1
        for share, text in axis.labels(3):
            at = x(place) + (-4 if final else 4)
            parts.append(
                f'<text class="tick" style="paint-order:stroke;stroke:var(--card);stroke-width:3px" x="{at:g}" '
                f'y="{y(share) + 4:g}" text-anchor="{"end" if final else "start"}">{escape(text)}</text>'
            )
    return frame.wrap(parts)


def _wide(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _spot(x: float, y: float, whole: bool) -> str:
    if whole:
        return f'<circle class="f0" cx="{x}" cy="{y}" r="3"/>'
    return f'<circle class="ring c6" cx="{x}" cy="{y}" r="3"/>'


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _text(x: float, y: float, text: str, anchor: str, kind: str = "tick") -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>'
