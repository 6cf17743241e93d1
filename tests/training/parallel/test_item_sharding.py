"""What a rank has where items are divided too."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import Tensor

from talos.data.interactions import Interactions
from talos.distributed import Group
from talos.evaluation.evaluate import evaluate
from talos.evaluation.ranking import DotScores
from talos.training.parallel.item_sharding import ItemSharding, _of_items


def random_data(users: int, items: int, seed: int) -> Interactions:
    rng = np.random.default_rng(seed)
    rows, columns = np.nonzero(rng.random((users, items)) < 0.3)
    whole = Interactions.from_ids([*rows, *range(users)], [*columns, *[0] * users])
    return whole.where(~np.isin(whole.rows, [0, 3, users - 1]))  # users without any, at both ends too


@pytest.mark.parametrize("cuts", [[0, 9], [0, 4, 9], [0, 1, 2, 9]])
def test_the_interactions_on_ranges_of_items_are_those_of_all(cuts: list[int]) -> None:
    data = random_data(7, 9, seed=0)
    whole = data.to_scipy().toarray()
    parts = [_of_items(data, range(*cuts[i : i + 2])) for i in range(len(cuts) - 1)]
    assert np.array_equal(np.hstack([part.to_scipy().toarray() for part in parts]), whole)
    assert [part.num_items for part in parts] == list(np.diff(cuts))
    assert [id_ for part in parts for id_ in part.item_ids.ids] == list(data.item_ids.ids)


class Thread(Group):
    """A rank that is a thread; what they say to each other lies on a table."""

    def __init__(self, rank: int, table: list[object], barrier: threading.Barrier) -> None:
        self.rank, self.size, self.table, self.barrier = rank, len(table), table, barrier

    def _said(self, message: object) -> list:
        self.table[self.rank] = message
        self.barrier.wait()
        found = list(self.table)
        self.barrier.wait()  # nobody says the next before all have heard this
        return found

    def all_gather_numbers(self, numbers: Sequence[float]) -> list[list[float]]:
        return self._said(list(numbers))

    def all_gather_rows(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        return torch.cat(self._said(rows))

    def all_to_all_rows(
        self, rows: Tensor, send: Sequence[int], receive: Sequence[int], *, out: Tensor | None = None
    ) -> Tensor:
        parts = self._said(torch.split(rows, list(send)))
        return torch.cat([part[self.rank] for part in parts])


@pytest.mark.parametrize("size", [1, 2, 5])
def test_lists_from_all_ranks_are_those_of_one_with_ties_by_position(size: int) -> None:
    train, valid = random_data(30, 40, seed=1), random_data(30, 40, seed=2)
    # few directions, so that many items are alike and lists are decided by position
    users = torch.eye(3)[torch.arange(30) % 3]
    items = torch.eye(3)[torch.arange(40) % 3]
    want = evaluate(DotScores(users, items), valid, seen=train, ks=[5]).metrics
    table, barrier = [None] * size, threading.Barrier(size, timeout=30)

    def measured(rank: int) -> dict[str, float]:
        sharding = ItemSharding(train, valid, Thread(rank, table, barrier), torch.device("cpu"))
        own = sharding.users, sharding.items
        return sharding.metrics(
            *(rows[part.start : part.stop] for rows, part in zip((users, items), own, strict=True)), 5
        )

    with ThreadPoolExecutor(size) as pool:
        for found in pool.map(measured, range(size)):
            assert found == pytest.approx(want)
