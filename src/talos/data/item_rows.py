"""The items of rows, as CSR, without ids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["ItemRows", "pairs_of_rows"]

_Item = TypeVar("_Item", bound=np.integer[Any])


def pairs_of_rows(
    indptr: NDArray[np.int64], items: NDArray[_Item], codes: NDArray[np.integer[Any]]
) -> tuple[NDArray[np.int64], NDArray[_Item]]:
    """All items of some rows of a CSR matrix: for each, the position of its row in `codes`, and the item.

    >>> [column.tolist() for column in pairs_of_rows(np.array([0, 2, 3]), np.array([7, 8, 9]), np.array([1, 0]))]
    [[0, 1, 1], [9, 7, 8]]
    """
    counts = indptr[codes + 1] - indptr[codes]
    owner = np.repeat(np.arange(len(codes)), counts)
    shift = np.repeat(indptr[codes] - (np.cumsum(counts) - counts), counts)
    return owner, items[np.arange(len(owner)) + shift]


@dataclass(frozen=True, eq=False)
class ItemRows:
    """The items of each of some rows, as CSR: what a list is made from, or what it may not offer.

    >>> rows = ItemRows.of(np.array([1, 0, 1]), np.array([7, 8, 9]), num_rows=2, num_items=10)
    >>> [part.tolist() for part in rows.pairs_of(np.array([1]))]
    [[0, 0], [7, 9]]
    """

    indptr: NDArray[np.int64]  # (rows + 1,)
    items: NDArray[np.int64]
    num_items: int

    @classmethod
    def of(
        cls,
        owner: NDArray[np.integer[Any]],
        items: NDArray[np.integer[Any]],
        *,
        num_rows: int,
        num_items: int,
    ) -> ItemRows:
        """The rows of pairs (owner, item), which may be in any order."""
        order = np.argsort(owner, kind="stable")
        counts = np.bincount(owner, minlength=num_rows)
        return cls(np.concatenate([[0], np.cumsum(counts)]), np.asarray(items, np.int64)[order], num_items)

    @property
    def num_users(self) -> int:
        """The number of rows."""
        return len(self.indptr) - 1

    @property
    def user_degrees(self) -> NDArray[np.int64]:
        """How many items each row has."""
        return np.diff(self.indptr)

    def user_range(self, rows: range) -> ItemRows:
        """Consecutive rows, as rows of their own."""
        ends = self.indptr[rows.start : rows.stop + 1]
        return ItemRows(ends - ends[0], self.items[ends[0] : ends[-1]], self.num_items)

    def pairs_of(self, codes: NDArray[np.integer[Any]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """All items of some rows: for each, the position of its row in `codes`, and the item."""
        return pairs_of_rows(self.indptr, self.items, codes)
