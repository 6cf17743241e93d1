"""Formulas of the site as MathML, by docutils' own converter: nothing to download, nothing to run in the browser."""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging

__all__ = ["latex_of", "setup"]

logger = logging.getLogger(__name__)

# Signs that docstrings use and the converter knows by their LaTeX names only.
_SIGNS = {
    "∈": r"\in ", "∉": r"\notin ", "≤": r"\le ", "≥": r"\ge ", "·": r"\cdot ", "×": r"\times ", "∂": r"\partial ",
    "Σ": r"\sum ", "Π": r"\prod ", "←": r"\leftarrow ", "→": r"\to ", "…": r"\dots ", "⟨": r"\langle ",
    "⟩": r"\rangle ", "⌈": r"\lceil ", "⌉": r"\rceil ", "²": "^2", "ᵀ": "^T", "Â": r"\hat{A}", "−": "-",
}  # fmt: skip
# A label before a formula or a remark after it, set apart by two or more blanks.
_PROSE = re.compile(r"\(?[A-Za-z]{2,}(?: [A-Za-z0-9]+)+\)?")
_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁽⁾⁻⁺ˡ", "0123456789()-+l")


def latex_of(formula: str) -> str:
    r"""LaTeX of a formula as docstrings write it, in plain text with Greek letters; two blanks set words apart.

    >>> latex_of("log Σ_{j∈G_u} σ(s_uj - β_u)^(1/τ)")
    '\\log  \\sum _{j\\in G_{u}} σ(s_{uj} - β_{u})^{1/τ}'
    """
    pieces = [piece for piece in re.split(r" {2,}", formula.strip()) if piece]
    return r"\quad ".join(
        rf"\text{{{piece}}}" if _PROSE.fullmatch(piece) else _latex(piece) for piece in pieces
    )


def _latex(formula: str) -> str:
    text = re.sub(r"[⁰¹³⁴⁵⁶⁷⁸⁹⁽⁾⁻⁺ˡ*]{2,}", lambda found: "^{" + found[0].translate(_RAISED) + "}", formula)
    text = re.sub(r"\b(log|max|min)(?=\b|_)", r"\\\1 ", text)
    text = re.sub(r"(?<![\\A-Za-z])([A-Za-z]{3,}(?: [A-Za-z]{3,})*)(?![A-Za-z])(?<!\\)", _word, text)
    text = re.sub(r"_(\w+)", r"_{\1}", text)
    text = re.sub(r"\^\(([^()]*)\)", r"^{\1}", text)
    for sign, name in _SIGNS.items():
        text = text.replace(sign, name)
    return text


def _word(found: re.Match[str]) -> str:
    return found[0] if found[0] in ("log", "max", "min") else rf"\text{{{found[0]}}}"


def _convert(node: nodes.Node, source: str, *, block: bool) -> str:
    try:
        return "".join(tex2mathml(source, as_block=block))
    except MathError as error:
        logger.warning("formula %r: %s", source, error, location=node)
        return ""


def _inline(translator: Any, node: nodes.math) -> None:
    translator.body.append(_convert(node, node.astext(), block=False))
    raise nodes.SkipNode


def _displayed(translator: Any, node: nodes.math_block) -> None:
    translator.body.append(f'<div class="formula">{_convert(node, node.astext(), block=True)}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer as `mathml`."""
    app.add_html_math_renderer("mathml", (_inline, None), (_displayed, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
