"""Pages in files: a report or a card replaces an older one, and nothing else unless told to."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Literal

from talos.checks import require
from talos.errors import ConfigError, Option
from talos.files import replace_text
from talos.report.page import is_page
from talos.report.run import is_card

__all__ = ["check_target", "write_page"]


def check_target(out: Path, *, overwrite: bool = False, what: Literal["report", "card"] = "report") -> None:
    """Refuse a file that cannot be written, or that is there and not a page that this library has written.

    >>> check_target(Path("."))
    Traceback (most recent call last):
    talos.errors.ConfigError: out: . is a folder; expected a file name, such as report.html
    """
    check = partial(require, where="out", error=ConfigError)
    example = {"report": "report.html", "card": "README.md"}[what]
    check(not out.is_dir(), f"{out} is a folder", expected=f"a file name, such as {example}")
    # writing renames a file over it: no device would be left
    check(out.is_file() or not out.exists(), f"{out} is a device or a pipe", expected="the name of a file")
    if overwrite or not out.exists():
        return
    with out.open("rb") as file:
        beginning = file.read(1 << 16).decode("utf-8", errors="replace")
    ours = is_page(beginning) if what == "report" else is_card(beginning)
    option = Option("overwrite", True, "replaces it")
    what_else = f"a new file, or an older {what}"
    check(ours, f"{out} exists and is not a {what}", expected=what_else, option=option)


def write_page(text: str, out: Path) -> Path:
    """Write a page over what is there, or leave that if the page cannot be written; returns its place."""
    check_target(out, overwrite=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    replace_text(out, text)
    return out
