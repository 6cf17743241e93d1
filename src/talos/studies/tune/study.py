"""A study: its settings, the sampler and pruner of Optuna that follow from them, and where its trials are stored.

Trials are in Optuna's storage: a SQLite file, or a PostgreSQL server for several machines. SQLite, because its writes
are transactions: a killed process leaves neither half a trial nor a lock. Optuna keeps a heartbeat of every running
trial in both, so a trial whose process is gone is run again, by whichever process of the study notices first.
"""

from __future__ import annotations

import contextlib
import copy
import sqlite3
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import optuna
from optuna.trial import FrozenTrial, TrialState

from talos.checks import is_integer, one_of, require
from talos.config import RunConfig
from talos.data.databases import DatabaseURL, without_password, without_passwords
from talos.errors import ConfigError, DataError, MissingExtraError, TalosError, first_line
from talos.files import digest_of
from talos.studies.folder import read_manifest
from talos.studies.tune.space import Space, default_point

__all__ = [
    "MANIFEST",
    "NOUN",
    "Pruner",
    "Sampler",
    "TuneSettings",
    "attempts",
    "check_reachable",
    "current_trials",
    "is_interrupted",
    "make_pruner",
    "make_sampler",
    "open_storage",
    "parse_storage",
    "point_at",
    "quiet",
    "read_folder",
    "retry",
    "storage_errors",
]

Sampler: TypeAlias = Literal["auto", "tpe", "random", "grid"]
Pruner: TypeAlias = Literal["median", "asha", "none"]

MANIFEST, NOUN = "tune.json", "study"
_LARGEST_GRID = 100  # points up to which `auto` tries them all
_STARTUP = 10  # random trials before TPE has enough to learn from
_SQLITE = "sqlite:///"
_FOREIGN = ("optuna", "sqlalchemy", "alembic", "psycopg", "sqlite3")
_RETRIES = 3  # how often a trial whose process is gone is run again
_HEARTBEAT = 10  # seconds between the heartbeats of a running trial
_GRACE = 60  # seconds without one after which its process counts as gone
_OPEN_ATTEMPTS = 5  # two machines may create the tables of a new database at once


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
        one_of("sampler", self.sampler, get_args(Sampler))
        one_of("pruner", self.pruner, get_args(Pruner))
        fits = is_integer(self.seed) and self.seed >= 0
        require(fits, f"{self.seed!r}", where="seed", expected="a whole number from 0 on")
        if self.sampler == "grid" and self.space.size is None:
            entries = self.space.entries.items()
            ranged = next(key for key, entry in entries if not hasattr(entry, "choices"))
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
        points = self.space.size if self.resolved_sampler == "grid" else None
        return min((number for number in (trials, points) if number is not None), default=None)

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


def read_folder(out: Path) -> tuple[TuneSettings, dict[str, Any]]:
    """The settings in a study's folder, and the facts beside them."""
    values, facts = read_manifest(out / MANIFEST, NOUN)
    return TuneSettings.from_dict(values, where=str(out / MANIFEST)), facts


def make_sampler(settings: TuneSettings, place: int, *, several: bool) -> optuna.samplers.BaseSampler:
    """The sampler for the trial at position `place` of the search.

    A new one is made for every trial. Its random numbers depend on the seed of the search and the position alone, so
    one worker proposes the same points whether it was interrupted or not, and two workers never repeat each other.
    `several` says whether several workers propose points at the same time.
    """
    seed = int(np.random.SeedSequence([settings.seed, place]).generate_state(1)[0])
    if settings.resolved_sampler != "tpe":
        return optuna.samplers.RandomSampler(seed=seed)
    # with several workers, running trials count as bad ones, so that the others search elsewhere
    return optuna.samplers.TPESampler(seed=seed, n_startup_trials=_STARTUP, constant_liar=several)


def point_at(settings: TuneSettings, place: int) -> dict[str, Any] | None:
    """The point of the trial at a position, where the sampler does not choose it: of a grid, and the defaults first."""
    if settings.resolved_sampler == "grid":
        return settings.space.point(place, seed=settings.seed)
    return default_point(settings.space, settings.config) if place == 0 else None


def make_pruner(settings: TuneSettings) -> optuna.pruners.BasePruner:
    """The pruner; its steps are epochs."""
    every = settings.config.training.evaluate_every
    if settings.pruner == "median":
        return optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=2 * every - 1)
    if settings.pruner == "asha":
        return optuna.pruners.SuccessiveHalvingPruner(min_resource=2 * every, reduction_factor=3)
    return optuna.pruners.NopPruner()


def parse_storage(text: str | None, folder: Path) -> str:
    """The URL of a file name, `sqlite:///FILE` or `postgresql://…`; None is the file in the folder.

    >>> parse_storage(None, Path("out"))
    'sqlite:///out/study.db'
    >>> parse_storage("mysql://db/tune", Path("out"))
    Traceback (most recent call last):
    talos.errors.ConfigError: storage: 'mysql://db/tune'; expected a file, sqlite:///FILE or postgresql://USER@HOST/DATABASE
    """
    scheme, colon, rest = (f"{folder / 'study.db'}" if text is None else text).partition("://")
    if scheme and not colon:
        return f"{_SQLITE}{scheme}"
    if scheme == "sqlite" and rest.startswith("/") and len(rest) > 1:
        return f"sqlite://{rest}"
    if scheme in ("postgresql", "postgres") and rest:
        # taken apart once, so that a password with / or @ in it is one
        return DatabaseURL.parse(f"postgresql://{rest}").address
    what = repr(without_passwords(text)) if text else "is empty"
    raise ConfigError(
        what, where="storage", expected="a file, sqlite:///FILE or postgresql://USER@HOST/DATABASE"
    )


