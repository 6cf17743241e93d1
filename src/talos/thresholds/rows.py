"""Counts, means and order statistics of rows of scores."""

from __future__ import annotations

import torch
from torch import Tensor

from talos.thresholds.checks import check_finite

__all__ = ["count_above", "kth_largest", "mean_by_user", "padded"]

# Elements per thread in a block of rows on the CPU: a temporary of this size stays in the second-level cache.
_BLOCK = 2**17


def count_above(name: str, scores: Tensor, beta: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """How many scores of each row are above its β, and how many there are, both (B,); NaN is an error.

    >>> count_above("scores", torch.tensor([[0.1, 0.9, 0.5]]), torch.tensor([0.4]), None)
    (tensor([2.]), tensor([3.]))
    """
    rows, columns = scores.shape
    exact = torch.promote_types(scores.dtype, torch.float32)
    above = scores.new_empty(rows, dtype=exact)
    # Blocks of rows on the CPU, so that the temporary stays in cache; sums of floats are vectorised where
    # sums of booleans are not.
    cached = _BLOCK * torch.get_num_threads()
    block = max(1, cached // max(1, columns)) if scores.device.type == "cpu" else max(1, rows)
    ones = scores.new_empty(min(block, rows), columns, dtype=exact)
    checksum = torch.zeros((), device=scores.device)  # read while in cache; NaN comes through
    for start in range(0, rows, block):
        here = slice(start, min(start + block, rows))
        checksum = checksum + scores[here].sum()
        higher = torch.gt(scores[here], beta[here].unsqueeze(-1), out=ones[: here.stop - start])
        if mask is not None:
            higher.masked_fill_(mask[here], 0.0)
        torch.sum(higher, dim=-1, out=above[here])
    if not torch.isfinite(checksum):
        check_finite(name, scores, mask)
    total = torch.full_like(above, columns) if mask is None else (~mask).sum(dim=-1).to(exact)
    return above, total


def mean_by_user(users: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct users and the mean of the values of each.

    >>> mean_by_user(torch.tensor([7, 3, 7]), torch.tensor([1.0, 5.0, 2.0]))
    (tensor([3, 7]), tensor([5.0000, 1.5000]))
    """
    distinct, row_of, count = torch.unique(users, return_inverse=True, return_counts=True)
    return distinct, values.new_zeros(len(distinct)).index_add(0, row_of, values) / count


def kth_largest(scores: Tensor, k: int) -> Tensor:
    """The K-th largest of each row, (B,).

    >>> kth_largest(torch.tensor([[1, 5, 3]]), 2)
    tensor([3])
    """
    return torch.topk(scores, k, dim=-1, sorted=False).values.amin(dim=-1)


def padded(flat: Tensor, owner: Tensor, rows: int, filler: float) -> Tensor:
    """Ragged values (P,) with their rows (P,) as a matrix, the rest filled.

    >>> padded(torch.tensor([1, 2, 3]), torch.tensor([1, 0, 1]), 2, 0)
    tensor([[2, 0],
            [1, 3]])
    """
    order = torch.argsort(owner, stable=True)
    count = torch.bincount(owner, minlength=rows)
    start = torch.cumsum(count, 0) - count
    row = owner[order]
    column = torch.arange(len(flat), device=flat.device) - start[row]
    width = int(count.max()) if len(flat) else 0
    matrix = flat.new_full((rows, width), filler)
    matrix[row, column] = flat[order]
    return matrix
