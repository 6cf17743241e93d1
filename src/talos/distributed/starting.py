"""How a process joins the others, and leaves them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta

from talos.distributed.group import ALONE, Group
from talos.distributed.torch_group import LostRankError, torch_group
from talos.errors import ConfigError

__all__ = ["current", "start", "stop"]

# Seconds that a rank may let the others wait, unless the environment says otherwise.
TIMEOUT = 600.0

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
        _current = torch_group(seconds)
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
