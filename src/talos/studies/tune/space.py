"""Search spaces: which keys of the config vary, as Optuna's distributions, and the check that a run could use them.

A space is written like a run config, with a list of values or a range in place of a value:

    [loss]
    tau = [0.05, 0.1, 0.2]                              # one of these
    [optimizer]
    lr = { low = 0.003, high = 0.3, log = true }        # anything between, on a log scale
    weight_decay = 0.0                                  # a plain value is fixed
    [backbone]
    dim = { low = 32, high = 128, step = 32 }           # whole numbers, since both ends are
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from talos import registry
from talos.checks import require
from talos.config import RunConfig, read_toml
from talos.data.interactions import Interactions
from talos.errors import ConfigError, InputError, nearest
from talos.training import Trainer

__all__ = ["Entry", "Space", "check_space", "default_point", "default_space"]

_FIXED_BY_CONFIG = {
    "k": "the value of the config: all trials must maximise the same metric",
    "seed": "the value of the config: the best seed is luck, not a better setting",
    "device": "the value of the config",
    "loss.name": "the loss of the config: tune each loss in a study of its own",
    "backbone.name": "the backbone of the config: tune each backbone in a study of its own",
    "baseline.name": "the baseline of the config: tune each baseline in a study of its own",
    "training.metric": "the value of the config: all trials must maximise the same metric",
    "training.evaluate_every": "the value of the config: the pruner compares trials at the same epochs",
}
_NAMED = ("loss", "backbone", "threshold", "baseline")  # sections of a name with options of its own
_RANGE = ("low", "high", "log", "step")


Entry: TypeAlias = CategoricalDistribution | FloatDistribution | IntDistribution


@dataclass(frozen=True, kw_only=True)
class Space:
    """A search space: entries that vary, by dotted key of the config, and values that are fixed.

    >>> space = Space.from_dict({"loss": {"tau": [0.1, 0.2]}, "optimizer": {"lr": {"low": 0.01, "high": 0.1}}})
    >>> list(space.entries), space.size
    (['loss.tau', 'optimizer.lr'], None)
    >>> Space.from_dict({"loss": {"tau": []}})
    Traceback (most recent call last):
    talos.errors.ConfigError: loss.tau: []; expected a list of different numbers, strings or booleans
    """

    entries: Mapping[str, Entry]
    fixed: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], *, where: str = "") -> Space:
        """Read nested or dotted plain values; an error names the wrong key, with `where` (a file name) before it."""
        entries: dict[str, Entry] = {}
        fixed: dict[str, Any] = {}
        for key, value in _leaves(values):
            place = f"{where}: {key}" if where else key
            require(
                key not in _FIXED_BY_CONFIG,
                "cannot be searched",
                where=place,
                expected=_FIXED_BY_CONFIG.get(key),
                error=ConfigError,
            )
            if isinstance(value, list | tuple | Mapping):
                entries[key] = _distribution(value, place)
            else:
                fixed[key] = value
        require(
            bool(entries),
            "nothing varies",
            where=where or "space",
            expected="at least one list of values or range",
            error=ConfigError,
        )
        return cls(entries=entries, fixed=fixed)

    @classmethod
    def from_toml(cls, path: Path) -> Space:
        """Read a TOML file."""
        return cls.from_dict(read_toml(path, expected="`default`, `paper` or a TOML file"), where=str(path))

    @property
    def size(self) -> int | None:
        """The number of points of the grid; None if an entry is a range."""
        lists = [
            entry.choices for entry in self.entries.values() if isinstance(entry, CategoricalDistribution)
        ]
        return math.prod(map(len, lists)) if len(lists) == len(self.entries) else None

    def point(self, place: int, *, seed: int) -> dict[str, Any]:
        """The point at position `place` of the whole grid in a random order, which follows from the seed.

        >>> space = Space.from_dict({"loss": {"tau": [0.1, 0.2]}, "optimizer": {"lr": [0.1, 0.01]}})
        >>> len({tuple(space.point(i, seed=0).values()) for i in range(4)})
        4
        """
        lists = {key: _corners(entry) for key, entry in self.entries.items()}
        code = np.random.default_rng(seed).permutation(self.size or 0)[place]
        indices = np.unravel_index(code, [len(values) for values in lists.values()], order="F")
        return {key: values[index] for (key, values), index in zip(lists.items(), indices, strict=True)}

    def contains(self, point: Mapping[str, Any]) -> bool:
        """Whether a point has a valid value for every entry."""
        return all(key in point and _holds(entry, point[key]) for key, entry in self.entries.items())

    def as_dict(self) -> dict[str, Any]:
        """Plain values by dotted key, which `from_dict` reads back."""
        return {**{key: _plain(entry) for key, entry in self.entries.items()}, **self.fixed}


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and their values; a table with `low` or `high` is a range, any other table a section."""
    for key, value in values.items():
        if isinstance(value, Mapping) and not {"low", "high"} & set(value):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _distribution(value: Any, place: str) -> Entry:
    """The distribution of a list of values or of a range."""
    check = partial(require, where=place, error=ConfigError)
    if not isinstance(value, Mapping):
        plain = bool(value) and all(isinstance(one, str | int | float) for one in value)
        different = len(set(map(repr, value))) == len(value)
        check(
            plain and different, f"{list(value)}", expected="a list of different numbers, strings or booleans"
        )
        return CategoricalDistribution(value)
    for name, one in value.items():
        check(name in _RANGE, f"no {name!r} in a range", hint=nearest(name, _RANGE))
        number = isinstance(one, int | float) and math.isfinite(one)
        check(
            number and isinstance(one, bool) == (name == "log"),
            f"{name} = {one!r}",
            expected="true or false" if name == "log" else "a number",
        )
    check({"low", "high"} <= value.keys(), "an incomplete range", expected="low and high")
    check(
        0 < value["high"] - value["low"] >= value.get("step", 0),
        f"an empty range, {value['low']} to {value['high']}",
        expected="low below high, by a step at least",
    )
    try:
        whole = all(isinstance(one, int) for one in value.values())
        return IntDistribution(**value) if whole else FloatDistribution(**value)
    except ValueError as error:  # the message of Optuna, as about a log range from 0
        raise ConfigError(f"{error}", where=place) from None


