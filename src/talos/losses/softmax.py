"""Softmax losses: SL, its variants BSL, PSL and SL@K, and BPR, which has a single negative."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from talos.checks import number_from, one_of, positive_number
from talos.losses.base import TAU_SPACE, Needs, PairwiseLoss, UserSeparableLoss
from talos.losses.phi import (
    AtanPowerPairs,
    Exp,
    LinearPowerPairs,
    PairPhi,
    Phi,
    SigmoidPowerPairs,
    SoftplusPairs,
)

__all__ = ["BPR", "BilateralSoftmax", "PairwiseSoftmax", "Softmax", "SoftmaxAtK"]


class Softmax(UserSeparableLoss):
    """Softmax loss (SL): -s_ui/τ + log Σ_j exp(s_uj/τ).

    The sampled form of the cross-entropy over items, without the positive in the denominator; a surrogate
    for NDCG. Jiancan Wu et al., "On the Effectiveness of Sampled Softmax Loss for Item Recommendation",
    TOIS 2024.

    Args:
        tau: temperature τ > 0.
        user_power: p, see `UserSeparableLoss`; likewise `positive_power` ρ and `negative_weight` λ.

    >>> Softmax(tau=1.0)(torch.tensor([0.0]), torch.tensor([[0.0, 0.0]]))   # log 2
    tensor([0.6931])
    """

    short_name = "sl"
    search_space: ClassVar[Mapping[str, Any]] = {"tau": TAU_SPACE}
    race: ClassVar[tuple[tuple[Mapping[str, float], ...], ...]] = (
        tuple({"tau": tau} for tau in (0.06, 0.09, 0.13, 0.19, 0.28)),
    )

    def __init__(
        self,
        *,
        tau: float = 0.1,
        user_power: float = 1.0,
        positive_power: float = 0.0,
        negative_weight: float = 1.0,
    ) -> None:
        super().__init__(
            user_power=user_power, positive_power=positive_power, negative_weight=negative_weight
        )
        self.tau = positive_number("tau", tau)

    @property
    def phi(self) -> Phi:
        """R = log Σ_j exp(s_j/τ)."""
        return Exp(1 / self.tau)

    def positive_part(self, pos: Tensor, beta: Tensor | None) -> tuple[Tensor, Tensor]:
        """The pair a = -s/τ, c = 1."""
        return -pos / self.tau, torch.ones_like(pos)


class BilateralSoftmax(UserSeparableLoss):
    """Bilateral softmax loss (BSL): -s_ui/τ1 + (τ2/τ1)·log Σ_j exp(s_uj/τ2).

    SL with a temperature for each side; with τ1 = τ2 it is SL. Junkang Wu et al., "BSL: Understanding and
    Improving Softmax Loss for Recommendation", ICDE 2024.

    Args:
        tau1: temperature of the positives.
        tau2: temperature of the negatives.
        user_power: p, see `UserSeparableLoss`; likewise `positive_power` ρ and `negative_weight` λ.

    >>> pos, neg = torch.tensor([0.3]), torch.tensor([[0.1, -0.2]])
    >>> torch.equal(BilateralSoftmax(tau1=0.2, tau2=0.2)(pos, neg), Softmax(tau=0.2)(pos, neg))
    True
    """

    short_name = "bsl"
    search_space: ClassVar[Mapping[str, Any]] = {"tau1": TAU_SPACE, "tau2": TAU_SPACE}

    def __init__(
        self,
        *,
        tau1: float = 0.1,
        tau2: float = 0.1,
        user_power: float = 1.0,
        positive_power: float = 0.0,
        negative_weight: float = 1.0,
    ) -> None:
        super().__init__(
            user_power=user_power, positive_power=positive_power, negative_weight=negative_weight
        )
        self.tau1, self.tau2 = positive_number("tau1", tau1), positive_number("tau2", tau2)

    @property
    def phi(self) -> Phi:
        """R = (τ2/τ1)·log Σ_j exp(s_j/τ2)."""
        return Exp(1 / self.tau2, scale=self.tau2 / self.tau1)

    def positive_part(self, pos: Tensor, beta: Tensor | None) -> tuple[Tensor, Tensor]:
        """The pair a = -s/τ1, c = 1."""
        return -pos / self.tau1, torch.ones_like(pos)


class SoftmaxAtK(Softmax):
    """SL@K: w · log Σ_j exp((s_uj - s_ui)/τ) with the weight w = σ((s_ui - β_u)/τ_w).

    SL with the positives weighted by whether they are in the top K; a surrogate for NDCG@K. The original
    takes β_u as the K-th largest of a sample (Monte Carlo). Weiqin Yang et al., "Breaking the Top-K Barrier:
    Advancing Top-K Ranking Metrics Optimization in Recommender Systems", KDD 2025.

    Args:
        tau: temperature of the softmax.
        tau_w: temperature of the weight; as it grows, the loss tends to half of SL.
        detach_weight: True makes the weight a constant for the gradient, as in the paper. False lets the gradient
            flow through it, as in the authors' code: a positive's gradient has the further term
            w'·(log Σ_j exp((s_uj - s_ui)/τ) + offset), which pulls it down where the logarithm is large.
        offset: added to log Σ_j. log(m/n) makes a sum over n negatives weigh what one over m of them weighs. It
            changes the gradient only if the weight is not detached.
        user_power: p, see `UserSeparableLoss`; likewise `negative_weight` λ. There is no ρ: positives already have
            weights.

    >>> loss = SoftmaxAtK(tau=1.0, tau_w=1.0)
    >>> loss(torch.tensor([0.0]), torch.tensor([[0.0, 0.0]]), threshold=torch.tensor([0.0]))   # log 2 / 2
    tensor([0.3466])
    """

    short_name = "sl@k"
    needs = Needs(threshold=True, default_threshold="monte-carlo", user_separable=True)
    constant_weight = None
    search_space: ClassVar[Mapping[str, Any]] = {
        "tau": TAU_SPACE,
        "tau_w": {"low": 0.1, "high": 3.0, "log": True},
    }

    def __init__(
        self,
        *,
        tau: float = 0.1,
        tau_w: float = 1.0,
        detach_weight: bool = True,
        offset: float = 0.0,
        user_power: float = 1.0,
        negative_weight: float = 1.0,
    ) -> None:
        super().__init__(tau=tau, user_power=user_power, negative_weight=negative_weight)
        self.tau_w = positive_number("tau_w", tau_w)
        self.detach_weight = detach_weight
        self.offset = number_from("offset", offset)

    def positive_part(self, pos: Tensor, beta: Tensor | None) -> tuple[Tensor, Tensor]:
        """The pair a = w·(offset - s/τ), c = w."""
        s = pos.detach() if self.detach_weight else pos
        weight = torch.sigmoid((s if beta is None else s - beta) / self.tau_w)
        return weight * (self.offset - pos / self.tau), weight


_ACTIVATIONS: Mapping[str, Callable[[float], PairPhi]] = {
    "tanh": SigmoidPowerPairs,
    "atan": AtanPowerPairs,
    "relu": LinearPowerPairs,
}


class PairwiseSoftmax(PairwiseLoss):
    """Pairwise softmax loss (PSL): log Σ_j (1 + act(s_uj - s_ui))^(1/τ).

    SL is log Σ_j exp(d_j)^(1/τ) of the differences d; PSL replaces exp by a function that grows more slowly:
    1 + tanh(d/2) (the default), 1 + arctan(d) or (1 + d)+. Weiqin Yang et al., "PSL: Rethinking and Improving
    Softmax Loss from Pairwise Perspective for Recommendation", NeurIPS 2024.

    Args:
        tau: temperature τ > 0.
        activation: `tanh`, `atan` or `relu`. The last two reach 0 (at d = -1.56 and -1) and are clamped to 1e-8, with
            gradient 0 there: such a negative already ranks far below. Only `tanh` is compiled, so only it is taken over
            all items.
        user_power: p. A user with n positives weighs n^p in the mean: 1 is the published code, 0 a mean over users.

    >>> PairwiseSoftmax(tau=0.5)(torch.tensor([0.2]), torch.tensor([[0.2, 0.2]]))   # log 2
    tensor([0.6931])
    """

    short_name = "psl"
    search_space: ClassVar[Mapping[str, Any]] = {"tau": TAU_SPACE}

    def __init__(
        self,
        *,
        tau: float = 0.1,
        activation: Literal["tanh", "atan", "relu"] = "tanh",
        user_power: float = 1.0,
    ) -> None:
        super().__init__(user_power=user_power)
        self.tau = positive_number("tau", tau)
        self.activation = one_of("activation", activation, list(_ACTIVATIONS))
        self.needs = Needs(pairwise=activation == "tanh")  # the core has no other activation

    @property
    def phi(self) -> PairPhi:
        """R = log Σ_j (1 + act(d_j))^(1/τ)."""
        return _ACTIVATIONS[self.activation](1 / self.tau)


class BPR(PairwiseLoss):
    """Bayesian personalised ranking: -log σ(s_ui - s_uj), one negative or the mean over all, on raw dot products.

    Several negatives are averaged; a row with all of them masked gives 0. The published method draws one negative per
    positive, which is an unbiased estimate of the mean over all items. Steffen Rendle et al., "BPR: Bayesian
    Personalized Ranking from Implicit Feedback", UAI 2009.

    Args:
        user_power: p. A user with n positives weighs n^p in the mean: 1 is the published code, 0 a mean over users.

    >>> BPR()(torch.tensor([1.0]), torch.tensor([[1.0]]))   # log 2
    tensor([0.6931])
    """

    short_name = "bpr"
    needs = Needs(negatives="one", scores="dot", pairwise=True)

    @property
    def phi(self) -> PairPhi:
        """R = mean_j softplus(d_j)."""
        return SoftplusPairs()
