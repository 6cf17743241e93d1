"""Users divided among the processes, and every batch divided evenly: a rank with too many members lends some out.

A batch takes its users at random, so one rank has more of them than another, and all wait for the one with the most.
Here the batch, in ascending order, is cut into equal pieces, one for each rank. The few users that lie in the piece of
another rank than their owner's are lent to it: the owner sends their vectors at the beginning of the step and gets back
their gradients and thresholds. Their interactions were sent when the epoch began. This needs a loss over all items with
exact thresholds or none, because then a user's vector and interactions are all that is needed.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from talos.data.csr import TrainIndex
from talos.distributed import Group
from talos.kernels import differentiable_user_batch_loss, exact_user_batch_loss
from talos.thresholds import ExactQuantile
from talos.training.batches import Batch, Batches, BatchOptions, BatchShare, EpochOrder
from talos.training.objective import Objective, UserObjective
from talos.training.parallel.sharding import ShardedBatches, UserSharding

__all__ = ["BalancedBatches", "BalancedObjective", "BalancedUserSharding"]


class BalancedUserSharding(UserSharding):
    """Users divided among the processes of a group, and the work of every batch of users divided evenly."""

    def batches(self, options: BatchOptions) -> Batches:
        """The batches of this process's steps."""
        return BalancedBatches(self.index, options, self.group)

    def objective(self, kind: Literal["users", "positives"], *choices: Any) -> Objective:
        """The loss of this process's piece of a batch of users."""
        return BalancedObjective(*choices, index=self.index, users=self.users, group=self.group)


@dataclass(frozen=True, eq=False, kw_only=True)
class _BalancedOrder(EpochOrder):
    """An epoch's order over the users of all processes, with the interactions of the users that are borrowed."""

    weights: Tensor  # (steps,), of this process's piece in each step
    owned: Tensor  # (steps, ranks + 1), bounds of each rank's users in the ascending batch
    pieces: Tensor  # (steps, ranks + 1), bounds of each rank's piece
    starts: Tensor  # (steps, ranks), the first user borrowed from each rank, among all borrowed users
    degrees: Tensor  # number of interactions of each borrowed user
    ends: Tensor  # CSR bounds of their items
    items: Tensor  # their items


@dataclass(frozen=True, kw_only=True)
class BalancedShare(BatchShare):
    """One process's piece of a batch."""

    send: list[
        int
    ]  # how many of its own members this process lends to each rank; those it keeps go to itself
    receive: list[int]  # how many members of its piece come from each rank
    ends: Tensor  # (B + 1,), CSR bounds of the positives of the piece's users
    positives: Tensor  # (P,), their items


