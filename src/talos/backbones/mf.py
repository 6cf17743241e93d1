"""Matrix factorisation: the tables of parameters are the vectors."""

from __future__ import annotations

import torch
from torch import Tensor

from talos.backbones.base import Backbone, gaussian

__all__ = ["MF"]


class MF(Backbone):
    """Matrix factorisation: two free tables of vectors, drawn from N(0, 1).

    `vectors` returns the two leaf parameters themselves, so that a trainer can look up the rows of a batch
    with a sparse gradient (`F.embedding(ids, table, sparse=table.is_leaf)`) and pay for nothing else.

    With `users` or `items` a table holds only these rows, with the starting values they have in the whole table.

    >>> mf = MF(2, 3, dim=4, generator=torch.Generator().manual_seed(0))
    >>> users, items = mf.vectors()
    >>> users is mf.users, items.is_leaf
    (True, True)
    """

    short_name = "mf"
    divisible = True

    def __init__(
        self,
        num_users: int,
        num_items: int,
        *,
        dim: int = 64,
        generator: torch.Generator | None,
        users: range | None = None,
        items: range | None = None,
    ) -> None:
        own_users, own_items = (
            whole if part is None else len(part) for whole, part in ((num_users, users), (num_items, items))
        )
        super().__init__(own_users, own_items, dim=dim)
        self.users = gaussian(num_users, dim, generator, only=users)
        self.items = gaussian(num_items, dim, generator, only=items)

    def vectors(
        self, *, training: bool = False, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """The two parameters; nothing is computed."""
        return self.users, self.items
