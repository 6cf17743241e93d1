"""The run config: everything that determines a run, frozen and validated, read from and written to TOML.

A config checks keys and numbers, but not the options of a loss, backbone or threshold: their classes do that when they
are made (`talos.registry`). `auto` lets the trainer choose; its choice is reported and stored with the run.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, Strict, ValidationError

from talos.errors import ConfigError, nearest

__all__ = [
    "EventsConfig",
    "NamedConfig",
    "OptimizerConfig",
    "RunConfig",
    "TrainingConfig",
    "flat_settings",
    "parse_assignment",
    "parse_half_life",
    "parse_value",
    "read_toml",
]


_SECONDS = {"h": 3600.0, "d": 86_400.0, "w": 7 * 86_400.0, "y": 365.25 * 86_400.0}


def parse_half_life(text: str) -> float:
    """Seconds in `12h`, `30d`, `8w` or `1.5y`.

    >>> parse_half_life("30d") / 86_400
    30.0
    """
    found = re.fullmatch(r"(\d+(?:\.\d*)?)\s*([hdwy])", text.strip())
    seconds = float(found[1]) * _SECONDS[found[2]] if found else 0.0
    if not seconds > 0:
        raise ValueError("a time such as 12h, 30d, 8w or 1y")
    return seconds


def _a_half_life(value: Any) -> Any:
    if value is not None:
        parse_half_life(str(value))
    return value


# Strict: a text, a flag or a fraction is no whole number, and a text is no number.
Count = Annotated[int, Strict(), Field(ge=1, le=2**53)]
Seed = Annotated[int, Strict(), Field(ge=0, lt=2**63)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class NamedConfig(BaseModel):
    """A choice by name (a short one, or `module:Class`) with its options, such as `name = "talos"`, `tau = 0.1`.

    >>> NamedConfig(name="talos", tau=0.1).options
    {'tau': 0.1}
    """

    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)

    name: str

    @property
    def options(self) -> dict[str, Any]:
        """Everything but the name."""
        return dict(self.model_extra or {})


class OptimizerConfig(_Section):
    """Adam with coupled weight decay.

    Attributes:
        lr: learning rate; `auto` picks 0.1 for cosine scores and 0.001 for dot products.
        weight_decay: λ of the L2 penalty, added to the gradient.
        lr_decay: factor on the learning rate after each epoch; `auto` is below 1 where batches are of users.
        rows: `touched` updates only the rows of a table that a step looked up (those of users in batches of users, who
            are there once an epoch, by `talos.training.optimizer.visited_row_adam_`); `all` is plain Adam.
    """

    lr: Annotated[float, Strict(), Field(gt=0)] | Literal["auto"] = "auto"
    weight_decay: Annotated[float, Strict(), Field(ge=0)] = 0.0
    lr_decay: Annotated[float, Strict(), Field(gt=0, le=1)] | Literal["auto"] = "auto"
    rows: Literal["auto", "touched", "all"] = "auto"


class TrainingConfig(_Section):
    """How long to train, in which mini-batches, and when to stop.

    Attributes:
        epochs: maximum number of epochs.
        init: starting vectors: `random`, or a quick factorisation of the interactions by alternating least squares
            (`als`) or singular value decomposition (`svd`).
        batch_size: of a mini-batch: users with all their positives, or positives if negatives are drawn for each.
        reduction: the loss is a mean over `positives` (the published code) or over `users` (the paper).
        evaluate_every: epochs between evaluations on the validation set.
        patience: epochs without a better validation metric before early stopping.
        min_gain: by what share a validation metric must exceed the best one to count as better for `patience`. Averaged
            weights may creep upwards for a hundred epochs and gain next to nothing.
        metric: the validation metric for early stopping; K is the run's.
        effort: how much is tried for the settings of the loss that are not given, where there is a validation set:
            `quick` takes a formula, `normal` races the temperature and the mean over positives, `high` all that
            the loss offers, other losses and the dimension. See `talos.studies.race`.
        averaging: weight of the newest epoch in the average of weights that is validated and kept: see
            `talos.training.averaging`; 1 keeps the weights as they are.
        prior: how much popularity counts for users with few training events, from 0; `auto` is the best on validation,
            or 0 without validation. See `talos.evaluation.popularity`.
        checkpoint_every: epochs between checkpoints.
        keep_checkpoints: how many of the newest checkpoints are kept.
        arithmetic: number format of the products in whole-batch kernels: `float32`, or `bfloat16` where the
            processor multiplies it faster (sums, tables, optimiser and evaluation stay float32); `auto` is
            `bfloat16` from 20 million scores an epoch. It has no effect where batches are of positives, for
            SmoothI@K, and where the processor lacks the instruction; the trainer's notes then say so.
        parallel: what several processes (see `talos.distributed`) divide: `users`, both users and `items`, or nothing
            (`none`: each trains on its own); `auto` is `users` until the catalogue is large or batches are small.
            With a single process every value behaves the same.
    """

    epochs: Count = 200
    init: Literal["auto", "random", "als", "svd"] = "auto"
    batch_size: Count | Literal["auto"] = "auto"
    reduction: Literal["positives", "users"] = "positives"
    evaluate_every: Count = 5
    patience: Count = 25
    min_gain: Annotated[float, Strict(), Field(ge=0, lt=1)] = 0.0
    metric: Literal["precision", "recall", "ndcg", "mrr", "hit_rate", "map"] = "precision"
    effort: Literal["quick", "normal", "high"] = "normal"
    averaging: Annotated[float, Strict(), Field(gt=0, le=1)] = 0.2
    prior: Annotated[float, Strict(), Field(ge=0)] | Literal["auto"] = "auto"
    checkpoint_every: Count = 5
    keep_checkpoints: Count = 2
    arithmetic: Literal["auto", "float32", "bfloat16"] = "auto"
    parallel: Literal["auto", "none", "users", "items"] = "auto"


class EventsConfig(_Section):
    """How much each interaction counts in training: see `talos.data.event_weights`.

    Attributes:
        weights: `equal`, in proportion to the `rating`, or by the number of `repeats`.
        half_life: the age after which an interaction counts half, such as `30d`; None if age does not matter.
    """

    weights: Literal["equal", "rating", "repeats"] = "equal"
    half_life: Annotated[str | None, BeforeValidator(_a_half_life)] = None


class RunConfig(_Section):
    """The config of one run. Equal configs on equal data give equal bytes on the same machine.

    `negatives` is a short form such as `shared:1024`, or, for a class of one's own, its name with its options.

    With a `baseline` nothing is trained: the sections of training are not part of the config, except
    `training.metric`, by which a study compares its trials.

    >>> config = RunConfig.from_dict({"k": 10, "loss": {"name": "sl", "tau": 0.2}})
    >>> config.loss.name, config.loss.options, config.backbone.name
    ('sl', {'tau': 0.2}, 'mf')
    >>> RunConfig.from_dict({"training": {"epoch": 3}})
    Traceback (most recent call last):
    talos.errors.ConfigError: training.epoch: no such key (did you mean 'epochs'?)
    >>> RunConfig.from_dict({"baseline": {"name": "ease"}, "loss": {"name": "sl"}})
    Traceback (most recent call last):
    talos.errors.ConfigError: loss: has no effect with a baseline; expected one of the two
    """

    k: Count = 20
    seed: Seed = 0
    device: str = "cpu"
    backbone: NamedConfig = NamedConfig(name="mf")
    loss: NamedConfig = NamedConfig(name="talos")
    negatives: str | NamedConfig = "auto"
    threshold: NamedConfig = NamedConfig(name="auto")
    events: EventsConfig = EventsConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    training: TrainingConfig = TrainingConfig()
    baseline: NamedConfig | None = None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], *, where: str = "") -> Self:
        """Validate nested plain values; the first mistake raises a `ConfigError` that names its key."""
        _check_baseline(values, where)
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise _explained(error, where) from None

    @classmethod
    def from_toml(cls, path: Path) -> Self:
        """Read a TOML file; its section `[data]` is left to `talos.data.options.read_source`."""
        values = read_toml(path, expected="a run config")
        values.pop("data", None)
        return cls.from_dict(values, where=str(path))

    def with_values(self, changes: Mapping[str, Any]) -> Self:
        """A copy with some values changed, by dotted name.

        A new name for `loss`, `backbone` or `threshold` drops the options of the old one, and a name for `baseline`
        everything that only training uses.

        >>> RunConfig().with_values({"loss.name": "sl", "loss.tau": 0.2, "training.epochs": 3}).training.epochs
        3
        """
        values = self.as_dict()
        if "baseline.name" in changes or "baseline" in changes:
            for key in _without_effect(values):
                _remove(values, key)
        for dotted, value in sorted(changes.items(), key=lambda change: not change[0].endswith(".name")):
            *path, last = dotted.split(".")
            section = values
            for name in path:
                section = section.setdefault(name, {})
                if not isinstance(section, dict):
                    raise ConfigError("is a value, not a section", where=dotted)
            if last == "name" and section.get("name") != value:
                section.clear()
            section[last] = value
        return type(self).from_dict(values)

    def for_catalogue(self, num_items: int) -> Self:
        """The config for so many items: the default K becomes all of them where they are fewer.

        >>> RunConfig().for_catalogue(12).k, RunConfig().for_catalogue(100).k, RunConfig(k=15).for_catalogue(12).k
        (12, 20, 15)
        """
        default = type(self).model_fields["k"].default
        return self.with_values({"k": num_items}) if 0 < num_items < self.k == default else self

    def as_dict(self) -> dict[str, Any]:
        """Nested plain values, ready for JSON; without those that have no effect."""
        values = self.model_dump()
        if self.baseline is None:
            del values["baseline"]
        else:
            for key in _without_effect(values):
                _remove(values, key)
        return values

    def to_toml(self) -> str:
        """The config as a TOML file that `from_toml` reads back.

        >>> print(RunConfig().to_toml().splitlines()[0])
        k = 20
        """
        values = self.as_dict()
        top = [
            f"{key} = {_toml_value(value)}" for key, value in values.items() if not isinstance(value, dict)
        ]
        sections = [
            "\n".join(
                [
                    f"[{name}]",
                    *(f"{key} = {_toml_value(value)}" for key, value in section.items() if value is not None),
                ]
            )
            for name, section in values.items()
            if isinstance(section, dict)
        ]
        return "\n\n".join(["\n".join(top), *sections]) + "\n"


def parse_assignment(text: str) -> tuple[str, Any]:
    """Key and value of `KEY=VALUE`.

    >>> parse_assignment("loss.tau=0.1")
    ('loss.tau', 0.1)
    >>> parse_assignment("loss.tau")
    Traceback (most recent call last):
    talos.errors.ConfigError: assignments: 'loss.tau'; expected KEY=VALUE, such as loss.tau=0.1
    """
    key, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"{text!r}", where="assignments", expected="KEY=VALUE, such as loss.tau=0.1")
    return key, parse_value(value)


def parse_value(text: str) -> Any:
    """A value as a command line has it: JSON, a number such as `.5`, or else a bare word.

    >>> parse_value("0.1"), parse_value(".5"), parse_value("true"), parse_value("shared:64")
    (0.1, 0.5, True, 'shared:64')
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        number = re.fullmatch(r"[+-]?(\d+\.\d*|\.\d+)(e[+-]?\d+)?", text, re.ASCII | re.IGNORECASE)
        return float(text) if number else text


