"""Alternating least squares in several processes, each of which has the interactions of its own users only.

A user's row depends on that user's interactions and on all items, so each process solves its own users' rows. An item's
row depends on all users: all processes run its conjugate gradients, and all-reduce the sums over users, `items × d`
numbers a step. The result is that of `talos.kernels.alternating_least_squares`, up to rounding.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from talos.backbones.tables import gaussian
from talos.distributed import Group
from talos.kernels.least_squares import GATHERED, conjugate_gradients, row_blocks, solve_rows_, sweeps_for

__all__ = ["sharded_least_squares"]


@torch.no_grad()
def sharded_least_squares(
    indptr: Tensor,
    indices: Tensor,
    num_items: int,
    *,
    dim: int,
    generator: torch.Generator | None,
    group: Group,
    sweeps: int | None = None,
    regularization: float = 10.0,
    weight: float = 40.0,
    steps: int = 3,
) -> tuple[Tensor, Tensor]:
    """Vectors of this process's users and of all items, as a single process with all users would find them.

    `indptr` (own users + 1,) and `indices` are the CSR interactions of this process's users; rank 0's come first,
    then rank 1's, and so on. `generator` must be in the same state in every process. The other arguments are
    those of `talos.kernels.alternating_least_squares`. Returns float32 on the CPU, (own users, d) and (I, d); items
    have the same bits in every process.

    >>> from talos.distributed import SINGLE_PROCESS
    >>> users, items = sharded_least_squares(
    ...     torch.tensor([0, 1, 2]), torch.tensor([0, 1]), 2, dim=2, regularization=0.1, sweeps=16,
    ...     generator=torch.Generator().manual_seed(0), group=SINGLE_PROCESS)
    >>> (users @ items.T).round(decimals=1).abs()
    tensor([[1., 0.],
            [0., 1.]])
    """
    indptr, indices = indptr.cpu(), indices.cpu()
    sizes = [
        [int(number) for number in rank] for rank in group.all_gather_numbers([len(indptr) - 1, len(indices)])
    ]
    first, total = sum(users for users, _ in sizes[: group.rank]), sum(users for users, _ in sizes)
    sweeps = sweeps_for(total, sum(entries for _, entries in sizes)) if sweeps is None else sweeps
    users = gaussian(total, dim, generator, only=range(first, first + len(indptr) - 1)).data.mul_(0.01)
    items = gaussian(num_items, dim, generator).data.mul_(0.01)
    links = _Links(indptr, indices, num_items)
    known = group.all_reduce_(torch.bincount(indices, minlength=num_items)) > 0
    diagonal = regularization * torch.eye(dim)
    for _ in range(sweeps):
        solve_rows_(users, indptr, indices, items, items.T @ items + diagonal, weight=weight, steps=steps)
        gram = group.all_reduce_(users.T @ users) + diagonal
        items = _solve_items(items, links, users, gram, group, weight=weight, steps=steps)
        items = torch.where(known.unsqueeze(1), items, 0.0)
    return users, items


class _Links:
    """The sparse matrix of own users × all items, with one number per interaction."""

    def __init__(self, indptr: Tensor, indices: Tensor, num_items: int) -> None:
        self.indptr, self.indices = indptr, indices
        self.matrix = scipy.sparse.csr_array(
            (np.ones(len(indices), np.float32), indices.numpy(), indptr.numpy()),
            shape=(len(indptr) - 1, num_items),
        )

    def scores(self, users: Tensor, items: Tensor) -> Tensor:
        """⟨y_u, x_i⟩ of each interaction, (P,)."""
        found, lengths = torch.empty(len(self.indices)), self.indptr.diff()
        for rows, entries in row_blocks(self.indptr, GATHERED // users.shape[1]):
            y = users[rows].repeat_interleave(lengths[rows], dim=0)
            found[entries] = y.mul_(items[self.indices[entries]]).sum(1)
        return found

    def gathered(self, weights: Tensor, users: Tensor) -> Tensor:
        """Σ_u w_ui y_u for each item, over own users, (I, d)."""
        self.matrix.data[:] = weights.numpy()
        return torch.from_numpy(np.ascontiguousarray(self.matrix.T @ users.numpy()))


def _solve_items(
    x: Tensor, links: _Links, users: Tensor, gram: Tensor, group: Group, *, weight: float, steps: int
) -> Tensor:
    """Half a sweep: every item's row by conjugate gradients, with sums over the users of all processes."""

    def apply(rows: Tensor) -> Tensor:
        own = links.gathered(weight * links.scores(users, rows), users)
        return group.all_reduce_(own).add_(rows @ gram)

    wanted = group.all_reduce_(links.gathered(torch.full((len(links.indices),), 1 + weight), users))
    return conjugate_gradients(x, wanted, apply, steps)
