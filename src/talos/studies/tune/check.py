"""A space is checked against the config's schema, the loss, the backbone and the threshold before anything runs."""

from __future__ import annotations

import inspect
from typing import Any

from talos.config import RunConfig
from talos.errors import ConfigError, InputError
from talos.studies.tune.space import Space

__all__ = ["check_space", "default_point"]


def check_space(space: Space, base: RunConfig, *, where: str = "") -> RunConfig:
    """Try every value at the ends of every entry on a toy model; returns the base with what the space fixes.

    Raises:
        ConfigError: an entry that no run could use, by its name: a key that does not exist (with the nearest
            name), a value that the loss, the backbone or the schema refuses, or a key without effect.

    >>> check_space(Space.from_dict({"loss": {"tau": [0.1, 0.0]}}), RunConfig())
    Traceback (most recent call last):
    talos.errors.ConfigError: loss.tau: got 0.0; expected a finite number above 0
    >>> check_space(Space.from_dict({"training": {"epoch": [3]}}), RunConfig())
    Traceback (most recent call last):
    talos.errors.ConfigError: training.epoch: no such key (did you mean 'epochs'?)
    """
    for key, value in space.fixed.items():
        _with(base, {key: value}, key, where)
    # what needs no torch comes first: most mistakes are found at once
    for key, entry in space.entries.items():
        for value in entry.corners:
            _with(base, {key: value}, key, where)
            if key.startswith("loss.tau") and isinstance(value, int | float) and value <= 0:
                raise ConfigError(
                    f"got {value}", where=_place(key, where), expected="a finite number above 0"
                )
    settled = base.with_values(space.fixed)
    for key, entry in space.entries.items():
        for value in entry.corners:
            _build(_with(settled, {key: value}, key, where), key, where)
    return settled


def default_point(space: Space, base: RunConfig) -> dict[str, Any] | None:
    """The values that the base config has where the space varies; None if one of them lies outside.

    >>> default_point(Space.from_dict({"loss": {"tau": [0.1, 0.2]}}), RunConfig())
    {'loss.tau': 0.1}
    >>> default_point(Space.from_dict({"loss": {"tau": [0.2, 0.3]}}), RunConfig()) is None
    True
    """
    resolved = _toy(base).config
    point = {key: _value_of(resolved, key) for key in space.entries}
    return point if space.contains(point) else None


def _value_of(config: RunConfig, key: str) -> Any:
    section, _, name = key.rpartition(".")
    if not section:
        return getattr(config, key)
    part = getattr(config, section)
    if section not in ("loss", "backbone", "threshold"):
        return getattr(part, name)
    if name in part.options:
        return part.options[name]
    if section == "threshold":
        return None
    from talos import registry

    default = registry.options("loss" if section == "loss" else "backbone", part.name).get(name)
    return None if default is inspect.Parameter.empty else default


def _with(base: RunConfig, changes: dict[str, Any], key: str, where: str) -> RunConfig:
    try:
        return base.with_values(changes)
    except ConfigError as error:
        raise _named(error, key, where) from None


def _build(config: RunConfig, key: str, where: str) -> None:
    try:
        resolved = _toy(config).config
    except InputError as error:
        raise _named(error, key, where) from None
    section, _, name = key.rpartition(".")
    if section in ("loss", "backbone", "threshold") and name not in getattr(resolved, section).options:
        chosen = getattr(resolved, section).name
        raise ConfigError(
            "has no effect",
            where=_place(key, where),
            expected=f"an option of the {section} {chosen!r}",
            hint=f"fix {section}.name in the space",
        )


def _toy(config: RunConfig) -> Any:
    """A trainer of this config on a handful of interactions: built, never run."""
    import numpy as np

    from talos.data.interactions import Interactions
    from talos.training import Trainer

    items = config.k + 2
    users = np.repeat(np.arange(3), 2)
    data = Interactions.from_ids(np.concatenate([users, np.full(items, 3)]),
                                 np.concatenate([np.arange(6) % items, np.arange(items)]))  # fmt: skip
    # the last user has everything: it only makes sure that there are enough items
    return Trainer(config.with_values({"device": "cpu"}), data.where(data.rows < 3))


def _named(error: InputError, key: str, where: str) -> ConfigError:
    """The same complaint, with the entry of the space, or the section that does not exist, as its place."""
    key = error.where if error.where and key.startswith(f"{error.where}.") else key
    return ConfigError(error.what, where=_place(key, where), expected=error.expected, hint=error.hint)


def _place(key: str, where: str) -> str:
    return f"{where}: {key}" if where else key