def read_toml(path: Path, *, expected: str) -> dict[str, Any]:
    """The values of a TOML file; an error names the file and, if there is none, what was `expected`.

    >>> read_toml(Path("no-such.toml"), expected="a run config")
    Traceback (most recent call last):
    talos.errors.ConfigError: no-such.toml: no such file; expected a run config
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError("no such file", where=str(path), expected=expected) from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"not TOML: {error}", where=str(path)) from None


def flat_settings(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested values, such as those of `RunConfig.as_dict`, as text by dotted key; a range is one text.

    >>> flat_settings({"k": 20, "loss": {"tau": 0.1, "eta": {"low": 0.1, "high": 0.3}}})
    {'k': '20', 'loss.tau': '0.1', 'loss.eta': 'low 0.1 high 0.3'}
    """
    flat: dict[str, str] = {}
    for name, value in values.items():
        if not isinstance(value, Mapping):
            flat[f"{prefix}{name}"] = str(value)
        elif "low" in value:
            flat[f"{prefix}{name}"] = " ".join(f"{end} {number}" for end, number in value.items())
        else:
            flat |= flat_settings(value, f"{prefix}{name}.")
    return flat


# What a baseline does not use.
_OF_TRAINING = ("backbone", "loss", "negatives", "threshold", "events", "optimizer")


