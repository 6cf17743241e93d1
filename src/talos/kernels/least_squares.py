"""Alternating least squares for implicit feedback: a quick factorisation from which training can start."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from talos.checks import require
from talos.kernels import core

__all__ = ["alternating_least_squares", "conjugate_gradients", "row_blocks", "solve_rows_", "sweeps_for"]

# Sweeps times entries per row: rows with few entries need more sweeps, because information travels one link a sweep.
_ENTRIES_SWEPT = 96
_FEWEST_SWEEPS, _MOST_SWEEPS = 4, 16
# Numbers in the vectors gathered at a time in the torch version: a few MB.
GATHERED = 2**22
# A residual this small cannot be improved in float32; as in the core.
_SMALL = 1e-20


@torch.no_grad()
def alternating_least_squares(
    indptr: Tensor,
    indices: Tensor,
    num_items: int,
    *,
    dim: int,
    generator: torch.Generator | None,
    weights: Tensor | None = None,
    sweeps: int | None = None,
    regularization: float = 10.0,
    weight: float = 40.0,
    steps: int = 3,
) -> tuple[Tensor, Tensor]:
    """User and item vectors of the implicit-feedback factorisation (Hu, Koren & Volinsky, ICDM 2008).

    Minimises Σ_ui c_ui (p_ui - ⟨x_u, y_i⟩)² + λ(Σ|x_u|² + Σ|y_i|²) with p = 1 and c = 1 + α w_ui for the
    interactions, p = 0 and c = 1 elsewhere, over users and items in turn; each row by a few steps of conjugate
    gradients from its previous value. Memory and time are linear in the interactions. Rows without any become 0.

    Runs in the compiled core where it is built, in torch elsewhere; the results are equal up to rounding.

    Args:
        indptr: (users + 1,), int64, CSR of the interactions.
        indices: (P,), int64, items.
        num_items: |I|.
        dim: length of a vector.
        generator: of the initial values, N(0, 0.01²).
        weights: w (P,) of the interactions, 0 or more; 1 for all if None.
        sweeps: over users and items; `sweeps_for` the data if None.
        regularization: λ.
        weight: α.
        steps: of conjugate gradients per row and sweep.

    Returns:
        Users (U, d) and items (I, d), float32, on the CPU.

    >>> users, items = alternating_least_squares(
    ...     torch.tensor([0, 1, 2]), torch.tensor([0, 1]), 2, dim=2, regularization=0.1,
    ...     generator=torch.Generator().manual_seed(0))
    >>> (users @ items.T).round(decimals=1).abs()
    tensor([[1., 0.],
            [0., 1.]])
    """
    sweeps = sweeps_for(len(indptr) - 1, len(indices)) if sweeps is None else sweeps
    for name, number in (("dim", dim), ("sweeps", sweeps), ("steps", steps)):
        require(number >= 1, f"{number}", where=name, expected="1 or more")
    require(
        regularization > 0 and weight >= 0,
        f"{regularization}, {weight}",
        where="regularization, weight",
        expected="above 0, and 0 or more",
    )
    values = None if weights is None else weights.cpu().float()
    by_user = (indptr.cpu(), indices.cpu(), values)
    by_item = _transposed(*by_user, num_items)
    # Small numbers, so that the first Gram matrices do not drown the regularisation.
    users = torch.randn(len(indptr) - 1, dim, generator=generator).mul_(0.01)
    items = torch.randn(num_items, dim, generator=generator).mul_(0.01)
    for _ in range(sweeps):
        for rows, fixed, (ends, columns, entries) in ((users, items, by_user), (items, users, by_item)):
            gram = fixed.T @ fixed
            gram.diagonal().add_(regularization)
            solve_rows_(rows, ends, columns, fixed, gram, weight=weight, steps=steps, weights=entries)
    return users, items


def solve_rows_(
    solution: Tensor,
    indptr: Tensor,
    indices: Tensor,
    fixed: Tensor,
    gram: Tensor,
    *,
    weight: float,
    steps: int,
    weights: Tensor | None = None,
) -> None:
    """Half a sweep, in place: a few steps of conjugate gradients for every row, with the other side fixed.

    Args:
        solution: (R, d), initial values and result; float32 and contiguous.
        indptr: (R + 1,).
        indices: (P,), rows of `fixed`.
        fixed: (C, d).
        gram: (d, d), Σ y yᵀ + λ·1 over the rows y of `fixed`.
        weight: α.
        steps: of conjugate gradients.
        weights: w (P,) of the entries; 1 for all if None.
    """
    solve = core.solve_rows_ if core.available() else _solve_in_torch_
    solve(solution, indptr, indices, fixed, gram, weight=weight, steps=steps, weights=weights)


def sweeps_for(num_users: int, num_interactions: int) -> int:
    """The number of sweeps that helps the training afterwards: 16 for a handful of items a user, 4 from two dozen on.

    Rows with few entries converge slowly. With many entries further sweeps overfit: the factorisation's own
    recommendations get worse (`docs/training.md` has the figures of four data sets).

    >>> sweeps_for(15_603, 87_688), sweeps_for(29_858, 716_648)
    (16, 4)
    """
    mean = max(1.0, num_interactions / max(1, num_users))
    return min(_MOST_SWEEPS, max(_FEWEST_SWEEPS, round(_ENTRIES_SWEPT / mean)))


def _transposed(
    indptr: Tensor, indices: Tensor, weights: Tensor | None, columns: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    values = np.ones(len(indices), np.int8) if weights is None else weights.numpy()
    shape = (len(indptr) - 1, columns)
    turned = scipy.sparse.csr_array((values, indices.numpy(), indptr.numpy()), shape=shape).T.tocsr()
    ends, rows, entries = map(torch.from_numpy, (turned.indptr, turned.indices, turned.data))
    return ends.long(), rows.long(), None if weights is None else entries


def _solve_in_torch_(
    solution: Tensor,
    indptr: Tensor,
    indices: Tensor,
    fixed: Tensor,
    gram: Tensor,
    *,
    weight: float,
    steps: int,
    weights: Tensor | None = None,
) -> None:
    """The same in torch, some rows at a time."""
    for rows, entries in row_blocks(indptr, GATHERED // solution.shape[1]):
        ends = indptr[rows.start : rows.stop + 1] - indptr[rows.start]
        y = fixed[indices[entries]]
        alpha = y.new_full((len(y),), weight) if weights is None else weight * weights[entries].to(y.dtype)
        solution[rows] = _solved(solution[rows], ends, y, gram, alpha, steps)


def row_blocks(indptr: Tensor, most: int) -> Iterator[tuple[slice, slice]]:
    """Blocks of rows of a CSR matrix and of their entries: at most `most` of either, but at least one row.

    >>> list(row_blocks(torch.tensor([0, 2, 3]), 64))
    [(slice(0, 2, None), slice(0, 3, None))]
    """
    first, most = 0, max(1, most)
    while first < len(indptr) - 1:
        last = int(torch.searchsorted(indptr, indptr[first] + most, right=True)) - 1
        last = min(max(last, first + 1), first + most)
        yield slice(first, last), slice(int(indptr[first]), int(indptr[last]))
        first = last


def _solved(x: Tensor, ends: Tensor, y: Tensor, gram: Tensor, alpha: Tensor, steps: int) -> Tensor:
    """New values of some rows; `y` and `alpha` are the vectors and weights α w of their entries, row after row."""
    row_of = torch.arange(len(x)).repeat_interleave(ends.diff())

    def gathered(values: Tensor) -> Tensor:
        return torch.zeros_like(x).index_add_(0, row_of, y * values.unsqueeze(-1))

    def apply(rows: Tensor) -> Tensor:
        return rows @ gram + gathered(alpha * (y * rows[row_of]).sum(-1))

    x = conjugate_gradients(x, gathered(1 + alpha), apply, steps)
    return torch.where((ends.diff() > 0).unsqueeze(-1), x, 0.0)


def conjugate_gradients(x: Tensor, wanted: Tensor, apply: Callable[[Tensor], Tensor], steps: int) -> Tensor:
    """A few steps of conjugate gradients from x (R, d) towards A x = `wanted`, with a positive definite A per row.

    >>> wanted = torch.tensor([[2.0, 8.0]])
    >>> found = conjugate_gradients(torch.zeros(1, 2), wanted, lambda rows: rows * torch.tensor([1.0, 4.0]), steps=2)
    >>> torch.allclose(found, torch.tensor([[2.0, 2.0]]))
    True
    """
    residual = wanted - apply(x)
    direction, before = residual, residual.square().sum(-1, keepdim=True)
    for _ in range(steps):
        image = apply(direction)
        going = before > _SMALL
        length = torch.where(going, before / (direction * image).sum(-1, keepdim=True), 0.0)
        x, residual = x + length * direction, residual - length * image
        after = residual.square().sum(-1, keepdim=True)
        direction = residual + torch.where(going, after / before, 0.0) * direction
        before = after
    return x
