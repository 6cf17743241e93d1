"""What each negative adds to a loss: φ of its score, or g of its difference to a positive.

Each function is written once, in torch, and is differentiable: gradients come from autograd. It is also plain data, a
`kind` and numbers. From these the compiled core selects its own version, and `of` makes the object again.

A function of your own is a frozen dataclass whose fields are its parameters. Its `kind` registers it.

>>> @dataclass(frozen=True)
... class Cauchy(Phi):
...     width: float
...     kind = "cauchy"
...     reduction = "log-sum"
...     def value(self, s, beta):
...         return -torch.log1p(((s if beta is None else s - beta) / self.width).square())
>>> Phi.of("cauchy", (0.5,), 2.0)
Cauchy(scale=2.0, width=0.5)
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from talos.checks import one_of
from talos.losses import functional

__all__ = [
    "AtanPowerPairs",
    "Constant",
    "Exp",
    "Hinge",
    "LinearPowerPairs",
    "PairPhi",
    "PartialAUC",
    "Phi",
    "SigmoidPower",
    "SigmoidPowerPairs",
    "SigmoidRankPairs",
    "SoftplusPairs",
]


class _Function(ABC):
    """A function with a kind and parameters, the base of `Phi` and `PairPhi`."""

    kind: ClassVar[str]
    reduction: ClassVar[str]
    _registered: ClassVar[dict[str, type[_Function]]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "kind" in vars(cls):
            cls._registered[cls.kind] = cls

    @property
    def params(self) -> tuple[float | Tensor, ...]:
        """The parameters in the order of the constructor, without `scale`; tensors where they are learnt."""
        values = {**vars(self)}
        values.pop("scale", None)
        return tuple(values.values())

    @classmethod
    def of(cls, kind: str, params: Sequence[float | Tensor], scale: float | None = None) -> Self:
        """The function of this kind with these parameters; an unknown kind raises an `ArgumentError`.

        >>> Phi.of("sigmoid-power", (10.0, 1.0), 2.0) == SigmoidPower(10.0, scale=2.0)
        True
        >>> PairPhi.of("sigmoid-rank-pairs", (10.0, 20.0, 1.0))
        SigmoidRankPairs(kappa=10.0, k=20.0, lambda_=1.0)
        """
        known = {name: one for name, one in cls._registered.items() if issubclass(one, cls)}
        found: Callable[..., Self] = known[one_of("kind", kind, list(known))]
        return found(*params) if scale is None else found(*params, scale=scale)

    def _reduce(self, values: Tensor, mask: Tensor | None, weights: Tensor | None = None) -> Tensor:
        """Reduce values (B, N) to (B,) as `reduction` says; 0 where all are masked."""
        if self.reduction == "mean":
            return functional.masked_mean(values, mask, weights)
        if self.reduction == "sum":
            return (values if mask is None else values.masked_fill(mask, 0.0)).sum(dim=-1)
        return functional.masked_log_sum_exp(values if weights is None else values + weights.log(), mask)


@dataclass(frozen=True)
class Phi(_Function):
    """R of a row of negative scores s_j with threshold β, the sum that all positives of the row share.

    - `reduction` "log-sum": R = scale · log Σ_j φ(s_j, β);
    - `reduction` "mean": R = scale · mean_j φ(s_j, β);
    - `reduction` "constant": R = scale for any scores.

    Without negatives R is 0, unless it is constant.

    >>> Exp(10.0).params, Exp(10.0).reduction, Exp(10.0, scale=0.5)
    ((10.0,), 'log-sum', Exp(scale=0.5, kappa=10.0))
    """

    reduction: ClassVar[Literal["log-sum", "mean", "constant"]]
    learns: ClassVar[int] = 0  # how many parameters, the first ones, may be learnt
    scale: float = field(default=1.0, kw_only=True)

    @abstractmethod
    def value(self, s: Tensor, beta: Tensor | None) -> Tensor:
        """φ(s, β), or log φ(s, β) if the reduction is "log-sum"; β broadcasts against s, None stands for 0."""

    def aggregate(
        self, neg: Tensor, beta: Tensor | None, mask: Tensor | None, weights: Tensor | None = None
    ) -> Tensor:
        """R (B,) of scores (B, N) and thresholds (B, 1), without the entries marked in `mask` (B, N).

        `weights` (N,), all above 0, says how many items each column stands for.

        >>> Exp(1.0).aggregate(torch.zeros(1, 2), None, None, torch.tensor([3.0, 7.0])).exp()   # ten items
        tensor([10.])
        """
        return self.scale * self._reduce(self.value(neg, beta), mask, weights)


@dataclass(frozen=True)
class Exp(Phi):
    """φ(s) = e^{κs} with κ = 1/τ: SL, BSL and SL@K."""

    kappa: float
    kind = "exp"
    reduction = "log-sum"

    def value(self, s: Tensor, beta: Tensor | None) -> Tensor:
        """κs."""
        return self.kappa * s


@dataclass(frozen=True)
class SigmoidPower(Phi):
    """φ(s, β) = σ(ω(s - β))^κ: Talos, with (κ, ω) = (1/τ, 1) outside or (1, 1/τ) inside the sigmoid.

    κ may also be a column (B, 1), one value per row.
    """

    kappa: float | Tensor
    omega: float = 1.0
    kind = "sigmoid-power"
    reduction = "log-sum"

    def value(self, s: Tensor, beta: Tensor | None) -> Tensor:
        """κ·log σ(ω(s - β))."""
        return -self.kappa * F.softplus(-self.omega * (s if beta is None else s - beta), threshold=40.0)

    def aggregate(
        self, neg: Tensor, beta: Tensor | None, mask: Tensor | None, weights: Tensor | None = None
    ) -> Tensor:
        """R (B,), value and gradient in one fused pass unless there are weights."""
        if weights is not None:
            return super().aggregate(neg, beta, mask, weights)
        total = functional.log_sum_sigmoid_power(neg, beta, power=self.kappa, slope=self.omega, mask=mask)
        return self.scale * total


@dataclass(frozen=True)
class Hinge(Phi):
    """φ(s, β) = (1 + s - β)+: AATP."""

    kind = "hinge"
    reduction = "mean"

    def value(self, s: Tensor, beta: Tensor | None) -> Tensor:
        """(1 + s - β)+."""
        return F.relu(1 + s if beta is None else 1 + s - beta)


@dataclass(frozen=True)
class PartialAUC(Phi):
    """φ(s) = h((q-b)² + 2(1+γ)q - s_n) / fraction with q = σ(s) and h(x) = log(1 + e^{κx})/κ: LLPAUC.

    κ is the `sharpness`. b, γ and s_n are numbers, or tensors to learn.
    """

    b: float | Tensor
    gamma: float | Tensor
    s_n: float | Tensor
    fraction: float
    sharpness: float
    kind = "partial-auc"
    reduction = "mean"
    learns = 3

    def value(self, s: Tensor, beta: Tensor | None) -> Tensor:
        """h((q-b)² + 2(1+γ)q - s_n) / fraction."""
        q = torch.sigmoid(s)
        excess = (q - self.b).square() + 2 * (1 + self.gamma) * q - self.s_n
        return functional.sharp_softplus(excess, self.sharpness) / self.fraction


@dataclass(frozen=True)
class Constant(Phi):
    """R = scale for every row: Talos without its denominator, where K replaces Σ_j."""

    kind = "constant"
    reduction = "constant"

    def value(self, s: Tensor, beta: Tensor | None) -> Tensor:
        """0: the scores have no effect."""
        return torch.zeros_like(s)

    def aggregate(
        self, neg: Tensor, beta: Tensor | None, mask: Tensor | None, weights: Tensor | None = None
    ) -> Tensor:
        """`scale` in every row."""
        return neg.new_full((neg.shape[0],), self.scale)


@dataclass(frozen=True)
class PairPhi(_Function):
    """The loss h(R_i) of a positive i, where R_i reduces g(d_j) over its negatives j, with d_j = s_j - s_i.

    - `reduction` "log-sum": R_i = log Σ_j g(d_j);
    - `reduction` "sum": R_i = Σ_j g(d_j);
    - `reduction` "mean": R_i = mean_j g(d_j).

    h is the identity unless `outer` is overridden. Without negatives R_i is 0.

    >>> SoftplusPairs().reduction, SigmoidPowerPairs(10.0).params
    ('mean', (10.0,))
    """

    reduction: ClassVar[Literal["log-sum", "mean", "sum"]]

    @abstractmethod
    def value(self, d: Tensor) -> Tensor:
        """g(d), or log g(d) if the reduction is "log-sum"."""

    def outer(self, inner: Tensor) -> Tensor:
        """h(R)."""
        return inner

    def aggregate(self, d: Tensor, mask: Tensor | None) -> Tensor:
        """R (B,) of differences (B, N), without the entries marked in `mask` (B, N)."""
        return self._reduce(self.value(d), mask)


@dataclass(frozen=True)
class SoftplusPairs(PairPhi):
    """g(d) = log(1 + e^d), averaged: BPR."""

    kind = "softplus-pairs"
    reduction = "mean"

    def value(self, d: Tensor) -> Tensor:
        """log(1 + e^d)."""
        return F.softplus(d, threshold=40.0)


@dataclass(frozen=True)
class SigmoidPowerPairs(PairPhi):
    """g(d) = (1 + tanh(d/2))^κ = (2σ(d))^κ with κ = 1/τ: PSL."""

    kappa: float
    kind = "sigmoid-power-pairs"
    reduction = "log-sum"

    def value(self, d: Tensor) -> Tensor:
        """κ(log σ(d) + log 2), exact for every d."""
        return self.kappa * (functional.log_sigmoid(d) + math.log(2))


@dataclass(frozen=True)
class LinearPowerPairs(PairPhi):
    """g(d) = max(1 + d, 1e-8)^κ: PSL with `relu`."""

    kappa: float
    kind = "linear-power-pairs"
    reduction = "log-sum"

    def value(self, d: Tensor) -> Tensor:
        """κ·log max(1 + d, 1e-8)."""
        return self.kappa * (1 + d).clamp(min=1e-8).log()


@dataclass(frozen=True)
class AtanPowerPairs(LinearPowerPairs):
    """g(d) = max(1 + arctan(d), 1e-8)^κ: PSL with `atan`."""

    kind = "atan-power-pairs"

    def value(self, d: Tensor) -> Tensor:
        """κ·log max(1 + arctan(d), 1e-8)."""
        return super().value(torch.atan(d))


@dataclass(frozen=True)
class SigmoidRankPairs(PairPhi):
    """g(d) = σ(κd), which adds up to the soft rank less 1, and h(R) = σ(λ(1 + R - K)): RS@K."""

    kappa: float
    k: float
    lambda_: float
    kind = "sigmoid-rank-pairs"
    reduction = "sum"

    def value(self, d: Tensor) -> Tensor:
        """σ(κd)."""
        return torch.sigmoid(self.kappa * d)

    def outer(self, inner: Tensor) -> Tensor:
        """σ(λ(1 + R - K))."""
        return torch.sigmoid(self.lambda_ * (1 + inner - self.k))
