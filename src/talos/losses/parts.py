"""The negative parts of the user-separable losses: what each negative adds, and how the sum is used.

Every part is a function of one score and the user's threshold, with its derivative in closed form, so that kernels
need no autograd. It is also plain data (`kind`, `reduction`, `params`, `scale`), from which the compiled core selects
its own version of the same function.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from talos.losses import functional

__all__ = [
    "ConstantPart",
    "ExpPart",
    "HingePart",
    "LogSumPart",
    "MeanPart",
    "NegativePart",
    "PartialAUCPart",
    "SigmoidPowerPart",
]


class NegativePart(ABC):
    """R_u as a function of a user's negative scores.

    - `reduction` "log-sum": R = scale · log Σ_j φ(s_j, β), with `log_phi` and `dlog_phi`;
    - `reduction` "mean": R = scale · mean_j φ(s_j, β), with `phi` and `dphi`;
    - `reduction` "constant": R = scale, whatever the scores.

    Thresholds have a shape that broadcasts against the scores; None stands for 0, or where a part uses none.

    >>> ExpPart(tau=0.1).params, ExpPart(tau=0.1).reduction
    ((10.0,), 'log-sum')
    """

    kind: ClassVar[str]
    reduction: ClassVar[Literal["log-sum", "mean", "constant"]]
    scale: float

    @property
    def params(self) -> tuple[float, ...]:
        """The numbers that, with `kind`, define φ."""
        return ()

    @abstractmethod
    def aggregate(self, neg: Tensor, threshold: Tensor | None, mask: Tensor | None) -> Tensor:
        """R (B,) of scores (B, N), differentiable; a row with every negative masked gives 0."""


class LogSumPart(NegativePart):
    """R = scale · log Σ_j φ(s_j, β)."""

    reduction: ClassVar[Literal["log-sum", "mean", "constant"]] = "log-sum"

    @abstractmethod
    def log_phi(self, s: Tensor, threshold: Tensor | None) -> Tensor:
        """The logarithm of φ(s, β)."""

    @abstractmethod
    def dlog_phi(self, s: Tensor, threshold: Tensor | None) -> Tensor:
        """∂ log φ / ∂s."""

    def log_phi_and_slope(self, s: Tensor, threshold: Tensor | None) -> tuple[Tensor, Tensor]:
        """`log_phi` and `dlog_phi` together, without autograd; cheaper where they share work."""
        return self.log_phi(s, threshold), self.dlog_phi(s, threshold)

    def aggregate(self, neg: Tensor, threshold: Tensor | None, mask: Tensor | None) -> Tensor:
        """R (B,), by autograd."""
        return self.scale * functional.masked_log_sum_exp(self.log_phi(neg, threshold), mask)


class MeanPart(NegativePart):
    """R = scale · mean_j φ(s_j, β)."""

    reduction: ClassVar[Literal["log-sum", "mean", "constant"]] = "mean"

    @abstractmethod
    def phi(self, s: Tensor, threshold: Tensor | None) -> Tensor:
        """φ(s, β)."""

    @abstractmethod
    def dphi(self, s: Tensor, threshold: Tensor | None) -> Tensor:
        """∂φ/∂s."""

    def dphi_dparameters(self, s: Tensor, threshold: Tensor | None) -> Mapping[str, Tensor]:
        """∂φ/∂p for every learnt parameter p that φ depends on, by its name in the loss."""
        return {}

    def from_moments(self, moments: Tensor) -> Mapping[str, Tensor]:
        """Σ of `dphi_dparameters`, from the two sums (..., 2) that the compiled core returns for this kind of part."""
        return {}

    def aggregate(self, neg: Tensor, threshold: Tensor | None, mask: Tensor | None) -> Tensor:
        """R (B,), by autograd."""
        return self.scale * functional.masked_mean(self.phi(neg, threshold), mask)


@dataclass(frozen=True)
class ExpPart(LogSumPart):
    """φ(s) = e^{s/τ}: SL, BSL and SL@K."""

    tau: float
    scale: float = 1.0
    kind: ClassVar[str] = "exp"

    @property
    def params(self) -> tuple[float, ...]:
        """(1/τ,)."""
        return (1 / self.tau,)

    def log_phi(self, s: Tensor, threshold: Tensor | None) -> Tensor:
        """s/τ."""
        return s / self.tau

    def dlog_phi(self, s: Tensor, threshold: Tensor | None) -> Tensor:
        """1/τ."""
        return s.new_tensor(1 / self.tau).expand_as(s)


@dataclass(frozen=True)
class SigmoidPowerPart(LogSumPart):
    """φ(s, β) = σ(ω(s - β))^κ: Talos, with (κ, ω) = (1/τ, 1) outside or (1, 1/τ) inside the sigmoid."""

    power: float
    slope: float = 1.0
    scale: float = 1.0
    kind: ClassVar[str] = "sigmoid-power"

    @property
    def params(self) -> tuple[float, ...]:
        """(κ, ω)."""
        return (self.power, self.slope)

    def _centred(self, s: Tensor, threshold: Tensor | None) -> Tensor:
        return (s if threshold is None else s - threshold) * self.slope

    def log_phi(self, s: Tensor, threshold: Tensor | None) -> Tensor:
        """κ·log σ(ω(s - β))."""
        return self.power * functional.log_sigmoid(self._centred(s, threshold))

    def dlog_phi(self, s: Tensor, threshold: Tensor | None) -> Tensor:
        """κω·σ(ω(β - s))."""
        return self.power * self.slope * torch.sigmoid(-self._centred(s, threshold))

    @torch.no_grad()
    def log_phi_and_slope(self, s: Tensor, threshold: Tensor | None) -> tuple[Tensor, Tensor]:
        """κ·log σ(ω(s - β)) and κω·σ(ω(β - s)), one computed from the other where that is exact enough."""
        y = -s if threshold is None else threshold - s
        if self.slope != 1:  # saves a pass over all scores
            y.mul_(self.slope)
        log_sigmoid, below = functional.log_sigmoid_and_slope_(y)
        return log_sigmoid.mul_(self.power), below.mul_(self.power * self.slope)

    def aggregate(self, neg: Tensor, threshold: Tensor | None, mask: Tensor | None) -> Tensor:
        """R (B,), value and gradient in one fused pass."""
        total = functional.log_sum_sigmoid_power(
            neg, threshold, power=self.power, slope=self.slope, mask=mask
        )
        return self.scale * total


@dataclass(frozen=True)
class HingePart(MeanPart):
    """φ(s, β) = (1 + s - β)+: AATP."""

    scale: float = 1.0
    kind: ClassVar[str] = "hinge"

    def phi(self, s: Tensor, threshold: Tensor | None) -> Tensor:
        """(1 + s - β)+."""
        return F.relu(1 + s if threshold is None else 1 + s - threshold)

    def dphi(self, s: Tensor, threshold: Tensor | None) -> Tensor:
        """1 above the hinge, else 0."""
        return ((1 + s if threshold is None else 1 + s - threshold) > 0).to(s.dtype)


@dataclass(frozen=True)
class PartialAUCPart(MeanPart):
    """φ(s) = h((q-b)² + 2(1+γ)q - s_n)/β with q = σ(s), h a sharp softplus: LLPAUC.

    b, γ and s_n are learnt, hence tensors here; `params` has their current values.
    """

    b: Tensor
    gamma: Tensor
    s_n: Tensor
    fraction: float
    sharpness: float = 5.0
    scale: float = 1.0
    kind: ClassVar[str] = "partial-auc"

    @property
    def params(self) -> tuple[float, ...]:
        """(b, γ, s_n, β, κ) with κ the sharpness of h."""
        return (self.b.item(), self.gamma.item(), self.s_n.item(), self.fraction, self.sharpness)

    def _excess(self, q: Tensor) -> Tensor:
        return (q - self.b).square() + 2 * (1 + self.gamma) * q - self.s_n

    def phi(self, s: Tensor, threshold: Tensor | None) -> Tensor:
        """h((q-b)² + 2(1+γ)q - s_n)/β."""
        excess = self._excess(torch.sigmoid(s))
        return functional.sharp_softplus(excess, self.sharpness) / self.fraction

    def dphi(self, s: Tensor, threshold: Tensor | None) -> Tensor:
        """h'(·)/β · (2(q-b) + 2(1+γ)) · q(1-q)."""
        q = torch.sigmoid(s)
        inner = 2 * (q - self.b + 1 + self.gamma) * q * (1 - q)
        return torch.sigmoid(self.sharpness * self._excess(q)) / self.fraction * inner

    def dphi_dparameters(self, s: Tensor, threshold: Tensor | None) -> Mapping[str, Tensor]:
        """∂φ/∂b, ∂φ/∂γ, ∂φ/∂s_n."""
        q = torch.sigmoid(s)
        u = torch.sigmoid(self.sharpness * self._excess(q)) / self.fraction
        return {"b": -2 * (q - self.b) * u, "gamma": 2 * q * u, "s_n": -u}

    def from_moments(self, moments: Tensor) -> Mapping[str, Tensor]:
        """Σ of `dphi_dparameters`, from Σu and Σqu with u = h'(·)/β."""
        u, qu = moments.unbind(-1)
        return {"b": -2 * (qu - self.b * u), "gamma": 2 * qu, "s_n": -u}


@dataclass(frozen=True)
class ConstantPart(NegativePart):
    """R = scale for all users: Talos without its denominator, where Σ_j is replaced by K."""

    scale: float
    kind: ClassVar[str] = "constant"
    reduction: ClassVar[Literal["log-sum", "mean", "constant"]] = "constant"

    def aggregate(self, neg: Tensor, threshold: Tensor | None, mask: Tensor | None) -> Tensor:
        """`scale` in every row."""
        return neg.new_full((neg.shape[0],), self.scale)
