"""The losses, and the variants of them, that every shared test runs over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from talos import losses

USERS, ITEMS = 50, 200


@dataclass(frozen=True)
class Case:
    """One loss with its arguments; `exact_gradient` is False where part of it is detached by definition."""

    label: str
    cls: type[losses.Loss]
    args: dict[str, Any] = field(default_factory=dict)
    exact_gradient: bool = True
    monotone: bool = True  # whether a higher score of the positive never raises the loss

    def build(self, **more: Any) -> losses.Loss:
        torch.manual_seed(0)
        return self.cls(**{**self.args, **more})

    def with_temperature(self, tau: float) -> losses.Loss:
        """The loss with every temperature it has set to `tau`."""
        have = set(self.build().__dict__) & {"tau", "tau1", "tau2", "tau_w"}
        if callable(self.args.get("tau")):
            have.discard("tau")
        return self.build(**dict.fromkeys(have, tau))


CASES = [
    Case("talos", losses.Talos, {"tau": 0.1}),
    Case("talos-balanced", losses.Talos, {"tau": 0.1, "positive_power": 0.3, "negative_weight": 1.2}),
    Case("talos-full", losses.Talos, {"tau": 0.1, "form": "full"}),
    Case("talos-no-quantile", losses.Talos, {"tau": 0.1, "quantile": False}),
    Case("talos-inner", losses.Talos, {"tau": 0.1, "temperature": "inner"}),
    Case("talos-no-denominator", losses.Talos, {"tau": 0.1, "denominator": False, "k": 5}),
    Case("talos-full-no-denominator", losses.Talos, {"form": "full", "denominator": False, "k": 5}),
    Case("talos-schedule", losses.Talos, {"tau": losses.geometric_schedule(0.2, 0.05)}),
    Case("talos-adaptive", losses.Talos, {"tau": losses.DRORadius(eta=0.5)}, exact_gradient=False),
    Case("sl", losses.Softmax, {"tau": 0.1}),
    Case("sl-balanced", losses.Softmax, {"tau": 0.1, "positive_power": 1.0, "negative_weight": 0.8}),
    Case("bsl", losses.BilateralSoftmax, {"tau1": 0.1, "tau2": 0.2}),
    Case("psl-tanh", losses.PairwiseSoftmax, {"tau": 0.1}),
    Case("psl-atan", losses.PairwiseSoftmax, {"tau": 0.3, "activation": "atan"}),
    Case("psl-relu", losses.PairwiseSoftmax, {"tau": 0.3, "activation": "relu"}),
    Case("advinfonce", losses.AdvInfoNCE, {"num_users": USERS, "num_items": ITEMS, "tau": 0.1}),
    Case("llpauc", losses.LLPAUC, {"alpha": 0.5, "beta": 0.1}),
    Case("aatp", losses.AATP),
    Case("rs@k", losses.RecallSurrogate, {"k": 3, "tau1": 0.1, "tau2": 1.0}),
    Case("smoothi@k", losses.SmoothI, {"k": 3, "tau": 0.1, "delta": 0.1}, exact_gradient=False),
    Case("smoothi@1", losses.SmoothI, {"k": 1, "tau": 0.1, "delta": 0.1}),
    Case("sl@k", losses.SoftmaxAtK, {"tau": 0.1, "tau_w": 0.5}, exact_gradient=False),
    Case(
        "sl@k-not-detached",
        losses.SoftmaxAtK,
        {"tau": 0.1, "tau_w": 0.5, "detach_weight": False, "offset": -0.7},
        monotone=False,
    ),
    Case("bpr", losses.BPR),
]


@pytest.fixture(params=CASES, ids=lambda case: case.label)
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


@pytest.fixture
def all_cases() -> list[Case]:
    return CASES


@pytest.fixture
def scores() -> Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Positive scores, negative scores and thresholds, as cosines would be."""

    def make(
        rows: int = 6, columns: int = 9, dtype: torch.dtype = torch.float64, seed: int = 1
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        rng = torch.Generator().manual_seed(seed)
        draw = lambda *shape: (torch.rand(*shape, generator=rng, dtype=torch.float64) * 2 - 1).to(dtype)  # noqa: E731
        return draw(rows), draw(rows, columns), draw(rows) / 2

    return make


@pytest.fixture
def call() -> Callable[..., torch.Tensor]:
    """Calls a loss with whatever it needs."""

    def run(
        loss: losses.Loss,
        pos: torch.Tensor,
        neg: torch.Tensor,
        threshold: torch.Tensor,
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        extra: dict[str, Any] = {}
        if loss.needs.threshold:
            extra["threshold"] = threshold
        if loss.needs.ids:
            extra["users"] = torch.arange(len(pos)) % USERS
            extra["items"] = torch.arange(neg.numel()).reshape(neg.shape) % ITEMS
        return loss(pos, neg, mask=mask, **extra)

    return run
