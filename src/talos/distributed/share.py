"""A split that is divided among processes: each has the interactions of its own users, from a folder of shards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from talos.checks import require
from talos.data.arrays import Codes
from talos.data.interactions import Interactions
from talos.data.shards import ShardIndex

__all__ = ["Share", "SplitShare", "read_share"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Share:
    """One part (train, validation or test) as one process has it: its own users' interactions, and totals over all.

    It stands in for `Interactions` in a training loop: sizes, `len`, `active_users`, degrees and the fingerprint are
    those of all users.

    Attributes:
        index: of the folder, from which other users' interactions can be read.
        part: `train`, `valid` or `test`.
        users: which of all users are this process's.
        own: their interactions, (own users × all items).
    """

    index: ShardIndex
    part: str
    users: range
    own: Interactions

    def __len__(self) -> int:
        return int(self.index.parts[self.part]["interactions"])

    @property
    def num_users(self) -> int:
        """Users of all processes."""
        return self.index.num_users

    @property
    def num_items(self) -> int:
        """Items in the vocabulary."""
        return self.index.num_items

    @property
    def active_users(self) -> int:
        """How many of all users have interactions."""
        return int(self.index.parts[self.part]["users"])

    @cached_property
    def item_degrees(self) -> NDArray[np.int64]:
        """Interactions of all users per item, (num_items,)."""
        return self.index.table("item")[f"{self.part}_interactions"].to_numpy()

    @property
    def user_degrees(self) -> NDArray[np.int64]:
        """Interactions of every user, (num_users,); read from the folder each time."""
        return self.index.table("user")[f"{self.part}_interactions"].to_numpy()

    def user_range(self, users: range) -> Interactions:
        """`own`; `users` must be the users of this share."""
        require(
            users == self.users,
            f"users {users.start:,} to {users.stop:,}",
            where="users",
            expected=f"the users of this share, {self.users.start:,} to {self.users.stop:,}",
        )
        return self.own

    def of_items(self, items: range) -> tuple[NDArray[np.int64], Codes]:
        """All users × consecutive items as CSR: (num_users + 1,) row ends, and items counted from the first of them.

        Every shard is read from the folder, and only what is asked for is kept in memory.
        """
        indptr, rows = self.index.matrix(self.part, range(self.num_users), items)
        return indptr, rows["item"].to_numpy() - np.int32(items.start)

    def fingerprint(self) -> str:
        """The fingerprint of the interactions of all users."""
        return str(self.index.parts[self.part]["fingerprint"])


@dataclass(frozen=True, kw_only=True)
class SplitShare:
    """This process's part of a `Split`: a share of train, of validation (None if there is none) and of test."""

    train: Share
    valid: Share | None = None
    test: Share


def read_share(folder: str | Path, users_of: Callable[[int], range]) -> SplitShare:
    """Read the interactions of consecutive users, without timestamps and ratings.

    Args:
        folder: the folder of shards.
        users_of: called with the number of all users, returns the positions of those to read.

    >>> import tempfile
    >>> from talos.data.shards import write_shards
    >>> data = Interactions.from_ids([1] * 10 + [2] * 5, [*range(10), *range(5)])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = write_shards(data, Path(folder, "out"), shards=1)
    ...     share = read_share(Path(folder, "out"), lambda num_users: range(1, num_users))
    >>> share.train.own, len(share.train)
    (Interactions(1 users × 10 items, 4 pairs), 11)
    """
    index = ShardIndex.read(folder)
    users, expected = users_of(index.num_users), f"within {index.num_users:,} users"
    require(0 <= users.start <= users.stop <= index.num_users, f"{users}", where="users", expected=expected)
    parts = index.interactions(index.parts, users)
    return SplitShare(
        **{name: Share(index=index, part=name, users=users, own=own) for name, own in parts.items()}
    )
