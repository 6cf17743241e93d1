"""The map's axes against numpy's singular values."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from talos.errors import ArgumentError
from talos.model import measures
from talos.model.measures import principal_axes


@pytest.mark.parametrize("rows", [7, 300])
def test_axes_are_those_of_singular_values(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measures, "_CHUNK", 64)  # several pieces
    vectors = torch.randn(rows, 5, generator=torch.Generator().manual_seed(rows)) * torch.tensor(
        [5.0, 3, 1, 1, 1]
    )
    points, shares = principal_axes(vectors)
    unit = (vectors / vectors.norm(dim=1, keepdim=True)).double().numpy()
    left, values, right = np.linalg.svd(unit - unit.mean(0), full_matrices=False)
    for axis in range(2):
        sign = np.sign(right[axis][np.abs(right[axis]).argmax()])
        assert points[:, axis].numpy() == pytest.approx(sign * left[:, axis] * values[axis], abs=1e-5)
    assert shares.numpy() == pytest.approx((values**2 / (values**2).sum())[:2], abs=1e-5)


def test_the_length_of_a_vector_does_not_matter() -> None:
    vectors = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    longer = vectors * torch.linspace(0.1, 9, 50).unsqueeze(1)
    assert torch.allclose(principal_axes(vectors)[0], principal_axes(longer)[0], atol=1e-5)


@pytest.mark.parametrize(
    "vectors", [torch.ones(4, 3), torch.zeros(3, 2), torch.ones(1, 1), torch.tensor([[1.0], [-1.0]])]
)
def test_vectors_without_two_directions_are_finite(vectors: torch.Tensor) -> None:
    points, shares = principal_axes(vectors)
    assert points.shape == (len(vectors), 2)
    assert bool(points.isfinite().all())
    assert bool(shares.isfinite().all())
    assert shares[1] == 0


def test_no_vectors_are_refused() -> None:
    with pytest.raises(ArgumentError, match="vectors"):
        principal_axes(torch.empty(0, 3))
