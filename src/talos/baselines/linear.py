"""EASE: a linear model from items to items in closed form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from talos.baselines.base import ItemBaseline
from talos.baselines.item_weights import ItemWeights
from talos.checks import positive_number, require
from talos.data.interactions import Interactions
from talos.errors import DataError, Option

__all__ = ["EASE"]

# Rows that are filled or mirrored at a time.
_ROWS = 1024


class EASE(ItemBaseline):
    """EASE: items regressed on all other items, min |X - XB|² + λ|B|² with diag(B) = 0, in closed form.

    With P = (XᵀX + λ·1)⁻¹, B = 1 - P·diag(1/P): one inversion of an items × items matrix (Steck, WWW 2019). The matrix
    is dense and float32: 4·items² bytes, in memory (once, since it is inverted in place) and in the saved run. The time
    grows with items³: 6,000 items take 0.14 GB and 5 s on one core, 40,000 take 6.4 GB and, by that, half an hour.

    Args:
        regularization: λ.
        memory_gb: the largest matrix that is made, in GB (10⁹ bytes); for more items than fit there is an error.

    >>> data = Interactions.from_ids([1, 1, 2, 2, 3], [7, 8, 7, 8, 9])
    >>> EASE(regularization=1).fit(data).dense().round(decimals=2)
    tensor([[0.0000, 0.6700, -0.0000],
            [0.6700, 0.0000, -0.0000],
            [-0.0000, -0.0000, 0.0000]])
    """

    short_name = "ease"
    search_space: ClassVar[Mapping[str, Any]] = {"regularization": {"low": 3.0, "high": 3000.0, "log": True}}

    def __init__(self, *, regularization: float = 200.0, memory_gb: float = 4.0) -> None:
        self.regularization = positive_number("regularization", regularization)
        self.memory_gb = positive_number("memory_gb", memory_gb)

    def check(self, train: Interactions) -> None:
        """Raise a `DataError` if there are no interactions, or the matrix would be larger than `memory_gb`."""
        super().check(train)
        items = train.num_items
        size = 4 * items**2 / 1e9
        require(
            size <= self.memory_gb,
            f"{items:,} items need a matrix of {size:.1f} GB",
            where="baseline 'ease'",
            expected=f"at most {self.memory_gb:g} GB, which are {int((self.memory_gb * 1e9 / 4) ** 0.5):,} items",
            hint="'itemknn' and 'rp3beta' keep a few neighbours of each item only",
            option=Option("baseline.memory_gb", int(np.ceil(size)), "allows it, if the machine has as much"),
            error=DataError,
        )

    def fit(self, train: Interactions, generator: torch.Generator | None = None) -> ItemWeights:
        """B, dense; nothing is random."""
        self.check(train)
        items = train.num_items
        links = train.to_scipy()
        backwards = links.T.tocsr()
        gram = np.empty((items, items), np.float32)
        for first in range(0, items, _ROWS):
            gram[first : first + _ROWS] = (backwards[first : first + _ROWS] @ links).toarray()
        gram[np.diag_indices(items)] += np.float32(self.regularization)
        _invert_(gram)
        diagonal = gram.diagonal().copy()
        gram /= -diagonal
        np.fill_diagonal(gram, 0.0)
        return ItemWeights(torch.from_numpy(gram))


def _invert_(matrix: NDArray[np.float32]) -> None:
    """Invert a symmetric positive definite matrix in place, by its Cholesky factor."""
    from scipy.linalg import lapack

    # LAPACK expects column-major order; the transpose has it and is the same matrix
    factor, failed = lapack.spotrf(matrix.T, lower=0, clean=0, overwrite_a=1)
    assert not failed, "XᵀX + λ·1 is positive definite"
    inverse, failed = lapack.spotri(factor, lower=0, overwrite_c=1)
    assert not failed
    assert np.shares_memory(inverse, matrix)
    # the result is in the lower triangle of `matrix`: mirror it, some rows at a time
    for first in range(0, len(matrix), _ROWS):
        rows = slice(first, first + _ROWS)
        matrix[:first, rows] = matrix[rows, :first].T
        corner = matrix[rows, rows]
        corner[:] = np.tril(corner) + np.tril(corner, -1).T
