"""The compiled core against the torch passes in float64, on every instruction set that this processor has."""

from __future__ import annotations

import copy
import itertools
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from talos import kernels, losses
from talos.distributed import SINGLE_PROCESS
from talos.errors import ArgumentError
from talos.kernels import batch, core
from talos.kernels.core import Swept
from talos.kernels.csr import CSR

pytestmark = pytest.mark.skipif(not core.levels(), reason=f"the compiled core is missing: {core.status()}")
LEVELS = core.levels() or ("none",)

LOSSES = {
    "talos": lambda: losses.Talos(tau=0.1),
    "talos-cold": lambda: losses.Talos(tau=0.02),
    "talos-colder": lambda: losses.Talos(tau=0.01),
    "talos-warm": lambda: losses.Talos(tau=1.0),
    "talos-inner": lambda: losses.Talos(tau=0.2, temperature="inner"),
    "talos-no-quantile": lambda: losses.Talos(tau=0.2, quantile=False),
    "sl": lambda: losses.Softmax(tau=0.2),
    "sl-cold": lambda: losses.Softmax(tau=0.02),
    "bsl": lambda: losses.BilateralSoftmax(tau1=0.1, tau2=0.3),
    "sl@k": lambda: losses.SoftmaxAtK(tau=0.2, tau_w=0.5),
    "sl@k-through": lambda: losses.SoftmaxAtK(
        tau=0.2, tau_w=0.5, detach_weight=False, offset=-1.5, negative_weight=0.9
    ),
    "aatp": lambda: losses.AATP(),
    "llpauc": lambda: moved(losses.LLPAUC(alpha=0.7, beta=0.3)),
    "llpauc-sharp": lambda: moved(losses.LLPAUC(alpha=1.0, beta=0.05)),
}


PAIRWISE = {
    "bpr": lambda: losses.BPR(),
    "bpr-balanced": lambda: losses.BPR(user_power=0.5),
    "psl": lambda: losses.PairwiseSoftmax(tau=0.1),
    "psl-cold": lambda: losses.PairwiseSoftmax(tau=0.02),
    "psl-colder": lambda: losses.PairwiseSoftmax(tau=0.01),
    "psl-warm": lambda: losses.PairwiseSoftmax(tau=1.0),
    "rs@k": lambda: losses.RecallSurrogate(k=5, tau1=0.1, tau2=1.0),
    "rs@k-cold": lambda: losses.RecallSurrogate(k=5, tau1=0.02, tau2=3.0),
}
ALL = LOSSES | PAIRWISE
CONSTANT = {
    "talos-no-denominator": lambda: losses.Talos(tau=0.1, denominator=False, k=3),
    "talos-balanced": lambda: losses.Talos(tau=0.1, user_power=0.5, positive_power=0.3, negative_weight=1.2),
}


def moved(loss: losses.LLPAUC) -> losses.LLPAUC:
    """With scalars away from their initial values, where some derivatives are 0."""
    with torch.no_grad():
        for name, value in {"a": 0.8, "b": 0.4, "gamma": -0.3, "s_p": 0.2, "s_n": 0.35}.items():
            getattr(loss, name).fill_(value)
    return loss


# users, items, dimension: no multiple of any tile, and the smallest there are
SHAPES = [
    (1, 1, 8),
    (1, 2, 64),
    (2, 3, 9),
    (7, 23, 5),
    (33, 130, 17),
    (65, 257, 64),
    (100, 1031, 100),
    (70, 3000, 31),
]


class Problem:
    """Cosines; among the users one without positives, one with all items, one with all but one."""

    def __init__(self, users: int, items: int, dim: int, seed: int = 0, scale: float = 1.0) -> None:
        rng = torch.Generator().manual_seed(seed)
        draw = lambda n: F.normalize(torch.randn(n, dim, generator=rng), dim=-1) * scale  # noqa: E731
        self.users, self.items = draw(users), draw(items)
        belongs = torch.rand(users, items, generator=rng) < min(0.2, 20 / items)
        if users > 2:
            belongs[0], belongs[1], belongs[2] = False, True, torch.arange(items) > 0
        self.indptr = F.pad(belongs.sum(1).cumsum(0), (1, 0))
        self.indices = belongs.nonzero()[:, 1]
        self.beta = torch.rand(users, generator=rng) * scale - scale / 2

    def call(self, loss: losses.Loss, beta: torch.Tensor | None, double: bool = False) -> tuple:
        cast = (lambda t: None if t is None else t.double()) if double else (lambda t: t)
        loss = copy.deepcopy(loss).double() if double else loss
        return (cast(self.users), cast(self.items), self.indptr, self.indices, cast(beta), loss)


