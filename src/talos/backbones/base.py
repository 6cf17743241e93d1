"""The interface of all backbones: tables of user and item vectors, and a loss of their own where they have one."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

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

    A subclass implements `vectors`; `talos.registry` says how it describes its options.

    Attributes:
        context: constructor arguments that come from the run, for those that take them: the sizes, the
            `BipartiteGraph` of the train interactions as `graph`, the `generator` of the starting values, and for
            a divisible backbone the ranges of rows, `users` and `items`, that this process holds.
        divisible: whether a vector depends on its own row alone, so that each of several processes can hold a
            range of users (and of items); `num_users` and `num_items` are then the sizes of these ranges.

    >>> from talos.backbones import MF
    >>> backbone = MF(3, 4, dim=2, generator=torch.Generator().manual_seed(0))
    >>> [tuple(table.shape) for table in backbone.vectors()]
    [(3, 2), (4, 2)]
    """

    short_name: ClassVar[str] = ""
    context: ClassVar[tuple[str, ...]] = ("num_users", "num_items", "graph", "generator", "users", "items")
    search_space: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    divisible: ClassVar[bool] = False
    # How two views of some rows are contrasted, where that is done; a trainer may have a faster function for it.
    contrast: Callable[[Tensor, Tensor, float], Tensor] | None = None

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

        It is the loss of what the last `vectors(training=True)` returned; call it before the next one.

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
    """A table of N(0, 1) numbers; with `only`, just these rows of it, without holding the rest."""
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
