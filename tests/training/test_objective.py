"""The loss of a batch whose users share samples in groups, against one user and one positive at a time."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
import torch.nn.functional as F

from talos import losses
from talos.backbones import MF
from talos.data.csr import TrainIndex
from talos.data.datasets import synthetic
from talos.negatives import SharedNegatives, UniformNegatives
from talos.thresholds import FixedThreshold, MonteCarloQuantile, QuantileRegression
from talos.training.batches import Batch
from talos.training.objective import ObjectiveOptions, PositiveObjective, UserObjective

USERS, ITEMS = 23, 31


def made(
    reduction: Literal["positives", "users"], *, users: int, touched: bool = False
) -> tuple[UserObjective, TrainIndex]:
    index = TrainIndex.from_interactions(synthetic(users=USERS, items=ITEMS, interactions=150, seed=4))
    backbone = MF(index.num_users, index.num_items, dim=5, generator=torch.Generator().manual_seed(1))
    objective = UserObjective(
        backbone,
        losses.Talos(tau=0.2),
        SharedNegatives(9, users=users),
        FixedThreshold(0.1),
        ObjectiveOptions(reduction=reduction, touched_rows=touched),
        index=index,
    )
    return objective, index


def naive(
    objective: UserObjective, index: TrainIndex, batch: list[int], samples: list[list[int]]
) -> torch.Tensor:
    """Σ over users and positives, with the part of a batch that each sample is for spelled out."""
    user_vectors, item_vectors = (F.normalize(table) for table in objective.backbone.vectors())
    size = -(-len(batch) // len(samples))
    by_user = []
    for place, user in enumerate(batch):
        positives = index.indices[index.indptr[user] : index.indptr[user + 1]].tolist()
        others = [item for item in samples[place // size] if item not in positives]
        scores = user_vectors[user] @ item_vectors.T
        z = sum(torch.sigmoid(scores[j] - 0.1) ** 5 for j in others)
        values = [-5 * F.logsigmoid(scores[i] - 0.1) + torch.log(z) for i in positives]
        by_user.append(torch.stack(values))
    if objective.reduction == "positives":
        return torch.cat(by_user).mean()
    return torch.stack([values.mean() for values in by_user]).mean()


@pytest.mark.parametrize("reduction", ["positives", "users"])
@pytest.mark.parametrize("users", [1, 3, 7, 64])
@pytest.mark.parametrize("touched", [False, True])
def test_groups_against_a_loop(reduction: Literal["positives", "users"], users: int, touched: bool) -> None:
    objective, index = made(reduction, users=users, touched=touched)
    batch = (index.degrees > 0).nonzero().flatten()[:11]
    drawn = objective.negatives.draw(index, batch, torch.Generator().manual_seed(7))
    value = objective(Batch(batch), torch.Generator().manual_seed(7))
    value.backward()
    found = [table.grad.to_dense().clone() for table in objective.backbone.parameters()]
    for table in objective.backbone.parameters():
        table.grad = None
    expected = naive(objective, index, batch.tolist(), drawn.tolist())
    expected.backward()
    torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-6)
    for gradient, table in zip(found, objective.backbone.parameters(), strict=True):
        torch.testing.assert_close(gradient, table.grad, rtol=1e-4, atol=1e-6)


def test_thresholds_follow_every_group_once() -> None:
    objective, index = made("positives", users=3)
    objective.threshold = QuantileRegression(
        index.num_users, k=3, num_items=index.num_items, num_positives=index.degrees, lr=0.05
    )
    batch = (index.degrees > 0).nonzero().flatten()[:10]
    objective(Batch(batch), torch.Generator().manual_seed(0))
    moved = objective.threshold.value(torch.arange(index.num_users)) != 0
    assert moved.nonzero().flatten().tolist() == batch.tolist()


def test_monte_carlo_thresholds_pool_all_positives_of_the_user() -> None:
    """With K above the number of negatives, one positive a row would leave the pool smaller than K."""
    index = TrainIndex.from_interactions(synthetic(users=USERS, items=ITEMS, interactions=250, seed=4))
    backbone = MF(index.num_users, index.num_items, dim=5, generator=torch.Generator().manual_seed(1))
    k, threshold = 6, MonteCarloQuantile(index.num_users, k=6)
    objective = PositiveObjective(
        backbone, losses.SoftmaxAtK(tau=0.2), UniformNegatives(4), threshold, index=index
    )
    members = torch.arange(40)  # positives of several users, most of them with several rows
    owners = torch.searchsorted(index.indptr, members, right=True) - 1
    drawn = objective.negatives.draw(index, owners, torch.Generator().manual_seed(7))
    objective(Batch(members), torch.Generator().manual_seed(7))
    users, items = (F.normalize(table) for table in backbone.vectors())
    pooled: dict[int, list[float]] = {}
    for row, user in enumerate(owners.tolist()):
        own = index.indices[index.indptr[user] : index.indptr[user + 1]].tolist()
        scores = sorted(((users[user] @ items[i]).item() for i in [*own, *drawn[row].tolist()]), reverse=True)
        pooled.setdefault(user, []).append(scores[min(k, len(scores)) - 1])
    for user, values in pooled.items():
        assert threshold.value(torch.tensor([user])).item() == pytest.approx(
            sum(values) / len(values), abs=1e-6
        )
