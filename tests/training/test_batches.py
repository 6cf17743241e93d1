"""The rows of an epoch and their weights, against loops over users and interactions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest
import torch

from talos.backbones import MF
from talos.config import RunConfig
from talos.data.interactions import Interactions
from talos.distributed import Group
from talos.kernels import user_exponent
from talos.kernels.csr import Batch, TrainIndex
from talos.losses import BPR
from talos.negatives import AllItems, UniformNegatives
from talos.training import Trainer
from talos.training.batches import Batches, PositiveRows, Rows, UserRows, generator_for
from talos.training.objective import Objective

Reduction = Literal["positives", "users"]
InThreads = Callable[[int, Callable[[Group], Any]], list[Any]]
POWERS, REDUCTIONS = (1.0, 0.5, 0.0), ("positives", "users")


def index_of(*, weighted: bool, users: int = 17, items: int = 11) -> TrainIndex:
    """Users with one item to all of them, and one without any; events that weigh from .1 to 3."""
    rng = np.random.default_rng(5)
    has = rng.random((users, items)) < np.linspace(0.1, 1.0, users)[:, None]
    has[:, 0], has[3] = True, False
    indptr = np.concatenate([[0], np.cumsum(has.sum(1))])
    weights = torch.from_numpy(rng.uniform(0.1, 3.0, int(indptr[-1])).astype(np.float32))
    return TrainIndex(
        indptr=torch.from_numpy(indptr),
        indices=torch.from_numpy(has.nonzero()[1]),
        num_users=users,
        num_items=items,
        weights=weights if weighted else None,
    )


def naive_weights(index: TrainIndex, power: float, reduction: Reduction) -> dict[tuple[int, int], float]:
    """The weight of every user and item before division: w·n^(p-1), divided by n for a mean over users."""
    found = {}
    for user in range(index.num_users):
        edges = range(int(index.indptr[user]), int(index.indptr[user + 1]))
        own = {edge: 1.0 if index.weights is None else float(index.weights[edge]) for edge in edges}
        n = sum(own.values())
        for edge, weight in own.items():
            value = weight * n ** (power - 1)
            found[user, int(index.indices[edge])] = value / n if reduction == "users" else value
    return found


def pairs(batch: Batch) -> list[tuple[int, int]]:
    users = batch.users[batch.positives.rows]
    return list(zip(users.tolist(), batch.positives.items.tolist(), strict=True))


@pytest.mark.parametrize("kind", [UserRows, PositiveRows])
@pytest.mark.parametrize("power", POWERS)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weighted", [False, True])
def test_weights_of_a_batch_against_a_loop(
    kind: type[Rows], power: float, reduction: Reduction, weighted: bool
) -> None:
    index = index_of(weighted=weighted)
    expected = naive_weights(index, power, reduction)
    batches = Batches(kind(index, exponent=user_exponent(power, reduction)), 5)
    order, seen = batches.order(torch.Generator().manual_seed(1)), []
    for step in range(len(batches)):
        batch = batches.batch(order, step)
        assert (batch.first, batch.total) == (0, len(batch.users))
        total = sum(expected[pair] for pair in pairs(batch))
        if kind is PositiveRows:  # what as many positives weigh on average
            total = sum(expected.values()) * len(batch.users) / len(expected)
        assert batch.weights.dtype == torch.float32
        assert batch.weights.tolist() == pytest.approx([expected[pair] / total for pair in pairs(batch)])
        seen += pairs(batch)
    assert sorted(seen) == sorted(expected)  # everything once an epoch


@pytest.mark.parametrize("kind", [UserRows, PositiveRows])
def test_batches_are_sized_sorted_and_drawn_anew(kind: type[Rows]) -> None:
    index = index_of(weighted=False)
    rows = kind(index)
    assert len(rows.population) == (16 if kind is UserRows else len(index.indices))
    batches = Batches(rows, 5)
    orders = [batches.order(generator_for(0, 1, epoch)) for epoch in (0, 0, 1)]
    assert torch.equal(orders[0].positions, orders[1].positions)
    assert not torch.equal(orders[0].positions, orders[2].positions)
    for step in range(len(batches)):
        batch = batches.batch(orders[0], step)
        assert len(batch.users) == min(5, len(rows.population) - 5 * step)
        assert batch.users.tolist() == sorted(batch.users.tolist())
        assert batch.distinct == (kind is UserRows)
        assert batch.history is None
        if kind is PositiveRows:
            assert batch.positives.counts.tolist() == [1] * len(batch.users)
        else:
            for user, start, stop in zip(
                batch.users, batch.positives.start, batch.positives.start[1:], strict=False
            ):
                own = index.indices[index.indptr[user] : index.indptr[user + 1]]
                assert torch.equal(batch.positives.items[start:stop], own)


@pytest.mark.parametrize("kind", [UserRows, PositiveRows])
def test_only_some_users(kind: type[Rows]) -> None:
    """Their weights are the same; users without interactions have no rows."""
    index, some = index_of(weighted=True), torch.tensor([2, 3, 9])
    batches = Batches(kind(index, exponent=0.5, only_users=some), 100)
    batch = batches.batch(batches.order(torch.Generator()), 0)
    expected = {
        pair: one for pair, one in naive_weights(index, 0.5, "positives").items() if pair[0] in (2, 9)
    }
    assert pairs(batch) == sorted(expected)
    assert batch.weights.tolist() == pytest.approx(
        [one / sum(expected.values()) for one in expected.values()]
    )


@pytest.mark.parametrize("kind", [UserRows, PositiveRows])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_batches_of_several_processes_are_those_of_one(
    kind: type[Rows], size: int, in_threads: InThreads
) -> None:
    """A process has its own users' rows of every batch, with the weights that they have in the whole batch."""
    index = index_of(weighted=False)
    alone = Batches(kind(index, exponent=0.5), 4)
    order = alone.order(generator_for(7))

    def work(group: Group) -> list[tuple[list[tuple[int, int]], list[float], int, int]]:
        own = group.range_of(index.num_users)
        first, last = int(index.indptr[own.start]), int(index.indptr[own.stop])
        part = TrainIndex(
            indptr=index.indptr[own.start : own.stop + 1] - first,
            indices=index.indices[first:last],
            num_users=len(own),
            num_items=index.num_items,
        )
        batches = Batches(kind(part, exponent=0.5), 4, group)
        theirs, found = batches.order(generator_for(7)), []
        for step in range(len(batches)):
            batch = batches.batch(theirs, step)
            shifted = [(user + own.start, item) for user, item in pairs(batch)]
            found.append((shifted, batch.weights.tolist(), batch.first, batch.total))
        return found

    ranks = in_threads(size, work)
    for step in range(len(alone)):
        batch = alone.batch(order, step)
        assert [pair for rank in ranks for pair in rank[step][0]] == pairs(batch)
        assert [one for rank in ranks for one in rank[step][1]] == pytest.approx(batch.weights.tolist())
        before = 0
        for rank in ranks:
            assert rank[step][2:] == (before, len(batch.users))
            before += len({pair[0] for pair in rank[step][0]}) if kind is UserRows else len(rank[step][0])


