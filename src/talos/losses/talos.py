"""The Talos loss."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from talos.checks import one_of, positive_integer, positive_number, require
from talos.losses import functional
from talos.losses.base import TAU_SPACE, Needs, Scores, UserSeparableLoss
from talos.losses.phi import Constant, Phi, SigmoidPower
from talos.losses.temperature import AdaptiveTau, DRORadius, Schedule, tau_for

__all__ = ["Talos"]


class Talos(UserSeparableLoss):
    """The Talos loss: optimises Precision@K and Recall@K by comparing scores with that of a user's K-th best item.

    An item is in the top K if s ≥ β_u, the K-th best score; σ(s - β_u)^(1/τ) is a smooth version of that step:

        training form   -1/τ·log σ(s_ui - β_u) + log Σ_{j∈G_u} σ(s_uj - β_u)^(1/τ)
        full form       -log( Σ_{i∈P_u} σ(s_ui - β_u)^(1/τ) / Σ_{j∈I} σ(s_uj - β_u)^(1/τ) )

    The published code minimises the training form; by Jensen's inequality its mean over the positives bounds the full
    form over the same items. In the full form P_u are the rows that share an id in `users`; without `users` every row
    is a user of its own. I is P_u and the row's negatives together. Every row of a user gets that user's loss: reduce
    it per user.

    β_u comes from `talos.thresholds` and is a constant for the gradient, which is
    ∂/∂s_uj = 1/τ · w_j/Z · σ(β_u - s_uj) with w_j = σ(s_uj - β_u)^(1/τ), Z = Σ w, and
    ∂/∂s_ui = -1/τ · σ(β_u - s_ui).

    Shengjia Zhang et al., "Talos: Optimizing Top-K Accuracy in Recommender Systems", WWW 2026.

    Args:
        tau: τ > 0; or an `AdaptiveTau` such as `DRORadius`, which gives every user a temperature of their own; or,
            in a training loop of your own that calls `set_progress`, a function of the progress in [0, 1] (a config
            cannot hold one). If not given, or "auto": `tau_for(num_items)`, 0.1 up to ten thousand items and less
            beyond; a run with validation data tries several (`talos.studies.race`).
        form: `training` or `full`.
        quantile: False takes β = 0 (ablation); no threshold is needed then.
        temperature: `outer`, σ(x)^(1/τ), or `inner`, σ(x/τ) (ablation).
        denominator: False replaces the sum over negatives by the constant K (ablation); scores inflate.
        eta: short for `tau=DRORadius(eta=…)`: one radius η of robustness for all users in place of one temperature.
            The loss is then τ_u times the forms above.
        user_power: p. A user with n positives weighs n^p in the mean: 1 is the published code, 0 the paper's mean over
            users.
        positive_power: ρ. The mean over positives becomes the power mean -(1/ρ)·log mean_i σ(s_ui - β_u)^(ρ/τ). 0 is
            the training form, 1 the full form without the positives in its denominator. The larger ρ, the tighter the
            loss bounds the full form.
        negative_weight: λ, the factor of log Σ_j. Above 1 it pushes items near the threshold down harder than the
            positives are pulled up; the loss then bounds -log Precision@K only where the sum is at least 1.
        k: K, required if `denominator` is False.
        num_items: |I|, from which the default temperature follows.

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
        super().__init__(
            user_power=user_power, positive_power=positive_power, negative_weight=negative_weight
        )
        self.form = one_of("form", form, ["training", "full"])
        self.temperature = one_of("temperature", temperature, ["outer", "inner"])
        self.quantile, self.denominator = quantile, denominator
        self.k = None if k is None else positive_integer("k", k)
        require(
            denominator or k is not None,
            "is missing",
            where="k",
            expected="the list length K, without a denominator",
        )
        require(eta is None or tau is None, "given together with tau", where="eta", expected="one of the two")
        tau = tau if eta is None else DRORadius(eta=eta)
        chosen = (("tau", tau_for(num_items)),) if tau is None or tau == "auto" else ()
        self.adaptive = tau if isinstance(tau, AdaptiveTau) else None
        self.schedule = tau if callable(tau) and not isinstance(tau, AdaptiveTau) else None
        require(
            self.adaptive is None or temperature == "outer",
            "got 'inner'",
            where="temperature",
            expected="'outer' with an adaptive tau",
        )
        self.tau = math.nan
        if not (self.adaptive or self.schedule):
            self.tau = positive_number("tau", chosen[0][1] if chosen else tau)
        self.set_progress(0.0)
        self.needs = Needs(
            threshold=quantile,
            default_threshold="regression" if quantile else None,
            user_separable=form == "training" and self.adaptive is None,
            chosen=chosen,
        )
        require(
            self.needs.user_separable or (self.positive_power, self.negative_weight) == (0.0, 1.0),
            f"got {positive_power:g}, {negative_weight:g}",
            where="positive_power, negative_weight",
            expected="0 and 1, unless form is 'training' with one tau",
        )

    def set_progress(self, progress: float) -> None:
        """Set the temperature to the schedule's value at this progress, from 0 to 1."""
        if self.schedule is not None:
            self.tau = positive_number("tau", float(self.schedule(progress)))

    @property
    def _step(self) -> SigmoidPower:
        """φ, a smooth version of the step at β."""
        return SigmoidPower(1 / self.tau) if self.temperature == "outer" else SigmoidPower(1.0, 1 / self.tau)

    @property
    def phi(self) -> Phi:
        """R = log Σ_j σ(s_j - β)^(1/τ), or log K without the denominator."""
        return self._step if self.denominator else Constant(scale=math.log(self.k or 1))

    def positive_part(self, pos: Tensor, beta: Tensor | None) -> tuple[Tensor, Tensor]:
        """The pair a = -1/τ·log σ(s - β), c = 1."""
        return -self._step.value(pos, beta), torch.ones_like(pos)

    def compute(self, given: Scores) -> Tensor:
        """The values of the chosen form."""
        if self.needs.user_separable:
            return super().compute(given)
        if self.adaptive is None:
            return self._form(given, self._step)
        neg, column = given.neg.detach(), given.threshold_column
        tau = self.adaptive(SigmoidPower(1.0).value(neg, column), given.mask)
        # The factor τ_u makes the gradient that of the robust objective, whose multiplier τ_u is (Danskin's theorem).
        return tau * self._form(given, SigmoidPower(1 / tau.unsqueeze(-1)))

    def _form(self, given: Scores, step: SigmoidPower) -> Tensor:
        """The values for this φ, whose temperature may differ between rows."""
        neg, mask, column = given.neg, given.mask, given.threshold_column
        above = step.value(given.pos.unsqueeze(-1), column).squeeze(-1)
        total = (step if self.denominator else self.phi).aggregate(neg, column, mask)
        if self.form == "training":
            return total - above
        users = torch.arange(len(above), device=above.device) if given.users is None else given.users
        distinct, rows = torch.unique(users, return_inverse=True)
        positives = functional.log_sum_exp_by(above, rows, len(distinct)).index_select(0, rows)
        if not self.denominator:
            return total - positives
        # A row without negatives has the sum 0 here, not 1 as in the training form.
        total = total if mask is None else total.masked_fill(mask.all(dim=-1), -math.inf)
        return torch.logaddexp(positives, total) - positives

    def constructor_options(self) -> dict[str, Any]:
        """The temperature as a config holds it, by a number; for `talos.registry`."""
        radius = self.adaptive
        if isinstance(radius, DRORadius) and repr(radius) == repr(DRORadius(eta=radius.eta)):
            return {"tau": None, "eta": radius.eta}
        require(
            not (radius or self.schedule),
            f"is {radius or self.schedule!r}",
            where="tau",
            expected="a number, or a DRORadius with its default bounds and steps: a config holds nothing else",
        )
        return {"tau": None if self.needs.chosen else self.tau, "eta": None}

    def extra_repr(self) -> str:
        """The temperature and the form, for `repr`."""
        return f"tau={self.adaptive or self.schedule or self.tau}, form={self.form!r}"
