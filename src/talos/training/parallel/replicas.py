"""Parameters that all processes have, kept the same: summed gradients, and large tables updated in parts.

Every process computes a gradient of the whole item table. To sum it everywhere and update it everywhere would be the
same work as often as there are processes. Instead each of them owns a range of rows: it gets the sum of these alone,
its optimiser has the moments of these alone, and the rows it has updated go to the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from talos.distributed import Group

__all__ = ["Replicas"]


class Replicas:
    """The gradients of one process of a group, joined with those of the others, and its parameters after a step.

    Args:
        group: the processes.
        parameters: all that have gradients.
        own: those of which this process has its own rows alone: their gradients stay as they are.
        divided: those whose rows are divided for the optimiser. Their gradients are never sparse, and they have at
            least as many rows as there are processes.

    >>> from talos.distributed import ALONE
    >>> table = nn.Parameter(torch.zeros(2)); table.sum().backward()
    >>> replicas = Replicas(ALONE, [table])
    >>> replicas.join_(0.5), table.grad
    (0.5, tensor([1., 1.]))
    """

    def __init__(
        self,
        group: Group,
        parameters: Sequence[Tensor],
        own: Sequence[Tensor] = (),
        divided: Sequence[Tensor] = (),
    ) -> None:
        self.group, self.parameters, self.own = group, parameters, own
        self.divided = {id(table): _Divided(group, table) for table in divided} if group.size > 1 else {}
        self.stop_requested = False  # on some rank, as of the last step

    def optimized(self, parameters: Iterable[Tensor]) -> list[Tensor]:
        """What an optimiser is to update in place of these: of divided ones, the rows of this process."""
        return [self.divided[id(p)].rows if id(p) in self.divided else p for p in parameters]

    def join_(self, value: float, *, stop: bool = False) -> float:
        """Put the sum over ranks in the place of every gradient, and return that of `value`.

        A rank that had nothing to do with a parameter gets zeros (or no rows, where the others have sparse gradients),
        so that optimisers count the same steps everywhere. Where no rank has a gradient there is none afterwards.
        `stop` of any rank becomes `stop_requested` of all of them.
        """
        if self.group.size == 1:
            self.stop_requested = stop
            return value
        for table in self.divided.values():
            table.offer()
        # One small message says who has what: -1 nothing, -2 all rows, else so many rows.
        said = self.group.exchange([value, stop, *(_extent(parameter.grad) for parameter in self.parameters)])
        self.stop_requested = any(rank[1] for rank in said)
        for parameter, *extents in zip(self.parameters, *(rank[2:] for rank in said), strict=True):
            if id(parameter) in self.divided:
                self.divided[id(parameter)].take([extent == -2 for extent in extents])
            else:
                self._sum(parameter, extents)
        return sum(rank[0] for rank in said)

    def _sum(self, parameter: Tensor, extents: Sequence[float]) -> None:
        if max(extents) < 0 and -2 not in extents:
            return
        if -2 in extents:
            if parameter.grad is None:
                parameter.grad = parameter.new_zeros(parameter.shape)
            elif parameter.grad.is_sparse:
                parameter.grad = parameter.grad.to_dense()
        elif parameter.grad is None:
            parameter.grad = _no_rows(parameter)
        if any(parameter is mine for mine in self.own):
            return
        counts = [max(0, int(extent)) for extent in extents]
        parameter.grad = (
            self.group.sum_(parameter.grad) if -2 in extents else self.group.sum_rows(parameter.grad, counts)
        )

    def spread_(self) -> None:
        """After the optimisers' steps: give the rows that were updated here to the others, and take theirs."""
        changed = [table for table in self.divided.values() if table.rows.grad is not None]
        for table in changed:
            table.spread()
        if any(table.gradients is not None for table in changed):
            self.group.wait()

    def release(self) -> None:
        """After the last step: no memory is shared any more."""
        if any(table.gradients is not None for table in self.divided.values()):
            self.group.wait()  # another may still read what this process is about to change
        for table in self.divided.values():
            table.release()


class _Divided:
    """A table of which this process updates some rows.

    On one machine the table is in memory that all ranks see, so what one of them updates there is updated for all.
    There they also have room for a gradient each, in which the others find what to add to theirs. All wait for each
    other twice a step. Between the first time, before `take`, and the second, after `spread`, a rank writes to its
    rows of the table and reads no others; outside of it everybody reads and nobody writes. Gradients are the other
    way round.
    """

    def __init__(self, group: Group, table: Tensor) -> None:
        self.group, self.table = group, table
        self.shares = group.shares(len(table))
        self.counts = [len(share) for share in self.shares]
        self.mine = _rows(self.shares[group.rank])
        self.gradients = self._share()
        self.received: Tensor | None = None
        self.rows = nn.Parameter(table.data[self.mine])  # the table's own memory

    def _share(self) -> Tensor | None:
        """Put the table in memory that all see, and give room for everybody's gradients there; None without it."""
        table, size = self.table, self.group.size
        if table.device.type != "cpu" or table.dtype != torch.float32:
            return None
        shared = self.group.shared_memory(table.numel() + -(-table.numel() // size))
        if shared is None:
            return None
        gradients, rest = shared.flatten().tensor_split([size * table.numel()])
        common = rest[: table.numel()].view(table.shape)
        if self.group.rank == 0:  # all have the same
            common.copy_(table.data)
        self.group.wait()
        table.data = common
        return gradients.view(size, *table.shape)

    def offer(self) -> None:
        """Before the message that tells who has a gradient: let the others see this one."""
        gradient = self.table.grad
        if self.gradients is None or gradient is None:
            return
        for rank, share in enumerate(self.shares):
            if rank != self.group.rank:
                self.gradients[self.group.rank, _rows(share)] = gradient[_rows(share)]

    def take(self, present: Sequence[bool]) -> None:
        """After it: the sum of the gradients of this process's rows, from the ranks that have one."""
        gradient, self.table.grad = self.table.grad, None
        if not any(present):
            return
        if self.gradients is None:
            whole = torch.zeros_like(self.table) if gradient is None else gradient
            own, size = self.counts[self.group.rank], self.group.size
            if self.received is None:  # kept: fresh pages would take as long as the message
                self.received = whole.new_empty((size * own, *whole.shape[1:]))
            self.group.deal_rows(whole, self.counts, [own] * size, into=self.received)
            self.rows.grad = self.received.view(size, own, *whole.shape[1:]).sum(0)
            return
        total = torch.zeros_like(self.rows) if gradient is None else gradient[self.mine]
        for rank, there in enumerate(present):
            if there and rank != self.group.rank:
                total += self.gradients[rank, self.mine]
        self.rows.grad = total

    def spread(self) -> None:
        """Give the rows that were updated here to the others, where they do not have them already."""
        self.rows.grad = None
        if self.gradients is None:
            self.group.spread_own_(self.table.data, self.counts)

    def release(self) -> None:
        """Have the table for oneself."""
        if self.gradients is not None:
            self.table.data, self.gradients = self.table.data.clone(), None
            self.rows.data = self.table.data[self.mine]


def _rows(share: range) -> slice:
    return slice(share.start, share.stop)


def _extent(gradient: Tensor | None) -> float:
    if gradient is None:
        return -1.0
    return float(gradient._nnz()) if gradient.is_sparse else -2.0


def _no_rows(parameter: Tensor) -> Tensor:
    return torch.sparse_coo_tensor(
        torch.empty(1, 0, dtype=torch.int64, device=parameter.device),
        parameter.new_empty((0, *parameter.shape[1:])),
        parameter.shape,
        check_invariants=False,
    )