def test_masses_may_be_given() -> None:
    """Where the index has a part of the items only, a user's positives elsewhere count too."""
    index = TrainIndex(
        indptr=torch.tensor([0, 1, 1, 3]), indices=torch.tensor([0, 0, 1]), num_users=3, num_items=2
    )
    rows = UserRows(index, exponent=0.0, mass=torch.tensor([4, 2, 2]))
    assert rows.population.tolist() == [0, 1, 2]  # user 1 has items, though none here
    assert rows.weights(rows.population).tolist() == [1, 1, 1]
    batch = rows.batch(rows.population, 3.0)
    assert batch.weights.tolist() == pytest.approx([1 / 12, 1 / 6, 1 / 6])
    assert batch.positives.start.tolist() == [0, 1, 1, 3]


# Event weights of two users with four events each: a user's weight follows the sum of the weights, not the count.
RATINGS = {"a": [1.0, 2.0, 3.0, 4.0], "b": [0.5, 0.5, 0.5, 0.5]}


@pytest.mark.parametrize("power", POWERS)
@pytest.mark.parametrize("negatives", [AllItems(), UniformNegatives(1)], ids=str)
def test_the_pull_of_users_follows_the_sum_of_their_event_weights(
    power: float, negatives: AllItems | UniformNegatives
) -> None:
    """With all items and with single positives alike: a : b = n_a^p : n_b^p.

    All scores are 0, where BPR has the same slope for every positive, and the two user vectors are orthogonal: the
    gradient of a user's positives along the user's vector is the sum of their weights, times that slope.
    """
    index = TrainIndex(
        indptr=torch.tensor([0, 4, 8]),
        indices=torch.tensor([0, 1, 2, 3, 3, 4, 5, 6]),
        num_users=2,
        num_items=9,
        weights=torch.tensor([*RATINGS["a"], *RATINGS["b"]]),
    )
    backbone = MF(2, 9, dim=2, generator=None)
    with torch.no_grad():
        backbone.user_table.copy_(torch.eye(2))
        backbone.item_table.zero_()
    kind = UserRows if negatives.per == "all" else PositiveRows
    rows = kind(index, exponent=user_exponent(power, "positives"))
    batches = Batches(rows, 100)
    batch = batches.batch(batches.order(torch.Generator()), 0)
    objective = Objective(backbone, BPR(user_power=power), negatives, None, index=index)
    objective(batch, torch.Generator().manual_seed(0)).backward()
    gradient = backbone.item_table.grad
    assert gradient is not None
    pulls = [-gradient[index.indices[4 * user : 4 * user + 4], user].sum().item() for user in (0, 1)]
    masses = [sum(one) ** power for one in RATINGS.values()]
    assert pulls == pytest.approx([0.5 * mass / sum(masses) for mass in masses], rel=1e-5)


