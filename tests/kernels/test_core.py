"""The functions of the compiled core against whole matrices in float64, for every instruction set of this processor."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from talos.errors import ArgumentError
from talos.kernels import core
from talos.kernels.csr import CSR
from talos.kernels.vectors import Samples, drawn_positives

pytestmark = pytest.mark.skipif(not core.levels(), reason=f"no compiled core: {core._load()[1]}")
LEVELS = core.levels() or ("none",)
# rows, items, dimension: no multiple of any tile, and the smallest there are
SHAPES = [(1, 1, 8), (2, 3, 9), (7, 23, 5), (33, 130, 17), (65, 257, 64), (100, 1031, 100)]


def partial_auc(s: Tensor, beta: Tensor, p: Tensor) -> Tensor:
    q = torch.sigmoid(s)
    return F.softplus(p[4] * ((q - p[0]) ** 2 + 2 * (1 + p[1]) * q - p[2])) / (p[4] * p[3])


# kind → parameters, and log φ or φ of scores (R, I), thresholds (R, 1) and parameters
Function = Callable[[Tensor, Tensor, Tensor], Tensor]
PHI: dict[str, tuple[tuple[float, ...], Function]] = {
    "exp": ((5.0,), lambda s, beta, p: p[0] * s),
    "sigmoid-power": ((10.0, 1.0), lambda s, beta, p: p[0] * F.logsigmoid(p[1] * (s - beta))),
    "hinge": ((), lambda s, beta, p: (1 + s - beta).clamp(min=0)),
    "partial-auc": ((0.4, -0.3, 0.35, 0.3, 5.0), partial_auc),
}
# kind → parameters, log g or g of differences, and h
PAIRS: dict[str, tuple[tuple[float, ...], Callable[..., Tensor], Callable[..., Tensor]]] = {
    "softplus-pairs": ((), lambda d, p: F.softplus(d), lambda r, p: r),
    "sigmoid-power-pairs": ((10.0,), lambda d, p: p[0] * (F.logsigmoid(d) + math.log(2)), lambda r, p: r),
    "sigmoid-rank-pairs": (
        (10.0, 5.0, 1.0),
        lambda d, p: torch.sigmoid(p[0] * d),
        lambda r, p: torch.sigmoid(p[2] * (1 + r - p[1])),
    ),
}


class Problem:
    """Cosines; among the rows one without positives and one with all items."""

    def __init__(self, rows: int, items: int, dim: int) -> None:
        rng = torch.Generator().manual_seed(rows + items)
        self.users, self.items = (F.normalize(torch.randn(n, dim, generator=rng)) for n in (rows, items))
        self.mask = torch.rand(rows, items, generator=rng) < min(0.2, 20 / items)
        if rows > 2:
            self.mask[0], self.mask[1] = False, True
        self.excluded = F.pad(self.mask.sum(1).cumsum(0), (1, 0)), self.mask.nonzero()[:, 1]
        self.beta, self.weights = torch.rand(rows, generator=rng) - 0.5, torch.rand(rows, generator=rng)
        self.pair_weights = torch.rand(len(self.excluded[1]), generator=rng)

    def gradients(self) -> dict[str, Tensor]:
        """Memory with numbers in it, which must be overwritten."""
        return {
            "user_gradient": torch.full_like(self.users, 9),
            "item_gradient": torch.full_like(self.items, 9),
        }

    def scores(self) -> tuple[Tensor, Tensor, Tensor]:
        """Users, items and scores in float64, for autograd."""
        users, items = (t.double().requires_grad_() for t in (self.users, self.items))
        return users, items, users @ items.T


def reduced(values: Tensor, mask: Tensor, log_sum: bool) -> Tensor:
    """The log-sum or the sum over what is not masked; rows that are masked as a whole give -inf or 0."""
    if log_sum:
        return torch.logsumexp(values.masked_fill(mask, -math.inf), dim=-1)
    return values.masked_fill(mask, 0.0).sum(-1)


def close(got: Tensor, want: Tensor, rtol: float = 1e-5) -> None:
    """Relative to the largest number: gradients cancel."""
    want = want.detach()
    finite = want[want.isfinite()]
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    torch.testing.assert_close(got.double(), want, rtol=rtol, atol=rtol * largest + 1e-9)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", PHI)
def test_sums_and_gradients(kind: str, shape: tuple[int, int, int], level: str) -> None:
    problem, (params, function) = Problem(*shape), PHI[kind]
    users, items, scores = problem.scores()
    p = torch.tensor(params, dtype=torch.float64, requires_grad=True)
    of_kind, left = core.kinds()[kind], (~problem.mask).sum(1)
    values = function(scores, problem.beta.double()[:, None], p)
    normalizer = reduced(values, problem.mask, bool(of_kind.log_sum))
    sums = 0.7 * torch.where(left > 0, normalizer if of_kind.log_sum else normalizer / left.clamp(min=1), 0.0)
    wanted = torch.autograd.grad(
        (problem.weights * sums)[left > 0].sum(), [users, items, p], materialize_grads=True
    )
    for threads in (1, 2):
        memory = problem.gradients()
        found = core.sweep(
            problem.users,
            problem.items,
            problem.excluded,
            problem.beta,
            problem.weights,
            kind=kind,
            params=params,
            scale=0.7,
            threads=threads,
            level=level,
            **memory,
        )
        close(found.sums, sums)
        close(found.normalizer, normalizer)
        close(found.excluded_scores, scores[problem.mask])
        close(memory["user_gradient"], wanted[0])
        close(memory["item_gradient"], wanted[1])
        learnt = torch.arange(len(params)) < of_kind.learnt
        if of_kind.learnt:
            close(found.parameter_gradient, wanted[2] * learnt, 2e-5)
        else:
            assert found.parameter_gradient.shape == (0,)
        assert found.kth.shape == found.best.shape == found.positive_slopes.shape == (0,)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("kind", "inner_only"), [*itertools.product(PAIRS, (False, True))])
def test_pairs(kind: str, inner_only: bool, shape: tuple[int, int, int], level: str) -> None:
    problem, (params, function, outer) = Problem(*shape), PAIRS[kind]
    users, items, scores = problem.scores()
    rows = problem.mask.nonzero()[:, 0]
    positives = scores.detach()[problem.mask].requires_grad_()
    d, mask = scores[rows] - positives[:, None], problem.mask[rows]
    left = (~mask).sum(1)
    sums = reduced(function(d, params), mask, bool(core.kinds()[kind].log_sum))
    sums = sums / left.clamp(min=1) if kind == "softplus-pairs" else sums
    values = sums if inner_only else outer(sums, params)
    total = (problem.pair_weights * values)[left > 0].sum()
    wanted = torch.autograd.grad(total, [users, items, positives], materialize_grads=True)
    for given in (None, positives.detach().float()):
        memory = problem.gradients()
        found = core.sweep(
            problem.users,
            problem.items,
            problem.excluded,
            None,
            problem.pair_weights,
            kind=kind,
            params=params,
            positives=(problem.excluded[0], given),
            inner_only=inner_only,
            level=level,
            **memory,
        )
        close(found.sums, sums)
        close(found.positive_slopes, wanted[2], 3e-5)
        close(memory["user_gradient"], wanted[0], 3e-5)
        close(memory["item_gradient"], wanted[1], 3e-5)
        assert found.normalizer.shape == (0,)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("k", [1, 20, 300, 1003])
def test_the_best_scores(level: str, threads: int, k: int) -> None:
    problem = Problem(65, 1003, 24)
    given = (problem.users, problem.items, None, None, None)
    found = core.sweep(*given, k=k, keep_best=True, level=level, threads=threads)
    best = problem.scores()[2].topk(k).values
    close(found.best.sort(descending=True).values, best, 1e-6)
    assert torch.equal(found.best.amin(1), found.kth)
    assert core.sweep(*given, k=k, level=level, threads=threads).best.shape == (0,)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("distinct", [1, 2, 3, 500])
def test_best_scores_with_many_ties(level: str, threads: int, distinct: int) -> None:
    """More scores reach the bound than a list of candidates holds, in ascending, descending and constant order."""
    values = torch.arange(40_000) * distinct // 40_000 / 512.0
    users = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]).repeat(10, 1)
    items = torch.stack([values, torch.ones(40_000)], dim=1)
    for k in (1, 7, 200):
        found = core.sweep(users, items, None, None, None, k=k, keep_best=True, level=level, threads=threads)
        want = (users @ items.T).topk(k).values
        assert torch.equal(found.best.sort(descending=True).values, want)
        assert torch.equal(found.kth, want[:, -1])


def test_scores_that_are_no_numbers_have_no_best() -> None:
    problem = Problem(5, 40, 8)
    problem.users[2] = torch.nan
    best = core.sweep(problem.users, problem.items, None, None, None, k=3, keep_best=True).best
    assert torch.equal(best.isnan().all(1), torch.arange(5) == 2)


@pytest.mark.parametrize("kind", [*PHI, *PAIRS])
@pytest.mark.parametrize("level", LEVELS)
def test_samples_are_sweeps_of_their_items(kind: str, level: str) -> None:
    """Also of samples without rows; the result does not depend on the threads."""
    problem, params = Problem(40, 60, 17), (PHI | PAIRS)[kind][0]
    drawn = torch.randint(60, (5, 33), generator=torch.Generator().manual_seed(1))
    samples, pairs = (drawn, torch.tensor([0, 0, 7, 30, 30, 40])), kind in PAIRS
    excluded = drawn_positives(CSR.of(*problem.excluded), Samples(*samples), 60)[:2]
    scores = core.pair_scores(problem.users, problem.items, *problem.excluded)
    options: dict[str, Any] = {"kind": kind, "params": params, "level": level}
    weights = problem.pair_weights if pairs else problem.weights
    results = []
    for threads in (1, 2):
        memory = problem.gradients()
        positives = (problem.excluded[0], scores) if pairs else None
        given = (problem.users, problem.items, excluded, problem.beta, weights)
        found = core.sweep(*given, samples=samples, positives=positives, threads=threads, **options, **memory)
        results.append([*found, *memory.values()])
    assert all(torch.equal(one, two) for one, two in zip(*results, strict=True))
    item_gradient = torch.zeros_like(problem.items)
    by_parameter = torch.zeros_like(found.parameter_gradient)
    for g, (first, last) in enumerate(itertools.pairwise(samples[1].tolist())):
        ends, gone = problem.excluded[0][first : last + 1], excluded[0][first : last + 1]
        own = slice(int(ends[0]), int(ends[-1])) if pairs else slice(first, last)
        one = {
            "user_gradient": torch.empty(last - first, 17),
            "item_gradient": torch.empty(33, 17),
        }
        alone = core.sweep(
            problem.users[first:last],
            problem.items[drawn[g]],
            (gone - gone[0], excluded[1][gone[0] : gone[-1]]),
            problem.beta[first:last],
            weights[own],
            positives=(ends - ends[0], scores[own]) if pairs else None,
            threads=1,
            **options,
            **one,
        )
        assert torch.equal(found.sums[own], alone.sums)
        assert torch.equal(memory["user_gradient"][first:last], one["user_gradient"])
        item_gradient.index_add_(0, drawn[g], one["item_gradient"])
        by_parameter += alone.parameter_gradient
    torch.testing.assert_close(memory["item_gradient"], item_gradient, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.parameter_gradient, by_parameter)


@pytest.mark.parametrize("kind", [*PHI, *PAIRS])
@pytest.mark.parametrize(
    ("rows", "items", "sampled"), [(0, 5, False), (4, 0, False), (0, 5, True), (4, 5, True)]
)
def test_nothing_to_sum(kind: str, rows: int, items: int, sampled: bool) -> None:
    users, table = torch.ones(rows, 3), torch.ones(items, 3)
    memory = {"user_gradient": torch.full((rows, 3), 9.0), "item_gradient": torch.full((items, 3), 9.0)}
    pairs, of_kind = kind in PAIRS, core.kinds()[kind]
    offsets = torch.arange(rows + 1) if pairs else None
    found = core.sweep(
        users,
        table,
        None,
        None,
        torch.ones(rows),
        kind=kind,
        params=(PHI | PAIRS)[kind][0],
        positives=None if offsets is None else (offsets, torch.zeros(rows)),
        samples=(torch.zeros(1, 0, dtype=torch.int64), torch.tensor([0, rows])) if sampled else None,
        **memory,
    )
    nothing = -math.inf if of_kind.log_sum else 0.0
    assert found.sums.tolist() == [nothing if pairs else 0.0] * rows
    assert found.normalizer.tolist() == ([] if pairs else [nothing] * rows)
    assert found.parameter_gradient.tolist() == [0.0] * (of_kind.params if of_kind.learnt else 0)
    assert not any(tensor.any() for tensor in (*memory.values(), found.positive_slopes))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"items": torch.ones(30, 9)}, "items"),
        ({"users": torch.ones(8)}, "users, items"),
        ({"excluded": (torch.tensor([0, 1]), torch.tensor([0]))}, "indptr"),
        ({"excluded": (torch.tensor([0] * 10 + [2]), torch.tensor([0]))}, "indptr"),
        ({"excluded": (torch.tensor([0, 1, 0] + [1] * 8), torch.tensor([0]))}, "indptr"),
        ({"excluded": (torch.tensor([0] * 10 + [1]), torch.tensor([30]))}, "indices"),
        ({"excluded": (torch.tensor([0] * 10 + [1]), torch.tensor([0.5]))}, "indices"),
        ({"thresholds": torch.zeros(9)}, "thresholds"),
        ({"weights": torch.zeros(9)}, "weights"),
        ({"weights": None}, "weights, user_gradient or item_gradient"),
        ({"user_gradient": None}, "weights, user_gradient or item_gradient"),
        ({"item_gradient": torch.zeros(8, 30).T}, "item_gradient"),
        ({"item_gradient": torch.zeros(30, 8, dtype=torch.float64)}, "item_gradient"),
        ({"k": 31}, "k"),
        ({"kind": "cosine"}, "kind"),
        ({"params": (1.0, 2.0)}, "kind"),
        ({"positives": (torch.zeros(11, dtype=torch.int64), torch.zeros(0))}, "kind"),
        ({"samples": (torch.tensor([[30]]), torch.tensor([0, 10]))}, "samples"),
        ({"samples": (torch.tensor([[3]]), torch.tensor([0, 9]))}, "samples"),
        ({"samples": (torch.tensor([3]), torch.tensor([0, 10]))}, "samples"),
        ({"samples": (torch.tensor([[3]]), torch.tensor([0, 10])), "k": 1}, "k"),
    ],
    ids=str,
)
def test_wrong_arguments_are_named(change: dict[str, Any], named: str) -> None:
    call: dict[str, Any] = {"users": torch.ones(10, 8), "items": torch.ones(30, 8), "excluded": None}
    call |= {"thresholds": None, "weights": torch.ones(10), "kind": "exp", "params": (1.0,)}
    call |= {"user_gradient": torch.zeros(10, 8), "item_gradient": torch.zeros(30, 8)}
    with pytest.raises(ArgumentError, match=f"^{named}: "):
        core.sweep(**{**call, **change})


def test_excluded_items_out_of_order_touch_no_other_memory() -> None:
    """The result is wrong; the sanitisers watch the rest."""
    items = torch.ones(5000, 64)
    order = torch.arange(4999, -1, -1)
    core.sweep(
        torch.ones(64, 64), items, (torch.arange(65) * 0, order), None, None, kind="exp", params=(1.0,)
    )
    offsets = torch.full((65,), 5000)
    offsets[0] = 0
    core.sweep(torch.ones(64, 64), items, (offsets, order), None, None, kind="exp", params=(1.0,), threads=2)


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_of_its_own(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the entry points of torch's thread pool the core starts threads, with the same results to the bit."""
    problem, results = Problem(300, 2111, 64), []
    for _ in range(2):
        memory = problem.gradients()
        given = (problem.users, problem.items, problem.excluded, None, problem.weights)
        options = {"kind": "sigmoid-power", "params": (10.0, 1.0), "k": 20, "kth_is_threshold": True}
        results.append([*core.sweep(*given, threads=threads, **options, **memory), *memory.values()])
        monkeypatch.setattr(core, "team", lambda: (None, None))
    assert all(torch.equal(one, two) for one, two in zip(*results, strict=True))


def test_too_many_threads_are_an_error_and_not_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, at = core.level_of(None)

    class Refusing:
        """A library that cannot start its threads."""

        talos_core_workspace_bytes = staticmethod(lambda *_: 0)
        talos_core_run = staticmethod(lambda *_: 1)

    monkeypatch.setattr(core, "level_of", lambda _: (loaded._replace(library=Refusing), at))
    with pytest.raises(MemoryError, match="threads"):
        core.unit_rows(torch.ones(2, 2))


@pytest.mark.parametrize("dim", [64, 100])
def test_the_workspace_grows_with_what_is_asked_for(dim: int) -> None:
    assert 0 < core.workspace_bytes(0, 5, dim) < 2**20
    assert core.workspace_bytes(4096, 10**5, dim, k=20) <= 2**29
    assert core.workspace_bytes(512, 10_000, dim, k=20) < core.workspace_bytes(512, 10_000, dim, k=10_000)
