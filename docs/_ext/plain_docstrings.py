"""Docstrings of the library, which are plain text that reads well in a terminal, as reStructuredText for autodoc.

`name` becomes code, and a link where it is the name of something in the reference; an indented block becomes a formula
if it has the signs of one, and verbatim text otherwise; in a sentence, s_ui and σ(x)^(1/τ) get their index and
exponent. Signs that reStructuredText would take for markup are escaped.
"""

from __future__ import annotations

import re
from typing import Any

from mathml import latex_of
from sphinx.application import Sphinx

__all__ = ["as_rst", "setup"]

_FORMULA = re.compile(r"[στβρλγα∈Σ∂←]|\^|_\{")
_NAME = re.compile(r"[A-Za-z_][\w.]*(?:\(\))?")
_INDEX = re.compile(r"(?<![\w.])([A-Za-zα-ωΣΠ]|mean|max|min|log)_(?:\{([^{}]*)\}|([A-Za-z]{1,2}))(?!\w)")
_EXPONENT = re.compile(r"\^(?:\(([^()]*)\)|\{([^{}]*)\}|(\w))")


def as_rst(lines: list[str]) -> list[str]:
    r"""The lines of a docstring as reStructuredText; sections such as `Args:` are left to napoleon.

    >>> as_rst(["Has `k` of |I| items:", "", "    s ≥ β_u", "", "and `a b`."])
    ['Has :py:obj:`k` of \\|I\\| items:', '', '.. math::', '', '    s \\ge  β_{u}', '', '', 'and ``a b``.']
    """
    found: list[str] = []
    place = 0
    while place < len(lines):
        end = place + 1
        if not lines[place].strip():
            found.append("")
        elif lines[place].startswith(">>>"):
            while end < len(lines) and lines[end].strip():
                end += 1
            found += lines[place:end]
        elif lines[place].startswith("    ") and place and not lines[place - 1].strip():
            while end < len(lines) and lines[end].startswith("    "):
                end += 1
            found += _block([line[4:] for line in lines[place:end]])
        else:
            while end < len(lines) and lines[end].strip():
                end += 1
            found += _sentence("\n".join(lines[place:end])).split("\n")
        place = end
    return found


def _block(lines: list[str]) -> list[str]:
    """A formula on each line, or verbatim text; a line that is indented further goes on with the formula above it."""
    if not all(map(_FORMULA.search, lines)):
        return ["::", "", *(f"    {line}" for line in lines), ""]
    formulas: list[str] = []
    for line in lines:
        if line.startswith(" "):
            formulas[-1] += rf" \\ \qquad {latex_of(line)}"
        else:
            formulas.append(latex_of(line))
    return [part for formula in formulas for part in (".. math::", "", f"    {formula}", "")]


def _sentence(text: str) -> str:
    """Code between backticks as a role, the rest as it stands, with indices and exponents."""
    parts = re.split(r"`([^`]+)`", text)
    for place, part in enumerate(parts):
        if place % 2:
            code = re.sub(r"\s*\n\s*", " ", part)
            code = f":py:obj:`{code}`" if _NAME.fullmatch(code) else f"``{code}``"
            parts[place] = f"{_apart(parts[place - 1][-1:])}{code}{_apart(parts[place + 1][:1])}"
        else:
            parts[place] = _plain(part)
    return "".join(parts)


def _plain(text: str) -> str:
    text = re.sub(r"(?<!\w)\*(\w[^*]*)\*(?!\w)|([\\|*])", lambda at: at[0] if at[1] else rf"\{at[0]}", text)
    text = re.sub(r"(?<=\w)_(?=[\s,.;:)]|$)", r"\\_", text)  # name_ would be a link
    text = re.sub(r"(?<=[ \n])([A-Za-z])\. ", r"\1\\. ", text)  # "p. A user …" would be a numbered list
    text = _INDEX.sub(lambda at: rf"{at[1]}\ :sub:`{at[2] or at[3]}`\ ", text)
    return _EXPONENT.sub(lambda at: rf"\ :sup:`{next(filter(None, at.groups()))}`\ ", text)


def _apart(sign: str) -> str:
    """What must stand between a role and the sign beside it, if it is one that would join them: a `tau`-like letter."""
    return r"\ " if sign and (sign.isalnum() or sign in "@=+…←→↦≤≥·×") else ""


def _process(app: Sphinx, what: str, name: str, obj: object, options: Any, lines: list[str]) -> None:
    lines[:] = as_rst(lines)


def setup(app: Sphinx) -> dict[str, bool]:
    """Convert docstrings before napoleon looks for sections in them."""
    app.connect("autodoc-process-docstring", _process, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
