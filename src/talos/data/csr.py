"""Train interactions as tensors in CSR form, and which drawn items are among a user's own."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from talos.data.interactions import Interactions
from talos.data.vocabulary import Vocabulary

__all__ = ["TrainIndex", "meetings"]


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
    >>> [part.tolist() for part in index.pairs_of(torch.tensor([1, 0]))]
    [[0, 1, 1], [1, 0, 1]]
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

    def pairs_of(self, users: Tensor) -> tuple[Tensor, Tensor]:
        """All interactions of some users: for each, the position of its user in `users`, and the item.

        Sorted by position and then by item; a user who occurs twice in `users` has all pairs twice.
        """
        owner, edges = self._edges_of(users)
        return owner, self.indices[edges]

    def weights_of(self, users: Tensor) -> Tensor | None:
        """The weights of the interactions that `pairs_of` returns, in the same order; None if all count the same."""
        return None if self.weights is None else self.weights[self._edges_of(users)[1]]

    def _edges_of(self, users: Tensor) -> tuple[Tensor, Tensor]:
        degrees = self.degrees[users]
        owner = torch.arange(len(users), device=self.device).repeat_interleave(degrees)
        shift = self.indptr[users] - (degrees.cumsum(0) - degrees)
        return owner, torch.arange(len(owner), device=self.device) + shift[owner]

    def name_of(self, user: int) -> str:
        """A user in the words of an error message: by id if ids are known, else by code."""
        return f"user {user}" if self.user_ids is None else f"user {self.user_ids.decode([user])[0]!r}"


def meetings(owner: Tensor, items: Tensor, drawn: Tensor) -> tuple[Tensor, Tensor]:
    """Find pairs whose item was drawn.

    Args:
        owner: (P,), the owner of each pair.
        items: (P,), the item of each pair.
        drawn: (n,), items in any order, with repeats.

    Returns:
        (m,) owners and (m,) positions in `drawn`, one for each time that a pair's item was drawn, in the order of
        the pairs.

    >>> meetings(torch.tensor([0, 1]), torch.tensor([7, 8]), torch.tensor([8, 9, 8]))
    (tensor([1, 1]), tensor([0, 2]))
    """
    ascending, place = drawn.sort(stable=True)
    low = torch.searchsorted(ascending, items)
    times = torch.searchsorted(ascending, items, right=True) - low
    before = (times.cumsum(0) - times).repeat_interleave(times)
    within = torch.arange(len(before), device=owner.device) - before
    return owner.repeat_interleave(times), place[low.repeat_interleave(times) + within]
