"""Items of several processes against all items in one, with threads in place of processes."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from talos import kernels, losses
from talos.distributed import Group
from talos.kernels import batch, core
from talos.kernels.csr import CSR
from talos.kernels.vectors import ItemVectors

LOSSES = {
    "talos": lambda: losses.Talos(tau=0.1),
    "talos-balanced": lambda: losses.Talos(tau=0.1, user_power=0.5, positive_power=0.3, negative_weight=1.2),
    "sl@k-balanced": lambda: losses.SoftmaxAtK(tau=0.2, tau_w=0.5, user_power=0.0, negative_weight=1.2),
    "talos-no-quantile": lambda: losses.Talos(tau=0.2, quantile=False),
    "talos-no-denominator": lambda: losses.Talos(tau=0.2, k=3, denominator=False),
    "sl": lambda: losses.Softmax(tau=0.2),
    "bsl": lambda: losses.BilateralSoftmax(tau1=0.1, tau2=0.3),
    "sl@k": lambda: losses.SoftmaxAtK(tau=0.2, tau_w=0.5),
    "sl@k-through": lambda: losses.SoftmaxAtK(
        tau=0.2, tau_w=0.5, detach_weight=False, offset=-1.5, negative_weight=0.9
    ),
    "aatp": lambda: losses.AATP(),
    "llpauc": lambda: losses.LLPAUC(),
}
KERNELS = ["torch", *(["compiled"] if core.levels() else [])]


class Threads(Group):
    """A rank that is a thread; a barrier stands for messages."""

    def __init__(self, rank: int, board: list[Any], barrier: threading.Barrier) -> None:
        self.rank, self.size, self.board, self.barrier_ = rank, len(board), board, barrier
        self.messages: list[int] = []  # how many numbers each message had

    def _all(self, tensor: Tensor) -> Tensor:
        self.messages.append(tensor.numel())
        self.board[self.rank] = tensor.clone()
        self.barrier_.wait()
        found = torch.stack(self.board)  # fails unless all have the same shape
        self.barrier_.wait()  # no rank writes the next message before all have read this one
        return found

    def all_reduce_(self, tensor: Tensor) -> Tensor:
        return tensor.copy_(self._all(tensor).sum(0))

    def all_gather(self, tensor: Tensor) -> Tensor:
        return self._all(tensor)


def in_ranges(cuts: list[int], work: Callable[[Group, int, int], Any]) -> list[Any]:
    """The results of `work` on every rank, for its range of the items."""
    size = len(cuts) - 1
    barrier, board = threading.Barrier(size, timeout=30), [None] * size
    with ThreadPoolExecutor(size) as pool:
        jobs = [
            pool.submit(work, Threads(rank, board, barrier), low, high)
            for rank, (low, high) in enumerate(itertools.pairwise(cuts))
        ]
        try:
            return [job.result(timeout=60) for job in jobs]
        finally:
            barrier.abort()


class Problem:
    """A random batch; among the users one without positives, one with all items, one with all but one."""

    def __init__(self, users: int, items: int, dim: int, seed: int) -> None:
        rng = torch.Generator().manual_seed(seed)
        self.users = F.normalize(torch.randn(users, dim, generator=rng, dtype=torch.float64))
        lengths = 0.5 + torch.rand(items, 1, generator=rng, dtype=torch.float64)
        self.items = lengths * F.normalize(torch.randn(items, dim, generator=rng, dtype=torch.float64))
        belongs = torch.rand(users, items, generator=rng) < 0.2
        if users > 2:
            belongs[0], belongs[1], belongs[2] = False, True, torch.arange(items) > 0
        self.positives = CSR.by_row(*belongs.nonzero().T, users)
        gone = torch.rand(users, items, generator=rng) < 0.3
        gone[-1] = True
        self.others = CSR.by_row(*gone.nonzero().T, users)
        self.beta = torch.rand(users, generator=rng, dtype=torch.float64) - 0.5
        self.weights = torch.rand(len(self.positives.items), generator=rng, dtype=torch.float64)


def compare(
    problem: Problem,
    name: str,
    cuts: list[int],
    k: int | None,
    excluded: str = "positives",
    dtype: torch.dtype = torch.float32,
    **options: Any,
) -> list[int]:
    """Compare the whole with the sum of its ranges; returns the sizes of the messages."""
    loss, whole = LOSSES[name](), problem.positives
    beta = problem.beta if loss.needs.threshold and k is None else None
    gone = {"positives": whole, "nothing": None, "others": problem.others}[excluded]
    want = batch.batch_loss(
        problem.users,
        ItemVectors(problem.items, normalize=True),
        whole,
        gone,
        beta,
        LOSSES[name]().double(),
        problem.weights,
        k=k,
    )

    def one(group: Threads, low: int, high: int) -> tuple[kernels.UserBatch, list[int]]:
        here = (whole.items >= low) & (whole.items < high)
        own = whole.within(low, high)
        found = batch.batch_loss(
            problem.users.to(dtype),
            ItemVectors(problem.items[low:high].to(dtype), normalize=True),
            own,
            own if gone is whole else None if gone is None else gone.within(low, high),
            None if beta is None else beta.to(dtype),
            loss.to(dtype),
            problem.weights[here].to(dtype),
            k=k,
            group=group,
            **options,
        )
        return found, group.messages

    found, messages = zip(*in_ranges(cuts, one), strict=True)
    close(sum(part.value for part in found), want.value, "value")
    close(sum(part.user_gradient for part in found), want.user_gradient, "user_gradient")
    close(torch.cat([part.item_gradient for part in found]), want.item_gradient, "item_gradient")
    for part in found:
        assert (part.thresholds is None) == (want.thresholds is None)
        if want.thresholds is not None:
            close(part.thresholds, want.thresholds, "thresholds")
        assert set(part.parameter_gradients) == set(want.parameter_gradients)
    for parameter, gradient in want.parameter_gradients.items():
        close(sum(part.parameter_gradients[parameter] for part in found), gradient, parameter)
    assert all(one == messages[0] for one in messages)
    return messages[0]


def close(got: Tensor, want: Tensor, name: str) -> None:
    """Close relative to the largest entry; numbers around 10 that cancel leave some 1e-6 in float32."""
    finite = torch.isfinite(want)
    assert torch.equal(finite, torch.isfinite(got)), name
    largest = want[finite].abs().max().item() if finite.any() else 0.0
    rtol = 2e-5 if got.dtype == torch.float32 else 1e-10
    torch.testing.assert_close(
        got.double(),
        want.double(),
        rtol=rtol,
        atol=rtol * largest + 0.15 * rtol,
        msg=lambda text: f"{name}: {text}",
    )


def thresholds_of(name: str, *ks: int) -> tuple[int | None, ...]:
    return (None, *ks) if LOSSES[name]().needs.threshold else (None,)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("excluded", ["positives", "nothing", "others"])
def test_three_ranges_are_the_whole(name, kernel, excluded, monkeypatch):
    monkeypatch.setenv("TALOS_KERNEL", kernel)
    problem = Problem(23, 130, 9, seed=0)
    for k in thresholds_of(name, 1, 20):  # a rank has fewer items than K
        compare(problem, name, [0, 7, 90, 130], k, excluded)


@pytest.mark.parametrize("name", LOSSES)
def test_three_ranges_are_the_whole_in_double_precision(name):
    problem = Problem(23, 130, 9, seed=0)
    for k in thresholds_of(name, 1, 20):
        compare(problem, name, [0, 7, 90, 130], k, dtype=torch.float64)


@pytest.mark.parametrize("kernel", KERNELS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_shape_and_any_cut(kernel, data):
    users, items = data.draw(st.integers(1, 9)), data.draw(st.integers(3, 40))
    cuts = sorted(data.draw(st.lists(st.integers(0, items), min_size=2, max_size=2)))
    name = data.draw(st.sampled_from(sorted(LOSSES)))
    k = data.draw(st.one_of(st.none(), st.integers(1, items))) if LOSSES[name]().needs.threshold else None
    problem = Problem(users, items, data.draw(st.integers(2, 9)), data.draw(st.integers(0, 99)))
    excluded = data.draw(st.sampled_from(["positives", "nothing", "others"]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TALOS_KERNEL", kernel)
        compare(problem, name, [0, *cuts, items], k, excluded)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("cuts", [[0, 0, 20], [0, 20, 20]], ids=str)
def test_a_rank_without_items(name, kernel, cuts, monkeypatch):
    monkeypatch.setenv("TALOS_KERNEL", kernel)
    problem = Problem(6, 20, 8, seed=3)
    for k in thresholds_of(name, 5):
        compare(problem, name, cuts, k)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", LOSSES)
def test_ranks_whose_tables_are_swept_in_ranges(name, kernel, monkeypatch):
    """Ranges of ranges; they may be as many on one rank and fewer on another."""
    monkeypatch.setenv("TALOS_KERNEL", kernel)
    monkeypatch.setattr(batch, "_MOST_BYTES", 1000)
    monkeypatch.setattr(batch, "_FEW_NUMBERS", 0)
    monkeypatch.setattr(batch, "_FEWEST_ITEMS", 16)
    problem = Problem(23, 130, 9, seed=0)
    for k in thresholds_of(name, 20):
        compare(problem, name, [0, 7, 90, 130], k)


@pytest.mark.parametrize("name", LOSSES)
def test_messages_do_not_grow_with_the_items(name):
    """Numbers per row, and K of each for exact thresholds."""
    few, many = (
        [
            compare(Problem(6, items, 8, seed=3), name, [0, items // 2, items], k)
            for k in thresholds_of(name, 5)
        ]
        for items in (20, 300)
    )
    assert few == many
    for messages, k in zip(few, thresholds_of(name, 5), strict=True):
        assert max(messages) <= 6 * (k or 1)
        assert len(messages) <= 8


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_same_bits_again(kernel, monkeypatch):
    monkeypatch.setenv("TALOS_KERNEL", kernel)
    problem = Problem(23, 130, 9, seed=0)

    def one(group: Group, low: int, high: int) -> kernels.UserBatch:
        own = problem.positives.within(low, high)
        here = (problem.positives.items >= low) & (problem.positives.items < high)
        items = ItemVectors(problem.items[low:high].float(), normalize=True)
        weights = problem.weights[here].float()
        loss = losses.Talos(tau=0.1)
        return batch.batch_loss(
            problem.users.float(), items, own, own, None, loss, weights, k=20, group=group
        )

    for first, again in zip(*(in_ranges([0, 40, 130], one) for _ in range(2)), strict=True):
        for name in ("value", "user_gradient", "item_gradient", "thresholds"):
            assert torch.equal(getattr(first, name), getattr(again, name)), name


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_group_of_one_is_the_plain_loss(kernel, monkeypatch):
    monkeypatch.setenv("TALOS_KERNEL", kernel)
    problem, loss = Problem(11, 50, 8, seed=1), losses.Talos(tau=0.1)
    call = (problem.users.float(), ItemVectors(problem.items.float()), problem.positives, problem.positives)
    call = (*call, None, loss, problem.weights.float())
    (found,) = in_ranges([0, 50], lambda group, *_: batch.batch_loss(*call, k=5, group=group))
    want = batch.batch_loss(*call, k=5)
    for name in ("value", "user_gradient", "item_gradient", "thresholds"):
        assert torch.equal(getattr(found, name), getattr(want, name)), name
