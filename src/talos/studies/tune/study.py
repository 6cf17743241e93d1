"""A study: its settings, the storage of its trials, its results, and the single evaluation of the winner on test.

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
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import optuna
from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback
from optuna.trial import FrozenTrial, TrialState

from talos import registry
from talos.checks import is_integer, one_of, require
from talos.config import RunConfig
from talos.data.databases import DatabaseURL, without_password, without_passwords
from talos.data.splits import Split
from talos.errors import ConfigError, DataError, MissingExtraError, TalosError, first_line
from talos.files import digest_of, read_sealed, write_sealed
from talos.model.fitting import beside_popularity
from talos.model.recommender import Recommender
from talos.studies.folder import FORMAT, read_manifest
from talos.studies.tune.data import FitParts, fit_parts, map_parts
from talos.studies.tune.space import Space, default_point
from talos.training import Callback

__all__ = [
    "DATA",
    "FINAL",
    "MANIFEST",
    "NOUN",
    "FinalResult",
    "Pruner",
    "Sampler",
    "TrialRow",
    "TuneSettings",
    "Tuned",
    "check_reachable",
    "current_trials",
    "finalize",
    "is_interrupted",
    "open_storage",
    "open_study",
    "parse_storage",
    "quiet",
    "retry",
    "storage_errors",
    "stored_final",
]

Sampler: TypeAlias = Literal["auto", "tpe", "random", "grid"]
Pruner: TypeAlias = Literal["median", "asha", "none"]

MANIFEST, NOUN = "tune.json", "study"
DATA, FINAL, RUN = "data", "final.json", "final"  # in the folder of a study
_LARGEST_GRID = 100  # points up to which `auto` tries them all
_SQLITE = "sqlite:///"
_FOREIGN = ("optuna", "sqlalchemy", "alembic", "psycopg", "sqlite3")
_RETRIES = 3  # how often a trial whose process is gone is run again
_HEARTBEAT = 10  # seconds between the heartbeats of a running trial
_GRACE = 60  # seconds without one after which its process counts as gone
_OPEN_ATTEMPTS = 5  # two machines may create the tables of a new database at once
_earlier_attempts = RetryHeartbeatStaleTrialCallback.retry_history  # at a trial: their numbers


@dataclass(frozen=True, kw_only=True)
class TuneSettings:
    """What is searched, how, and on which data.

    Attributes:
        config: the config that every trial starts from; its `training.metric` at its `k` is maximised.
        space: what varies.
        data: fingerprints of train and validation.
        sampler: `grid` (every point once, in a random order), `tpe` or `random`; `auto` is `grid` for spaces of
            up to 100 points and `tpe` for others.
        pruner: the rule that stops unpromising trials: `median` (below the median of the others at the same
            epoch), `asha` (successive halving) or `none`.
        seed: the seed of the search; the seed of training is in the config.
    """

    config: RunConfig
    space: Space
    data: Mapping[str, str]
    sampler: Sampler = "auto"
    pruner: Pruner = "median"
    seed: int = 0

    def __post_init__(self) -> None:
        one_of("sampler", self.sampler, get_args(Sampler))
        one_of("pruner", self.pruner, get_args(Pruner))
        whole = is_integer(self.seed) and self.seed >= 0
        require(whole, f"{self.seed!r}", where="seed", expected="a whole number from 0 on")
        for key, entry in self.space.entries.items():
            require(
                self.sampler != "grid" or hasattr(entry, "choices"),
                "is a range",
                where=key,
                expected="a list of values, for the sampler `grid`",
                error=ConfigError,
            )

    @property
    def metric(self) -> str:
        """The metric that is maximised, such as `precision@20`."""
        return f"{self.config.training.metric}@{self.config.k}"

    @property
    def resolved_sampler(self) -> Sampler:
        """The sampler, with `auto` resolved."""
        size = self.space.size
        auto: Sampler = "grid" if size is not None and size <= _LARGEST_GRID else "tpe"
        return auto if self.sampler == "auto" else self.sampler

    @property
    def study_name(self) -> str:
        """A name that is the same exactly for equal settings and data, so that machines find the shared study."""
        return f"talos-{digest_of(self.as_dict())[:16]}"

    def point(self, place: int) -> dict[str, Any] | None:
        """The point of the trial at a place, where no sampler chooses it: of a grid, and the defaults first."""
        if self.resolved_sampler == "grid":
            return self.space.point(place, seed=self.seed)
        return default_point(self.space, self.config) if place == 0 else None

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
        return DatabaseURL.parse(f"postgresql://{rest}").address
    raise ConfigError(
        repr(without_passwords(text)) if text else "is empty",
        where="storage",
        expected="a file, sqlite:///FILE or postgresql://USER@HOST/DATABASE",
    )


def check_reachable(url: str) -> None:
    """Check within about two seconds that a server answers, or that a file is not a folder."""
    shown = without_password(url)
    if url.startswith(_SQLITE):
        require(
            not Path(url.removeprefix(_SQLITE)).is_dir(),
            f"{shown} is a folder",
            where="storage",
            expected="a file",
            error=ConfigError,
        )
        return
    try:
        import psycopg
    except ImportError:
        raise MissingExtraError("tuning with PostgreSQL", extra="postgres") from None
    try:
        psycopg.connect(url, connect_timeout=2).close()
    except psycopg.Error as error:
        raise ConfigError(
            f"{shown}: cannot be reached ({without_passwords(first_line(error))})",
            where="storage",
            expected="a server that answers",
        ) from None


def open_storage(url: str, name: str) -> tuple[RDBStorage, optuna.Study]:
    """The opened storage, and its study of this name, which is created if there is none."""
    from sqlalchemy.pool import NullPool

    # without a pool each change opens and closes its connection: none stays open for hours or breaks in a restart
    engine: dict[str, Any] = {"poolclass": NullPool}
    if url.startswith(_SQLITE):
        file = Path(url.removeprefix(_SQLITE))
        file.parent.mkdir(parents=True, exist_ok=True)
        # a function, because a file name may hold what has a meaning in a URL
        engine["creator"] = partial(sqlite3.connect, file, timeout=60, check_same_thread=False)
        address, attempts = "sqlite://", 1
    else:
        engine["connect_args"] = {"connect_timeout": 5}
        address, attempts = url.replace(":", "+psycopg:", 1), _OPEN_ATTEMPTS
    with storage_errors(url, ConfigError):
        while True:
            try:
                storage = RDBStorage(
                    address,
                    engine_kwargs=engine,
                    heartbeat_interval=_HEARTBEAT,
                    grace_period=_GRACE,
                    heartbeat_stale_trial_callback=retry,
                )
                study = optuna.create_study(
                    storage=storage, study_name=name, direction="maximize", load_if_exists=True
                )
                study.get_trials(deepcopy=False)  # a damaged file is noticed here
                return storage, study
            except Exception:
                attempts -= 1
                if not attempts:
                    raise
                time.sleep(0.5)


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


# --------------------------------------------------------------------- trials


def retry(study: optuna.Study, trial: FrozenTrial, *, on_purpose: bool = False) -> None:
    """Queue a trial again with its parameters, by Optuna's own callback; without a limit if it was stopped on purpose.

    The callback appends to a list of the trial, hence the copy.
    """
    again = RetryHeartbeatStaleTrialCallback(max_retry=None if on_purpose else _RETRIES)
    again(study, copy.deepcopy(trial))


def current_trials(study: optuna.Study) -> list[FrozenTrial]:
    """The trials of a study by number, without those that were run again: of each the last attempt."""
    trials = study.get_trials(deepcopy=False)
    repeated = {number for trial in trials for number in _earlier_attempts(trial)}
    return [trial for trial in trials if trial.number not in repeated]


def is_interrupted(trial: FrozenTrial) -> bool:
    """Whether a trial failed because it was stopped or its process died, and not because of an error of its own."""
    return trial.state == TrialState.FAIL and "error" not in trial.user_attrs


# --------------------------------------------------------------------- results


@dataclass(frozen=True, kw_only=True)
class TrialRow:
    """One trial that ended."""

    number: int  # its number in the study
    state: str  # `complete`, `pruned` or `failed`
    value: float | None  # the best validation metric; None if there is none
    epoch: int  # the epoch of that value
    epochs: int  # how many epochs were trained
    seconds: float  # wall-clock time
    runs: int  # the number of attempts: more than one if its worker died or was stopped
    parameters: dict[str, Any]  # values by dotted key of the config
    curve: tuple[tuple[int, float], ...] = field(repr=False)  # (epoch, metric) of every evaluation
    error: str = ""  # why it failed
    peak_mb: float = 0.0  # the peak memory of its worker at that time

    @classmethod
    def of(cls, trial: FrozenTrial) -> TrialRow:
        """The row of a trial of Optuna's, with the outcome that was stored with it."""
        state = {TrialState.COMPLETE: "complete", TrialState.PRUNED: "pruned"}.get(trial.state, "failed")
        outcome = {} if state == "failed" else trial.user_attrs["outcome"]
        reason = "its worker died too often" if state == "failed" else ""
        return cls(
            number=trial.number,
            state=state,
            value=outcome.get("value"),
            runs=1 + len(_earlier_attempts(trial)),
            parameters=dict(trial.params),
            curve=tuple(sorted(trial.intermediate_values.items())),
            error=str(trial.user_attrs.get("error", reason)),
            **{name: outcome.get(name, 0) for name in ("epoch", "epochs", "seconds", "peak_mb")},
        )


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """What a search has found; unpacks as `study, recommender`."""

    settings: TuneSettings
    study: optuna.Study  # Optuna's study, with every attempt of every trial
    parts: FitParts  # train and validation as the trials saw them
    folder: Path | None  # the folder of the study; None if it was a temporary one
    rows: tuple[TrialRow, ...]  # the trials that ended
    open: int  # the number of trials that have not
    best: TrialRow  # the complete trial with the highest value, the first of equals; a pruned one if none is complete
    value: float  # its validation metric
    config: RunConfig  # its config
    importance: dict[str, float]  # the share of each parameter in what distinguishes good trials
    peak_mb: float  # the peak memory of a worker

    @classmethod
    def of(cls, study: optuna.Study, settings: TuneSettings, folder: Path) -> Tuned:
        """The results of the study in a folder; an error if no trial has a value yet."""
        trials = current_trials(study)
        rows = tuple(TrialRow.of(trial) for trial in trials if trial.state.is_finished())
        valued = [
            (row.state == "complete", row.value, -row.number, row) for row in rows if row.value is not None
        ]
        why = next((f": {row.error}" for row in rows if row.error), "")
        require(
            bool(valued),
            f"no trial has a value yet{why}",
            where="the study",
            expected="at least one",
            error=DataError,
        )
        _, value, _, best = max(valued)
        return cls(
            settings=settings,
            study=study,
            parts=map_parts(folder / DATA),
            folder=folder,
            rows=rows,
            open=len(trials) - len(rows),
            best=best,
            value=value,
            config=settings.config.with_values(best.parameters),
            importance=_importance(study, list(settings.space.entries)),
            peak_mb=max(row.peak_mb for row in rows),
        )

    @property
    def counts(self) -> dict[str, int]:
        """The number of trials by state."""
        states = ("complete", "pruned", "failed")
        return {state: sum(row.state == state for row in self.rows) for state in states}

    @cached_property
    def recommender(self) -> Recommender:
        """The best config fitted again on train, with early stopping on validation as in its trial."""
        return Recommender(config=self.config).fit(*self.parts)

    def __iter__(self) -> Iterator[Any]:
        return iter((self.study, self.recommender))


