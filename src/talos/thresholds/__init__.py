"""Thresholds: for every user, an estimate of the score of their K-th best item.

Talos, AATP and SL@K compare scores with β_u, which changes as the model learns. Five estimators share one
interface: `needs_full_row` says whether sampled negatives are enough, and a trainer calls `update` or `update_rows`
with detached scores once a step. All are `nn.Module`s that hold buffers only, so `state_dict`, `load_state_dict`
and `.to(device)` work as usual and the model's optimiser never touches them.
"""

from talos.thresholds.base import Sample, Threshold
from talos.thresholds.kth import ExactQuantile, FixedThreshold, MonteCarloQuantile
from talos.thresholds.regression import QuantileRegression, pinball
from talos.thresholds.running import RunningQuantile

__all__ = [
    "ExactQuantile",
    "FixedThreshold",
    "MonteCarloQuantile",
    "QuantileRegression",
    "RunningQuantile",
    "Sample",
    "Threshold",
    "pinball",
]
