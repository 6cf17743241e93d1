"""Which results are wanted, in which order they are made, and making them until the time is up."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from talos.errors import ConfigError, DataError, nearest
from talos_paper import data as paper_data
from talos_paper.experiments import EXPERIMENTS, Experiment, Row, by_name
from talos_paper.recipes import BACKBONES, LOSSES, Fidelity
from talos_paper.results import ResultStore, measurement_name

__all__ = ["PlannedRun", "Selection", "Tally", "planned_runs", "reproduce", "status"]


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which of the paper's results are wanted.

    Attributes:
        tables: names of experiments; `all` for every one.
        dataset: only this data set; None for all.
        backbone: only this backbone; None for all.
        losses: only rows of these losses; None for all.
        seeds: number of seeds; None for the number that each row asks for.
        fidelity: see `talos_paper.recipes`.
        core: only the core set.
    """

    tables: Sequence[str] = ("all",)
    dataset: str | None = None
    backbone: str | None = None
    losses: Sequence[str] | None = None
    seeds: int | None = None
    fidelity: Fidelity = "fast"
    core: bool = False

    def check(self) -> None:
        """Raise a `ConfigError` for a name that does not exist."""
        self.experiments()
        choices: tuple[tuple[str, Sequence[str | None], Collection[str]], ...] = (
            ("--dataset", [self.dataset], paper_data.DATASETS),
            ("--backbone", [self.backbone], BACKBONES),
            ("--loss", list(self.losses or []), LOSSES),
        )
        for where, names, known in choices:
            for name in names:
                if name is not None and name not in known:
                    raise ConfigError(f"{name!r} is not known", where=where, hint=nearest(name, known))
        if self.seeds is not None and self.seeds < 1:
            raise ConfigError(f"{self.seeds}", where="--seeds", expected="1 or more")

    def experiments(self) -> list[Experiment]:
        """The experiments, in the order of the paper."""
        if "all" in self.tables or not self.tables:
            return list(EXPERIMENTS.values())
        wanted = [by_name(name).name for name in self.tables]
        return [one for name, one in EXPERIMENTS.items() if name in wanted]

    def rows(self) -> Iterator[Row]:
        """The rows that need fits."""
        for experiment in self.experiments():
            for dataset in experiment.datasets:
                if self.dataset not in (None, dataset):
                    continue
                for row in experiment.rows(dataset, self.fidelity):
                    if self.backbone not in (None, row.recipe.backbone):
                        continue
                    if self.losses is not None and row.recipe.loss not in self.losses:
                        continue
                    if row.core or not self.core:
                        yield row

    def measurements(self) -> Iterator[tuple[Experiment, str]]:
        """The experiments that need no fits, with their data sets."""
        if self.losses is not None or self.backbone is not None:
            return
        for experiment in self.experiments():
            if experiment.name == "efficiency" and "efficiency" not in self.tables:
                continue  # times mean something on a quiet machine alone, so they are measured only by name
            for dataset in experiment.datasets:
                core = dataset in experiment.core_datasets
                if (
                    experiment.make_rows is None
                    and self.dataset in (None, dataset)
                    and (core or not self.core)
                ):
                    yield experiment, dataset


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """One run: a row and a seed."""

    row: Row
    seed: int

    @property
    def order(self) -> tuple[Any, ...]:
        """Sort key: the core set first, then by the order of the rows; seeds after the first come later."""
        return (not self.row.core, self.row.order + (4 if self.seed else 0), self.seed)


def planned_runs(selection: Selection) -> list[PlannedRun]:
    """The selected runs, the most informative first; a run that several rows share comes once.

    >>> first = planned_runs(Selection(tables=["overall"], dataset="beauty", backbone="mf"))[0]
    >>> first.row.method, first.seed
    ('talos', 0)
    """
    found = [
        PlannedRun(row=row, seed=seed)
        for row in selection.rows()
        for seed in range(selection.seeds or row.seeds)
    ]
    unique: dict[tuple[str, str, int], PlannedRun] = {}
    for run in sorted(found, key=lambda run: run.order):
        unique.setdefault((run.row.dataset, run.row.recipe.key, run.seed), run)
    return list(unique.values())


