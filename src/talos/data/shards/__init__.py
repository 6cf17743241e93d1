"""Shards: a split larger than memory, in a folder with separate files for ranges of consecutive users.

`write_shards` makes the folder from a source of any size, `read_shards` reads all of it as a `Split`, and `read_share`
reads one process's part of the split. The split does not depend on the number of shards.
"""

from __future__ import annotations

from talos.data.shards.read import (
    ShardIndex,
    Share,
    SplitShare,
    read_fit_shards,
    read_shards,
    read_share,
)
from talos.data.shards.write import DEFAULT_ROWS, write_shards

__all__ = [
    "DEFAULT_ROWS",
    "ShardIndex",
    "Share",
    "SplitShare",
    "read_fit_shards",
    "read_shards",
    "read_share",
    "write_shards",
]
