"""Samples that groups of users share: torch against one group at a time, the compiled core against torch in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from talos import kernels, losses
from talos.errors import ArgumentError
from talos.kernels import core, vectors
from talos.kernels.csr import CSR, meetings
from talos.kernels.vectors import Samples, distinct_rows

LOSSES: dict[str, Any] = {
    "talos": lambda: losses.Talos(tau=0.1),
    "talos-balanced": lambda: losses.Talos(tau=0.1, user_power=0.5, positive_power=0.3, negative_weight=1.2),
    "sl": lambda: losses.Softmax(tau=0.2),
    "bsl": lambda: losses.BilateralSoftmax(tau1=0.1, tau2=0.3),
    "sl@k": lambda: losses.SoftmaxAtK(tau=0.2, tau_w=0.5),
    "sl@k-through": lambda: losses.SoftmaxAtK(
        tau=0.2, tau_w=0.5, detach_weight=False, offset=-1.5, negative_weight=0.9
    ),
    "aatp": lambda: losses.AATP(),
    "llpauc": lambda: losses.LLPAUC(alpha=0.7, beta=0.3),
    "bpr": lambda: losses.BPR(),
    "psl": lambda: losses.PairwiseSoftmax(tau=0.1),
    "rs@k": lambda: losses.RecallSurrogate(k=5, tau1=0.1, tau2=1.0),
}
compiled = pytest.mark.skipif(not core.levels(), reason="the compiled core is missing")
# users, items, dimension, bounds of the groups, items in a sample
SHAPES = [
    (1, 1, 1, [0, 1], 1),
    (7, 5, 2, [0, 0, 4, 4, 7], 9),
    (40, 60, 17, [0, 1, 33, 40], 33),
    (130, 300, 64, [0, 64, 128, 130], 130),
    (20, 90, 300, [0, 10, 20], 64),
]


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def problem(users: int, items: int, dim: int, bounds: list[int], n: int) -> dict[str, Any]:
    """A batch with users without positives and with all items; samples with repeats and with positives."""
    rng = torch.Generator().manual_seed(users + items)
    belongs = torch.rand(users, items, generator=rng) < 0.2
    belongs[users // 2] = users > 1
    belongs[users // 3] = users == 1
    return {
        "user_vectors": F.normalize(torch.randn(users, dim, generator=rng)),
        "item_vectors": torch.randn(items, dim, generator=rng),
        "indptr": F.pad(belongs.sum(1).cumsum(0), (1, 0)),
        "indices": belongs.nonzero()[:, 1],
        "thresholds": torch.rand(users, generator=rng) - 0.5,
        "item_ids": torch.randint(items, (len(bounds) - 1, n), generator=rng),
        "sample_bounds": torch.tensor(bounds),
        "normalize_items": True,
    }


def in_double(call: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.double() if isinstance(value, Tensor) and value.is_floating_point() else value
        for name, value in call.items()
    }


@pytest.mark.parametrize("name", LOSSES)
def test_torch_is_the_sum_of_its_groups(name: str) -> None:
    """A sample that all users share is tested against autograd elsewhere: see test_user_batch."""
    call = in_double(problem(*SHAPES[2]))
    whole = kernels.user_batch_loss(**call, loss=LOSSES[name]().double(), reduction="sum")
    value, gradient, of_users = 0.0, torch.zeros_like(call["item_vectors"]), []
    for (first, last), sample in zip(
        call["sample_bounds"].unfold(0, 2, 1).tolist(), call["item_ids"], strict=True
    ):
        ends = call["indptr"][first : last + 1]
        part = {
            **call,
            "user_vectors": call["user_vectors"][first:last],
            "thresholds": call["thresholds"][first:last],
            "indptr": ends - ends[0],
            "indices": call["indices"][ends[0] : ends[-1]],
            "item_ids": sample,
            "sample_bounds": None,
        }
        found = kernels.user_batch_loss(**part, loss=LOSSES[name]().double(), reduction="sum")
        value, gradient = value + found.value, gradient + found.item_gradient
        of_users.append(found.user_gradient)
    torch.testing.assert_close(whole.value, value)
    torch.testing.assert_close(whole.item_gradient, gradient)
    torch.testing.assert_close(whole.user_gradient, torch.cat(of_users))


@compiled
@pytest.mark.parametrize("level", core.levels() or ("none",))
@pytest.mark.parametrize("name", LOSSES)
def test_the_core_agrees_with_torch(name: str, level: str, use: Callable[..., None]) -> None:
    use(level)
    torch.set_num_threads(2)
    for shape in SHAPES:
        call = problem(*shape)
        got = kernels.user_batch_loss(**call, loss=LOSSES[name]())
        want = kernels.user_batch_loss(**in_double(call), loss=LOSSES[name]().double())
        for one in ("value", "user_gradient", "item_gradient"):
            found, exact = getattr(got, one), getattr(want, one).float()
            torch.testing.assert_close(found, exact, rtol=1e-4, atol=1e-5, msg=lambda m, s=shape: f"{s}: {m}")
        for parameter, gradient in want.parameter_gradients.items():
            torch.testing.assert_close(
                got.parameter_gradients[parameter], gradient.float(), rtol=1e-4, atol=1e-5
            )


@compiled
@pytest.mark.parametrize("name", LOSSES)
def test_results_do_not_depend_on_the_threads(name: str) -> None:
    call, found = problem(*SHAPES[3]), []
    for threads in (1, 2, 3, 2):
        torch.set_num_threads(threads)
        found.append(kernels.user_batch_loss(**call, loss=LOSSES[name]()))
    for other in found[1:]:
        for one in ("value", "user_gradient", "item_gradient"):
            assert torch.equal(getattr(other, one), getattr(found[0], one)), one


@compiled
def test_bfloat16_stays_close() -> None:
    call = problem(*SHAPES[3])
    exact = kernels.user_batch_loss(**call, loss=losses.Talos(tau=0.1))
    rounded = kernels.user_batch_loss(**call, loss=losses.Talos(tau=0.1), bfloat16=True)
    for one in ("user_gradient", "item_gradient"):
        want = getattr(exact, one)
        assert (getattr(rounded, one) - want).abs().max() < 0.05 * want.abs().max()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_scores_of_the_samples(shape: tuple[int, int, int, list[int], int]) -> None:
    """What a threshold is estimated from: scores of the samples and of the positives, and which are both."""
    call = problem(*shape)
    users, items = call["user_vectors"], F.normalize(call["item_vectors"])
    samples = Samples(call["item_ids"], call["sample_bounds"])
    positives = CSR.of(call["indptr"], call["indices"])
    group = torch.bucketize(torch.arange(len(users)), samples.bounds[1:], right=True)
    sampled = samples.items[group]
    torch.testing.assert_close(
        vectors.sample_scores(users, items, samples), (users.unsqueeze(1) * items[sampled]).sum(-1)
    )
    torch.testing.assert_close(
        vectors.pair_scores(users, items, positives),
        (users[positives.rows] * items[positives.items]).sum(-1),
    )
    drawn = vectors.drawn_positives(positives, samples, len(items))
    for user in range(len(users)):
        own = positives.items[positives.start[user] : positives.start[user + 1]]
        want = torch.isin(sampled[user], own).nonzero().flatten()
        assert torch.equal(drawn.items[drawn.start[user] : drawn.start[user + 1]], want)
        assert (drawn.rows[drawn.start[user] : drawn.start[user + 1]] == user).all()


@compiled
@pytest.mark.parametrize("level", core.levels() or ("none",))
@pytest.mark.parametrize("threads", [1, 3])
def test_scores_of_pairs_at_every_level(level: str, threads: int) -> None:
    for shape in SHAPES:
        call = problem(*shape)
        given = call["user_vectors"], call["item_vectors"]
        pairs = core.pair_scores(*given, call["indptr"], call["indices"], level=level, threads=threads)
        rows = torch.arange(shape[0]).repeat_interleave(call["indptr"].diff())
        want = (given[0].double()[rows] * given[1].double()[call["indices"]]).sum(-1)
        torch.testing.assert_close(pairs, want.float(), rtol=1e-5, atol=1e-5)


def test_groups_are_equal_parts_unless_bounds_are_given() -> None:
    call = problem(*SHAPES[2])
    call["sample_bounds"] = torch.tensor([0, 14, 28, 40])
    want = kernels.user_batch_loss(**call, loss=losses.Softmax(tau=0.2)).value
    assert (
        kernels.user_batch_loss(**{**call, "sample_bounds": None}, loss=losses.Softmax(tau=0.2)).value == want
    )


@pytest.mark.parametrize("bounds", [[0, 40], [0, 1, 33, 39], [1, 2, 3, 40], [0, 30, 20, 40]], ids=str)
def test_bounds_that_leave_users_out_are_refused(bounds: list[int]) -> None:
    call = problem(*SHAPES[2])
    with pytest.raises(ArgumentError, match=r"^sample_bounds: .*from 0 to 40"):
        kernels.user_batch_loss(
            **{**call, "sample_bounds": torch.tensor(bounds)}, loss=losses.Softmax(tau=0.2)
        )


def test_drawn_positives_against_meetings() -> None:
    """With so many items that marks stand for several."""
    rng = torch.Generator().manual_seed(0)
    positives = CSR.by_row(
        torch.arange(50).repeat_interleave(40), torch.randint(200_000, (2000,), generator=rng), 50
    )
    drawn = torch.cat([positives.items[::3], torch.randint(200_000, (1333,), generator=rng)]).view(2, -1)
    samples = Samples(drawn, torch.tensor([0, 20, 50]))
    found = vectors.drawn_positives(positives, samples, 200_000)
    assert len(found.items) > 200
    for rows, sample in zip(samples.slices(), samples.items, strict=True):
        own = positives.of_rows(rows)
        row, column = meetings(own.rows, own.items, sample)
        got = found.of_rows(rows)
        for user in range(rows.stop - rows.start):
            assert torch.equal(got.items[got.rows == user], column[row == user].sort().values)


@compiled
@pytest.mark.parametrize(("count", "bound"), [(0, 1), (1, 1), (50, 3), (300, 64), (500, 100_000)])
def test_distinct_rows(count: int, bound: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.randint(bound, (count,), generator=torch.Generator().manual_seed(count))
    found = distinct_rows(rows, bound)
    monkeypatch.setenv("TALOS_KERNEL", "torch")
    for got, want in zip(found, distinct_rows(rows, bound), strict=True):
        assert torch.equal(got, want)


@compiled
def test_rows_out_of_range_are_refused() -> None:
    table = [torch.zeros(3, 2) for _ in range(3)]
    options: dict[str, Any] = {"step": 1, "lr": 0.1, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0}
    with pytest.raises(ArgumentError, match="rows: 3 to 3; expected 0 to 2"):
        core.adam_rows_(table[0], torch.tensor([3]), torch.zeros(1, 2), *table[1:], **options)


@compiled
@pytest.mark.parametrize("level", core.levels() or ("none",))
@pytest.mark.parametrize("dim", [1, 3, 16, 64, 300])
def test_adam_of_rows_against_torch(level: str, dim: int) -> None:
    rng = np.random.default_rng(dim)
    ours = torch.from_numpy(rng.standard_normal((40, dim))).float()
    theirs, moments = ours.clone().requires_grad_(), [torch.zeros_like(ours) for _ in range(2)]
    reference = torch.optim.Adam([theirs], lr=0.1, weight_decay=0.01)
    for step in range(1, 6):
        theirs.grad = torch.from_numpy(rng.standard_normal((40, dim))).float()
        reference.step()
        rows = torch.from_numpy(rng.permutation(40))  # every row has a gradient: as dense Adam
        core.adam_rows_(
            ours,
            rows,
            theirs.grad[rows],
            *moments,
            step=step,
            lr=0.1,
            betas=(0.9, 0.999),
            eps=1e-8,
            weight_decay=0.01,
            level=level,
            threads=1 + step % 2,
        )
    torch.testing.assert_close(ours, theirs.detach(), rtol=1e-5, atol=1e-5)


@compiled
def test_the_workspace_does_not_grow_with_the_batch_or_the_catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen times the groups and sixty times the items take the core's workspace of a few groups at once."""
    taken: list[int] = []
    take = core.scratch.take
    monkeypatch.setattr(core.scratch, "take", lambda size: taken.append(size) or take(size), raising=False)
    torch.set_num_threads(2)

    def workspace(groups: int, items: int) -> int:
        taken.clear()
        indptr, none = torch.zeros(groups + 1, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)
        drawn = torch.randint(items, (groups, 4096))
        vectors = torch.zeros(groups, 64), torch.zeros(items, 64)
        kernels.user_batch_loss(*vectors, indptr, none, None, losses.Softmax(tau=0.2), item_ids=drawn)
        return max(taken)

    few = workspace(64, 100)
    assert workspace(1024, 6000) == few
    assert few < 90 * 2**20
