"""Theorem 3 and score inflation: descent with the threshold detached, with and without the denominator."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from talos.losses import Talos

USERS, ITEMS, DIM, K = 40, 60, 8, 5


@pytest.fixture(scope="module")
def liked() -> torch.Tensor:
    """Four groups of users, each with a taste for its own quarter of the items, and some noise."""
    rng = torch.Generator().manual_seed(0)
    same = (torch.arange(USERS)[:, None] % 4) == (torch.arange(ITEMS)[None] % 4)
    return torch.rand(USERS, ITEMS, generator=rng) < torch.where(same, 0.4, 0.03)


def descend(liked, loss, steps, lr):
    """Plain descent on vectors, β the exact K-th score of the moment; yields what is watched."""
    rng = torch.Generator().manual_seed(1)
    users = torch.randn(USERS, DIM, generator=rng, dtype=torch.float64).requires_grad_()
    items = torch.randn(ITEMS, DIM, generator=rng, dtype=torch.float64).requires_grad_()
    owner, positive = liked.nonzero().T
    mask = liked[owner]
    watched = []
    for _ in range(steps):
        scores = F.normalize(users, dim=-1) @ F.normalize(items, dim=-1).T
        beta = scores.detach().topk(K).values[:, -1]
        value = loss(scores[owner, positive], scores[owner], threshold=beta[owner], mask=mask).mean()
        gradients = torch.autograd.grad(value, (users, items))
        squared = sum(g.square().sum().item() for g in gradients)
        watched.append(
            (squared, scores[liked].mean().item(), scores[~liked].mean().item(), beta.mean().item())
        )
        with torch.no_grad():
            for x, g in zip((users, items), gradients, strict=True):
                x -= lr * g
    return torch.tensor(watched)


def test_running_mean_of_the_squared_gradient_falls_like_one_over_t(liked):
    watched = descend(liked, Talos(tau=0.2), 800, lr=5.0)
    mean = watched[:, 0].cumsum(0) / torch.arange(1, 801)
    for t in (100, 200):
        ratio = (mean[4 * t - 1] / mean[t - 1]).item()
        assert ratio < 0.35, t  # 1/T would give a quarter, no convergence about one


def test_without_the_denominator_all_scores_rise_together(liked):
    watched = descend(liked, Talos(tau=0.2, denominator=False, k=K), 400, lr=20.0)
    rise = watched[-1] - watched[0]
    assert rise[1] > 0.3
    assert rise[2] > 0.3, "negatives"
    assert rise[3] > 0.2, "thresholds"


def test_with_it_only_the_positives_rise(liked):
    watched = descend(liked, Talos(tau=0.2), 400, lr=2.0)
    rise = watched[-1] - watched[0]
    assert rise[1] > 0.3
    assert rise[2] < 0.05
