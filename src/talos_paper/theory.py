"""The theorems of the paper as numbers that can be plotted: the bound, the worst case, convergence.

1. For τ in an interval, -log Precision@K ≤ L + (1/τ)·log(1 + e²/2), L the full form of Talos (`bound_curve`).
2. The denominator of Talos is a worst case over distributions of negatives within a distance of the uniform one;
   τ determines the distance (`worst_cases`).
3. Gradient descent on the scores with a constant threshold converges: the mean of ‖∇L‖² over T steps decreases
   like 1/T (`convergence`).

Scores are random, from a seed. All losses are computed by `talos.losses`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from talos.checks import require
from talos.losses import Talos
from talos.losses.functional import log_sigmoid, log_sum_sigmoid_power

__all__ = [
    "bound_constant",
    "bound_curve",
    "bound_sides",
    "convergence",
    "made_up_scores",
    "measure",
    "tau_interval",
    "worst_cases",
]


def tau_interval(epsilon: float) -> tuple[float, float]:
    """The temperatures for which the bound is proven: [ log((e² + 2)·σ(-2)/2) / log ε, log(1/2) / log ε ].

    ε stands for 0 in log 0. The ratio of the ends is always 0.84: for each ε there is in effect one temperature, and
    ε ≈ 2^(-1/τ).

    >>> [round(end, 4) for end in tau_interval(1e-3)]
    [0.084, 0.1003]
    """
    require(0 < epsilon < 1, f"{epsilon}", where="epsilon", expected="a number between 0 and 1")
    at_minus_two = 1 / (1 + math.exp(2))
    low = math.log((math.exp(2) + 2) * at_minus_two / 2) / math.log(epsilon)
    return low, math.log(0.5) / math.log(epsilon)


def bound_constant(tau: float) -> float:
    """(1/τ)·log(1 + e²/2), the constant that the bound adds to the loss.

    >>> round(bound_constant(0.1), 3)
    15.464
    """
    require(tau > 0, f"{tau}", where="tau", expected="a number above 0")
    return math.log(1 + math.exp(2) / 2) / tau


def made_up_scores(
    *, users: int, items: int, positives: int, signal: float = 0.5, spread: float = 0.5, seed: int
) -> tuple[Tensor, Tensor]:
    """Scores tanh(x), x normal with this spread and, for positives, this mean; and which items are positives.

    >>> scores, positive = made_up_scores(users=2, items=5, positives=1, seed=0)
    >>> scores.shape, positive.sum(dim=1)
    (torch.Size([2, 5]), tensor([1, 1]))
    """
    require(
        0 < positives < items,
        f"{positives}",
        where="positives",
        expected=f"1 to {items - 1}, fewer than items",
    )
    rng = torch.Generator().manual_seed(seed)
    places = torch.rand(users, items, generator=rng).argsort(dim=1)[:, :positives]
    positive = torch.zeros(users, items, dtype=torch.bool).scatter_(1, places, True)
    noise = torch.randn(users, items, generator=rng, dtype=torch.float64)
    return torch.tanh(spread * noise + signal * positive), positive


def bound_sides(
    scores: Tensor, positive: Tensor, *, k: int, tau: float, epsilon: float
) -> tuple[Tensor, Tensor]:
    """Both sides of the bound for each user, with β the exact K-th best score.

    Returns:
        -log Precision@K, where the step function is 1 from β on and ε below it, and L + (1/τ)·log(1 + e²/2).

    >>> left, right = bound_sides(*made_up_scores(users=3, items=20, positives=4, seed=0), k=5, tau=0.1, epsilon=1e-3)
    >>> bool((left <= right).all())
    True
    """
    beta = _kth(scores, k)
    step = torch.where(scores >= beta[:, None], 1.0, epsilon).double()
    precision = (step * positive).sum(dim=1) / step.sum(dim=1)
    return -precision.log(), _full_loss(scores, positive, beta, tau) + bound_constant(tau)


def bound_curve(
    taus: Sequence[float],
    *,
    epsilon: float = 1e-3,
    users: int = 200,
    items: int = 200,
    positives: int = 10,
    k: int = 20,
    signal: float = 0.5,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Both sides of the bound at several τ, on the same made-up scores.

    Returns:
        For each τ, means over users: `left`, -log Precision@K, which does not depend on τ; `loss`; `constant`, which
        the bound adds to it; `right`, their sum; `gap`, right - left. `inside`: whether the theorem proves the bound
        for this τ. `least_gap`: of any user, negative where the bound is violated. `holds`: the share of users for
        whom it holds.

    >>> inside, above = bound_curve([0.1, 2.0], users=20, signal=-1.0)
    >>> inside["inside"], inside["holds"], above["inside"], above["holds"] < 1
    (True, 1.0, False, True)
    """
    low, high = tau_interval(epsilon)
    data = made_up_scores(users=users, items=items, positives=positives, signal=signal, seed=seed)
    points = []
    for tau in taus:
        left, right = bound_sides(*data, k=k, tau=tau, epsilon=epsilon)
        gap, constant = right - left, bound_constant(tau)
        points.append(
            {
                "tau": tau,
                "inside": low <= tau <= high,
                "left": left.mean().item(),
                "loss": right.mean().item() - constant,
                "constant": constant,
                "right": right.mean().item(),
                "gap": gap.mean().item(),
                "least_gap": gap.min().item(),
                "holds": (gap >= -1e-9).double().mean().item(),
            }
        )
    return points


