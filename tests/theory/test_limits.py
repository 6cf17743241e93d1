"""Where one loss turns into another, or into what it stands for."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from talos import losses
from talos.losses.functional import smooth_indicators
from talos.losses.phi import SigmoidRankPairs


def draw(seed: int, rows: int = 5, columns: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    make = lambda *shape: torch.rand(*shape, generator=rng, dtype=torch.float64) * 2 - 1  # noqa: E731
    return make(rows), make(rows, columns)


@given(st.integers(0, 10**6), st.floats(0.05, 1.0))
def test_talos_with_a_high_threshold_is_sl(seed, tau):
    pos, neg = draw(seed)
    want = losses.Softmax(tau=tau)(pos, neg)
    gaps = [
        (losses.Talos(tau=tau)(pos, neg, threshold=torch.full_like(pos, beta)) - want).abs().max().item()
        for beta in (5.0, 10.0, 25.0)
    ]
    assert gaps[2] < 1e-7
    assert gaps[0] > gaps[1] > gaps[2]


@given(st.integers(0, 10**6))
def test_talos_with_a_low_threshold_has_no_gradient_left(seed):
    pos, neg = (x.requires_grad_() for x in draw(seed))
    sizes = []
    for beta in (0.0, -10.0, -30.0):
        value = losses.Talos(tau=0.1)(pos, neg, threshold=torch.full_like(pos, beta))
        sizes.append(sum(g.abs().sum().item() for g in torch.autograd.grad(value.sum(), (pos, neg))))
    assert sizes[2] < 1e-9
    assert sizes[0] > 1
    assert sizes[0] > sizes[1] > sizes[2]


@given(st.integers(0, 10**6), st.floats(0.05, 1.0))
def test_bsl_with_equal_temperatures_is_sl(seed, tau):
    pos, neg = draw(seed)
    got = losses.BilateralSoftmax(tau1=tau, tau2=tau)(pos, neg)
    torch.testing.assert_close(got, losses.Softmax(tau=tau)(pos, neg))
    other = losses.BilateralSoftmax(tau1=tau, tau2=2 * tau)(pos, neg)
    assert not torch.allclose(got, other, rtol=1e-3)


@given(st.integers(0, 10**6))
def test_slk_with_a_flat_weight_is_half_of_sl(seed):
    pos, neg = draw(seed)
    beta = torch.zeros_like(pos)
    half = losses.Softmax(tau=0.1)(pos, neg) / 2
    flat = losses.SoftmaxAtK(tau=0.1, tau_w=1e9)(pos, neg, threshold=beta)
    torch.testing.assert_close(flat, half, rtol=1e-7, atol=1e-7)
    sharp = losses.SoftmaxAtK(tau=0.1, tau_w=0.1)(pos, neg, threshold=beta)
    assert not torch.allclose(sharp, half, rtol=1e-2)


@given(st.integers(0, 10**6))
def test_soft_rank_tends_to_the_rank(seed):
    pos, neg = draw(seed)
    rank = 1 + (neg > pos[:, None]).sum(dim=1)
    soft_rank = 1 + SigmoidRankPairs(1e7, 1.0, 1.0).aggregate(neg - pos[:, None], None)
    torch.testing.assert_close(soft_rank, rank.double(), rtol=0, atol=0.01)


@given(st.integers(0, 10**6), st.integers(1, 5))
def test_smooth_indicators_tend_to_the_indicators(seed, k):
    pos, neg = draw(seed)
    scores = torch.cat([pos[:, None], neg], dim=1)
    rank = (neg > pos[:, None]).sum(dim=1)
    want = F.one_hot(rank, 13)[:, :k].double()
    rows = torch.arange(len(scores))
    got = smooth_indicators(scores, rows, torch.zeros_like(rows), k=k, tau=1e-6, delta=0.1)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-3)
    value = losses.SmoothI(k=k, tau=1e-6, delta=0.1)(pos, neg)
    torch.testing.assert_close(value, 1 - (rank < k).double() / k, rtol=0, atol=1e-3)


def saddle(pos: torch.Tensor, neg: torch.Tensor) -> losses.LLPAUC:
    """LLPAUC(1, 1) at the saddle point that its derivation gives, the hinges wide open."""
    loss = losses.LLPAUC(alpha=1.0, beta=1.0).double()
    a, b = torch.sigmoid(pos).mean().item(), torch.sigmoid(neg).mean().item()
    at = {"a": a, "b": b, "gamma": b - a, "s_p": -1.0, "s_n": -1.0, "theta_a": 0.0, "theta_b": 0.0}
    with torch.no_grad():
        for name, parameter in loss.named_parameters():
            parameter.fill_(at[name])
    return loss


def auc(pos: torch.Tensor, neg: torch.Tensor) -> float:
    return (pos[:, None] > neg[None]).double().mean().item()


@given(st.integers(0, 10**6))
def test_llpauc_of_everything_is_the_squared_surrogate_of_auc(seed):
    rng = torch.Generator().manual_seed(seed)
    pos, neg = (torch.randn(30, generator=rng, dtype=torch.float64) * 2 for _ in range(2))
    value = saddle(pos, neg)(pos, neg.expand(30, -1)).mean().item()
    surrogate = (1 - torch.sigmoid(pos)[:, None] + torch.sigmoid(neg)[None]).square().mean().item()
    assert value == pytest.approx(surrogate - 1, abs=0.02)  # 0.02: softplus for (·)+


def test_llpauc_orders_models_as_auc_does():
    rng = torch.Generator().manual_seed(0)
    models = []
    for shift in (-1.0, -0.5, 0.0, 0.5, 1.0, 2.0):
        pos = torch.randn(400, generator=rng, dtype=torch.float64) + shift
        neg = torch.randn(400, generator=rng, dtype=torch.float64)
        models.append((auc(pos, neg), saddle(pos, neg)(pos, neg.expand(400, -1)).mean().item()))
    by_auc = sorted(models, key=lambda model: -model[0])
    assert by_auc == sorted(models, key=lambda model: model[1])


@given(st.integers(0, 10**6), st.floats(0.05, 0.5))
def test_closed_form_gradient_of_talos(seed, tau):
    """∂L/∂s_j = 1/τ · w_j/Z · σ(β - s_j) and ∂L/∂s_i = -1/τ · σ(β - s_i), to 1e-10."""
    pos, neg = (x.requires_grad_() for x in draw(seed))
    beta = torch.full_like(pos, 0.3)
    value = losses.Talos(tau=tau)(pos, neg, threshold=beta)
    dpos, dneg = torch.autograd.grad(value.sum(), (pos, neg))
    w = torch.sigmoid(neg - 0.3) ** (1 / tau)
    torch.testing.assert_close(dpos, -torch.sigmoid(0.3 - pos) / tau, rtol=1e-10, atol=1e-12)
    want = w / w.sum(dim=1, keepdim=True) * torch.sigmoid(0.3 - neg) / tau
    torch.testing.assert_close(dneg, want, rtol=1e-10, atol=1e-12)
    assert math.isfinite(value.sum().item())
