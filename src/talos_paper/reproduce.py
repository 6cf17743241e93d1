"""Which results are wanted, in which order they are made, and making them until the time is up."""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from talos.checks import one_of, require
from talos_paper import datasets
from talos_paper.recipes import BACKBONES, EXPERIMENTS, LOSSES, Experiment, Fidelity, Row
from talos_paper.results import ResultStore, run_name

__all__ = ["Selection", "planned_runs", "reproduce", "status"]


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
        """Raise an `ArgumentError` for a name that does not exist."""
        losses = [("--loss", loss, LOSSES) for loss in self.losses or ()]
        tables = [("TABLE", name, ["all", *EXPERIMENTS]) for name in self.tables]
        named = [("--dataset", self.dataset, datasets.DATASETS), ("--backbone", self.backbone, BACKBONES)]
        for where, name, known in (*tables, *named, *losses):
            if name is not None:
                one_of(where, name, tuple(known))
        seeds = 1 if self.seeds is None else self.seeds
        require(seeds >= 1, f"{seeds}", where="--seeds", expected="1 or more")

    def places(self) -> Iterator[tuple[Experiment, str]]:
        """The experiments with their data sets."""
        wanted = list(EXPERIMENTS) if "all" in self.tables or not self.tables else self.tables
        for experiment in (one for name, one in EXPERIMENTS.items() if name in wanted):
            for dataset in experiment.datasets:
                if self.dataset in (None, dataset) and (dataset in experiment.core or not self.core):
                    yield experiment, dataset

    def rows(self) -> Iterator[Row]:
        """The rows that need fits."""
        for experiment, dataset in self.places():
            for row in experiment.rows(dataset, self.fidelity):
                wanted = self.losses is None or row.recipe.loss in self.losses
                if wanted and self.backbone in (None, row.recipe.backbone) and (row.core or not self.core):
                    yield row

    def measurements(self) -> list[tuple[Experiment, str]]:
        """The experiments that need no fits, with their data sets.

        Times mean something on a quiet machine alone, so they are measured only by name.
        """
        if self.losses is not None or self.backbone is not None:
            return []
        return [
            (one, dataset)
            for one, dataset in self.places()
            if not one.specs and (one.name != "efficiency" or "efficiency" in self.tables)
        ]


def planned_runs(selection: Selection) -> list[tuple[Row, int]]:
    """The selected rows and seeds, the most informative first; a run that several rows share comes once.

    >>> row, seed = planned_runs(Selection(tables=["overall"], dataset="beauty", backbone="mf"))[0]
    >>> row.method, seed
    ('talos', 0)
    """
    found = [(row, seed) for row in selection.rows() for seed in range(selection.seeds or row.seeds)]
    # the core set first, then by the order of the rows; seeds after the first come later
    found.sort(key=lambda run: (not run[0].core, run[0].order + (4 if run[1] else 0), run[1]))
    unique: dict[str, tuple[Row, int]] = {}
    for row, seed in found:
        unique.setdefault(run_name(row.recipe, seed), (row, seed))
    return list(unique.values())


def reproduce(
    selection: Selection,
    store: ResultStore,
    *,
    work: Path,
    folder: Path | None = None,
    budget: float | None = None,
    notify: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Make the selected results that are missing, until the budget is used up.

    Args:
        selection: which results.
        store: where results are looked up and saved.
        work: folder for checkpoints and per-user metrics; a call that was killed is continued from there.
        folder: with the data sets, a subfolder each.
        budget: seconds; when they are over the current fit is saved and left.
        notify: called with a line of progress.

    Returns:
        How many results the call made, found already there and left undone, and what it `skipped`: name → reason.
    """
    from talos_paper.measurements import measure, save_significance
    from talos_paper.runs import OutOfTimeError, Runner

    selection.check()
    deadline = math.inf if budget is None else time.monotonic() + budget
    load = functools.lru_cache(maxsize=2)(functools.partial(datasets.load, folder=folder))
    runner = Runner(store, work, load, deadline, notify)
    tally: dict[str, Any] = {"made": 0, "found": 0, "left": 0, "skipped": {}}

    def measured(table: str, dataset: str) -> None:
        store.save_measurement(f"{table}-{dataset}", measure(table, dataset, folder=folder))
        notify(f"{table} {dataset}: done")

    jobs: list[tuple[bool, str, datasets.Scenario, Callable[[], object]]] = []
    for row, seed in planned_runs(selection):
        done = seed in [run.seed for run in store.runs(row.recipe, seed + 1)]
        jobs.append((done, row.dataset, row.recipe.scenario, functools.partial(runner.run, row.recipe, seed)))
    for experiment, dataset in selection.measurements():
        done = store.measurement(f"{experiment.name}-{dataset}") is not None
        jobs.append((done, dataset, "iid", functools.partial(measured, experiment.name, dataset)))
    for done, dataset, scenario, make in jobs:
        reason = datasets.why_absent(dataset, scenario, folder=folder)
        if done:
            tally["found"] += 1
        elif reason is not None:
            tally["skipped"][f"{dataset} ({scenario})"] = reason
        else:
            before = tally["made"]
            with contextlib.suppress(OutOfTimeError):
                if time.monotonic() < deadline:
                    make()
                    tally["made"] += 1
            tally["left"] += tally["made"] == before
    if tally["left"]:
        notify(
            f"the budget is used up, {tally['left']} results are left; the same command continues with them"
        )
    save_significance(store, runner, selection.fidelity, notify)
    return tally


def status(selection: Selection, store: ResultStore) -> list[dict[str, Any]]:
    """For every experiment and data set: how many of its runs are there, and which are missing."""
    lines = []
    for experiment, dataset in selection.places():
        done, wanted, missing = 0, 0, []
        for row in experiment.rows(dataset, selection.fidelity):
            seeds = selection.seeds or row.seeds
            here = len(store.runs(row.recipe, seeds))
            wanted, done = wanted + seeds, done + here
            if here < seeds and (row.core or dataset not in experiment.core):
                name = f"{row.group} {row.method}"
                missing.append(name if here == 0 else f"{name} ({here} of {seeds} seeds)")
        if not experiment.specs:
            wanted, done = 1, int(store.measurement(f"{experiment.name}-{dataset}") is not None)
        line = {
            "table": experiment.name,
            "paper": experiment.paper,
            "dataset": dataset,
            "core": dataset in experiment.core,
            "runs": wanted,
            "done": done,
            "missing": missing,
        }
        lines.append(line)
    return lines
