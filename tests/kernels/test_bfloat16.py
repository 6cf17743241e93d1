"""bfloat16 products in the core: the error is within the bound of rounding the factors, and nothing else is rounded."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from talos import kernels, losses
from talos.config import RunConfig
from talos.data.interactions import Interactions
from talos.kernels import batch, core
from talos.kernels.core import Swept
from talos.training import plan_for

needs_bfloat16 = pytest.mark.skipif(
    not core.has_bfloat16(), reason="this core or this processor has no products of bfloat16"
)
LOSSES = {
    "talos": losses.Talos(tau=0.1),
    "talos-inner": losses.Talos(tau=0.2, temperature="inner"),
    "sl": losses.Softmax(tau=0.2),
    "sl-cold": losses.Softmax(tau=0.02),
    "aatp": losses.AATP(),
    "llpauc": losses.LLPAUC(alpha=0.5, beta=0.3),
}
# users, items, dimension: no multiple of any tile; odd numbers leave half a word empty
SHAPES = [
    (1, 1, 8),
    (1, 2, 64),
    (2, 3, 9),
    (7, 23, 5),
    (33, 131, 17),
    (65, 257, 64),
    (41, 1031, 100),
    (70, 2999, 256),
]
# A number is off by one part in 2⁸ at most when it is rounded, a product of two by one in 2⁷ and a little.
ROUNDING = 2.0**-7 * 1.01


def draw(
    users: int, items: int, dim: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    """Unit vectors, weights, and excluded pairs."""
    rng = torch.Generator().manual_seed(users * items + dim)
    left, right = (F.normalize(torch.randn(n, dim, generator=rng)) for n in (users, items))
    gone = torch.rand(users, items, generator=rng) < min(0.2, 20 / items)
    gone[0] = False
    excluded = (F.pad(gone.sum(1).cumsum(0), (1, 0)), gone.nonzero()[:, 1])
    return left, right, torch.rand(users, generator=rng), excluded


def rounded(vectors: torch.Tensor) -> torch.Tensor:
    return vectors.bfloat16().float()


def swept(
    name: str, users: torch.Tensor, items: torch.Tensor, weights: torch.Tensor, **how: object
) -> tuple[Swept, torch.Tensor, torch.Tensor]:
    """A pass of the core with gradients, and these."""
    phi = LOSSES[name].phi
    gradients = torch.full_like(users, torch.nan), torch.full_like(items, torch.nan)
    params = [float(torch.as_tensor(one).detach()) for one in phi.params]
    options = {"excluded": None, "thresholds": None, "kind": phi.kind, "params": params, "scale": phi.scale}
    memory = {"user_gradient": gradients[0], "item_gradient": gradients[1]}
    return core.sweep(users, items, weights=weights, **{**options, **memory, **how}), *gradients


@needs_bfloat16
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", LOSSES)
def test_against_the_same_numbers_rounded(name: str, shape: tuple[int, int, int], threads: int) -> None:
    users, items, weights, excluded = draw(*shape)
    options = {
        "k": max(1, shape[1] // 50),
        "kth_is_threshold": True,
        "excluded": excluded,
        "threads": threads,
    }
    found, *gradients = swept(name, users, items, weights, bfloat16=True, **options)
    # float32 products of rounded vectors are the same but for the order of sums
    want, *_ = swept(name, rounded(users), rounded(items), weights, **options)
    assert len(found.parameter_gradient) == (5 if name == "llpauc" else 0)
    for field in ("kth", "excluded_scores", "sums", "normalizer", "parameter_gradient"):
        torch.testing.assert_close(getattr(found, field), getattr(want, field), rtol=2e-5, atol=2e-5)

    # slopes and the vectors they are multiplied with are rounded once more each: a bound for every single number
    scores = rounded(users) @ rounded(items).T
    slopes = _slopes(LOSSES[name], scores, want.kth, weights, excluded)
    for got, exact, sums in (
        (gradients[0], slopes @ items, slopes.abs() @ items.abs()),
        (gradients[1], slopes.T @ users, slopes.abs().T @ users.abs()),
    ):
        assert ((got - exact).abs() <= ROUNDING * sums + 1e-5 * sums.max()).all()


def _slopes(
    loss: losses.UserSeparableLoss,
    scores: torch.Tensor,
    beta: torch.Tensor,
    weights: torch.Tensor,
    excluded: tuple[torch.Tensor, torch.Tensor],
) -> torch.Tensor:
    """∂(Σ weight · R)/∂s of every pair, with users × items in one matrix."""
    gone = torch.zeros_like(scores, dtype=torch.bool)
    gone[torch.repeat_interleave(torch.arange(len(scores)), excluded[0].diff()), excluded[1]] = True
    leaf = scores.detach().requires_grad_()
    sums = loss.phi.aggregate(leaf, beta.unsqueeze(-1), gone)
    return torch.autograd.grad((weights * sums).sum(), leaf)[0]


@needs_bfloat16
def test_the_same_bits_again() -> None:
    users, items, weights, excluded = draw(70, 3001, 64)
    options = {"k": 20, "kth_is_threshold": True, "excluded": excluded, "bfloat16": True}
    once, twice = (swept("talos", users, items, weights, **options) for _ in range(2))
    for one, other in zip((*once[0], *once[1:]), (*twice[0], *twice[1:]), strict=True):
        assert torch.equal(one, other)


@needs_bfloat16
@pytest.mark.parametrize("level", core.levels()[:-1])
def test_lower_levels_ignore_it(level: str) -> None:
    users, items, weights, excluded = draw(9, 50, 16)
    options = {"excluded": excluded, "level": level}
    with_it, without = (swept("sl", users, items, weights, bfloat16=b, **options) for b in (True, False))
    assert torch.equal(with_it[1], without[1])
    assert torch.equal(with_it[2], without[2])


@needs_bfloat16
@pytest.mark.parametrize("name", LOSSES)
def test_no_number_stays_none(name: str) -> None:
    users, items, weights, _ = draw(40, 100, 32)
    items[57, 3] = torch.nan
    assert swept(name, users, items, weights, bfloat16=True)[0].sums.isnan().all()


@needs_bfloat16
@pytest.mark.parametrize("name", ["bpr", "psl", "rs@k"])
def test_pairs_against_the_same_numbers_rounded(name: str) -> None:
    users, items, _, (indptr, indices) = draw(41, 1031, 100)
    loss = {"bpr": losses.BPR(), "psl": losses.PairwiseSoftmax(), "rs@k": losses.RecallSurrogate(k=5)}[name]
    call = {
        "excluded": (indptr, indices),
        "thresholds": None,
        "weights": None,
        "kind": loss.phi.kind,
        "params": loss.phi.params,
        "positives": (indptr, None),
    }
    found = core.sweep(users, items, **call, bfloat16=True)
    want = core.sweep(rounded(users), rounded(items), **call)
    assert not torch.equal(core.sweep(users, items, **call).sums, found.sums)
    for field in ("excluded_scores", "sums"):
        torch.testing.assert_close(getattr(found, field), getattr(want, field), rtol=2e-5, atol=2e-5)


@needs_bfloat16
@pytest.mark.parametrize("ranges", [False, True])
def test_thresholds_of_a_pass_of_their_own_are_not_rounded(
    ranges: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SL@K weighs positives by their thresholds, so the K-th scores come before the pass over φ."""
    if ranges:  # the table is too large for one pass
        monkeypatch.setattr(batch, "_MOST_BYTES", 1000)
        monkeypatch.setattr(batch, "_FEW_NUMBERS", 0)
        monkeypatch.setattr(batch, "_FEWEST_ITEMS", 100)
    users, items, _, (indptr, indices) = draw(64, 500, 64)
    loss = losses.SoftmaxAtK(tau=0.2, tau_w=0.5)
    found = kernels.user_batch_loss(users, items, indptr, indices, None, loss, k=20, bfloat16=True)
    want = (users.double() @ items.double().T).topk(20).values[:, -1]
    torch.testing.assert_close(found.thresholds.double(), want, rtol=0, atol=1e-6)


