"""Losses of whole lists: against naive loops, autograd on the full matrix of scores, and the core against torch."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from talos import kernels, losses
from talos.errors import ArgumentError
from talos.kernels import core
from talos.kernels import lists as list_kernels

from .test_user_batch import Problem

LISTS = {
    "smoothi@k": lambda: losses.SmoothI(k=3, tau=0.2, delta=0.1),
    "smoothi@k-long": lambda: losses.SmoothI(k=40, tau=0.1, delta=1.0),
    "advinfonce": lambda: losses.AdvInfoNCE(
        num_users=9, num_items=23, tau=0.2, dim=3, generator=torch.Generator().manual_seed(0)
    ),
}
IDS = torch.tensor([8, 1, 0, 5, 2, 3, 4])


@pytest.fixture(params=LISTS)
def loss(request: pytest.FixtureRequest) -> losses.ListLoss:
    return LISTS[request.param]().double()


def batch_of(problem: Problem, loss: losses.ListLoss, **options):
    given = problem.users, problem.items, problem.indptr, problem.indices, None, loss
    return kernels.user_batch_loss(*given, user_ids=IDS, **options)


def smooth_list(row: list[float], loss: losses.SmoothI) -> list[float]:
    """The value of every item of a list, if it were a positive."""
    lowest, left, places = min(row), [1.0] * len(row), [0.0] * len(row)
    for _ in range(loss.k):
        x = [(s - lowest) / loss.tau * f for s, f in zip(row, left, strict=True)]
        e = [math.exp(v - max(x)) for v in x]
        taken = [v / sum(e) for v in e]
        places = [a + b for a, b in zip(places, taken, strict=True)]
        left = [f * (1 - i - loss.delta) for f, i in zip(left, taken, strict=True)]
    return [1 - place / loss.k for place in places]


def adversarial_list(row: list[float], own: list[int], user: int, loss: losses.AdvInfoNCE) -> list[float]:
    """The value of every item of a list whose positives are `own`, likewise."""
    others = [j for j in range(len(row)) if j not in own]
    hard = [(loss.user_table[user] @ loss.item_table[j]).item() for j in others]
    total = sum(math.exp(a) * math.exp(row[j] / loss.tau) for a, j in zip(hard, others, strict=True))
    total /= sum(map(math.exp, hard)) or 1.0
    weight = loss.negative_weight * len(others) * total
    return [math.log((math.exp(s / loss.tau) + weight) / math.exp(s / loss.tau)) for s in row]


def test_values_are_those_of_a_loop(loss):
    problem = Problem()
    scores = (problem.users @ problem.items.T).detach()
    rows, columns = problem.belongs.nonzero().T
    got = loss.of_lists(scores, rows, columns, IDS)
    for value, row, column in zip(got.tolist(), rows.tolist(), columns.tolist(), strict=True):
        own = problem.belongs[row].nonzero().flatten().tolist()
        if isinstance(loss, losses.SmoothI):
            want = smooth_list(scores[row].tolist(), loss)
        else:
            want = adversarial_list(scores[row].tolist(), own, int(IDS[row]), loss)
        assert value == pytest.approx(want[column], rel=1e-9)


def test_a_user_with_one_positive_has_the_list_that_the_positive_has(loss):
    """Over all items, and with all other items as the negatives of a positive of its own."""
    scores = torch.randn(4, 23, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    rows, columns = torch.arange(4), torch.tensor([0, 22, 7, 7])
    mask = torch.nn.functional.one_hot(columns, 23).bool()
    ids = {"users": IDS[:4], "items": torch.arange(23).expand(4, -1)} if loss.needs.ids else {}
    want = loss(scores[rows, columns], scores, mask=mask, **ids)
    torch.testing.assert_close(loss.of_lists(scores, rows, columns, IDS[:4]), want)


@pytest.mark.parametrize("reduction", ["positives", "users", "sum"])
@pytest.mark.parametrize("chunk", [None, 1, 3])
@pytest.mark.parametrize("weighted", [False, True], ids=["equal", "weighted"])
def test_equals_autograd_on_all_scores(loss, reduction, chunk, weighted, monkeypatch):
    problem = Problem()
    rows, columns = problem.belongs.nonzero().T
    values = loss.of_lists(problem.users @ problem.items.T, rows, columns, IDS)
    weights = torch.rand(len(rows), generator=torch.Generator().manual_seed(2), dtype=torch.float64) + 0.5
    weights = weights if weighted else torch.ones_like(weights)
    mass = torch.zeros(7).double().index_add(0, rows, weights)
    shares = weights * mass[rows] ** (-1.0 if reduction == "users" else 0.0)
    want = (shares * values).sum() / (1 if reduction == "sum" else shares.sum())
    inputs = [problem.users, problem.items, *loss.parameters()]
    gradients = torch.autograd.grad(want, inputs)
    options = {"positive_weights": weights} if weighted else {}
    if chunk is not None:
        monkeypatch.setattr(list_kernels, "_CHUNK", chunk * 23)
    got = batch_of(problem, loss, reduction=reduction, **options)
    close = {"rtol": 1e-10, "atol": 1e-12}
    torch.testing.assert_close(got.value, want.detach(), **close)
    torch.testing.assert_close(got.user_gradient, gradients[0], **close)
    torch.testing.assert_close(got.item_gradient, gradients[1], **close)
    for (name, _), gradient in zip(loss.named_parameters(), gradients[2:], strict=True):
        torch.testing.assert_close(got.parameter_gradients[name], gradient, **close)


def test_parameters_that_are_not_trained_get_no_gradient():
    """Between the adversary's epochs its tables are constants: their gradients would be wasted work."""
    loss = LISTS["advinfonce"]().double().requires_grad_(False)
    assert batch_of(Problem(), loss).parameter_gradients == {}