def assert_close(got: torch.Tensor, want: torch.Tensor, name: str, rtol: float = 1e-5) -> None:
    """Close relative to the largest entry: gradients cancel, and what is left of zero has no digits to compare."""
    finite = torch.isfinite(want)
    assert torch.equal(finite, torch.isfinite(got)), name
    largest = want[finite].abs().max().item() if finite.any() else 0.0
    torch.testing.assert_close(
        got.double(), want, rtol=rtol, atol=rtol * largest + 1e-12, msg=lambda text: f"{name}: {text}"
    )


def largest(values: torch.Tensor) -> float:
    return float(values.abs().max()) if values.numel() else 0.0


def compare(got: kernels.UserBatch, want: kernels.UserBatch, rtol: float = 1e-5) -> None:
    for name in ("value", "user_gradient", "item_gradient"):
        assert_close(getattr(got, name), getattr(want, name), name, rtol)
    assert set(got.parameter_gradients) == set(want.parameter_gradients)
    for name, gradient in want.parameter_gradients.items():
        assert_close(got.parameter_gradients[name], gradient, name, rtol)


@pytest.fixture(autouse=True)
def _compiled(monkeypatch):
    monkeypatch.setenv("TALOS_KERNEL", "compiled")


def swept(problem: Problem, loss: losses.Loss, **how) -> tuple[Swept, torch.Tensor, torch.Tensor]:
    """One pass of the core with gradients, and these; weights are 1 unless they are given."""
    phi, pairs = loss.phi, isinstance(loss, losses.PairwiseLoss)
    gradients = torch.full_like(problem.users, torch.nan), torch.full_like(problem.items, torch.nan)
    call = {
        "excluded": (problem.indptr, problem.indices),
        "thresholds": None if pairs else problem.beta,
        "weights": torch.ones(len(problem.indices) if pairs else len(problem.users)),
        "kind": phi.kind,
        "params": [float(torch.as_tensor(one).detach()) for one in phi.params],
        "scale": 1.0 if pairs else phi.scale,
        "positives": (problem.indptr, None) if pairs else None,
        "user_gradient": gradients[0],
        "item_gradient": gradients[1],
    }
    return core.sweep(problem.users, problem.items, **{**call, **how}), *gradients


WITHOUT_GRADIENTS = {"weights": None, "user_gradient": None, "item_gradient": None}


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_the_torch_passes(name, shape, use):
    problem, loss = Problem(*shape), ALL[name]()
    beta = problem.beta if loss.needs.threshold else None
    want = kernels.user_batch_loss(*problem.call(loss, beta, double=True))
    for level in LEVELS:
        use(level)
        # fp32 scores are off by 1e-7, of which a temperature of 0.02 makes 5e-6
        got = kernels.user_batch_loss(*problem.call(loss, beta))
        compare(got, want, 4e-5 if "cold" in name else 1e-5)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("k", [1, 20, 300])
def test_thresholds_from_the_same_pass(level, threads, k, use):
    use(level, threads)
    problem, loss = Problem(201, 1003, 24), losses.Talos(tau=0.1)
    got = kernels.user_batch_loss(*problem.call(loss, None), k=k)
    scores = problem.users.double() @ problem.items.double().T
    assert_close(got.thresholds, scores.topk(k).values[:, -1], "thresholds", 1e-6)
    compare(got, kernels.user_batch_loss(*problem.call(loss, got.thresholds, double=True)))
    assert torch.equal(kernels.kth_scores(problem.users, problem.items, k), got.thresholds)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("k", [1, 20, 300])
def test_the_best_scores(level, threads, k):
    problem = Problem(201, 1003, 24)
    found = core.sweep(
        problem.users, problem.items, None, None, None, k=k, keep_best=True, level=level, threads=threads
    )
    scores = problem.users.double() @ problem.items.double().T
    assert_close(found.best.sort(descending=True).values, scores.topk(k).values, "best", 1e-6)
    assert torch.equal(found.best.amin(1), found.kth)


def test_best_scores_that_are_no_numbers_are_none():
    problem = Problem(5, 40, 8)
    problem.users[2] = torch.nan
    best = core.sweep(problem.users, problem.items, None, None, None, k=3, keep_best=True).best
    assert torch.equal(best.isnan().all(1), torch.arange(5) == 2)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", ["talos", "talos-cold", "sl", "aatp", "llpauc"])
