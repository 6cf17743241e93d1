"""What every backbone is to a trainer: tables of user and item vectors, and maybe a loss of its own."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

from talos.errors import ArgumentError

__all__ = ["Backbone"]

# Rows drawn at a time where only some are kept; a multiple of 16.
_DRAWN = 1 << 14


class Backbone(nn.Module, ABC):
    """Gives a vector to every user and item; knows nothing of losses, negatives or thresholds.

    The parameters are two tables, `users` (num_users, dim) and `items` (num_items, dim), made on the CPU
    with the given generator: `.to(device)` moves them, `state_dict` holds them and nothing else.

    Attributes:
        num_users: rows of the user table.
        num_items: rows of the item table.
        dim: length of a vector.
        short_name: the name in configurations and on the command line.
        needs_graph: whether the constructor takes a `BipartiteGraph` in place of the two sizes.
        divisible: whether a vector is a matter of one row alone, so that several processes can have a range of
            users (and of items) each; the constructor then takes `users` and `items`, ranges of rows, and
            `num_users` and `num_items` are their numbers.

    >>> from talos.backbones import MF
    >>> backbone = MF(3, 4, dim=2, generator=torch.Generator().manual_seed(0))
    >>> [tuple(table.shape) for table in backbone.vectors()]
    [(3, 2), (4, 2)]
    """

    short_name: ClassVar[str] = ""
    needs_graph: ClassVar[bool] = False
    divisible: ClassVar[bool] = False

    users: nn.Parameter
    items: nn.Parameter

    def __init__(self, num_users: int, num_items: int, *, dim: int) -> None:
        super().__init__()
        for name, size in (("num_users", num_users), ("num_items", num_items), ("dim", dim)):
            if size < 1:
                raise ArgumentError(f"{size}", where=name, expected="1 or more")
        self.num_users, self.num_items, self.dim = num_users, num_items, dim

    @abstractmethod
    def vectors(
        self, *, training: bool = False, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """All user vectors (num_users, dim) and item vectors (num_items, dim), not normalised.

        Args:
            training: whether this is for a training step; only then may noise be added.
            generator: where that noise comes from; the state of no other generator is touched.
        """

    def auxiliary_loss(self, users: Tensor, items: Tensor) -> Tensor | None:
        """The backbone's own loss for a batch, already weighted; None where it has none.

        Speaks of what the last `vectors(training=True)` returned; call it before the next one.

        Args:
            users: indices of the batch's users; repeated ones count once.
            items: indices of its items, likewise.
        """
        return None

    def extra_repr(self) -> str:
        """Sizes, for `repr`."""
        return f"num_users={self.num_users}, num_items={self.num_items}, dim={self.dim}"


def gaussian(
    rows: int, dim: int, generator: torch.Generator | None, *, only: range | None = None
) -> nn.Parameter:
    """A table of N(0, 1) numbers; with `only`, consecutive rows of what it would be, without making the rest.

    >>> whole, part = (
    ...     gaussian(5, 3, torch.Generator().manual_seed(0), only=only) for only in (None, range(2, 4)))
    >>> torch.equal(whole[2:4], part)
    True
    """
    if only is None:
        return nn.Parameter(torch.randn(rows, dim, generator=generator))
    # Torch fills a tensor from the front in groups of 16 numbers and does the last 16 again if some are left
    # over: blocks of a multiple of 16, with no short one at the end, are the numbers of the whole.
    table = torch.empty(len(only), dim)
    starts = [*range(0, max(1, rows - _DRAWN + 1), _DRAWN), rows]
    for start, end in itertools.pairwise(starts):
        block = torch.randn(end - start, dim, generator=generator)
        first, last = max(start, only.start), min(end, only.stop)
        if first < last:
            table[first - only.start : last - only.start] = block[first - start : last - start]
    return nn.Parameter(table)
