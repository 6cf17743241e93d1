"""Sampled scores, dense and sparse, against gathering a vector per pair."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from talos.errors import ArgumentError
from talos.kernels import sampled
from talos.kernels.sampled import cheaper_way, sampled_scores
from talos.losses.functional import sampled_products

WAYS = ["dense", "sparse"]


def problem(users: int = 5, items: int = 9, n: int = 7, dim: int = 4, dtype: torch.dtype = torch.float64):
    rng = torch.Generator().manual_seed(0)
    u, v = (torch.randn(rows, dim, generator=rng, dtype=dtype).requires_grad_() for rows in (users, items))
    # drawn from all items but the last, so that one has no gradient; some twice in a row
    return u, v, torch.randint(items - 1, (users, n), generator=rng)


def naive(users: torch.Tensor, table: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
    return (users.unsqueeze(1) * table[items]).sum(-1)


@pytest.fixture(params=[1, 20, 2**20], ids="block{}".format)
def _blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampled, "_BLOCK", request.param)


@pytest.mark.usefixtures("_blocks")
@pytest.mark.parametrize("way", WAYS)
def test_equal_to_the_naive_version(way: sampled.Way) -> None:
    users, table, items = problem()
    slope = torch.randn(items.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    ours, theirs = sampled_scores(users, table, items, way=way), naive(users, table, items)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(
        torch.autograd.grad(ours, (users, table), slope), torch.autograd.grad(theirs, (users, table), slope)
    )


@pytest.mark.parametrize("way", WAYS)
def test_gradients(way: sampled.Way) -> None:
    users, table, items = problem(users=3, items=5, n=4, dim=2)
    assert torch.autograd.gradcheck(lambda u, v: sampled_scores(u, v, items, way=way), (users, table))


@pytest.mark.parametrize("way", WAYS)
def test_one_side_may_be_constant(way: sampled.Way) -> None:
    users, table, items = problem()
    for given in ((users, table.detach()), (users.detach(), table)):
        leaf = next(tensor for tensor in given if tensor.requires_grad)
        (ours,) = torch.autograd.grad(sampled_scores(*given, items, way=way).square().sum(), leaf)
        (theirs,) = torch.autograd.grad(naive(*given, items).square().sum(), leaf)
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("way", WAYS)
def test_non_contiguous_input(way: sampled.Way) -> None:
    users, table, items = problem(users=7, n=5)
    wide = torch.cat([users, users], 1)[:, ::2]
    rows = items.T.contiguous().T
    scores = sampled_scores(wide, table, rows, way=way)
    torch.testing.assert_close(scores, naive(wide, table, rows))
    scores.sum().backward()  # an expanded gradient


def test_half_precision_falls_back_to_gathering() -> None:
    users, table, items = problem(dtype=torch.float32)
    half = sampled_scores(users.bfloat16(), table.bfloat16(), items, way="sparse")
    torch.testing.assert_close(half.float(), naive(users, table, items), atol=0.1, rtol=0.05)
    half.float().square().sum().backward()
    (exact,) = torch.autograd.grad(naive(users, table, items).square().sum(), users)
    torch.testing.assert_close(users.grad, exact, atol=1.0, rtol=0.1)


def test_runs_are_repeatable() -> None:
    users, table, items = problem(users=50, items=400, n=300, dim=16, dtype=torch.float32)
    for way in WAYS:
        runs = [
            torch.autograd.grad(sampled_scores(users, table, items, way=way).sin().sum(), (users, table))
            for _ in range(2)
        ]
        assert all(torch.equal(first, again) for first, again in zip(*runs, strict=True))


@pytest.mark.parametrize("shape", [(0, 3), (5, 0)])
@pytest.mark.parametrize("way", WAYS)
def test_nothing_asked(shape: tuple[int, int], way: sampled.Way) -> None:
    users, table, _ = problem()
    users = users[: shape[0]]
    scores = sampled_scores(users, table, torch.zeros(shape, dtype=torch.long), way=way)
    assert scores.shape == shape
    scores.sum().backward()
    assert table.grad is not None


def test_wrong_shapes() -> None:
    users, table, items = problem()
    with pytest.raises(ArgumentError, match="items"):
        sampled_scores(users[:2], table, items)
    with pytest.raises(ArgumentError, match="user_vectors"):
        sampled_scores(users[:, :2], table, items)


@pytest.mark.parametrize("wrong", [-1, 9])
@pytest.mark.parametrize("way", WAYS)
def test_wrong_items_are_refused(wrong: int, way: sampled.Way) -> None:
    users, table, items = problem()
    items[2, 3] = wrong
    with pytest.raises(ArgumentError, match="items: "):
        sampled_scores(users, table, items, way=way)


def test_the_choice() -> None:
    assert cheaper_way(100, 100) == "dense"
    assert cheaper_way(40_988, 1024) == "sparse"
    assert cheaper_way(1_000_000, 1) == "sparse"


class LargestResult(TorchDispatchMode):
    most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.layout == torch.strided:
            self.most = max(self.most, result.numel())
        return result


@pytest.mark.parametrize("way", WAYS)
def test_never_a_vector_per_pair_nor_users_by_items(
    way: sampled.Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampled, "_BLOCK", 4_000)
    users, table, items = problem(users=60, items=300, n=100, dim=16, dtype=torch.float32)
    with LargestResult() as seen:
        sampled_scores(users, table, items, way=way).sum().backward()
    assert seen.most <= items.numel()  # 6,000: below 60 × 300, and far below 60 × 100 × 16


def test_memory_that_held_nan_does_not_leak_into_scores() -> None:
    """Buffers are reused; a product scaled by β = 0 must not read what they held."""
    users, table = torch.randn(64, 8), torch.randn(500, 8)
    items = torch.randint(500, (64, 64))
    for _ in range(20):
        poison = torch.full((64 * 64,), torch.nan)
        del poison
        assert torch.isfinite(sampled_scores(users, table, items, way="sparse")).all()


@pytest.mark.parametrize("rows", [9, 700])
@pytest.mark.parametrize("way", WAYS)
def test_equal_to_the_products_of_the_losses(rows: int, way: sampled.Way) -> None:
    """`sampled_products`, by which a loss with tables of its own gets theirs: values and gradients agree."""
    users, table, _ = problem(users=5, items=rows, dim=3)
    items = torch.randint(rows, (5, 7), generator=torch.Generator().manual_seed(0))
    both = sampled_products(users, table, items), sampled_scores(users, table, items, way=way)
    found = [[one, *torch.autograd.grad(one.square().sum(), (users, table))] for one in both]
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)
