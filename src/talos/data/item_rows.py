"""The items of rows, as CSR, without ids."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

__all__ = ["ItemRows", "Rows"]


class Rows:
    """Items of rows in CSR form: `indices[indptr[r]:indptr[r + 1]]` are those of row r."""

    indptr: NDArray[np.int64]  # (rows + 1,)
    indices: NDArray[Any]

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def num_users(self) -> int:
        """The number of rows, with items or not."""
        return len(self.indptr) - 1

    @cached_property
    def user_degrees(self) -> NDArray[np.int64]:
        """How many items each row has, (num_users,)."""
        return np.diff(self.indptr)

    def pairs_of(self, codes: NDArray[np.integer[Any]]) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """All items of some rows: for each, the position of its row in `codes`, and the item.

        >>> rows = ItemRows(np.array([0, 2, 3]), np.array([7, 8, 9]), num_items=10)
        >>> [column.tolist() for column in rows.pairs_of(np.array([1, 0]))]
        [[0, 1, 1], [9, 7, 8]]
        """
        counts = self.indptr[codes + 1] - self.indptr[codes]
        owner = np.repeat(np.arange(len(codes)), counts)
        shift = np.repeat(self.indptr[codes] - (np.cumsum(counts) - counts), counts)
        return owner, self.indices[np.arange(len(owner)) + shift]


@dataclass(frozen=True, eq=False)
class ItemRows(Rows):
    """The items of each of some rows: what a list is made from, or what it may not offer.

    >>> rows = ItemRows.of(np.array([1, 0, 1]), np.array([7, 8, 9]), num_rows=2, num_items=10)
    >>> [part.tolist() for part in rows.pairs_of(np.array([1]))]
    [[0, 0], [7, 9]]
    """

    indptr: NDArray[np.int64]
    indices: NDArray[np.int64]
    num_items: int

    @classmethod
    def of(
        cls,
        owner: NDArray[np.integer[Any]],
        items: NDArray[np.integer[Any]],
        *,
        num_rows: int,
        num_items: int,
    ) -> Self:
        """The rows of pairs (owner, item), which may be in any order."""
        order = np.argsort(owner, kind="stable")
        counts = np.bincount(owner, minlength=num_rows)
        return cls(np.concatenate([[0], np.cumsum(counts)]), np.asarray(items, np.int64)[order], num_items)

    def user_range(self, rows: range) -> Self:
        """Consecutive rows, as rows of their own."""
        ends = self.indptr[rows.start : rows.stop + 1]
        return type(self)(ends - ends[0], self.indices[ends[0] : ends[-1]], self.num_items)
