"""Finding published numbers by what they are about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from talos.errors import ArgumentError
from talos_paper.published import overall, studies
from talos_paper.published.entries import Figure, Improvement

__all__ = ["FIGURES", "IMPROVEMENTS", "figures", "mended", "value"]

FIGURES: tuple[Figure, ...] = (*overall.FIGURES, *studies.FIGURES)
"""Every number of every table of results, as printed."""

IMPROVEMENTS: tuple[Improvement, ...] = (*overall.IMPROVEMENTS, *studies.IMPROVEMENTS)
"""Every printed `Imp.%`."""


def figures(
    *,
    table: str | None = None,
    dataset: str | None = None,
    backbone: str | None = None,
    method: str | None = None,
    metric: str | None = None,
    setting: str | None = None,
) -> tuple[Figure, ...]:
    """The published numbers with these keys; a key that is not given may be anything.

    >>> [entry.method for entry in figures(table="ablation", dataset="beauty", metric="recall@20")]
    ['talos w/o quantile', 'talos w/o outside', 'talos w/o denominator', 'talos']
    """
    asked: Mapping[str, str | None] = {
        "table": table,
        "dataset": dataset,
        "backbone": backbone,
        "method": method,
        "metric": metric,
        "setting": setting,
    }
    wanted = {key: name for key, name in asked.items() if name is not None}
    return tuple(
        entry for entry in FIGURES if all(getattr(entry, key) == name for key, name in wanted.items())
    )


def value(
    *,
    table: str | None = None,
    dataset: str | None = None,
    backbone: str | None = None,
    method: str | None = None,
    metric: str | None = None,
    setting: str | None = None,
) -> float | None:
    """The one published number with these keys, or None where the paper has none.

    Raises:
        ArgumentError: more than one number fits; the message says which keys would tell them apart.

    >>> value(table="overall", dataset="beauty", backbone="mf", method="talos", metric="recall@20")
    0.1499
    >>> value(table="overall", dataset="movielens", metric="recall@20") is None
    True
    >>> value(table="quantile-error", dataset="beauty")
    Traceback (most recent call last):
    talos.errors.ArgumentError: value: 2 published numbers fit; expected one (they differ in method)
    """
    found = figures(
        table=table, dataset=dataset, backbone=backbone, method=method, metric=metric, setting=setting
    )
    if len(found) > 1:
        keys = ("table", "dataset", "backbone", "method", "metric", "setting")
        differ = [key for key in keys if len({getattr(entry, key) for entry in found}) > 1]
        raise ArgumentError(
            f"{len(found)} published numbers fit",
            where="value",
            expected="one",
            hint="they differ in " + ", ".join(differ),
        )
    return found[0].value if found else None


_EXCHANGED = {"games": "gowalla", "gowalla": "games"}
_MOVED = {"recall@20": "recall@80", "recall@50": "recall@20", "recall@80": "recall@50"}

Entry = TypeVar("Entry", bound=Figure | Improvement)


def mended(entry: Entry) -> Entry:
    """The entry under the heading where it belongs, where that is known for sure; else the entry as it is.

    Known are two misprints: the training times have their columns Games and Gowalla exchanged, and the
    improvements of the table of varying K on Beauty stand under each other's headings.

    >>> (time,) = figures(table="efficiency", dataset="games", method="talos")
    >>> time.value, mended(time).dataset, mended(time).misprint
    (5.37, 'gowalla', None)
    """
    if entry.misprint is None:
        return entry
    if isinstance(entry, Figure) and entry.table == "efficiency":
        return replace(entry, dataset=_EXCHANGED[entry.dataset], misprint=None)
    if isinstance(entry, Improvement) and entry.table == "varying-k":
        return replace(entry, metric=_MOVED[entry.metric], misprint=None)
    return entry
