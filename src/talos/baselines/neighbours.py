"""Item-item neighbourhoods from items that the same users have: ItemKNN and RP3beta.

Both multiply sparse matrices, for a block of items at a time, and keep the largest weights of each item. Memory is
bounded by the block and by items × neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeAlias

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray

from talos.baselines.base import ItemBaseline
from talos.baselines.item_weights import ItemWeights
from talos.checks import number_from, positive_integer, positive_number, require
from talos.data.interactions import Interactions
from talos.errors import DataError, Option
from talos.kernels.least_squares import row_blocks

__all__ = ["ItemKNN", "RP3beta"]

_Codes: TypeAlias = NDArray[np.integer[Any]]
_Values: TypeAlias = NDArray[np.float64]
# Products of a block before equal pairs are added up: about 200 MB.
_BLOCK = 1 << 24
# Pairs of items of one user, over all users, up to which neighbours are computed: about a minute.
_MOST_PAIRS = 4e9


class _Neighbourhoods(ItemBaseline):
    """Weights from all pairs of items that a user has: Σ n² products, where n are the users' interactions.

    Args:
        max_pairs: the most pairs, of all users together; more are an error.
    """

    max_pairs: float

    def check(self, train: Interactions) -> None:
        """Raise a `DataError` if there are no interactions, or more pairs than `max_pairs`."""
        super().check(train)
        degrees = train.user_degrees.astype(np.float64)
        pairs = float((degrees**2).sum())
        heaviest = int(degrees.argmax())
        require(
            pairs <= self.max_pairs,
            f"{pairs:.2g} pairs of items of one user; user {train.user_ids.ids[heaviest]!r} alone, with "
            f"{int(degrees[heaviest]):,} events, has {degrees[heaviest] ** 2:.2g}",
            where=f"baseline {self.short_name!r}",
            expected=f"at most {self.max_pairs:.2g} pairs",
            hint="leave such users out",
            option=Option("baseline.max_pairs", int(np.ceil(pairs)), "allows it"),
            error=DataError,
        )


class ItemKNN(_Neighbourhoods):
    """ItemKNN: cosine of the columns of two items, with shrinkage, summed over an item's nearest neighbours.

    sim(i, h) = c_ih / (√(n_i·n_h) + shrinkage), where c counts the users who have both and n those who have one.
    The score of i is the sum of sim(i, h) over the items h of the history that are among the `neighbours` items most
    similar to i (Sarwar, Karypis, Konstan & Riedl, WWW 2001). Shrinkage lowers similarities that few users support.
    Equal similarities are kept in the order of items.

    >>> data = Interactions.from_ids([1, 1, 2, 2], [7, 8, 8, 9])
    >>> ItemKNN(neighbours=1, shrinkage=0).fit(data).dense().round(decimals=2)
    tensor([[0.0000, 0.7100, 0.0000],
            [0.7100, 0.0000, 0.7100],
            [0.0000, 0.0000, 0.0000]])
    """

    short_name = "itemknn"
    search_space: ClassVar[Mapping[str, Any]] = {
        "neighbours": [20, 50, 100, 200, 500],
        "shrinkage": [0.0, 5.0, 20.0, 50.0, 150.0],
    }

    def __init__(
        self, *, neighbours: int = 200, shrinkage: float = 20.0, max_pairs: float = _MOST_PAIRS
    ) -> None:
        self.neighbours = positive_integer("neighbours", neighbours)
        self.shrinkage = number_from("shrinkage", shrinkage, 0.0)
        self.max_pairs = positive_number("max_pairs", max_pairs)

    def fit(self, train: Interactions, generator: torch.Generator | None = None) -> ItemWeights:
        """The similarities, sparse; nothing is random."""
        self.check(train)
        links, degrees = train.to_scipy(), train.item_degrees.astype(np.float64)

        def similarity(rows: _Codes, columns: _Codes, common: _Values) -> _Values:
            return common / (np.sqrt(degrees[rows] * degrees[columns]) + self.shrinkage)

        nearest = _largest_of_product(links.T.tocsr(), links, self.neighbours, similarity)
        # row i has the neighbours of i; W[h, i] is the weight from h to i
        return ItemWeights(nearest.T.tocsr())


class RP3beta(_Neighbourhoods):
    """RP3beta: three steps of a random walk from the user's items, with popular ends held back by n_i^β.

    W[h, i] = Σ_u (1/n_h)^α·(1/n_u)^α / n_i^β over the users u who have both: from h to one of its users and on to one
    of that user's items, where n counts interactions. The `neighbours` largest weights of each h are kept, equal ones
    in the order of items (Paudel, Christoffel, Newell & Bernstein, ACM TiiS 2017).

    >>> data = Interactions.from_ids([1, 1, 2, 2], [7, 8, 8, 9])
    >>> RP3beta(alpha=1, beta=0).fit(data).dense()
    tensor([[0.0000, 0.5000, 0.0000],
            [0.2500, 0.0000, 0.2500],
            [0.0000, 0.5000, 0.0000]])
    """

    short_name = "rp3beta"
    search_space: ClassVar[Mapping[str, Any]] = {
        "alpha": {"low": 0.2, "high": 2.0},
        "beta": {"low": 0.0, "high": 1.0},
        "neighbours": [20, 50, 100, 200, 500],
    }

    def __init__(
        self, *, alpha: float = 0.5, beta: float = 0.3, neighbours: int = 200, max_pairs: float = _MOST_PAIRS
    ) -> None:
        self.alpha = number_from("alpha", alpha, 0.0)
        self.beta = number_from("beta", beta, 0.0)
        self.neighbours = positive_integer("neighbours", neighbours)
        self.max_pairs = positive_number("max_pairs", max_pairs)

    def fit(self, train: Interactions, generator: torch.Generator | None = None) -> ItemWeights:
        """The probabilities of the walk, sparse; nothing is random."""
        self.check(train)
        links = train.to_scipy().astype(np.float64)
        of_items = np.maximum(train.item_degrees, 1).astype(np.float64)
        of_users = np.maximum(train.user_degrees, 1).astype(np.float64)
        steps = links.copy()
        steps.data = np.repeat(of_users**-self.alpha, train.user_degrees)
        starts, ends = of_items**-self.alpha, of_items**-self.beta

        def walk(rows: _Codes, columns: _Codes, sums: _Values) -> _Values:
            return starts[rows] * sums * ends[columns]

        return ItemWeights(_largest_of_product(links.T.tocsr(), steps, self.neighbours, walk))


def _largest_of_product(
    left: scipy.sparse.csr_array,
    right: scipy.sparse.csr_array,
    count: int,
    weigh: Callable[[_Codes, _Codes, _Values], _Values],
) -> scipy.sparse.csr_array:
    """The `count` largest entries of each row of `weigh(left @ right)`, float32, without the diagonal.

    `weigh` gets the rows, columns and values of the entries of a block that are not 0.
    """
    blocks = []
    # how many products each entry of `left` makes, added up by row
    terms = np.concatenate([[0], np.cumsum(np.diff(right.indptr)[left.indices])])[left.indptr]
    for rows, _ in row_blocks(torch.from_numpy(terms), _BLOCK):
        product = (left[rows] @ right).tocoo()
        row, column = product.coords
        other = row + rows.start != column
        row, column, values = row[other], column[other], product.data[other]
        weights = weigh(row + rows.start, column, values)
        found = scipy.sparse.csr_array((weights, (row, column)), shape=product.shape)
        found.sort_indices()
        blocks.append(_largest_of_rows(found, count))
    return scipy.sparse.csr_array(scipy.sparse.vstack(blocks, format="csr"))


def _largest_of_rows(matrix: scipy.sparse.csr_array, count: int) -> scipy.sparse.csr_array:
    """The `count` largest entries of each row as float32; of equal ones those in the first columns."""
    keep = np.ones(len(matrix.data), bool)
    for row in np.flatnonzero(np.diff(matrix.indptr) > count).tolist():
        entries = slice(int(matrix.indptr[row]), int(matrix.indptr[row + 1]))
        values = matrix.data[entries]
        last = np.partition(values, -count)[-count]
        above = values > last
        tied = np.flatnonzero(values == last)[: count - int(above.sum())]
        above[tied] = True
        keep[entries] = above
    ends = np.concatenate([[0], np.cumsum(keep)])[matrix.indptr]
    arrays = (matrix.data[keep].astype(np.float32), matrix.indices[keep], ends)
    return scipy.sparse.csr_array(arrays, shape=matrix.shape)
