"""One published number, one printed improvement, and how a block of text becomes a list of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from talos.errors import ArgumentError

__all__ = ["Figure", "Improvement", "cells"]


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One number of one table of the paper, as printed.

    Attributes:
        table: short name of the table, such as `overall` or `varying-k`.
        dataset: lower-case short name, such as `beauty`.
        backbone: `mf`, `lightgcn`, `xsimgcl`, or empty where none is involved.
        method: short name of the loss as in `talos.registry.names`; elsewhere what the row is about.
        metric: key of the metric, such as `recall@20`.
        value: the number; shares and ratios are fractions of 1.
        setting: what else distinguishes the entry, such as `n=8`.
        significant: starred in the paper (better than the best rival with p < 0.05).
        misprint: what is wrong with the number or its heading, if anything is.

    >>> Figure(table="overall", dataset="beauty", backbone="mf", method="sl", metric="recall@20", value=0.1403)
    Figure(table='overall', dataset='beauty', backbone='mf', method='sl', metric='recall@20', value=0.1403,
    setting='', significant=False, misprint=None)
    """

    table: str
    dataset: str
    backbone: str
    method: str
    metric: str
    value: float
    setting: str = ""
    significant: bool = False
    misprint: str | None = None


@dataclass(frozen=True, kw_only=True)
class Improvement:
    """One printed `Imp.%`: how much better Talos is than the best of its rivals in the same column.

    Attributes:
        table: as in `Figure`, and so are the next three.
        dataset: see `Figure`.
        backbone: see `Figure`.
        metric: see `Figure`.
        percent: the printed number, in percent.
        setting: see `Figure`; the setting of both sides.
        significant: starred in the paper.
        misprint: what is wrong with it, if anything is.

    >>> Improvement(table="overall", dataset="beauty", backbone="mf", metric="recall@20", percent=4.69).percent
    4.69
    """

    table: str
    dataset: str
    backbone: str
    metric: str
    percent: float
    setting: str = ""
    significant: bool = False
    misprint: str | None = None


def cells(block: str, columns: int) -> Iterator[tuple[list[str], list[str]]]:
    """The rows of a table written as text: its words before the last `columns`, and those.

    >>> list(cells("mf sl 0.1 -", columns=2))
    [(['mf', 'sl'], ['0.1', '-'])]
    """
    for line in block.strip().splitlines():
        words = line.split()
        if len(words) <= columns:
            raise ArgumentError(f"{line!r}", where="block", expected=f"a label and {columns} cells")
        yield words[:-columns], words[-columns:]


def pairs(first: Sequence[str], second: Sequence[str]) -> list[tuple[str, str]]:
    """Every one of the first with every one of the second, the second running fastest: a two-line heading.

    >>> pairs(["beauty", "games"], ["precision@20", "recall@20"])[1]
    ('beauty', 'recall@20')
    """
    return [(one, other) for one in first for other in second]
