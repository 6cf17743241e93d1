"""What several processes divide among them: users, or users and items.

With users divided, every process has all items and its own rows of each batch; gradients of what all have are summed.
With items divided too, no process trains the whole catalogue: a process has a range of users and a range of items, and
works on the whole batch over its own items (`talos.kernels.batch` says what is exchanged). A single process has all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from talos import registry
from talos.backbones import Backbone
from talos.checks import require
from talos.config import EventsConfig, RunConfig
from talos.data.event_weights import event_weights
from talos.data.interactions import Interactions
from talos.distributed import SINGLE_PROCESS, Group
from talos.distributed.share import Share
from talos.errors import ConfigError
from talos.kernels.csr import Batch, TrainIndex
from talos.training.plan import loss_for

__all__ = ["Division", "GradientSync", "division_for", "user_masses"]

# Bytes of the item table with its gradient and Adam's two moments from which `auto` divides it.
LARGE_CATALOGUE = 8 << 30
# Numbers in the item table below which `auto` does not divide it: summing its gradient takes as long as a few messages.
SMALL_CATALOGUE = 1 << 20


@dataclass(frozen=True)
class Division:
    """The users and items that this process trains.

    Attributes:
        users: a range of all users.
        items: a range of all items; the whole catalogue unless items are divided.
        group: the processes that train together.
        by_items: whether items are divided.
        line: one line that says what is divided; empty for a single process.
    """

    users: range
    items: range
    group: Group = SINGLE_PROCESS
    by_items: bool = False
    line: str = ""

    def batch_users(
        self, backbone: Backbone, batch: Batch, items: Tensor, generator: torch.Generator
    ) -> Tensor:
        """The vectors of all rows of a batch, of which this process computes those of its users; with items divided."""
        bounds = torch.tensor([self.users.start, self.users.stop], device=batch.users.device)
        first, last = torch.searchsorted(batch.users, bounds).tolist()
        own = batch.users[first:last] - self.users.start
        mine = Batch(users=own, positives=batch.positives, weights=batch.weights)
        vectors = backbone.users(mine, items, generator=generator)
        found: Tensor = _AllGatherRows.apply(vectors, self.group, first)  # type: ignore[no-untyped-call]
        return found

    def rows(self) -> dict[str, range]:
        """The ranges of table rows that this process alone has, by what a row belongs to."""
        if self.group.size == 1:
            return {}
        return {"users": self.users} | ({"items": self.items} if self.by_items else {})

    def all_items(self, items: Tensor, count: int) -> Tensor:
        """The rows of all items, from those of this process."""
        if not self.by_items:
            return items
        return self.group.all_gather_rows(
            items, [len(share) for share in self.group.ranges_of(count, of="items")]
        )

    def index(self, train: Interactions | Share, config: RunConfig, device: torch.device) -> TrainIndex:
        """The interactions that this process's steps need."""
        if self.by_items:
            if isinstance(train, Share):
                indptr, indices = train.of_items(self.items)
            else:
                kept = (train.indices >= self.items.start) & (train.indices < self.items.stop)
                indptr = np.append(0, np.cumsum(np.bincount(train.rows[kept], minlength=train.num_users)))
                indices = train.indices[kept] - np.int32(self.items.start)
            return TrainIndex(
                indptr=torch.from_numpy(indptr).to(device),
                indices=torch.from_numpy(indices).to(device, torch.int64),
                num_users=train.num_users,
                num_items=len(self.items),
            )
        own = train.user_range(self.users)
        alone = self.group.size == 1 and isinstance(train, Interactions)
        return TrainIndex.from_interactions(
            own, device, weights=event_weights(own, config.events) if alone else None
        )


def user_masses(division: Division, train: Interactions | Share, device: torch.device) -> Tensor | None:
    """Interactions of every user over all items, where the index of a division does not say; else None."""
    if not division.by_items:
        return None
    return torch.tensor(train.user_degrees, device=device)


