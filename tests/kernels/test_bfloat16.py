"""bfloat16 products in the core: the error is within the bound of rounding the factors, and nothing else is rounded."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from talos import kernels, losses
from talos.config import RunConfig
from talos.data.interactions import Interactions
from talos.kernels import core_passes, library
from talos.training import plan_for

needs_bfloat16 = pytest.mark.skipif(
    not library.has_bfloat16(), reason="this core or this processor has no products of bfloat16"
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
    """Unit vectors, coefficients, and excluded pairs."""
    rng = torch.Generator().manual_seed(users * items + dim)
    left, right = (F.normalize(torch.randn(n, dim, generator=rng)) for n in (users, items))
    gone = torch.rand(users, items, generator=rng) < min(0.2, 20 / items)
    gone[0] = False
    excluded = (F.pad(gone.sum(1).cumsum(0), (1, 0)), gone.nonzero()[:, 1])
    return left, right, torch.rand(users, generator=rng), excluded


def rounded(vectors: torch.Tensor) -> torch.Tensor:
    return vectors.bfloat16().float()


@needs_bfloat16
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", LOSSES)
def test_against_the_same_numbers_rounded(name: str, shape: tuple[int, int, int], threads: int) -> None:
    users, items, coefficients, excluded = draw(*shape)
    part, k = LOSSES[name].negative_part, max(1, shape[1] // 50)
    options = {"part": part, "coefficients": coefficients, "k": k, "excluded": excluded, "threads": threads}
    found = core_passes.core_sweep(users, items, kth_is_threshold=True, bfloat16=True, **options)
    # float32 products of rounded vectors are the same but for the order of sums
    want = core_passes.core_sweep(rounded(users), rounded(items), kth_is_threshold=True, **options)
    for field in ("kth", "excluded_scores", "negative", "normalizer"):
        torch.testing.assert_close(getattr(found, field), getattr(want, field), rtol=2e-5, atol=2e-5)
    assert (found.moments is None) == (name != "llpauc")
    if found.moments is not None:
        torch.testing.assert_close(found.moments, want.moments, rtol=2e-5, atol=2e-5)

    # slopes and the vectors they are multiplied with are rounded once more each: a bound for every single number
    scores = rounded(users) @ rounded(items).T
    slopes = _slopes(LOSSES[name], scores, want.kth, coefficients, excluded)
    for got, exact, sums in (
        (found.user_gradient, slopes @ items, slopes.abs() @ items.abs()),
        (found.item_gradient, slopes.T @ users, slopes.abs().T @ users.abs()),
    ):
        assert ((got - exact).abs() <= ROUNDING * sums + 1e-5 * sums.max()).all()


def _slopes(
    loss: losses.UserSeparableLoss,
    scores: torch.Tensor,
    beta: torch.Tensor,
    coefficients: torch.Tensor,
    excluded: tuple[torch.Tensor, torch.Tensor],
) -> torch.Tensor:
    """∂(Σ coefficient · R)/∂s of every pair, with users × items in one matrix."""
    gone = torch.zeros_like(scores, dtype=torch.bool)
    gone[torch.repeat_interleave(torch.arange(len(scores)), excluded[0].diff()), excluded[1]] = True
    part, factor = loss.negative_part, (coefficients * loss.negative_part.scale).unsqueeze(-1)
    if part.reduction == "log-sum":
        log_phi, slope = part.log_phi_and_slope(scores, beta.unsqueeze(-1))
        shares = torch.softmax(log_phi.masked_fill(gone, -torch.inf), dim=-1)
        return factor * torch.nan_to_num(shares) * slope
    left = (~gone).sum(1, keepdim=True).clamp(min=1)
    return factor * part.dphi(scores, beta.unsqueeze(-1)).masked_fill(gone, 0.0) / left


@needs_bfloat16
def test_the_same_bits_again() -> None:
    users, items, coefficients, excluded = draw(70, 3001, 64)
    once, twice = (
        core_passes.core_sweep(
            users,
            items,
            part=LOSSES["talos"].negative_part,
            coefficients=coefficients,
            k=20,
            kth_is_threshold=True,
            excluded=excluded,
            bfloat16=True,
        )
        for _ in range(2)
    )
    assert torch.equal(once.user_gradient, twice.user_gradient)
    assert torch.equal(once.item_gradient, twice.item_gradient)


@needs_bfloat16
@pytest.mark.parametrize("level", library.levels()[:-1])
def test_lower_levels_know_nothing_of_it(level: str) -> None:
    users, items, coefficients, excluded = draw(9, 50, 16)
    options = {
        "part": LOSSES["sl"].negative_part,
        "coefficients": coefficients,
        "excluded": excluded,
        "level": level,
    }
    with_it, without = (core_passes.core_sweep(users, items, bfloat16=b, **options) for b in (True, False))
    assert torch.equal(with_it.user_gradient, without.user_gradient)


@needs_bfloat16
@pytest.mark.parametrize("name", LOSSES)
def test_no_number_stays_none(name: str) -> None:
    users, items, coefficients, _ = draw(40, 100, 32)
    items[57, 3] = torch.nan
    found = core_passes.core_sweep(
        users, items, part=LOSSES[name].negative_part, coefficients=coefficients, bfloat16=True
    )
    assert found.negative.isnan().all()


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
    there = library.has_bfloat16() and library.available()
    assert chosen == (wanted if there else "float32")


def test_where_it_has_no_effect_the_plan_says_so() -> None:
    settings = {"training.arithmetic": "bfloat16", "loss.name": "bpr", "negatives": "1"}
    plan = plan_for(RunConfig(k=1).with_values(settings), Interactions.from_ids([1, 1, 2], [7, 8, 7]))
    assert any("products stay float32" in note for note in plan.notes)
