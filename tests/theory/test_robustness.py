"""Theorem 2: the denominator of Talos is a worst case over distributions near the uniform one."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from talos import losses
from talos.losses.functional import log_sum_sigmoid_power


def divergence(q: torch.Tensor) -> torch.Tensor:
    return (q * torch.log(q.clamp(min=1e-300) * len(q))).sum()


def problem(seed: int, n: int = 12) -> tuple[torch.Tensor, float]:
    rng = torch.Generator().manual_seed(seed)
    scores = torch.rand(n, generator=rng, dtype=torch.float64) * 2 - 1
    return scores, torch.rand(1, generator=rng, dtype=torch.float64).item() / 2


def robust_value(scores: torch.Tensor, beta: float, tau: float) -> float:
    """τ·log E[e^{g/τ}], from the library's denominator."""
    total = log_sum_sigmoid_power(scores[None], torch.tensor([[beta]], dtype=torch.float64), power=1 / tau)
    return tau * (total.item() - math.log(len(scores)))


@pytest.mark.parametrize("tau", [0.05, 0.2, 1.0])
def test_a_numerical_maximiser_agrees(tau):
    """Ascent over the simplex, knowing nothing of the closed form, finds its value and its maximiser."""
    scores, beta = problem(3)
    g = F.logsigmoid(scores - beta)
    logits = torch.zeros(len(g), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [logits], max_iter=500, tolerance_grad=1e-12, tolerance_change=1e-16, line_search_fn="strong_wolfe"
    )

    def cost() -> torch.Tensor:
        optimizer.zero_grad()
        q = torch.softmax(logits, dim=0)
        value = tau * divergence(q) - q @ g
        value.backward()
        return value

    found = -optimizer.step(cost).item()
    found = max(found, -cost().item())
    assert found == pytest.approx(robust_value(scores, beta, tau), abs=2e-6)
    worst = torch.softmax(g / tau, dim=0)
    torch.testing.assert_close(torch.softmax(logits, dim=0).detach(), worst, rtol=1e-3, atol=1e-5)


@given(st.integers(0, 10**6), st.floats(0.03, 2.0), st.floats(0.1, 5.0))
def test_no_distribution_does_better(seed, tau, spread):
    scores, beta = problem(seed)
    g = F.logsigmoid(scores - beta)
    rng = torch.Generator().manual_seed(seed + 1)
    q = torch.softmax(spread * torch.randn(len(g), generator=rng, dtype=torch.float64), dim=0)
    assert (q @ g - tau * divergence(q)).item() <= robust_value(scores, beta, tau) + 1e-10
    # And the maximiser also wins among all as near as itself.
    worst = torch.softmax(g / tau, dim=0)
    radius = divergence(worst)
    uniform = torch.full_like(q, 1 / len(q))
    while divergence(q) > radius:
        q = 0.9 * q + 0.1 * uniform
    assert (q @ g).item() <= (worst @ g).item() + 1e-10


def test_a_wrong_temperature_is_noticed():
    scores, beta = problem(3)
    g = F.logsigmoid(scores - beta)
    worst = torch.softmax(g / 0.2, dim=0)
    at_02 = (worst @ g - 0.2 * divergence(worst)).item()
    assert at_02 == pytest.approx(robust_value(scores, beta, 0.2), abs=1e-12)
    assert at_02 != pytest.approx(robust_value(scores, beta, 0.25), abs=1e-3)


def test_the_gradient_is_the_worst_case_average():
    """By Danskin's theorem: ∂/∂s of τ·log E[e^{g/τ}] is Q*_j · g'(s_j)."""
    scores, beta = problem(5)
    scores.requires_grad_()
    total = log_sum_sigmoid_power(scores[None], torch.tensor([[beta]], dtype=torch.float64), power=5.0) / 5
    (gradient,) = torch.autograd.grad(total.sum(), scores)
    worst = torch.softmax(5 * F.logsigmoid(scores - beta), dim=0)
    torch.testing.assert_close(gradient, worst * torch.sigmoid(beta - scores))


@pytest.mark.parametrize("eta", [0.1, 0.4, 0.9])
def test_an_adaptive_temperature_has_the_gradient_of_the_constrained_problem(eta: float) -> None:
    """max over KL(Q‖uniform) ≤ η of E_Q[g], solved numerically; its gradient is Q*·∂g by Danskin's theorem."""
    optimize = pytest.importorskip("scipy.optimize")
    scores = torch.tensor([[0.9, 0.4, 0.1, -0.2, -0.5, -0.9], [0.35, 0.3, 0.2, 0.1, 0.0, -0.1]]).double()
    pos, beta = torch.tensor([0.6, 0.2]).double(), torch.tensor([0.3, 0.1]).double()
    neg = scores.clone().requires_grad_()
    above = pos.clone().requires_grad_()
    loss = losses.Talos(tau=losses.DRORadius(eta=eta, bounds=(1e-3, 10.0), steps=30))
    loss(above, neg, threshold=beta).sum().backward()
    for row in range(2):
        g = F.logsigmoid(scores[row] - beta[row]).numpy()
        n = len(g)

        found = optimize.minimize(
            lambda q, g=g: -float(q @ g),
            np.full(n, 1 / n) + 1e-3 * (np.arange(n) == 0),
            jac=lambda q, g=g: -g,
            bounds=[(1e-9, 1)] * n,
            constraints=[
                {"type": "eq", "fun": lambda q: q.sum() - 1},
                {"type": "ineq", "fun": lambda q: eta - divergence(torch.from_numpy(q)).item()},
            ],
            options={"ftol": 1e-14, "maxiter": 500},
        )
        worst = torch.from_numpy(found.x)
        slope = torch.sigmoid(beta[row] - scores[row])
        torch.testing.assert_close(neg.grad[row], worst * slope, rtol=2e-3, atol=2e-4)
    torch.testing.assert_close(above.grad, -torch.sigmoid(beta - pos))