def test_sums_without_gradients_are_those_of_the_whole_pass(name, level, threads):
    problem, loss = Problem(201, 1003, 24), LOSSES[name]()
    call = {"level": level, "threads": threads}
    alone, *_ = swept(problem, loss, **call, **WITHOUT_GRADIENTS)
    whole, *_ = swept(problem, loss, **call)
    for part in ("sums", "normalizer", "excluded_scores"):
        assert torch.equal(getattr(alone, part), getattr(whole, part)), part


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", ALL)
def test_sums_and_slopes_of_a_pass(name, level, threads):
    """Every number that a pass returns, against autograd on the matrix of scores in float64."""
    problem, loss = Problem(41, 333, 24), ALL[name]().double()
    phi, pairs = loss.phi, name in PAIRWISE
    weights = torch.rand(len(problem.indices) if pairs else 41, generator=torch.Generator().manual_seed(7))
    found, *gradients = swept(problem, ALL[name](), weights=weights, level=level, threads=threads)
    rows, columns = torch.arange(41).repeat_interleave(problem.indptr.diff()), problem.indices
    scores = (problem.users.double() @ problem.items.double().T).requires_grad_()
    gone = torch.zeros(41, 333, dtype=torch.bool)
    gone[rows, columns] = True
    if pairs:
        pos = scores.detach()[rows, columns].requires_grad_()
        sums = phi.aggregate(scores[rows] - pos.unsqueeze(-1), gone[rows])
        total = (weights.double() * phi.outer(sums)).sum()
        slopes, of_pos = torch.autograd.grad(total, [scores, pos])
        if phi.reduction == "log-sum":
            sums = sums.masked_fill(gone.all(1)[rows], -torch.inf)
        assert_close(found.positive_slopes, of_pos, "positive_slopes", 4e-5)
        assert found.normalizer.shape == found.parameter_gradient.shape == (0,)
    else:
        beta = problem.beta.double().unsqueeze(-1)
        sums = phi.aggregate(scores, beta, gone)
        (slopes,) = torch.autograd.grad((weights.double() * sums).sum(), scores)
        values = phi.value(scores.detach(), beta)
        normalizer = values.masked_fill(gone, 0.0).sum(1)
        if phi.reduction == "log-sum":
            normalizer = torch.logsumexp(values.masked_fill(gone, -torch.inf), 1)
        assert_close(found.normalizer, normalizer, "normalizer", 4e-5)
        assert found.positive_slopes.shape == (0,)
    assert_close(found.sums, sums.detach(), "sums", 4e-5)
    assert_close(found.excluded_scores, scores.detach()[rows, columns], "excluded_scores", 1e-6)
    assert_close(gradients[0], slopes @ problem.items.double(), "user_gradient", 4e-5)
    assert_close(gradients[1], slopes.T @ problem.users.double(), "item_gradient", 4e-5)
    assert found.kth.shape == found.best.shape == (0,)


@pytest.mark.parametrize("name", ALL)
def test_exact_thresholds_for_every_loss(name, use):
    use(threads=2)
    problem, loss = Problem(64, 500, 16), ALL[name]()
    got = kernels.user_batch_loss(*problem.call(loss, None), k=7)
    want = kernels.user_batch_loss(*problem.call(loss, got.thresholds, double=True))
    compare(got, want, 4e-5 if "cold" in name else 1e-5)


@pytest.mark.parametrize("dim", [8, 13, 64, 65, 128, 256])
@pytest.mark.parametrize("threads", [1, 2])
def test_dimensions_and_blocks(dim, threads, use):
    use(threads=threads)
    problem, loss = Problem(150, 700, dim), losses.Talos(tau=0.05)
    want = kernels.user_batch_loss(*problem.call(loss, problem.beta, double=True))
    for block in (None, 1, 40):
        compare(kernels.user_batch_loss(*problem.call(loss, problem.beta), users_per_chunk=block), want)


