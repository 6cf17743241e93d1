"""The K largest of each row, against a full sort."""

from __future__ import annotations

import pytest
import torch

from talos.errors import TalosError
from talos.kernels.topk import best_of_rows, largest


def tied_scores(columns: int) -> torch.Tensor:
    """Nine rows of whole numbers, of which many are equal."""
    rng = torch.Generator().manual_seed(columns)
    return torch.randint(0, 400, (9, columns), generator=rng).float()


@pytest.mark.parametrize("columns", [1, 31, 160, 333, 1000])
def test_rows_of_any_length(columns: int) -> None:
    scores = tied_scores(columns)
    want, positions = scores.sort(dim=1, descending=True, stable=True)
    for k in {1, min(5, columns), min(20, columns), columns}:
        assert torch.equal(largest(scores, k).sort(dim=1, descending=True).values, want[:, :k])
        assert torch.equal(
            largest(scores.double(), k).sort(dim=1, descending=True).values, want[:, :k].double()
        )
        best, found = best_of_rows(scores, k)
        assert torch.equal(best, want[:, :k])
        assert torch.equal(found, positions[:, :k])


def test_masked_items_have_no_position() -> None:
    scores = tied_scores(1000)
    scores[0, 3:] = -torch.inf
    best, positions = best_of_rows(scores, 5)
    assert sorted(positions[0].tolist()) == [-1, -1, 0, 1, 2]
    assert best[0, 3:].tolist() == [-torch.inf] * 2


def test_nan_is_an_error() -> None:
    scores = tied_scores(1000)
    scores[4, 999] = torch.nan
    with pytest.raises(TalosError, match="NaN"):
        best_of_rows(scores, 5)
