"""Plots and colours: what is drawn stays in its frame, and can be told apart."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from talos.model.measures import by_activity
from talos.report import standalone
from talos.report.page import DARK, LIGHT, Figure, TextTable
from talos.report.svg import (
    COLOURS,
    WIDTH,
    Frame,
    Plot,
    Series,
    bars,
    intervals,
    lines,
    number,
    scatter,
    span,
    ticks,
)

FRAME = Frame('what is <seen> & "said"', "x name", "y name")
values = st.floats(-1e6, 1e6, allow_nan=False, allow_infinity=False)


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_contrast(theme: dict[str, str]) -> None:
    for behind in ("back", "card"):
        for name in ("text", "muted", "c2"):  # c2 is also the colour of a word
            assert contrast(theme[name], theme[behind]) >= 4.5, name
        for place in range(COLOURS):
            assert contrast(theme[f"c{place}"], theme[behind]) >= 3, place
    assert len({theme[f"c{place}"] for place in range(COLOURS)}) == COLOURS


def inside(plot: Plot) -> None:
    """Well-formed, and every place within the picture."""
    root = ET.fromstring(str(plot))
    height = float(root.attrib["viewBox"].split()[3])
    for element in root:
        for name, limit in (("x", WIDTH), ("x1", WIDTH), ("x2", WIDTH), ("cx", WIDTH), ("y", height),
                            ("y1", height), ("y2", height), ("cy", height)):  # fmt: skip
            place = float(element.attrib.get(name, 0))
            assert -3 <= place <= limit + 3, (element.tag, name, place)
        if element.tag.endswith("path"):
            for x, y in re.findall(r"[ML](-?[\d.e+-]+),(-?[\d.e+-]+)", element.attrib["d"]):
                assert -1 <= float(x) <= WIDTH + 1
                assert -1 <= float(y) <= height + 1


@given(st.lists(st.tuples(values, values), min_size=1, max_size=30), st.booleans(), st.booleans())
def test_lines_and_points_stay_inside(pairs: list[tuple[float, float]], zero: bool, steps: bool) -> None:
    pairs = sorted(pairs)
    xs, ys = [a for a, _ in pairs], [b for _, b in pairs]
    inside(lines([Series("one", xs, ys)], FRAME, zero=zero, steps=steps, mark=(xs[0], "here")))
    ends = span(xs), span(ys)
    dots = [(x, y, "point f0") for x, y in pairs]
    inside(scatter(dots, FRAME, x=ends[0], y=ends[1], labels=[(xs[0], "first")], line=("equal", pairs)))
    inside(intervals([("one", ys), ("two", xs)], FRAME, zero=zero))
    inside(intervals([("one", [abs(ys[0])]), ("two", [abs(xs[0])])], FRAME, filled=True))


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=12))
def test_bars_stay_inside(heights: list[float]) -> None:
    inside(bars([f"group {i}" for i in range(len(heights))], [("a", heights), ("b", heights[::-1])], FRAME))


@given(values, st.floats(1e-6, 1e6))
def test_ticks_are_few_ascending_and_inside(low: float, width: float) -> None:
    found = ticks(low, low + width)
    slack = 1e-6 * max(1.0, abs(low), width)
    assert len(found) <= 11
    assert found == sorted(found)
    assert all(low - slack <= tick <= low + width + slack for tick in found)


@given(st.lists(values, max_size=10), st.booleans())
def test_a_span_is_never_empty(found: list[float], zero: bool) -> None:
    low, high = span([*found, math.nan], zero=zero)
    assert low < high
    assert all(low <= value <= high for value in found)


def test_texts_in_plots_stay_text() -> None:
    evil = "</text><script>'\"&"
    frame = Frame(evil, evil, evil)
    table = TextTable([evil], [])
    for plot in (
        lines([Series(evil, [1, 2], [1, 2])], frame, mark=(1, evil)),
        bars([evil, "b"], [(evil, [1, 2])], frame),
        intervals([(evil, [1, 2])], frame),
        scatter([(1, 1, "f0")], frame, x=(0, 2), y=(0, 2), labels=[(1, evil)]),
    ):
        inside(plot)
        alone = ET.fromstring(standalone(Figure(evil, plot, table, legend=[evil] * 3)))
        texts = [element.text for element in alone.iter() if element.tag.endswith("text")]
        assert texts.count(evil) >= 5  # the title, three names of series, an axis
        assert alone.attrib["aria-label"] == evil
        assert not [element for element in alone.iter() if element.tag.endswith("script")]


def test_seven_series_are_told_apart_without_colour() -> None:
    series = [Series(f"s{i}", [0, 1], [i, i + 1]) for i in range(COLOURS)]
    dashes = re.findall(r'<path class="line c\d"(?: stroke-dasharray="([^"]*)")?', str(lines(series, FRAME)))
    assert len(set(dashes)) == COLOURS


def test_numbers() -> None:
    assert number(float("nan")) == "–"
    assert number(-0.5) == "-0.5"
    assert number(1234.56) == "1,234.6"


@given(st.lists(st.integers(0, 500), min_size=1, max_size=60))
def test_activity_groups_are_a_partition(degrees: list[int]) -> None:
    groups = by_activity(np.array(degrees))
    assert np.array_equal(sum(members.astype(int) for _, members in groups), np.ones(len(degrees)))
    assert len({name for name, _ in groups}) == len(groups)
