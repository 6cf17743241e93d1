"""What a rank has where items are divided too."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from talos.distributed import Group
from talos.evaluation import evaluate
from talos.interactions import Interactions
from talos.ranking import DotScores
from talos.training.item_division import ItemDivision, _of_items


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


def test_lists_from_one_rank_are_those_of_all_items_with_ties_by_position() -> None:
    train, valid = random_data(30, 40, seed=1), random_data(30, 40, seed=2)
    # few directions, so that many items are alike and lists are decided by position
    users = torch.eye(3)[torch.arange(30) % 3]
    items = torch.eye(3)[torch.arange(40) % 3]
    division = ItemDivision(train, valid, Group(), torch.device("cpu"))
    sums = division._metric_sums(users, items, 5)
    want = evaluate(DotScores(users, items), valid, seen=train, ks=[5])
    assert sums["users"] == want.num_users
    for name, values in want.per_user.items():
        assert sums[name] == pytest.approx(values.sum())
