"""The default search space: what the chosen loss and backbone state themselves, and the optimiser's numbers.

Every default of the config lies within it, so that the first trial can be the defaults themselves and the result
is never worse than they are on the validation set.
"""

from __future__ import annotations

from typing import Any

from talos.config import RunConfig
from talos.studies.tune.space import Space

__all__ = ["default_space"]


def default_space(config: RunConfig) -> Space:
    """The space for the loss and the backbone of a config.

    >>> list(default_space(RunConfig()).entries)
    ['loss.tau', 'optimizer.lr', 'optimizer.weight_decay', 'optimizer.lr_decay']
    """
    import torch

    from talos import registry

    sizes = {"k": config.k, "num_users": 1, "num_items": config.k}
    loss = registry.make_loss(config.loss, generator=torch.Generator(), **sizes)
    bounded = loss.needs.scores == "cosine"  # dot products have no bound and need smaller steps
    values: dict[str, Any] = {
        "loss": registry.search_space("loss", config.loss.name),
        "backbone": registry.search_space("backbone", config.backbone.name),
        "optimizer": {
            "lr": {"low": 0.005 if bounded else 1e-4, "high": 0.3 if bounded else 0.1, "log": True},
            "weight_decay": [0.0, 1e-8, 1e-6, 1e-4] if bounded else [0.0, 1e-8, 1e-6, 1e-5, 1e-4],
            "lr_decay": [1.0, 0.97, 0.94, 0.9],
        },
    }
    return Space.from_dict(values)
