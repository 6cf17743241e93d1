"""LightGCN: vectors averaged over neighbourhoods in the graph of interactions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from talos.backbones.graph import BipartiteGraph, GraphBackbone, propagate
from talos.backbones.tables import gaussian
from talos.checks import require

__all__ = ["LightGCN"]


class LightGCN(GraphBackbone):
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
    >>> items = LightGCN(graph, dim=4, generator=torch.Generator().manual_seed(0)).items()
    >>> items.shape, items.requires_grad
    (torch.Size([2, 4]), True)
    """

    short_name = "lightgcn"
    search_space: ClassVar[Mapping[str, Any]] = {"layers": [1, 2, 3]}
    shown = (*GraphBackbone.shown, "layers")

    def __init__(
        self, graph: BipartiteGraph, *, dim: int = 64, layers: int = 2, generator: torch.Generator | None
    ) -> None:
        super().__init__(graph, dim=dim)
        require(layers >= 0, f"{layers}", where="layers", expected="0 or more")
        self.layers = layers
        self.user_table = gaussian(graph.num_users, dim, generator)
        self.item_table = gaussian(graph.num_items, dim, generator)

    def propagated(self, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """The mean of layers 0 to L; without noise."""
        sides: tuple[Tensor, Tensor] = self.tables()
        # Horner's rule, e⁽⁰⁾ + Â(e⁽⁰⁾ + Â(…)): as many products, and no layer is kept.
        for _ in range(self.layers):
            from_items, from_users = propagate(self.graph, *sides)
            sides = self.user_table + from_items, self.item_table + from_users
        return sides[0] / (self.layers + 1), sides[1] / (self.layers + 1)
