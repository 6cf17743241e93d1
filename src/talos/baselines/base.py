"""The interface of all baselines."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor

from talos.baselines.item_weights import ItemWeights
from talos.checks import require
from talos.data.interactions import Interactions
from talos.errors import DataError

__all__ = ["Baseline", "ItemBaseline", "VectorBaseline"]


class Baseline(ABC):
    """A model that is computed from the interactions; derive from `VectorBaseline` or `ItemBaseline`.

    The arguments of the constructor are its options; `talos.registry` says how a class describes them.

    Attributes:
        context: constructor arguments that come from the run: none.
        search_space: the options that `talos tune` searches by default.
        random: whether the result depends on the seed.
    """

    short_name: ClassVar[str] = ""
    context: ClassVar[tuple[str, ...]] = ()
    search_space: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    random: ClassVar[bool] = False

    def check(self, train: Interactions) -> None:
        """Raise a `DataError` if the baseline cannot be computed from these interactions."""
        require(
            len(train) > 0,
            "no interactions",
            where=train.provenance.source,
            expected="one or more",
            error=DataError,
        )

    @abstractmethod
    def fit(self, train: Interactions, generator: torch.Generator | None = None) -> Any:
        """Vectors or weights, see the two kinds; random values are drawn from `generator`."""

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({given})"


class VectorBaseline(Baseline):
    """A baseline whose scores are dot products of vectors.

    Attributes:
        compares_items: whether vectors that point the same way mean similar items (and similar users).
    """

    compares_items: ClassVar[bool] = True

    @abstractmethod
    def fit(self, train: Interactions, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """User vectors (num_users, d) and item vectors (num_items, d), float32; random values are from `generator`."""

    @abstractmethod
    def fold_in(self, item_vectors: Tensor, indptr: Tensor, indices: Tensor) -> Tensor:
        """Vectors (B, d) of new users, from their histories.

        Args:
            item_vectors: (num_items, d), as `fit` returned them.
            indptr: (B + 1,); `indices[indptr[u]:indptr[u + 1]]` is the history of the u-th user.
            indices: positions of items, int64.
        """


class ItemBaseline(Baseline):
    """A baseline whose scores are sums of weights from the items of a user's history to every item."""

    @abstractmethod
    def fit(self, train: Interactions, generator: torch.Generator | None = None) -> ItemWeights:
        """The weights; random values are drawn from `generator`."""
