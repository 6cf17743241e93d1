"""RowAdam: torch's Adam where all rows have a gradient, and a stated difference where some have none."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from talos import losses
from talos.config import OptimizerConfig
from talos.training import optimizer as module
from talos.training.optimizer import VISITED_ONCE_RATE, RowAdam, row_adam_

DECAY = [0.0, 0.1]


def table(rows: int = 6, dim: int = 3, dtype: torch.dtype = torch.float64) -> nn.Parameter:
    return nn.Parameter(torch.randn(rows, dim, dtype=dtype, generator=torch.Generator().manual_seed(0)))


def look_up(parameter: nn.Parameter, rows: list[int], *, sparse: bool, step: int) -> None:
    """One backward pass through these rows, with a loss that changes from step to step."""
    parameter.grad = None
    found = F.embedding(torch.tensor(rows), parameter, sparse=sparse)
    (found.sin() * (step + torch.arange(found.shape[1]) + 1)).sum().backward()


@pytest.mark.parametrize("weight_decay", DECAY)
def test_dense_gradients_as_torch(weight_decay: float) -> None:
    ours, theirs = table(), table()
    mine = RowAdam([ours], lr=0.1, weight_decay=weight_decay)
    reference = torch.optim.Adam([theirs], lr=0.1, weight_decay=weight_decay)
    for step in range(8):
        for parameter, optimizer in ((ours, mine), (theirs, reference)):
            look_up(parameter, [0, 3, 3, step % 6], sparse=False, step=step)
            optimizer.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("weight_decay", DECAY)
@pytest.mark.parametrize("rows", [[0, 1, 2, 3, 4, 5], [5, 0, 2, 2, 1, 4, 3, 0]], ids=["sorted", "repeated"])
def test_all_rows_touched_is_dense_adam(weight_decay: float, rows: list[int]) -> None:
    ours, theirs = table(), table()
    mine = RowAdam([ours], lr=0.1, weight_decay=weight_decay)
    reference = torch.optim.Adam([theirs], lr=0.1, weight_decay=weight_decay)
    for step in range(8):
        look_up(ours, rows, sparse=True, step=step)
        assert ours.grad is not None
        assert ours.grad.is_sparse
        mine.step()
        look_up(theirs, rows, sparse=False, step=step)
        reference.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_untouched_rows_stay_put() -> None:
    """The difference: dense Adam goes on with old momentum and decay, RowAdam does neither."""
    ours, theirs = table(), table()
    mine = RowAdam([ours], lr=0.1, weight_decay=0.1)
    reference = torch.optim.Adam([theirs], lr=0.1, weight_decay=0.1)
    for step, rows in enumerate([[0, 1], [1, 2], [1]]):
        look_up(ours, rows, sparse=True, step=step)
        mine.step()
        look_up(theirs, rows, sparse=False, step=step)
        reference.step()
        if step == 0:
            torch.testing.assert_close(ours[:2], theirs[:2])
            first, moments = ours[0].clone(), mine.state[ours]["exp_avg"][0].clone()
    start = table()
    assert torch.equal(ours[3:], start[3:])  # never touched: no decay
    assert torch.equal(ours[0], first)  # touched once: no momentum tail
    assert torch.equal(mine.state[ours]["exp_avg"][0], moments)  # and moments that do not fade
    assert not torch.equal(theirs[3:], start[3:])
    assert not torch.equal(theirs[0], first)
    torch.testing.assert_close(ours[1], theirs[1])  # touched in every step: the same


def test_the_step_count_is_global() -> None:
    """A row first met at step t is corrected as at step t: its move is larger than lr."""
    parameter = table()
    optimizer = RowAdam([parameter], lr=0.1)
    for step in range(5):
        look_up(parameter, [0], sparse=True, step=step)
        optimizer.step()
    before = parameter[1].clone()
    look_up(parameter, [1], sparse=True, step=0)
    optimizer.step()
    g = before.cos() * torch.tensor([1.0, 2.0, 3.0])
    m, v = 0.1 * g / (1 - 0.9**6), 0.001 * g**2 / (1 - 0.999**6)
    torch.testing.assert_close(parameter[1].detach(), (before - 0.1 * m / (v.sqrt() + 1e-8)).detach())


def test_state_is_plain_tensors_and_resumes_exactly() -> None:
    first, second = table(), table()
    one, other = RowAdam([first], lr=0.1, weight_decay=0.01), RowAdam([second], lr=0.1, weight_decay=0.01)
    for step in range(3):
        look_up(first, [0, 2, 5], sparse=True, step=step)
        one.step()
    state = copy.deepcopy(one.state_dict())  # torch loads by reference
    assert set(state["state"][0]) == {"step", "exp_avg", "exp_avg_sq"}
    assert all(isinstance(value, torch.Tensor) for value in state["state"][0].values())
    other.load_state_dict(state)
    with torch.no_grad():
        second.copy_(first)
    for step in range(3):
        for parameter, optimizer in ((first, one), (second, other)):
            look_up(parameter, [1, 2], sparse=step != 1, step=step)  # dense in between
            optimizer.step()
    assert torch.equal(first, second)


class LargestAllocation(TorchDispatchMode):
    """The most elements that any result has which is not one of the tensors known before."""

    def __init__(self, *known: torch.Tensor) -> None:
        super().__init__()
        self.known = {tensor.untyped_storage().data_ptr() for tensor in known}
        self.most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        plain = isinstance(result, torch.Tensor) and not result.is_sparse
        if plain and result.untyped_storage().data_ptr() not in self.known:
            self.most = max(self.most, result.numel())
        return result


def test_a_sparse_step_allocates_no_table() -> None:
    parameter = table(rows=1000)
    optimizer = RowAdam([parameter], lr=0.1, weight_decay=0.1)
    look_up(parameter, [3, 7, 900], sparse=True, step=0)
    optimizer.step()
    look_up(parameter, [3, 8, 900, 3], sparse=True, step=1)
    state = optimizer.state[parameter]
    with LargestAllocation(parameter, state["exp_avg"], state["exp_avg_sq"]) as seen:
        optimizer.step()
    assert 0 < seen.most <= 12


def test_groups_and_missing_gradients() -> None:
    first, second, idle = table(), table(), table()
    optimizer = RowAdam([{"params": [first, idle]}, {"params": [second], "lr": 0.0}], lr=0.1)
    (first + second).square().sum().backward()
    optimizer.step()
    assert torch.equal(second, table())
    assert torch.equal(idle, table())
    assert not torch.equal(first, table())


def test_no_rows() -> None:
    parameter, rows = table(), torch.tensor([], dtype=torch.long)
    row_adam_(parameter, rows, torch.zeros_like(parameter[:0]), table(), table(), step=1, lr=1)
    assert torch.equal(parameter, table())


@pytest.mark.parametrize("wrong", [{"lr": -1}, {"eps": -1}, {"weight_decay": -1}, {"betas": (0.9, 1.0)}])
def test_wrong_arguments(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="Invalid"):
        RowAdam([table()], **wrong)


def test_the_scalars_of_a_loss_slow_down_with_the_model() -> None:
    """LLPAUC's scalars are stepped with the model, at twice its rate for some; `lr_decay` holds for them too."""
    tables = [table(), table()]
    options = OptimizerConfig(lr=0.1, lr_decay=0.5)
    optimizers = module.Optimizers(
        torch.nn.ParameterList(tables), losses.LLPAUC(), options, touched=tables[1:]
    )
    dense, rows = optimizers.start_pass(None)
    before = [group["lr"] for group in dense.param_groups]
    assert {0.1, 0.2} == set(before)
    for epoch in (0, 1, 2, 7, 3):  # a resumed run begins anywhere
        optimizers.start_epoch(epoch)
        assert [group["lr"] for group in rows.param_groups] == [0.1 * 0.5**epoch]
        assert [group["lr"] for group in dense.param_groups] == [rate * 0.5**epoch for rate in before]


