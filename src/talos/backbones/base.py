"""The interface of all backbones: item vectors, the vectors of a batch of rows, and a loss of their own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from talos.checks import require
from talos.kernels.csr import Batch

__all__ = ["Backbone"]


class Backbone(nn.Module, ABC):
    """Gives a vector to every item and to every row of a batch; knows nothing of losses, negatives or thresholds.

    Parameters are made on the CPU with the given generator: `.to(device)` moves them, `state_dict` holds them and
    nothing else. In a training step `items` is called first, then `users` for the rows of the batch, then
    `auxiliary_loss`; after training, `items` and then `users` for all users, in eval mode and without autograd.

    A subclass implements `items` and `users`; `talos.registry` says how it describes its options.

    Attributes:
        context: constructor arguments that come from the run, for those that take them: the sizes, the
            `BipartiteGraph` of the train interactions as `graph`, the `generator` of the starting values, and for
            a divisible backbone the ranges of rows, `users` and `items`, that this process holds.
        shown: attributes that `repr` shows.
        rows: what a row of a training batch is: a user with all positives, or a position in the user's history with
            the next item as its positive (`positions`).
        history: how many items of a history `Batch.history` has; 0 for a backbone that does not look at histories.
        divisible: whether a vector depends on its own table row alone, so that each of several processes can hold a
            range of users (and of items); `num_users` and `num_items` are then the sizes of these ranges.
        has_auxiliary_loss: whether `auxiliary_loss` is to be called.
        first_user: the table row of user 0 of a batch: above 0 where a process trains some of the users and the table
            has all of them.

    >>> from talos.backbones import MF
    >>> from talos.kernels.csr import CSR
    >>> backbone = MF(3, 4, dim=2, generator=torch.Generator().manual_seed(0))
    >>> none = CSR.of(torch.zeros(2, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))
    >>> batch = Batch(users=torch.tensor([2]), positives=none, weights=torch.zeros(0))
    >>> backbone.items().shape, backbone.users(batch, backbone.items()).shape
    (torch.Size([4, 2]), torch.Size([1, 2]))
    """

    short_name: ClassVar[str] = ""
    context: ClassVar[tuple[str, ...]] = ("num_users", "num_items", "graph", "generator", "users", "items")
    search_space: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    shown: ClassVar[tuple[str, ...]] = ("num_users", "num_items", "dim")
    divisible: ClassVar[bool] = False
    has_auxiliary_loss: bool = False
    rows: ClassVar[Literal["users", "positions"]] = "users"
    history: int = 0
    first_user: int = 0

    def __init__(self, num_users: int, num_items: int, *, dim: int) -> None:
        super().__init__()
        for name, size in (("num_users", num_users), ("num_items", num_items), ("dim", dim)):
            require(size >= 1, f"{size}", where=name, expected="1 or more")
        self.num_users, self.num_items, self.dim = num_users, num_items, dim

    @abstractmethod
    def items(self, *, generator: torch.Generator | None = None) -> Tensor:
        """All item vectors (num_items, dim), not normalised.

        In training mode noise may be added; it comes from `generator`, and no other generator is touched.
        """

    @abstractmethod
    def users(self, batch: Batch, items: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """The vectors (R, dim) of the rows of a batch, not normalised; `items` is what `items()` returned before."""

    def encode(self, histories: Tensor, items: Tensor) -> Tensor | None:
        """The vectors (B, dim), not normalised, of people whom the model never saw; None if they are folded in instead.

        A run of a backbone that overrides this method holds its parameters, and every list for a history calls it.

        Args:
            histories: (B, L), items, the latest last, padded with -1 at the front.
            items: (num_items, dim), as `items()` returned them.
        """
        return None

    @property
    def encodes(self) -> bool:
        """Whether the class has an `encode` of its own."""
        return type(self).encode is not Backbone.encode

    def tables(self) -> tuple[nn.Parameter, nn.Parameter] | None:
        """The tables of users and of items from which all vectors follow; None if there are no such tables.

        A factorisation of the interactions can give these their starting values.
        """
        return None

    def auxiliary_loss(self, batch: Batch, *, bfloat16: bool = False) -> Tensor:
        """The backbone's own loss for a batch, already weighted; 0 unless `has_auxiliary_loss`.

        It is the loss of what the last `items` and `users` returned. `bfloat16` lets kernels round the factors of
        their products.
        """
        return batch.weights.new_zeros(())

    def extra_repr(self) -> str:
        """The attributes in `shown`, for `repr`."""
        return ", ".join(f"{name}={getattr(self, name)}" for name in self.shown)