def test_the_gradient_is_that_of_the_rows_before_normalisation(loss):
    problem = Problem()
    lengths = torch.linspace(0.5, 2.0, 23, dtype=torch.float64).unsqueeze(1)
    problem.items = (problem.items * lengths).detach().requires_grad_()
    rows, columns = problem.belongs.nonzero().T
    scores = problem.users @ torch.nn.functional.normalize(problem.items).T
    (want,) = torch.autograd.grad(loss.of_lists(scores, rows, columns, IDS).mean(), problem.items)
    torch.testing.assert_close(batch_of(problem, loss, normalize_items=True).item_gradient, want)


def test_the_kth_score_beside_a_list_loss(loss):
    problem = Problem()
    got = batch_of(problem, loss, k=3)
    torch.testing.assert_close(got.thresholds, kernels.kth_scores(problem.users, problem.items, 3))
    assert torch.equal(got.value, batch_of(problem, loss).value)


@pytest.mark.parametrize(
    ("name", "value"),
    [("item_ids", torch.tensor([1])), ("weights", torch.ones(23).double()), ("excluded", None)],
)
def test_what_does_not_apply_to_whole_lists_is_refused(loss, name, value):
    with pytest.raises(ArgumentError, match=rf"^{name}: is given; .*(of whole lists|not user-separable)$"):
        batch_of(Problem(), loss, **{name: value})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("items", "ids", "found"),
    [(22, IDS, "scores: has 22"), (23, IDS + 1, "users: has 9"), (23, IDS - 1, "user_ids: has -1")],
)
def test_tables_that_do_not_fit_are_noticed(items, ids, found, dtype):
    loss = LISTS["advinfonce"]().to(dtype)
    positives = torch.arange(8), torch.arange(7)
    vectors = torch.ones(7, 2, dtype=dtype), torch.ones(items, 2, dtype=dtype)
    with pytest.raises(ArgumentError, match=f"^{found}"):
        kernels.user_batch_loss(*vectors, *positives, None, loss, user_ids=ids)


@pytest.mark.parametrize(("ids", "found"), [(None, "is missing"), (torch.arange(8), "has 8 ids")])
def test_ids_are_asked_for(ids, found):
    problem, loss = Problem(), LISTS["advinfonce"]().double()
    given = problem.users, problem.items, problem.indptr, problem.indices, None, loss
    with pytest.raises(ArgumentError, match=f"^user_ids: {found}"):
        kernels.user_batch_loss(*given, user_ids=ids)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_without_items(loss, dtype):
    nothing = torch.zeros(3, dtype=torch.long), torch.zeros(0, dtype=torch.long)
    vectors = torch.zeros(2, 5, dtype=dtype), torch.zeros(0, 5, dtype=dtype)
    assert kernels.user_batch_loss(*vectors, *nothing, None, loss, user_ids=torch.arange(2)).value == 0


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_vectors_that_are_not_finite_are_refused(loss, number, dtype):
    problem = Problem()
    items = problem.items.detach().to(dtype).clone()
    items[3, 0] = number
    given = problem.users.detach().to(dtype), items, problem.indptr, problem.indices, None, loss.to(dtype)
    with pytest.raises(ArgumentError, match=r"^item_vectors: is not finite"):
        kernels.user_batch_loss(*given, user_ids=IDS)


