"""Search spaces as data: which keys of the config vary, and over what.

A space is written like a run config, with a list of values or a range in place of a value:

    [loss]
    tau = [0.05, 0.1, 0.2]                              # one of these
    [optimizer]
    lr = { low = 0.003, high = 0.3, log = true }        # anything between, evenly by ratio
    weight_decay = 0.0                                  # a plain value is fixed
    [backbone]
    dim = { low = 32, high = 128, step = 32 }           # whole numbers, since both ends are
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from talos.errors import ConfigError, nearest

__all__ = ["Choice", "Entry", "Range", "Space"]

_DECIDED_ELSEWHERE = {
    "k": "the run's K: what is searched for must stay the same",
    "seed": "--seed: luck is not a hyperparameter",
    "device": "the config's",
    "loss.name": "--loss: one study is about one loss (`talos compare --tuned` for several)",
    "backbone.name": "--backbone: one study is about one backbone",
    "training.metric": "--metric: what is searched for must stay the same",
    "training.evaluate_every": "the config's: trials are compared epoch by epoch",
}
_LARGEST_FILE = 1 << 20


@dataclass(frozen=True)
class Choice:
    """One of these values.

    >>> Choice((0.1, 0.2)).corners
    (0.1, 0.2)
    """

    values: tuple[Any, ...]

    @property
    def corners(self) -> tuple[Any, ...]:
        """Values that must all be valid for the entry to be."""
        return self.values

    def contains(self, value: Any) -> bool:
        """Whether a value is one of them."""
        return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in self.values)

    def as_plain(self) -> Any:
        """As a file says it."""
        return list(self.values)


@dataclass(frozen=True)
class Range:
    """Anything from low to high: whole numbers if both ends are, evenly by ratio if `log`, in steps if asked.

    >>> Range(0.01, 1.0, log=True).contains(0.5), Range(32, 128, step=32).corners
    (True, (32, 128))
    """

    low: float
    high: float
    log: bool = False
    step: float | None = None

    @property
    def whole(self) -> bool:
        """Whether the values are whole numbers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def corners(self) -> tuple[Any, ...]:
        """Values that must all be valid for the entry to be."""
        return (self.low, self.high)

    def contains(self, value: Any) -> bool:
        """Whether a value lies in the range."""
        if not isinstance(value, int | float) or isinstance(value, bool):
            return False
        if (self.whole and not isinstance(value, int)) or not self.low <= value <= self.high:
            return False
        return self.step is None or math.isclose(
            (value - self.low) / self.step, round((value - self.low) / self.step)
        )

    def as_plain(self) -> Any:
        """As a file says it."""
        plain: dict[str, Any] = {"low": self.low, "high": self.high}
        plain |= {"log": True} if self.log else {}
        return plain | ({} if self.step is None else {"step": self.step})


Entry: TypeAlias = Choice | Range


