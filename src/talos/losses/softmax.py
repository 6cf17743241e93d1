"""Softmax losses: SL, its variants BSL, PSL and SL@K, and BPR, which has a single negative."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from talos.checks import one_of, positive_number
from talos.losses import functional
from talos.losses.base import TAU_SPACE, Batch, Loss, Needs, UserSeparableLoss
from talos.losses.parts import ExpPart, NegativePart

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
        super().__init__()
        self.tau = positive_number("tau", tau)
        self._set_balance(
            user_power=user_power, positive_power=positive_power, negative_weight=negative_weight
        )

    @property
    def negative_part(self) -> NegativePart:
        """R = log Σ_j exp(s_j/τ)."""
        return ExpPart(self.tau)

    def positive_part(self, pos: Tensor, threshold: Tensor | None) -> tuple[Tensor, Tensor]:
        """The pair a = -s/τ, c = 1."""
        return -pos / self.tau, torch.ones_like(pos)

    def da(self, pos: Tensor, threshold: Tensor | None) -> Tensor:
        """-1/τ."""
        return torch.full_like(pos, -1 / self.tau)


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
        super().__init__()
        self._set_balance(
            user_power=user_power, positive_power=positive_power, negative_weight=negative_weight
        )
        self.tau1, self.tau2 = positive_number("tau1", tau1), positive_number("tau2", tau2)

    @property
    def negative_part(self) -> NegativePart:
        """(τ2/τ1)·log Σ_j exp(s_j/τ2)."""
        return ExpPart(self.tau2, scale=self.tau2 / self.tau1)

    def positive_part(self, pos: Tensor, threshold: Tensor | None) -> tuple[Tensor, Tensor]:
        """The pair a = -s/τ1, c = 1."""
        return -pos / self.tau1, torch.ones_like(pos)

    def da(self, pos: Tensor, threshold: Tensor | None) -> Tensor:
        """-1/τ1."""
        return torch.full_like(pos, -1 / self.tau1)


class SoftmaxAtK(Softmax):
    """SL@K: σ((s_ui - β_u)/τ_w) · log Σ_j exp((s_uj - s_ui)/τ), the weight a constant for the gradient.

    SL with the positives weighted by whether they are in the top K; a surrogate for NDCG@K. The original
    takes β_u as the K-th largest of a sample (Monte Carlo). Weiqin Yang et al., "Breaking the Top-K Barrier:
    Advancing Top-K Ranking Metrics Optimization in Recommender Systems", KDD 2025.

    Args:
        tau: temperature of the softmax.
        tau_w: temperature of the weight; as it grows, the loss tends to half of SL.
        detach_weight: False lets the gradient flow through the weight, as in the authors' code. A positive's gradient
            then depends on its own negatives' sum, so the loss pairs each positive with its negatives; and where that
            sum is large, a higher score of the positive raises the loss.
        user_power: p, see `UserSeparableLoss`; likewise `negative_weight` λ. The weight of a positive is what the power
            mean over positives would be for, so there is no ρ here.

    >>> loss = SoftmaxAtK(tau=1.0, tau_w=1.0)
    >>> loss(torch.tensor([0.0]), torch.tensor([[0.0, 0.0]]), threshold=torch.tensor([0.0]))   # log 2 / 2
    tensor([0.3466])
    """

    short_name = "sl@k"
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
        user_power: float = 1.0,
        negative_weight: float = 1.0,
    ) -> None:
        super().__init__(tau=tau, user_power=user_power, negative_weight=negative_weight)
        self.tau_w = positive_number("tau_w", tau_w)
        self.detach_weight = detach_weight

    @property
    def needs(self) -> Needs:
        """A threshold, by Monte Carlo as published; separable with a detached weight."""
        return Needs(threshold=True, default_threshold="monte-carlo", user_separable=self.detach_weight)

    def _weight(self, pos: Tensor, threshold: Tensor | None) -> Tensor:
        pos = pos.detach() if self.detach_weight else pos
        return torch.sigmoid((pos if threshold is None else pos - threshold) / self.tau_w)

    def positive_part(self, pos: Tensor, threshold: Tensor | None) -> tuple[Tensor, Tensor]:
        """The pair a = -w·s/τ, c = w."""
        weight = self._weight(pos, threshold)
        return -weight * pos / self.tau, weight

    def da(self, pos: Tensor, threshold: Tensor | None) -> Tensor:
        """-w/τ."""
        return -self._weight(pos, threshold) / self.tau


class PairwiseSoftmax(Loss):
    """Pairwise softmax loss (PSL): log Σ_j (1 + act(s_uj - s_ui))^(1/τ).

    SL is log Σ_j exp(d_j)^(1/τ) of the differences d; PSL replaces exp by a function that grows more slowly:
    1 + tanh(d/2) (the default), 1 + arctan(d) or (1 + d)+. Weiqin Yang et al., "PSL: Rethinking and Improving
    Softmax Loss from Pairwise Perspective for Recommendation", NeurIPS 2024.

    Args:
        tau: temperature τ > 0.
        activation: `tanh`, `atan` or `relu`. The last two reach 0 (at d = -1.56 and -1) and are clamped to 1e-8, with
            gradient 0 there: such a negative already ranks far below.

    >>> PairwiseSoftmax(tau=0.5)(torch.tensor([0.2]), torch.tensor([[0.2, 0.2]]))   # log 2
    tensor([0.6931])
    """

    short_name = "psl"
    search_space: ClassVar[Mapping[str, Any]] = {"tau": TAU_SPACE}

    def __init__(self, *, tau: float = 0.1, activation: Literal["tanh", "atan", "relu"] = "tanh") -> None:
        super().__init__()
        self.tau = positive_number("tau", tau)
        self.activation = one_of("activation", activation, ["tanh", "atan", "relu"])

    def compute(self, batch: Batch) -> Tensor:
        """The loss log Σ_j (1 + act(d_j))^(1/τ)."""
        d = batch.neg - batch.pos.unsqueeze(-1)
        if self.activation == "tanh":  # 1 + tanh(d/2) = 2σ(d), so the logarithm is exact for every d
            log_phi = functional.log_sigmoid(d) + d.new_tensor(2.0).log().item()
        else:
            log_phi = torch.log((1 + (d if self.activation == "relu" else torch.atan(d))).clamp(min=1e-8))
        return functional.masked_log_sum_exp(log_phi / self.tau, batch.mask)


class BPR(Loss):
    """Bayesian personalised ranking: -log σ(s_ui - s_uj), one negative, on raw dot products.

    Several negatives are averaged; a row with all of them masked gives 0. Steffen Rendle et al., "BPR:
    Bayesian Personalized Ranking from Implicit Feedback", UAI 2009.

    >>> BPR()(torch.tensor([1.0]), torch.tensor([[1.0]]))   # log 2
    tensor([0.6931])
    """

    short_name = "bpr"

    @property
    def needs(self) -> Needs:
        """One negative, raw dot products."""
        return Needs(negatives="one", scores="dot")

    def compute(self, batch: Batch) -> Tensor:
        """mean_j softplus(s_j - s_i)."""
        return functional.masked_mean(
            F.softplus(batch.neg - batch.pos.unsqueeze(-1), threshold=40.0), batch.mask
        )
