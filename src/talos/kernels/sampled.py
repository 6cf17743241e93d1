"""Scores of users with items sampled per user, and their gradients, without gathering a vector per pair.

The textbook way gathers an item vector for every (user, item) pair, (B, n, d), and scatters as many back. Both
directions are in fact products with one sparse matrix S of B rows with n entries each:

    scores         dot products at the entries of S
    ∂/∂users       S, filled with the gradient, times the item table
    ∂/∂items       Sᵀ times the user table: the same once the entries are sorted by item

so nothing of size B·n·d exists. Where n is a large fraction of all items it is cheaper still to compute all scores
of a few users in one dense product and to select the sampled ones. Measured on one thread at B = n = 1024
and d = 64, forward and backward, out of 8,693 and 40,988 items (`benchmarks/textbook.py`): 28 and 40 ms, where
the textbook way takes 570 and 720 ms.
"""

from __future__ import annotations

import warnings
from typing import Any, Literal, TypeAlias, cast

import numpy as np
import scipy.sparse
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from talos.checks import require
from talos.kernels.core import checked_indices

__all__ = ["Way", "cheaper_way", "sampled_scores"]

Way: TypeAlias = Literal["dense", "sparse"]

# Numbers in a block of scores or of gathered vectors: 4 MB in float32, which stays in cache.
_BLOCK = 2**20
# Cost of a sampled score relative to one in a dense product: 28 ns to 7 ns, forward and backward, d = 64, one thread.
_SAMPLED_COST = 4.0

# torch warns once that CSR tensors are in beta: here, where the warning is ignored
with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta", UserWarning)
    torch.sparse_csr_tensor([0, 0], [], [], size=(1, 1), dtype=torch.float32, check_invariants=False)


def cheaper_way(num_items: int, n: int) -> Way:
    """Which way is expected to be faster for n sampled items per user out of `num_items`.

    The dense way computes all scores at the speed of a matrix product, the sparse way only the sampled ones at the
    speed of random access, which was measured to take 4 times as long per score. Both are linear in the
    number of users and about linear in the dimension, so those do not matter.

    >>> cheaper_way(8_693, 1024), cheaper_way(3_000, 1024)
    ('sparse', 'dense')
    """
    return "dense" if num_items <= _SAMPLED_COST * n else "sparse"


def sampled_scores(
    user_vectors: Tensor,
    item_vectors: Tensor,
    items: Tensor,
    *,
    way: Way | None = None,
) -> Tensor:
    """Scores s_uj = ⟨e_u, v_j⟩ of each user with the items j in their row of `items`, (B, n), with autograd.

    Equal to `(user_vectors[:, None] * item_vectors[items]).sum(-1)`. An item may occur any number of times.
    Not differentiable twice.

    Args:
        user_vectors: (B, d).
        item_vectors: (I, d).
        items: (B, n), int64, rows of `item_vectors`.
        way: `dense` or `sparse`, see the module; the cheaper one if None.

    >>> users, table = torch.eye(2), torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    >>> sampled_scores(users, table, torch.tensor([[0, 2], [1, 1]]))
    tensor([[1., 5.],
            [4., 4.]])
    """
    require(
        user_vectors.ndim == item_vectors.ndim == 2 and user_vectors.shape[1] == item_vectors.shape[1],
        f"shapes {tuple(user_vectors.shape)} and {tuple(item_vectors.shape)}",
        where="user_vectors, item_vectors",
        expected="(B, d) and (I, d)",
    )
    require(
        items.ndim == 2 and len(items) == len(user_vectors),
        f"shape {tuple(items.shape)}",
        where="items",
        expected=f"({len(user_vectors)}, n), one row per user",
    )
    if items.device.type == "cpu":
        # torch's sampled product does not check its indices and would read outside of the table.
        checked_indices("items", items, len(item_vectors))
    if items.numel() == 0:
        return (user_vectors.unsqueeze(1) * item_vectors[items]).sum(-1)
    dense = (way or cheaper_way(len(item_vectors), items.shape[1])) == "dense"
    product = _Dense if dense else _Sparse
    return cast(Tensor, product.apply(user_vectors, item_vectors, items))  # type: ignore[no-untyped-call]


