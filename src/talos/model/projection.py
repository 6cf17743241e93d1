"""Many-dimensional vectors on a plane, for a map of the items."""

from __future__ import annotations

import torch
from torch import Tensor

from talos.errors import ArgumentError

__all__ = ["principal_axes"]

_CHUNK = 1 << 16  # rows that are copied at a time


@torch.no_grad()
def principal_axes(vectors: Tensor, axes: int = 2) -> tuple[Tensor, Tensor]:
    """Coordinates (N, axes) of unit vectors on the axes along which they vary most, and each axis's share of variance.

    Rows are scaled to length 1 first, so that near points have a large cosine; a row of zeros stays one. This is
    principal component analysis from the d × d covariance: one pass over the rows, whatever N is. The sign of an axis
    is such that its largest weight is positive: equal vectors give equal maps. Axes beyond the vectors' dimension, or
    without variance, are all zeros.

    Args:
        vectors: (N, d).
        axes: how many.

    >>> points, shares = principal_axes(torch.tensor([[1.0, 0.0], [5.0, 0.0], [0.0, 1.0], [0.0, 0.1]]))
    >>> [f"{point:.2f}" for point in points[:, 0].tolist()], [f"{share:.2f}" for share in shares.tolist()]
    (['0.71', '0.71', '-0.71', '-0.71'], ['1.00', '0.00'])
    """
    if vectors.ndim != 2 or len(vectors) == 0:
        raise ArgumentError(f"shape {tuple(vectors.shape)}", where="vectors", expected="(N, d) with N ≥ 1")
    dim = vectors.shape[1]
    total, products = torch.zeros(dim, dtype=torch.float64), torch.zeros(dim, dim, dtype=torch.float64)
    for start in range(0, len(vectors), _CHUNK):
        unit = _unit(vectors[start : start + _CHUNK])
        total += unit.sum(0)
        products += unit.T @ unit
    mean = total / len(vectors)
    values, weights = torch.linalg.eigh(products / len(vectors) - torch.outer(mean, mean))
    values, weights = values.flip(0).clamp(min=0.0)[:axes], weights.flip(1)[:, :axes]
    largest = weights.gather(0, weights.abs().argmax(0, keepdim=True))
    weights = weights * largest.sign()
    varied = values > 1e-12
    weights = weights * varied
    points = torch.zeros(len(vectors), axes, dtype=torch.float64)
    for start in range(0, len(vectors), _CHUNK):
        part = slice(start, start + _CHUNK)
        points[part, : weights.shape[1]] = (_unit(vectors[part]) - mean) @ weights
    shares = torch.zeros(axes, dtype=torch.float64)
    shares[: len(values)] = values * varied / (products.trace() / len(vectors) - mean @ mean).clamp(min=1e-12)
    return points.float(), shares.float()


def _unit(rows: Tensor) -> Tensor:
    return torch.nn.functional.normalize(rows.detach().cpu().double())
