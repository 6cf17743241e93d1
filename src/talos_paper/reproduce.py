"""Which runs are asked for, in which order, and doing them until all are done or the time is up."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from talos.errors import ConfigError, DataError, nearest
from talos_paper import data as paper_data
from talos_paper.cells import Cell
from talos_paper.experiments import EXPERIMENTS, Experiment, by_name
from talos_paper.recipes import BACKBONES, LOSSES, Fidelity
from talos_paper.results import Store

__all__ = ["Asked", "Job", "Outcome", "jobs", "reproduce", "status"]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What of the paper is asked for; None means all of it.

    Attributes:
        tables: names of experiments; `all` for every one.
        dataset: one data set.
        backbone: one backbone.
        losses: rows of these losses.
        seeds: how many, in place of what each row asks for.
        fidelity: see `talos_paper.recipes`.
        core: only what the core set needs.
    """

    tables: Sequence[str] = ("all",)
    dataset: str | None = None
    backbone: str | None = None
    losses: Sequence[str] | None = None
    seeds: int | None = None
    fidelity: Fidelity = "fast"
    core: bool = False

    def experiments(self) -> list[Experiment]:
        """The experiments, in the order of the paper."""
        if "all" in self.tables or not self.tables:
            return list(EXPERIMENTS.values())
        wanted = [by_name(name).name for name in self.tables]
        return [one for name, one in EXPERIMENTS.items() if name in wanted]

    def check(self) -> None:
        """Refuse names that nothing has."""
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

    def cells(self) -> Iterator[Cell]:
        """The rows that are asked for."""
        for experiment in self.experiments():
            for dataset in experiment.datasets:
                if self.dataset not in (None, dataset):
                    continue
                for cell in experiment.rows(dataset, self.fidelity):
                    if self.backbone not in (None, cell.recipe.backbone):
                        continue
                    if self.losses is not None and cell.recipe.loss not in self.losses:
                        continue
                    if cell.needed or not self.core:
                        yield cell

    def studies(self) -> Iterator[tuple[Experiment, str]]:
        """The studies that are no fits, with their data sets."""
        if self.losses is not None or self.backbone is not None:
            return
        for experiment in self.experiments():
            if experiment.name == "efficiency" and "efficiency" not in self.tables:
                continue  # times mean something on a quiet machine alone: only where asked for by name
            for dataset in experiment.datasets:
                needed = dataset in experiment.needed
                if experiment.cells is None and self.dataset in (None, dataset) and (needed or not self.core):
                    yield experiment, dataset


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run: a row and a seed."""

    cell: Cell
    seed: int

    @property
    def order(self) -> tuple[Any, ...]:
        """What is most informative comes first: core results, first seeds, and the rank of the row."""
        return (not self.cell.needed, self.cell.rank + (4 if self.seed else 0), self.seed)


def jobs(asked: Asked) -> list[Job]:
    """The runs that are asked for, the most informative first; a run that several rows share comes once.

    >>> first = jobs(Asked(tables=["overall"], dataset="beauty", backbone="mf"))[0]
    >>> first.cell.method, first.seed
    ('talos', 0)
    """
    found = [Job(cell=cell, seed=seed) for cell in asked.cells() for seed in range(asked.seeds or cell.seeds)]
    ordered, seen = [], set()
    for job in sorted(found, key=lambda job: job.order):
        key = (job.cell.dataset, job.cell.recipe.key, job.seed)
        if key not in seen:
            seen.add(key)
            ordered.append(job)
    return ordered


@dataclass
class Outcome:
    """What a call did: runs made, runs found, what is left, and what could not be run and why."""

    made: int = 0
    found: int = 0
    left: int = 0
    skipped: dict[str, str] | None = None


def reproduce(
    asked: Asked,
    store: Store,
    *,
    work: Path,
    folder: Path | None = None,
    budget: float | None = None,
    notify: Callable[[str], None] = lambda line: None,
) -> Outcome:
    """Make the results that are asked for and not there yet, as far as the budget of seconds goes.

    Args:
        asked: which.
        store: where results are and go.
        work: for checkpoints and per-user values; a killed call goes on from there.
        folder: with the data sets.
        budget: seconds; the fit at hand is saved when they are over.
        notify: called with a line of progress.
    """
    from talos_paper import studies
    from talos_paper.runs import OutOfTimeError, Runner

    asked.check()
    deadline = None if budget is None else time.monotonic() + budget
    load = functools.lru_cache(maxsize=2)(functools.partial(paper_data.load, folder=folder))
    runner = Runner(store, work, load, deadline, notify)
    outcome = Outcome(skipped={})
    assert outcome.skipped is not None
    everything = jobs(asked)
    for place, job in enumerate(everything):
        resolved = store.resolved(job.cell.recipe)
        if resolved is not None and store.run(resolved, job.seed) is not None:
            outcome.found += 1
            continue
        reason = paper_data.absent(job.cell.dataset, job.cell.recipe.scenario, folder=folder)
        if reason is not None:
            outcome.skipped[f"{job.cell.dataset} ({job.cell.recipe.scenario})"] = reason
            continue
        try:
            if deadline is not None and time.monotonic() >= deadline:
                raise OutOfTimeError("the budget is used up")
            runner.run(job.cell.recipe, job.seed)
        except OutOfTimeError:
            outcome.left = len(everything) - place
            notify(f"the budget is used up; {outcome.left} runs are left. The same command goes on")
            break
        outcome.made += 1
    for experiment, dataset in asked.studies():
        if deadline is not None and time.monotonic() >= deadline:
            outcome.left += 1
            continue
        name = studies.key(experiment.name, dataset)
        if store.measurement(name) is not None:
            outcome.found += 1
            continue
        try:
            store.save_measurement(name, studies.measure(experiment.name, dataset, folder=folder))
        except DataError as error:
            outcome.skipped[dataset] = str(error)
            continue
        notify(f"{experiment.name} {dataset}: done")
        outcome.made += 1
    studies.keep_significance(asked, store, runner, notify)
    return outcome


def status(asked: Asked, store: Store) -> list[dict[str, Any]]:
    """For every experiment and data set: how many of its runs are there, and how many of the core set's."""
    lines: list[dict[str, Any]] = []
    from talos_paper import studies

    for experiment in asked.experiments():
        for dataset in experiment.datasets:
            if asked.dataset not in (None, dataset):
                continue
            needed = dataset in experiment.needed
            if experiment.cells is None:
                there = store.measurement(studies.key(experiment.name, dataset)) is not None
                lines.append(_line(experiment, dataset, needed, 1, int(there), []))
                continue
            wanted = there_count = 0
            missing = []
            for cell in experiment.rows(dataset, asked.fidelity):
                resolved = store.resolved(cell.recipe)
                seeds = asked.seeds or cell.seeds
                have = 0
                if resolved is not None:
                    have = sum(store.run_path(resolved, seed).exists() for seed in range(seeds))
                wanted += seeds
                there_count += have
                if have < seeds and (cell.needed or not needed):  # of the core set only what it needs
                    of = f"{cell.group} {cell.method}"
                    missing.append(of if have == 0 else f"{of} ({have} of {seeds} seeds)")
            lines.append(_line(experiment, dataset, needed, wanted, there_count, missing))
    return lines


def _line(
    experiment: Experiment, dataset: str, needed: bool, wanted: int, there: int, missing: list[str]
) -> dict[str, Any]:
    return {
        "table": experiment.name,
        "paper": experiment.paper,
        "dataset": dataset,
        "core": needed,
        "runs": wanted,
        "done": there,
        "missing": missing,
    }
