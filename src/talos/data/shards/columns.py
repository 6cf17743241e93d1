"""The interactions of some items with all users, read from the shards of all users."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from talos.data.arrays import Codes
from talos.data.readers import polars_errors
from talos.data.shards.index import ShardIndex

__all__ = ["Columns"]

_ROWS = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Columns:
    """A part of a folder of shards, by item: every shard is looked through, and what is not wanted is not kept."""

    index: ShardIndex
    part: str

    def of_items(self, items: range) -> tuple[NDArray[np.int64], Codes]:
        """All users × consecutive items as CSR: row ends, and item positions that count from the first of them."""
        indptr = np.zeros(self.index.num_users + 1, np.int64)
        found: list[NDArray[np.int32]] = []
        inside = pl.col("item").is_between(items.start, items.stop - 1)
        for scan in self._scans():
            rows = scan.filter(inside).select("user", "item").collect()
            indptr[1:] += np.bincount(rows["user"].to_numpy(), minlength=self.index.num_users)
            found.append(rows["item"].to_numpy() - np.int32(items.start))
        return np.cumsum(indptr), np.concatenate(found)

    def user_degrees(self) -> NDArray[np.int64]:
        """Interactions of each of all users."""
        degrees = np.zeros(self.index.num_users, np.int64)
        for scan in self._scans():
            for block in scan.select("user").collect_batches(chunk_size=_ROWS):
                users = block["user"].to_numpy()
                if len(users):
                    counts = np.bincount(users - users[0])
                    degrees[users[0] : users[0] + len(counts)] += counts
        return degrees

    def _scans(self) -> list[pl.LazyFrame]:
        scans = []
        for shard in self.index.shards:
            path = self.index.check(f"{shard.folder}/{self.part}.parquet", shard.checksums[self.part])
            with polars_errors(str(path)):
                scans.append(pl.scan_parquet(path, glob=False, hive_partitioning=False))
        return scans