def test_an_adversary_gets_gradients_in_its_own_passes_alone() -> None:
    loss, parameter = losses.AdvInfoNCE(num_users=2, num_items=3), table()
    optimizers = module.Optimizers(
        torch.nn.ParameterList([parameter]), loss, OptimizerConfig(lr=0.1, lr_decay=1.0)
    )
    for adversary, wanted in ((None, False), (0, True), (None, False)):
        optimizers.start_pass(adversary)
        assert [loss.user_table.requires_grad, loss.item_table.requires_grad] == [wanted, wanted]
        assert parameter.requires_grad


@pytest.mark.parametrize("weight_decay", DECAY)
def test_rows_visited_once_as_a_plain_loop(weight_decay: float) -> None:
    """One second moment a row, corrections by the row's own visits; rows without a gradient stay as they are."""
    ours, plain = table(), table().detach().tolist()
    optimizer = RowAdam([{"params": [ours], "visited_once": True}], lr=0.1, weight_decay=weight_decay)
    mean, square, visits = [[0.0] * 3 for _ in plain], [0.0] * 6, [0] * 6
    for step, rows in enumerate([[0, 3], [5, 3], [3], [0, 1, 5]]):
        look_up(ours, rows, sparse=True, step=step)
        assert ours.grad is not None
        gradients = ours.grad.to_dense().tolist()
        optimizer.step()
        for row in rows:
            g = [one + weight_decay * p for one, p in zip(gradients[row], plain[row], strict=True)]
            visits[row] += 1
            mean[row] = [0.9 * m + 0.1 * one for m, one in zip(mean[row], g, strict=True)]
            square[row] = 0.999 * square[row] + 0.001 * sum(one * one for one in g) / 3
            size = (square[row] / (1 - 0.999 ** visits[row])) ** 0.5 + 1e-8
            rate = 0.1 * VISITED_ONCE_RATE / (1 - 0.9 ** visits[row])
            plain[row] = [p - rate * m / size for p, m in zip(plain[row], mean[row], strict=True)]
    torch.testing.assert_close(ours.detach(), torch.tensor(plain, dtype=torch.float64))
    assert optimizer.state[ours]["visits"].tolist() == visits


