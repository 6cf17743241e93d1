"""What holds for every backbone."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

from talos import registry
from talos.backbones import Backbone
from talos.data.interactions import Interactions
from talos.errors import ArgumentError, DataError

Build = Callable[..., Backbone]
Seeded = Callable[[int], torch.Generator]
Vectors = Callable[..., tuple[torch.Tensor, torch.Tensor]]


def test_shapes(build: Build, train: Interactions, generator: Seeded, vectors: Vectors) -> None:
    backbone = build()
    assert (backbone.num_users, backbone.num_items) == (train.num_users, train.num_items)
    for training in (False, True):
        users, items = vectors(backbone, training=training, generator=generator(0))
        assert users.shape == (train.num_users, backbone.dim)
        assert items.shape == (train.num_items, backbone.dim)
        assert users.dtype == items.dtype == torch.float32


@pytest.mark.parametrize("rows", [[0], [6, 1, 3], [2, 8, 2]], ids=str)
@pytest.mark.parametrize("first", [0, 1])
def test_a_batch_has_rows_of_its_users(
    build: Build, generator: Seeded, vectors: Vectors, batch_of: Any, rows: list[int], first: int
) -> None:
    """Also where the table has users of other processes before those of the batch; repeated rows add up."""
    backbone = build()
    backbone.first_user = first
    for training in (False, True):
        backbone.train(training)
        items = backbone.items(generator=generator(1))
        found = backbone.users(batch_of([row - first for row in rows], [0]), items)
        slopes = torch.arange(1.0, len(rows) + 1).unsqueeze(1)
        (gradient,) = torch.autograd.grad((found * slopes).sum(), backbone.tables()[:1])
        backbone.first_user = 0
        users, _ = vectors(backbone, training=training, generator=generator(1))
        backbone.first_user = first
        assert torch.equal(found, users[rows])
        (expected,) = torch.autograd.grad((users[rows] * slopes).sum(), backbone.tables()[:1])
        torch.testing.assert_close(gradient, expected)


def test_gradients_reach_every_parameter(
    build: Build, train: Interactions, generator: Seeded, vectors: Vectors, batch_of: Any
) -> None:
    backbone = build()
    users, items = vectors(backbone, training=True, generator=generator(0))
    loss = (users.square().sum() * 3 + (items * torch.arange(backbone.dim)).sum()).sigmoid()
    loss = (users @ items.T).tanh().sum() + loss
    if backbone.has_auxiliary_loss:
        loss = loss + backbone.auxiliary_loss(batch_of([0, 1, 2], [0, 1]))
    loss.backward()
    assert set(dict(backbone.named_parameters())) == {"user_table", "item_table"}
    tables = backbone.tables()
    assert tables is not None
    for parameter, degrees in zip(tables, (train.user_degrees, train.item_degrees), strict=True):
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()
        connected = torch.from_numpy(degrees > 0)
        assert (parameter.grad[connected].abs().sum(-1) > 0).all()


def test_the_generator_decides(build: Build, generator: Seeded, vectors: Vectors) -> None:
    def run(seed: int) -> tuple[torch.Tensor, ...]:
        return vectors(build(seed), training=True, generator=generator(seed))

    before = torch.get_rng_state()
    for first, again, other in zip(run(1), run(1), run(2), strict=True):
        assert torch.equal(first, again)
        assert not torch.equal(first, other)
    assert torch.equal(before, torch.get_rng_state())


def test_no_noise_outside_training(build: Build, vectors: Vectors) -> None:
    backbone = build()
    for first, again in zip(vectors(backbone), vectors(backbone), strict=True):
        assert torch.equal(first, again)


def test_isolated_nodes_are_finite(build: Build, generator: Seeded, vectors: Vectors, batch_of: Any) -> None:
    backbone = build()
    for training in (False, True):
        users, items = vectors(backbone, training=training, generator=generator(0))
        assert users[4].isfinite().all()
        assert items[2].isfinite().all()
    if backbone.has_auxiliary_loss:
        assert backbone.auxiliary_loss(batch_of([4], [2])).isfinite()


def test_state_round_trip(build: Build, vectors: Vectors) -> None:
    backbone, other = build(1), build(2)
    assert set(backbone.state_dict()) == {"user_table", "item_table"}
    other.load_state_dict(backbone.state_dict())
    for mine, theirs in zip(vectors(backbone), vectors(other), strict=True):
        assert torch.equal(mine, theirs)


def test_a_copy_is_independent(build: Build, generator: Seeded, vectors: Vectors) -> None:
    backbone = build()
    vectors(backbone, training=True, generator=generator(0))
    other = copy.deepcopy(backbone)
    with torch.no_grad():
        other.tables()[0].add_(1)
    assert not torch.equal(vectors(backbone)[0], vectors(other)[0])


def test_double_precision(build: Build, generator: Seeded, vectors: Vectors) -> None:
    users, items = vectors(build().double(), training=True, generator=generator(0))
    assert users.dtype == items.dtype == torch.float64


def test_the_meta_device_is_enough_to_move(build: Build) -> None:
    moved = build().to("meta")
    assert {tensor.device.type for tensor in (*moved.parameters(), *moved.buffers())} == {"meta"}


def test_names() -> None:
    assert {"mf", "lightgcn", "xsimgcl"} <= set(registry.names("backbone"))


def test_wrong_sizes_are_refused(build: Build, train: Interactions) -> None:
    with pytest.raises(ArgumentError, match="dim: 0"):
        build(dim=0)


def test_mf_gives_its_leaf(train: Interactions) -> None:
    mf = registry.make_backbone("mf", train, dim=3, generator=None)
    assert mf.items() is mf.item_table
    with pytest.raises(ArgumentError, match="layers: the backbone 'mf' has no such option \\(one of: dim\\)"):
        registry.make_backbone("mf", train, generator=None, layers=2)


def test_no_graph_without_edges(train: Interactions) -> None:
    nothing = train.where(train.indices < 0)
    with pytest.raises(DataError, match="no interactions"):
        registry.make_backbone("lightgcn", nothing, generator=None)