def check_reachable(url: str) -> None:
    """Check within about two seconds that a server answers, or that a file is not a folder."""
    shown = without_password(url)
    if url.startswith(_SQLITE):
        if _file(url).is_dir():
            raise ConfigError(f"{shown} is a folder", where="storage", expected="a file")
        return
    try:
        import psycopg
    except ImportError:
        raise MissingExtraError("tuning with PostgreSQL", extra="postgres") from None
    try:
        psycopg.connect(url, connect_timeout=2).close()
    except psycopg.Error as error:
        what = f"{shown}: cannot be reached ({without_passwords(first_line(error))})"
        raise ConfigError(what, where="storage", expected="a server that answers") from None


def _file(url: str) -> Path:
    return Path(url.removeprefix(_SQLITE))


def open_storage(url: str, name: str) -> tuple[optuna.storages.RDBStorage, optuna.Study]:
    """The opened storage, and its study of this name, which is created if there is none."""
    with storage_errors(url, ConfigError):
        for attempt in range(1, _OPEN_ATTEMPTS + 1):
            try:
                storage = _storage(url)
                study = optuna.create_study(
                    storage=storage, study_name=name, direction="maximize", load_if_exists=True
                )
                study.get_trials(deepcopy=False)  # a damaged file is noticed here
            except Exception:
                if url.startswith(_SQLITE) or attempt == _OPEN_ATTEMPTS:
                    raise
                time.sleep(0.2 * attempt)
            else:
                break
    return storage, study


def _storage(url: str) -> optuna.storages.RDBStorage:
    from sqlalchemy.pool import NullPool

    # without a pool each change opens and closes its connection: none stays open for hours or breaks in a restart
    engine: dict[str, Any] = {"poolclass": NullPool}
    if url.startswith(_SQLITE):
        file = _file(url)
        file.parent.mkdir(parents=True, exist_ok=True)
        # a function, because a file name may hold what has a meaning in a URL
        url, engine["creator"] = (
            "sqlite://",
            partial(sqlite3.connect, file, timeout=60, check_same_thread=False),
        )
    else:
        url, engine["connect_args"] = url.replace(":", "+psycopg:", 1), {"connect_timeout": 5}
    renamed = hasattr(optuna.storages, "RetryHeartbeatStaleTrialCallback")  # in Optuna 4.9
    callback = "heartbeat_stale_trial_callback" if renamed else "failed_trial_callback"
    lost: Any = {callback: retry}
    return optuna.storages.RDBStorage(
        url, engine_kwargs=engine, heartbeat_interval=_HEARTBEAT, grace_period=_GRACE, **lost
    )


def retry(study: optuna.Study, trial: FrozenTrial, *, on_purpose: bool = False) -> None:
    """Queue a trial again with its parameters, by Optuna's own callback; without a limit if it was stopped on purpose.

    The callback appends to a list of the trial, hence the copy.
    """
    kinds: Any = optuna.storages
    kind = getattr(kinds, "RetryHeartbeatStaleTrialCallback", None) or kinds.RetryFailedTrialCallback
    kind(max_retry=None if on_purpose else _RETRIES)(study, copy.deepcopy(trial))


def current_trials(study: optuna.Study) -> list[FrozenTrial]:
    """The trials of a study by number, without those that were run again: of each the last attempt."""
    trials = study.get_trials(deepcopy=False)
    repeated = {number for trial in trials for number in attempts(trial)}
    return [trial for trial in trials if trial.number not in repeated]


def attempts(trial: FrozenTrial) -> list[int]:
    """The numbers of the earlier attempts at this trial."""
    return list(trial.system_attrs.get("retry_history", ()))


def is_interrupted(trial: FrozenTrial) -> bool:
    """Whether a trial failed because it was stopped or its process died, and not because of an error of its own."""
    return trial.state == TrialState.FAIL and "error" not in trial.user_attrs


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hide Optuna's log lines and its warnings about experimental features."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(before)


@contextlib.contextmanager
def storage_errors(url: str, kind: type[TalosError] = TalosError) -> Iterator[None]:
    """What a database raises within the block becomes one error that names the storage."""
    try:
        with quiet():
            yield
    except Exception as error:
        # entries that do not fit together raise errors of Python's own when a study is opened
        damaged = kind is ConfigError and isinstance(error, OSError | ValueError | LookupError | TypeError)
        if isinstance(error, TalosError) or not (type(error).__module__.startswith(_FOREIGN) or damaged):
            raise
        reason = without_passwords(first_line(error.__cause__ or error))
        raise kind(f"the storage {without_password(url)} cannot be used ({reason})") from None
