"""Tuning from end to end: data and a search space in, a study and the best recommender out."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import optuna

from talos.checks import require
from talos.config import RunConfig
from talos.data.databases import without_password
from talos.data.interactions import Interactions
from talos.data.splits import Split
from talos.errors import ArgumentError, ConfigError
from talos.model.recommender import Recommender
from talos.studies.folder import file_name, study_folder
from talos.studies.tune.data import FitParts, fit_parts, map_parts, write_parts
from talos.studies.tune.results import DATA, FINAL, Tuned, summarise, write_summary
from talos.studies.tune.space import Space, check_space, default_space
from talos.studies.tune.study import (
    MANIFEST,
    NOUN,
    Pruner,
    Sampler,
    TuneSettings,
    check_reachable,
    open_storage,
    parse_storage,
    quiet,
    storage_errors,
)
from talos.studies.tune.workers import Search, recover

__all__ = ["DEFAULT_TRIALS", "resolve_space", "run_study", "tune", "tune_models"]

DEFAULT_TRIALS = 50


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
    """Search for the config with the best validation metric; the test part is never used.

    Args:
        data: a split, of which train and validation are used; or `(train, valid)`; or interactions, which are
            split with the default shares and their test part dropped.
        space: what varies: `default` (chosen by loss and backbone), a `Space`, nested values as in a TOML file, or
            the name of a TOML file.
        trials: the number of trials; default: 50, or no limit if there is a budget.
        budget: seconds; running trials then end after the current epoch.
        workers: processes on this machine, each with its share of the threads.
        storage: a SQLite file, `sqlite:///FILE` or `postgresql://…`; default: a file in `out`. Calls with equal
            settings and data on the same storage work on one study, from any number of machines.
        out: a folder that keeps everything; an interrupted search is continued there.
        sampler: see `TuneSettings`.
        pruner: see `TuneSettings`.
        search_seed: the seed of the sampler; the seed of training is `seed` among the options.
        config: the config that every trial starts from.
        notify: called with a line for every trial that ended.
        options: options of `talos.Recommender`: `k`, `loss`, `backbone`, `epochs`, `metric`, ….

    >>> from talos.data.datasets import synthetic
    >>> data = synthetic(users=40, items=30, interactions=400)
    >>> study, model = tune(data, {"loss": {"tau": [0.1, 0.2]}}, k=5, dim=4, epochs=2, evaluate_every=1)
    >>> len(study.trials), model.config.loss.options["tau"] in (0.1, 0.2)
    (2, True)
    """
    base = Recommender(config=config, **options).config
    chosen, where = resolve_space(space, base)
    settled = check_space(chosen, base, where=where)
    parts = _parts(data)
    settings = TuneSettings(
        config=settled,
        space=chosen,
        sampler=sampler,
        pruner=pruner,
        seed=search_seed,
        data=parts.fingerprints(),
    )
    run = partial(
        run_study,
        settings,
        parts,
        trials=trials,
        budget=budget,
        workers=workers,
        storage=storage,
        notify=notify,
    )
    if out is not None:
        return run(Path(out))
    with tempfile.TemporaryDirectory(prefix="talos-tune-") as scratch:
        tuned = run(Path(scratch) / "study")
        # copy the study into memory: its folder is about to be deleted
        with quiet():
            study = optuna.create_study(direction="maximize", study_name=settings.study_name)
            study.add_trials(tuned.study.get_trials(deepcopy=False))
        return Tuned(study=study, summary=tuned.summary, parts=parts, folder=None)


def resolve_space(space: Space | Mapping[str, Any] | str | Path, base: RunConfig) -> tuple[Space, str]:
    """The space that the argument `space` of `tune` stands for, and the name of its file ("" for none)."""
    if isinstance(space, Space):
        return space, ""
    if isinstance(space, Mapping):
        return Space.from_dict(space), ""
    if space == "default":
        return default_space(base), ""
    return Space.from_toml(Path(space)), str(space)


def run_study(
    settings: TuneSettings,
    parts: FitParts,
    out: Path,
    *,
    trials: int | None = None,
    budget: float | None = None,
    workers: int = 1,
    storage: str | None = None,
    notify: Callable[[str], None] = lambda line: None,
    facts: Mapping[str, Any] | None = None,
) -> Tuned:
    """Start or continue the study of a folder; writes `run.toml` and `trials.csv` at the end.

    Arguments of `tune` mean the same here; `trials` includes those finished before. `facts` are written to `tune.json`
    beside the settings.
    """
    for name, number in (("trials", trials), ("budget", budget), ("workers", workers)):
        require(number is None or number > 0, f"{number}", where=name, expected="more than 0")
    if (out / FINAL).exists():
        what = "is finalised: its test part has been evaluated"
        raise ConfigError(what, where=str(out), expected="a new folder for a new search")
    url = parse_storage(storage, out)
    check_reachable(url)
    if trials is None and budget is None:
        trials = DEFAULT_TRIALS
    wanted = settings.limit(trials)
    if trials is not None and wanted is not None and wanted < trials:
        notify(f"the grid has {wanted:,} points: {wanted:,} trials")
    named = {"storage": None if storage is None else without_password(url)}
    with study_folder(out / MANIFEST, NOUN, settings.as_dict(), {**(facts or {}), **named}):
        write_parts(out / DATA, parts)
        database, study = open_storage(url, settings.study_name)
        deadline = None if budget is None else time.monotonic() + budget
        search = Search(
            study.study_name, database, settings, out / DATA, wanted=wanted, deadline=deadline, notify=notify
        )
        with storage_errors(url):
            if storage is None:  # its folder is locked: no other process runs these trials
                recover(study)
            search.run(workers)
            summary = summarise(study, settings)
        write_summary(out, summary)
    return Tuned(study=study, summary=summary, parts=map_parts(out / DATA), folder=out)


def tune_models(
    models: Mapping[str, tuple[Space, RunConfig]],
    parts: FitParts,
    out: Path,
    *,
    trials: int,
    workers: int = 1,
    notify: Callable[[str], None] = lambda line: None,
) -> Iterator[tuple[str, TuneSettings, Tuned]]:
    """Tune several models with the same number of trials each, in a study of its own; for a fair comparison.

    `models` has for each name its search space, and the config that its trials start from (see `check_space`). The
    studies are in folders of `out`; trials that are finished there are not repeated. Yields name, settings and result
    of each study as soon as it is finished.
    """
    for place, (name, (space, config)) in enumerate(models.items()):
        settings = TuneSettings(
            config=config, space=space, sampler="auto", pruner="median", seed=0, data=parts.fingerprints()
        )
        folder = out / f"{place:02d}-{file_name(name)}"

        def labelled(line: str, name: str = name) -> None:
            notify(f"tuning {name}  {line}")

        yield (
            name,
            settings,
            run_study(settings, parts, folder, trials=trials, workers=workers, notify=labelled),
        )


def _parts(data: Any) -> FitParts:
    if isinstance(data, Interactions):
        data = data.split()
    if isinstance(data, Split):
        return fit_parts(data.train, data.valid)
    if not isinstance(data, tuple) or len(data) != 2 or not isinstance(data[0], Interactions):
        expected = "a split, interactions, or (train, valid)"
        raise ArgumentError(type(data).__name__, where="data", expected=expected)
    return fit_parts(*data)
