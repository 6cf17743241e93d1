"""Text from templates: the environment, the colours, and how numbers and names are written.

Text has a contrast of at least 4.5:1 against its background and lines one of 3:1, in light and dark mode. The colours
of series are those of Okabe and Ito, made darker or lighter where a background requires it.
"""

from __future__ import annotations

import math
import re
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

__all__ = ["COLOURS", "DARK", "LIGHT", "WIDTH", "environment", "fixed", "number", "plain", "render", "tag"]

COLOURS = 7  # of series
WIDTH = 330  # of a plot

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


def render(template: str, **facts: Any) -> str:
    """The text of a template of `talos/report/templates`. Equal arguments give equal text.

    >>> "<script>" in render("page.html", title="<script>alert(1)</script>", date=None)
    False
    """
    return environment().get_template(template).render(**facts)


@cache
def environment() -> Environment:
    """The environment of the templates; every text that a template inserts into HTML or SVG is escaped."""
    made = Environment(
        loader=PackageLoader("talos.report"),
        autoescape=select_autoescape(["html", "svg"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"number": number, "plain": plain, "tag": tag}
    made.globals |= {"colours": _COLOURS, "series_colours": COLOURS, "width": WIDTH}
    return made


def number(value: float | int | None, digits: int = 4) -> str:
    """A number as text: thousands with commas, at most `digits` decimal places.

    >>> number(12345), number(0.25), number(0.123456), number(3.0), number(0.00001234), number(None)
    ('12,345', '0.25', '0.1235', '3', '1.23e-05', '–')
    """
    if value is None or not math.isfinite(value):
        return "–"
    if 0 < abs(value) < 10 ** (-digits):
        return f"{value:.3g}"
    return f"{value + 0.0:,.{digits if abs(value) < 10 else 1}f}".rstrip("0").rstrip(".")


def fixed(value: float | None, digits: int = 4) -> str:
    """A number as text for a column of a table: always `digits` decimal places.

    >>> fixed(0.2), fixed(1234.5, 1), fixed(None)
    ('0.2000', '1,234.5', '–')
    """
    return "–" if value is None or not math.isfinite(value) else f"{value:,.{digits}f}"


def plain(text: str) -> str:
    r"""A text that Markdown shows as it is, on one line: no file name makes a link, a tag or a new column.

    >>> plain("a|b <img> [x](y)")
    'a\\|b &lt;img> \\[x\\](y)'
    """
    text = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\`*\[\]|])", r"\\\1", text)


def tag(text: str) -> str:
    """A text as a tag: lower-case letters, digits and dashes.

    >>> tag("Our Clicks.csv"), tag("???")
    ('our-clicks-csv', 'unknown')
    """
    return re.sub(r"[^a-z0-9]+", "-", text.casefold()).strip("-") or "unknown"
