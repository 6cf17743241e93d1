"""The theorems as numbers to plot: the bound over τ, the worst case over negatives, convergence."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch

from talos_paper.theory import bound_curve, convergence, tau_interval, worst_cases

__all__ = ["measure"]

EPSILONS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-6, 1e-8)
TAUS = (0.05, 0.06, 0.07, 0.08, 0.085, 0.09, 0.095, 0.1, 0.11, 0.12, 0.15, 0.2, 0.3, 0.5, 1.0)
_SHOWN_STEPS = 40


def measure() -> dict[str, Any]:
    """Curves on made-up scores, all from seeds."""
    negatives = torch.linspace(-1, 1, 21, dtype=torch.float64).tolist()
    descent = convergence()
    every = max(1, len(descent.loss) // _SHOWN_STEPS)
    return {
        "epsilon": 1e-3,
        "intervals": [asdict(tau_interval(epsilon)) for epsilon in EPSILONS],
        "bound": [_rounded(asdict(point)) for point in bound_curve(TAUS)],
        "negatives": [round(value, 3) for value in negatives],
        "threshold": 0.5,
        "worst": [
            _rounded(asdict(case)) for case in worst_cases(negatives, (0.05, 0.1, 0.2, 0.5), threshold=0.5)
        ],
        "convergence": {
            "tau": descent.tau,
            "steps": [1 + step for step in range(0, len(descent.loss), every)],
            "running_mean": [round(value, 6) for value in descent.running_mean[::every]],
            "allowed": [round(value, 6) for value in descent.bound[::every]],
            "loss": [round(value, 6) for value in descent.loss[::every]],
        },
    }


def _rounded(values: dict[str, Any]) -> dict[str, Any]:
    """Six places are enough for a plot."""
    plain: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, tuple):
            plain[name] = [round(one, 6) for one in value]
        else:
            plain[name] = round(value, 6) if isinstance(value, float) else value
    return plain
