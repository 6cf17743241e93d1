"""The process group: what the processes that train one model can do together, in `torch.distributed`'s words.

`Group` itself is the group of one process, for which every operation is the identity; `torch_group` has the group of
several. Code that works with a group therefore does not ask how large it is.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from safetensors import SafetensorError

from talos.checks import require
from talos.errors import ConfigError, TalosError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["SINGLE_PROCESS", "Group", "all_or_none"]

Result = TypeVar("Result")


class Group:
    """The processes that train together. This class is a group of one process; subclasses have several.

    All ranks must call a method at the same point of the program. It returns the same on all of them unless its
    docstring says otherwise. A trailing underscore means that the tensor is changed in place.

    Attributes:
        rank: the number of this process, from 0.
        size: the number of processes.

    >>> SINGLE_PROCESS.rank, SINGLE_PROCESS.size, SINGLE_PROCESS.range_of(10)
    (0, 1, range(0, 10))
    >>> SINGLE_PROCESS.all_gather_numbers([1.0, 2.0])
    [[1.0, 2.0]]
    """

    rank: int = 0
    size: int = 1

    def range_of(self, count: int, of: str = "users") -> range:
        """Which of `count` users (or items) belong to this rank; see `shares`."""
        return self.ranges_of(count, of)[self.rank]

    def ranges_of(self, count: int, of: str = "users") -> list[range]:
        """The consecutive range of each rank. Their lengths differ by at most one.

        >>> three = Group()
        >>> three.size = 3
        >>> three.ranges_of(7)
        [range(0, 2), range(2, 4), range(4, 7)]
        """
        require(
            count >= self.size,
            f"{self.size} processes for {count} {of}",
            where="parallel",
            expected="fewer processes",
            error=ConfigError,
        )
        cuts = [count * rank // self.size for rank in range(self.size + 1)]
        return [range(start, stop) for start, stop in itertools.pairwise(cuts)]

    def all_gather_numbers(self, numbers: Sequence[float]) -> list[list[float]]:
        """The numbers of every rank, by rank. All ranks give equally many."""
        return [list(numbers)]

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on at least one rank."""
        return any(there for (there,) in self.all_gather_numbers([float(flag)]))

    def mean(self, values: Tensor) -> Tensor:
        """The mean over the elements of all ranks, a scalar. Ranks may have different numbers of elements."""
        return values.mean()

    def broadcast_(self, tensor: Tensor) -> Tensor:
        """Overwrite the tensor with rank 0's values."""
        return tensor

    def all_reduce_(self, tensor: Tensor) -> Tensor:
        """Overwrite the tensor with the sum over ranks; all ranks get the same bits."""
        return tensor

    def all_gather(self, tensor: Tensor) -> Tensor:
        """The tensors of all ranks, which have one shape, (ranks, …)."""
        return tensor.unsqueeze(0)

    def all_gather_rows(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        """The rows of all ranks, concatenated in the order of ranks; rank r gives `counts[r]` rows."""
        return rows

    def gather_rows(self, rows: Tensor, total: int) -> Tensor | None:
        """On rank 0 the rows of all ranks, concatenated, (total, …) on the CPU; None on the other ranks."""
        return rows

    def check_same(self, **facts: Callable[[], str]) -> None:
        """Raise an error that names the fact and the rank where a fact differs from rank 0's.

        Facts are functions, because a group of one has nothing to compare and need not compute them.
        """


SINGLE_PROCESS = Group()
"""The group of one process."""


def all_or_none(group: Group, act: Callable[[], Result] | None, what: str) -> Result | None:
    """Run `act` (None for nothing) on every rank, and return only if it succeeded on all; otherwise every rank raises.

    Raises:
        TalosError: this rank's own error, or, after `what`, which other rank failed.

    >>> all_or_none(SINGLE_PROCESS, lambda: 3, "counting")
    3
    """
    problem: Exception | None = None
    found: Result | None = None
    try:
        found = None if act is None else act()
    except (OSError, SafetensorError, TalosError) as error:
        problem = error
    failed = [rank for rank, (bad,) in enumerate(group.all_gather_numbers([problem is not None])) if bad]
    if isinstance(problem, TalosError):
        raise problem
    if failed:
        raise TalosError(f"{what}: {problem or f'rank {failed[0]} could not do its part'}") from problem
    return found
