"""Baselines whose scores are dot products: popularity, and alternating least squares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from talos.baselines.base import VectorBaseline
from talos.checks import positive_integer, positive_number, require_memory
from talos.data.interactions import Interactions
from talos.kernels.least_squares import alternating_least_squares, solve_rows_

__all__ = ["ALS", "Popularity"]

# Conjugate-gradient steps of a fold-in: enough to converge to rounding error, unlike those of a sweep.
_FOLD_IN_STEPS = 32
# Copies of both tables that a sweep holds: the factors, and what conjugate gradients need beside them.
_COPIES = 3


class Popularity(VectorBaseline):
    """Popularity: every user gets the items that most users have.

    Vectors have one number: 1 for a user, the number of train interactions for an item.

    >>> data = Interactions.from_ids([1, 1, 2], [7, 8, 8])
    >>> [vectors.flatten().tolist() for vectors in Popularity().fit(data)]
    [[1.0, 1.0], [1.0, 2.0]]
    """

    short_name = "popularity"
    compares_items = False

    def fit(self, train: Interactions, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Ones, and the counts; nothing is random."""
        return torch.ones(train.num_users, 1), torch.tensor(train.item_degrees).float().unsqueeze(-1)

    def fold_in(self, item_vectors: Tensor, indptr: Tensor, indices: Tensor) -> Tensor:
        """Ones: the history makes no difference."""
        return torch.ones(len(indptr) - 1, 1)


class ALS(VectorBaseline):
    """ALS: implicit-feedback matrix factorisation by alternating least squares, in the compiled core.

    Minimises Σ c_ui (p_ui - ⟨x_u, y_i⟩)² + λ(Σ|x_u|² + Σ|y_i|²) with c = 1 + α for interactions and 1 elsewhere (Hu,
    Koren & Volinsky, ICDM 2008); see `talos.kernels.alternating_least_squares`. A new user's vector is the exact
    minimum for the history.

    Args:
        dim: length of a vector.
        regularization: λ.
        weight: α, how much more an interaction counts than a pair without one.
        sweeps: over users and items.

    >>> data = Interactions.from_ids([1, 1, 2, 2], [7, 8, 9, 10])
    >>> users, items = ALS(dim=2, regularization=0.1).fit(data, torch.Generator().manual_seed(0))
    >>> (users @ items.T).round().abs()
    tensor([[1., 1., 0., 0.],
            [0., 0., 1., 1.]])
    """

    short_name = "als"
    random = True
    search_space: ClassVar[Mapping[str, Any]] = {
        "dim": [32, 64, 128, 256],
        "regularization": {"low": 0.3, "high": 300.0, "log": True},
        "weight": {"low": 0.1, "high": 100.0, "log": True},
        "sweeps": [5, 10, 15],
    }

    def __init__(
        self, *, dim: int = 64, regularization: float = 30.0, weight: float = 10.0, sweeps: int = 10
    ) -> None:
        self.dim = positive_integer("dim", dim)
        self.regularization = positive_number("regularization", regularization)
        self.weight = positive_number("weight", weight)
        self.sweeps = positive_integer("sweeps", sweeps)

    def check(self, train: Interactions) -> None:
        """Raise an error also if the factors do not fit into memory."""
        super().check(train)
        numbers = _COPIES * (train.num_users + train.num_items) * self.dim + 3 * self.dim**2
        require_memory(4.0 * numbers, "ALS", where="baseline.dim", hint="a smaller dim takes less")

    def fit(self, train: Interactions, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """The factors; `generator` draws their starting values."""
        return alternating_least_squares(
            torch.tensor(train.indptr),
            torch.tensor(train.indices, dtype=torch.int64),
            train.num_items,
            generator=generator,
            **vars(self),
        )

    def fold_in(self, item_vectors: Tensor, indptr: Tensor, indices: Tensor) -> Tensor:
        """The minimum over the user's vector with the items fixed; 0 for an empty history."""
        gram = item_vectors.T @ item_vectors
        gram.diagonal().add_(self.regularization)
        vectors = torch.zeros(len(indptr) - 1, item_vectors.shape[1])
        solve_rows_(vectors, indptr, indices, item_vectors, gram, weight=self.weight, steps=_FOLD_IN_STEPS)
        return vectors
