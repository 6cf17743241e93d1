"""Starting vectors: random ones, or those of a quick factorisation of the interactions."""

from __future__ import annotations

from functools import partial
from typing import Literal

import numpy as np
import scipy.sparse
import torch
import torch.nn.functional as F
from torch import Tensor

from talos.backbones import Backbone
from talos.distributed import SINGLE_PROCESS, Group
from talos.errors import ConfigError
from talos.kernels import alternating_least_squares
from talos.kernels.csr import TrainIndex
from talos.training.least_squares import sharded_least_squares

__all__ = ["singular_vectors", "start_from"]

# Extra directions, and rounds, of the randomised subspace iteration.
_SPARE = 8
_ROUNDS = 3
# A vector shorter than this has no direction.
_SHORTEST = 1e-6


@torch.no_grad()
def start_from(
    how: Literal["random", "als", "svd"] | str,
    backbone: Backbone,
    index: TrainIndex,
    generator: torch.Generator,
    *,
    cosine: bool = True,
    users: range | None = None,
    items: range | None = None,
    group: Group = SINGLE_PROCESS,
) -> None:
    """Replace a backbone's random vectors by those of a factorisation; `random` leaves them as they are.

    Where scores are cosines, only directions matter for the scores, but a vector's length decides how far a step turns
    it: each gets the mean length of the random vectors that it replaces. Users and items without interactions keep
    their random vectors.

    `index` has the interactions of all users, or of those whose rows this process has. `users` and `items` are those in
    the backbone's tables, all of them if None; the processes of `group` have the others.

    >>> from talos.backbones import MF
    >>> from talos.data.interactions import Interactions
    >>> data = Interactions.from_ids([1, 1, 2, 2], [7, 8, 8, 9])
    >>> rng = torch.Generator().manual_seed(0)
    >>> mf, index = MF(2, 3, dim=2, generator=rng), TrainIndex.from_interactions(data)
    >>> length = mf.item_table.norm(dim=1).mean()
    >>> start_from("als", mf, index, rng)
    >>> torch.allclose(mf.item_table.norm(dim=1), length)
    True
    """
    own = backbone.tables()
    if how == "random" or own is None:
        return
    sharded = users is not None and group.size > 1 and index.num_users == len(users)
    if how == "svd":
        if sharded:
            raise ConfigError(
                "'svd' without all interactions in every process",
                where="training.init",
                expected="'als' or 'random'",
            )
        found = singular_vectors(index, backbone.dim, generator)
    else:
        alone = partial(alternating_least_squares, weights=index.weights)
        solve = partial(sharded_least_squares, group=group) if sharded else alone
        found = solve(index.indptr, index.indices, index.num_items, dim=backbone.dim, generator=generator)
    for table, vectors, rows in zip(own, found, (users, items), strict=True):
        divided = SINGLE_PROCESS if rows is None else group
        if rows is not None and len(vectors) > len(rows):
            vectors = vectors[rows.start : rows.stop]
        if cosine:
            vectors = F.normalize(vectors).mul_(divided.mean(table.norm(dim=1)))
        known = vectors.norm(dim=1, keepdim=True) > _SHORTEST
        table.copy_(torch.where(known.to(table.device), vectors.to(table.device), table))


def singular_vectors(index: TrainIndex, dim: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The leading singular vectors of D_u^-½ A D_i^-½, times the square roots of their values: users, items.

    By randomised subspace iteration (Halko, Martinsson & Tropp, SIAM Review 2011): a few sparse products.
    Directions beyond the rank of the matrix are 0.

    >>> from talos.data.interactions import Interactions
    >>> index = TrainIndex.from_interactions(Interactions.from_ids([1, 2], [7, 8]))
    >>> users, items = singular_vectors(index, 2, torch.Generator().manual_seed(0))
    >>> (users @ items.T).abs().round(decimals=3)
    tensor([[1., 0.],
            [0., 1.]])
    """
    shape = (index.num_users, index.num_items)
    items, degrees = index.indices.cpu(), index.degrees.cpu()
    weights = degrees.clamp(min=1).rsqrt().repeat_interleave(degrees)
    weights = weights * torch.bincount(items, minlength=index.num_items).clamp(min=1).rsqrt()[items]
    links = scipy.sparse.csr_array(
        (weights.float().numpy(), items.numpy(), index.indptr.cpu().numpy()), shape=shape
    )
    back = links.T.tocsr()
    basis = torch.randn(index.num_items, min(dim + _SPARE, *shape), generator=generator)
    for _ in range(_ROUNDS):
        for matrix in (links, back):
            basis = torch.linalg.qr(torch.from_numpy(np.asarray(matrix @ basis.numpy()))).Q
    # the rest is small: A·Q = U S Wᵀ by the eigenvectors of its Gram matrix
    image = torch.from_numpy(np.asarray(links @ basis.numpy()))
    squares, turn = torch.linalg.eigh(image.T @ image)
    turn, values = turn.flip(1)[:, :dim], squares.flip(0)[:dim].clamp(min=1e-12).sqrt()
    users, others = image @ turn / values.sqrt(), basis @ turn * values.sqrt()
    return F.pad(users, (0, dim - users.shape[1])), F.pad(others, (0, dim - others.shape[1]))
