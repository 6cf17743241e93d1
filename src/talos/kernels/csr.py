"""Interactions as tensors in CSR form, a mini-batch of query rows, and which drawn items are a row's own."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from talos.data.interactions import Interactions
from talos.data.vocabulary import Vocabulary

__all__ = ["CSR", "Batch", "TrainIndex", "meetings"]


class CSR(NamedTuple):
    """Items of consecutive rows: `items[start[r]:start[r + 1]]` are those of row r.

    >>> csr = CSR.of(torch.tensor([0, 2, 3]), torch.tensor([4, 7, 5]))
    >>> csr.rows, csr.within(5, 8).items, csr.of_rows(slice(1, 2)).items
    (tensor([0, 0, 1]), tensor([2, 0]), tensor([5]))
    """

    start: Tensor  # (R + 1,)
    items: Tensor  # (P,)
    rows: Tensor  # (P,), the row of each item

    @classmethod
    def of(cls, start: Tensor, items: Tensor) -> CSR:
        """From offsets and items alone."""
        numbers = torch.arange(len(start) - 1, device=start.device)
        return cls(start, items, numbers.repeat_interleave(start.diff()))

    @classmethod
    def by_row(cls, rows: Tensor, items: Tensor, num_rows: int) -> CSR:
        """From the rows of the items, ascending."""
        counts = torch.bincount(rows, minlength=num_rows)
        return cls(torch.cat([counts.new_zeros(1), counts.cumsum(0)]), items, rows)

    @property
    def counts(self) -> Tensor:
        """How many items each row has, (R,)."""
        return self.start.diff()

    def entries(self, rows: slice) -> slice:
        """Where the items of some consecutive rows are."""
        return slice(int(self.start[rows.start]), int(self.start[rows.stop]))

    def of_rows(self, rows: slice) -> CSR:
        """The items of some consecutive rows, which are counted from the first of them."""
        start, own = self.start[rows.start : rows.stop + 1], self.entries(rows)
        return CSR(start - start[0], self.items[own], self.rows[own] - rows.start)

    def within(self, low: int, high: int) -> CSR:
        """The items from `low` to below `high`, counted from `low`."""
        kept = (self.items >= low) & (self.items < high)
        return CSR.by_row(self.rows[kept], self.items[kept] - low, len(self.start) - 1)


@dataclass(frozen=True, eq=False, kw_only=True)
class Batch:
    """A mini-batch of R query rows: users, or positions in users' histories.

    Attributes:
        users: (R,), the user of each row, among those that this process trains.
        positives: the items that each row should rank first.
        weights: (P,), the weight of each positive in the loss of the batch.
        excluded: the items that are no negatives of a row; None for its positives.
        history: (R, L), the items before each row, the latest last, padded with -1 at the front; None unless the
            backbone asks for it.
        distinct: whether no user has two rows.
        first: how many rows of the batch belong to processes of lower rank.
        total: rows of the batch in all processes.
    """

    users: Tensor
    positives: CSR
    weights: Tensor
    excluded: CSR | None = None
    history: Tensor | None = None
    distinct: bool = True
    first: int = 0
    total: int = 0


@dataclass(frozen=True, eq=False, kw_only=True)
class TrainIndex:
    """Train interactions as tensors in CSR form.

    Attributes:
        indptr: (num_users + 1,), int64.
        indices: (num_edges,), int64: `indices[indptr[u]:indptr[u + 1]]` are the items of user u, ascending.
        num_users: users in the vocabulary.
        num_items: items in the vocabulary.
        user_ids: the caller's ids for error messages, or None.
        weights: (num_edges,), how much each interaction counts, or None if all count the same.

    >>> train = Interactions.from_ids(["a", "a", "b"], ["x", "y", "y"])
    >>> index = TrainIndex.from_interactions(train)
    >>> found, _ = index.csr_of(torch.tensor([1, 0]))
    >>> found.rows, found.items
    (tensor([0, 1, 1]), tensor([1, 0, 1]))
    """

    indptr: Tensor
    indices: Tensor
    num_users: int
    num_items: int
    user_ids: Vocabulary | None = None
    weights: Tensor | None = None

    @classmethod
    def from_interactions(
        cls,
        train: Interactions,
        device: torch.device | str = "cpu",
        *,
        weights: NDArray[np.float32] | None = None,
    ) -> TrainIndex:
        """Copy interactions, and their weights if there are any, to a device."""
        return cls(
            indptr=torch.tensor(train.indptr, dtype=torch.int64, device=device),
            indices=torch.tensor(train.indices, dtype=torch.int64, device=device),
            num_users=train.num_users,
            num_items=train.num_items,
            user_ids=train.user_ids,
            weights=None if weights is None else torch.tensor(weights, device=device),
        )

    @cached_property
    def degrees(self) -> Tensor:
        """Interactions per user, (num_users,)."""
        return self.indptr.diff()

    @property
    def device(self) -> torch.device:
        """The device of the tensors."""
        return self.indptr.device

    def csr_of(self, users: Tensor) -> tuple[CSR, Tensor]:
        """The items of some users as CSR, and the position of each among all interactions.

        A user who occurs twice in `users` has two rows.
        """
        degrees = self.degrees[users]
        start = torch.cat([degrees.new_zeros(1), degrees.cumsum(0)])
        rows = torch.arange(len(users), device=self.device).repeat_interleave(degrees)
        edges = torch.arange(len(rows), device=self.device) + (self.indptr[users] - start[:-1])[rows]
        return CSR(start, self.indices[edges], rows), edges


def meetings(rows: Tensor, items: Tensor, drawn: Tensor) -> tuple[Tensor, Tensor]:
    """Find pairs of a row and an item whose item was drawn.

    Args:
        rows: (P,), the row of each pair.
        items: (P,), its item.
        drawn: (n,), items in any order, with repeats.

    Returns:
        (m,) rows and (m,) positions in `drawn`, one for each time that a pair's item was drawn, in the order of the
        pairs.

    >>> meetings(torch.tensor([0, 1]), torch.tensor([7, 8]), torch.tensor([8, 9, 8]))
    (tensor([1, 1]), tensor([0, 2]))
    """
    ascending, position = drawn.sort(stable=True)
    low = torch.searchsorted(ascending, items)
    times = torch.searchsorted(ascending, items, right=True) - low
    before = (times.cumsum(0) - times).repeat_interleave(times)
    within = torch.arange(len(before), device=rows.device) - before
    return rows.repeat_interleave(times), position[low.repeat_interleave(times) + within]