def worst_cases(scores: Sequence[float], taus: Sequence[float], *, threshold: float) -> list[dict[str, Any]]:
    """The worst-case distribution of one user's negatives that Talos optimises against, at several temperatures.

    With g_j = log σ(s_j - β) and Q̂ uniform over the n negatives:

        Q*_j ∝ e^{g_j/τ},   η = KL(Q*‖Q̂),   τ·log E_Q̂[e^{g/τ}] = E_Q*[g] - τ·η

    Args:
        scores: scores of the negatives.
        taus: temperatures; the smaller, the more weight the highest scores have.
        threshold: the user's threshold β.

    Returns:
        For each τ: `weights`, Q* in the order of the scores; `eta`, the radius in nats, between 0 (uniform) and log n
        (one item); `worst`, E_Q*[g], the largest expectation of g within the radius; `robust`, the left-hand side,
        from the denominator of the loss.

    >>> sharp, flat = worst_cases([-0.5, 0.0, 0.5], [0.1, 1.0], threshold=0.3)
    >>> round(sharp["weights"][2], 2), round(flat["weights"][2], 2), sharp["eta"] > flat["eta"]
    (0.93, 0.43, True)
    """
    require(len(scores) > 0, "is empty", where="scores", expected="at least one negative")
    s = torch.as_tensor(scores, dtype=torch.float64)
    beta = torch.tensor([[threshold]], dtype=torch.float64)
    g = log_sigmoid(s - threshold)
    found = []
    for tau in taus:
        require(tau > 0, f"{tau}", where="taus", expected="numbers above 0")
        total = log_sum_sigmoid_power(s[None], beta, power=1 / tau).squeeze(0)
        weights = torch.exp(g / tau - total)
        # log(Q*_j/Q̂_j) is g_j/τ - log E_Q̂[e^{g/τ}] for every j: KL without a logarithm of small weights.
        log_mean = (total - math.log(len(s))).item()
        worst = (weights @ g).item()
        eta = max(0.0, worst / tau - log_mean)
        found.append(
            {"tau": tau, "weights": weights.tolist(), "eta": eta, "worst": worst, "robust": tau * log_mean}
        )
    return found