def test_many_blocks_of_few_users(use):
    use()
    problem = Problem(5000, 200, 16)
    found = kernels.kth_scores(problem.users, problem.items, 5, users_per_chunk=1)
    want = kernels.kth_scores(problem.users.double(), problem.items.double(), 5)
    torch.testing.assert_close(found.double(), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("reduction", ["positives", "users", "sum"])
@pytest.mark.parametrize("excluded", ["positives", None])
def test_options(reduction, excluded, use):
    use()
    problem, loss = Problem(20, 60, 8), losses.Softmax(tau=0.2)
    options = {"reduction": reduction, "excluded": excluded}
    got = kernels.user_batch_loss(*problem.call(loss, None), **options)
    compare(got, kernels.user_batch_loss(*problem.call(loss, None, double=True), **options))


@pytest.mark.parametrize("name", ALL)
def test_a_shared_sample_with_repetitions(name, use):
    use()
    problem, loss = Problem(40, 90, 12), ALL[name]()
    sample = torch.randint(0, 90, (200,), generator=torch.Generator().manual_seed(1))
    beta = problem.beta if loss.needs.threshold else None
    got = kernels.user_batch_loss(*problem.call(loss, beta), item_ids=sample)
    want = kernels.user_batch_loss(*problem.call(loss, beta, double=True), item_ids=sample)
    compare(got, want, 4e-5 if "cold" in name else 1e-5)


def test_exact_thresholds_with_a_sample_are_of_all_items(use):
    use()
    problem, loss = Problem(40, 90, 12), losses.Talos(tau=0.1)
    got = kernels.user_batch_loss(*problem.call(loss, None), k=5, item_ids=torch.arange(7))
    want = (problem.users @ problem.items.T).topk(5).values[:, -1]
    torch.testing.assert_close(got.thresholds, want)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("scale", [1e-3, 3.0, 30.0])
def test_unnormalised_scores(name, scale, use):
    """Products of any size; the tolerance follows the rounding of the scores themselves."""
    use()
    problem, loss = Problem(37, 211, 16, scale=scale**0.5), ALL[name]()
    beta = problem.beta if loss.needs.threshold else None
    got = kernels.user_batch_loss(*problem.call(loss, beta))
    want = kernels.user_batch_loss(*problem.call(loss, beta, double=True))
    steepest = {"talos-colder": 100, "psl-colder": 100}.get(name, 50 if "cold" in name else 10)
    compare(got, want, 1e-5 + 3e-7 * scale * steepest)


@pytest.mark.parametrize("name", ALL)
def test_scores_at_the_ends(name, use):
    """Every vector is one of two opposite ones: all scores are ±1, and ties abound."""
    use()
    problem, loss = Problem(20, 75, 10), ALL[name]()
    axis = F.normalize(torch.ones(1, 10))
    problem.users = axis * torch.where(torch.arange(20) % 2 == 0, 1.0, -1.0)[:, None]
    problem.items = axis * torch.where(torch.arange(75) % 3 == 0, 1.0, -1.0)[:, None]
    for k in (1, 20, 40, 75):
        got = kernels.user_batch_loss(*problem.call(loss, None), k=k)
        assert torch.allclose(got.thresholds.abs(), torch.ones(20))
        want = kernels.user_batch_loss(*problem.call(loss, got.thresholds, double=True))
        if name in PAIRWISE:  # the gradients of tied pairs cancel within a user: nothing is left to compare
            assert largest(got.user_gradient - want.user_gradient) <= 1e-6 * float(
                want.item_gradient.abs().sum()
            )
            got = replace(got, user_gradient=want.user_gradient)
        compare(got, want, 4e-5 if "cold" in name else 1e-5)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("tau", [1 / 54.9, 1 / 30, 0.1])
def test_scores_far_below_the_threshold(level, tau, use):
    """Σφ relative to φ at the threshold would be 1e-34 here, and the factor of the gradients beyond float32."""
    use(level)
    users, items = torch.tensor([[1.0, 0.0]]), torch.tensor([[-1.0, 0.0], [-1.0, 0.1], [1.0, 0.0]])
    given = (torch.tensor([0, 1]), torch.tensor([2]))
    beta, loss = torch.tensor([1.0]), losses.Talos(tau=tau)
    for number in (1.0, 1e3):  # of times that the positive counts
        options = {"positive_weights": torch.tensor([number], dtype=torch.float64), "reduction": "sum"}
        got = kernels.user_batch_loss(users, items, *given, beta, loss, **options)
        compare(
            got,
            kernels.user_batch_loss(users.double(), items.double(), *given, beta.double(), loss, **options),
        )


def test_a_workspace_without_rows():
    assert 0 < core.workspace_bytes(0, 5, 64) < 2**20


def sweeps_of(users: torch.Tensor, items: torch.Tensor, bfloat16: bool = False) -> batch._Sweeps:
    nothing = torch.zeros(0, dtype=torch.int64)
    return batch._Sweeps(
        users=users,
        items=items,
        positives=CSR(nothing, nothing, nothing),
        excluded=None,
        samples=None,
        item_weights=None,
        bfloat16=bfloat16,
        users_per_chunk=None,
        group=SINGLE_PROCESS,
    )


@pytest.mark.parametrize("bfloat16", [False, True])
@pytest.mark.parametrize("dim", [64, 100])
def test_the_workspace_is_bounded_whatever_the_number_of_items(bfloat16, dim):
    """The passes over ranges of the table take at most half a GB each."""
    for items in (10**5, 10**6, 10**7):
        # a table of this size, without its memory
        sweeps = sweeps_of(torch.zeros(4096, dim), torch.empty(1, dim).expand(items, dim), bfloat16)
        for k in (20, items):
            ranges = sweeps.ranges(k)
            assert [low for low, _ in ranges] == [0, *(high for _, high in ranges[:-1])]
            assert ranges[-1][1] == items
            for low, high in (ranges[0], ranges[-1]):
                part = sweeps.over(low, high) if len(ranges) > 1 else sweeps
                size = {"k": min(k, high - low), "bfloat16": bfloat16}
                block = part.users_per_chunk
                taken = core.workspace_bytes(4096, high - low, dim, users_per_block=block, **size)
                assert taken <= 2**29


@pytest.fixture
def in_ranges(monkeypatch):
    """Tables of a hundred items are too large for one pass."""
    monkeypatch.setattr(batch, "_MOST_BYTES", 1000)
    monkeypatch.setattr(batch, "_FEW_NUMBERS", 0)
    monkeypatch.setattr(batch, "_FEWEST_ITEMS", 40)


@pytest.mark.usefixtures("in_ranges")
@pytest.mark.parametrize("name", ALL | CONSTANT)
@pytest.mark.parametrize("k", [None, 1, 25])
@pytest.mark.parametrize("excluded", ["positives", None, "others"])
def test_a_table_in_ranges(name, k, excluded, use):
    """The same as in one pass, for tables that would need more workspace than is allowed."""
    use(threads=1)
    problem, loss = Problem(33, 130, 17), (ALL | CONSTANT)[name]()
    assert len(sweeps_of(problem.users, problem.items).ranges(k)) == 4
    beta = problem.beta if loss.needs.threshold and k is None else None
    if excluded == "others":
        gone = torch.rand(33, 130, generator=torch.Generator().manual_seed(1)) < 0.2
        gone[4], gone[5] = False, True
        excluded = CSR.by_row(*gone.nonzero().T, 33)
    options = {"k": k, "excluded": excluded, "normalize_items": True}
    got = kernels.user_batch_loss(*problem.call(loss, beta), **options)
    want = kernels.user_batch_loss(*problem.call(loss, beta, double=True), **options)
    compare(got, want, 6e-5 if "cold" in name else 1e-5)
    if k is not None:
        assert_close(got.thresholds, want.thresholds, "thresholds", 1e-6)
        found = kernels.kth_scores(problem.users, F.normalize(problem.items), k)
        assert_close(found, want.thresholds, "K-th scores", 1e-6)


@pytest.mark.usefixtures("in_ranges")
@pytest.mark.parametrize("name", ["talos", "talos-balanced", "sl@k", "llpauc", "psl", "rs@k"])
def test_a_table_in_ranges_within_autograd(name):
    """Weights of positives, K-th scores and the loss's own parameters; memory is given and used."""
    problem, loss = Problem(33, 130, 17), (ALL | CONSTANT)[name]()
    weights = torch.rand(len(problem.indices), generator=torch.Generator().manual_seed(2)) + 0.5
    memory = torch.full_like(problem.items, torch.nan)
    options = {"k": 7, "reduction": "users", "users_per_chunk": 5}
    got = kernels.user_batch_loss(
        *problem.call(loss, None), positive_weights=weights, item_gradient=memory, **options
    )
    want = kernels.user_batch_loss(
        *problem.call(loss, None, double=True), positive_weights=weights.double(), **options
    )
    compare(got, want)
    assert got.item_gradient.data_ptr() == memory.data_ptr()


def test_memory_is_reused():
    """The items' gradient is written to the memory that is given, whatever it held; twice the same bits."""
    problem, memory = Problem(65, 257, 64), torch.full((257, 64), torch.nan)
    for name, make in ALL.items():
        loss = make()
        beta = problem.beta if loss.needs.threshold else None
        fresh = kernels.user_batch_loss(*problem.call(loss, beta), normalize_items=True)
        reused = kernels.user_batch_loss(
            *problem.call(loss, beta), normalize_items=True, item_gradient=memory
        )
        assert reused.item_gradient.data_ptr() == memory.data_ptr(), name
        assert torch.equal(fresh.item_gradient, memory), name
        assert torch.equal(fresh.user_gradient, reused.user_gradient), name


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("name", PAIRWISE)
def test_pairs_on_several_threads(name, level, threads, use):
    use(level, threads)
    problem, loss = Problem(201, 1003, 24), ALL[name]()
    want = kernels.user_batch_loss(*problem.call(loss, None, double=True))
    got = kernels.user_batch_loss(*problem.call(loss, None), k=7)
    compare(got, want, 4e-5 if "cold" in name else 1e-5)
    scores = problem.users.double() @ problem.items.double().T
    assert_close(got.thresholds, scores.topk(7).values[:, -1], "thresholds", 1e-6)


@pytest.mark.parametrize("name", PAIRWISE)
@pytest.mark.parametrize("excluded", ["positives", None])
def test_pairs_with_weights_and_options(name, excluded, use):
    """Weights of positives, blocks of a few users, positives among the negatives."""
    use(threads=2)
    problem, loss = Problem(60, 333, 12), ALL[name]()
    weights = torch.rand(len(problem.indices), generator=torch.Generator().manual_seed(2)) + 0.5
    options = {"excluded": excluded, "reduction": "users", "normalize_items": True}
    want = kernels.user_batch_loss(
        *problem.call(loss, None, double=True), positive_weights=weights.double(), **options
    )
    for block in (None, 1, 40):
        got = kernels.user_batch_loss(
            *problem.call(loss, None), positive_weights=weights, users_per_chunk=block, **options
        )
        compare(got, want, 4e-5 if "cold" in name else 1e-5)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", PAIRWISE)
@pytest.mark.parametrize("length", [1.0, 4.0, 9.0])
def test_differences_near_and_far(name, level, length, use):
    """Rows of one user that reach from differences near 0 to beyond what short formulas are good for."""
    use(level)
    rng = torch.Generator().manual_seed(3)
    users = torch.tensor([[length, 0.0], [length, 1.0], [0.01, 0.0]])
    items = torch.stack([torch.linspace(-length, length, 500), torch.rand(500, generator=rng)], dim=1)
    given = (torch.tensor([0, 3, 4, 6]), torch.tensor([0, 250, 499, 499, 3, 7]))
    loss = ALL[name]()
    got = kernels.user_batch_loss(users, items, *given, None, loss)
    want = kernels.user_batch_loss(users.double(), items.double(), *given, None, loss)
    steepest = {"psl-colder": 100}.get(name, 50 if "cold" in name else 10)
    compare(got, want, 1e-5 + 3e-7 * length**2 * steepest)


@pytest.mark.parametrize("name", PAIRWISE)
@pytest.mark.parametrize(
    ("length", "excluded"), [(0.1, "positives"), (1.0, "positives"), (1.0, None), (2.5, "positives")]
)
def test_users_with_many_positives(name, length, excluded, use):
    """Their pairs are summed by way of nodes, except where scores spread too far for the nodes that there are."""
    problem, loss = Problem(20, 1300, 16, scale=length), ALL[name]()
    rng = torch.Generator().manual_seed(4)
    counts = [0, 1, 4, 5, 13, 21, 30, 60, 300, 1299] * 2
    drawn = [torch.randperm(1300, generator=rng)[:count].sort().values for count in counts]
    problem.indptr, problem.indices = F.pad(torch.tensor(counts).cumsum(0), (1, 0)), torch.cat(drawn)
    options = {"excluded": excluded, "reduction": "users"}
    want = kernels.user_batch_loss(*problem.call(loss, None, double=True), **options)
    steepest = {"psl-colder": 100}.get(name, 50 if "cold" in name else 10)
    for level, threads in itertools.product(LEVELS, (1, 3)):
        use(level, threads)
        got = kernels.user_batch_loss(*problem.call(loss, None), **options)
        compare(got, want, 1e-5 + 3e-7 * length**2 * steepest)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("tau", [2.0, 10.0, 50.0])
def test_nodes_are_close_enough_for_flat_functions(level, tau, use):
    """A power below 1 of a sigmoid is flat, but bends as the sigmoid does."""
    use(level)
    problem, loss = Problem(20, 1300, 16), losses.PairwiseSoftmax(tau=tau)
    compare(
        kernels.user_batch_loss(*problem.call(loss, None)),
        kernels.user_batch_loss(*problem.call(loss, None, double=True)),
    )


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ["bpr", "psl", "rs@k-cold"])
def test_many_items_between_two_nodes(name, level, use):
    """Sums of a hundred thousand almost equal numbers; a third of the items have no length at all."""
    use(level)
    rng, items = torch.Generator().manual_seed(5), 100_000
    vectors = 0.001 * torch.randn(items, 4, generator=rng)
    vectors[: items // 3] = 0.0
    users, positives = torch.randn(2, 4, generator=rng), torch.randperm(items, generator=rng)[:60]
    given = (torch.tensor([0, 30, 60]), torch.cat([half.sort().values for half in positives.split(30)]))
    loss = ALL[name]()
    got = kernels.user_batch_loss(users, vectors, *given, None, loss)
    compare(got, kernels.user_batch_loss(users.double(), vectors.double(), *given, None, loss), 3e-6)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", PAIRWISE)
def test_nodes_of_large_scores_close_together(name, level, use):
    """Around 4,096, all scores being exact in single precision."""
    use(level)
    rng = torch.Generator().manual_seed(6)
    items = torch.stack(
        [torch.randint(-512, 512, (2000,), generator=rng) / 512, torch.full((2000,), 4096.0)], 1
    )
    positives = torch.randperm(2000, generator=rng)[:40].sort().values
    given = (torch.tensor([0, 40]), positives, None, ALL[name]())
    got = kernels.user_batch_loss(torch.ones(1, 2), items, *given)
    want = kernels.user_batch_loss(torch.ones(1, 2).double(), items.double(), *given)
    # the user's gradient is the difference of two numbers that are 4,096 times as large
    compare(replace(got, user_gradient=want.user_gradient), want, 2e-5 if "cold" in name else 1e-5)


@pytest.mark.parametrize("name", PAIRWISE)
def test_inner_values_without_gradients_are_those_of_the_whole_pass(name):
    problem, loss = Problem(201, 1003, 24), ALL[name]()
    alone, *_ = swept(problem, loss, threads=3, **WITHOUT_GRADIENTS)
    whole, *gradients = swept(problem, loss, threads=3)
    torch.testing.assert_close(alone.sums, whole.sums, rtol=1e-6, atol=1e-6)
    assert alone.positive_slopes.numel() == 0
    again, *same = swept(problem, loss, threads=3)
    for one, other in zip((*whole, *gradients), (*again, *same), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", PAIRWISE)
def test_scores_of_positives_may_be_given(name):
    problem, loss = Problem(50, 333, 24), ALL[name]()
    indptr, indices = problem.indptr, problem.indices
    want, *gradients = swept(problem, loss)
    scores = core.pair_scores(problem.users, problem.items, indptr, indices)
    got, *same = swept(problem, loss, positives=(indptr, scores))
    for one, other in zip((*want, *gradients), (*got, *same), strict=True):
        assert_close(one, other.double(), "with scores of positives", 4e-5 if "cold" in name else 1e-5)


@pytest.mark.parametrize("name", PAIRWISE)
@pytest.mark.parametrize("place", ["users", "items"])
def test_a_nan_among_pairs_is_noticed(name, place):
    problem = Problem(10, 300, 8)
    getattr(problem, place)[7, 3] = float("nan")
    argument = {"users": "user_vectors", "items": "item_vectors"}[place]
    with pytest.raises(ArgumentError, match=f"^{argument}: "):
        kernels.user_batch_loss(*problem.call(ALL[name](), None))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_same_from_run_to_run(threads):
    problem, loss = Problem(300, 2111, 64), losses.Talos(tau=0.1)
    call = {"weights": torch.rand(300), "thresholds": None, "k": 20, "kth_is_threshold": True}
    first, *others = (swept(problem, loss, threads=threads, **call) for _ in range(4))
    for other in others:
        for one, same in zip((*first[0], *first[1:]), (*other[0], *other[1:]), strict=True):
            assert torch.equal(one, same)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("choice", ["compiled", "torch"])
def test_normalised_items(level, threads, choice, use, monkeypatch):
    """Against autograd through `F.normalize`; one item has no length at all."""
    use(level, threads)
    monkeypatch.setenv("TALOS_KERNEL", choice)
    problem, loss = Problem(130, 1501, 19), losses.Talos(tau=0.1)
    rows = problem.items * torch.linspace(0.1, 5, 1501)[:, None]
    rows[3] = 0.0
    call = (problem.indptr, problem.indices, None, loss)
    got = kernels.user_batch_loss(problem.users, rows, *call, k=20, normalize_items=True)
    double = rows.double().requires_grad_()
    users, items = problem.users.double(), F.normalize(double)
    call = (problem.indptr, problem.indices, got.thresholds.double(), loss)
    want = kernels.user_batch_loss(users, items.detach(), *call)
    items.backward(want.item_gradient)
    assert_close(got.item_gradient[4:], double.grad[4:], "item_gradient")
    assert_close(got.item_gradient[3], double.grad[3], "item_gradient of nothing")
    assert_close(got.user_gradient, want.user_gradient, "user_gradient")


def test_positives_in_any_order():
    problem, loss = Problem(30, 80, 8), losses.Talos(tau=0.1)
    want = kernels.user_batch_loss(*problem.call(loss, problem.beta))
    bounds = problem.indptr.tolist()
    problem.indices = torch.cat([problem.indices[a:b].flip(0) for a, b in itertools.pairwise(bounds)])
    got = kernels.user_batch_loss(*problem.call(loss, problem.beta))
    torch.testing.assert_close(got.item_gradient, want.item_gradient)
    torch.testing.assert_close(got.value, want.value)


def test_threads_of_its_own(monkeypatch):
    """Without the entry points of torch's thread pool the core starts threads, with the same results to the bit."""
    problem, loss = Problem(300, 2111, 64), losses.Talos(tau=0.1)
    call = {"weights": torch.rand(300), "thresholds": None, "k": 20, "kth_is_threshold": True, "threads": 2}
    _, *pooled = swept(problem, loss, **call)
    monkeypatch.setattr(core, "team", lambda: (None, None))
    _, *own = swept(problem, loss, **call)
    assert torch.equal(pooled[0], own[0])
    assert torch.equal(pooled[1], own[1])


def test_forced_torch(monkeypatch):
    monkeypatch.setenv("TALOS_KERNEL", "torch")
    monkeypatch.setattr(core, "sweep", None)
    problem, loss = Problem(10, 30, 8), losses.Talos(tau=0.1)
    got = kernels.user_batch_loss(*problem.call(loss, None), k=3)
    want = kernels.user_batch_loss(*problem.call(loss, kernels.kth_scores(problem.users, problem.items, 3)))
    assert torch.equal(got.item_gradient, want.item_gradient)
    assert kernels.status() == "torch, because TALOS_KERNEL says so"


@pytest.mark.parametrize(
    "change",
    [
        {"loss": losses.Talos(tau=0.1, quantile=False, denominator=False, k=3)},
        {"dtype": torch.float64},
        {"weights": torch.ones(30)},
    ],
)
def test_what_the_core_does_not_do_is_done_in_torch(change, monkeypatch):
    monkeypatch.setattr(core, "sweep", None)
    problem, loss = Problem(10, 30, 8), change.get("loss", losses.Softmax())
    users, items, *rest = problem.call(loss, None)
    dtype = change.get("dtype", torch.float32)
    kernels.user_batch_loss(users.to(dtype), items.to(dtype), *rest, weights=change.get("weights"))


def test_status_names_the_instruction_set(monkeypatch):
    monkeypatch.setenv("TALOS_KERNEL", "auto")
    assert kernels.status().startswith(f"compiled core, {LEVELS[-1]}, {torch.get_num_threads()} thread")


def test_a_wrong_choice_is_named(monkeypatch):
    monkeypatch.setenv("TALOS_KERNEL", "fast")
    with pytest.raises(ArgumentError, match="TALOS_KERNEL"):
        kernels.status()


def test_without_the_core(monkeypatch):
    monkeypatch.setattr(core, "_load", lambda: (None, "the core was not built"))
    monkeypatch.setenv("TALOS_KERNEL", "auto")
    assert kernels.status() == "torch, because the core was not built"
    assert kernels.kth_scores(torch.ones(1, 2), torch.eye(2), 1).tolist() == [1.0]
    monkeypatch.setenv("TALOS_KERNEL", "compiled")
    with pytest.raises(ArgumentError, match="the core was not built"):
        kernels.kth_scores(torch.ones(1, 2), torch.eye(2), 1)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"item_vectors": torch.full((30, 8), float("nan"))}, "item_vectors"),
        ({"user_vectors": torch.full((10, 8), float("inf"))}, "user_vectors"),
        ({"thresholds": torch.full((10,), float("nan"))}, "thresholds"),
        ({"indices": "out of range"}, "indices"),
        ({"k": 31, "thresholds": None}, "k"),
        ({"k": 3}, "thresholds"),
    ],
)
def test_wrong_arguments_are_named(change, named):
    problem = Problem(10, 30, 8)
    names = ("user_vectors", "item_vectors", "indptr", "indices", "thresholds", "loss")
    call = dict(zip(names, problem.call(losses.Talos(tau=0.1), problem.beta), strict=True))
    if "indices" in change:
        change = {"indices": problem.indices + 25}
    with pytest.raises(ArgumentError, match=f"^{named}: "):
        kernels.user_batch_loss(**{**call, **change})


def test_a_nan_among_the_negatives_is_noticed():
    problem = Problem(10, 30, 8)
    problem.items[7, 3] = float("nan")
    for beta, k in ((problem.beta, None), (None, 3)):
        with pytest.raises(ArgumentError, match=r"^item_vectors: "):
            kernels.user_batch_loss(*problem.call(losses.Talos(tau=0.1), beta), k=k)


def test_which_losses_have_a_constant_weight():
    constant = {name: make().constant_weight for name, make in LOSSES.items()}
    assert {name for name, weight in constant.items() if weight is None} == {"sl@k", "sl@k-through"}


def test_differentiable_with_thresholds():
    problem, loss = Problem(30, 100, 8), losses.Talos(tau=0.1)
    users, items = problem.users.clone().requires_grad_(), problem.items.clone().requires_grad_()
    value, beta = kernels.exact_user_batch_loss(users, items, problem.indptr, problem.indices, 5, loss)
    (2 * value).backward()
    want = kernels.user_batch_loss(*problem.call(loss, beta))
    torch.testing.assert_close(items.grad, 2 * want.item_gradient)
    torch.testing.assert_close(users.grad, 2 * want.user_gradient)
    assert not beta.requires_grad
