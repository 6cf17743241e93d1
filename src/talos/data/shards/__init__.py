"""Shards: a split larger than memory, in a folder with separate files for ranges of consecutive users.

`write_shards` makes the folder from a source of any size, and `read_shards` reads all of it as a `Split`;
`talos.distributed.share` reads one process's part of the split. The split does not depend on the number of shards.
"""

from __future__ import annotations

from talos.data.shards.read import (
    ShardIndex,
    read_fit_shards,
    read_shards,
)
from talos.data.shards.write import DEFAULT_ROWS, write_shards

__all__ = [
    "DEFAULT_ROWS",
    "ShardIndex",
    "read_fit_shards",
    "read_shards",
    "write_shards",
]
