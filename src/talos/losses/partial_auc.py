"""LLPAUC: the lower-left part of the area under the ROC curve, as a saddle-point problem in seven scalars."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from talos.checks import one_of, positive_number
from talos.losses import functional
from talos.losses.base import Adversary, Needs, UserSeparableLoss
from talos.losses.phi import PartialAUC, Phi

__all__ = ["LLPAUC"]

_SHARPNESS = 5.0


class LLPAUC(UserSeparableLoss):
    """Lower-left partial AUC: the best α of the positives against the hardest β of the negatives.

    With p = σ(s_ui), q = σ(s_uj), h(x) = log(1 + e^{5x})/5:

        -s_p - h(-(p-a)² + 2(1+γ)p - s_p)/α + s_n + mean_j h((q-b)² + 2(1+γ)q - s_n)/β
             - γ² + θ_a(a+γ) - θ_b(b-1-γ)

    Derivation. The squared surrogate of AUC separates into positives and negatives:

        E(1 - p + q)² = 1 + min_{a,b} max_γ  E[(p-a)² - 2(1+γ)p] + E[(q-b)² + 2(1+γ)q] - γ²

    (at a = E p, b = E q, γ = b - a). To keep only the best α of the positives is to average the *smallest*
    α of x_i = (p-a)² - 2(1+γ)p, which is max_s { -s - E(-x-s)+/α }: s_p climbs. To keep only the hardest β
    of the negatives is to average the *largest* β of y_j = (q-b)² + 2(1+γ)q, which is
    min_s { s + E(y-s)+/β }: s_n descends. h smooths (·)+.

    "Best score" and "smallest x", "largest y" are the same selection only if x falls and y rises with the
    score, on all of [0, 1]: x' = 2(p-a-1-γ) ≤ 0 at p = 1 gives a + γ ≥ 0, and y' = 2(q-b+1+γ) ≥ 0 at
    q = 0 gives 1 + γ - b ≥ 0. Both bind γ, the variable that *climbs*. The Lagrangian of
    max_γ F(γ) subject to g(γ) ≥ 0 is max_γ min_{θ≥0} F + θg, so the multipliers *descend* together with the
    model: θ falls to 0 while the constraint holds and rises while it is violated. If θ climbed, it would grow
    without bound just where the constraint holds. `adversaries()` therefore minimises over them, although other
    sources use the opposite sign.

    Wentao Shi et al., "Lower-Left Partial AUC: An Effective and Efficient Optimization Metric for
    Recommendation", WWW 2024.

    Args:
        alpha: fraction α of the positives, in (0, 1].
        beta: fraction β of the negatives, in (0, 1]. (Not a threshold: this loss has none.)
        scores: `cosine`, as in the comparison of Talos, or `dot`, as its authors do, who start from small vectors.

    >>> loss = LLPAUC(alpha=0.5, beta=0.1)
    >>> loss(torch.tensor([0.5]), torch.tensor([[0.1, -0.3]])).shape
    torch.Size([1])
    >>> [(one.direction, one.parameters) for one in loss.adversaries()]
    [('descend', ('a', 'b', 'theta_a', 'theta_b')), ('descend', ('s_n',)), ('climb', ('gamma', 's_p'))]
    """

    short_name = "llpauc"
    search_space: ClassVar[Mapping[str, Any]] = {
        "alpha": {"low": 0.1, "high": 0.9},
        "beta": {"low": 0.01, "high": 0.9, "log": True},
    }

    def __init__(
        self, *, alpha: float = 0.5, beta: float = 0.1, scores: Literal["cosine", "dot"] = "cosine"
    ) -> None:
        super().__init__()
        self.scores = one_of("scores", scores, ["cosine", "dot"])
        self.needs = Needs(user_separable=True, adversary=True, scores=scores)
        self.alpha = positive_number("alpha", alpha, at_most=1.0)
        self.beta = positive_number("beta", beta, at_most=1.0)
        self.a = nn.Parameter(torch.tensor(1.0))
        self.b = nn.Parameter(torch.tensor(0.0))
        self.gamma = nn.Parameter(torch.tensor(0.0))
        self.s_p = nn.Parameter(torch.tensor(0.5))
        self.s_n = nn.Parameter(torch.tensor(0.5))
        self.theta_a = nn.Parameter(torch.tensor(0.5))
        self.theta_b = nn.Parameter(torch.tensor(0.5))

    def adversaries(self) -> list[Adversary]:
        """Three sets of parameters, updated in every step of the model; γ, s_p and s_n at twice its learning rate."""
        unit, multiplier = (0.0, 1.0), (0.0, math.inf)
        return [
            Adversary(
                parameters=("a", "b", "theta_a", "theta_b"),
                direction="descend",
                clamps={"a": unit, "b": unit, "theta_a": multiplier, "theta_b": multiplier},
            ),
            Adversary(
                parameters=("s_n",), direction="descend", lr_multiplier=2.0, clamps={"s_n": (0.0, 5.0)}
            ),
            Adversary(
                parameters=("gamma", "s_p"),
                direction="climb",
                lr_multiplier=2.0,
                clamps={"gamma": (-1.0, 1.0), "s_p": (-1.0, 4.0)},
            ),
        ]

    @property
    def phi(self) -> Phi:
        """R = mean_j h((q-b)² + 2(1+γ)q - s_n)/β."""
        return PartialAUC(self.b, self.gamma, self.s_n, self.beta, _SHARPNESS)

    def positive_part(self, pos: Tensor, beta: Tensor | None) -> tuple[Tensor, Tensor]:
        """The pair a = everything but the mean over negatives, c = 1."""
        p = torch.sigmoid(pos)
        excess = -(p - self.a).square() + 2 * (1 + self.gamma) * p - self.s_p
        kept = functional.sharp_softplus(excess, _SHARPNESS) / self.alpha
        constraints = self.theta_a * (self.a + self.gamma) - self.theta_b * (self.b - 1 - self.gamma)
        return self.s_n - self.s_p - self.gamma.square() + constraints - kept, torch.ones_like(pos)
