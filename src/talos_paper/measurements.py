"""Results that need no whole fit: data set statistics, inconsistency, theory, seconds per epoch, significance tests."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from talos.data.splits import Split
from talos.evaluation.significance import compare
from talos.training import Callback, Trainer
from talos_paper import datasets, inconsistency, theory
from talos_paper.recipes import EXPERIMENTS, LOSSES, Fidelity, Recipe, Row, equal_recipe, recipe
from talos_paper.results import ResultStore, run_name, versions
from talos_paper.runs import Runner

__all__ = ["measure", "new_tests", "save_significance"]

_TESTED = ("precision@20", "recall@20")


def measure(experiment: str, dataset: str, *, folder: Path | None) -> dict[str, Any]:
    """Make a measurement: plain values, with the versions and the data they were made with."""
    if experiment == "theory":
        return {"versions": versions(), **theory.measure()}
    split = datasets.load(dataset, folder=folder)
    values = {"statistics": _statistics, "efficiency": _efficiency, "inconsistency": inconsistency.measure}
    return {
        "dataset": dataset,
        "versions": versions(),
        "split": datasets.split_facts(split),
        "notes": list(datasets.notes_on(dataset)),
        **values[experiment](split, dataset),
    }


def _statistics(split: Split, _: str) -> dict[str, Any]:
    parts = list(split.parts.values())
    users = int(np.any([part.user_degrees > 0 for part in parts], axis=0).sum())
    items = int(np.any([part.item_degrees > 0 for part in parts], axis=0).sum())
    total = sum(len(part) for part in parts)
    return {
        "users": users,
        "items": items,
        "interactions": total,
        "density": round(total / (users * items), 6),
    }


# ------------------------------------------------------------------------------------------------ seconds per epoch


def _efficiency(split: Split, dataset: str) -> dict[str, Any]:
    protocols: dict[str, Callable[[str], Recipe]] = {
        "paper": lambda loss: recipe(dataset, "mf", loss, fidelity="paper"),
        "fast": lambda loss: recipe(dataset, "mf", loss, fidelity="fast"),
        "equal": lambda loss: equal_recipe(dataset, "mf", loss),
    }
    found: dict[str, Any] = {}
    for protocol, recipe_of in protocols.items():
        seconds = _seconds_per_epoch(split, recipe_of)
        found[protocol] = {
            loss: {"seconds": round(value, 3), "ratio": round(value / seconds["sl"], 3)}
            for loss, value in seconds.items()
        }
    return {"threads": torch.get_num_threads(), "protocols": found}


def _seconds_per_epoch(
    split: Split, recipe_of: Callable[[str], Recipe], *, steps: int = 8, rounds: int = 3
) -> dict[str, float]:
    """Loss → seconds per epoch on MF: the median step times the number of steps, the best of some rounds.

    The losses take turns, so that a slow moment of the machine falls on all of them. Validation and the extra epochs
    of adversaries are not counted.
    """
    best: dict[str, float] = {}
    for _ in range(rounds):
        for loss in LOSSES:
            trainer = Trainer(recipe_of(loss).candidates()[0].config(0), split.train)
            clock = _StepClock(1 + min(steps, max(1, len(trainer.batches) - 1)))  # steps of one epoch
            trainer.callbacks = [clock]
            with contextlib.suppress(_EnoughStepsError):
                trainer.fit()
            found = float(np.median(np.diff(clock.ends))) * len(trainer.batches)
            best[loss] = min(found, best.get(loss, found))
    return best


class _EnoughStepsError(Exception):
    """Ends training once enough steps are timed."""


class _StepClock(Callback):
    """Notes when each step ends, and ends training after a number of them."""

    def __init__(self, steps: int) -> None:
        self.steps, self.ends = steps, list[float]()

    def on_step(self, epoch: int, step: int, loss: float) -> None:
        self.ends.append(time.perf_counter())
        if len(self.ends) == self.steps:
            raise _EnoughStepsError


# ----------------------------------------------------------------------------------------------- significance tests


def save_significance(
    store: ResultStore,
    runner: Runner,
    fidelity: Fidelity = "fast",
    notify: Callable[[str], None] = lambda line: None,
) -> None:
    """Paired tests of Talos against each rival, wherever the per-user metrics of both are in the work folder.

    The results get p-values and the names of the runs behind them, not the per-user metrics.
    """
    for name in ("overall", "equal", "temporal", "ablation"):
        for dataset in EXPERIMENTS[name].datasets:
            known = store.measurement(f"tests-{dataset}") or {}
            made = new_tests(EXPERIMENTS[name].rows(dataset, fidelity), store, runner, known)
            if made:
                store.save_measurement(f"tests-{dataset}", known | made)
                notify(f"tests between methods: {name} {dataset}")


def new_tests(
    rows: Sequence[Row], store: ResultStore, runner: Runner, known: Mapping[str, Any]
) -> dict[str, Any]:
    """The keys of two recipes → the test between their runs.

    Args:
        rows: of a table; a variant of Talos, with a comma in its name, is no rival.
        store: the results.
        runner: has the per-user metrics.
        known: the tests of an earlier call; those of as many runs are not made again.
    """
    made = {}
    for group in dict.fromkeys(row.group for row in rows):
        found = {
            row.method: one
            for row in rows
            if row.group == group and "," not in row.method and (one := _per_user(row, store, runner))
        }
        talos = found.pop("talos", None)
        for method, (key, runs, values) in found.items():
            if talos is None:
                continue
            pair, behind = f"{talos[0]} {key}", [talos[1], runs]
            if sum(map(len, behind)) > sum(map(len, known.get(pair, {}).get("runs", []))):
                tests = {metric: _test(talos[2][metric], values[metric], method) for metric in _TESTED}
                made[pair] = {"runs": behind, "versions": versions(), **tests}
    return made


def _test(talos: NDArray[np.float64], other: NDArray[np.float64], rival: str) -> dict[str, Any]:
    one = compare(talos, other, names=("talos", rival))
    return {
        "difference": one.difference,
        "p_values": one.p_values,
        "users_higher": one.wins,
        "users_lower": one.losses,
        "effect_size": one.effect_size,
    }


def _per_user(
    row: Row, store: ResultStore, runner: Runner
) -> tuple[str, list[str], dict[str, NDArray[np.float64]]] | None:
    """The key of a row's recipe, its runs, and each user's metrics, averaged over them; None without such metrics."""
    recipe = store.resolved(row.recipe) or row.recipe
    names = [run_name(recipe, run.seed) for run in store.runs(row.recipe, max(row.seeds, 5))]
    found = {name: runner.per_user(name) for name in names}
    frames = {name: frame.sort("user_id") for name, frame in found.items() if frame is not None}
    if not frames:
        return None
    values = {
        metric: np.mean([frame[metric].to_numpy().astype(np.float64) for frame in frames.values()], axis=0)
        for metric in _TESTED
    }
    return recipe.key, list(frames), values