@pytest.mark.parametrize("negatives", ["all", "4"])
@pytest.mark.parametrize("power", POWERS)
def test_a_trainer_weighs_events_by_their_ratings(negatives: str, power: float) -> None:
    """The same from a file's ratings through the config: the total weights of both users in one batch."""
    users, ratings = ["a"] * 4 + ["b"] * 4, [one for of_user in RATINGS.values() for one in of_user]
    items = [*range(4), *range(3, 7)]
    data = Interactions.from_ids([*users, "c"], [*items, 9], ratings=[*ratings, 1e-6])
    values = {"k": 2, "loss.name": "sl", "loss.user_power": power, "events.weights": "rating", "backbone.dim": 2,
              "negatives": negatives, "training.batch_size": 100}  # fmt: skip
    trainer = Trainer(RunConfig().with_values(values), data)
    batch = trainer.batches.batch(trainer.batches.order(torch.Generator()), 0)
    of_users = batch.users[batch.positives.rows]
    a, b = (batch.weights[of_users == user].sum().item() for user in (0, 1))
    masses = [sum(one) ** power for one in RATINGS.values()]
    assert a / b == pytest.approx(masses[0] / masses[1], rel=1e-4)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", [UserRows, PositiveRows])
def test_a_mean_over_users_gives_everybody_the_same_weight_over_an_epoch(
    kind: type[Rows], weighted: bool
) -> None:
    """Exactly with single positives, in batches of any size; with whole users, before a batch is divided by its sum."""
    index = index_of(weighted=weighted, users=120)
    rows = kind(index, exponent=user_exponent(1.0, "users"))
    someone = index.degrees > 0
    assert index.degrees[someone].max() >= 11 * index.degrees[someone].min()

    def add(totals: torch.Tensor, batch: Batch) -> None:
        totals.index_add_(0, batch.users[batch.positives.rows], batch.weights.double())

    whole, epochs = torch.zeros(2, index.num_users, dtype=torch.float64)
    add(whole, rows.batch(rows.population, 1.0))
    assert whole[someone].tolist() == pytest.approx([1.0] * 119)
    # four positives a batch, 199 times; a smaller last batch would weigh its rows more
    size, allowed = (30, 0.05) if kind is UserRows else (4, 1e-5)
    batches = Batches(rows, size)
    for epoch in range(25 if kind is UserRows else 1):
        order = batches.order(generator_for(epoch))
        for step in range(len(batches)):
            add(epochs, batches.batch(order, step))
    assert (epochs[someone] / epochs[someone].mean() - 1).abs().max() < allowed
