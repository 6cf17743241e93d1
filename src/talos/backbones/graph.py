"""The bipartite graph of users and items, and one step of propagation along its edges.

With R the users × items matrix of train, D the degrees and R̂ = D_U^-1/2 R D_I^-1/2, the symmetrically
normalised adjacency is [[0, R̂], [R̂ᵀ, 0]]. One product with it is two half products, R̂·items and R̂ᵀ·users,
and being symmetric it is its own transpose: the backward pass is the same two products with the gradients.

Each half is a weighted sum of rows, which is what `F.embedding_bag` computes. On a CPU that is three to five
times faster than torch's CSR products and over ten times faster than COO (`benchmarks/propagation.py`), it
runs wherever torch does, and it needs no memory but its result.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from talos.backbones.base import Backbone
from talos.backbones.tables import look_up
from talos.checks import require
from talos.data.interactions import Interactions
from talos.errors import ArgumentError, DataError
from talos.kernels.csr import Batch

__all__ = ["BipartiteGraph", "GraphBackbone", "propagate"]

# For either side: where the neighbours of each node start, the neighbours, and their weights.
_BUFFERS = ("starts", "neighbours", "weights")


class BipartiteGraph(nn.Module):
    """R̂ and R̂ᵀ, each as neighbours by node (CSR) with weights 1/√(d_u·d_i); made once from train.

    Memory is linear in edges. The tensors are buffers, so that `.to(device)` of a backbone moves the graph too,
    but not persistent ones: they are data and not learnt. A user or item without edges has an empty row, whose sum
    is 0.

    >>> graph = BipartiteGraph.from_interactions(Interactions.from_ids(["a", "a", "b"], ["x", "y", "y"]))
    >>> graph
    BipartiteGraph(num_users=2, num_items=2, num_edges=3)
    >>> graph.dense()
    tensor([[0.7071, 0.5000],
            [0.0000, 0.7071]])
    """

    def __init__(self, indptr: NDArray[Any], indices: NDArray[Any], *, num_items: int) -> None:
        """From the CSR arrays of users × items; prefer `from_interactions`."""
        super().__init__()
        self.num_users, self.num_items, self.num_edges = len(indptr) - 1, num_items, len(indices)
        # 32-bit indices halve the memory and are as fast.
        kind = np.int32 if max(self.num_edges, self.num_users, num_items) < 2**31 else np.int64
        user_degrees, item_degrees = np.diff(indptr), np.bincount(indices, minlength=num_items)
        rows = np.repeat(np.arange(self.num_users, dtype=kind), user_degrees)
        by_item = np.argsort(indices, kind="stable")
        # Only nodes with edges occur below, so no degree of zero is ever divided by.
        weights = (1.0 / np.sqrt(user_degrees[rows] * item_degrees[indices].astype(np.float64))).astype(
            np.float32
        )
        arrays = {
            "user_starts": np.asarray(indptr, kind),
            "user_neighbours": np.array(indices, kind),
            "user_weights": weights,
            "item_starts": np.concatenate([[0], np.cumsum(item_degrees)]).astype(kind),
            "item_neighbours": rows[by_item],
            "item_weights": weights[by_item],
        }
        for name, array in arrays.items():
            self.register_buffer(name, torch.tensor(array), persistent=False)

    @classmethod
    def from_interactions(cls, train: Interactions) -> BipartiteGraph:
        """The graph of these interactions; none at all is an error."""
        require(
            len(train) > 0,
            "no interactions to make a graph of",
            where=train.provenance.source,
            expected="one or more",
            error=DataError,
        )
        return cls(train.indptr, train.indices, num_items=train.num_items)

    def dense(self) -> Tensor:
        """R̂ as (num_users, num_items): for tests and small examples."""
        return self.sums("user", torch.eye(self.num_items, device=self.get_buffer("user_weights").device))

    def sums(self, side: str, table: Tensor) -> Tensor:
        """R̂·table for the side "user", R̂ᵀ·table for "item", without autograd; `propagate` has it."""
        starts, neighbours, weights = (self.get_buffer(f"{side}_{name}") for name in _BUFFERS)
        # Detached: with gradients embedding_bag takes a slower path that stores what its own backward would need.
        return F.embedding_bag(
            neighbours,
            table.detach(),
            starts,
            mode="sum",
            per_sample_weights=weights.to(table.dtype),
            include_last_offset=True,
        )

    def extra_repr(self) -> str:
        """Sizes, for `repr`."""
        return f"num_users={self.num_users}, num_items={self.num_items}, num_edges={self.num_edges}"


class _Propagate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, graph: BipartiteGraph, users: Tensor, items: Tensor) -> tuple[Tensor, Tensor]:
        ctx.graph = graph
        require(
            users.shape[:-1] == (graph.num_users,) and items.shape[:-1] == (graph.num_items,),
            f"tables of {tuple(users.shape)} and {tuple(items.shape)}",
            where="users, items",
            expected=f"({graph.num_users}, d) and ({graph.num_items}, d)",
        )
        return graph.sums("user", items), graph.sums("item", users)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor, Tensor]:
        # The matrix is symmetric; going through `propagate` keeps higher derivatives right.
        return None, *propagate(ctx.graph, gradients[0], gradients[1])


def propagate(graph: BipartiteGraph, users: Tensor, items: Tensor) -> tuple[Tensor, Tensor]:
    """One step along the edges, with autograd: (R̂·items, R̂ᵀ·users).

    e_u ← Σ_{i∈P_u} e_i / √(|P_u|·|P_i|), and likewise for items, from the vectors of the other side. Nodes
    without edges get zeros. Nothing is kept for the backward pass. The tables are on the graph's device.

    >>> graph = BipartiteGraph.from_interactions(Interactions.from_ids(["a", "a"], ["x", "y"]))
    >>> [side.tolist() for side in propagate(graph, torch.ones(1, 1), torch.tensor([[2.0], [4.0]]))]
    [[[4.2426...]], [[0.7071...], [0.7071...]]]
    """
    return cast(tuple[Tensor, Tensor], _Propagate.apply(graph, users, items))  # type: ignore[no-untyped-call]


class GraphBackbone(Backbone):
    """Two tables of vectors that are propagated along the interactions.

    A subclass makes the tables. `items` propagates both sides at once and keeps the users' for the calls of `users`
    that follow.
    """

    user_table: nn.Parameter
    item_table: nn.Parameter

    def __init__(self, graph: BipartiteGraph, *, dim: int) -> None:
        super().__init__(graph.num_users, graph.num_items, dim=dim)
        self.graph = graph
        self._users: Tensor | None = None

    @abstractmethod
    def propagated(self, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """All vectors of users and of items; noise, in training mode, comes from `generator`."""

    def items(self, *, generator: torch.Generator | None = None) -> Tensor:
        """The propagated items."""
        self._users, items = self.propagated(generator)
        return items

    def users(self, batch: Batch, items: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Rows of the propagated users."""
        if self._users is None:
            raise ArgumentError(
                "nothing was propagated", where="users", expected="a call of items() before it"
            )
        return look_up(self._users, batch.users + self.first_user)

    def tables(self) -> tuple[nn.Parameter, nn.Parameter]:
        """The tables before propagation."""
        return self.user_table, self.item_table

    def __getstate__(self) -> dict[str, Any]:
        # propagated vectors have autograd history, which cannot be copied; a copy has no use for them
        return {**self.__dict__, "_users": None}
