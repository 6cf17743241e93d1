"""The loss of a batch whose users share samples in groups, against one user and one positive at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from talos import losses
from talos.backbones import MF
from talos.data.csr import TrainIndex
from talos.data.datasets import synthetic
from talos.negatives import Negatives, SharedNegatives, UniformNegatives
from talos.thresholds import FixedThreshold, MonteCarloQuantile, QuantileRegression
from talos.training.batches import Batch
from talos.training.objective import ObjectiveOptions, PositiveObjective, UserObjective
from talos.training.optimizer import RowAdam

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


@dataclass(frozen=True)
class FirstItems(Negatives):
    """The same samples for every catalogue: items from the first thousand."""

    per: ClassVar[Literal["positive", "batch", "all"]] = "batch"

    def draw(self, index: TrainIndex, users: Tensor, generator: torch.Generator) -> Tensor:
        return torch.randint(1000, (4, 50), generator=generator)


class NewBytes(TorchDispatchMode):
    """Adds up the bytes of all tensors that operations return, other than (views of) the given ones."""

    def __init__(self, known: list[Tensor]) -> None:
        super().__init__()
        self.known, self.bytes = {tensor.untyped_storage().data_ptr() for tensor in known}, 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        for one in found if isinstance(found, tuple | list) else (found,):
            if not isinstance(one, Tensor) or one.layout != torch.strided:
                continue
            if one.untyped_storage().data_ptr() not in self.known:
                self.bytes += one.numel() * one.element_size()
        return found


def test_a_step_takes_the_same_memory_whatever_the_catalogue() -> None:
    def step_bytes(items: int) -> int:
        data = synthetic(users=40, items=1000, interactions=400, seed=4)
        index = TrainIndex(
            indptr=torch.tensor(data.indptr),
            indices=torch.tensor(data.indices),
            num_users=40,
            num_items=items,
        )
        backbone = MF(40, items, dim=8, generator=torch.Generator().manual_seed(1))
        objective = UserObjective(
            backbone,
            losses.Talos(tau=0.2),
            FirstItems(),
            QuantileRegression(40, k=3, num_items=items, num_positives=index.degrees),
            ObjectiveOptions(touched_rows=True),
            index=index,
        )
        tables = list(backbone.parameters())
        optimizer, batch = RowAdam(tables, lr=0.1), (index.degrees > 0).nonzero().flatten()
        for step in range(2):  # the first one makes the optimizer's moments
            moments = [slot for state in optimizer.state.values() for slot in state.values()]
            with NewBytes([*tables, *moments]) as new:
                objective(Batch(batch), torch.Generator().manual_seed(step)).backward()
                optimizer.step()
            for table in tables:
                table.grad = None
        return new.bytes

    small = step_bytes(1000)
    assert 0 < small < 10**6
    assert step_bytes(50_000) == small
