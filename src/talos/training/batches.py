"""The rows of a training epoch in mini-batches: a new order every epoch, drawn from the seed only.

A row is a user with all positives (`UserRows`), one positive with negatives of its own (`PositiveRows`), or a position
in a user's history with the next item as its positive (`PositionRows`).

The loss of a batch is a weighted mean over its positives. Of a user with the total weight n (the number of positives,
or the sum of their event weights w), each positive has the weight w·n^(e-1): the user weighs n^e. `Batches` divides the
weights of users by their sum over the batch. A batch of single positives has only some of a user's: its weights are
divided by what as many rows weigh on average, so that over an epoch each user has exactly the weight that is meant.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from talos.data.interactions import Interactions
from talos.distributed import SINGLE_PROCESS, Group
from talos.errors import DataError
from talos.kernels.csr import CSR, Batch, TrainIndex

__all__ = ["Batches", "EpochOrder", "PositionRows", "PositiveRows", "Rows", "UserRows", "generator_for"]


def generator_for(seed: int, *path: int) -> torch.Generator:
    """A random generator for one purpose, such as one pass of one epoch; the same path gives the same numbers.

    >>> torch.rand(1, generator=generator_for(0, 3)) == torch.rand(1, generator=generator_for(0, 3))
    tensor([True])
    """
    state = np.random.SeedSequence([seed, *path]).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state) & (2**63 - 1))


class Rows(ABC):
    """All rows of an epoch that this process trains on.

    Args:
        index: the interactions: of this process's users with all items, or of all users with its items.
        exponent: e, see the module.
        mass: n of each user; None for those of `index`, which has the weights of events, if there are any.
        only_users: take the rows of these users alone.

    Attributes:
        population: the rows, by numbers that a subclass chooses.
    """

    population: Tensor

    def __init__(
        self,
        index: TrainIndex,
        *,
        exponent: float = 1.0,
        mass: Tensor | None = None,
        only_users: Tensor | None = None,
    ) -> None:
        self.index, self.exponent = index, exponent
        mass = index.degrees if mass is None else mass
        if index.weights is not None:
            users = torch.arange(index.num_users, device=index.device).repeat_interleave(index.degrees)
            mass = index.weights.new_zeros(index.num_users).index_add_(0, users, index.weights)
        self.mass = mass.double()
        self.chosen = torch.full(mass.shape, only_users is None, device=mass.device)
        if only_users is not None:
            self.chosen[only_users] = True

    @abstractmethod
    def weights(self, members: Tensor) -> Tensor:
        """The weight of each of some rows, before division by the sum over the batch; double precision."""

    @abstractmethod
    def batch(self, members: Tensor, weight: float, **fields: Any) -> Batch:
        """These rows as a batch of total weight `weight`; `fields` are further fields of the batch."""

    def users(self, users: Tensor) -> Batch:
        """A row for each of some users, to ask a backbone for their vectors."""
        none = CSR.of(users.new_zeros(len(users) + 1), users[:0])
        return Batch(users=users, positives=none, weights=self.mass[:0].float(), total=len(users))

    def _edge_weights(self, users: Tensor, edges: Tensor, weight: float) -> Tensor:
        """The weight of each of some interactions, of these users, in the loss."""
        found = self.mass.new_ones(()).expand(edges.shape)
        if self.exponent != 1:
            found = self.mass[users] ** (self.exponent - 1)
        if self.index.weights is not None:
            found = found * self.index.weights[edges]
        return (found / (weight or 1.0)).float()


class UserRows(Rows):
    """A row for each user with interactions."""

    def __init__(self, index: TrainIndex, **options: Any) -> None:
        super().__init__(index, **options)
        self.population = (self.chosen & (self.mass > 0)).nonzero().flatten()

    def weights(self, members: Tensor) -> Tensor:
        """n^e."""
        return self.mass[members] ** self.exponent

    def batch(self, members: Tensor, weight: float, **fields: Any) -> Batch:
        """Users with all their positives."""
        positives, edges = self.index.csr_of(members)
        weights = self._edge_weights(members[positives.rows], edges, weight)
        return Batch(users=members, positives=positives, weights=weights, **fields)


class PositiveRows(Rows):
    """A row for each interaction."""

    def __init__(self, index: TrainIndex, **options: Any) -> None:
        super().__init__(index, **options)
        self.population = self.chosen.repeat_interleave(index.degrees).nonzero().flatten()

    def _users_of(self, members: Tensor) -> Tensor:
        return torch.searchsorted(self.index.indptr, members, right=True) - 1

    def weights(self, members: Tensor) -> Tensor:
        """w·n^(e-1)."""
        if self.exponent == 1 and self.index.weights is None:
            return self.mass.new_ones(()).expand(members.shape)
        return self._edge_weights(self._users_of(members), members, 1.0).double()

    def batch(self, members: Tensor, weight: float, **fields: Any) -> Batch:
        """Single positives; a user may have several rows."""
        users = self._users_of(members)
        start = torch.arange(len(members) + 1, device=members.device)
        weights = self._edge_weights(users, members, weight)
        positives = CSR(start, self.index.indices[members], start[:-1])
        return Batch(users=users, positives=positives, weights=weights, distinct=False, **fields)


class PositionRows(PositiveRows):
    """A row for each interaction that has earlier ones: its history is what came before, its positive the item itself.

    Args:
        index: the interactions of this process's users.
        train: the same interactions with their times.
        history: the length of a history; earlier items are left out.
        options: those of `Rows`.
    """

    def __init__(self, index: TrainIndex, train: Interactions, history: int, **options: Any) -> None:
        if train.timestamps is None:
            raise DataError(
                "interactions without times",
                where=train.provenance.source,
                expected="timestamps, for a backbone that reads histories",
            )
        order = torch.from_numpy(train.in_time_order()[0]).to(index.device)
        by_time = TrainIndex(
            indptr=index.indptr,
            indices=index.indices[order],
            num_users=index.num_users,
            num_items=index.num_items,
            weights=None if index.weights is None else index.weights[order],
        )
        super().__init__(by_time, **options)
        users = self._users_of(self.population)
        later = self.population > self.index.indptr[users]
        self.population, self.history = self.population[later], history
        # a first interaction is no positive and does not count
        counted = torch.ones_like(by_time.indices) if by_time.weights is None else by_time.weights
        self.mass = torch.zeros_like(self.mass).index_add_(0, users[later], counted[self.population].double())

    def batch(self, members: Tensor, weight: float, **fields: Any) -> Batch:
        """Positions with their histories."""
        users = self._users_of(members)
        return super().batch(members, weight, history=self._before(members, users), **fields)

    def users(self, users: Tensor) -> Batch:
        """Each user after the last interaction."""
        history = self._before(self.index.indptr[users + 1], users)
        return Batch(**vars(super().users(users)) | {"history": history})

    def _before(self, positions: Tensor, users: Tensor) -> Tensor:
        """The items before these positions of their users, (R, history), padded with -1 at the front."""
        at = positions.unsqueeze(1) - torch.arange(self.history, 0, -1, device=positions.device)
        missing = at < self.index.indptr[users].unsqueeze(1)
        return self.index.indices[at.clamp(min=0)].masked_fill_(missing, -1)


class EpochOrder(NamedTuple):
    """The order of one epoch: step s takes the s-th `size` of the positions among the rows of all processes."""

    positions: Tensor
    totals: Tensor  # (steps,), what the weights of each step are divided by, in all processes


class Batches:
    """The rows of an epoch in mini-batches of `size` rows over all processes.

    The order is drawn over the rows of all processes, so the batches are those of a single process with all users. A
    process takes its own rows of each; rows of a batch ascend, because neighbouring table rows are faster to update.

    >>> index = TrainIndex(
    ...     indptr=torch.tensor([0, 1, 5, 7]), indices=torch.tensor([0, 0, 1, 2, 3, 1, 2]), num_users=3, num_items=4)
    >>> batches = Batches(UserRows(index), 2)
    >>> order = batches.order(torch.Generator())
    >>> [len(batches.batch(order, step).users) for step in range(len(batches))]
    [2, 1]
    """

    def __init__(self, rows: Rows, size: int, group: Group = SINGLE_PROCESS) -> None:
        self.rows, self.size, self.group = rows, size, group
        counts = [int(count) for (count,) in group.all_gather_numbers([len(rows.population)])]
        self.total, self.first = sum(counts), sum(counts[: group.rank])

    def __len__(self) -> int:
        return -(-self.total // self.size)

    def order(self, generator: torch.Generator) -> EpochOrder:
        """Draw the order of one epoch."""
        positions = torch.randperm(self.total, generator=generator)
        is_own = (positions >= self.first) & (positions < self.first + len(self.rows.population))
        own = is_own.nonzero().flatten()
        totals = torch.zeros(len(self), dtype=torch.float64)
        totals.index_add_(0, own // self.size, self.rows.weights(self._members(positions[own])).cpu())
        totals = self.group.all_reduce_(totals)
        if isinstance(self.rows, PositiveRows):
            rows = (self.total - torch.arange(0, self.total, self.size)).clamp(max=self.size)
            totals = totals.sum() / self.total * rows
        return EpochOrder(positions, totals)

    def batch(self, order: EpochOrder, step: int) -> Batch:
        """This process's rows of one step."""
        positions = order.positions[step * self.size : (step + 1) * self.size].sort().values
        own = torch.tensor([self.first, self.first + len(self.rows.population)])
        first, last = torch.searchsorted(positions, own).tolist()
        members = self._members(positions[first:last])
        return self.rows.batch(members, float(order.totals[step]), first=first, total=len(positions))

    def _members(self, positions: Tensor) -> Tensor:
        return self.rows.population[(positions - self.first).to(self.rows.population.device)]
