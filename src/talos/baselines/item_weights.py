"""Weights between items: how much each item of a history adds to the score of every item."""

from __future__ import annotations

import numpy as np
import scipy.sparse
import torch
import torch.nn.functional as F
from torch import Tensor

from talos.checks import require

__all__ = ["ItemWeights"]


class ItemWeights:
    """W (items, items): with a history H, the score of item i is Σ_{h∈H} W[h, i]. Dense, or sparse as CSR.

    Args:
        weights: a float32 tensor (items, items), or a `scipy.sparse.csr_array` of that shape.

    >>> weights = ItemWeights(torch.tensor([[0.0, 2.0], [1.0, 0.0]]))
    >>> out = torch.empty(2, 2)
    >>> weights.add_up(torch.tensor([0, 1, 3]), torch.tensor([0, 0, 1]), out)
    >>> out
    tensor([[0., 2.],
            [1., 2.]])
    """

    def __init__(self, weights: Tensor | scipy.sparse.csr_array) -> None:
        require(
            len(weights.shape) == 2 and weights.shape[0] == weights.shape[1],
            f"{tuple(weights.shape)}",
            where="weights",
            expected="items × items",
        )
        self.weights = weights

    @classmethod
    def from_csr(cls, indptr: Tensor, indices: Tensor, values: Tensor) -> ItemWeights:
        """Sparse weights from CSR arrays; row h has the weights from item h."""
        arrays = (values.numpy(), indices.numpy(), indptr.numpy())
        return cls(scipy.sparse.csr_array(arrays, shape=(len(indptr) - 1,) * 2))

    @property
    def num_items(self) -> int:
        """The number of items."""
        return int(self.weights.shape[0])

    def add_up(self, indptr: Tensor, indices: Tensor, out: Tensor) -> None:
        """Write the scores of B histories, given as CSR, into `out` (B, items)."""
        if isinstance(self.weights, Tensor):
            # embedding_bag sums the rows of each history without gathering them
            sums = F.embedding_bag(indices, self.weights, indptr, mode="sum", include_last_offset=True)
        else:
            ones = np.ones(len(indices), np.float32)
            shape = (len(indptr) - 1, self.num_items)
            histories = scipy.sparse.csr_array((ones, indices.numpy(), indptr.numpy()), shape=shape)
            sums = torch.from_numpy((histories @ self.weights).toarray())
        out.copy_(sums)

    def column(self, item: int) -> Tensor:
        """The weights from every item to one item, (items,)."""
        if isinstance(self.weights, Tensor):
            return self.weights[:, item]
        return torch.from_numpy(self.weights[:, [item]].toarray()[:, 0])

    def __getitem__(self, items: Tensor) -> Tensor:
        """The weights from some items (…) to every item, (…, items): rows of W as vectors of these items."""
        if isinstance(self.weights, Tensor):
            return self.weights[items]
        rows = self.weights[items.flatten().numpy()].toarray()
        return torch.from_numpy(rows).view(*items.shape, self.num_items)

    def dense(self) -> Tensor:
        """W as a dense tensor: for tests and small examples."""
        return self.weights if isinstance(self.weights, Tensor) else torch.from_numpy(self.weights.toarray())

    def tensors(self) -> dict[str, Tensor]:
        """The tensors of a file, by name: one dense tensor, or the three arrays of CSR."""
        if isinstance(self.weights, Tensor):
            return {"item_weights": self.weights}
        return {
            "item_weights.indptr": torch.from_numpy(self.weights.indptr.astype(np.int64)),
            "item_weights.indices": torch.from_numpy(self.weights.indices.astype(np.int32)),
            "item_weights.values": torch.from_numpy(self.weights.data.astype(np.float32)),
        }
