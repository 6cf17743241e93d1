"""Keeps the parameters that all processes have equal: sums gradients, and updates large tables by ranges of rows.

Every process computes a gradient of the whole item table. If each of them summed and applied all of it, the same work
would be done once for every process. Instead each process updates a range of rows: it gets the summed gradient of these
rows, its optimizer has the moments of these rows, and it sends the updated rows to the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from talos.distributed import Group

__all__ = ["GradientSync"]


class GradientSync:
    """Sums the gradients over the processes of a group, and shares the parameters that an optimizer updated.

    When it is made, parameters that all processes have are set to rank 0's values, so that they begin with equal bits.
    Of the `own` parameters this process has only its own rows; their gradients are not summed. Of the `sharded` ones
    each process updates a range of rows; their gradients are never sparse, and each has a row for every process.

    >>> from talos.distributed import SINGLE_PROCESS
    >>> table = nn.Parameter(torch.zeros(2)); table.sum().backward()
    >>> sync = GradientSync(SINGLE_PROCESS, [table])
    >>> sync.sum_gradients_(0.5), table.grad
    (0.5, tensor([1., 1.]))
    """

    def __init__(
        self,
        group: Group,
        parameters: Sequence[Tensor],
        own: Sequence[Tensor] = (),
        sharded: Sequence[Tensor] = (),
    ) -> None:
        self.group, self.parameters, self.own = group, parameters, own
        for parameter in parameters:
            if not any(parameter is table for table in own):
                group.broadcast_(parameter.data)
        self.sharded = {id(table): _ShardedTable(group, table) for table in sharded} if group.size > 1 else {}
        self._stop_agreed = False

    def optimized(self, parameters: Iterable[Tensor]) -> list[Tensor]:
        """What an optimizer has to update for these: of sharded tables, the rows of this process."""
        return [self.sharded[id(p)].rows if id(p) in self.sharded else p for p in parameters]

    def should_stop(self, requested: bool) -> bool:
        """Whether to stop after this step: a single process as soon as requested, several when all know of it."""
        return requested if self.group.size == 1 else self._stop_agreed

    def sum_gradients_(self, value: float, *, stop: bool = False) -> float:
        """Replace every gradient by its sum over ranks, and return the sum of `value`.

        A rank without a gradient gets zeros (or an empty sparse gradient, where those of the others are sparse), so
        that optimizers count the same steps on all ranks. Where no rank has a gradient, there is none afterwards. If
        `stop` is set on any rank, all of them agree to stop, see `should_stop`.
        """
        if self.group.size == 1:
            return value
        for table in self.sharded.values():
            table.publish_gradient()
        # one small message tells the kind of each gradient: -1 none, -2 dense, otherwise the number of sparse rows
        gathered = self.group.all_gather_numbers(
            [value, stop, *(_extent(parameter.grad) for parameter in self.parameters)]
        )
        self._stop_agreed = any(rank[1] for rank in gathered)
        for parameter, *extents in zip(self.parameters, *(rank[2:] for rank in gathered), strict=True):
            if id(parameter) in self.sharded:
                self.sharded[id(parameter)].sum_gradient([extent == -2 for extent in extents])
            else:
                self._sum(parameter, extents)
        return sum(rank[0] for rank in gathered)

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
            self.group.all_reduce_(parameter.grad)
            if -2 in extents
            else self.group.all_reduce_rows(parameter.grad, counts)
        )

    def gather_parameters_(self) -> None:
        """After the optimizers' steps: all-gather the rows that each process updated."""
        changed = [table for table in self.sharded.values() if table.rows.grad is not None]
        for table in changed:
            table.all_gather()
        if any(table.gradients is not None for table in changed):
            self.group.barrier()

    def release(self) -> None:
        """After the last step: stop sharing memory."""
        if any(table.gradients is not None for table in self.sharded.values()):
            self.group.barrier()  # another process may still be reading
        for table in self.sharded.values():
            table.release()


class _ShardedTable:
    """A table that all processes have, of which this one updates a range of rows.

    On one machine the table is in shared memory, so an update by one rank is an update for all. Each rank also has room
    there for a gradient, from which the other ranks read what they sum. All ranks wait for each other twice a step.
    Between the first time, before `sum_gradient`, and the second, after `all_gather`, a rank writes its own rows of the
    table and reads no others; at all other times all ranks may read the table and none writes it. Gradients are written
    when the table is read, and read when it is written.
    """

    def __init__(self, group: Group, table: Tensor) -> None:
        self.group, self.table = group, table
        self.shares = group.shares(len(table))
        self.counts = [len(share) for share in self.shares]
        self.own = _rows(self.shares[group.rank])
        self.gradients = self._share()
        self.received: Tensor | None = None
        self.rows = nn.Parameter(table.data[self.own])  # a view of the table

    def _share(self) -> Tensor | None:
        """Move the table to shared memory with room for the gradients of all ranks; None where there is none."""
        table, size = self.table, self.group.size
        if table.device.type != "cpu" or table.dtype != torch.float32:
            return None
        shared = self.group.shared_memory(table.numel() + -(-table.numel() // size))
        if shared is None:
            return None
        gradients, rest = shared.flatten().tensor_split([size * table.numel()])
        common = rest[: table.numel()].view(table.shape)
        if self.group.rank == 0:  # the table is the same on all ranks
            common.copy_(table.data)
        self.group.barrier()
        table.data = common
        return gradients.view(size, *table.shape)

    def publish_gradient(self) -> None:
        """Before the message that tells the kinds of gradients: let the other ranks read this one."""
        gradient = self.table.grad
        if self.gradients is None or gradient is None:
            return
        for rank, share in enumerate(self.shares):
            if rank != self.group.rank:
                self.gradients[self.group.rank, _rows(share)] = gradient[_rows(share)]

    def sum_gradient(self, present: Sequence[bool]) -> None:
        """After it: sum the gradients of this process's rows over the ranks that have one."""
        gradient, self.table.grad = self.table.grad, None
        if not any(present):
            return
        if self.gradients is None:
            whole = torch.zeros_like(self.table) if gradient is None else gradient
            own, size = self.counts[self.group.rank], self.group.size
            if self.received is None:  # reused: allocating it takes as long as the message
                self.received = whole.new_empty((size * own, *whole.shape[1:]))
            self.group.all_to_all_rows(whole, self.counts, [own] * size, out=self.received)
            self.rows.grad = self.received.view(size, own, *whole.shape[1:]).sum(0)
            return
        total = torch.zeros_like(self.rows) if gradient is None else gradient[self.own]
        for rank, there in enumerate(present):
            if there and rank != self.group.rank:
                total += self.gradients[rank, self.own]
        self.rows.grad = total

    def all_gather(self) -> None:
        """Send the rows that were updated here to the other ranks, unless the table is in shared memory."""
        self.rows.grad = None
        if self.gradients is None:
            self.group.all_gather_table_(self.table.data, self.counts)

    def release(self) -> None:
        """Move the table out of shared memory."""
        if self.gradients is not None:
            self.table.data, self.gradients = self.table.data.clone(), None
            self.rows.data = self.table.data[self.own]


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
