"""Thresholds: for every user, an estimate of the score of their K-th best item.

Talos, AATP and SL@K compare scores with β_u, which moves as the model learns. Four estimators stand behind
one interface; a trainer asks `needs_full_row` whether sampled negatives will do, and calls `update` or
`update_rows` with detached scores once a step. All are `nn.Module`s that hold buffers only, so `state_dict`,
`load_state_dict` and `.to(device)` work as usual and no optimiser of the model ever touches them.
"""

from __future__ import annotations

import inspect
from typing import Any

from torch import Tensor

from talos.errors import ArgumentError, nearest
from talos.thresholds.base import Threshold
from talos.thresholds.fixed import FixedThreshold
from talos.thresholds.kth import ExactQuantile, MonteCarloQuantile
from talos.thresholds.regression import QuantileRegression, pinball

__all__ = [
    "SHORT_NAMES",
    "ExactQuantile",
    "FixedThreshold",
    "MonteCarloQuantile",
    "QuantileRegression",
    "Threshold",
    "by_name",
    "pinball",
]

SHORT_NAMES: dict[str, type[Threshold]] = {
    exported.short_name: exported
    for exported in (globals().get(name) for name in __all__)
    if isinstance(exported, type) and issubclass(exported, Threshold) and exported.short_name
}
"""Short name → class, for configurations and the command line: the estimators among `__all__`."""


def by_name(
    name: str,
    *,
    num_users: int,
    k: int,
    num_items: int,
    num_positives: Tensor | None = None,
    **options: Any,
) -> Threshold:
    """The estimator of a short name; what describes the run goes to those that ask for it.

    >>> by_name("regression", num_users=3, k=2, num_items=10, lr=0.01)
    QuantileRegression(3, k=2, num_items=10)
    >>> by_name("fixed", num_users=3, k=2, num_items=10, value=0.2)
    FixedThreshold(0.2)
    >>> by_name("exakt", num_users=3, k=2, num_items=10)
    Traceback (most recent call last):
    talos.errors.ArgumentError: name: no threshold is called 'exakt'; expected ... (did you mean 'exact'?)
    """
    if name not in SHORT_NAMES:
        hint = nearest(name, SHORT_NAMES)
        raise ArgumentError(
            f"no threshold is called {name!r}", where="name", expected="a short name", hint=hint
        )
    estimator = SHORT_NAMES[name]
    accepted = inspect.signature(estimator).parameters
    run = {"num_users": num_users, "k": k, "num_items": num_items, "num_positives": num_positives}
    for option in options:
        if option not in accepted or option in run:
            hint = nearest(option, [argument for argument in accepted if argument not in run])
            raise ArgumentError(f"the threshold {name!r} has no such argument", where=option, hint=hint)
    return estimator(**{key: value for key, value in run.items() if key in accepted}, **options)
