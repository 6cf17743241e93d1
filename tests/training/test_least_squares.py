"""Least squares in several processes, for which threads stand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from talos.backbones import MF
from talos.data.datasets import synthetic
from talos.distributed import Group
from talos.errors import ConfigError
from talos.kernels import alternating_least_squares
from talos.kernels.csr import TrainIndex
from talos.training.least_squares import sharded_least_squares
from talos.training.warm_start import start_from

InThreads = Callable[[int, Callable[[Group], Any]], list[Any]]


def index_of(data: Any, users: range | None = None) -> TrainIndex:
    return TrainIndex.from_interactions(data if users is None else data.user_range(users))


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("kernel", ["auto", "torch"])
@pytest.mark.parametrize("size", [2, 3])
def test_rows_are_those_of_one_process(
    size: int, kernel: str, monkeypatch: pytest.MonkeyPatch, in_threads: InThreads
) -> None:
    monkeypatch.setenv("TALOS_KERNEL", kernel)
    # many blocks, and users larger than one
    monkeypatch.setattr("talos.training.least_squares.GATHERED", 200)
    data = synthetic(users=83, items=47, interactions=900, seed=1)
    whole = index_of(data)
    options = {"dim": 8, "num_items": data.num_items}
    users, items = alternating_least_squares(whole.indptr, whole.indices, generator=seeded(), **options)  # type: ignore[arg-type]

    def work(group: Group) -> tuple[Tensor, Tensor]:
        own = index_of(data, group.range_of(data.num_users))
        return sharded_least_squares(own.indptr, own.indices, generator=seeded(), group=group, **options)  # type: ignore[arg-type]

    parts = in_threads(size, work)
    together = torch.cat([part[0] for part in parts])
    assert (together - users).norm() < 1e-4 * users.norm()
    for part in parts:
        assert torch.equal(part[1], parts[0][1])
        assert (part[1] - items).norm() < 1e-4 * items.norm()


def test_a_backbone_starts_as_in_one_process(in_threads: InThreads) -> None:
    data = synthetic(users=40, items=30, interactions=400, seed=2)
    alone = MF(40, 30, dim=4, generator=seeded())
    start_from("als", alone, index_of(data), seeded(1))

    def work(group: Group) -> MF:
        users = group.range_of(40)
        part = MF(40, 30, dim=4, generator=seeded(), users=users)
        with pytest.raises(ConfigError, match="'svd' without all interactions"):
            start_from("svd", part, index_of(data, users), seeded(1), users=users, group=group)
        start_from("als", part, index_of(data, users), seeded(1), users=users, group=group)
        return part

    parts = in_threads(2, work)
    # sweeps from a small start amplify rounding: directions agree to some 1e-4
    assert (
        torch.cat([p.user_table for p in parts]) - alone.user_table
    ).norm() < 5e-4 * alone.user_table.norm()
    assert (parts[1].item_table - alone.item_table).norm() < 5e-4 * alone.item_table.norm()
