"""The settings of a tuning study, and the sampler and pruner of Optuna that follow from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np

from talos.config import RunConfig
from talos.errors import ConfigError, DataError, nearest
from talos.files import digest_of
from talos.studies import folder
from talos.studies.tune.space import Choice, Space
from talos.studies.tune.storage import import_optuna

if TYPE_CHECKING:
    import optuna

__all__ = ["Pruner", "Sampler", "TuneSettings", "make_pruner", "make_sampler", "read_folder", "suggest"]

Sampler: TypeAlias = Literal["auto", "tpe", "random", "grid"]
Pruner: TypeAlias = Literal["median", "asha", "none"]

_STUDY = folder.FolderKind("study", "tune.json")
_LARGEST_GRID = 100  # points up to which `auto` tries them all
_STARTUP = 10  # random trials before TPE has enough to learn from


@dataclass(frozen=True, kw_only=True)
class TuneSettings:
    """What is searched, how, and on which data.

    Attributes:
        config: the config that every trial starts from; its `training.metric` at its `k` is maximised.
        space: what varies.
        sampler: `grid` (every point once, in a random order), `tpe` or `random`; `auto` is `grid` for spaces of
            up to 100 points and `tpe` for others.
        pruner: the rule that stops unpromising trials: `median` (below the median of the others at the same
            epoch), `asha` (successive halving) or `none`.
        seed: the seed of the search; the seed of training is in the config.
        data: fingerprints of train and validation.
    """

    config: RunConfig
    space: Space
    sampler: Sampler
    pruner: Pruner
    seed: int
    data: Mapping[str, str]

    def __post_init__(self) -> None:
        for name, known in (("sampler", get_args(Sampler)), ("pruner", get_args(Pruner))):
            value, expected = getattr(self, name), " or ".join(known)
            if value not in known:
                hint = nearest(str(value), known)
                raise ConfigError(f"{value!r}", where=name, expected=expected, hint=hint)
        seed: Any = self.seed
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise ConfigError(f"{seed!r}", where="seed", expected="a whole number from 0 on")
        if self.sampler == "grid" and self.space.size is None:
            ranged = next(key for key, entry in self.space.entries.items() if not isinstance(entry, Choice))
            raise ConfigError("is a range", where=ranged, expected="a list of values, for the sampler `grid`")

    @property
    def metric(self) -> str:
        """The metric that is maximised, such as `precision@20`."""
        return f"{self.config.training.metric}@{self.config.k}"

    @property
    def resolved_sampler(self) -> Sampler:
        """The sampler, with `auto` resolved."""
        if self.sampler != "auto":
            return self.sampler
        size = self.space.size
        return "grid" if size is not None and size <= _LARGEST_GRID else "tpe"

    @property
    def study_name(self) -> str:
        """A name that is the same exactly for equal settings and data, so that machines find the shared study."""
        return f"talos-{digest_of(self.as_dict())[:16]}"

    def limit(self, trials: int | None) -> int | None:
        """The number of trials to run: no more than the grid has points."""
        if self.resolved_sampler != "grid":
            return trials
        assert self.space.size is not None
        return self.space.size if trials is None else min(trials, self.space.size)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, which `from_dict` reads back."""
        config, space = self.config.as_dict(), self.space.as_dict()
        return {**vars(self), "config": config, "space": space, "data": dict(self.data)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], *, where: str) -> TuneSettings:
        """Read the values of `as_dict`; `where` is their file, for messages."""
        try:
            return cls(
                config=RunConfig.from_dict(values["config"], where=where),
                space=Space.from_dict(values["space"], where=where),
                **{name: values[name] for name in ("sampler", "pruner", "seed", "data")},
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise DataError(f"is damaged: {error} is missing or wrong", where=where) from None


def open_folder(out: Path, settings: TuneSettings, facts: Mapping[str, Any]) -> str:
    """Create or reopen the folder of a study and return the study's name; the folder of another study is refused.

    `facts` (the data source, the storage) are written beside the settings and may change. The name is kept from the
    first call, so that a folder stays usable when a later version adds settings and its names change.
    """
    where = str(out / _STUDY.manifest)
    kept = folder.open_folder(
        out,
        _STUDY,
        settings.as_dict(),
        {**facts, "study": settings.study_name},
        keep=("study",),
        parse=lambda stored: TuneSettings.from_dict(stored, where=where).as_dict(),
    )
    return str(kept["study"])


def read_folder(out: Path) -> tuple[TuneSettings, dict[str, Any]]:
    """The settings in a study's folder, and the facts beside them."""
    values, facts = folder.read_folder(out, _STUDY)
    return TuneSettings.from_dict(values, where=str(out / _STUDY.manifest)), facts


def make_sampler(settings: TuneSettings, place: int, first: dict[str, Any] | None, *, several: bool) -> Any:
    """The sampler for the trial at position `place` of the search.

    A new one is made for every trial. Its random numbers depend on the seed of the search and the position alone, so
    one worker proposes the same points whether it was interrupted or not, and two workers never repeat each other.
    `first` is the point of the first trial; None lets the sampler choose it. `several` says whether several workers
    propose points at the same time.
    """
    optuna = import_optuna()
    seed = int(np.random.SeedSequence([settings.seed, place]).generate_state(1)[0])
    base: Any = optuna.samplers.RandomSampler(seed=seed)
    point = first if place == 0 else None
    if settings.resolved_sampler == "tpe":
        # with several workers, running trials count as bad ones, so that the others search elsewhere
        base = optuna.samplers.TPESampler(seed=seed, n_startup_trials=_STARTUP, constant_liar=several)
    elif settings.resolved_sampler == "grid":
        point = settings.space.point(place, seed=settings.seed)
    return base if point is None else optuna.samplers.PartialFixedSampler(point, base)


def make_pruner(settings: TuneSettings) -> Any:
    """The pruner; its steps are epochs."""
    optuna = import_optuna()
    every = settings.config.training.evaluate_every
    if settings.pruner == "median":
        return optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=2 * every - 1)
    if settings.pruner == "asha":
        return optuna.pruners.SuccessiveHalvingPruner(min_resource=2 * every, reduction_factor=3)
    return optuna.pruners.NopPruner()


def suggest(trial: optuna.Trial, space: Space) -> dict[str, Any]:
    """A value for every entry of the space."""
    values: dict[str, Any] = {}
    for key, entry in space.entries.items():
        if isinstance(entry, Choice):
            values[key] = trial.suggest_categorical(key, entry.values)
        elif entry.whole:
            step = 1 if entry.step is None else int(entry.step)
            values[key] = trial.suggest_int(key, int(entry.low), int(entry.high), log=entry.log, step=step)
        else:
            values[key] = trial.suggest_float(key, entry.low, entry.high, log=entry.log, step=entry.step)
    return values
