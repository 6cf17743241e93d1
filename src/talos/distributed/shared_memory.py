"""Memory shared by the processes of one machine: writing there is many times faster than sending a message.

It is a file in `/dev/shm` that is unlinked as soon as every process has it open, so nothing is left behind however the
processes end. `TALOS_SHARED_MEMORY=no` turns it off.
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

_FOLDER = Path("/dev/shm")
# Length of the message that carries the file's name, in bytes.
_NAME = 64


def shared_memory(group: Group, numbers: int) -> Tensor | None:
    """(ranks, numbers) float32 that all ranks see, or None on all of them; see `Group.shared_memory`.

    >>> from talos.distributed.group import SINGLE_PROCESS
    >>> memory = shared_memory(SINGLE_PROCESS, 3)
    >>> memory is None or tuple(memory.shape) == (1, 3)
    True
    """
    import torch

    size = 4 * group.size * numbers
    name = torch.zeros(_NAME, dtype=torch.uint8)
    made: Path | None = None
    pages: mmap.mmap | None = None
    with contextlib.suppress(OSError):  # there is no such folder, or it is too small
        if group.rank == 0 and _wanted() and size > 0:
            made = _reserve(size)
            name[: len(made.name)] = torch.tensor(list(made.name.encode()), dtype=torch.uint8)
    try:
        group.broadcast_(name)
        received = bytes(name.tolist()).rstrip(b"\0").decode()
        with contextlib.suppress(OSError, ValueError):  # rank 0 is on another machine or in another container
            if received and _wanted():
                pages = _open(_FOLDER / received, size)
        missing = group.any(pages is None)
    finally:
        if made is not None:
            made.unlink(missing_ok=True)
    if pages is None or missing:
        return None
    return torch.frombuffer(pages, dtype=torch.float32).view(group.size, numbers)


def _wanted() -> bool:
    value = os.environ.get("TALOS_SHARED_MEMORY", "auto")
    if value not in ("auto", "no"):
        raise ConfigError(f"{value!r}", where="TALOS_SHARED_MEMORY", expected="'auto' or 'no'")
    return value == "auto"


def _reserve(size: int) -> Path:
    """A file with all its pages allocated: writing to a page that cannot be allocated would kill the process."""
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
