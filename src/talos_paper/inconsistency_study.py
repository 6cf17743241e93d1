"""Table 1 on a data set: the reading in use, and how far every other reading is from the printed shares."""

from __future__ import annotations

from typing import Any

from talos_paper import published
from talos_paper.data import PaperData
from talos_paper.inconsistency import (
    DEFAULT_READING,
    DEFAULT_SOURCE,
    READINGS,
    SOURCES,
    distance_to_paper,
    inconsistency,
    positives_per_user,
)

__all__ = ["measure"]


def measure(data: PaperData, *, pairs: int = 10_000, seed: int = 0) -> dict[str, Any]:
    """Shares by the default reading, and every reading with its distance from the paper where it has this set."""
    known = bool(published.figures(table="inconsistency", dataset=data.dataset))
    tried = []
    for source in SOURCES:
        positives = positives_per_user(data.split, source)
        for reading in READINGS:
            shares = inconsistency(positives, reading=reading, pairs=pairs, seed=seed)
            tried.append(
                {
                    "source": source,
                    "reading": reading,
                    "shares": {name: round(found["precision@20"], 4) for name, found in shares.items()},
                    "distance": round(distance_to_paper(shares, data.dataset), 4) if known else None,
                }
            )
    used = next(one for one in tried if (one["source"], one["reading"]) == (DEFAULT_SOURCE, DEFAULT_READING))
    return {"pairs": pairs, "seed": seed, "used": used, "tried": tried}
