"""Users divided among the processes, and every batch divided evenly: who has more of its users lends some out.

A batch takes its users at random, so a rank rarely has as many of them as the others, and all wait for the one with
the most. Here the batch, in ascending order, is cut into equal pieces, one for each rank. The few users that lie in
another rank's piece than their owner's are lent: the owner sends their vectors at the beginning of the step, and gets
their gradients and thresholds back. Their interactions were sent when the epoch began. It takes a loss over all items
with exact thresholds or none: then nothing but the vector and the interactions of a user is needed.
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
from talos.training.batches import Batches, Order, Place
from talos.training.objective import Objective, UserObjective
from talos.training.parallel.division import Division

__all__ = ["EvenBatches", "EvenDivision", "EvenObjective"]


class EvenDivision(Division):
    """Users divided among the processes of a group, and so is the work of every batch of users."""

    def batches(
        self,
        kind: Literal["users", "positives"],
        *,
        size: int,
        only_users: Tensor | None,
        reduction: Literal["positives", "users"],
    ) -> Batches:
        """What its steps are made of."""
        return EvenBatches(
            self.index, size=size, only_users=only_users, group=self.group, reduction=reduction
        )

    def _objective(self, kind: Literal["users", "positives"]) -> type[Objective]:
        return EvenObjective


@dataclass(frozen=True, eq=False, kw_only=True)
class _EvenOrder(Order):
    """An order, with who has what of each step, and the interactions of the users that are borrowed."""

    owned: Tensor  # (steps, ranks + 1), where each rank's users begin in the ascending batch
    pieces: Tensor  # likewise for the pieces
    starts: Tensor  # (steps, ranks), where the users borrowed from each rank begin among all that are
    degrees: Tensor  # of the borrowed users
    ends: Tensor  # where the items of each of them begin and end
    items: Tensor  # these, one after the other


@dataclass(frozen=True, kw_only=True)
class EvenPlace(Place):
    """A piece of a batch, and how it comes about.

    Attributes:
        given: how many of its own users in the batch this process gives to each rank, itself included.
        taken: how many users of its piece come from each rank.
        ends: (B + 1,), where the positives of each user of the piece begin and end.
        positives: (P,), their items.
    """

    given: list[int]
    taken: list[int]
    ends: Tensor
    positives: Tensor


class EvenBatches(Batches):
    """Batches of users, each cut into one equal piece (up to one user) for each process.

    Args:
        index: the interactions of this process's users.
        size: members of a batch.
        only_users: take these users alone.
        group: the processes.
        reduction: what the mean of a batch is over.

    `batch` gives the members that this process owns, `place` its piece.

    >>> from talos.distributed import ALONE
    >>> from talos.data.interactions import Interactions
    >>> index = TrainIndex.from_interactions(Interactions.from_ids([1, 1, 2], [7, 8, 8]))
    >>> batches = EvenBatches(index, size=2, group=ALONE)
    >>> place = batches.place(batches.order(torch.Generator()), 0)
    >>> place.given, place.ends.tolist(), place.positives.tolist()
    ([2], [0, 2, 3], [0, 1, 1])
    """

    def __init__(
        self,
        index: TrainIndex,
        *,
        size: int,
        group: Group,
        only_users: Tensor | None = None,
        reduction: Literal["positives", "users"] = "positives",
    ) -> None:
        super().__init__(
            index.degrees, kind="users", size=size, only_users=only_users, group=group, reduction=reduction
        )
        self.index = index
        firsts = [int(first) for (first,) in group.exchange([self.first])]
        self.bounds = torch.tensor([*firsts, self.total])

    def order(self, generator: torch.Generator) -> Order:
        """The order of one epoch: its batches are those of a single process."""
        rank, size = self.group.rank, self.group.size
        places = torch.randperm(self.total, generator=generator)
        # one row a step, ascending; the last may have empty places
        steps = F.pad(places, (0, len(self) * self.size - self.total), value=self.total)
        steps = steps.view(len(self), self.size).sort(dim=1).values
        owned = torch.searchsorted(steps, self.bounds.expand(len(self), -1).contiguous())
        members = owned[:, -1:]
        pieces = members * torch.arange(size + 1) // size
        step, at = ((steps >= self.first) & (steps < self.first + len(self.population))).nonzero().T
        mine = self.population.cpu()[steps[step, at] - self.first]
        worker = ((at + 1) * size - 1) // members[step, 0]  # whose piece that is
        weights = torch.zeros(len(self), size, dtype=torch.float64)
        weights.index_put_((step, worker), self._weights(mine, step), accumulate=True)
        self.group.sum_(weights)
        lengths = (
            torch.minimum(owned[:, 1:], pieces[:, rank + 1 : rank + 2])
            - torch.maximum(owned[:, :-1], pieces[:, rank : rank + 1])
        ).clamp_(min=0)
        lengths[:, rank] = 0
        degrees, items = self._lend(mine[worker != rank], worker[worker != rank], lengths.sum(0).tolist())
        by_owner = lengths.T.flatten()  # and then by step
        return _EvenOrder(
            steps.view(-1)[: self.total],
            weights[:, rank] / weights.sum(1),
            owned=owned,
            pieces=pieces,
            starts=(by_owner.cumsum(0) - by_owner).view(size, len(self)).T,
            degrees=degrees,
            ends=F.pad(degrees.cumsum(0), (1, 0)),
            items=items,
        )

    def _lend(self, members: Tensor, worker: Tensor, taken: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The interactions of users that others work on, sent to them; those of the users that come here."""
        members = members[worker.sort(stable=True).indices].to(self.index.device)
        given = torch.bincount(worker, minlength=self.group.size).tolist()
        lent = self.degrees[members]
        degrees = self.group.deal_rows(lent, given, taken)
        counts = [
            [int(some.sum()) for some in torch.split(numbers, lengths)]
            for numbers, lengths in ((lent, given), (degrees, list(taken)))
        ]
        return degrees, self.group.deal_rows(self.index.pairs_of(members)[1], *counts)

    def batch(self, order: Order, step: int) -> Tensor:
        """The members of one step that belong to this process, ascending."""
        assert isinstance(order, _EvenOrder)
        start, stop = order.owned[step, self.group.rank : self.group.rank + 2].tolist()
        places = order.places[step * self.size + start : step * self.size + stop] - self.first
        return self.population[places.to(self.population.device)]

    def place(self, order: Order, step: int) -> EvenPlace:
        """This process's piece of a step."""
        assert isinstance(order, _EvenOrder)
        assert order.shares is not None
        rank, ends = self.group.rank, order.ends
        owned, pieces = order.owned[step].tolist(), order.pieces[step].tolist()
        given = _overlaps(range(owned[rank], owned[rank + 1]), pieces)
        taken = _overlaps(range(pieces[rank], pieces[rank + 1]), owned)
        first = sum(given[:rank])
        kept = self.batch(order, step)[first : first + given[rank]]
        degrees, positives = [], []
        for owner, start in enumerate(order.starts[step].tolist()):
            if owner == rank:
                degrees.append(self.degrees[kept])
                positives.append(self.index.pairs_of(kept)[1])
            else:
                degrees.append(order.degrees[start : start + taken[owner]])
                positives.append(order.items[int(ends[start]) : int(ends[start + taken[owner]])])
        return EvenPlace(
            before=pieces[rank],
            total=pieces[-1],
            weight=float(order.shares[step]),
            given=given,
            taken=taken,
            ends=F.pad(torch.cat(degrees).cumsum(0), (1, 0)),
            positives=torch.cat(positives),
        )