class _Dense(torch.autograd.Function):
    """Computes all scores of a few users at a time and selects the sampled ones."""

    @staticmethod
    def forward(ctx: Any, users: Tensor, table: Tensor, items: Tensor) -> Tensor:
        ctx.save_for_backward(users, table, items)
        scores = users.new_empty(items.shape)
        step = max(1, _BLOCK // len(table))
        for here in (slice(start, start + step) for start in range(0, len(users), step)):
            torch.gather(users[here] @ table.T, 1, items[here], out=scores[here])
        return scores

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        users, table, items = ctx.saved_tensors
        to_users, to_table = torch.empty_like(users), torch.zeros_like(table)
        step = max(1, _BLOCK // len(table))
        buffer = users.new_empty(min(step, len(users)), len(table))
        for here in (slice(start, start + step) for start in range(0, len(users), step)):
            slopes = buffer[: len(users[here])].zero_().scatter_add_(1, items[here], gradient[here])
            torch.mm(slopes, table, out=to_users[here])
            to_table.addmm_(slopes.T, users[here])
        return to_users, to_table, None


class _Sparse(torch.autograd.Function):
    """Computes only the sampled scores, as a sparse matrix."""

    @staticmethod
    def forward(ctx: Any, users: Tensor, table: Tensor, items: Tensor) -> Tensor:
        ctx.save_for_backward(users, table, items)
        if users.device.type == "cpu" and users.dtype in (torch.float32, torch.float64):
            return _dots(users, table, items)
        return _dots_by_gathering(users, table, items)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        users, table, items = ctx.saved_tensors
        starts = torch.arange(0, items.numel() + 1, items.shape[1], device=items.device)
        to_users = _row_sums(items.flatten(), starts, gradient.flatten(), table)
        return to_users, _row_sums(*_by_item(items, gradient.contiguous(), len(table)), users), None


def _by_item(items: Tensor, gradient: Tensor, num_items: int) -> tuple[Tensor, Tensor, Tensor]:
    """The entries sorted by item, as CSR of the transposed matrix: their rows, the items' offsets, their gradients.

    The order within an item is fixed, so that sums are reproducible to the bit.
    """
    n = items.shape[1]
    small = max(items.numel(), num_items) < 2**31
    if items.device.type == "cpu" and gradient.dtype in (torch.float32, torch.float64):
        # A counting sort that moves the values as well: four times faster than sorting and gathering.
        kind = np.int32 if small else np.int64
        by_user = scipy.sparse.csr_array(
            (
                gradient.flatten().numpy(),
                items.flatten().numpy().astype(kind),
                np.arange(0, items.numel() + 1, n, dtype=kind),
            ),
            shape=(len(items), num_items),
        )
        by_item = by_user.tocsc()
        rows, starts, slopes = map(torch.from_numpy, (by_item.indices, by_item.indptr, by_item.data))
        return rows, starts, slopes
    ascending, entry = items.flatten().to(torch.int32 if small else torch.int64).sort(stable=True)
    edges = torch.arange(num_items + 1, dtype=ascending.dtype, device=items.device)
    rows = entry.div(n, rounding_mode="floor")
    return rows, torch.searchsorted(ascending, edges), gradient.flatten()[entry]


def _row_sums(columns: Tensor, starts: Tensor, weights: Tensor, table: Tensor) -> Tensor:
    """A sparse matrix in CSR form times a table, by the fastest operation of torch for it, on any device."""
    return F.embedding_bag(
        columns, table.detach(), starts, mode="sum", per_sample_weights=weights, include_last_offset=True
    )


def _dots(users: Tensor, table: Tensor, items: Tensor) -> Tensor:
    """Dot products at the entries of a sparse matrix, by torch's sampled product, which gathers nothing."""
    pattern = torch.sparse_csr_tensor(
        torch.arange(0, items.numel() + 1, items.shape[1]),
        items.flatten(),
        users.new_zeros(items.numel()),  # zeros: β = 0 times uninitialised memory may be NaN
        size=(len(users), len(table)),
        check_invariants=False,
    )
    scores = torch.sparse.sampled_addmm(pattern, users.detach(), table.detach().T, beta=0.0)
    return cast(Tensor, scores.values()).view(items.shape)


def _dots_by_gathering(users: Tensor, table: Tensor, items: Tensor) -> Tensor:
    """The same by gathering, a few users at a time, for devices and types without the sampled product."""
    scores = users.new_empty(items.shape)
    step = max(1, _BLOCK // (items.shape[1] * users.shape[1]))
    for here in (slice(start, start + step) for start in range(0, len(users), step)):
        scores[here] = torch.bmm(F.embedding(items[here], table), users[here].unsqueeze(-1)).squeeze(-1)
    return scores
