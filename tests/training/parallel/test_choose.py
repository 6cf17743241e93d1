"""What several processes divide: as asked, chosen by size, or refused with the reason."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from talos.config import RunConfig
from talos.data.interactions import Interactions
from talos.data.shards import Share
from talos.distributed import SINGLE_PROCESS, Group
from talos.errors import ConfigError
from talos.training import Trainer
from talos.training.parallel import choose
from talos.training.parallel.balanced_users import BalancedUserSharding
from talos.training.parallel.choose import choose_sharding, sharding_for
from talos.training.parallel.sharding import UserSharding

EXACT = {"negatives": "all", "threshold.name": "exact", "training.batch_size": 512}


def chosen(users: int, items: int, size: int, **values: Any) -> tuple[str, str]:
    changes = EXACT | {name.replace("__", "."): value for name, value in values.items()}
    return sharding_for(RunConfig().with_values(changes), users, items, size)


@pytest.mark.parametrize(
    ("users", "items", "size", "values", "by"),
    [
        (10**6, 10**5, 2, {}, "users"),
        (10**6, 10**5, 2, {"training__parallel": "items"}, "items"),
        (10**6, 10**7, 2, {}, "items"),  # 10 GB
        (10**6, 10**7, 2, {"training__parallel": "users"}, "users"),
        (10**6, 10**7, 2, {"backbone__dim": 16}, "users"),  # 2.6 GB
        (10**6, 10**5, 16, {}, "items"),  # 32 users a process
        (100, 10**5, 2, {}, "items"),
        (100, 10**3, 2, {}, "users"),  # too little to matter
        (10**6, 10**7, 2, {"negatives": "shared:8"}, "users"),  # nothing else can be done
        (10**6, 10**7, 2, {"threshold__name": "regression"}, "users"),
        (10**6, 10**7, 2, {"backbone__name": "lightgcn"}, "users"),
        (10**6, 10**7, 2, {"threshold__name": "fixed"}, "items"),
    ],
)
def test_what_is_divided(users: int, items: int, size: int, values: dict[str, Any], by: str) -> None:
    found, line = chosen(users, items, size, **values)
    assert found == by
    assert line.startswith("users and items divided" if by == "items" else "users divided")


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"backbone.name": "lightgcn"}, "depend on other items' rows"),
        ({"negatives": "shared:8"}, "drawn from the whole catalogue"),
        ({"loss.name": "bpr", "negatives": "1"}, "drawn from the whole catalogue"),
        ({"loss.name": "bpr"}, "compares positives with items that other processes have"),
        ({"loss.name": "rs@k"}, "compares positives with items that other processes have"),
        ({"loss.name": "psl", "negatives": "4"}, "drawn from the whole catalogue"),
        ({"threshold.name": "regression"}, "follows scores that no process has all of"),
        ({"threshold.name": "monte-carlo"}, "follows scores that no process has all of"),
    ],
)
def test_what_cannot_be_divided_by_items_is_refused_with_the_reason(
    values: dict[str, Any], reason: str
) -> None:
    data = Interactions.from_ids([1, 1, 2, 2, 3], [7, 8, 8, 9, 6])
    config = RunConfig().with_values({"k": 2, "training.parallel": "items", "negatives": "all"} | values)
    with pytest.raises(ConfigError, match=f"parallel: 'items'; expected 'users' or 'auto': .*{reason}"):
        Trainer(config, data)


def test_a_group_of_one_has_everything_whatever_is_asked_for() -> None:
    data = Interactions.from_ids([1, 1, 2], [7, 8, 7])
    config = RunConfig().with_values(EXACT | {"training.parallel": "items"})
    sharding, line = choose_sharding(config, data, None, SINGLE_PROCESS, torch.device("cpu"))
    assert type(sharding) is UserSharding
    assert (sharding.users, sharding.items, line) == (range(2), range(2), "")


def test_items_are_not_chosen_where_nobody_has_their_interactions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "SMALL_CATALOGUE", 0)
    data, group = Interactions.from_ids([1, 1, 2, 3], [7, 8, 7, 9]), Group()
    group.size, config = 2, RunConfig().with_values(EXACT)
    assert sharding_for(config, 3, 3, 2)[0] == "items"
    found, line = choose_sharding(config, Share.of(data, range(1)), None, group, torch.device("cpu"))
    assert type(found) is BalancedUserSharding
    assert line == "users divided among 2 processes"
    asked = config.with_values({"training.parallel": "items"})
    with pytest.raises(ConfigError, match="parallel: 'items' with interactions of some users alone"):
        choose_sharding(asked, Share.of(data, range(1)), None, group, torch.device("cpu"))
