"""Published results on the public splits of Gowalla and Yelp2018, with where each is from.

The splits are those that NGCF and LightGCN published. Metrics: train masked, mean over users with test items.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LITERATURE", "SPLITS", "PublishedResult"]

SPLITS: dict[str, str] = {"gowalla-lightgcn": "Gowalla", "yelp2018-lightgcn": "Yelp2018"}
"""Folder of a split → name in tables."""


@dataclass(frozen=True)
class PublishedResult:
    """One method: Recall@20 and NDCG@20 on each split, where they are printed, and what the settings were chosen on.

    `chosen_on` is `test` where the authors' public code selects on the test part, and empty where it is not known.
    """

    method: str
    dim: str
    results: dict[str, tuple[float, float]]
    source: str
    chosen_on: str = ""


def _both(gowalla: tuple[float, float], yelp: tuple[float, float]) -> dict[str, tuple[float, float]]:
    return dict(zip(SPLITS, (gowalla, yelp), strict=True))


LITERATURE: tuple[PublishedResult, ...] = (
    PublishedResult("ChebyCF (2025)", "–", {"gowalla-lightgcn": (0.1941, 0.1616)}, "its README"),
    PublishedResult("BSPM (2023)", "–", {"gowalla-lightgcn": (0.1920, 0.1597)}, "reported"),
    PublishedResult(
        "LightGCN + BSL", "64", _both((0.1892, 0.1590), (0.0744, 0.0617)), "the authors' logs", "test"
    ),
    PublishedResult("MF + BSL", "64", _both((0.1882, 0.1584), (0.0725, 0.0599)), "the authors' logs", "test"),
    PublishedResult("SimpleX", "", _both((0.1872, 0.1557), (0.0701, 0.0575)), "BARS"),
    PublishedResult("UltraGCN", "", _both((0.1862, 0.1580), (0.0683, 0.0561)), "its README"),
    PublishedResult("GF-CF", "–", _both((0.1849, 0.1518), (0.0697, 0.0571)), "BARS"),
    PublishedResult("LightGCN", "", _both((0.1820, 0.1547), (0.0653, 0.0532)), "BARS"),
    PublishedResult("EASE", "–", _both((0.1765, 0.1467), (0.0657, 0.0552)), "BARS"),
    PublishedResult(
        "MF + SL", "64", _both((0.1759, 0.1395), (0.0721, 0.0592)), "the BSL authors' logs", "test"
    ),
)