@dataclass
class Tally:
    """How many results a call made, found already there and left undone, and what it skipped: name → reason."""

    made: int = 0
    found: int = 0
    left: int = 0
    skipped: dict[str, str] = field(default_factory=dict)


def reproduce(
    selection: Selection,
    store: ResultStore,
    *,
    work: Path,
    folder: Path | None = None,
    budget: float | None = None,
    notify: Callable[[str], None] = lambda line: None,
) -> Tally:
    """Make the selected results that are missing, until the budget is used up.

    Args:
        selection: which results.
        store: where results are looked up and saved.
        work: folder for checkpoints and per-user metrics; a call that was killed is continued from there.
        folder: with the data sets, a subfolder each.
        budget: seconds; when they are over the current fit is saved and left.
        notify: called with a line of progress.
    """
    from talos_paper.measurements import measure, save_significance
    from talos_paper.runs import OutOfTimeError, Runner

    selection.check()
    deadline = None if budget is None else time.monotonic() + budget
    load = functools.lru_cache(maxsize=2)(functools.partial(paper_data.load, folder=folder))
    runner = Runner(store, work, load, deadline, notify)
    tally = Tally()
    runs = planned_runs(selection)
    for place, run in enumerate(runs):
        recipe = run.row.recipe
        resolved = store.resolved(recipe)
        if resolved is not None and store.run(resolved, run.seed) is not None:
            tally.found += 1
            continue
        reason = paper_data.why_absent(run.row.dataset, recipe.scenario, folder=folder)
        if reason is not None:
            tally.skipped[f"{run.row.dataset} ({recipe.scenario})"] = reason
            continue
        try:
            if deadline is not None and time.monotonic() >= deadline:
                raise OutOfTimeError("the budget is used up")
            runner.run(recipe, run.seed)
        except OutOfTimeError:
            tally.left = len(runs) - place
            notify(f"the budget is used up, {tally.left} runs are left; the same command continues with them")
            break
        tally.made += 1
    for experiment, dataset in selection.measurements():
        if deadline is not None and time.monotonic() >= deadline:
            tally.left += 1
            continue
        name = measurement_name(experiment.name, dataset)
        if store.measurement(name) is not None:
            tally.found += 1
            continue
        try:
            store.save_measurement(name, measure(experiment.name, dataset, folder=folder))
        except DataError as error:
            tally.skipped[dataset] = str(error)
            continue
        notify(f"{experiment.name} {dataset}: done")
        tally.made += 1
    save_significance(store, runner, selection.fidelity, notify)
    return tally


def status(selection: Selection, store: ResultStore) -> list[dict[str, Any]]:
    """For every experiment and data set: how many of its runs are there, and which are missing."""
    lines: list[dict[str, Any]] = []
    for experiment in selection.experiments():
        for dataset in experiment.datasets:
            if selection.dataset not in (None, dataset):
                continue
            core = dataset in experiment.core_datasets
            wanted = done = 0
            missing = []
            if experiment.make_rows is None:
                wanted = 1
                done = int(store.measurement(measurement_name(experiment.name, dataset)) is not None)
            for row in experiment.rows(dataset, selection.fidelity):
                resolved = store.resolved(row.recipe)
                seeds = selection.seeds or row.seeds
                here = 0
                if resolved is not None:
                    here = sum(store.run_path(resolved, seed).exists() for seed in range(seeds))
                wanted += seeds
                done += here
                if here < seeds and (row.core or not core):  # of a core data set only rows of the core set
                    name = f"{row.group} {row.method}"
                    missing.append(name if here == 0 else f"{name} ({here} of {seeds} seeds)")
            lines.append(
                {
                    "table": experiment.name,
                    "paper": experiment.paper,
                    "dataset": dataset,
                    "core": core,
                    "runs": wanted,
                    "done": done,
                    "missing": missing,
                }
            )
    return lines
