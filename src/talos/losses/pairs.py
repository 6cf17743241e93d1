"""The pairs of the pairwise losses: what a negative adds to one positive's sum, and how that sum is used.

Every part is a function of one difference d = s_j - s_i, with its derivative in closed form, so that kernels need no
autograd. It is also plain data (`kind`, `reduction`, `params`), from which the compiled core selects its own version of
the same functions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from talos.losses import functional

__all__ = [
    "ClampedPowerPairs",
    "LogSumPairs",
    "PairwisePart",
    "SigmoidPowerPairs",
    "SigmoidRankPairs",
    "SoftplusPairs",
    "SumPairs",
]


class PairwisePart(ABC):
    """The loss h(R_i) of a positive i, where R_i reduces g(s_j - s_i) over its negatives j.

    - `reduction` "log-sum": R_i = log Σ_j g(d_j), with `log_g` and `dlog_g`;
    - `reduction` "sum": R_i = Σ_j g(d_j), with `g` and `dg`;
    - `reduction` "mean": R_i = mean_j g(d_j), likewise.

    h is the identity unless `outer` and `outer_slope` are overridden. Without negatives R_i is 0.

    >>> SoftplusPairs().reduction, SigmoidPowerPairs(tau=0.1).params
    ('mean', (10.0,))
    """

    kind: ClassVar[str]
    reduction: ClassVar[Literal["log-sum", "mean", "sum"]]

    @property
    def params(self) -> tuple[float, ...]:
        """The numbers that, with `kind`, define g and h."""
        return ()

    def outer(self, inner: Tensor) -> Tensor:
        """h(R)."""
        return inner

    def outer_slope(self, inner: Tensor) -> Tensor:
        """h'(R)."""
        return torch.ones_like(inner)

    @abstractmethod
    def aggregate(self, d: Tensor, mask: Tensor | None) -> Tensor:
        """R (B,) of differences (B, N), differentiable; a row with every negative masked gives 0."""


class LogSumPairs(PairwisePart):
    """R = log Σ_j g(d_j)."""

    reduction: ClassVar[Literal["log-sum", "mean", "sum"]] = "log-sum"

    @abstractmethod
    def log_g(self, d: Tensor) -> Tensor:
        """The logarithm of g."""

    @abstractmethod
    def dlog_g(self, d: Tensor) -> Tensor:
        """∂ log g / ∂d."""

    def aggregate(self, d: Tensor, mask: Tensor | None) -> Tensor:
        """R (B,), by autograd."""
        return functional.masked_log_sum_exp(self.log_g(d), mask)


class SumPairs(PairwisePart):
    """R = Σ_j g(d_j), or the mean."""

    @abstractmethod
    def g(self, d: Tensor) -> Tensor:
        """What a negative adds."""

    @abstractmethod
    def dg(self, d: Tensor) -> Tensor:
        """∂g/∂d."""

    def aggregate(self, d: Tensor, mask: Tensor | None) -> Tensor:
        """R (B,), by autograd."""
        values = self.g(d)
        if self.reduction == "mean":
            return functional.masked_mean(values, mask)
        return (values if mask is None else values.masked_fill(mask, 0.0)).sum(dim=-1)


@dataclass(frozen=True)
class SoftplusPairs(SumPairs):
    """g(d) = log(1 + e^d), averaged: BPR."""

    kind: ClassVar[str] = "softplus-pairs"
    reduction: ClassVar[Literal["log-sum", "mean", "sum"]] = "mean"

    def g(self, d: Tensor) -> Tensor:
        """log(1 + e^d)."""
        return F.softplus(d, threshold=40.0)

    def dg(self, d: Tensor) -> Tensor:
        """σ(d)."""
        return torch.sigmoid(d)


@dataclass(frozen=True)
class SigmoidPowerPairs(LogSumPairs):
    """g(d) = (1 + tanh(d/2))^(1/τ) = (2σ(d))^(1/τ): PSL."""

    tau: float
    kind: ClassVar[str] = "sigmoid-power-pairs"

    @property
    def params(self) -> tuple[float, ...]:
        """(1/τ,)."""
        return (1 / self.tau,)

    def log_g(self, d: Tensor) -> Tensor:
        """(log σ(d) + log 2)/τ, exact for every d."""
        return (functional.log_sigmoid(d) + d.new_tensor(2.0).log().item()) / self.tau

    def dlog_g(self, d: Tensor) -> Tensor:
        """σ(-d)/τ."""
        return torch.sigmoid(-d) / self.tau


@dataclass(frozen=True)
class ClampedPowerPairs(LogSumPairs):
    """g(d) = max(1 + act(d), 1e-8)^(1/τ) with act = arctan or the identity: two variants of PSL."""

    tau: float
    activation: Literal["atan", "relu"]
    kind: ClassVar[str] = "clamped-power-pairs"

    @property
    def params(self) -> tuple[float, ...]:
        """(1/τ,)."""
        return (1 / self.tau,)

    def log_g(self, d: Tensor) -> Tensor:
        """log(max(1 + act(d), 1e-8))/τ."""
        return torch.log((1 + (d if self.activation == "relu" else torch.atan(d))).clamp(min=1e-8)) / self.tau

    def dlog_g(self, d: Tensor) -> Tensor:
        """act'(d)/((1 + act(d))·τ); 0 where the base is clamped."""
        base = 1 + (d if self.activation == "relu" else torch.atan(d))
        slope = torch.ones_like(d) if self.activation == "relu" else 1 / (1 + d.square())
        return torch.where(base >= 1e-8, slope / base.clamp(min=1e-8), 0.0) / self.tau


@dataclass(frozen=True)
class SigmoidRankPairs(SumPairs):
    """g(d) = σ(d/τ1), which adds up to the soft rank less 1, and h = σ((1 + R - K)/τ2): RS@K."""

    k: int
    tau1: float
    tau2: float
    kind: ClassVar[str] = "sigmoid-rank-pairs"
    reduction: ClassVar[Literal["log-sum", "mean", "sum"]] = "sum"

    @property
    def params(self) -> tuple[float, ...]:
        """(1/τ1, K, 1/τ2)."""
        return (1 / self.tau1, float(self.k), 1 / self.tau2)

    def g(self, d: Tensor) -> Tensor:
        """σ(d/τ1)."""
        return torch.sigmoid(d / self.tau1)

    def dg(self, d: Tensor) -> Tensor:
        """σ(d/τ1)·σ(-d/τ1)/τ1: not as σ(1 - σ), which would be 0 long before the product is."""
        return torch.sigmoid(d / self.tau1) * torch.sigmoid(-d / self.tau1) / self.tau1

    def outer(self, inner: Tensor) -> Tensor:
        """σ((1 + R - K)/τ2)."""
        return torch.sigmoid((1 + inner - self.k) / self.tau2)

    def outer_slope(self, inner: Tensor) -> Tensor:
        """h(1 - h)/τ2, as the product of two sigmoids."""
        ahead = (1 + inner - self.k) / self.tau2
        return torch.sigmoid(ahead) * torch.sigmoid(-ahead) / self.tau2
