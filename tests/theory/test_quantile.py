"""Theorem 4: the sampled quantile loss is unbiased, and what it is unbiased for ends at the K-th best score."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from talos.thresholds import MonteCarloQuantile, QuantileRegression, pinball

ITEMS, K = 7, 3


def catalogue(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores of two positives and of five negatives."""
    scores = torch.rand(ITEMS, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return scores[:2], scores[2:]


def sampled_loss(pos: torch.Tensor, neg: torch.Tensor, beta: float, n: int) -> torch.Tensor:
    level = 1 - K / ITEMS
    weight = (ITEMS - len(pos)) / n
    return (pinball(pos - beta, level).sum() + weight * pinball(neg - beta, level).sum(-1)) / ITEMS


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("beta", [-0.5, 0.3, 0.61, 2.0])
def test_mean_over_all_samples_is_the_full_loss(n, beta):
    pos, neg = catalogue()
    draws = torch.stack([neg[list(draw)] for draw in itertools.product(range(5), repeat=n)])
    full = pinball(torch.cat([pos, neg]) - beta, 1 - K / ITEMS).mean()
    torch.testing.assert_close(sampled_loss(pos, draws, beta, n).mean(), full, rtol=1e-12, atol=0)
    # Without the weight it is not: the test can fail.
    unweighted = pinball(torch.cat([pos.expand(len(draws), -1), draws], dim=1) - beta, 1 - K / ITEMS).mean()
    assert abs(unweighted - full) > 1e-3 * full


@pytest.mark.parametrize("layout", ["per-user", "per-positive"])
def test_the_estimators_gradient_is_unbiased(layout):
    """The gradient of every possible first step, averaged, is that of the loss over all items."""
    pos, neg = catalogue()
    pos, neg = pos - 0.5, neg - 0.5
    want = (K - (torch.cat([pos, neg]) > 0).sum().item()) / ITEMS
    found = []
    for draw in itertools.product(range(5), repeat=2):
        for own in range(2):
            estimator = QuantileRegression(1, k=K, num_items=ITEMS, num_positives=torch.tensor([2]))
            user, sample = torch.tensor([0]), neg[list(draw)][None]
            if layout == "per-user":
                estimator.update(user, pos, sample, owner=torch.tensor([0, 0]))
            else:
                estimator.update(user, pos[own : own + 1], sample)
            found.append(estimator.mean.item() / 0.1)
    assert sum(found) / len(found) == pytest.approx(want, abs=1e-6)


@given(
    st.lists(st.floats(-1, 1, width=32), min_size=2, max_size=30, unique=True),
    st.data(),
)
def test_the_kth_best_score_is_a_minimiser(values, data):
    scores = torch.tensor(sorted(values, reverse=True), dtype=torch.float64)
    k = data.draw(st.integers(1, len(values)))
    level = 1 - k / len(values)
    least = pinball(scores - scores[k - 1], level).mean()
    for beta in [*scores.tolist(), data.draw(st.floats(-2, 2))]:
        assert pinball(scores - beta, level).mean() >= least - 1e-12


def test_and_a_score_well_above_or_below_is_none():
    scores = torch.arange(10.0)
    at = {k: pinball(scores - k, 1 - 3 / 10).mean().item() for k in range(10)}
    assert min(at, key=lambda k: (at[k], -k)) == 7  # the third best of 0..9
    assert at[5] > at[7] + 1e-6
    assert at[8] > at[7] + 1e-6


@pytest.mark.parametrize(("lr", "steps"), [(1e-2, 400), (1e-3, 3000)])
def test_regression_reaches_the_kth_score_from_a_cold_start(lr, steps):
    """200 users × 5,000 items: within 0.02 of the exact score on average, in a bounded number of steps."""
    users, items, k, n, positives = 200, 5000, 20, 100, 10
    rng = torch.Generator().manual_seed(0)
    scores = (torch.randn(users, items, generator=rng) * 0.15).clamp(-1, 1)
    exact = scores.topk(k).values[:, -1]
    estimator = QuantileRegression(users, k=k, num_items=items, lr=lr)
    everyone, owner = torch.arange(users), torch.arange(users).repeat_interleave(positives)
    for _ in range(steps):
        sample = scores.gather(1, torch.randint(positives, items, (users, n), generator=rng))
        estimator.update(everyone, scores[:, :positives].flatten(), sample, owner=owner)
    assert estimator.error_against(exact) < 0.02


def test_monte_carlo_does_not():
    """Its answer is the K-th of the sample, which is number K·|I|/n of all: biased, with any number of steps."""
    rng = torch.Generator().manual_seed(0)
    scores = (torch.randn(200, 5000, generator=rng) * 0.15).clamp(-1, 1)
    exact = scores.topk(20).values[:, -1]
    estimator = MonteCarloQuantile(200, k=20, num_items=5000)
    sample = scores.gather(1, torch.randint(1, 5000, (200, 1000), generator=rng))
    estimator.update(torch.arange(200), scores[:, 0], sample)
    assert (estimator.value(torch.arange(200)) - exact).mean().item() < -0.05
