"""From values to places and to words: ticks at round numbers, linear scales, number formats."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Scale", "fixed", "number", "span", "ticks"]

_SMALLEST = 1e-12  # differences below this are noise to anybody who looks at a plot


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` steps of a round length within low … high.

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
    """Lowest and highest finite value and a little room; with `zero`, 0 is among the values.

    >>> span([1.0, 3.0], pad=0)
    (1.0, 3.0)
    """
    finite = [value for value in values if math.isfinite(value)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    if zero:
        low, high = min(0.0, low), max(0.0, high)
    size = max(abs(low), abs(high))
    if high - low <= max(1e-9 * size, _SMALLEST):  # all the same: any room will do
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
        """The place of a value."""
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 2)


def number(value: float | int | None, digits: int = 4) -> str:
    """A number for people: thousands with commas, fractions with `digits` significant places at most.

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
    """A number for a column of a table: always the same number of places.

    >>> fixed(0.2), fixed(1234.5, 1), fixed(None)
    ('0.2000', '1,234.5', '–')
    """
    return "–" if value is None or not math.isfinite(value) else f"{value:,.{digits}f}"