class EvenObjective(UserObjective):
    """Batches of users with all their positives over all items, some of the users borrowed from other processes."""

    def forward(
        self,
        batch: Tensor,
        generator: torch.Generator,
        *,
        frozen: bool = False,
        place: Place | None = None,
    ) -> Tensor:
        """This process's part of the loss of a batch, of which it owns the users `batch` and has the piece `place`."""
        assert isinstance(place, EvenPlace)
        user_table, item_table = self._tables(generator, frozen)
        vectors: Tensor = _Dealt.apply(  # type: ignore[no-untyped-call]
            self._rows(user_table, self._in_table(batch)), self.group, place.given, place.taken
        )
        found = vectors.new_empty(0)
        options = {**self._options(), "scale": place.weight}
        given = (vectors, item_table, place.ends, place.positives)
        if len(vectors) == 0:
            value = vectors.sum()  # nothing, but the lenders wait for their gradients
        elif isinstance(self.threshold, ExactQuantile):
            value, found = exact_user_batch_loss(*given, self.threshold.k, self.loss, **options)
        else:
            value = differentiable_user_batch_loss(*given, None, self.loss, **options)
        if isinstance(self.threshold, ExactQuantile):
            self.threshold.set(batch, self.group.deal_rows(found, place.taken, place.given))
        return value


class _Dealt(torch.autograd.Function):
    """Rows that change hands, and their gradients, which go back."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, group: Group, given: list[int], taken: list[int]) -> Tensor:
        ctx.group, ctx.given, ctx.taken = group, given, taken
        return group.deal_rows(rows, given, taken)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.group.deal_rows(gradient, ctx.taken, ctx.given), None, None, None


def _overlaps(here: range, cuts: Sequence[int]) -> list[int]:
    """How much of some consecutive places lies between each cut and the next.

    >>> _overlaps(range(2, 6), [0, 3, 4, 9])
    [1, 1, 2]
    """
    return [max(0, min(here.stop, stop) - max(here.start, start)) for start, stop in itertools.pairwise(cuts)]
