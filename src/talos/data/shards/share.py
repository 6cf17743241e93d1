"""One process's part of a split: the interactions of its own users, and totals over all users."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from talos.data.arrays import Codes
from talos.data.interactions import Interactions
from talos.data.readers import polars_errors
from talos.data.shards.index import ShardIndex
from talos.errors import ArgumentError

__all__ = ["ShardColumns", "Share", "SplitShare"]

_ROWS = 1 << 20


@dataclass(frozen=True, kw_only=True)
class ShardColumns:
    """Reads columns of the users × items matrix, that is the interactions of all users with some items.

    Every shard is scanned, and only what is asked for is kept in memory.
    """

    index: ShardIndex
    part: str

    def of_items(self, items: range) -> tuple[NDArray[np.int64], Codes]:
        """All users × consecutive items as CSR: (num_users + 1,) row ends, and items counted from the first of them."""
        indptr = np.zeros(self.index.num_users + 1, np.int64)
        found: list[NDArray[np.int32]] = []
        inside = pl.col("item").is_between(items.start, items.stop - 1)
        for scan in self._scans():
            rows = scan.filter(inside).select("user", "item").collect()
            indptr[1:] += np.bincount(rows["user"].to_numpy(), minlength=self.index.num_users)
            found.append(rows["item"].to_numpy() - np.int32(items.start))
        return np.cumsum(indptr), np.concatenate(found)

    def user_degrees(self) -> NDArray[np.int64]:
        """Interactions of every user, (num_users,)."""
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


@dataclass(frozen=True, eq=False, kw_only=True)
class Share:
    """One part (train, validation or test) as one process has it: its own users' interactions, and totals over all.

    It stands in for `Interactions` in a training loop: sizes, `len`, `active_users`, `item_degrees` and the fingerprint
    are those of all users.

    Attributes:
        own: the interactions of this process's users, (own users × all items).
        users: which of all users these are.
        num_users: number of all users.
        total: interactions of all users.
        active_users: how many of all users have interactions.
        item_degrees: interactions of all users per item; None if not known.
        whole: the fingerprint of the interactions of all users.
        columns: reads the interactions of all users with some items; None if there are no shards to read them from.

    >>> data = Interactions.from_ids([1, 1, 2], [7, 8, 8])
    >>> share = Share.of(data, range(1, 2))
    >>> len(share.own), len(share), share.num_users, share.user_range(range(1, 2)).to_polars().rows()
    (1, 3, 2, [(2, 8)])
    """

    own: Interactions
    users: range
    num_users: int
    total: int
    active_users: int
    item_degrees: NDArray[np.int64] | None
    whole: str
    columns: ShardColumns | None = None

    @classmethod
    def of(cls, data: Interactions, users: range) -> Share:
        """The share of some users, from the interactions of all users."""
        return cls(
            own=data.user_range(users),
            users=users,
            num_users=data.num_users,
            total=len(data),
            active_users=data.active_users,
            item_degrees=data.item_degrees,
            whole=data.fingerprint(),
        )

    def __len__(self) -> int:
        return self.total

    @property
    def num_items(self) -> int:
        """Items in the vocabulary."""
        return self.own.num_items

    def user_range(self, users: range) -> Interactions:
        """`own`; `users` must be the users of this share."""
        if users != self.users:
            raise ArgumentError(
                f"users {users.start:,} to {users.stop:,}",
                where="users",
                expected=f"the users of this share, {self.users.start:,} to {self.users.stop:,}",
            )
        return self.own

    def fingerprint(self) -> str:
        """The fingerprint of the interactions of all users."""
        return self.whole


@dataclass(frozen=True, kw_only=True)
class SplitShare:
    """This process's part of a `Split`: a share of train, of validation (None if there is none) and of test."""

    train: Share
    valid: Share | None
    test: Share
