"""Statistics of interactions: counts, density, degree quantiles, popularity skew, time span."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from talos.data.interactions import Interactions

__all__ = ["Description", "describe", "gini"]


class Description(dict[str, Any]):
    """What `Interactions.describe` returns: plain values by name, ready for JSON; `str()` is a table for people."""

    def rows(self) -> list[tuple[str, str]]:
        """Label and value of each line of a table."""
        per_user, per_item = (
            "  ".join(f"{name} {value:g}" for name, value in self[of].items())
            for of in ("per_user", "per_item")
        )
        first, last = self["first_timestamp"], self["last_timestamp"]
        lines = [
            ("users", f"{self['users']:,}"),
            ("items", f"{self['items']:,}"),
            ("interactions", f"{self['interactions']:,}"),
            ("density", f"{self['density']:.4%}"),
            ("interactions per user", per_user),
            ("interactions per item", per_item),
            ("popularity Gini", f"{self['popularity_gini']:.3f}"),
            ("share of the top 1% items", f"{self['top_1pct_share']:.1%}"),
            ("time span", "" if first is None else f"{_when(first)} to {_when(last)}"),
            ("duplicated pairs collapsed", self["duplicates"] and f"{self['duplicates']:,}"),
            ("bad rows skipped", self["bad_rows"] and f"{self['bad_rows']:,}"),
            *(("note", note) for note in self["notes"]),
        ]
        return [(label, text) for label, text in lines if text]

    def __str__(self) -> str:
        rows = self.rows()
        width = max(len(label) for label, _ in rows)
        return "\n".join(f"{label:<{width}}  {text}" for label, text in rows)


def describe(data: Interactions) -> Description:
    """Describe interactions; users and items without any do not count."""
    users = data.user_degrees[data.user_degrees > 0]
    items = np.sort(data.item_degrees[data.item_degrees > 0])
    cells = len(users) * len(items)
    stamps = data.timestamps if len(data) else None
    return Description(
        source=data.provenance.source,
        users=len(users),
        items=len(items),
        interactions=len(data),
        density=len(data) / cells if cells else 0.0,
        per_user=_quantiles(users),
        per_item=_quantiles(items),
        popularity_gini=gini(items),
        top_1pct_share=float(items[-max(1, len(items) // 100) :].sum() / max(1, len(data))),
        first_timestamp=None if stamps is None else stamps.min().item(),
        last_timestamp=None if stamps is None else stamps.max().item(),
        duplicates=data.provenance.duplicates,
        bad_rows=data.provenance.bad_rows,
        notes=list(data.provenance.notes),
    )


def gini(counts: NDArray[Any]) -> float:
    """Gini coefficient of non-negative counts: 0 if all are equal, close to 1 if one has nearly everything.

    >>> gini(np.array([1, 1, 1, 1]))
    0.0
    >>> gini(np.array([0, 0, 0, 8]))
    0.75
    """
    ascending, n = np.sort(counts), len(counts)
    weights = 2 * np.arange(1, n + 1) - n - 1
    return max(0.0, float((weights * ascending).sum()) / (n * float(ascending.sum()) or 1.0))


def _quantiles(degrees: NDArray[Any]) -> dict[str, float]:
    """Minimum, quartiles, maximum and mean; empty if there are no counts."""
    if len(degrees) == 0:
        return {}
    values = np.quantile(degrees, [0, 0.25, 0.5, 0.75, 1])
    quantiles = dict(zip(("min", "q1", "median", "q3", "max"), map(float, values), strict=True))
    return {**quantiles, "mean": round(float(degrees.mean()), 2)}


def _when(timestamp: float) -> str:
    """A date if the number can be seconds, milliseconds or microseconds since 1970, else the number itself."""
    for scale in (1, 1000, 1_000_000):
        seconds = timestamp / scale
        if 0 <= seconds < 4_102_444_800:  # before the year 2100
            return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")
    return f"{timestamp:g}"
