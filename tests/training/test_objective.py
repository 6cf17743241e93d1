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
from talos.backbones import MF, BipartiteGraph, XSimGCL
from talos.data.datasets import synthetic
from talos.kernels import user_exponent
from talos.kernels.csr import Batch, TrainIndex
from talos.negatives import AllItems, Negatives, SharedNegatives, UniformNegatives
from talos.thresholds import FixedThreshold, MonteCarloQuantile, QuantileRegression
from talos.training.batches import PositiveRows, Rows, UserRows
from talos.training.objective import Objective
from talos.training.optimizer import RowAdam

USERS, ITEMS = 23, 31


def batch_of(rows: Rows, members: Tensor) -> Batch:
    """These rows as a batch, with weights that add up to 1."""
    return rows.batch(members, float(rows.weights(members).sum()), total=len(members))


def made(*, users: int, touched: bool = False) -> tuple[Objective, TrainIndex]:
    index = TrainIndex.from_interactions(synthetic(users=USERS, items=ITEMS, interactions=150, seed=4))
    backbone = MF(index.num_users, index.num_items, dim=5, generator=torch.Generator().manual_seed(1))
    for table in backbone.parameters():
        vars(table)["row_sparse"] = touched
    objective = Objective(
        backbone, losses.Talos(tau=0.2), SharedNegatives(9, users=users), FixedThreshold(0.1), index=index
    )
    return objective, index


