"""Theorem 1: for τ in an interval, -log Precision@K ≤ L_full + (1/τ)·log(1 + e²/2), with ε for log 0."""

from __future__ import annotations

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from talos.losses import Talos


def interval(eps: float) -> tuple[float, float]:
    at_minus_two = 1 / (1 + math.exp(2))
    low = math.log((math.e**2 + 2) * at_minus_two / 2) / math.log(eps)
    return low, math.log(0.5) / math.log(eps)


def sides(
    scores: torch.Tensor, positive: torch.Tensor, k: int, tau: float, eps: float
) -> tuple[float, float]:
    """-log Precision@K, the step being ε below the threshold; and the bound by the full form."""
    beta = scores.sort(descending=True).values[k - 1]
    step = torch.where(scores >= beta, 1.0, eps)
    left = -torch.log(step[positive].sum() / step.sum()).item()
    pos, neg = scores[positive], scores[~positive]
    rows = len(pos)
    full = Talos(tau=tau, form="full")(
        pos,
        neg.expand(rows, -1),
        threshold=beta.expand(rows),
        users=torch.zeros(rows, dtype=torch.long),
    )
    return left, full[0].item() + math.log(1 + math.e**2 / 2) / tau


@st.composite
def problems(draw):
    items = draw(st.integers(4, 40))
    cosine = st.floats(-1, 1, allow_nan=False, width=32)
    scores = draw(st.lists(cosine, min_size=items, max_size=items, unique=True))
    positive = draw(
        st.lists(st.booleans(), min_size=items, max_size=items).filter(lambda x: 0 < sum(x) < items)
    )
    k = draw(st.integers(1, items))
    eps = 10 ** draw(st.floats(-12, -0.5))
    return torch.tensor(scores, dtype=torch.float64), torch.tensor(positive), k, eps


@given(problems(), st.floats(0, 1))
def test_holds_inside_the_interval(problem, where):
    scores, positive, k, eps = problem
    low, high = interval(eps)
    left, right = sides(scores, positive, k, low + where * (high - low), eps)
    assert left <= right + 1e-9


@given(st.floats(-2, 2), st.floats(-12, -0.5), st.floats(0, 1))
def test_holds_term_by_term(x, exponent, where):
    """σ(x)^(1/τ) ≤ step(x) ≤ ((1 + e²/2)·σ(x))^(1/τ) on [-2, 2]."""
    eps = 10**exponent
    low, high = interval(eps)
    tau = low + where * (high - low)
    log_step = 0.0 if x >= 0 else math.log(eps)
    log_phi = -math.log1p(math.exp(-x)) / tau
    assert log_phi <= log_step + 1e-9
    assert log_step <= log_phi + math.log(1 + math.e**2 / 2) / tau + 1e-9


def test_fails_above_the_interval():
    """The search that finds nothing inside finds counterexamples with τ too large."""
    eps, found = 1e-8, 0
    rng = torch.Generator().manual_seed(0)
    for _ in range(50):
        scores = torch.rand(20, generator=rng, dtype=torch.float64) * 2 - 1
        positive = scores < scores.median()
        left, right = sides(scores, positive, 1, 8 * interval(eps)[1], eps)
        found += left > right
    assert found > 25


def test_fails_below_the_interval_for_a_term():
    eps = 1e-8
    tau = interval(eps)[0] / 2
    log_phi = -math.log1p(math.exp(2)) / tau  # at x = -2
    assert math.log(eps) > log_phi + math.log(1 + math.e**2 / 2) / tau
