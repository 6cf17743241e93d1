"""Join, use and leave the default process group of `torch.distributed`."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from talos.checks import require
from talos.distributed.group import SINGLE_PROCESS, Group
from talos.errors import ConfigError, TalosError, first_line

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["TIMEOUT", "LostRankError", "current", "start", "stop"]

# Default of how long to wait for another rank, in seconds; the environment variable TALOS_TIMEOUT overrides it.
TIMEOUT = 600.0
# Seconds in which the ranks that noticed a lost rank report that they are alive.
_ROLL_CALL = 5.0
# Rows in one message of `gather_rows`: tens of MB.
_ROWS = 1 << 17

_current: Group = SINGLE_PROCESS


class LostRankError(TalosError):
    """Another process of the group ended or hangs; the message names it."""


def current() -> Group:
    """The group that this process started, or the group of one.

    >>> current().size
    1
    """
    return _current


def start(device: str = "cpu", *, timeout: float | None = None) -> Group:
    """Join the process group that the environment describes; without one, return `SINGLE_PROCESS`.

    Reads `RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT`, as torchrun sets them. A process group that exists
    already (made by Ray Train, or by the caller) is used as it is.

    Args:
        device: where the model is. With `cuda`, tensors on GPUs go through nccl, and `cuda` without a number is the
            GPU of this process's `LOCAL_RANK`.
        timeout: seconds to wait for another rank; if not given, `TALOS_TIMEOUT` or ten minutes.

    >>> start() is SINGLE_PROCESS
    True
    """
    global _current
    if _current.size > 1:
        return _current
    seconds = _number_in("TALOS_TIMEOUT", float, TIMEOUT) if timeout is None else timeout
    require(
        0 < seconds < 1e9,
        f"{seconds:g} seconds",
        where="TALOS_TIMEOUT",
        expected="more than 0",
        error=ConfigError,
    )
    wanted = _number_in("WORLD_SIZE", int, 1)
    if wanted == 1 and "torch" not in sys.modules:
        return SINGLE_PROCESS
    import torch.distributed as dist

    made = dist.is_available() and dist.is_initialized()
    if not made and wanted == 1:
        return SINGLE_PROCESS
    require(
        dist.is_available(),
        f"{wanted} processes",
        where="WORLD_SIZE",
        expected="1: this torch has no torch.distributed",
        error=ConfigError,
    )
    if not made:
        _join(device, wanted, seconds)
    if dist.get_world_size() > 1:
        _current = _TorchGroup(seconds)
    return _current


Number = TypeVar("Number", int, float)


def _number_in(variable: str, kind: type[Number], default: Number) -> Number:
    """The number in a variable of the environment; the default if it is not set."""
    text = os.environ.get(variable, "")
    try:
        return kind(text) if text else default
    except ValueError:
        raise ConfigError(f"{text!r}", where=variable, expected="a number") from None


def _join(device: str, wanted: int, seconds: float) -> None:
    """Make the default process group from the environment."""
    import torch
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    gpu = device.startswith("cuda")
    if gpu:
        torch.cuda.set_device(_number_in("LOCAL_RANK", int, 0))
    try:
        # torchrun keeps its store when it restarts the processes: without a prefix for each attempt a rank may find
        # the address that a dead one left there, and wait for it
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
        raise LostRankError(
            f"rank {os.environ.get('RANK', '?')} of {wanted}: the processes could not form a group "
            f"({first_line(error)})"
        ) from error


def stop() -> None:
    """Leave the group, if there is one; `current` is `SINGLE_PROCESS` afterwards."""
    global _current
    if _current.size > 1:
        import torch.distributed as dist

        _current = SINGLE_PROCESS
        dist.destroy_process_group()


class _TorchGroup(Group):
    """The default process group of `torch.distributed`: gloo for tensors on the CPU, nccl for those on GPUs."""

    def __init__(self, timeout: float) -> None:
        import torch.distributed

        self._torch, self._dist, self._timeout = torch, torch.distributed, timeout
        self.rank, self.size = self._dist.get_rank(), self._dist.get_world_size()

    def all_gather_numbers(self, numbers: Sequence[float]) -> list[list[float]]:
        found: list[list[float]] = self.all_gather(
            self._torch.tensor(list(numbers), dtype=self._torch.float64)
        ).tolist()
        return found

    def mean(self, values: Tensor) -> Tensor:
        sums, counts = zip(
            *self.all_gather_numbers([float(values.double().sum()), values.numel()]), strict=True
        )
        return values.new_tensor(sum(sums) / max(1.0, sum(counts)))

    def all_reduce_(self, tensor: Tensor) -> Tensor:
        self._guarded(lambda: self._dist.all_reduce(tensor))
        return tensor

    def all_gather_rows(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        padded = rows.new_zeros((max(counts), *rows.shape[1:]))
        padded[: len(rows)] = rows
        everyone = zip(self.all_gather(padded), counts, strict=True)
        return self._torch.cat([theirs[:count] for theirs, count in everyone])

    def all_gather(self, tensor: Tensor) -> Tensor:
        found = tensor.new_empty((self.size, *tensor.shape))
        self._guarded(lambda: self._dist.all_gather(list(found), tensor.contiguous()))
        return found

    def broadcast_(self, tensor: Tensor) -> Tensor:
        self._guarded(lambda: self._dist.broadcast(tensor, src=0))
        return tensor

    def gather_rows(self, rows: Tensor, total: int) -> Tensor | None:
        dist = self._dist
        lengths = [int(length) for (length,) in self.all_gather_numbers([float(len(rows))])]
        require(sum(lengths) == total, f"{sum(lengths)} rows", where="rows", expected=f"{total}")
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

    def check_same(self, **facts: Callable[[], str]) -> None:
        for name, fact in facts.items():
            digest = self._torch.tensor(list(hashlib.sha256(fact().encode()).digest()))
            first, *others = self.all_gather(digest)
            different = [
                rank for rank, other in enumerate(others, start=1) if not bool((other == first).all())
            ]
            if different:
                verb = "differ" if len(different) > 1 else "differs"
                raise ConfigError(
                    f"{_ranks(different)} {verb} from rank 0", where=name, expected="the same on every rank"
                )

    def _guarded(self, act: Callable[[], object]) -> None:
        try:
            act()
        except RuntimeError as error:
            raise self._lost(error) from error

    def _lost(self, error: RuntimeError) -> LostRankError:
        """An error that names the ranks that did not report to the store that the group was made with."""
        missing = [rank for rank in range(self.size) if rank != self.rank]
        try:
            store = self._dist.distributed_c10d._get_default_store()
            store.set(f"talos/here/{self.rank}", "yes")
            until = time.monotonic() + min(_ROLL_CALL, self._timeout)
            while missing and time.monotonic() < until:
                missing = [rank for rank in missing if not store.check([f"talos/here/{rank}"])]
                time.sleep(0.05)
        except RuntimeError:  # the store is gone: rank 0 hosted it
            missing = [0]
        who = (
            f"{_ranks(missing)} did not answer" if missing else "a message was lost, and all ranks are there"
        )
        return LostRankError(
            f"rank {self.rank} gives up: {who} within {self._timeout:g} s, or ended ({first_line(error)})"
        )


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
