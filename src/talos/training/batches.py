"""Which users or positives make up each step: a fresh order every epoch, from the seed alone."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from talos.negatives import TrainIndex

__all__ = ["Batches", "generator_for"]


def generator_for(seed: int, *path: int) -> torch.Generator:
    """A generator for one purpose, such as a pass of an epoch; the same path gives the same numbers.

    >>> torch.rand(1, generator=generator_for(0, 3)) == torch.rand(1, generator=generator_for(0, 3))
    tensor([True])
    """
    state = np.random.SeedSequence([seed, *path]).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state) & (2**63 - 1))


class Batches:
    """Batches of users (those with interactions) or of positives (positions in the index's edges).

    With `only_users`, of these users alone.

    >>> from talos.interactions import Interactions
    >>> index = TrainIndex.from_interactions(Interactions.from_ids([1, 2, 3], [7, 8, 9]))
    >>> batches = Batches(index, kind="users", size=2)
    >>> [len(batches.batch(batches.order(torch.Generator()), step)) for step in range(len(batches))]
    [2, 1]
    """

    def __init__(
        self,
        index: TrainIndex,
        *,
        kind: Literal["users", "positives"],
        size: int,
        only_users: Tensor | None = None,
    ) -> None:
        chosen = torch.full((index.num_users,), only_users is None, device=index.device)
        if only_users is not None:
            chosen[only_users] = True
        if kind == "users":
            self.population = (chosen & (index.degrees > 0)).nonzero().flatten()
        else:
            self.population = chosen.repeat_interleave(index.degrees).nonzero().flatten()
        self.size = size

    def __len__(self) -> int:
        return -(-len(self.population) // self.size)

    def order(self, generator: torch.Generator) -> Tensor:
        """The order of one epoch."""
        shuffled = torch.randperm(len(self.population), generator=generator)
        return self.population[shuffled.to(self.population.device)]

    def batch(self, order: Tensor, step: int) -> Tensor:
        """The members of one step, ascending: neighbours in a table are quicker to look up and to update."""
        return order[step * self.size : (step + 1) * self.size].sort().values