class BalancedBatches(ShardedBatches):
    """Batches of users, each cut into one piece per process; pieces differ by at most one user.

    A batch's `members` are the users that this process owns, its `share` describes the piece that it works on.

    >>> from talos.distributed import SINGLE_PROCESS
    >>> from talos.data.interactions import Interactions
    >>> index = TrainIndex.from_interactions(Interactions.from_ids([1, 1, 2], [7, 8, 8]))
    >>> batches = BalancedBatches(index, BatchOptions(kind="users", size=2), SINGLE_PROCESS)
    >>> share = batches.batch(batches.order(torch.Generator()), 0).share
    >>> share.send, share.ends.tolist(), share.positives.tolist()
    ([2], [0, 2, 3], [0, 1, 1])
    """

    def __init__(self, index: TrainIndex, options: BatchOptions, group: Group) -> None:
        super().__init__(index.degrees, options, group)
        self.index = index
        firsts = [int(first) for (first,) in group.all_gather_numbers([self.first])]
        self.bounds = torch.tensor([*firsts, self.total])

    def order(self, generator: torch.Generator) -> EpochOrder:
        """Draw the order of one epoch, and exchange the interactions of the users that are lent in it."""
        rank, size = self.group.rank, self.group.size
        positions = torch.randperm(self.total, generator=generator)
        # one row a step, ascending; the last one is filled up with a position that nobody has
        steps = F.pad(positions, (0, len(self) * self.size - self.total), value=self.total)
        steps = steps.view(len(self), self.size).sort(dim=1).values
        owned = torch.searchsorted(steps, self.bounds.expand(len(self), -1).contiguous())
        members = owned[:, -1:]
        pieces = members * torch.arange(size + 1) // size
        step, at = self._is_own(steps).nonzero().T
        mine = self.population.cpu()[steps[step, at] - self.first]
        worker = ((at + 1) * size - 1) // members[step, 0]  # the rank whose piece that is in
        weights = torch.zeros(len(self), size, dtype=torch.float64)
        weights.index_put_((step, worker), self._weights(mine, step), accumulate=True)
        self.group.all_reduce_(weights)
        lengths = (
            torch.minimum(owned[:, 1:], pieces[:, rank + 1 : rank + 2])
            - torch.maximum(owned[:, :-1], pieces[:, rank : rank + 1])
        ).clamp_(min=0)
        lengths[:, rank] = 0
        degrees, items = self._lend(mine[worker != rank], worker[worker != rank], lengths.sum(0).tolist())
        by_owner = lengths.T.flatten()  # within each owner by step
        return _BalancedOrder(
            steps.view(-1)[: self.total],
            weights=weights[:, rank] / weights.sum(1),
            owned=owned,
            pieces=pieces,
            starts=(by_owner.cumsum(0) - by_owner).view(size, len(self)).T,
            degrees=degrees,
            ends=F.pad(degrees.cumsum(0), (1, 0)),
            items=items,
        )

    def _lend(self, members: Tensor, worker: Tensor, receive: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Send the interactions of lent users to the ranks that borrow them; return those of the borrowed users."""
        members = members[worker.sort(stable=True).indices].to(self.index.device)
        send = torch.bincount(worker, minlength=self.group.size).tolist()
        lent = self.degrees[members]
        degrees = self.group.all_to_all_rows(lent, send, receive)
        counts = [
            [int(some.sum()) for some in torch.split(numbers, lengths)]
            for numbers, lengths in ((lent, send), (degrees, list(receive)))
        ]
        return degrees, self.group.all_to_all_rows(self.index.pairs_of(members)[1], *counts)

    def batch(self, order: EpochOrder, step: int) -> Batch:
        """This process's own members of one step, and the piece that it works on."""
        assert isinstance(order, _BalancedOrder)
        rank, ends = self.group.rank, order.ends
        owned, pieces = order.owned[step].tolist(), order.pieces[step].tolist()
        first = step * self.size
        positions = order.positions[first + owned[rank] : first + owned[rank + 1]] - self.first
        members = self.population[positions.to(self.population.device)]
        send = _overlaps(range(owned[rank], owned[rank + 1]), pieces)
        receive = _overlaps(range(pieces[rank], pieces[rank + 1]), owned)
        kept = members[sum(send[:rank]) :][: send[rank]]
        degrees, positives = [], []
        for owner, start in enumerate(order.starts[step].tolist()):
            if owner == rank:
                degrees.append(self.degrees[kept])
                positives.append(self.index.pairs_of(kept)[1])
            else:
                degrees.append(order.degrees[start : start + receive[owner]])
                positives.append(order.items[int(ends[start]) : int(ends[start + receive[owner]])])
        share = BalancedShare(
            rank=rank,
            before=pieces[rank],
            total=pieces[-1],
            weight=float(order.weights[step]),
            send=send,
            receive=receive,
            ends=F.pad(torch.cat(degrees).cumsum(0), (1, 0)),
            positives=torch.cat(positives),
        )
        return Batch(members, share)


class BalancedObjective(UserObjective):
    """Batches of users with all their positives over all items; some of the users are borrowed from other processes."""

    def __init__(self, *choices: Any, group: Group, **options: Any) -> None:
        super().__init__(*choices, **options)
        self.group = group

    def forward(self, batch: Batch, generator: torch.Generator, *, frozen: bool = False) -> Tensor:
        """The loss of this process's piece of a batch, weighted so that the pieces' losses sum to the batch's."""
        share = batch.share
        assert isinstance(share, BalancedShare)
        user_table, item_table = self._tables(generator, frozen)
        vectors: Tensor = _AllToAll.apply(  # type: ignore[no-untyped-call]
            self._rows(user_table, self._in_table(batch.members), distinct=True),
            self.group,
            share.send,
            share.receive,
        )
        found = vectors.new_empty(0)
        options = {**self._options(item_table), "scale": share.weight}
        given = (vectors, item_table, share.ends, share.positives)
        if len(vectors) == 0:
            value = vectors.sum()  # 0, but with a backward pass, for which the lenders wait
        elif isinstance(self.threshold, ExactQuantile):
            value, found = exact_user_batch_loss(*given, self.threshold.k, self.loss, **options)
        else:
            value = differentiable_user_batch_loss(*given, None, self.loss, **options)
        if isinstance(self.threshold, ExactQuantile):
            self.threshold.set(batch.members, self.group.all_to_all_rows(found, share.receive, share.send))
        return value


class _AllToAll(torch.autograd.Function):
    """`Group.all_to_all_rows` inside autograd: gradients go back to the ranks that the rows came from."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, group: Group, send: list[int], receive: list[int]) -> Tensor:
        ctx.group, ctx.send, ctx.receive = group, send, receive
        return group.all_to_all_rows(rows, send, receive)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.group.all_to_all_rows(gradient, ctx.receive, ctx.send), None, None, None


def _overlaps(here: range, cuts: Sequence[int]) -> list[int]:
    """How many of some consecutive numbers lie between each cut and the next."""
    return [max(0, min(here.stop, stop) - max(here.start, start)) for start, stop in itertools.pairwise(cuts)]