def naive(
    objective: Objective, index: TrainIndex, batch: list[int], samples: list[list[int]], reduction: str
) -> torch.Tensor:
    """Σ over users and positives, with the part of a batch that each sample is for spelled out."""
    user_vectors, item_vectors = (F.normalize(table) for table in objective.backbone.parameters())
    size = -(-len(batch) // len(samples))
    by_user = []
    for row, user in enumerate(batch):
        positives = index.indices[index.indptr[user] : index.indptr[user + 1]].tolist()
        others = [item for item in samples[row // size] if item not in positives]
        scores = user_vectors[user] @ item_vectors.T
        z = sum(torch.sigmoid(scores[j] - 0.1) ** 5 for j in others)
        values = [-5 * F.logsigmoid(scores[i] - 0.1) + torch.log(z) for i in positives]
        by_user.append(torch.stack(values))
    if reduction == "positives":
        return torch.cat(by_user).mean()
    return torch.stack([values.mean() for values in by_user]).mean()


@pytest.mark.parametrize("reduction", ["positives", "users"])
@pytest.mark.parametrize("users", [1, 3, 7, 64])
@pytest.mark.parametrize("touched", [False, True])
def test_groups_against_a_loop(reduction: Literal["positives", "users"], users: int, touched: bool) -> None:
    objective, index = made(users=users, touched=touched)
    rows = UserRows(index, exponent=user_exponent(objective.loss.user_power, reduction))
    batch = (index.degrees > 0).nonzero().flatten()[:11]
    drawn = objective.negatives.draw(index, batch, torch.Generator().manual_seed(7))
    value = objective(batch_of(rows, batch), torch.Generator().manual_seed(7))
    value.backward()
    found = [table.grad.to_dense().clone() for table in objective.backbone.parameters()]
    for table in objective.backbone.parameters():
        table.grad = None
    expected = naive(objective, index, batch.tolist(), drawn.tolist(), reduction)
    expected.backward()
    torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-6)
    for gradient, table in zip(found, objective.backbone.parameters(), strict=True):
        torch.testing.assert_close(gradient, table.grad, rtol=1e-4, atol=1e-6)


def test_thresholds_follow_every_group_once() -> None:
    objective, index = made(users=3)
    objective.threshold = QuantileRegression(
        index.num_users, k=3, num_items=index.num_items, num_positives=index.degrees, lr=0.05
    )
    batch = (index.degrees > 0).nonzero().flatten()[:10]
    objective(batch_of(UserRows(index), batch), torch.Generator().manual_seed(0))
    moved = objective.threshold.value(torch.arange(index.num_users)) != 0
    assert moved.nonzero().flatten().tolist() == batch.tolist()


def test_monte_carlo_thresholds_pool_all_positives_of_the_user() -> None:
    """With K above the number of negatives, one positive a row would leave the pool smaller than K."""
    index = TrainIndex.from_interactions(synthetic(users=USERS, items=ITEMS, interactions=250, seed=4))
    backbone = MF(index.num_users, index.num_items, dim=5, generator=torch.Generator().manual_seed(1))
    k, threshold = 6, MonteCarloQuantile(index.num_users, k=6)
    objective = Objective(backbone, losses.SoftmaxAtK(tau=0.2), UniformNegatives(4), threshold, index=index)
    members = torch.arange(40)  # positives of several users, most of them with several rows
    batch = batch_of(PositiveRows(index), members)
    drawn = objective.negatives.draw(index, batch.users, torch.Generator().manual_seed(7))
    objective(batch, torch.Generator().manual_seed(7))
    users, items = (F.normalize(table) for table in backbone.parameters())
    pooled: dict[int, list[float]] = {}
    for row, user in enumerate(batch.users.tolist()):
        own = index.indices[index.indptr[user] : index.indptr[user + 1]].tolist()
        scores = sorted(((users[user] @ items[i]).item() for i in [*own, *drawn[row].tolist()]), reverse=True)
        pooled.setdefault(user, []).append(scores[min(k, len(scores)) - 1])
    for user, values in pooled.items():
        assert threshold.value(torch.tensor([user])).item() == pytest.approx(
            sum(values) / len(values), abs=1e-6
        )


@pytest.mark.parametrize("half", [False, True])
def test_the_backbones_own_loss_counts_by_the_rows_of_a_process(
    half: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told whether kernels may round, and left out where the vectors are constants."""
    data = synthetic(users=USERS, items=ITEMS, interactions=150, seed=4)
    index, asked = TrainIndex.from_interactions(data), []

    def auxiliary_loss(self: XSimGCL, batch: Batch, *, bfloat16: bool) -> Tensor:
        asked.append((batch.users.tolist(), bfloat16))
        return torch.tensor(3.0)

    monkeypatch.setattr(XSimGCL, "auxiliary_loss", auxiliary_loss)
    graph = BipartiteGraph.from_interactions(data)
    backbone = XSimGCL(graph, dim=4, generator=torch.Generator().manual_seed(0))
    objective = Objective(backbone, losses.Softmax(), AllItems(), None, index=index, bfloat16=half)
    members = UserRows(index).population[:8]
    whole = batch_of(UserRows(index), members)
    of_four = Batch(**vars(whole) | {"total": 32})

    def value(batch: Batch, **how: bool) -> float:
        return objective(batch, torch.Generator().manual_seed(7), **how).item()

    with_it, a_quarter = value(whole), value(of_four)
    assert asked == [(members.tolist(), half)] * 2
    backbone.has_auxiliary_loss = False
    without = value(whole)
    assert with_it == pytest.approx(without + 3, rel=1e-5)
    assert a_quarter == pytest.approx(without + 3 / 4, rel=1e-5)
    backbone.has_auxiliary_loss = True
    assert not objective(whole, torch.Generator(), frozen=True).requires_grad
    assert len(asked) == 2


def test_a_process_without_rows_has_a_loss_of_zero_and_keeps_step() -> None:
    """It draws what the others draw, and thresholds with momentum move."""
    objective, index = made(users=3)
    objective.threshold = QuantileRegression(index.num_users, k=3, num_items=index.num_items, lr=0.05)
    rows, generators = UserRows(index), [torch.Generator().manual_seed(7) for _ in range(2)]
    members = rows.population[:6]
    objective(batch_of(rows, members), generators[0])
    value = objective(rows.batch(members[:0], 1.0, first=6, total=6), generators[1])
    value.backward()
    assert value.item() == 0
    assert torch.equal(*(one.get_state() for one in generators))
    assert objective.threshold.steps.item() == 2
    assert all(table.grad is None for table in objective.backbone.parameters())


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
        objective = Objective(
            backbone,
            losses.Talos(tau=0.2),
            FirstItems(),
            QuantileRegression(40, k=3, num_items=items, num_positives=index.degrees),
            index=index,
        )
        tables = list(backbone.parameters())
        for table in tables:
            vars(table)["row_sparse"] = True
        rows = UserRows(index)
        optimizer, batch = RowAdam(tables, lr=0.1), batch_of(rows, rows.population)
        for step in range(2):  # the first one makes the optimizer's moments
            moments = [slot for state in optimizer.state.values() for slot in state.values()]
            with NewBytes([*tables, *moments]) as new:
                objective(batch, torch.Generator().manual_seed(step)).backward()
                optimizer.step()
            for table in tables:
                table.grad = None
        return new.bytes

    small = step_bytes(1000)
    assert 0 < small < 10**6
    assert step_bytes(50_000) == small