def _without_effect(values: Mapping[str, Any]) -> tuple[str, ...]:
    """The keys among nested plain values that have no effect with a baseline, dotted within `training`."""
    training = values.get("training", {})
    within = (
        [f"training.{key}" for key in training if key != "metric"] if isinstance(training, Mapping) else []
    )
    return (*(key for key in _OF_TRAINING if key in values), *within)


def _check_baseline(values: Any, where: str) -> None:
    """Refuse a baseline beside settings of training; what is no mapping is left to pydantic."""
    if not isinstance(values, Mapping) or values.get("baseline") is None:
        return
    for key in _without_effect(values):
        place = f"{where}: {key}" if where else key
        raise ConfigError("has no effect with a baseline", where=place, expected="one of the two")


def _remove(values: dict[str, Any], dotted: str) -> None:
    section, _, key = dotted.rpartition(".")
    del (values[section] if section else values)[key]


def _toml_value(value: Any) -> str:
    """A plain value as TOML writes it."""
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml_value, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def _explained(error: ValidationError, where: str) -> ConfigError:
    """The first of pydantic's errors as one of this library's."""
    first = error.errors(include_url=False)[0]
    unknown = (
        first["type"] == "extra_forbidden"
    )  # then every part of the location is a key that the user wrote
    names = [str(part) for part in first["loc"] if isinstance(part, str) and (unknown or not _is_type(part))]
    place = f"{where}: {'.'.join(names)}" if where else ".".join(names)
    if unknown:
        section: type[BaseModel] = RunConfig
        for name in names[:-1]:
            section = section.model_fields[name].annotation  # type: ignore[assignment]  # sections are models
        return ConfigError("no such key", where=place, hint=nearest(names[-1], section.model_fields))
    if first["type"] == "missing":
        return ConfigError("is missing", where=place, expected="a value")
    message = first["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    if first["type"] == "model_type":
        message = "a section" + (f", such as {names[-1]}.name" if names and names[-1] in _CHOICES else "")
    value = first["input"]
    hint = None
    if first["type"] == "literal_error" and isinstance(value, str):
        hint = nearest(value, re.findall(r"'([^']+)'", message))
    return ConfigError(_shown(value), where=place, expected=message, hint=hint)


_CHOICES = ("backbone", "loss", "negatives", "threshold", "baseline")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _is_type(part: str) -> bool:
    """Whether a part of pydantic's location is no key of the user's but a branch of a union type."""
    return "[" in part or "-" in part or part in ("float", "int", "str", "NamedConfig")
