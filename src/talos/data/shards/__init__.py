"""Interactions larger than a machine: a folder in which consecutive users are files of their own.

`write_shards` makes it from a source of any size, `read_shards` reads all of it as an ordinary split, `read_share`
what one of several processes needs. The choice of train, validation and test does not depend on the shards.
"""

from __future__ import annotations

from talos.data.shards.columns import Columns
from talos.data.shards.index import ShardIndex, is_shards
from talos.data.shards.read import read_fit_shards, read_shards, read_share
from talos.data.shards.share import Share, SplitShare
from talos.data.shards.write import DEFAULT_ROWS, write_shards

__all__ = [
    "DEFAULT_ROWS",
    "Columns",
    "ShardIndex",
    "Share",
    "SplitShare",
    "is_shards",
    "read_fit_shards",
    "read_shards",
    "read_share",
    "write_shards",
]
