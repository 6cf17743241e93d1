"""Batches that are divided evenly: users change hands, and nothing else about a batch changes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from talos.data.csr import TrainIndex
from talos.data.interactions import Interactions
from talos.training.batches import Batches, BatchOptions

USERS, ITEMS, SIZE = 23, 12, 6

DATA = f"""
import numpy as np
from talos.data.interactions import Interactions
rng = np.random.default_rng(0)
# users have less to do the later they come, so that shares by number are not shares by interactions; some have nothing
pairs = np.array([(user, item) for user in range({USERS}) for item in range({ITEMS}) if rng.random() < 0.9 - user / 30])
data = Interactions.from_ids(pairs[:, 0], pairs[:, 1])
"""

RANK = (
    DATA
    + f"""
import json, torch
from talos import distributed
from talos.data.csr import TrainIndex
from talos.training.batches import BatchOptions
from talos.training.parallel.balanced_users import BalancedBatches
group = distributed.start()
own = group.share(data.num_users)
index = TrainIndex.from_interactions(data.user_range(own))
batches = BalancedBatches(index, BatchOptions(kind="users", size={SIZE}), group)
steps = []
for epoch in range(2):
    order = batches.order(torch.Generator().manual_seed(epoch))
    for step in range(len(batches)):
        batch = batches.batch(order, step)
        codes, share = batch.members, batch.share
        worked = group.all_to_all_rows(codes + own.start, share.send, share.receive)
        back = group.all_to_all_rows(worked, share.receive, share.send)
        steps.append({{"own": (codes + own.start).tolist(), "users": worked.tolist(), "back": back.tolist(),
                      "ends": share.ends.tolist(), "items": share.positives.tolist(), "weight": share.weight}})
print(json.dumps(steps))
distributed.stop()
"""
)


@pytest.fixture(scope="module", params=[2, 3])
def steps(
    request: pytest.FixtureRequest,
    environment: Callable[..., dict[str, str]],
    new_port: Callable[[], int],
) -> list[tuple[dict[str, Any], ...]]:
    """What each rank has of each step."""
    port = new_port()
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RANK],
            env=environment(rank, request.param, port),
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(request.param)
    ]
    found = [json.loads(process.communicate(timeout=100)[0]) for process in processes]
    return list(zip(*found, strict=True))


@pytest.fixture(scope="module")
def data() -> Interactions:
    made: dict[str, Any] = {}
    exec(DATA, made)
    return made["data"]


def test_pieces_are_equal_and_make_the_batch_of_one_process(
    steps: list[tuple[dict[str, Any], ...]], data: Interactions
) -> None:
    batches = Batches(TrainIndex.from_interactions(data).degrees, BatchOptions(kind="users", size=SIZE))
    assert len(steps) == 2 * len(batches)
    lent = 0
    for number, ranks in enumerate(steps):
        order = batches.order(torch.Generator().manual_seed(number // len(batches)))
        whole = batches.batch(order, number % len(batches)).members.tolist()
        assert [user for rank in ranks for user in rank["users"]] == whole
        assert [user for rank in ranks for user in rank["own"]] == whole
        sizes = [len(rank["users"]) for rank in ranks]
        assert max(sizes) - min(sizes) <= 1
        lent += sum(len(set(rank["users"]) - set(rank["own"])) for rank in ranks)
    assert lent > 0


def test_borrowed_users_come_with_their_interactions(
    steps: list[tuple[dict[str, Any], ...]], data: Interactions
) -> None:
    for ranks in steps:
        counts = [rank["ends"][-1] for rank in ranks]
        for rank in ranks:
            for user, start, stop in zip(rank["users"], rank["ends"], rank["ends"][1:], strict=False):
                items = data.indices[data.indptr[user] : data.indptr[user + 1]]
                np.testing.assert_array_equal(rank["items"][start:stop], items)
            assert rank["weight"] == pytest.approx(rank["ends"][-1] / sum(counts))


def test_what_was_lent_comes_back_to_its_place(steps: list[tuple[dict[str, Any], ...]]) -> None:
    assert all(rank["back"] == rank["own"] for ranks in steps for rank in ranks)
