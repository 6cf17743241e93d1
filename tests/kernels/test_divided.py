"""Items divided among processes against all items in one, with threads in place of processes."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from talos import kernels, losses
from talos.errors import ArgumentError
from talos.kernels import library

LOSSES = {
    "talos": lambda: losses.Talos(tau=0.1),
    "talos-balanced": lambda: losses.Talos(tau=0.1, user_power=0.5, positive_power=0.3, negative_weight=1.2),
    "sl@k-balanced": lambda: losses.SoftmaxAtK(tau=0.2, tau_w=0.5, user_power=0.0, negative_weight=1.2),
    "talos-no-quantile": lambda: losses.Talos(tau=0.2, quantile=False),
    "talos-no-denominator": lambda: losses.Talos(tau=0.2, k=3, denominator=False),
    "sl": lambda: losses.Softmax(tau=0.2),
    "bsl": lambda: losses.BilateralSoftmax(tau1=0.1, tau2=0.3),
    "sl@k": lambda: losses.SoftmaxAtK(tau=0.2, tau_w=0.5),
    "aatp": lambda: losses.AATP(),
    "llpauc": lambda: losses.LLPAUC(),
}
KERNELS = ["torch", *(["compiled"] if library.levels() else [])]


class Table:
    """The messages of a group of threads."""

    def __init__(self, counts: list[int]) -> None:
        self.counts, self.barrier = counts, threading.Barrier(len(counts), timeout=30)
        self.messages: list[Tensor] = [torch.empty(0)] * len(counts)

    def put(self, rank: int, message: Tensor) -> list[Tensor]:
        self.messages[rank] = message
        self.barrier.wait()
        found = list(self.messages)
        self.barrier.wait()  # nobody puts the next before all have taken this
        return found


class Seat:
    """One thread's exchange."""

    def __init__(self, table: Table, rank: int) -> None:
        self.table, self.rank = table, rank

    def spread(self, rows: Tensor) -> Tensor:
        return torch.cat(self.table.put(self.rank, rows))

    def collect(self, rows: Tensor) -> Tensor:
        first = sum(self.table.counts[: self.rank])
        mine = slice(first, first + self.table.counts[self.rank])
        return torch.stack([theirs[mine] for theirs in self.table.put(self.rank, rows)])


def in_parts(cuts: list[int], counts: list[int], work: Callable[[Seat, slice, slice], object]) -> list:
    """The results of `work` on every rank, for its items and its users."""
    table = Table(counts)
    bounds = [0, *itertools.accumulate(counts)]
    with ThreadPoolExecutor(len(counts)) as pool:
        jobs = [
            pool.submit(
                work, Seat(table, rank), slice(*cuts[rank : rank + 2]), slice(*bounds[rank : rank + 2])
            )
            for rank in range(len(counts))
        ]
        try:
            return [job.result(timeout=60) for job in jobs]
        finally:
            table.barrier.abort()


class Problem:
    """A random batch; among the users one without positives, one with all items, one with all but one."""

    def __init__(self, users: int, items: int, dim: int, seed: int) -> None:
        rng = torch.Generator().manual_seed(seed)
        self.users = F.normalize(torch.randn(users, dim, generator=rng, dtype=torch.float64))
        lengths = 0.5 + torch.rand(items, 1, generator=rng, dtype=torch.float64)
        self.items = lengths * F.normalize(torch.randn(items, dim, generator=rng, dtype=torch.float64))
        self.belongs = torch.rand(users, items, generator=rng) < 0.2
        if users > 2:
            self.belongs[0], self.belongs[1], self.belongs[2] = False, True, torch.arange(items) > 0
        self.beta = torch.rand(users, generator=rng, dtype=torch.float64) - 0.5

    def positives(self, items: slice = slice(None)) -> tuple[Tensor, Tensor]:
        here = self.belongs[:, items]
        return F.pad(here.sum(1).cumsum(0), (1, 0)), here.nonzero()[:, 1]


def compare(
    problem: Problem, name: str, cuts: list[int], counts: list[int], k: int | None, **options
) -> None:
    loss, dtype = LOSSES[name](), torch.float32
    beta = problem.beta if loss.needs.threshold and k is None else None
    indptr, indices = problem.positives()
    want = kernels.user_batch_loss(
        problem.users, problem.items, indptr, indices, beta, loss, k=k, normalize_items=True, **options
    )

    def part(seat: Seat, items: slice, users: slice) -> kernels.UserBatch:
        return kernels.divided_batch_loss(
            problem.users[users].to(dtype),
            problem.items[items].to(dtype),
            *problem.positives(items),
            None if beta is None else beta[users].to(dtype),
            loss,
            seat,
            degrees=problem.belongs.sum(1),
            num_items=len(problem.items),
            k=k,
            normalize_items=True,
            **options,
        )

    parts = in_parts(cuts, counts, part)
    close(sum(one.value for one in parts), want.value, "value")
    close(torch.cat([one.user_gradient for one in parts]), want.user_gradient, "user_gradient")
    close(torch.cat([one.item_gradient for one in parts]), want.item_gradient, "item_gradient")
    for one in parts:
        close(one.normalizer, want.normalizer, "normalizer")
    if want.thresholds is not None:
        close(torch.cat([one.thresholds for one in parts]), want.thresholds, "thresholds")
    assert {name for one in parts for name in one.parameter_gradients} == set(want.parameter_gradients)
    for name, gradient in want.parameter_gradients.items():
        close(sum(one.parameter_gradients[name] for one in parts), gradient, name)


