"""The processes of `torch.distributed` as a group, and who of them is lost when one does not answer."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from talos.distributed.group import Group
from talos.distributed.shared_memory import shared_memory
from talos.errors import ArgumentError, ConfigError, TalosError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["LostRankError", "torch_group"]

# Seconds in which those who noticed that a rank is lost can tell each other that they are not the one.
_ROLL_CALL = 5.0
# Rows sent at a time when a table is brought together: a message of tens of MB.
_ROWS = 1 << 17

Result = TypeVar("Result")


class LostRankError(TalosError):
    """Another process of the group ended or hangs; the message names it."""


def torch_group(timeout: float) -> Group:
    """The default process group of `torch.distributed`, whose ranks wait so many seconds for each other."""
    return _TorchGroup(timeout)


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

    def spread_own_(self, table: Tensor, counts: Sequence[int]) -> Tensor:
        def act() -> None:
            sent = [
                self._dist.broadcast(rows, src=rank, async_op=True)
                for rank, rows in enumerate(self._torch.split(table, list(counts)))
            ]
            for message in sent:
                message.wait()

        self._guarded(act)
        return table

    def collect_rows(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        own = counts[self.rank]
        theirs = self.deal_rows(rows, counts, [own] * self.size)
        return theirs.view(self.size, own, *rows.shape[1:])

    def deal_rows(
        self, rows: Tensor, given: Sequence[int], taken: Sequence[int], *, into: Tensor | None = None
    ) -> Tensor:
        theirs = rows.new_empty((sum(taken), *rows.shape[1:])) if into is None else into
        self._guarded(
            lambda: self._dist.all_to_all_single(theirs, rows.contiguous(), list(taken), list(given))
        )
        return theirs

    def shared_memory(self, numbers: int) -> Tensor | None:
        return shared_memory(self, numbers)

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
