"""Named datasets: where from, checksum, licence, cache; and a generator of made-up ones.

`load` gives a dataset as published, `info` how the paper cleaned it. A dataset of your own is a `DatasetInfo`
with one `Download` or more, and works wherever a name does.
"""

from __future__ import annotations

from talos.data.datasets.cache import Fetched, cache_folder, fetch, is_cached, load
from talos.data.datasets.catalogue import Counts, DatasetInfo, Download, available, info
from talos.data.datasets.synthetic import synthetic

__all__ = [
    "Counts",
    "DatasetInfo",
    "Download",
    "Fetched",
    "available",
    "cache_folder",
    "fetch",
    "info",
    "is_cached",
    "load",
    "synthetic",
]
