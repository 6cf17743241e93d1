"""The train interactions as tensors, and where a sample of items meets them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from talos.data.interactions import Interactions
from talos.data.vocabulary import Vocabulary

__all__ = ["TrainIndex", "meetings"]


@dataclass(frozen=True, eq=False, kw_only=True)
class TrainIndex:
    """The train interactions as tensors: CSR, ascending items within each user.

    Attributes:
        indptr: (num_users + 1,), int64.
        indices: (num_edges,), int64: `indices[indptr[u]:indptr[u + 1]]` are the items of user u, ascending.
        num_users: users in the vocabulary.
        num_items: items in the vocabulary.
        user_ids: the caller's ids, for messages; None if unknown.

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

    @classmethod
    def from_interactions(cls, train: Interactions, device: torch.device | str = "cpu") -> TrainIndex:
        """The index of these interactions on a device."""
        return cls(
            indptr=torch.tensor(train.indptr, dtype=torch.int64, device=device),
            indices=torch.tensor(train.indices, dtype=torch.int64, device=device),
            num_users=train.num_users,
            num_items=train.num_items,
            user_ids=train.user_ids,
        )

    @cached_property
    def degrees(self) -> Tensor:
        """Interactions per user, (num_users,)."""
        return self.indptr.diff()

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.indptr.device

    def pairs_of(self, users: Tensor) -> tuple[Tensor, Tensor]:
        """All interactions of some users: for each, its user's place in `users`, and the item.

        Places ascend, and items within each; a user who occurs twice has all pairs twice.
        """
        degrees = self.degrees[users]
        owner = torch.arange(len(users), device=self.device).repeat_interleave(degrees)
        shift = self.indptr[users] - (degrees.cumsum(0) - degrees)
        return owner, self.indices[torch.arange(len(owner), device=self.device) + shift[owner]]

    def name_of(self, user: int) -> str:
        """A user as messages call them: by id where it is known."""
        return f"user {user}" if self.user_ids is None else f"user {self.user_ids.decode([user])[0]!r}"


def meetings(owner: Tensor, items: Tensor, drawn: Tensor) -> tuple[Tensor, Tensor]:
    """Where drawn items (n,) meet the items (P,) of their owners (P,): owners and places in `drawn`, (m,) each.

    In the order of `owner`; an item that was drawn twice is met twice.

    >>> meetings(torch.tensor([0, 1]), torch.tensor([7, 8]), torch.tensor([8, 9, 8]))
    (tensor([1, 1]), tensor([0, 2]))
    """
    ascending, place = drawn.sort(stable=True)
    low = torch.searchsorted(ascending, items)
    times = torch.searchsorted(ascending, items, right=True) - low
    before = (times.cumsum(0) - times).repeat_interleave(times)
    within = torch.arange(len(before), device=owner.device) - before
    return owner.repeat_interleave(times), place[low.repeat_interleave(times) + within]
