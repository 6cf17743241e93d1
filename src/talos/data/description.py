"""What can be said of interactions in a few numbers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Description", "gini", "quantiles_of"]


@dataclass(frozen=True, kw_only=True)
class Description:
    """What `Interactions.describe` found; `as_dict` for JSON, `str` for people."""

    source: str
    users: int
    items: int
    interactions: int
    density: float
    per_user: dict[str, float]
    per_item: dict[str, float]
    popularity_gini: float
    top_1pct_share: float
    first_timestamp: float | None
    last_timestamp: float | None
    duplicates: int
    bad_rows: int
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in vars(self).items()}

    def rows(self) -> list[tuple[str, str]]:
        """Label and text of each line, for a table."""

        def quantiles(of: dict[str, float]) -> str:
            return "  ".join(f"{name} {value:g}" for name, value in of.items())

        lines = [
            ("users", f"{self.users:,}"),
            ("items", f"{self.items:,}"),
            ("interactions", f"{self.interactions:,}"),
            ("density", f"{self.density:.4%}"),
            ("interactions per user", quantiles(self.per_user)),
            ("interactions per item", quantiles(self.per_item)),
            ("popularity Gini", f"{self.popularity_gini:.3f}"),
            ("share of the top 1% items", f"{self.top_1pct_share:.1%}"),
        ]
        if self.first_timestamp is not None and self.last_timestamp is not None:
            lines.append(("time span", f"{_when(self.first_timestamp)} to {_when(self.last_timestamp)}"))
        if self.duplicates:
            lines.append(("duplicated pairs collapsed", f"{self.duplicates:,}"))
        if self.bad_rows:
            lines.append(("bad rows skipped", f"{self.bad_rows:,}"))
        return lines + [("note", note) for note in self.notes]

    def __str__(self) -> str:
        rows = self.rows()
        width = max(len(label) for label, _ in rows)
        return "\n".join(f"{label:<{width}}  {text}" for label, text in rows)


def gini(counts: NDArray[Any]) -> float:
    """Gini coefficient of non-negative counts: 0 if all are equal, towards 1 if one has everything.

    >>> gini(np.array([1, 1, 1, 1]))
    0.0
    >>> gini(np.array([0, 0, 0, 8]))
    0.75
    """
    ascending = np.sort(counts)
    total = float(ascending.sum())
    if total == 0:
        return 0.0
    n = len(ascending)
    weights = 2 * np.arange(1, n + 1) - n - 1
    return max(0.0, float((weights * ascending).sum() / (n * total)))


def quantiles_of(degrees: NDArray[Any]) -> dict[str, float]:
    """Smallest, quartiles, largest and mean of some counts; empty for none."""
    if len(degrees) == 0:
        return {}
    values = np.quantile(degrees, [0, 0.25, 0.5, 0.75, 1])
    quantiles = dict(zip(("min", "q1", "median", "q3", "max"), map(float, values), strict=True))
    return {**quantiles, "mean": round(float(degrees.mean()), 2)}


def _when(timestamp: float) -> str:
    """A date where the number can be one (seconds or milliseconds since 1970), else the number itself."""
    for scale in (1, 1000, 1_000_000):
        seconds = timestamp / scale
        if 0 <= seconds < 4_102_444_800:  # before the year 2100
            return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")
    return f"{timestamp:g}"