class _AllGatherRows(torch.autograd.Function):
    """The rows of all processes, in the order of ranks; gradients are summed where the rows came from."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, group: Group, first: int) -> Tensor:
        ctx.group, ctx.own = group, slice(first, first + len(rows))
        counts = [int(count) for (count,) in group.all_gather_numbers([len(rows)])]
        return group.all_gather_rows(rows, counts)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.group.all_reduce_(gradient.contiguous())[ctx.own], None, None


def division_for(config: RunConfig, train: Interactions | Share, group: Group) -> Division:
    """What the processes of a group divide, by a config without any other `auto`.

    `parallel = "auto"` divides items where it is possible and either the item table is too large for every process to
    train it, or a process has fewer users of a batch than a vector has numbers: then it takes longer to send and apply
    the items' gradient than to go over some of the items again (see docs/scale.md).

    >>> config = RunConfig().with_values({"negatives": "all", "threshold.name": "exact", "training.batch_size": 2})
    >>> division_for(config, Interactions.from_ids([1, 2], [7, 8]), SINGLE_PROCESS).users
    range(0, 2)
    """
    size, wanted, obstacle = group.size, config.training.parallel, _obstacle(config, train)
    require(
        wanted != "items" or not obstacle,
        "'items'",
        where="parallel",
        expected=f"'users' or 'auto': {obstacle}",
        error=ConfigError,
    )
    users, items = group.range_of(train.num_users), range(train.num_items)
    if size == 1:
        return Division(users, items)
    require(
        config.events == EventsConfig(),
        f"{config.events.weights}, {config.events.half_life}",
        where="events",
        expected="the defaults in several processes",
        error=ConfigError,
    )
    why = ""
    if wanted == "auto" and not obstacle:
        dim = int(config.backbone.options.get("dim", 64))
        batch = min(int(config.training.batch_size), train.num_users)
        if 16 * train.num_items * dim > LARGE_CATALOGUE:
            why = f": the item table with what training needs is {16 * train.num_items * dim / 1e9:.1f} GB"
        elif batch < dim * size and train.num_items * dim >= SMALL_CATALOGUE:
            why = f": batches of {batch} users are few for {train.num_items:,} items"
    if wanted == "items" or why:
        return Division(
            users,
            group.range_of(train.num_items, of="items"),
            group,
            by_items=True,
            line=f"users and items divided among {size} processes{why}",
        )
    return Division(users, items, group, line=f"users divided among {size} processes")


def _obstacle(config: RunConfig, train: Interactions | Share) -> str | None:
    """Why items cannot be divided; None if they can."""
    if not registry.resolve("backbone", config.backbone.name).divisible:
        return f"vectors of the backbone {config.backbone.name!r} depend on other items' rows"
    source = registry.make_negatives(config.negatives)
    if source.per != "all":
        return f"negatives = {str(source)!r} are drawn from the whole catalogue, items are divided for 'all'"
    if not loss_for(config.loss, config.k, train).needs.user_separable:
        return f"the loss {config.loss.name!r} compares positives with items that other processes have"
    if config.threshold.name not in ("exact", "fixed", "none"):
        return f"the threshold {config.threshold.name!r} follows scores that no process has all of"
    return None


class GradientSync:
    """Keeps the parameters that all processes have equal: sums their gradients.

    When it is made, these parameters are set to rank 0's values. Of the `own` parameters each process has rows of its
    own; their gradients are not summed.

    >>> table = torch.nn.Parameter(torch.zeros(2)); table.sum().backward()
    >>> GradientSync(SINGLE_PROCESS, [table]).sum_(0.5), table.grad
    (0.5, tensor([1., 1.]))
    """

    def __init__(self, group: Group, parameters: Sequence[Tensor], own: Sequence[Tensor] = ()) -> None:
        self.group, self.parameters, self.own, self.stop = group, parameters, set(own), False
        for parameter in parameters:
            if parameter not in self.own:
                group.broadcast_(parameter.data)

    def sum_(self, value: float, *, stop: bool = False) -> float:
        """Replace every gradient by its sum over processes, and return the sum of `value`.

        A process without a gradient gets zeros (or an empty sparse gradient, where those of the others are sparse), so
        that optimizers count the same steps everywhere. Where no process has a gradient, there is none afterwards.
        Afterwards the attribute `stop` says whether any process was asked to stop.
        """
        self.stop = stop
        if self.group.size == 1:
            return value
        # one small message tells the kind of each gradient: -1 none, -2 dense, otherwise the number of sparse rows
        gradients = [parameter.grad for parameter in self.parameters]
        kinds = [-1.0 if one is None else float(one._nnz()) if one.is_sparse else -2.0 for one in gradients]
        gathered = self.group.all_gather_numbers([value, stop, *kinds])
        self.stop = any(rank[1] for rank in gathered)
        for parameter, *theirs in zip(self.parameters, *(rank[2:] for rank in gathered), strict=True):
            self._sum(parameter, theirs)
        return sum(rank[0] for rank in gathered)

    def _sum(self, parameter: Tensor, kinds: Sequence[float]) -> None:
        if all(kind == -1 for kind in kinds):
            return
        gradient = parameter.grad
        if gradient is None and -2 in kinds:
            gradient = torch.zeros_like(parameter)
        elif gradient is None:
            no_rows = torch.empty(0, dtype=torch.int64, device=parameter.device)
            gradient = _sparse(no_rows, parameter.detach()[:0], parameter)
        if parameter not in self.own and -2 in kinds:
            gradient = self.group.all_reduce_(gradient.to_dense())
        elif parameter not in self.own:
            counts = [max(0, int(kind)) for kind in kinds]
            mine = gradient._indices()[0], gradient._values()
            rows, values = (self.group.all_gather_rows(one, counts) for one in mine)
            gradient = _sparse(rows, values, parameter).coalesce()
        parameter.grad = gradient


def _sparse(rows: Tensor, values: Tensor, parameter: Tensor) -> Tensor:
    return torch.sparse_coo_tensor(rows.unsqueeze(0), values, parameter.shape, check_invariants=False)