def test_touched_tables_by_rows_and_the_others_by_torch() -> None:
    """State has the names of the parameters, so that a checkpoint can divide their rows."""
    tables = [table(), table(), table()]
    options = OptimizerConfig(lr=0.1, lr_decay=1.0, weight_decay=0.1)

    def made() -> module.Optimizers:
        model = torch.nn.ParameterList(tables)
        return module.Optimizers(model, losses.BPR(), options, touched=[tables[1]], visited_once=tables[1])

    optimizers = made()
    assert optimizers.state() == {}
    made().load_state({})  # of no step, as where a race begins
    for step in range(2):
        for one, sparse in zip(tables, (False, True, False), strict=True):
            look_up(one, [1, 4], sparse=sparse, step=step)
        for optimizer in optimizers.start_pass(None):
            optimizer.step()
    state = {name: tensor.clone() for name, tensor in optimizers.state().items()}
    plain = ("step", "exp_avg", "exp_avg_sq")
    slots = {0: plain, 1: (*plain, "visits"), 2: plain}
    assert set(state) == {f"optimizer.backbone.{n}.{slot}" for n, names in slots.items() for slot in names}
    assert state["optimizer.backbone.1.visits"].tolist() == [0, 2, 0, 0, 2, 0]
    start = table()
    assert torch.equal(tables[1][0], start[0])  # no decay
    assert not torch.equal(tables[0][0], start[0])
    other = made()
    other.load_state(state)
    loaded = other.state()
    assert set(loaded) == set(state)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in state.items())
