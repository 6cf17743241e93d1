"""Matrix factorisation: the tables of parameters are the vectors."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from talos.backbones.base import Backbone
from talos.backbones.tables import gaussian, look_up
from talos.kernels.csr import Batch

__all__ = ["MF"]


class MF(Backbone):
    """Matrix factorisation: two free tables of vectors, drawn from N(0, 1).

    `items` returns the leaf parameter itself, so that nothing is computed and the optimizer may update single rows.
    With `users` or `items` a table holds only these rows, with the starting values they have in the whole table.

    >>> mf = MF(2, 3, dim=4, generator=torch.Generator().manual_seed(0))
    >>> mf.items() is mf.item_table
    True
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
        own_users = num_users if users is None else len(users)
        super().__init__(own_users, num_items if items is None else len(items), dim=dim)
        self.user_table = gaussian(num_users, dim, generator, only=users)
        self.item_table = gaussian(num_items, dim, generator, only=items)

    def items(self, *, generator: torch.Generator | None = None) -> Tensor:
        """The parameter; nothing is computed."""
        return self.item_table

    def users(self, batch: Batch, items: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Rows of the users' table."""
        return look_up(self.user_table, batch.users + self.first_user, distinct=batch.distinct)

    def tables(self) -> tuple[nn.Parameter, nn.Parameter]:
        """Both parameters."""
        return self.user_table, self.item_table
