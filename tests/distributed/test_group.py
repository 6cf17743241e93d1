"""The group itself: who owns what, refusals at the start, and ranks that hang or end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from talos.distributed import SINGLE_PROCESS, Group, OwnedRows, start
from talos.errors import ConfigError
from talos.training.parallel.gradient_sync import GradientSync

HANG = """
import sys, time
from talos import distributed
group = distributed.start(timeout=2.0)
group.all_gather_numbers([1.0])
if group.rank == 1:
    {fate}
group.all_gather_numbers([1.0])
"""


def test_alone_everything_is_the_identity() -> None:
    numbers = torch.arange(3.0)
    assert start() is SINGLE_PROCESS
    assert SINGLE_PROCESS.all_reduce_(numbers) is numbers
    assert SINGLE_PROCESS.gather_rows(numbers, 3) is numbers
    assert SINGLE_PROCESS.all_gather_rows(numbers, [3]) is numbers
    assert torch.equal(OwnedRows(SINGLE_PROCESS, [3]).collect(numbers), numbers.unsqueeze(0))
    assert SINGLE_PROCESS.any(True)
    assert not SINGLE_PROCESS.any(False)
    SINGLE_PROCESS.check_same(anything=lambda: "x")


@pytest.mark.parametrize(("count", "size"), [(7, 3), (4, 4), (1000, 7)])
def test_shares_tile_the_users(count: int, size: int) -> None:
    shares = []
    for rank in range(size):
        group = Group()
        group.rank, group.size = rank, size
        shares.append(group.share(count))
    assert [user for share in shares for user in share] == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_more_ranks_than_users_are_refused() -> None:
    group = Group()
    group.size = 5
    with pytest.raises(ConfigError, match="5 processes for 4 users"):
        group.share(4)
    with pytest.raises(ConfigError, match="5 processes for 3 items"):
        group.share(3, of="items")


def test_which_rows_of_a_batch_are_whose() -> None:
    group = Group()
    found = []
    for group.rank in range(3):
        found.append(list(range(6))[OwnedRows(group, [2, 0, 4]).own])
    assert found == [[0, 1], [], [2, 3, 4, 5]]


def test_gradients_of_a_group_of_one_are_left_alone() -> None:
    table, idle = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(2))
    table.sum().backward()
    assert GradientSync(SINGLE_PROCESS, [table, idle]).sum_gradients_(2.0) == 2.0
    assert idle.grad is None


def test_other_settings_or_data_on_a_rank_are_refused_and_the_rank_is_named(
    group_run: Callable[..., Any],
) -> None:
    found = group_run(3, [{"name": "settings", "differ": 2}, {"name": "data", "other_data": 1}])
    for rank in range(3):
        assert found.facts("settings", rank)["error"] == (
            "ConfigError: config: rank 2 differs from rank 0; expected the same on every rank"
        )
        assert found.facts("data", rank)["error"] == (
            "ConfigError: data: rank 1 differs from rank 0; expected the same on every rank"
        )


@pytest.mark.parametrize("fate", ["time.sleep(20)", "sys.exit(3)"])
def test_a_rank_that_hangs_or_ends_is_named(
    environment: Callable[..., dict[str, str]], port: int, fate: str
) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", HANG.format(fate=fate)],
            env=environment(rank, 3, port),
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    try:
        for rank in (0, 2):
            _, errors = ranks[rank].communicate(timeout=60)
            assert f"LostRankError: rank {rank} gives up: rank 1 did not answer" in errors
    finally:
        for process in ranks:
            process.kill()
            process.wait()
            assert process.stderr is not None
            process.stderr.close()
