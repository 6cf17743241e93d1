"""Arguments of a recommender's constructor, as the config holds them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from talos import registry
from talos.config import OptimizerConfig, RunConfig, TrainingConfig
from talos.errors import ArgumentError, ConfigError

__all__ = ["configured", "place_of"]


def configured(
    config: RunConfig, choices: Mapping[registry.Kind, Any], options: Mapping[str, Any]
) -> RunConfig:
    """A config with other choices (names, classes or objects; None leaves one as it is) and options.

    An object sets all its options, also those at their defaults; a name keeps what the config has for it.

    >>> from talos.losses import Softmax
    >>> configured(RunConfig(), {"loss": Softmax(tau=0.2)}, {"dim": 8}).loss.options
    {'tau': 0.2}
    """
    changes: dict[str, Any] = {}
    for kind, choice in choices.items():
        if choice is None:
            continue
        held = registry.config_of(kind, choice)
        changes[kind if kind == "negatives" or isinstance(held, dict) else f"{kind}.name"] = held
        k = getattr(choice, "k", None)
        if isinstance(held, dict) and "k" in choice.context and k not in (None, config.k):
            raise ArgumentError(f"was made with k={k}", where=kind, expected=f"k={config.k}, that of the run")
    config = config.with_values(changes)
    return config.with_values({place_of(name, config): value for name, value in options.items()})


def place_of(name: str, config: RunConfig) -> str:
    """Where in a config an option given by its bare name belongs.

    The first that has the option among the optimiser, the training, the chosen backbone and the chosen loss; the
    loss also gets a name that nobody has, and refuses it when it is made. Dotted names are places already.

    >>> place_of("epochs", RunConfig()), place_of("tau", RunConfig()), place_of("threshold.lr", RunConfig())
    ('training.epochs', 'loss.tau', 'threshold.lr')
    """
    if "." in name:
        if name.split(".")[0] not in RunConfig.model_fields:
            raise ConfigError("no such section", where=name, expected="one of the config's sections")
        return name
    for section, fields in (("optimizer", OptimizerConfig), ("training", TrainingConfig)):
        if name in fields.model_fields:
            return f"{section}.{name}"
    section = "backbone" if name in registry.options("backbone", config.backbone.name) else "loss"
    return f"{section}.{name}"
