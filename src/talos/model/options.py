"""Options of the constructor by their bare names, as the config knows them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from talos.config import OptimizerConfig, RunConfig, TrainingConfig
from talos.errors import ConfigError

__all__ = ["place_of"]

_BACKBONE = ("dim", "layers", "epsilon", "contrast_layer", "contrast_temperature", "contrast_weight")
_SECTIONS: Mapping[str, Collection[str]] = {
    "optimizer": OptimizerConfig.model_fields,
    "training": TrainingConfig.model_fields,
    "backbone": _BACKBONE,
}


def place_of(name: str) -> str:
    """Where in the config an option given by its bare name belongs; hyperparameters of the loss are the rest.

    >>> place_of("epochs"), place_of("tau"), place_of("threshold.lr")
    ('training.epochs', 'loss.tau', 'threshold.lr')
    """
    for section, names in _SECTIONS.items():
        if name in names:
            return f"{section}.{name}"
    if "." in name and name.split(".")[0] not in RunConfig.model_fields:
        raise ConfigError("no such section", where=name, expected="one of the config's sections")
    return name if "." in name else f"loss.{name}"