@dataclass(frozen=True, kw_only=True)
class Space:
    """What varies, by dotted key of the config, and what is fixed beside it.

    >>> space = Space.from_dict({"loss": {"tau": [0.1, 0.2]}, "optimizer": {"lr": {"low": 0.01, "high": 0.1}}})
    >>> list(space.entries), space.size
    (['loss.tau', 'optimizer.lr'], None)
    >>> Space.from_dict({"loss": {"tau": []}})
    Traceback (most recent call last):
    talos.errors.ConfigError: loss.tau: an empty list; expected at least one value
    """

    entries: Mapping[str, Entry]
    fixed: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], *, where: str = "") -> Space:
        """From nested or dotted plain values; the first thing that is wrong is named, with `where` before it."""
        entries: dict[str, Entry] = {}
        fixed: dict[str, Any] = {}
        for key, value in _leaves(values):
            place = f"{where}: {key}" if where else key
            if key in _DECIDED_ELSEWHERE:
                raise ConfigError("cannot be searched", where=place, expected=_DECIDED_ELSEWHERE[key])
            if isinstance(value, list | tuple):
                entries[key] = _choice(value, place)
            elif isinstance(value, Mapping):
                entries[key] = _range(value, place)
            else:
                fixed[key] = value
        if not entries:
            raise ConfigError(
                "nothing varies", where=where or "space", expected="at least one list of values or range"
            )
        return cls(entries=entries, fixed=fixed)

    @classmethod
    def from_toml(cls, path: Path) -> Space:
        """From a TOML file."""
        try:
            if path.stat().st_size > _LARGEST_FILE:
                raise ConfigError("is too large", where=str(path), expected="a search space")
            values = tomllib.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ConfigError(
                "no such file", where=str(path), expected="`default`, `paper` or a TOML file"
            ) from None
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ConfigError(f"not TOML: {error}", where=str(path)) from None
        return cls.from_dict(values, where=str(path))

    @property
    def size(self) -> int | None:
        """How many points there are; None if a range makes them endless."""
        lengths = [len(entry.values) for entry in self.entries.values() if isinstance(entry, Choice)]
        return math.prod(lengths) if len(lengths) == len(self.entries) else None

    def point(self, place: int, *, seed: int) -> dict[str, Any]:
        """The point at a place of a random order of the whole grid, which the seed decides.

        >>> space = Space.from_dict({"loss": {"tau": [0.1, 0.2]}, "optimizer": {"lr": [0.1, 0.01]}})
        >>> len({tuple(space.point(i, seed=0).values()) for i in range(4)})
        4
        """
        assert self.size is not None
        code = int(np.random.default_rng(seed).permutation(self.size)[place])
        point = {}
        for key, entry in self.entries.items():
            assert isinstance(entry, Choice)
            code, index = divmod(code, len(entry.values))
            point[key] = entry.values[index]
        return point

    def contains(self, point: Mapping[str, Any]) -> bool:
        """Whether a point gives every entry a value within it."""
        return all(key in point and entry.contains(point[key]) for key, entry in self.entries.items())

    def as_dict(self) -> dict[str, Any]:
        """Dotted keys and plain values, which `from_dict` reads back."""
        return {**{key: entry.as_plain() for key, entry in self.entries.items()}, **self.fixed}


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and what stands there: a table with `low` or `high` is a range, any other a section."""
    for key, value in values.items():
        if isinstance(value, Mapping) and not {"low", "high"} & set(value):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _choice(values: list[Any] | tuple[Any, ...], place: str) -> Choice:
    if not values:
        raise ConfigError("an empty list", where=place, expected="at least one value")
    for value in values:
        if not isinstance(value, str | int | float | bool):
            raise ConfigError(f"{value!r}", where=place, expected="numbers, words or flags in the list")
    if len(set(map(repr, values))) < len(values):
        raise ConfigError(f"{list(values)}", where=place, expected="each value once")
    return Choice(tuple(values))


def _range(values: Mapping[str, Any], place: str) -> Range:
    known = ("low", "high", "log", "step")
    for name in values:
        if name not in known:
            raise ConfigError(f"no {name!r} in a range", where=place, hint=nearest(name, known))
    for name in ("low", "high", "step"):
        value = values.get(name, 1)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ConfigError(f"{name} = {value!r}", where=place, expected="a number")
    if "low" not in values or "high" not in values:
        raise ConfigError("half a range", where=place, expected="low and high")
    low, high, log, step = values["low"], values["high"], values.get("log", False), values.get("step")
    if not isinstance(log, bool):
        raise ConfigError(f"log = {log!r}", where=place, expected="true or false")
    if not low < high:
        raise ConfigError(f"an empty range, {low} to {high}", where=place, expected="low below high")
    if log and (low <= 0 or step is not None):
        raise ConfigError(
            f"a range by ratio from {low}" if low <= 0 else "a range by ratio in steps",
            where=place,
            expected="low above 0 and no step",
        )
    if step is not None and not 0 < step <= high - low:
        raise ConfigError(f"step = {step}", where=place, expected=f"above 0, at most {high - low}")
    return Range(low, high, log, step)