def close(got: Tensor, want: Tensor, name: str) -> None:
    """Close relative to the largest entry; numbers around 10 that cancel leave some 1e-6 in float32."""
    finite = torch.isfinite(want)
    assert torch.equal(finite, torch.isfinite(got)), name
    largest = want[finite].abs().max().item() if finite.any() else 0.0
    torch.testing.assert_close(
        got.double(), want.double(), rtol=2e-5, atol=2e-5 * largest + 3e-6, msg=lambda text: f"{name}: {text}"
    )


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("reduction", ["positives", "users"])
def test_three_parts_are_the_whole(name, kernel, reduction, monkeypatch):
    monkeypatch.setenv("TALOS_KERNEL", kernel)
    problem = Problem(23, 130, 9, seed=0)
    # a rank with fewer items than K, and one that owns no user of the batch
    for k in (None, 1, 20) if LOSSES[name]().needs.threshold else (None,):
        compare(problem, name, [0, 7, 90, 130], [11, 0, 12], k, reduction=reduction)


@pytest.mark.parametrize("kernel", KERNELS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_shape_and_any_cut(kernel, data):
    users, items = data.draw(st.integers(1, 9)), data.draw(st.integers(3, 40))
    cuts = sorted(data.draw(st.sets(st.integers(1, items - 1), min_size=2, max_size=2)))
    first = data.draw(st.integers(0, users))
    second = data.draw(st.integers(0, users - first))
    name = data.draw(st.sampled_from(sorted(LOSSES)))
    k = data.draw(st.one_of(st.none(), st.integers(1, items))) if LOSSES[name]().needs.threshold else None
    problem = Problem(users, items, data.draw(st.integers(2, 9)), data.draw(st.integers(0, 99)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TALOS_KERNEL", kernel)
        compare(problem, name, [0, *cuts, items], [first, second, users - first - second], k)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", LOSSES)
def test_a_rank_without_items(name, kernel, monkeypatch):
    monkeypatch.setenv("TALOS_KERNEL", kernel)
    problem = Problem(6, 20, 8, seed=3)
    for k in (None, 5) if LOSSES[name]().needs.threshold else (None,):
        compare(problem, name, [0, 0, 20], [4, 2], k)


@pytest.mark.parametrize("kernel", KERNELS)
def test_thresholds_alone(kernel, monkeypatch):
    monkeypatch.setenv("TALOS_KERNEL", kernel)
    problem = Problem(11, 50, 8, seed=1)
    found = in_parts(
        [0, 2, 30, 50],
        [4, 4, 3],
        lambda seat, items, users: kernels.divided_kth_scores(
            problem.users[users].float(), problem.items[items].float(), 5, seat
        ),
    )
    close(torch.cat(found), kernels.kth_scores(problem.users, problem.items, 5), "kth")


@pytest.mark.parametrize("kernel", KERNELS)
def test_thresholds_with_a_rank_that_has_no_items(kernel, monkeypatch):
    monkeypatch.setenv("TALOS_KERNEL", kernel)
    problem = Problem(6, 20, 8, seed=3)
    found = in_parts(
        [0, 20, 20],
        [4, 2],
        lambda seat, items, users: kernels.divided_kth_scores(
            problem.users[users].float(), problem.items[items].float(), 5, seat
        ),
    )
    close(torch.cat(found), kernels.kth_scores(problem.users, problem.items, 5), "kth")


class Alone:
    def spread(self, rows: Tensor) -> Tensor:
        return rows

    def collect(self, rows: Tensor) -> Tensor:
        return rows.unsqueeze(0)


def call(indices: list[int], *, k: int | None = 1) -> kernels.UserBatch:
    users, items = torch.eye(2), torch.eye(4)[:, :2]
    return kernels.divided_batch_loss(
        users, items, torch.tensor([0, 2, 2]), torch.tensor(indices), None, losses.Talos(tau=0.1), Alone(),
        degrees=torch.tensor([2, 0]), num_items=4, k=k,
    )  # fmt: skip


def test_gradients_are_handed_to_autograd():
    problem, loss = Problem(5, 12, 4, seed=2), losses.LLPAUC()
    users, items = (one.float().requires_grad_() for one in (problem.users, problem.items))
    given_positives = problem.positives()
    value, _ = kernels.differentiable_divided_loss(
        users, items, *given_positives, None, loss, Alone(), degrees=problem.belongs.sum(1), num_items=12
    )
    (2 * value).backward()
    want = kernels.user_batch_loss(users.detach(), items.detach(), *given_positives, None, loss)
    close(users.grad, 2 * want.user_gradient, "users")
    close(items.grad, 2 * want.item_gradient, "items")
    close(loss.gamma.grad, 2 * want.parameter_gradients["gamma"], "gamma")


def test_what_does_not_fit_is_refused():
    with pytest.raises(ArgumentError, match="thresholds: is missing"):
        call([0, 1], k=None)
    if library.available():
        with pytest.raises(ArgumentError, match="indices: 0 to 4; expected 0 to 3"):
            call([0, 4])


def test_positives_in_any_order():
    for one, other in zip(*(vars(call(indices)).values() for indices in ([1, 2], [2, 1])), strict=True):
        torch.testing.assert_close(one, other)
