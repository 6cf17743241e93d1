"""Tuning from end to end: data and a space in, a study and the best recommender out."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from talos.config import RunConfig
from talos.data.interactions import Interactions
from talos.data.splits import Split
from talos.errors import ArgumentError, ConfigError
from talos.model.recommender import Recommender
from talos.studies.tune.check import check_space
from talos.studies.tune.data import FitParts, fit_parts, map_parts, write_parts
from talos.studies.tune.defaults import default_space
from talos.studies.tune.presence import BEAT, GRACE
from talos.studies.tune.settings import Pruner, Sampler, Settings, open_folder, read_folder
from talos.studies.tune.space import Space
from talos.studies.tune.storage import Place, check_reachable, import_optuna, open_store, parse_storage, quiet
from talos.studies.tune.summary import Summary, summarise, write_summary
from talos.studies.tune.workers import Order, run_workers

if TYPE_CHECKING:
    import optuna

__all__ = ["DATA", "DEFAULT_TRIALS", "FINAL", "Tuned", "open_study", "resolve_space", "run_study", "tune"]

DEFAULT_TRIALS = 50
DATA = "data"
FINAL = "final.json"


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """What tuning came to; unpacks as `study, recommender`.

    Attributes:
        study: Optuna's, with every attempt of every trial.
        summary: the best trial, the table of all, the importance of parameters.
        parts: train and validation, as the trials saw them.
        folder: where it is kept; None if it is not.
    """

    study: optuna.Study
    summary: Summary
    parts: FitParts
    folder: Path | None

    @property
    def config(self) -> RunConfig:
        """The best config."""
        return self.summary.config

    @property
    def value(self) -> float:
        """The best validation metric."""
        assert self.summary.best.value is not None
        return self.summary.best.value

    @cached_property
    def recommender(self) -> Recommender:
        """The best config fitted once more on train, stopped by validation as in its trial."""
        return Recommender(config=self.config).fit(*self.parts)

    def __iter__(self) -> Iterator[Any]:
        return iter((self.study, self.recommender))


def tune(
    data: Split | Interactions | FitParts,
    space: Space | Mapping[str, Any] | str | Path = "default",
    *,
    trials: int | None = None,
    budget: float | None = None,
    workers: int = 1,
    storage: str | None = None,
    out: str | Path | None = None,
    sampler: Sampler = "auto",
    pruner: Pruner = "median",
    search_seed: int = 0,
    config: RunConfig | None = None,
    notify: Callable[[str], None] = lambda line: None,
    **options: Any,
) -> Tuned:
    """Search for the config with the best validation metric; the test part is never looked at.

    Args:
        data: a split, of which train and validation are used; or these two; or interactions, which are split
            by their defaults, the test part dropped.
        space: what varies: `default` (by loss and backbone), a `Space`, nested values as in its TOML form, or a
            file.
        trials: how many; 50 if there is no budget either.
        budget: seconds; trials under way then end with the epoch.
        workers: processes on this machine, each with its share of the threads.
        storage: a file, `sqlite:///FILE` or `postgresql://…`; a journal in `out` if not given. Calls with equal
            settings and data on the same storage work on one study, from as many machines as one likes.
        out: a folder that keeps everything, in which an interrupted search goes on.
        sampler: see `Settings`.
        pruner: see `Settings`.
        search_seed: of the proposals; `seed` among the options is that of training.
        config: what every trial starts from.
        notify: called with a line for every trial that ended.
        options: as for `talos.Recommender`: `k`, `loss`, `backbone`, `epochs`, `metric`, ….

    >>> from talos.data.datasets import synthetic
    >>> data = synthetic(users=40, items=30, interactions=400)
    >>> study, model = tune(data, {"loss": {"tau": [0.1, 0.2]}}, k=5, dim=4, epochs=2, evaluate_every=1)
    >>> len(study.trials), model.config.loss.options["tau"] in (0.1, 0.2)
    (2, True)
    """
    import_optuna()
    base = Recommender(config=config, **options).config
    chosen, where = resolve_space(space, base)
    settled = check_space(chosen, base, where=where)
    parts = _parts(data)
    settings = Settings(
        config=settled,
        space=chosen,
        sampler=sampler,
        pruner=pruner,
        seed=search_seed,
        data={name: part.fingerprint() for name, part in zip(("train", "valid"), parts, strict=True)},
    )
    asked: dict[str, Any] = {
        "trials": trials,
        "budget": budget,
        "workers": workers,
        "storage": storage,
        "notify": notify,
    }
    if out is not None:
        return run_study(settings, parts, Path(out), **asked)
    with tempfile.TemporaryDirectory(prefix="talos-tune-") as scratch:
        tuned = run_study(settings, parts, Path(scratch) / "study", **asked)
        # the folder goes, the study stays
        optuna = import_optuna()
        with quiet():
            study = optuna.create_study(direction="maximize", study_name=settings.study_name)
            study.add_trials(tuned.study.get_trials(deepcopy=False))
        return Tuned(study=study, summary=tuned.summary, parts=parts, folder=None)


def resolve_space(space: Space | Mapping[str, Any] | str | Path, base: RunConfig) -> tuple[Space, str]:
    """The space that is meant, and the name of its file for messages.

    >>> resolve_space("default", RunConfig())[1]
    ''
    """
    if isinstance(space, Space):
        return space, ""
    if isinstance(space, Mapping):
        return Space.from_dict(space), ""
    if space == "default":
        return default_space(base), ""
    return Space.from_toml(Path(space)), str(space)


def run_study(
    settings: Settings,
    parts: FitParts,
    out: Path,
    *,
    trials: int | None = None,
    budget: float | None = None,
    workers: int = 1,
    storage: str | None = None,
    notify: Callable[[str], None] = lambda line: None,
    facts: Mapping[str, Any] | None = None,
    beat: float = BEAT,
    grace: float = GRACE,
) -> Tuned:
    """Run or go on with the study of a folder; writes `run.toml` and `trials.csv` at its end.

    Args:
        settings: what is searched.
        parts: train and validation.
        out: the folder.
        trials: in all; those finished before count.
        budget: seconds from now.
        workers: processes on this machine.
        storage: as in `tune`.
        notify: called with a line for every trial that ended.
        facts: written into `tune.json` beside the settings.
        beat: seconds between a worker's signs of life.
        grace: seconds without one after which it counts as gone.
    """
    for name, number in (("trials", trials), ("budget", budget), ("workers", workers)):
        if number is not None and not number > 0:
            raise ArgumentError(f"{number}", where=name, expected="more than 0")
    if (out / FINAL).exists():
        raise ConfigError(
            "is finalised: its test part has been looked at",
            where=str(out),
            expected="a new folder for a new search",
        )
    place = parse_storage(storage, out)
    check_reachable(place)
    if trials is None and budget is None:
        trials = DEFAULT_TRIALS
    wanted = settings.limit(trials)
    if trials is not None and wanted is not None and wanted < trials:
        notify(f"the grid has {wanted:,} points: {wanted:,} trials")
    name = open_folder(out, settings, {**(facts or {}), "storage": place.shown})
    write_parts(out / DATA, parts)
    with quiet():
        store = open_store(place, name)
        run_workers(
            Order(
                store=store,
                settings=settings,
                data=out / DATA,
                wanted=wanted,
                seconds=budget,
                workers=workers,
                notify=notify,
                beat=beat,
                grace=grace,
            )
        )
        summary = summarise(store.study, settings, wanted)
    write_summary(out, summary)
    return Tuned(study=store.study, summary=summary, parts=map_parts(out / DATA), folder=out)


def open_study(out: Path, storage: str | None = None) -> tuple[Settings, dict[str, Any], Tuned]:
    """The study of a folder as it stands, with its settings and facts; nothing is run."""
    settings, facts = read_folder(out)
    place: Place = parse_storage(storage or facts.get("storage"), out)
    check_reachable(place)
    with quiet():
        store = open_store(place, str(facts.get("study", settings.study_name)))
        summary = summarise(store.study, settings)
    return settings, facts, Tuned(study=store.study, summary=summary, parts=map_parts(out / DATA), folder=out)


def _parts(data: Any) -> FitParts:
    if isinstance(data, Interactions):
        data = data.split()
    if isinstance(data, Split):
        return fit_parts(data.train, data.valid)
    if not isinstance(data, tuple) or len(data) != 2 or not isinstance(data[0], Interactions):
        raise ArgumentError(
            f"{type(data).__name__}", where="data", expected="a split, interactions, or train and validation"
        )
    return fit_parts(*data)
