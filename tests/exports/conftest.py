"""Models without training."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import polars as pl
import pytest
import torch

from talos.data.interactions import Interactions
from talos.data.vocabulary import Vocabulary
from talos.model.model import Model, Vectors

Make = Callable[..., Model]


@pytest.fixture
def make() -> Make:
    """A model with random vectors; user 0 has nothing, user 1 has everything but two items."""

    def build(
        users: int = 90,
        items: int = 40,
        dim: int = 8,
        *,
        strings: bool = True,
        seed: int = 0,
        titles: bool = False,
    ) -> Model:
        rng = np.random.default_rng(seed)
        has = rng.random((users, items)) < 0.2
        has[0], has[1], has[1, :2] = False, True, False
        of_valid = has & (rng.random(has.shape) < 0.2)
        names = {
            "user_ids": Vocabulary(
                pl.Series([f"u,{u:05d} é" for u in range(users)] if strings else range(users))
            ),
            "item_ids": Vocabulary(
                pl.Series([f'i"{i:05d}' for i in range(items)] if strings else range(items))
            ),
        }
        title = pl.Series([f"Title {i}" for i in range(items)]) if titles else None
        parts = [
            Interactions.from_codes(*np.nonzero(rows), **names, item_titles=title)
            for rows in (has & ~of_valid, of_valid)
        ]
        torch.manual_seed(seed)
        return Model(
            # eighths: products are exact in whatever order they are added up, and some scores are equal
            scored_by=Vectors(
                torch.randint(-16, 17, (users, dim)) / 8,
                torch.randint(-16, 17, (items, dim)) / 8,
                torch.rand(users),
            ),
            train=parts[0],
            valid=parts[1],
            metadata={"config": {"k": 5}},
        )

    return build
