"""Which users or positives make up each step: a fresh order every epoch, from the seed alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from talos.distributed import ALONE, Group

__all__ = ["Batches", "Order", "Place", "generator_for"]


def generator_for(seed: int, *path: int) -> torch.Generator:
    """A generator for one purpose, such as a pass of an epoch; the same path gives the same numbers.

    >>> torch.rand(1, generator=generator_for(0, 3)) == torch.rand(1, generator=generator_for(0, 3))
    tensor([True])
    """
    state = np.random.SeedSequence([seed, *path]).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state) & (2**63 - 1))


@dataclass(frozen=True, eq=False)
class Order:
    """The order of one epoch: places in the population of all processes, and this one's share of every step."""

    places: Tensor
    shares: Tensor | None = None  # (steps,), of what a step's mean is over; None for all of it


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where the members that belong to this process stand in a batch that several processes work on.

    Attributes:
        before: members of the batch that belong to processes before this one.
        total: members of the whole batch.
        weight: what the mean over this process's members counts in that over all.
    """

    before: int
    total: int
    weight: float


class Batches:
    """Batches of users (those with interactions) or of positives (positions in the index's edges).

    Args:
        degrees: interactions of each user.
        kind: what a batch is made of.
        size: members of a batch.
        only_users: take these users alone.
        group: processes that have other users; each gives the degrees of its own.
        reduction: what the mean of a batch is over.

    In a group the order is drawn over the members of all processes: the same batches as one process with all users
    would have, of which each takes those of its own. Batches ascend and so do the users of the ranks, so these are
    consecutive.

    >>> batches = Batches(torch.tensor([1, 4, 2]), kind="users", size=2)
    >>> [len(batches.batch(batches.order(torch.Generator()), step)) for step in range(len(batches))]
    [2, 1]
    """

    def __init__(
        self,
        degrees: Tensor,
        *,
        kind: Literal["users", "positives"],
        size: int,
        only_users: Tensor | None = None,
        group: Group = ALONE,
        reduction: Literal["positives", "users"] = "positives",
    ) -> None:
        chosen = torch.full(degrees.shape, only_users is None, device=degrees.device)
        if only_users is not None:
            chosen[only_users] = True
        if kind == "users":
            self.population = (chosen & (degrees > 0)).nonzero().flatten()
        else:
            self.population = chosen.repeat_interleave(degrees).nonzero().flatten()
        self.degrees, self.kind, self.size = degrees, kind, size
        self.group, self.reduction = group, reduction
        counts = [int(count) for (count,) in group.exchange([len(self.population)])]
        self.total, self.first = sum(counts), sum(counts[: group.rank])

    def __len__(self) -> int:
        return -(-self.total // self.size)

    def order(self, generator: torch.Generator) -> Order:
        """The order of one epoch."""
        places = torch.randperm(self.total, generator=generator)
        if self.group.size == 1:
            return Order(places)
        mine = ((places >= self.first) & (places < self.first + len(self.population))).nonzero().flatten()
        members = self.population.cpu()[places[mine] - self.first]
        counts = torch.zeros(len(self), dtype=torch.float64)
        counts.index_add_(0, mine // self.size, self._weights(members, mine // self.size))
        return Order(places, counts / self.group.sum_(counts.clone()))

    def _weights(self, members: Tensor, steps: Tensor) -> Tensor:
        """What each member counts in the mean of its step."""
        ones = torch.ones(len(members), dtype=torch.float64)
        if self.kind == "users":
            return self.degrees.cpu()[members].double() if self.reduction == "positives" else ones
        if self.reduction == "positives":
            return ones
        # users count once a step, however many of their positives it has
        users = torch.searchsorted(self.degrees.cpu().cumsum(0), members, right=True)
        _, which, times = torch.unique(
            steps * len(self.degrees) + users, return_inverse=True, return_counts=True
        )
        weights: Tensor = ones / times[which]
        return weights

    def batch(self, order: Order, step: int) -> Tensor:
        """The members of one step, ascending: neighbours in a table are quicker to look up and to update."""
        places = self._places(order, step) - self.first
        own = places[(places >= 0) & (places < len(self.population))]
        return self.population[own.to(self.population.device)]

    def place(self, order: Order, step: int) -> Place | None:
        """Where these stand in the whole batch; None where they are all of it."""
        if order.shares is None:
            return None
        places = self._places(order, step)
        before = int((places < self.first).sum())
        return Place(before=before, total=len(places), weight=float(order.shares[step]))

    def _places(self, order: Order, step: int) -> Tensor:
        return order.places[step * self.size : (step + 1) * self.size].sort().values
