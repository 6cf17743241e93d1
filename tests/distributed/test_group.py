"""The group itself: who owns what, refusals at the start, and ranks that hang or end."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from talos.distributed import SINGLE_PROCESS, Group, all_or_none, start
from talos.errors import ConfigError
from talos.training.division import GradientSync

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
    assert SINGLE_PROCESS.broadcast_(numbers) is numbers
    assert torch.equal(SINGLE_PROCESS.all_gather(numbers), numbers.unsqueeze(0))
    assert SINGLE_PROCESS.mean(numbers) == 1
    assert SINGLE_PROCESS.any(True)
    assert not SINGLE_PROCESS.any(False)
    SINGLE_PROCESS.check_same(anything=lambda: "x")


@pytest.mark.parametrize(("count", "size"), [(7, 3), (4, 4), (1000, 7)])
def test_shares_tile_the_users(count: int, size: int) -> None:
    shares = []
    for rank in range(size):
        group = Group()
        group.rank, group.size = rank, size
        shares.append(group.range_of(count))
    assert [user for share in shares for user in share] == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_more_ranks_than_users_are_refused() -> None:
    group = Group()
    group.size = 5
    with pytest.raises(ConfigError, match="5 processes for 4 users"):
        group.range_of(4)
    with pytest.raises(ConfigError, match="5 processes for 3 items"):
        group.range_of(3, of="items")


def test_gradients_of_a_group_of_one_are_left_alone() -> None:
    table, idle = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(2))
    table.sum().backward()
    sync = GradientSync(SINGLE_PROCESS, [table, idle])
    assert sync.sum_(2.0) == 2.0
    assert not sync.stop
    assert idle.grad is None
    sync.sum_(2.0, stop=True)
    assert sync.stop


OPERATIONS = """
import json, sys, torch
from talos import distributed
from talos.errors import TalosError
from talos.training.division import GradientSync

group = distributed.start()
rank, size = group.rank, group.size
own = torch.full((rank, 2), float(rank))  # rank 0 has none
found = {
    "numbers": group.all_gather_numbers([rank, 0.5]),
    "any": [group.any(rank == 1), group.any(False)],
    "mean": group.mean(torch.arange(float(rank))).item(),
    "broadcast": group.broadcast_(torch.tensor([rank, 7])).tolist(),
    "sum": group.all_reduce_(torch.tensor([rank, 1.0])).tolist(),
    "gather": group.all_gather(torch.tensor([[rank], [5]])).tolist(),
    "rows": group.all_gather_rows(own, list(range(size))).tolist(),
    "on rank 0": None if (whole := group.gather_rows(own, 3)) is None else whole.tolist(),
}
# sparse, dense and missing gradients of parameters that start differently; the last one has rows of this rank alone
tables = [torch.nn.Parameter(torch.full((4, 2), rank + float(n))) for n in range(6)]
sparse, mixed, dense, absent, empty, mine = tables
sync = GradientSync(group, tables, [mine])
found["equal"] = [table.detach()[0, 0].item() for table in tables]
look_up = lambda table, rows: torch.nn.functional.embedding(torch.tensor(rows), table, sparse=True).sum()
if rank > 0:
    look_up(sparse, [rank, rank, 0]).backward()
    (dense * rank).sum().backward()
(look_up(mixed, [rank]) if rank else mixed.sum()).backward()
if rank == 2:
    look_up(empty, [3]).backward()
if rank == 1:
    (mine * 2).sum().backward()
found["value"] = sync.sum_(rank + 1.0, stop=rank == 2)
found["stop"] = sync.stop
found["gradients"] = [None if one.grad is None else one.grad.to_dense()[:, 0].tolist() for one in tables]
found["sparse"] = [one.grad is not None and one.grad.is_sparse for one in tables]


def fail() -> None:
    raise OSError("no space")


for name, act in (("works", lambda: rank), ("fails", fail if rank == 1 else None)):
    try:
        found[name] = distributed.all_or_none(group, act, "writing")
    except TalosError as error:
        found[name] = str(error)
print(json.dumps(found))
distributed.stop()
"""


def test_what_three_ranks_do_together(environment: Callable[..., dict[str, str]], port: int) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", OPERATIONS],
            env=environment(rank, 3, port),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    results = [process.communicate(timeout=100) for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0, 0], results
    for rank, (printed, _) in enumerate(results):
        found = json.loads(printed)
        rows = [[1.0, 1.0], [2.0, 2.0], [2.0, 2.0]]
        assert found["numbers"] == [[0, 0.5], [1, 0.5], [2, 0.5]]
        assert found["any"] == [True, False]
        assert found["mean"] == pytest.approx(1 / 3)  # of 0; 0 and 1
        assert found["broadcast"] == [0, 7]
        assert found["sum"] == [3, 3]
        assert found["gather"] == [[[0], [5]], [[1], [5]], [[2], [5]]]
        assert found["rows"] == rows
        assert found["on rank 0"] == (rows if rank == 0 else None)
        assert found["equal"] == [0, 1, 2, 3, 4, 5 + rank]
        assert (found["value"], found["stop"]) == (6, True)
        sparse, mixed, dense, absent, empty, mine = found["gradients"]
        assert sparse == [2, 2, 2, 0]
        assert mixed == [1, 2, 2, 1]
        assert dense == [3, 3, 3, 3]
        assert absent is None
        assert empty == [0, 0, 0, 1]
        assert mine == ([2] * 4 if rank == 1 else [0] * 4)  # not summed, and there everywhere
        assert found["sparse"] == [True, False, False, False, True, False]
        assert found["works"] == rank
        assert found["fails"] == (
            "writing: no space" if rank == 1 else "writing: rank 1 could not do its part"
        )


def test_alone_an_error_is_its_own() -> None:
    def fail() -> None:
        raise ConfigError("wrong", where="here")

    assert all_or_none(SINGLE_PROCESS, None, "nothing") is None
    with pytest.raises(ConfigError, match="here: wrong"):
        all_or_none(SINGLE_PROCESS, fail, "writing")


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
