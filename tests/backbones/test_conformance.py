"""What holds for every backbone."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch

from talos import registry
from talos.backbones import Backbone
from talos.data.interactions import Interactions
from talos.errors import ArgumentError, DataError

Build = Callable[..., Backbone]
Seeded = Callable[[int], torch.Generator]


def test_shapes(build: Build, train: Interactions, generator: Seeded) -> None:
    backbone = build()
    assert (backbone.num_users, backbone.num_items) == (train.num_users, train.num_items)
    for training in (False, True):
        users, items = backbone.vectors(training=training, generator=generator(0))
        assert users.shape == (train.num_users, backbone.dim)
        assert items.shape == (train.num_items, backbone.dim)
        assert users.dtype == items.dtype == torch.float32


def test_gradients_reach_every_parameter(build: Build, train: Interactions, generator: Seeded) -> None:
    backbone = build()
    users, items = backbone.vectors(training=True, generator=generator(0))
    loss = (users.square().sum() * 3 + (items * torch.arange(backbone.dim)).sum()).sigmoid()
    loss = (users @ items.T).tanh().sum() + loss
    auxiliary = backbone.auxiliary_loss(torch.arange(3), torch.arange(2))
    (loss if auxiliary is None else loss + auxiliary).backward()
    names = dict(backbone.named_parameters())
    assert set(names) == {"users", "items"}
    for parameter, degrees in ((backbone.users, train.user_degrees), (backbone.items, train.item_degrees)):
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()
        connected = torch.from_numpy(degrees > 0)
        assert (parameter.grad[connected].abs().sum(-1) > 0).all()


def test_the_generator_decides(build: Build, generator: Seeded) -> None:
    def run(seed: int) -> tuple[torch.Tensor, ...]:
        return build(seed).vectors(training=True, generator=generator(seed))

    before = torch.get_rng_state()
    for first, again, other in zip(run(1), run(1), run(2), strict=True):
        assert torch.equal(first, again)
        assert not torch.equal(first, other)
    assert torch.equal(before, torch.get_rng_state())


def test_no_noise_outside_training(build: Build) -> None:
    backbone = build()
    for first, again in zip(backbone.vectors(), backbone.vectors(), strict=True):
        assert torch.equal(first, again)


def test_isolated_nodes_are_finite(build: Build, generator: Seeded) -> None:
    backbone = build()
    for training in (False, True):
        users, items = backbone.vectors(training=training, generator=generator(0))
        assert users[4].isfinite().all()
        assert items[2].isfinite().all()
    auxiliary = backbone.auxiliary_loss(torch.tensor([4]), torch.tensor([2]))
    assert auxiliary is None or auxiliary.isfinite()


def test_state_round_trip(build: Build) -> None:
    backbone, other = build(1), build(2)
    assert set(backbone.state_dict()) == {"users", "items"}
    other.load_state_dict(backbone.state_dict())
    for mine, theirs in zip(backbone.vectors(), other.vectors(), strict=True):
        assert torch.equal(mine, theirs)


def test_a_copy_is_independent(build: Build, generator: Seeded) -> None:
    backbone = build()
    backbone.vectors(training=True, generator=generator(0))
    other = copy.deepcopy(backbone)
    with torch.no_grad():
        other.users += 1
    assert not torch.equal(backbone.vectors()[0], other.vectors()[0])


def test_double_precision(build: Build, generator: Seeded) -> None:
    users, items = build().double().vectors(training=True, generator=generator(0))
    assert users.dtype == items.dtype == torch.float64


def test_the_meta_device_is_enough_to_move(build: Build) -> None:
    moved = build().to("meta")
    assert {tensor.device.type for tensor in (*moved.parameters(), *moved.buffers())} == {"meta"}


def test_names() -> None:
    assert {"mf", "lightgcn", "xsimgcl"} <= set(registry.names("backbone"))


def test_wrong_sizes_are_refused(build: Build, train: Interactions) -> None:
    with pytest.raises(ArgumentError, match="dim: 0"):
        build(dim=0)


def test_mf_gives_its_leaves(train: Interactions) -> None:
    mf = registry.make_backbone("mf", train, dim=3, generator=None)
    assert mf.vectors(training=True)[0] is mf.users
    with pytest.raises(ArgumentError, match="layers: the backbone 'mf' has no such option \\(one of: dim\\)"):
        registry.make_backbone("mf", train, generator=None, layers=2)


def test_no_graph_without_edges(train: Interactions) -> None:
    nothing = train.where(train.indices < 0)
    with pytest.raises(DataError, match="no interactions"):
        registry.make_backbone("lightgcn", nothing, generator=None)
