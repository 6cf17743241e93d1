"""Memory that processes on one machine have in common: writing there is many times quicker than a message.

It is a file of `/dev/shm` that loses its name as soon as every process has it open, so nothing is left behind
however they end. `TALOS_SHARED_MEMORY=no` does without.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from talos.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from talos.distributed.group import Group

__all__ = ["shared_memory"]

_FOLDER = Path("/dev/shm")  # nobody else knows the name, and it is gone at once
# Bytes of the name of a file.
_NAME = 64


def shared_memory(group: Group, numbers: int) -> Tensor | None:
    """(ranks, numbers) in float32 that all ranks see, or None on all of them; see `Group.shared_memory`.

    >>> from talos.distributed.group import ALONE
    >>> memory = shared_memory(ALONE, 3)
    >>> memory is None or tuple(memory.shape) == (1, 3)
    True
    """
    import torch

    size = 4 * group.size * numbers
    name = torch.zeros(_NAME, dtype=torch.uint8)
    made: Path | None = None
    pages: mmap.mmap | None = None
    with contextlib.suppress(OSError):  # no such folder, or not as much room
        if group.rank == 0 and _wanted() and size > 0:
            made = _reserve(size)
            name[: len(made.name)] = torch.tensor(list(made.name.encode()), dtype=torch.uint8)
    try:
        group.copy_first_(name)
        told = bytes(name.tolist()).rstrip(b"\0").decode()
        with contextlib.suppress(OSError, ValueError):  # another machine, another container
            if told and _wanted():
                pages = _open(_FOLDER / told, size)
        everybody = not group.any(pages is None)
    finally:
        if made is not None:
            made.unlink(missing_ok=True)
    if pages is None or not everybody:
        return None
    return torch.frombuffer(pages, dtype=torch.float32).view(group.size, numbers)


def _wanted() -> bool:
    asked = os.environ.get("TALOS_SHARED_MEMORY", "auto")
    if asked not in ("auto", "no"):
        raise ConfigError(f"{asked!r}", where="TALOS_SHARED_MEMORY", expected="'auto' or 'no'")
    return asked == "auto"


def _reserve(size: int) -> Path:
    """A file that has all its memory: without it, writing there later would end the process."""
    handle, path = tempfile.mkstemp(prefix="talos-", dir=_FOLDER)
    try:
        os.posix_fallocate(handle, 0, size)
    except OSError:
        Path(path).unlink()
        raise
    finally:
        os.close(handle)
    return Path(path)


def _open(path: Path, size: int) -> mmap.mmap:
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), size)
