"""Work of several processes that is done by all of them or by none."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from safetensors import SafetensorError

from talos.distributed import Group
from talos.errors import TalosError

__all__ = ["in_step"]

Result = TypeVar("Result")


def in_step(group: Group, act: Callable[[], Result] | None, what: str) -> Result | None:
    """Do something, and go on when every process has done its part; if one of them cannot, none goes on.

    Args:
        group: the processes, each of which calls this.
        act: what this one has to do; None for nothing.
        what: how a message calls it.

    Raises:
        TalosError: what went wrong here, or which other rank could not do its part.

    >>> from talos.distributed import ALONE
    >>> in_step(ALONE, lambda: 3, "counting")
    3
    """
    problem: Exception | None = None
    found: Result | None = None
    try:
        found = None if act is None else act()
    except (OSError, SafetensorError, TalosError) as error:
        problem = error
    failed = [rank for rank, (bad,) in enumerate(group.exchange([problem is not None])) if bad]
    if isinstance(problem, TalosError):
        raise problem
    if failed:
        reason = problem or f"rank {failed[0]} could not do its part"
        raise TalosError(f"{what}: {reason}") from problem
    return found
