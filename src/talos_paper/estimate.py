"""What a selection of runs will cost, before any of them: processor time for each cell of the tables.

The time of an epoch is measured on its first steps, from random vectors. How many epochs a fit takes is not known
before it has run: early stopping decides. Assumed is what fits from least squares took: `EPOCHS_OF_A_FIT`, two
thirds of it where the rate falls faster than by 5 % an epoch.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from talos.config import RunConfig
from talos.data.splits import Split
from talos.files import replace_text
from talos.training import Callback, InterruptedRunError, Trainer
from talos_paper import data
from talos_paper.recipes import Recipe
from talos_paper.reproduce import Selection
from talos_paper.results import ResultStore

__all__ = ["EPOCHS_OF_A_FIT", "Cell", "epoch_seconds", "estimate", "estimate_page", "write_estimate"]

EPOCHS_OF_A_FIT: Final = 70
_SECONDS: Final = 5.0  # a cell is measured for about this long
_SLOW: Final = 0.95
_FIRST: Final = 2  # steps that are not counted


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One row of a table: the epochs of its search, the number of its fits, and processor seconds of an epoch."""

    dataset: str
    backbone: str
    method: str
    search_epochs: int
    fits: int
    fit_epochs: int
    epoch_seconds: float
    done: bool

    @property
    def hours(self) -> float:
        """Processor hours of the search and the fits; the best of a search by options goes on as the first fit.

        >>> cell = Cell(
        ...     dataset="beauty", backbone="mf", method="sl", search_epochs=80, fits=1, fit_epochs=70,
        ...     epoch_seconds=24.0, done=False,
        ... )
        >>> round(cell.hours, 2)
        1.0
        """
        return (self.search_epochs + self.fits * self.fit_epochs) * self.epoch_seconds / 3600


class _Clock(Callback):
    """Notes the processor time of the steps and stops the fit when it has seen enough."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_step(self, epoch: int, step: int, loss: float) -> None:
        """Note the time; after a few seconds, stop."""
        self.times.append(time.process_time())
        if len(self.times) > _FIRST + 1 and self.times[-1] - self.times[0] > _SECONDS:
            raise InterruptedRunError("measured")


def epoch_seconds(recipe: Recipe, split: Split) -> float:
    """Processor seconds of an epoch under a recipe, from as many of its first steps as fit into a few seconds."""
    settings = {**recipe.settings, "training.init": "random", "training.epochs": 1}
    clock = _Clock()
    trainer = Trainer(RunConfig().with_values(settings), split.train, callbacks=[clock])
    began = time.process_time()
    with contextlib.suppress(InterruptedRunError):
        trainer.train_until(1)
    counted = clock.times[_FIRST:]
    if len(counted) < 2:  # an epoch of few steps: all of it
        return time.process_time() - began
    return (counted[-1] - counted[0]) / (len(counted) - 1) * len(trainer.batches)


def estimate(
    selection: Selection,
    store: ResultStore,
    load: Callable[[str, Any], Split],
    *,
    notify: Callable[[str], None] = lambda line: None,
) -> list[Cell]:
    """A cell for every row of the selection, measured one after another."""
    selection.check()
    cells = []
    for row in selection.rows():
        recipe, seeds = row.recipe, selection.seeds or row.seeds
        resolved = store.resolved(recipe)
        cell = Cell(
            dataset=row.dataset,
            backbone=recipe.backbone,
            method=row.method,
            search_epochs=_search_epochs(recipe),
            fits=seeds,
            fit_epochs=_fit_epochs(recipe),
            epoch_seconds=epoch_seconds(recipe, load(row.dataset, recipe.scenario)),
            done=resolved is not None and all(store.run(resolved, seed) for seed in range(seeds)),
        )
        notify(
            f"{cell.dataset} {cell.backbone} {cell.method}: {cell.epoch_seconds:.1f} s an epoch, {cell.hours:.1f} h"
        )
        cells.append(cell)
    return cells


def _fit_epochs(recipe: Recipe) -> int:
    """Epochs that a fit is assumed to take."""
    decay = float(recipe.settings.get("optimizer.lr_decay", 1.0))
    return EPOCHS_OF_A_FIT if decay >= _SLOW else EPOCHS_OF_A_FIT * 2 // 3


def _search_epochs(recipe: Recipe) -> int:
    """Epochs of the search beyond those of the fit that wins it."""
    if recipe.options:
        return recipe.options.total_epochs(recipe.settings) - recipe.options.epochs[-1]
    return max(0, len(recipe.search) - 1) * _fit_epochs(recipe)


def write_estimate(
    selection: Selection, store: ResultStore, *, folder: Path | None, notify: Callable[[str], None]
) -> list[Cell]:
    """Measure the cells of a selection and write `estimate.md` beside the results; `folder` has the data sets."""
    load = functools.lru_cache(maxsize=2)(functools.partial(data.load, folder=folder))
    cells = estimate(selection, store, load, notify=notify)
    store.root.mkdir(parents=True, exist_ok=True)
    replace_text(store.root / "estimate.md", estimate_page(cells))
    return cells


def estimate_page(cells: list[Cell]) -> str:
    """The cells as a Markdown page, with sums by data set."""
    head = [
        "# What the runs will cost",
        "",
        "    talos reproduce TABLE… --data DIR --out docs/results --estimate",
        "",
        "Processor time of every cell, estimated before it runs: the search and all fits. An epoch is measured on its "
        "first steps; how many epochs a fit takes is assumed, because early stopping decides. "
        f"{torch.get_num_threads()} threads share the hours.",
        "",
    ]
    lines = [
        "| data | backbone | loss | seconds an epoch | epochs of search | fits | epochs of a fit | hours |",
        "|---|---|---|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {cell.dataset} | {cell.backbone} | {cell.method} | {cell.epoch_seconds:.1f} | {cell.search_epochs} | "
        f"{cell.fits} | {cell.fit_epochs} | {cell.hours:.2f}{' (done)' if cell.done else ''} |"
        for cell in cells
    ]
    sums = []
    for dataset in dict.fromkeys(cell.dataset for cell in cells):
        here = [cell for cell in cells if cell.dataset == dataset]
        left = sum(cell.hours for cell in here if not cell.done)
        sums.append(f"{dataset}: {sum(cell.hours for cell in here):.1f} h, of which {left:.1f} h are left.")
    return "\n".join([*head, *lines, "", *sums, ""])