@needs_bfloat16
def test_a_batch_keeps_its_direction() -> None:
    users, items, _, (indptr, indices) = draw(64, 500, 64)
    exact, fast = (
        kernels.user_batch_loss(users, items, indptr, indices, None, LOSSES["talos"], k=20, bfloat16=b)
        for b in (False, True)
    )
    for name in ("user_gradient", "item_gradient"):
        a, b = getattr(exact, name).flatten(), getattr(fast, name).flatten()
        assert F.cosine_similarity(a, b, dim=0) > 0.9999
        assert not torch.equal(a, b)


@needs_bfloat16
def test_advinfonce_keeps_its_direction() -> None:
    users, items, _, (indptr, indices) = draw(64, 500, 64)
    loss = losses.AdvInfoNCE(num_users=64, num_items=500, tau=0.1, generator=torch.Generator().manual_seed(0))
    exact, fast = (
        kernels.user_batch_loss(
            users, items, indptr, indices, None, loss, user_ids=torch.arange(64), bfloat16=b
        )
        for b in (False, True)
    )
    pairs = [(getattr(one, name) for one in (exact, fast)) for name in ("user_gradient", "item_gradient")]
    pairs += [(one.parameter_gradients[name] for one in (exact, fast)) for name in exact.parameter_gradients]
    assert len(pairs) == 4
    for a, b in pairs:
        assert F.cosine_similarity(a.flatten(), b.flatten(), dim=0) > 0.9995
        assert not torch.equal(a, b)


@pytest.mark.parametrize(
    ("people", "settings", "wanted"),
    [
        (5000, {}, "bfloat16"),
        (5000, {"training.arithmetic": "float32"}, "float32"),
        (5000, {"loss.name": "bpr"}, "bfloat16"),
        (5000, {"loss.name": "advinfonce"}, "bfloat16"),
        (5000, {"loss.name": "smoothi@k"}, "float32"),
        (5000, {"loss.name": "psl"}, "bfloat16"),
        (5000, {"negatives": "4"}, "float32"),
        (5000, {"negatives": "shared:64"}, "float32"),
        (50, {}, "float32"),
    ],
    ids=str,
)
def test_what_is_chosen(people: int, settings: dict[str, str], wanted: str) -> None:
    data = Interactions.from_ids(range(people), range(people))
    chosen = plan_for(RunConfig().with_values(settings), data).config.training.arithmetic
    there = core.has_bfloat16() and core.available()
    assert chosen == (wanted if there else "float32")


def test_where_it_has_no_effect_the_plan_says_so() -> None:
    settings = {"training.arithmetic": "bfloat16", "loss.name": "bpr", "negatives": "1"}
    plan = plan_for(RunConfig(k=1).with_values(settings), Interactions.from_ids([1, 1, 2], [7, 8, 7]))
    assert any("products stay float32" in note for note in plan.notes)