def _importance(study: optuna.Study, keys: list[str]) -> dict[str, float]:
    """The share of each parameter by PED-ANOVA; empty if there are too few trials."""
    complete = study.get_trials(deepcopy=False, states=[TrialState.COMPLETE])
    if len(complete) < 4 or len({trial.value for trial in complete}) < 2:
        return {}
    try:
        found = optuna.importance.get_param_importances(
            study, evaluator=optuna.importance.PedAnovaImportanceEvaluator(), params=keys
        )
    except (ValueError, RuntimeError, ZeroDivisionError):  # all trials have the same value or parameters
        return {}
    return {key: float(found[key]) for key in keys if key in found}


def open_study(out: Path, storage: str | None = None) -> tuple[Tuned, dict[str, Any]]:
    """The current results of the study in a folder, and the facts beside its settings; nothing is run.

    A record may be a stranger's: a storage outside the study's folder is opened only if it is named again.
    """
    values, facts = read_manifest(out / MANIFEST, NOUN)
    settings = TuneSettings.from_dict(values, where=str(out / MANIFEST))
    require(
        storage is not None or facts.get("storage") is None,
        f"the trials are in {without_passwords(str(facts.get('storage')))}, which a study does not open by itself",
        where="storage",
        expected="its address",
        error=ConfigError,
    )
    url = parse_storage(storage, out)
    check_reachable(url)
    with storage_errors(url, ConfigError):
        _, study = open_storage(url, settings.study_name)
        return Tuned.of(study, settings, out), facts


