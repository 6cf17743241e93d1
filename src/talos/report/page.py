"""Pages from templates: tables, figures, the environment, the colours, how numbers are written, and files of pages.

Pages hold no scripts and fetch nothing; every text from outside is escaped. Text has a contrast of at least 4.5:1
against its background and lines one of 3:1, in light and dark mode. The colours of series are those of Okabe and Ito,
made darker or lighter where a background requires it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from talos.checks import require
from talos.errors import ConfigError, Option
from talos.files import replace_text
from talos.studies.folder import file_name

__all__ = [
    "CARD_MARK",
    "COLOURS",
    "DARK",
    "LIGHT",
    "WIDTH",
    "Figure",
    "Plot",
    "TextTable",
    "check_target",
    "environment",
    "fixed",
    "is_card",
    "is_page",
    "markdown",
    "number",
    "plain",
    "render",
    "standalone",
    "write_page",
]

COLOURS = 7  # of series
WIDTH = 330  # of a plot
CARD_MARK = "<!-- written by `talos card` -->"
KeyKind: TypeAlias = Literal["dots", "line", "box"]

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
    made.filters |= {"number": number, "plain": plain, "tag": file_name}
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
        return render("plot.svg", plot=self)

    __html__ = __str__  # templates insert it as it is: every text in it is escaped already


@dataclass(frozen=True)
class Figure:
    """A plot with its title, legend, table of numbers and a note on how to read it."""

    title: str
    plot: Plot
    table: TextTable
    legend: Sequence[str] = ()
    note: str = ""
    key: KeyKind = "dots"


def is_page(text: str) -> bool:
    """Whether a text, or its beginning, is a report that this library has written.

    >>> is_page(render("page.html", title="Run", date=None)), is_page("my notes")
    (True, False)
    """
    return f":root{{color-scheme:light dark;--back:{LIGHT['back']};" in text


def is_card(text: str) -> bool:
    """Whether a text, or its beginning, is a card that this library has written.

    >>> is_card("# my own notes")
    False
    """
    return CARD_MARK in text


def check_target(out: Path, *, overwrite: bool = False, what: Literal["report", "card"] = "report") -> None:
    """Refuse a file that cannot be written, or that is there and not a page that this library has written.

    >>> check_target(Path("."))
    Traceback (most recent call last):
    talos.errors.ConfigError: out: . is a folder; expected a file name, such as report.html
    """
    check = partial(require, where="out", error=ConfigError)
    example = "report.html" if what == "report" else "README.md"
    check(not out.is_dir(), f"{out} is a folder", expected=f"a file name, such as {example}")
    # writing renames a file over it: no device would be left
    check(out.is_file() or not out.exists(), f"{out} is a device or a pipe", expected="the name of a file")
    if overwrite or not out.exists():
        return
    with out.open("rb") as file:
        beginning = file.read(1 << 16).decode("utf-8", errors="replace")
    ours = is_page(beginning) if what == "report" else is_card(beginning)
    check(
        ours,
        f"{out} exists and is not a {what}",
        expected=f"a new file, or an older {what}",
        option=Option("overwrite", True, "replaces it"),
    )


def write_page(text: str, out: Path) -> Path:
    """Write a page over what is there, or leave that if the page cannot be written; returns its place."""
    check_target(out, overwrite=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    replace_text(out, text)
    return out


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
