"""A backbone of our own that reads histories, in a module that a run can name: `gru_backbone:GRU`."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from talos.backbones import Backbone
from talos.kernels.csr import Batch


class GRU(Backbone):
    """The vector of a row is the last hidden state of a GRU over its history."""

    rows: ClassVar[Literal["users", "positions"]] = "positions"
    history = 8

    def __init__(
        self, num_users: int, num_items: int, *, dim: int = 16, generator: torch.Generator | None
    ) -> None:
        super().__init__(num_users, num_items, dim=dim)
        self.table = nn.Parameter(torch.randn(num_items, dim, generator=generator))
        self.cell = nn.utils.skip_init(nn.GRUCell, dim, dim)
        for parameter in self.cell.parameters():
            nn.init.uniform_(parameter, -(dim**-0.5), dim**-0.5, generator=generator)

    def items(self, *, generator: torch.Generator | None = None) -> Tensor:
        """The table."""
        return self.table

    def users(self, batch: Batch, items: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """The vectors of the rows' histories."""
        assert batch.history is not None
        return self.encode(batch.history, items)

    def encode(self, histories: Tensor, items: Tensor) -> Tensor:
        """The hidden state after the last item; padding leaves it as it is."""
        state = items.new_zeros(len(histories), self.dim)
        for column in histories.unbind(1):
            moved = self.cell(F.embedding(column.clamp(min=0), items), state)
            state = torch.where((column >= 0).unsqueeze(1), moved, state)
        return state
