"""The process group: what the processes that train one model can do together, in `torch.distributed`'s words.

`Group` itself is the group of one process, for which every operation is the identity; `torch_group` has the group of
several. Code that works with a group therefore does not ask how large it is.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from safetensors import SafetensorError

from talos.errors import ConfigError, TalosError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["SINGLE_PROCESS", "Group", "OwnedRows", "all_or_none"]

Result = TypeVar("Result")


class Group:
    """The processes that train together. This class is a group of one process; subclasses have several.

    All ranks must call a method at the same point of the program. It returns the same on all of them unless its
    docstring says otherwise. A trailing underscore means that the tensor is changed in place.

    Attributes:
        rank: the number of this process, from 0.
        size: the number of processes.

    >>> SINGLE_PROCESS.rank, SINGLE_PROCESS.size, SINGLE_PROCESS.share(10)
    (0, 1, range(0, 10))
    >>> SINGLE_PROCESS.all_gather_numbers([1.0, 2.0])
    [[1.0, 2.0]]
    """

    rank: int = 0
    size: int = 1

    def share(self, count: int, of: str = "users") -> range:
        """Which of `count` users (or items) belong to this rank; see `shares`."""
        return self.shares(count, of)[self.rank]

    def shares(self, count: int, of: str = "users") -> list[range]:
        """The consecutive range of each rank. Their lengths differ by at most one.

        >>> three = Group()
        >>> three.size = 3
        >>> three.shares(7)
        [range(0, 2), range(2, 4), range(4, 7)]
        """
        if count < self.size:
            raise ConfigError(
                f"{self.size} processes for {count} {of}", where="parallel", expected="fewer processes"
            )
        cuts = [count * rank // self.size for rank in range(self.size + 1)]
        return [range(start, stop) for start, stop in itertools.pairwise(cuts)]

    def all_gather_numbers(self, numbers: Sequence[float]) -> list[list[float]]:
        """The numbers of every rank, by rank. All ranks give equally many."""
        return [list(numbers)]

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on at least one rank."""
        return flag

    def barrier(self) -> None:
        """Wait until every rank has called this."""
        self.all_gather_numbers([0.0])

    def mean(self, values: Tensor) -> Tensor:
        """The mean over the elements of all ranks, a scalar. Ranks may have different numbers of elements."""
        return values.mean()

    def broadcast_(self, tensor: Tensor) -> Tensor:
        """Overwrite the tensor with rank 0's values."""
        return tensor

    def all_reduce_(self, tensor: Tensor) -> Tensor:
        """Overwrite the tensor with the sum over ranks; all ranks get the same bits."""
        return tensor

    def all_reduce_rows(self, gradient: Tensor, counts: Sequence[int]) -> Tensor:
        """The sum over ranks of row-sparse tensors, coalesced; rank r's has `counts[r]` rows."""
        return gradient

    def all_gather_rows(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        """The rows of all ranks, concatenated in the order of ranks; rank r gives `counts[r]` rows."""
        return rows

    def all_gather_table_(self, table: Tensor, counts: Sequence[int]) -> Tensor:
        """The same within a table that all ranks have: `counts[0]` rows are taken from rank 0, and so on."""
        return table

    def all_to_all_rows(
        self, rows: Tensor, send: Sequence[int], receive: Sequence[int], *, out: Tensor | None = None
    ) -> Tensor:
        """Send `send[r]` consecutive rows to each rank r, and return the `receive[r]` rows that come from each.

        Received rows are in the order of ranks; with `out` they are written there. This rank's `receive[r]` is rank
        r's `send` for this rank.

        >>> import torch
        >>> SINGLE_PROCESS.all_to_all_rows(torch.arange(3), [3], [3])
        tensor([0, 1, 2])
        """
        return rows

    def gather_rows(self, rows: Tensor, total: int) -> Tensor | None:
        """On rank 0 the rows of all ranks, concatenated, (total, …) on the CPU; None on the other ranks."""
        return rows

    def shared_memory(self, numbers: int) -> Tensor | None:
        """(ranks, numbers) float32 on the CPU: memory that all ranks see, for as long as they hold the tensor.

        What a rank wrote is visible to the others after the next operation of the group. None in a group of one, with
        processes on several machines, and where the system does not have that much memory to share.
        """
        return None

    def check_same(self, **facts: Callable[[], str]) -> None:
        """Raise an error that names the fact and the rank where a fact differs from rank 0's.

        Facts are functions, because a group of one has nothing to compare and need not compute them.
        """


SINGLE_PROCESS = Group()
"""The group of one process."""


class OwnedRows:
    """The rows of one batch, of which every rank r owns `counts[r]` consecutive ones.

    >>> import torch
    >>> rows = OwnedRows(SINGLE_PROCESS, [2])
    >>> rows.collect(rows.spread(torch.ones(2))).shape
    torch.Size([1, 2])
    """

    def __init__(self, group: Group, counts: Sequence[int]) -> None:
        self.group, self.counts = group, list(counts)

    @property
    def own(self) -> slice:
        """Which rows of the batch this rank owns."""
        first = sum(self.counts[: self.group.rank])
        return slice(first, first + self.counts[self.group.rank])

    def spread(self, rows: Tensor) -> Tensor:
        """All-gather: (own, …) of every rank → (B, …) of the whole batch, on every rank."""
        return self.group.all_gather_rows(rows, self.counts)

    def collect(self, rows: Tensor) -> Tensor:
        """All-to-all: (B, …) of every rank → (ranks, own, …), every rank's values for the rows that this one owns."""
        own, size = self.counts[self.group.rank], self.group.size
        return self.group.all_to_all_rows(rows, self.counts, [own] * size).view(size, own, *rows.shape[1:])


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
        reason = problem or f"rank {failed[0]} could not do its part"
        raise TalosError(f"{what}: {reason}") from problem
    return found