def _corners(entry: Entry) -> Sequence[Any]:
    """Values to check: if all of them are valid, the entry is."""
    return entry.choices if isinstance(entry, CategoricalDistribution) else (entry.low, entry.high)


def _plain(entry: Entry) -> Any:
    """The entry as it is written in a file."""
    if isinstance(entry, CategoricalDistribution):
        return list(entry.choices)
    plain = {name: getattr(entry, name) for name in _RANGE}
    return {name: value for name, value in plain.items() if value is not None and value is not False}


def _holds(entry: Entry, value: Any) -> bool:
    if isinstance(entry, CategoricalDistribution):
        return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in entry.choices)
    fits = isinstance(value, int if isinstance(entry, IntDistribution) else int | float)
    if not fits or isinstance(value, bool) or not entry.low <= value <= entry.high:
        return False
    steps = (value - entry.low) / (entry.step or 1)
    return entry.step is None or math.isclose(steps, round(steps))


def check_space(space: Space, base: RunConfig, *, where: str = "") -> RunConfig:
    """Build a tiny model with the extreme values of every entry; returns the base config with the fixed values set.

    An entry that no run could use is a `ConfigError`: a key that does not exist (the nearest name is suggested), a
    value that the loss, the backbone or the schema refuses, or a key without effect. `where` is the file of the space.

    >>> check_space(Space.from_dict({"loss": {"tau": [0.1, 0.0]}}), RunConfig())
    Traceback (most recent call last):
    talos.errors.ConfigError: loss.tau: got 0.0; expected a finite number above 0
    >>> check_space(Space.from_dict({"training": {"epoch": [3]}}), RunConfig())
    Traceback (most recent call last):
    talos.errors.ConfigError: training.epoch: no such key (did you mean 'epochs'?)
    """
    for key, value in space.fixed.items():
        with _located(key, where):
            base.with_values({key: value})
    settled = base.with_values(space.fixed)
    for key, value in ((key, value) for key, entry in space.entries.items() for value in _corners(entry)):
        with _located(key, where):
            section, _, name = key.rpartition(".")
            resolved = _toy_config(settled.with_values({key: value}))
            chosen = getattr(resolved, section) if section in _NAMED else None
            if chosen is not None and name not in chosen.options:
                raise ConfigError(
                    "has no effect",
                    expected=f"an option of the {section} {chosen.name!r}",
                    hint=f"fix {section}.name in the space",
                )
    return settled


def default_point(space: Space, base: RunConfig) -> dict[str, Any] | None:
    """The point of the space that the base config stands for; None if one of its values is outside the space.

    >>> default_point(Space.from_dict({"loss": {"tau": [0.1, 0.2]}}), RunConfig())
    {'loss.tau': 0.1}
    >>> default_point(Space.from_dict({"loss": {"tau": [0.2, 0.3]}}), RunConfig()) is None
    True
    """
    values = _toy_config(base).as_dict()
    kinds: tuple[registry.Kind, ...] = ("loss", "backbone", "baseline")
    for kind in kinds:
        if kind in values:
            values[kind] = {**registry.options(kind, values[kind]["name"]), **values[kind]}
    point = {}
    for key in space.entries:
        section, _, name = key.rpartition(".")
        point[key] = (values[section] if section else values).get(name)
    return point if space.contains(point) else None


def default_space(config: RunConfig) -> Space:
    """What the chosen loss and backbone, or the baseline, state as their search space; and the optimiser's numbers.

    Every default of the config lies within it, so that the first trial can be the defaults themselves and the result
    is never worse than they are on the validation set.

    >>> list(default_space(RunConfig()).entries)
    ['loss.tau', 'optimizer.lr', 'optimizer.weight_decay', 'optimizer.lr_decay']
    """
    if config.baseline is not None:
        space = registry.search_space("baseline", config.baseline.name)
        require(
            bool(space),
            f"the baseline {config.baseline.name!r} has nothing to choose",
            where="baseline",
            expected="a baseline with options",
            error=ConfigError,
        )
        return Space.from_dict({"baseline": space})
    loss = registry.make_loss(
        config.loss, generator=torch.Generator(), k=config.k, num_users=1, num_items=config.k
    )
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


def _toy_config(config: RunConfig) -> RunConfig:
    """The config with every `auto` resolved, by a trainer on a handful of interactions that is built and never run."""
    if config.baseline is not None:
        registry.make_baseline(config.baseline)
        return config
    items = config.k + 2
    # the last user has all items, so that the catalogue has k + 2 of them, and is not trained on
    pairs = [*((n // 2, n % items) for n in range(6)), *((3, item) for item in range(items))]
    data = Interactions.from_ids(*zip(*pairs, strict=True))
    return Trainer(config.with_values({"device": "cpu"}), data.where(data.rows < 3)).config


@contextlib.contextmanager
def _located(key: str, where: str) -> Iterator[None]:
    """Errors within are located at this entry of the space, or at the section that does not exist."""
    try:
        yield
    except InputError as error:
        place = error.where if error.where and key.startswith(f"{error.where}.") else key
        place = f"{where}: {place}" if where else place
        raise ConfigError(error.what, where=place, expected=error.expected, hint=error.hint) from None
