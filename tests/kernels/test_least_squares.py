"""Alternating least squares against normal equations solved row by row, and the core against torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from talos.errors import ArgumentError
from talos.kernels import alternating_least_squares, core
from talos.kernels.least_squares import _solve_in_torch_, sweeps_for


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_links(rows: int, columns: int, seed: int) -> tuple[Tensor, Tensor]:
    """CSR with rows of every length from none to all."""
    rng = np.random.default_rng(seed)
    has = rng.random((rows, columns)) < rng.random((rows, 1))
    has[0] = False
    return torch.from_numpy(np.append(0, has.sum(1).cumsum())), torch.from_numpy(has.nonzero()[1])


def problem(rows: int, columns: int, dim: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    fixed = torch.randn(columns, dim, generator=seeded(seed))
    gram = fixed.T @ fixed + 2.0 * torch.eye(dim)
    return (
        torch.randn(rows, dim, generator=seeded(seed + 1)),
        *random_links(rows, columns, seed),
        fixed,
        gram,
    )


@pytest.mark.parametrize("kernel", ["torch", *core.levels()])
@given(st.integers(1, 12), st.integers(1, 20), st.integers(1, 9), st.integers(0, 10_000))
@settings(max_examples=30, deadline=None)
def test_enough_steps_solve_the_normal_equations(
    kernel: str, rows: int, columns: int, dim: int, seed: int
) -> None:
    start, indptr, indices, fixed, gram = problem(rows, columns, dim, seed)
    found = start.clone()
    options = {} if kernel == "torch" else {"level": kernel}
    solve = _solve_in_torch_ if kernel == "torch" else core.solve_rows_
    solve(found, indptr, indices, fixed, gram, weight=5.0, steps=40, **options)
    for row in range(rows):
        y = fixed[indices[indptr[row] : indptr[row + 1]]].double()
        exact = torch.linalg.solve(gram.double() + 5.0 * y.T @ y, 6.0 * y.sum(0))
        torch.testing.assert_close(found[row].double(), exact, rtol=2e-3, atol=2e-4)


@pytest.mark.skipif(not core.levels(), reason="the core was not built")
@pytest.mark.parametrize("level", core.levels())
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("dim", [1, 8, 31, 64, 100, 130])
def test_the_core_takes_the_steps_of_torch(level: str, threads: int, dim: int) -> None:
    start, indptr, indices, fixed, gram = problem(300, 70, dim, seed=dim)
    by_core, by_torch = start.clone(), start.clone()
    core.solve_rows_(
        by_core, indptr, indices, fixed, gram, weight=40.0, steps=3, level=level, threads=threads
    )
    _solve_in_torch_(by_torch, indptr, indices, fixed, gram, weight=40.0, steps=3)
    torch.testing.assert_close(by_core, by_torch, rtol=1e-3, atol=1e-4)
    assert not by_core[0].any()  # nothing is known of this row


def test_blocks_of_the_torch_version_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    start, indptr, indices, fixed, gram = problem(50, 30, 4, seed=3)
    whole, parts = start.clone(), start.clone()
    _solve_in_torch_(whole, indptr, indices, fixed, gram, weight=1.0, steps=3)
    monkeypatch.setattr("talos.kernels.least_squares.GATHERED", 4 * 7)  # fewer entries than some rows have
    _solve_in_torch_(parts, indptr, indices, fixed, gram, weight=1.0, steps=3)
    torch.testing.assert_close(whole, parts)


@pytest.mark.parametrize("kernel", ["auto", "torch"])
def test_two_tastes_are_told_apart(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TALOS_KERNEL", kernel)
    rng = np.random.default_rng(0)
    has = np.zeros((40, 20), bool)
    has[:20, :10] = rng.random((20, 10)) < 0.5
    has[20:, 10:] = rng.random((20, 10)) < 0.5
    indptr, indices = torch.from_numpy(np.append(0, has.sum(1).cumsum())), torch.from_numpy(has.nonzero()[1])
    users, items = alternating_least_squares(
        indptr, indices, 20, dim=2, regularization=0.1, generator=seeded()
    )
    means = (users @ items.T).view(2, 20, 2, 10).mean(-1)  # (taste, user, items of each taste)
    assert (means[0, :, 0] > means[0, :, 1] + 0.3).all()
    assert (means[1, :, 1] > means[1, :, 0] + 0.3).all()


def test_the_generator_decides() -> None:
    indptr, indices = random_links(20, 10, 0)
    first, again, other = (
        alternating_least_squares(indptr, indices, 10, dim=3, generator=seeded(s))[0] for s in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(
    ("options", "where"),
    [({"dim": 0}, "dim"), ({"sweeps": 0}, "sweeps"), ({"steps": 0}, "steps"), ({"weight": -1.0}, "weight"),
     ({"regularization": 0.0}, "regularization")],
)  # fmt: skip
def test_wrong_numbers_are_refused(options: dict[str, float], where: str) -> None:
    with pytest.raises(ArgumentError, match=where):
        alternating_least_squares(
            torch.tensor([0, 1]), torch.tensor([0]), 1, generator=None, **{"dim": 2, **options}
        )


@given(st.integers(1, 10**6), st.integers(0, 10**8))
def test_fuller_rows_get_fewer_sweeps(users: int, interactions: int) -> None:
    assert 4 <= sweeps_for(users, interactions + users) <= sweeps_for(users, interactions) <= 16


@pytest.mark.skipif(not core.levels(), reason="the core was not built")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"indices": torch.tensor([0, 1, 30])}, "indices: 0 to 30; expected 0 to 29"),
        ({"indptr": torch.tensor([0, 3, 1])}, "indptr: does not ascend"),
        ({"indptr": torch.tensor([0, 3])}, "indptr: 2 offsets up to 3; expected 3 offsets up to 3"),
        ({"indptr": torch.tensor([-1, 1, 3])}, "indptr: 3 offsets up to 3; expected 3 offsets up to 3"),
        ({"indptr": torch.tensor([0, 1, 4])}, "indptr: 3 offsets up to 4; expected 3 offsets up to 3"),
        ({"solution": torch.zeros(4, 2).T}, "solution: has type torch.float32 and strides"),
        ({"gram": torch.eye(3)}, "gram: has shape"),
    ],
)
def test_what_could_mislead_the_core_is_refused(change: dict[str, Tensor], message: str) -> None:
    call = {
        "solution": torch.zeros(2, 4),
        "indptr": torch.tensor([0, 1, 3]),
        "indices": torch.tensor([0, 1, 2]),
        "fixed": torch.ones(30, 4),
        "gram": torch.eye(4),
    }
    with pytest.raises(ArgumentError, match=f"^{message}"):
        core.solve_rows_(**{**call, **change}, weight=1.0, steps=1)


@pytest.mark.parametrize("solve", [_solve_in_torch_, *([core.solve_rows_] if core.levels() else [])])
def test_weighted_entries_solve_the_normal_equations(solve) -> None:
    rng = seeded(3)
    dim, fixed = 4, torch.randn(9, 4, generator=rng)
    indptr, indices = torch.tensor([0, 3, 3, 8]), torch.tensor([0, 4, 8, 1, 2, 3, 5, 7])
    weights = torch.rand(8, generator=rng) * 3
    gram = fixed.T @ fixed + 2.0 * torch.eye(dim)
    found = torch.zeros(3, dim)
    solve(found, indptr, indices, fixed, gram, weight=5.0, steps=20, weights=weights)
    for row in range(3):
        own = slice(int(indptr[row]), int(indptr[row + 1]))
        y, alpha = fixed[indices[own]].double(), 5.0 * weights[own].double()
        left = gram.double() + (y * alpha.unsqueeze(1)).T @ y
        right = (y * (1 + alpha).unsqueeze(1)).sum(0)
        torch.testing.assert_close(found[row].double(), torch.linalg.solve(left, right), rtol=1e-4, atol=1e-5)


def test_weights_follow_their_entries_to_the_items_side() -> None:
    indptr, indices = torch.tensor([0, 2, 5]), torch.tensor([0, 1, 0, 1, 2])
    options = {"dim": 2, "sweeps": 3, "regularization": 1.0, "weight": 2.0}
    weights = torch.tensor([1.0, 5.0, 2.0, 1.0, 3.0])
    one = alternating_least_squares(indptr, indices, 3, generator=seeded(0), weights=weights, **options)
    # by hand: the same sweeps with a dense confidence matrix
    dense = torch.zeros(2, 3)
    dense[torch.tensor([0, 0, 1, 1, 1]), indices] = weights
    rng = seeded(0)
    users, items = (torch.randn(rows, 2, generator=rng).mul_(0.01).double() for rows in (2, 3))
    for _ in range(3):
        for rows, fixed, table in ((users, items, dense), (items, users, dense.T)):
            gram = fixed.T @ fixed + torch.eye(2)
            for row in range(len(rows)):
                entries = table[row] > 0
                y, alpha = fixed[entries], 2.0 * table[row][entries].double()
                left = gram + (y * alpha.unsqueeze(1)).T @ y
                rows[row] = torch.linalg.solve(left, (y * (1 + alpha).unsqueeze(1)).sum(0))
    torch.testing.assert_close((one[0] @ one[1].T).double(), users @ items.T, rtol=2e-2, atol=1e-3)