@pytest.mark.skipif(not core.available(), reason="the compiled core is not built")
@pytest.mark.parametrize("options", [{}, {"normalize_items": True, "reduction": "users"}, {"k": 3}], ids=str)
@pytest.mark.parametrize("trained", [True, False])
def test_the_core_agrees_with_torch_on_advinfonce(options, trained, monkeypatch):
    """By sweeps of a softmax, in place of list by list; one user has no negatives."""
    in_core = []
    by_sweeps = list_kernels._weighted_softmax
    monkeypatch.setattr(
        list_kernels, "_weighted_softmax", lambda *given: in_core.append(given) or by_sweeps(*given)
    )
    problem, loss = Problem(), LISTS["advinfonce"]().requires_grad_(trained)
    problem.belongs[2] = True
    problem.indptr = torch.nn.functional.pad(problem.belongs.sum(1).cumsum(0), (1, 0))
    problem.indices = problem.belongs.nonzero()[:, 1]
    weights = torch.rand(len(problem.indices), generator=torch.Generator().manual_seed(3)) + 0.5
    with torch.no_grad():
        for table in loss.parameters():
            table.mul_(3.0)
    given = problem.indptr, problem.indices, None, loss
    vectors = problem.users.detach(), problem.items.detach()
    single = kernels.user_batch_loss(
        *(one.float() for one in vectors), *given, user_ids=IDS, positive_weights=weights, **options
    )
    assert len(in_core) == 1
    loss.double()
    double = kernels.user_batch_loss(
        *vectors, *given, user_ids=IDS, positive_weights=weights.double(), **options
    )
    for name in ("value", "user_gradient", "item_gradient", "thresholds"):
        got, want = getattr(single, name), getattr(double, name)
        torch.testing.assert_close(got, None if want is None else want.float(), rtol=1e-5, atol=1e-6)
    assert set(single.parameter_gradients) == ({"user_table", "item_table"} if trained else set())
    for name, want in double.parameter_gradients.items():
        torch.testing.assert_close(single.parameter_gradients[name], want.float(), rtol=1e-5, atol=1e-6)


def by_autograd(scores, indptr, indices, coefficients, loss):
    scores = scores.double().requires_grad_()
    rows = torch.arange(len(scores)).repeat_interleave(indptr.diff())
    values = loss.of_lists(scores, rows, indices, None)
    (slopes,) = torch.autograd.grad((coefficients.double() * values).sum(), scores)
    return values.detach(), slopes


@pytest.mark.skipif(not core.available(), reason="the compiled core is not built")
@given(
    shape=st.tuples(st.integers(0, 6), st.integers(1, 70)),
    k=st.integers(1, 25),
    tau=st.floats(0.03, 2.0),
    delta=st.floats(0.01, 1.0),
    spread=st.sampled_from([0.3, 1.0, 5.0]),
    seed=st.integers(0, 2**20),
)
def test_the_core_agrees_with_torch(shape, k, tau, delta, spread, seed):
    """Values and slopes, for every instruction set and number of threads."""
    rng = torch.Generator().manual_seed(seed)
    users, items = shape
    loss = losses.SmoothI(k=k, tau=tau, delta=delta)
    scores = spread * (2 * torch.rand(users, items, generator=rng) - 1)
    belongs = torch.rand(users, items, generator=rng) < torch.rand((), generator=rng)
    indptr = torch.nn.functional.pad(belongs.sum(1).cumsum(0), (1, 0))
    indices = belongs.nonzero()[:, 1]
    coefficients = torch.rand(len(indices), generator=rng)
    values, slopes = by_autograd(scores, indptr, indices, coefficients, loss)
    for level in core.levels():
        for threads in (1, 3):
            lists = scores.clone()
            given = indptr, indices, coefficients, loss.list_kernel[1]
            got = core.smooth_places_(lists, *given, level=level, threads=threads)
            torch.testing.assert_close(got.double(), values, rtol=0, atol=2e-5)
            # an error in x = l/τ, up to 2·spread/τ, is one of its exponential
            scale = coefficients.sum().item() / tau * (1 + spread / tau / 10)
            torch.testing.assert_close(lists.double(), slopes, rtol=0, atol=2e-5 * (1 + scale))


