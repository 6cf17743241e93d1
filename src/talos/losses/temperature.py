"""Temperatures: the default for a catalogue, schedules over training, and one temperature per user.

A schedule is any function from the progress in [0, 1] to a positive number. An `AdaptiveTau` computes a temperature
for every row of a batch from the log-probabilities of its negatives.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from talos.checks import positive_number, require

__all__ = ["AdaptiveTau", "DRORadius", "Schedule", "geometric_schedule", "tau_for"]

# A temperature as a function of training progress in [0, 1].
Schedule = Callable[[float], float]


def tau_for(num_items: int | None = None) -> float:
    """The default temperature: 0.1, falling with the cube root of the catalogue beyond 10,000 items, to 0.05.

    The more items there are, the closer the scores around a user's K-th best are, and the sharper the step
    between them has to be. `docs/training.md` has the measurements. A search (`talos tune`) finds better values.

    >>> tau_for(), tau_for(8_692), round(tau_for(20_000), 3), tau_for(1_000_000)
    (0.1, 0.1, 0.079, 0.05)
    """
    return max(0.05, 0.1 * math.cbrt(10_000 / max(num_items or 0, 10_000)))


def geometric_schedule(start: float, end: float) -> Schedule:
    """A temperature that moves from `start` to `end` by equal ratios.

    >>> tau = geometric_schedule(0.4, 0.1)
    >>> [round(tau(progress), 3) for progress in (0.0, 0.5, 1.0)]
    [0.4, 0.2, 0.1]
    """
    ratio = positive_number("end", end) / positive_number("start", start)
    return lambda progress: start * math.pow(ratio, progress)


class AdaptiveTau(ABC):
    """One temperature per row of a batch, a constant for the gradient."""

    @abstractmethod
    def __call__(self, g: Tensor, mask: Tensor | None) -> Tensor:
        """Temperatures (B,) for g = log σ(s_uj - β_u), (B, N); entries marked in `mask` do not count."""


class DRORadius(AdaptiveTau):
    """The temperature at which a user's worst-case distribution of negatives has a given divergence from uniform.

    Talos is distributionally robust optimisation: its worst case is Q*_j ∝ e^{g_j/τ} over the negatives, and
    τ is the multiplier of the constraint KL(Q*‖uniform) ≤ η. With one τ for all users the radius η differs between
    users; here all users share the radius and τ_u solves KL(Q*(τ_u)‖uniform) = η.

    The constrained problem is max_{KL(Q‖uniform) ≤ η} E_Q[g] = min_τ { τ·log E[e^{g/τ}] + τ·η }. At the minimum τ_u
    its gradient in the scores is that of the bracket with τ_u held constant, E_Q*[∂g] (Danskin's theorem). The Talos
    loss at τ_u is 1/τ_u times that bracket, up to constants, so the robust objective is τ_u·L_u; without the factor
    users would weigh 1/τ_u.

    In κ = 1/τ the divergence is κ·E_Q*[g] - log E[e^{κg}], rises from 0 with slope κ·Var_Q*[g], and is
    κ²·Var[g]/2 to second order, which gives the first guess. Newton steps on √KL, which is nearly linear in κ,
    follow; a step that leaves the bracket known so far is replaced by a bisection. If no temperature reaches the
    radius (η above log n, or scores all equal), the result is the nearer bound.

    Args:
        eta: the radius η > 0, in nats.
        bounds: the smallest and the largest temperature, 0.02 and 1 by default.
        steps: evaluations of the divergence; four reach 1e-4 relative on ordinary scores.

    >>> g = torch.nn.functional.logsigmoid(torch.linspace(-1, 1, 100)).unsqueeze(0)
    >>> tau = DRORadius(eta=0.5)(g, None)
    >>> q = torch.softmax(g / tau, dim=-1)
    >>> round((q * (q * 100).log()).sum().item(), 2)
    0.5
    """

    def __init__(self, *, eta: float, bounds: tuple[float, float] = (0.02, 1.0), steps: int = 4) -> None:
        self.eta = positive_number("eta", eta)
        self.bounds = (positive_number("bounds[0]", bounds[0]), positive_number("bounds[1]", bounds[1]))
        require(bounds[0] < bounds[1], f"got {bounds}", where="bounds", expected="the smaller one first")
        self.steps = steps

    @torch.no_grad()
    def __call__(self, g: Tensor, mask: Tensor | None) -> Tensor:
        """Temperatures (B,); see the class."""
        kept = torch.ones_like(g) if mask is None else (~mask).to(g.dtype)
        count = kept.sum(dim=-1).clamp(min=1)
        mean = (g * kept).sum(dim=-1) / count
        variance = ((g - mean.unsqueeze(-1)).square() * kept).sum(dim=-1) / count
        low = torch.full_like(mean, 1 / self.bounds[1])
        high = torch.full_like(mean, 1 / self.bounds[0])
        kappa = (2 * self.eta / variance.clamp(min=1e-12)).sqrt().clamp(low, high)
        for _ in range(self.steps):
            x = kappa.unsqueeze(-1) * g
            if mask is not None:
                x = x.masked_fill(mask, torch.finfo(x.dtype).min)
            q = torch.softmax(x, dim=-1) * kept
            expected = (q * g).sum(dim=-1)
            divergence = kappa * expected - torch.logsumexp(x, dim=-1) + count.log()
            slope = kappa * (q * (g - expected.unsqueeze(-1)).square()).sum(dim=-1)
            low = torch.where(divergence < self.eta, kappa, low)
            high = torch.where(divergence > self.eta, kappa, high)
            root = divergence.clamp(min=1e-12).sqrt()
            guess = kappa + 2 * root * (math.sqrt(self.eta) - root) / slope.clamp(min=1e-12)
            kappa = torch.where((guess >= low) & (guess <= high), guess, (low + high) / 2)
        return 1 / kappa

    def __repr__(self) -> str:
        return f"DRORadius(eta={self.eta}, bounds={self.bounds}, steps={self.steps})"
