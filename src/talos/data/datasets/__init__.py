"""Named datasets, downloaded once and kept in a cache; and a generator of synthetic ones.

`available()` lists them, `info(name)` describes one, and `load(name)` returns its interactions as published. A dataset
of your own is a `DatasetInfo` with one or more `Download`s, and is accepted wherever a name is.
"""

from __future__ import annotations

from talos.data.catalogue import Counts, DatasetInfo, Download, available, info
from talos.data.datasets.cache import Fetched, cache_folder, fetch, is_cached, load
from talos.data.datasets.generated import PlantedTastes, synthetic, write_planted

__all__ = [
    "Counts",
    "DatasetInfo",
    "Download",
    "Fetched",
    "PlantedTastes",
    "available",
    "cache_folder",
    "fetch",
    "info",
    "is_cached",
    "load",
    "synthetic",
    "write_planted",
]