SHAPES = {
    "normal": lambda rows: 0.15 * rows,
    "best far above": lambda rows: 0.1 * rows + 0.8 * (rows > 2.5),
    "level at the top": lambda rows: (0.2 * rows).clamp(max=0.2),
    "few different": lambda rows: (4 * rows).round() / 16,
    "two heaps": lambda rows: 0.01 * rows + 0.5 * (rows > 0),
    "one outlier below": lambda rows: 0.05 * rows - 1.5 * (rows == rows.amin()),
    "close together": lambda rows: 0.01 * rows + 0.5,
}


@pytest.mark.skipif(not core.available(), reason="the compiled core is not built")
@pytest.mark.parametrize("level", core.levels())
@pytest.mark.parametrize("shape", SHAPES)
@settings(max_examples=15)
@given(
    items=st.integers(1200, 4000),
    k=st.integers(1, 60),
    tau=st.sampled_from([0.02, 0.05, 0.1, 0.3, 1.0]),
    delta=st.sampled_from([0.01, 0.05, 0.3, 1.0]),
    seed=st.integers(0, 2**20),
)
def test_long_lists_go_by_way_of_nodes(shape, level, items, k, tau, delta, seed):
    """Long enough that most items are not points of their own, whatever the scores look like."""
    rng = torch.Generator().manual_seed(seed)
    loss = losses.SmoothI(k=k, tau=tau, delta=delta)
    scores = SHAPES[shape](torch.randn(2, items, generator=rng))
    belongs = torch.rand(2, items, generator=rng) < 0.01
    belongs[0, scores[0].argmin()] = belongs[1, scores[1].argmax()] = True
    indptr = torch.nn.functional.pad(belongs.sum(1).cumsum(0), (1, 0))
    indices = belongs.nonzero()[:, 1]
    coefficients = torch.rand(len(indices), generator=rng)
    values, slopes = by_autograd(scores, indptr, indices, coefficients, loss)
    lists = scores.clone()
    given = indptr, indices, coefficients, loss.list_kernel[1]
    got = core.smooth_places_(lists, *given, level=level, threads=1)
    # at a small τ the rounding of s/τ grows from place to place: torch in float32 shows by how much
    rows = torch.arange(2).repeat_interleave(indptr.diff())
    rounding = float((loss.of_lists(scores, rows, indices, None) - values).abs().max())
    torch.testing.assert_close(got.double(), values, rtol=0, atol=2e-6 + 2 * rounding)
    # a slope is a difference of terms of up to c/(Kτ), and x = s/τ has an error of 1e-7 of its size
    terms = float(coefficients.max()) / (k * tau) * (1 + float(scores.max() - scores.min()) / tau)
    bound = 2e-5 * float(slopes.abs().max()) + 3e-7 * terms
    torch.testing.assert_close(lists.double(), slopes, rtol=0, atol=bound)


@pytest.mark.skipif(not core.available(), reason="the compiled core is not built")
def test_equal_scores_share_the_slope_of_the_smallest():
    """The minimum is subtracted from the list; where several items have it, torch divides its slope among them."""
    loss = losses.SmoothI(k=3, tau=0.2, delta=0.1)
    scores = torch.tensor([[0.5, -0.2, 0.9, -0.2, 0.1], [0.3, 0.3, 0.3, 0.3, 0.3]])
    indptr, indices, coefficients = torch.tensor([0, 2, 3]), torch.tensor([0, 3, 2]), torch.ones(3)
    values, slopes = by_autograd(scores, indptr, indices, coefficients, loss)
    got = core.smooth_places_(scores, indptr, indices, coefficients, loss.list_kernel[1])
    torch.testing.assert_close(got.double(), values, rtol=0, atol=1e-6)
    torch.testing.assert_close(scores.double(), slopes, rtol=0, atol=1e-6)
