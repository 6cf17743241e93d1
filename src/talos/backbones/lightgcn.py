"""LightGCN: vectors averaged over neighbourhoods in the graph of interactions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from talos.backbones.base import Backbone, gaussian
from talos.backbones.graph import BipartiteGraph, propagate
from talos.errors import ArgumentError

__all__ = ["LightGCN"]


class LightGCN(Backbone):
    """LightGCN: linear propagation along the interactions, e = 1/(L+1) Σ_{l=0..L} Â^l e⁽⁰⁾, Â = D^-1/2 A D^-1/2.

    He, Deng, Wang, Li, Zhang, Wang: "LightGCN: Simplifying and Powering Graph Convolution Network for
    Recommendation", SIGIR 2020. The tables e⁽⁰⁾ start from N(0, 1), as in the paper of Talos. A user or item
    without interactions keeps e⁽⁰⁾/(L+1).

    Args:
        graph: of the train interactions.
        dim: length of a vector.
        layers: L; 0 is matrix factorisation.
        generator: of the starting values.

    >>> from talos.data.interactions import Interactions
    >>> graph = BipartiteGraph.from_interactions(Interactions.from_ids([1, 1, 2], [7, 8, 8]))
    >>> users, items = LightGCN(graph, dim=4, generator=torch.Generator().manual_seed(0)).vectors()
    >>> users.shape, items.requires_grad
    (torch.Size([2, 4]), True)
    """

    short_name = "lightgcn"
    search_space: ClassVar[Mapping[str, Any]] = {"layers": [1, 2, 3]}

    def __init__(
        self, graph: BipartiteGraph, *, dim: int = 64, layers: int = 2, generator: torch.Generator | None
    ) -> None:
        super().__init__(graph.num_users, graph.num_items, dim=dim)
        if layers < 0:
            raise ArgumentError(f"{layers}", where="layers", expected="0 or more")
        self.graph, self.layers = graph, layers
        self.users = gaussian(graph.num_users, dim, generator)
        self.items = gaussian(graph.num_items, dim, generator)

    def vectors(
        self, *, training: bool = False, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """The mean of layers 0..L; no noise, `training` changes nothing."""
        users: Tensor = self.users
        items: Tensor = self.items
        # Horner's rule, e⁽⁰⁾ + Â(e⁽⁰⁾ + Â(…)): as many products, and no layer is kept.
        for _ in range(self.layers):
            from_items, from_users = propagate(self.graph, users, items)
            users, items = self.users + from_items, self.items + from_users
        return users / (self.layers + 1), items / (self.layers + 1)

    def extra_repr(self) -> str:
        """Sizes and layers, for `repr`."""
        return f"{super().extra_repr()}, layers={self.layers}"
