"""The group of one, of which every operation is the identity; larger ones do the same for several processes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from talos.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["ALONE", "Group", "OwnedRows"]


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

    def wait(self) -> None:
        """Go on when every rank has come here."""
        self.exchange([0.0])

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

    def spread_own_(self, table: Tensor, counts: Sequence[int]) -> Tensor:
        """The same in place, of a table that all ranks have: the first `counts[0]` rows are rank 0's, and so on."""
        return table

    def collect_rows(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        """What every rank has in some rows, (ranks, own, …), of as many rows as all have together, (B, …).

        Of these B rows the first `counts[0]` go to rank 0, the next to rank 1 and so on: each gets its own.
        """
        return rows.unsqueeze(0)

    def deal_rows(
        self, rows: Tensor, given: Sequence[int], taken: Sequence[int], *, into: Tensor | None = None
    ) -> Tensor:
        """Rows that change hands: `given[r]` of these go to rank r, in order, and `taken[r]` come from it.

        What is taken comes in the order of the ranks; each has this rank's `taken` as its own `given`. With `into`
        it is put there.

        >>> import torch
        >>> ALONE.deal_rows(torch.arange(3), [3], [3])
        tensor([0, 1, 2])
        """
        return rows

    def shared_memory(self, numbers: int) -> Tensor | None:
        """(ranks, numbers) in float32, on the CPU: memory that is the same on all ranks, for as long as they hold it.

        What one of them wrote the others see after the next message of all. None where there is no such memory:
        in a group of one, on several machines, or where the system has not as much to give.
        """
        return None

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