# --------------------------------------------------------------------- the winner on test


@dataclass(frozen=True, kw_only=True)
class FinalResult:
    """The result of the winner on the test part."""

    # the content of `final.json`: `metrics` on test, `trial`, `epochs`, `config`, `validation`, …
    facts: Mapping[str, Any]
    fresh: bool  # whether it was measured by this call rather than read from `final.json`


def stored_final(out: Path) -> FinalResult | None:
    """The stored result of a finalised study; None if its test part has not been evaluated."""
    path = out / FINAL
    if not path.exists():
        return None
    return FinalResult(
        facts=read_sealed(path, hint="the study was finalised, but this file has been changed since"),
        fresh=False,
    )


def finalize(
    out: str | Path,
    split: Split,
    *,
    storage: str | None = None,
    facts: Mapping[str, Any] | None = None,
    callbacks: tuple[Callback, ...] = (),
) -> FinalResult:
    """Refit the winner on train + validation for the number of epochs found, and evaluate it on test, once.

    This is `Recommender.refit` with the settings of the best trial, as it resolved them where they are `auto`.
    A second call returns the stored result and computes nothing. A split whose train and validation differ from
    those of the search is refused: its test part could contain what the search has seen.

    Args:
        out: the study's folder; the run directory is written to `final` in it.
        split: the whole split.
        storage: the storage of the study; needed if it is not a file in the study's folder.
        facts: written to the run's `model.json`.
        callbacks: callbacks of the fit.
    """
    out = Path(out)
    if (known := stored_final(out)) is not None:
        return known
    tuned, _ = open_study(out, storage)
    best, data = tuned.best, fit_parts(split.train, split.valid).fingerprints()
    require(
        data == dict(tuned.settings.data),
        "train and validation are not those that were tuned on",
        where=split.train.provenance.source,
        expected=f"the data and the split of {out}",
        error=DataError,
    )
    trial, where = tuned.study.get_trials(deepcopy=False)[best.number], f"trial {best.number} of the study"
    config = RunConfig.from_dict(trial.user_attrs["outcome"]["resolved"], where=where)
    registry.check_imported(config, where=where)  # a study may be somebody else's
    epochs = max(1, best.epoch) if config.baseline is None else 0
    validation = {tuned.settings.metric: tuned.value}
    began = time.perf_counter()
    model = Recommender.from_choice(
        config,
        split.train,
        split.valid,
        known=split.test,
        epoch=epochs,
        epochs_from=f"the best epoch of trial {best.number} of {len(tuned.rows)}",
        metrics=validation,
    ).refit(run=out / RUN, resume=True, callbacks=callbacks)
    seconds = round(time.perf_counter() - began, 2)
    report, popular = beside_popularity(model, split.test, model.fitted_model().train)
    shared: dict[str, Any] = {"baseline": {"popularity": popular.metrics}, "fit_seconds": seconds}
    model.save(out / RUN, metrics=report.metrics, **shared, **(facts or {}))
    answer = {
        "format": FORMAT,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "trial": best.number,
        "trials": len(tuned.rows),
        "validation": validation,
        "epochs": epochs,
        **shared,
        **report.as_dict(),
        "config": model.config.as_dict(),
        "data": {**data, "test": split.test.fingerprint()},
        "study": tuned.study.study_name,
    }
    write_sealed(out / FINAL, answer)
    return FinalResult(facts=answer, fresh=True)
