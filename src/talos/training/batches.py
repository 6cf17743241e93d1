"""Which users or positives make up each step: a new order every epoch, drawn from the seed only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

__all__ = ["Batch", "BatchOptions", "BatchShare", "Batches", "EpochOrder", "generator_for"]


def generator_for(seed: int, *path: int) -> torch.Generator:
    """A random generator for one purpose, such as one pass of one epoch; the same path gives the same numbers.

    >>> torch.rand(1, generator=generator_for(0, 3)) == torch.rand(1, generator=generator_for(0, 3))
    tensor([True])
    """
    state = np.random.SeedSequence([seed, *path]).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state) & (2**63 - 1))


@dataclass(frozen=True, eq=False, kw_only=True)
class BatchOptions:
    """How batches are made."""

    kind: Literal["users", "positives"]  # what the members of a batch are
    size: int
    only_users: Tensor | None = None  # train on these users only; on all of them, if None
    reduction: Literal["positives", "users"] = "positives"  # what the loss of a batch is the mean over
    user_power: float = 1.0  # a user with n positives weighs n^p in it, if members are users


@dataclass(frozen=True, kw_only=True)
class BatchShare:
    """The share of one process in a batch that several processes work on; its members are consecutive."""

    rank: int
    before: int  # how many members of the whole batch come before this process's
    total: int  # members of the whole batch
    weight: float  # of the mean over this process's members in the mean over all members


@dataclass(frozen=True, eq=False)
class Batch:
    """The members of one step, ascending: users, or positions of positives in the index's edges."""

    members: Tensor
    share: BatchShare | None = None  # None where `members` is the whole batch


@dataclass(frozen=True, eq=False)
class EpochOrder:
    """The order of one epoch: positions in the population; step s takes the s-th `size` of them."""

    positions: Tensor


class Batches:
    """Batches of users (those with interactions) or of positives (positions in the index's edges).

    Args:
        degrees: interactions of each user.
        options: what the batches consist of.

    >>> batches = Batches(torch.tensor([1, 4, 2]), BatchOptions(kind="users", size=2))
    >>> order = batches.order(torch.Generator())
    >>> [len(batches.batch(order, step).members) for step in range(len(batches))]
    [2, 1]
    """

    def __init__(self, degrees: Tensor, options: BatchOptions) -> None:
        chosen = torch.full(degrees.shape, options.only_users is None, device=degrees.device)
        if options.only_users is not None:
            chosen[options.only_users] = True
        if options.kind == "users":
            self.population = (chosen & (degrees > 0)).nonzero().flatten()
        else:
            self.population = chosen.repeat_interleave(degrees).nonzero().flatten()
        self.degrees, self.options, self.size = degrees, options, options.size
        self.total = len(self.population)

    def __len__(self) -> int:
        return -(-self.total // self.size)

    def order(self, generator: torch.Generator) -> EpochOrder:
        """Draw the order of one epoch."""
        return EpochOrder(torch.randperm(self.total, generator=generator))

    def batch(self, order: EpochOrder, step: int) -> Batch:
        """One step's batch; members ascend, because neighbouring rows are faster to look up and to update."""
        return Batch(self.population[self._positions(order, step).to(self.population.device)])

    def _positions(self, order: EpochOrder, step: int) -> Tensor:
        return order.positions[step * self.size : (step + 1) * self.size].sort().values