def convergence(
    *,
    tau: float = 0.2,
    steps: int = 400,
    users: int = 20,
    items: int = 100,
    positives: int = 10,
    k: int = 5,
    seed: int = 0,
) -> dict[str, Any]:
    """Gradient descent on the scores themselves: the full form as loss, β the exact K-th best score at each step.

    The step size is 1/Λ with Λ = 1/τ² + 1/(2τ), which bounds the curvature of the loss in the scores: each of
    its two log-sums has at most 1/(2τ²) from the exponential and 1/(4τ) from log σ. A user must have at least K
    positives; otherwise the K-th best item stays a negative and the loss has no minimum.

    Returns:
        For each step, means over users: `loss` before it; `squared_gradient`, ‖∇L‖² with respect to a user's scores,
        β a constant; `running_mean` of these so far; `allowed`, its upper limit after T steps by the theorem,
        4·L⁽⁰⁾ / ((2α - Λα²)·T). And `tau` and `step_size`, α.

    >>> curve = convergence(steps=50, users=5)
    >>> curve["running_mean"][-1] < curve["allowed"][-1], curve["loss"][-1] < curve["loss"][0]
    (True, True)
    """
    require(tau > 0, f"{tau}", where="tau", expected="a number above 0")
    require(positives >= k, f"{positives}", where="positives", expected=f"K = {k} or more")
    require(steps >= 1, f"{steps}", where="steps", expected="1 or more")
    start, positive = made_up_scores(users=users, items=items, positives=positives, seed=seed)
    scores = start.clone().requires_grad_()
    curvature = 1 / tau**2 + 1 / (2 * tau)
    step_size = 1 / curvature
    losses, squares = [], []
    for _ in range(steps):
        loss = _full_loss(scores, positive, _kth(scores.detach(), k), tau)
        # Users share no scores, so the gradient of the sum holds the gradient of each user's own loss.
        (gradient,) = torch.autograd.grad(loss.sum(), scores)
        losses.append(loss.mean().item())
        squares.append(gradient.square().sum(dim=1).mean().item())
        with torch.no_grad():
            scores -= step_size * gradient
    counted = torch.arange(1, steps + 1, dtype=torch.float64)
    allowed = 4 * losses[0] / ((2 * step_size - curvature * step_size**2) * counted)
    return {
        "tau": tau,
        "step_size": step_size,
        "loss": losses,
        "squared_gradient": squares,
        "running_mean": (torch.tensor(squares, dtype=torch.float64).cumsum(0) / counted).tolist(),
        "allowed": allowed.tolist(),
    }


def _kth(scores: Tensor, k: int) -> Tensor:
    require(
        1 <= k <= scores.shape[1], f"{k}", where="k", expected=f"1 to {scores.shape[1]}, the number of items"
    )
    return scores.topk(k, dim=1).values[:, -1]


def _full_loss(scores: Tensor, positive: Tensor, beta: Tensor, tau: float) -> Tensor:
    """The full form of Talos over all items, (users,), differentiable in the scores."""
    owner, place = positive.nonzero(as_tuple=True)
    values: Tensor = Talos(tau=tau, form="full")(
        scores[owner, place],
        scores[owner],
        threshold=beta[owner],
        mask=positive[owner],
        users=owner,
    )
    # Every row of a user has that user's loss; take the first.
    return values[torch.searchsorted(owner, torch.arange(len(scores)))]


def measure() -> dict[str, Any]:
    """All of the above as plain values to plot, on made-up scores from fixed seeds."""
    negatives = torch.linspace(-1, 1, 21, dtype=torch.float64).tolist()
    descent = convergence()
    every = len(descent["loss"]) // 40
    shown = {name: descent[name][::every] for name in ("running_mean", "allowed", "loss")}
    intervals = [(epsilon, *tau_interval(epsilon)) for epsilon in (1e-1, 1e-2, 1e-3, 1e-4, 1e-6, 1e-8)]
    return {
        "epsilon": 1e-3,
        "intervals": [{"epsilon": epsilon, "low": low, "high": high} for epsilon, low, high in intervals],
        "bound": bound_curve(
            [0.05, 0.06, 0.07, 0.08, 0.085, 0.09, 0.095, 0.1, 0.11, 0.12, 0.15, 0.2, 0.3, 0.5, 1.0]
        ),
        "negatives": [round(value, 3) for value in negatives],
        "threshold": 0.5,
        "worst": worst_cases(negatives, (0.05, 0.1, 0.2, 0.5), threshold=0.5),
        "convergence": {
            "tau": descent["tau"],
            "steps": list(range(1, len(descent["loss"]) + 1, every)),
            **shown,
        },
    }
