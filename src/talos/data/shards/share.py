"""What one of several processes has of interactions that none of them has all of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from talos.data.interactions import Interactions
from talos.data.shards.columns import Columns
from talos.errors import ArgumentError

__all__ = ["Share", "SplitShare"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Share:
    """The interactions of some consecutive users, and what is known about the whole that they are of.

    Where a training loop asks about the whole it answers as `Interactions` do: sizes, `len`, `active_users`,
    `item_degrees` and the fingerprint are those of all users.

    Attributes:
        own: (users here × all items).
        users: which of all users these are.
        num_users: of all.
        total: interactions of all users.
        active_users: how many of all users have any.
        item_degrees: interactions per item, of all users; None where nobody counted them.
        whole: the fingerprint of all interactions.
        columns: where the interactions of all users with some items can be read, if they can.

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
    columns: Columns | None = None

    @classmethod
    def of(cls, data: Interactions, users: range) -> Share:
        """A share of interactions that are all here."""
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
        """Number of items in the vocabulary."""
        return self.own.num_items

    def user_range(self, users: range) -> Interactions:
        """The interactions of the users that are here; others cannot be had."""
        if users != self.users:
            raise ArgumentError(
                f"users {users.start:,} to {users.stop:,}",
                where="users",
                expected=f"those that are here, {self.users.start:,} to {self.users.stop:,}",
            )
        return self.own

    def fingerprint(self) -> str:
        """That of all interactions, as `Interactions.fingerprint` would give it."""
        return self.whole


@dataclass(frozen=True, kw_only=True)
class SplitShare:
    """One process's share of train, validation (maybe none) and test."""

    train: Share
    valid: Share | None
    test: Share
