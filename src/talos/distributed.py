"""Several processes that train one model: who owns which rows, and how sums are made over all of them.

`start()` reads what torchrun (or SLURM, or Ray Train) left in the environment and gives a `Group`; without
several processes that is `ALONE`, a group of one for which every operation is the identity, so that nobody who
works with a group asks how large it is. Messages are tensors; nothing is pickled.

A process that ends or hangs is noticed by the others when they wait for it: they tell each other who is still
there, and the error names the ranks that are not.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from talos.errors import ArgumentError, ConfigError, TalosError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["ALONE", "Group", "LostRankError", "OwnedRows", "current", "join_gradients_", "start", "stop"]

# Seconds that a rank may let the others wait, unless the environment says otherwise.
TIMEOUT = 600.0
# Seconds in which those who noticed that a rank is lost can tell each other that they are not the one.
_ROLL_CALL = 5.0
# Rows sent at a time when a table is brought together: a message of tens of MB.
_ROWS = 1 << 17

Result = TypeVar("Result")


class LostRankError(TalosError):
    """Another process of the group ended or hangs; the message names it."""


class Group:
    """The processes that train together; this class is the group of one, where there is nobody to talk to.

    Every method is called by all ranks at the same place in the program, and returns the same on all of them
    unless it says otherwise.

    Attributes:
        rank: which of the processes this one is, from 0.
        size: how many there are.

    >>> ALONE.rank, ALONE.size, ALONE.share(10)
    (0, 1, range(0, 10))
    >>> ALONE.exchange([1.0, 2.0])
    [[1.0, 2.0]]
    """

    rank: int = 0
    size: int = 1

    def share(self, count: int, of: str = "users") -> range:
        """Which of `count` users (or items) belong to this rank; see `shares`.

        >>> [list(_Part(rank, 3).share(7)) for rank in range(3)]
        [[0, 1], [2, 3], [4, 5, 6]]
        """
        return self.shares(count, of)[self.rank]

    def shares(self, count: int, of: str = "users") -> list[range]:
        """Those of every rank, in order: consecutive ones, and as many as any other has, or one less.

        >>> ALONE.shares(7)
        [range(0, 7)]
        """
        if count < self.size:
            raise ConfigError(
                f"{self.size} processes for {count} {of}", where="parallel", expected="fewer processes"
            )
        cuts = [count * rank // self.size for rank in range(self.size + 1)]
        return [range(start, stop) for start, stop in itertools.pairwise(cuts)]

    def exchange(self, numbers: Sequence[float]) -> list[list[float]]:
        """The numbers of every rank, by rank; as many from each."""
        return [list(numbers)]

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on some rank."""
        return flag

    def mean(self, values: Tensor) -> Tensor:
        """The mean over the elements of all ranks, a scalar; each rank has its own number of them."""
        return values.mean()

    def sum_(self, tensor: Tensor) -> Tensor:
        """The sum over ranks, in place of the tensor; of one shape everywhere, and the same bits everywhere."""
        return tensor

    def sum_rows(self, gradient: Tensor, counts: Sequence[int]) -> Tensor:
        """The sum over ranks of row-sparse tensors, of which rank r has `counts[r]` rows."""
        return gradient

    def spread_rows(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        """The rows of all ranks one after the other, of which rank r has `counts[r]`."""
        return rows

    def collect_rows(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        """What every rank has in some rows, (ranks, own, …), of as many rows as all have together, (B, …).

        Of these B rows the first `counts[0]` go to rank 0, the next to rank 1 and so on: each gets its own.
        """
        return rows.unsqueeze(0)

    def copy_first_(self, tensor: Tensor) -> Tensor:
        """Rank 0's numbers, in place of the tensor's own."""
        return tensor

    def bring_together(self, rows: Tensor, total: int) -> Tensor | None:
        """On rank 0 the rows of all ranks one after the other, (total, …) on the CPU; None on other ranks."""
        return rows

    def check_same(self, **facts: str) -> None:
        """Refuse to go on where a rank has other facts (such as a hash of its data) than rank 0; names both."""


class _Part(Group):
    """A rank without the others, to ask what it would own."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size


ALONE = Group()
"""The group of one."""


class _TorchGroup(Group):
    """The default process group of `torch.distributed`: gloo for tensors on the CPU, nccl for those on GPUs."""

    def __init__(self, timeout: float) -> None:
        import torch
        import torch.distributed as dist

        self._torch, self._dist, self._timeout = torch, dist, timeout
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def exchange(self, numbers: Sequence[float]) -> list[list[float]]:
        mine = self._torch.tensor(list(numbers), dtype=self._torch.float64)
        return [part.tolist() for part in self._gather(mine)]

    def any(self, flag: bool) -> bool:
        return any(there for (there,) in self.exchange([float(flag)]))

    def mean(self, values: Tensor) -> Tensor:
        sums, counts = zip(*self.exchange([float(values.double().sum()), values.numel()]), strict=True)
        return values.new_tensor(sum(sums) / max(1.0, sum(counts)))

    def sum_(self, tensor: Tensor) -> Tensor:
        self._guarded(lambda: self._dist.all_reduce(tensor))
        return tensor

    def sum_rows(self, gradient: Tensor, counts: Sequence[int]) -> Tensor:
        torch, longest = self._torch, max(counts)
        rows = torch.zeros(longest, dtype=torch.int64, device=gradient.device)
        values = gradient.new_zeros((longest, *gradient.shape[1:]), layout=torch.strided)
        mine = counts[self.rank]
        rows[:mine], values[:mine] = gradient._indices()[0], gradient._values()
        kept = [
            torch.cat([part[:count] for part, count in zip(self._gather(padded), counts, strict=True)])
            for padded in (rows, values)
        ]
        joined = torch.sparse_coo_tensor(
            kept[0].unsqueeze(0), kept[1], gradient.shape, check_invariants=False
        )
        summed: Tensor = joined.coalesce()
        return summed

    def spread_rows(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        padded = rows.new_zeros((max(counts), *rows.shape[1:]))
        padded[: len(rows)] = rows
        parts = self._gather(padded)
        return self._torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    def collect_rows(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        own = counts[self.rank]
        theirs = rows.new_empty((self.size * own, *rows.shape[1:]))
        self._guarded(
            lambda: self._dist.all_to_all_single(theirs, rows.contiguous(), [own] * self.size, list(counts))
        )
        return theirs.view(self.size, own, *rows.shape[1:])

    def copy_first_(self, tensor: Tensor) -> Tensor:
        self._guarded(lambda: self._dist.broadcast(tensor, src=0))
        return tensor

    def bring_together(self, rows: Tensor, total: int) -> Tensor | None:
        dist = self._dist
        lengths = [int(length) for (length,) in self.exchange([float(len(rows))])]
        if sum(lengths) != total:
            raise ArgumentError(f"{sum(lengths)} rows", where="rows", expected=f"{total}")
        if self.rank != 0:
            for block in self._torch.split(rows.contiguous(), _ROWS):
                self._guarded(lambda block=block: dist.send(block, dst=0))  # type: ignore[misc]
            return None
        whole = rows.new_empty((total, *rows.shape[1:]), device="cpu")
        whole[: len(rows)] = rows
        first = len(rows)
        for rank, length in enumerate(lengths[1:], start=1):
            for block in self._torch.split(whole[first : first + length], _ROWS):
                buffer = rows.new_empty(block.shape)
                self._guarded(lambda buffer=buffer, rank=rank: dist.recv(buffer, src=rank))  # type: ignore[misc]
                block.copy_(buffer)
            first += length
        return whole

    def check_same(self, **facts: str) -> None:
        torch = self._torch
        for name, text in facts.items():
            digest = torch.tensor(list(hashlib.sha256(text.encode()).digest()), dtype=torch.uint8)
            first, *others = self._gather(digest)
            different = [
                rank for rank, other in enumerate(others, start=1) if not bool((other == first).all())
            ]
            if different:
                verb = "differ" if len(different) > 1 else "differs"
                raise ConfigError(
                    f"{_ranks(different)} {verb} from rank 0", where=name, expected="the same on every rank"
                )

    def _gather(self, tensor: Tensor) -> list[Tensor]:
        parts = [self._torch.empty_like(tensor) for _ in range(self.size)]
        self._guarded(lambda: self._dist.all_gather(parts, tensor))
        return parts

    def _guarded(self, act: Callable[[], Result]) -> Result:
        try:
            return act()
        except RuntimeError as error:
            raise self._lost(error) from error

    def _lost(self, error: RuntimeError) -> LostRankError:
        """Who does not answer, found by a roll call through the store that the group was made with."""
        reason = str(error).splitlines()[0]
        missing = [rank for rank in range(self.size) if rank != self.rank]
        try:
            store = self._dist.distributed_c10d._get_default_store()
            store.set(f"talos/here/{self.rank}", "yes")
            until = time.monotonic() + min(_ROLL_CALL, self._timeout)
            while missing and time.monotonic() < until:
                missing = [rank for rank in missing if not store.check([f"talos/here/{rank}"])]
                time.sleep(0.05)
        except RuntimeError:  # the store is gone, and rank 0 kept it
            missing = [0]
        who = (
            f"{_ranks(missing)} did not answer" if missing else "a message was lost, and all ranks are there"
        )
        return LostRankError(
            f"rank {self.rank} gives up: {who} within {self._timeout:g} s, or ended ({reason})"
        )


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


_current: Group = ALONE


def current() -> Group:
    """The group that this process started, or the group of one.

    >>> current().size
    1
    """
    return _current


def start(device: str = "cpu", *, timeout: float | None = None) -> Group:
    """Join the group that the environment speaks of; a process that is alone gets `ALONE`.

    Reads `RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT`, as torchrun sets them. Where a process group
    was made already (by Ray Train, or by the caller) it is used.

    Args:
        device: where the model is: with `cuda` gradients go through nccl, and `cuda` alone means the GPU of
            this process's `LOCAL_RANK`.
        timeout: seconds to wait for another rank; `TALOS_TIMEOUT` or ten minutes, if not given.

    >>> start() is ALONE
    True
    """
    global _current
    if _current.size > 1:
        return _current
    seconds = float(os.environ.get("TALOS_TIMEOUT", TIMEOUT)) if timeout is None else timeout
    wanted = int(os.environ.get("WORLD_SIZE", "1"))
    if wanted == 1 and "torch" not in _loaded():
        return ALONE
    import torch
    import torch.distributed as dist

    made = dist.is_available() and dist.is_initialized()
    if not made and wanted == 1:
        return ALONE
    if not dist.is_available():
        raise ConfigError(
            f"{wanted} processes", where="WORLD_SIZE", expected="1: this torch has no torch.distributed"
        )
    if not made:
        from torch.distributed.distributed_c10d import PrefixStore
        from torch.distributed.rendezvous import rendezvous

        gpu = device.startswith("cuda")
        if gpu:
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        try:
            # torchrun keeps its store when it starts the processes again: without a name for each attempt a rank
            # may find the address that a dead one left there, and wait for it
            attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
            span = timedelta(seconds=seconds)
            store, rank, size = next(rendezvous("env://", timeout=span))
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if gpu else "gloo",
                store=PrefixStore(f"talos/attempt-{attempt}", store),
                rank=rank,
                world_size=size,
                timeout=span,
            )
        except (RuntimeError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise LostRankError(
                f"rank {os.environ.get('RANK', '?')} of {wanted}: the group did not come together ({reason})"
            ) from error
    if dist.get_world_size() > 1:
        _current = _TorchGroup(seconds)
    return _current


def _loaded() -> Mapping[str, object]:
    import sys

    return sys.modules


def stop() -> None:
    """Leave the group, if there is one; the process is alone again."""
    global _current
    if _current.size > 1:
        import torch.distributed as dist

        _current = ALONE
        dist.destroy_process_group()


class OwnedRows:
    """The rows of one batch, of which every rank of a group owns some consecutive ones.

    Args:
        group: the ranks.
        counts: how many rows each of them owns.

    >>> import torch
    >>> rows = OwnedRows(ALONE, [2])
    >>> rows.collect(rows.spread(torch.ones(2))).shape
    torch.Size([1, 2])
    """

    def __init__(self, group: Group, counts: Sequence[int]) -> None:
        self.group, self.counts = group, list(counts)

    @property
    def own(self) -> slice:
        """Where this rank's rows are among all of them."""
        first = sum(self.counts[: self.group.rank])
        return slice(first, first + self.counts[self.group.rank])

    def spread(self, rows: Tensor) -> Tensor:
        """(own, …) of every rank → (B, …): the owners' rows, for everybody."""
        return self.group.spread_rows(rows, self.counts)

    def collect(self, rows: Tensor) -> Tensor:
        """(B, …) of every rank → (ranks, own, …): what each of them has in the rows that this rank owns."""
        return self.group.collect_rows(rows, self.counts)


def join_gradients_(group: Group, parameters: Sequence[Tensor], own: Sequence[Tensor], value: float) -> float:
    """Put the sum over ranks in the place of every gradient, and return that of `value`.

    A parameter in `own` has rows of this rank alone, and its gradient stays; a rank that had nothing to do with
    a parameter gets zeros (or no rows, where the others have sparse gradients), so that optimisers count the same
    steps everywhere. Where no rank has a gradient there is none afterwards.

    >>> import torch
    >>> table = torch.nn.Parameter(torch.zeros(2)); table.sum().backward()
    >>> join_gradients_(ALONE, [table], [], 0.5), table.grad
    (0.5, tensor([1., 1.]))
    """
    if group.size == 1:
        return value
    # One small message says who has what: -1 nothing, -2 all rows, else so many rows.
    said = group.exchange([value, *(_extent(parameter.grad) for parameter in parameters)])
    for parameter, *extents in zip(parameters, *(rank[1:] for rank in said), strict=True):
        if max(extents) < 0 and -2 not in extents:
            continue
        counts = [max(0, int(extent)) for extent in extents]
        if -2 in extents:
            if parameter.grad is None:
                parameter.grad = parameter.new_zeros(parameter.shape)
            elif parameter.grad.is_sparse:
                parameter.grad = parameter.grad.to_dense()
        elif parameter.grad is None:
            parameter.grad = _no_rows(parameter)
        if any(parameter is mine for mine in own):
            continue
        parameter.grad = (
            group.sum_(parameter.grad) if -2 in extents else group.sum_rows(parameter.grad, counts)
        )
    return sum(rank[0] for rank in said)


def _extent(gradient: Tensor | None) -> float:
    if gradient is None:
        return -1.0
    return float(gradient._nnz()) if gradient.is_sparse else -2.0


def _no_rows(parameter: Tensor) -> Tensor:
    import torch

    return torch.sparse_coo_tensor(
        torch.empty(1, 0, dtype=torch.int64, device=parameter.device),
        parameter.new_empty((0, *parameter.shape[1:])),
        parameter.shape,
        check_invariants=False,
    )
