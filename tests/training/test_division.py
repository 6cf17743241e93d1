"""What several processes divide: as asked, chosen by size, or refused with the reason."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from talos.backbones import MF
from talos.config import RunConfig
from talos.data.interactions import Interactions
from talos.distributed import SINGLE_PROCESS, Group
from talos.errors import ConfigError
from talos.evaluation.evaluate import evaluate
from talos.evaluation.ranking import DotScores
from talos.kernels.csr import CSR, Batch
from talos.training import Trainer
from talos.training import division as module
from talos.training.division import Division, division_for

EXACT = {"negatives": "all", "threshold.name": "exact", "training.batch_size": 512}


def rank_of(size: int, rank: int = 0) -> Group:
    group = Group()
    group.rank, group.size = rank, size
    return group


def random_data(users: int, items: int, seed: int) -> Interactions:
    rng = np.random.default_rng(seed)
    rows, columns = np.nonzero(rng.random((users, items)) < 0.3)
    whole = Interactions.from_ids([*rows, *range(users)], [*columns, *[0] * users])
    return whole.where(~np.isin(whole.rows, [0, 3, users - 1]))  # users without any, at both ends too


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
    changes = EXACT | {name.replace("__", "."): value for name, value in values.items()}
    sizes = SimpleNamespace(num_users=users, num_items=items)  # nothing else of the data matters
    found = division_for(RunConfig().with_values(changes), sizes, rank_of(size))  # type: ignore[arg-type]
    assert found.by_items == (by == "items")
    assert found.users == range(users // size)
    assert found.items == range(items // size if by == "items" else items)
    assert found.line.startswith("users and items divided" if by == "items" else "users divided")


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
    assert division_for(config, data, SINGLE_PROCESS) == Division(range(2), range(2))


def test_weights_of_events_are_refused_in_several_processes() -> None:
    config = RunConfig().with_values(EXACT | {"events.half_life": "9d"})
    with pytest.raises(ConfigError, match="events: equal, 9d; expected the defaults in several processes"):
        division_for(config, Interactions.from_ids([1, 2], [7, 8]), rank_of(2))


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_interactions_on_ranges_of_items_are_those_of_all(size: int) -> None:
    """Of all users in every process; and the masses of users are those over all items."""
    data, config = random_data(7, 9, seed=0), RunConfig().with_values(EXACT)
    parts = []
    for rank in range(size):
        group = rank_of(size, rank)
        division = Division(group.range_of(7), group.range_of(9), group, by_items=True)
        index = division.index(data, config, torch.device("cpu"))
        assert (index.num_users, index.num_items) == (7, len(division.items))
        dense = np.zeros((7, index.num_items))
        (_, items, rows), _ = index.csr_of(torch.arange(7))
        dense[rows, items] = 1
        parts.append(dense)
        masses = module.user_masses(division, data, torch.device("cpu"))
        assert masses is not None
        assert masses.tolist() == data.user_degrees.tolist()
    assert np.array_equal(np.hstack(parts), data.to_scipy().toarray())


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_index_of_divided_users_is_that_of_their_interactions(size: int) -> None:
    data, config = random_data(7, 9, seed=0), RunConfig().with_values(EXACT)
    whole = data.to_scipy().toarray()
    for rank in range(size):
        division = division_for(config, data, rank_of(size, rank))
        index = division.index(data, config, torch.device("cpu"))
        (_, items, rows), _ = index.csr_of(torch.arange(len(division.users)))
        found = np.zeros((len(division.users), 9))
        found[rows, items] = 1
        assert np.array_equal(found, whole[division.users.start : division.users.stop])
        assert module.user_masses(division, data, torch.device("cpu")) is None


@pytest.mark.parametrize("size", [1, 2, 5])
def test_vectors_and_metrics_of_divided_items_are_those_of_one_process(size: int, in_threads: Any) -> None:
    """Few directions, so that many items are alike and lists are decided by position."""
    train, valid = random_data(30, 40, seed=1), random_data(30, 40, seed=2)
    users, items = torch.eye(3)[torch.arange(30) % 3], torch.eye(3)[torch.arange(40) % 3]
    want = evaluate(DotScores(users, items), valid, seen=train, ks=[5]).metrics
    members = torch.tensor([0, 4, 5, 11, 28])
    batch = Batch(users=members, positives=CSR.of(torch.zeros(6).long(), members[:0]), weights=torch.empty(0))

    def work(group: Group) -> tuple[dict[str, float], torch.Tensor, torch.Tensor]:
        own = Division(group.range_of(30), group.range_of(40, of="items"), group, by_items=True)
        backbone = MF(30, 40, dim=3, generator=None, users=own.users, items=own.items)
        with torch.no_grad():
            backbone.user_table.copy_(users[own.users.start : own.users.stop])
            backbone.item_table.copy_(items[own.items.start : own.items.stop])
        whole = own.all_items(backbone.items().detach(), 40)
        found = evaluate(
            DotScores(backbone.user_table.detach(), whole),
            valid.user_range(own.users),
            seen=train.user_range(own.users),
            ks=[5],
            group=group,
        )
        rows = own.batch_users(backbone, batch, whole, torch.Generator())
        (rows * (group.rank + 1)).sum().backward()  # every process has a slope of its own
        return found.metrics, rows.detach(), backbone.user_table.grad

    results = in_threads(size, work)
    gradients = torch.cat([gradient for _, _, gradient in results])
    slopes = torch.zeros(30, 3)
    slopes[members] = size * (size + 1) / 2
    assert torch.equal(gradients, slopes)
    for metrics, rows, _ in results:
        assert metrics == pytest.approx(want)
        assert torch.equal(rows, users[members])
