"""InfoNCE by the kernels against the backbone's own, and that a trainer hands it over."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from talos import backbones
from talos.backbones import BipartiteGraph, XSimGCL
from talos.data.csr import TrainIndex
from talos.data.interactions import Interactions
from talos.losses import Softmax
from talos.negatives import AllItems
from talos.training.contrast import info_nce
from talos.training.objective import ObjectiveOptions, UserObjective


@pytest.mark.parametrize("rows", [1, 2, 65, 700])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equals_the_backbones_own(rows: int, dtype: torch.dtype) -> None:
    rng = torch.Generator().manual_seed(rows)
    views = [torch.randn(rows, 16, generator=rng, dtype=dtype).requires_grad_() for _ in range(2)]
    results = []
    for contrast in (backbones.info_nce, info_nce):
        value = contrast(views[0], views[1], 0.2)
        results.append((value.detach(), *torch.autograd.grad(value, views)))
    for want, got in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


def test_a_row_without_a_direction_and_no_rows() -> None:
    views = torch.eye(3)[:2] * torch.tensor([[0.0], [2.0]]), torch.eye(3)[:2]
    torch.testing.assert_close(info_nce(*views, 0.2), backbones.info_nce(*views, 0.2))
    assert info_nce(torch.empty(0, 4), torch.empty(0, 4), 0.2) == 0


@pytest.mark.parametrize("half", [False, True])
def test_an_objective_hands_it_to_the_backbone(half: bool) -> None:
    data = Interactions.from_ids([1, 1, 2], [7, 8, 8])
    generator = torch.Generator().manual_seed(0)
    backbone = XSimGCL(BipartiteGraph.from_interactions(data), dim=4, generator=generator)
    options = ObjectiveOptions(bfloat16=half)
    index = TrainIndex.from_interactions(data)
    UserObjective(backbone, Softmax(), AllItems(), None, options, index=index)
    assert isinstance(backbone.contrast, partial)
    assert backbone.contrast.func is info_nce
    assert backbone.contrast.keywords == {"bfloat16": half}
    backbone.vectors(training=True, generator=generator)
    value = backbone.auxiliary_loss(torch.tensor([0, 1]), torch.tensor([0, 1]))
    assert value is not None
    assert value.isfinite()
