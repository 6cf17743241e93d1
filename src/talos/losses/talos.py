"""The Talos loss."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from talos.checks import one_of, positive_integer, positive_number
from talos.errors import ArgumentError
from talos.losses import functional
from talos.losses.base import TAU_SPACE, Batch, Needs, UserSeparableLoss
from talos.losses.parts import ConstantPart, NegativePart, SigmoidPowerPart
from talos.losses.temperature import AdaptiveTau, DRORadius, Schedule, tau_for

__all__ = ["Talos"]


class Talos(UserSeparableLoss):
    """The Talos loss: optimises Precision@K and Recall@K by comparing scores with that of a user's K-th best item.

    An item is in the top K iff s ≥ β_u, the K-th best score; σ(s - β_u)^(1/τ) is a smooth version of that step:

        training form   -1/τ·log σ(s_ui - β_u) + log Σ_{j∈G_u} σ(s_uj - β_u)^(1/τ)
        full form       -log( Σ_{i∈P_u} σ(s_ui - β_u)^(1/τ) / Σ_{j∈I} σ(s_uj - β_u)^(1/τ) )

    The training form is what the published code minimises; by Jensen's inequality its mean over the
    positives bounds the full form over the same items. In the full form the rows that share an id in `users`
    make up P_u (without `users` every row is a user of its own), I is P_u and the row's negatives together,
    and every row of a user gets that user's loss: reduce it per user.

    β_u comes from `talos.thresholds` and is a constant for the gradient, which is
    ∂/∂s_uj = 1/τ · w_j/Z · σ(β_u - s_uj) with w_j = σ(s_uj - β_u)^(1/τ), Z = Σ w, and
    ∂/∂s_ui = -1/τ · σ(β_u - s_ui).

    Shengjia Zhang et al., "Talos: Optimizing Top-K Accuracy in Recommender Systems", WWW 2026.

    Args:
        tau: τ > 0; or an `AdaptiveTau` such as `DRORadius`, which gives every user a temperature of their own; or,
            in a training loop of your own that calls `set_progress`, a function of the progress in [0, 1] (a config
            cannot hold one). If not given, or "auto": 0.1, and less for more than ten thousand items: `tau_for`; a run
            with validation data races several (`talos.training.race`).
        form: `training` or `full`.
        quantile: False takes β = 0 (ablation); no threshold is needed then.
        temperature: `outer`, σ(x)^(1/τ), or `inner`, σ(x/τ) (ablation).
        denominator: False replaces the sum over negatives by the constant K (ablation); scores inflate.
        eta: one radius η of robustness for all users in place of one temperature; short for
            `tau=DRORadius(eta=…)`. The loss is then τ_u times the forms above: see there.
        user_power: p. A user with n positives weighs n^p in the mean: 1 is the published code, 0 the paper's mean over
            users.
        positive_power: ρ in 1/n Σ_i → power mean: the positives' part becomes -(1/ρ)·log mean_i σ(s_ui - β_u)^(ρ/τ).
            0, the limit, is the training form. 1 is the full form but for the positives in its denominator, whose
            bound the training form is; in between, the loss bounds the full form the tighter, the larger ρ.
        negative_weight: λ, the factor of log Σ_j. Above 1 it pushes the items around the threshold down harder than the
            positives are pulled up; then -log Precision@K is no longer bounded term by term unless the sum is at
            least 1.
        k: K, needed where `denominator` is False.
        num_items: |I|, from which a temperature is chosen where none is given.

    >>> loss = Talos(tau=0.1)
    >>> loss(torch.tensor([0.5]), torch.tensor([[0.5, 0.5]]), threshold=torch.tensor([0.2]))   # log 2
    tensor([0.6931])
    """

    short_name = "talos"
    search_space: ClassVar[Mapping[str, Any]] = {"tau": TAU_SPACE}
    race: ClassVar[tuple[tuple[Mapping[str, float], ...], ...]] = (
        tuple({"tau": tau, "user_power": 0.5} for tau in (0.045, 0.065, 0.095, 0.14, 0.2)),
        ({"positive_power": 0.2}, {}, {"negative_weight": 1.1}, {"user_power": 1.0}),
        ({}, {"positive_power": 0.2}, {"negative_weight": 1.1}, {"negative_weight": 1.25}),
        ({}, {"user_power": 0.25}, {"user_power": 0.5}, {"user_power": 1.0}),
    )
    race_bounds: ClassVar[Mapping[str, tuple[float, float]]] = MappingProxyType({"user_power": (0.0, 1.0)})

    def __init__(
        self,
        *,
        tau: float | Literal["auto"] | Schedule | AdaptiveTau | None = None,
        form: Literal["training", "full"] = "training",
        quantile: bool = True,
        temperature: Literal["outer", "inner"] = "outer",
        denominator: bool = True,
        eta: float | None = None,
        user_power: float = 1.0,
        positive_power: float = 0.0,
        negative_weight: float = 1.0,
        k: int | None = None,
        num_items: int | None = None,
    ) -> None:
        super().__init__()
        self.form = one_of("form", form, ["training", "full"])
        self.temperature = one_of("temperature", temperature, ["outer", "inner"])
        self.quantile = quantile
        self.denominator = denominator
        self.k = None if k is None else positive_integer("k", k)
        if not denominator and k is None:
            raise ArgumentError("is missing", where="k", expected="the list length K, for denominator=False")
        if eta is not None:
            if tau is not None:
                raise ArgumentError("given together with tau", where="eta", expected="one of the two")
            tau = DRORadius(eta=eta)
        self._chosen: tuple[tuple[str, float], ...] = ()
        if tau is None or tau == "auto":
            tau = tau_for(num_items)
            self._chosen = (("tau", tau),)
        self.adaptive: AdaptiveTau | None = None
        self.schedule: Schedule | None = None
        if isinstance(tau, AdaptiveTau):
            self.adaptive, self.tau = tau, math.nan
            if temperature == "inner":
                raise ArgumentError(
                    "got 'inner'", where="temperature", expected="'outer' with an adaptive tau"
                )
        elif callable(tau):
            self.schedule = tau
            self.set_progress(0.0)
        else:
            self.tau = positive_number("tau", tau)
        self._set_balance(
            user_power=user_power, positive_power=positive_power, negative_weight=negative_weight
        )
        if (self.positive_power, self.negative_weight) != (0.0, 1.0) and not self.needs.user_separable:
            raise ArgumentError(
                f"got {positive_power:g}, {negative_weight:g}",
                where="positive_power, negative_weight",
                expected="0 and 1, unless form is 'training' with one tau",
            )

    @property
    def needs(self) -> Needs:
        """A threshold unless `quantile` is off; separable in the training form with one temperature."""
        return Needs(
            threshold=self.quantile,
            default_threshold="regression" if self.quantile else None,
            user_separable=self.form == "training" and self.adaptive is None,
            chosen=self._chosen,
        )

    def set_progress(self, progress: float) -> None:
        """Set the temperature to the schedule's value at this share of the training."""
        if self.schedule is not None:
            self.tau = positive_number("tau", float(self.schedule(progress)))

    @property
    def _power_and_slope(self) -> tuple[float, float]:
        return (1 / self.tau, 1.0) if self.temperature == "outer" else (1.0, 1 / self.tau)

    @property
    def negative_part(self) -> NegativePart:
        """R = log Σ_j σ(s_j - β)^(1/τ), or log K without the denominator."""
        if not self.denominator:
            return ConstantPart(math.log(self.k or 1))
        power, slope = self._power_and_slope
        return SigmoidPowerPart(power=power, slope=slope)

    def positive_part(self, pos: Tensor, threshold: Tensor | None) -> tuple[Tensor, Tensor]:
        """The pair a = -1/τ·log σ(s - β), c = 1."""
        power, slope = self._power_and_slope
        return -SigmoidPowerPart(power=power, slope=slope).log_phi(pos, threshold), torch.ones_like(pos)

    def da(self, pos: Tensor, threshold: Tensor | None) -> Tensor:
        """-1/τ·σ(β - s)."""
        power, slope = self._power_and_slope
        return -SigmoidPowerPart(power=power, slope=slope).dlog_phi(pos, threshold)

    def compute(self, batch: Batch) -> Tensor:
        """The values of the chosen form."""
        if self.needs.user_separable:
            return super().compute(batch)
        if self.adaptive is None:
            power, slope = self._power_and_slope
            return self._form(batch, power, power, slope)
        neg, column = batch.neg.detach(), batch.threshold_column
        tau = self.adaptive(functional.log_sigmoid(neg if column is None else neg - column), batch.mask)
        # the factor τ_u makes the gradient that of the robust objective, whose multiplier τ_u is (Danskin's theorem)
        return tau * self._form(batch, 1 / tau, (1 / tau).unsqueeze(-1), 1.0)

    def _form(self, batch: Batch, power: float | Tensor, powers: float | Tensor, slope: float) -> Tensor:
        """The values for temperatures of the rows, 1/`power`, which `powers` has as a column."""
        pos, neg, threshold, mask = batch.pos, batch.neg, batch.threshold, batch.mask
        column = batch.threshold_column
        above = power * functional.log_sigmoid(slope * (pos if threshold is None else pos - threshold))
        if not self.denominator:
            total = torch.full_like(above, math.log(self.k or 1))
        else:
            total = functional.log_sum_sigmoid_power(neg, column, power=powers, slope=slope, mask=mask)
        if self.form == "training":
            return total - above
        users = torch.arange(len(pos), device=pos.device) if batch.users is None else batch.users
        positives = functional.log_sum_exp_by(above, users)
        if not self.denominator:
            return total - positives
        # A row without negatives is a sum of 0 here, not of 1 as in the training form.
        nothing = torch.full_like(total, -math.inf)
        total = total if mask is None else torch.where(mask.all(dim=-1), nothing, total)
        return torch.logaddexp(positives, total) - positives

    def constructor_options(self) -> dict[str, Any]:
        """The temperature as a config holds it, by a number; for `talos.registry`."""
        radius = self.adaptive
        if isinstance(radius, DRORadius) and repr(radius) == repr(DRORadius(eta=radius.eta)):
            return {"tau": None, "eta": radius.eta}
        if radius is not None or self.schedule is not None:
            expected = (
                "a number, or a DRORadius with its default bounds and steps: a config holds nothing else"
            )
            raise ArgumentError(f"is {radius or self.schedule!r}", where="tau", expected=expected)
        return {"tau": None if self._chosen else self.tau, "eta": None}

    def extra_repr(self) -> str:
        """The temperature and the form, for `repr`."""
        return f"tau={self.adaptive or self.schedule or self.tau}, form={self.form!r}"
