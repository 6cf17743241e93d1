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
from talos.evaluation.significance import compare, holm
from talos.training import Callback, Trainer
from talos_paper import datasets, inconsistency, theory
from talos_paper.experiments import EXPERIMENTS, Row
from talos_paper.recipes import LOSSES, Fidelity, Recipe, equal_recipe, recipe
from talos_paper.results import ResultStore, StoredRun, run_name, versions
from talos_paper.runs import Runner

__all__ = ["measure", "save_significance", "significance_tests"]

_TEST = "paired t-test over users, two-sided, Holm-corrected over the rivals"
_TESTED = ("precision@20", "recall@20")
_ROUNDING = 2e-6  # stored metrics have six digits


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
    """Users, items and interactions of all parts together."""
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
    """Seconds per epoch of every loss under each protocol, and their ratios to SL."""
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
        """Note the time."""
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

    The results get p-values and the names of the runs behind them, not the per-user metrics. Tests whose runs have
    not changed are kept; tests of runs that are no longer the row's are dropped.
    """
    for name in ("overall", "equal", "temporal", "ablation"):
        for dataset in EXPERIMENTS[name].datasets:
            rows = EXPERIMENTS[name].rows(dataset, fidelity)
            before = store.measurement(f"significance-{name}-{dataset}") or {}
            found = significance_tests(rows, store, runner, before)
            if found is not None:
                store.save_measurement(f"significance-{name}-{dataset}", found)
                notify(f"tests between methods: {name} {dataset}")


def significance_tests(
    rows: Sequence[Row], store: ResultStore, runner: Runner, before: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Group → metric → rival → p-value; None where nothing is new.

    Args:
        rows: of a table; a variant of Talos, with a comma in its name, is no rival.
        store: the results.
        runner: has the per-user metrics.
        before: the tests of an earlier call.
    """
    inputs: dict[str, dict[str, list[str]]] = {}
    groups: dict[str, dict[str, Any]] = {}
    for group in dict.fromkeys(row.group for row in rows):
        members = {row.method: row for row in rows if row.group == group and "," not in row.method}
        talos = members.pop("talos", None)
        mine = None if talos is None else _per_user(talos, store, runner)
        used: dict[str, list[str]] = before.get("inputs", {}).get(group, {})
        now, made = dict[str, list[str]](), dict[str, dict[str, Any]]()
        for method, row in members.items():
            if talos is None:
                continue
            theirs, kept = _per_user(row, store, runner), _kept(before, group, (talos, row), store)
            if mine and theirs and (kept is None or len(mine[0]) > len(used["talos"])):
                now |= {"talos": mine[0], method: theirs[0]}
                made[method] = {name: _test(mine[1][name], theirs[1][name], method) for name in _TESTED}
            elif kept is not None:
                now |= {"talos": used["talos"], method: used[method]}
                made[method] = kept
        if made:
            inputs[group], groups[group] = now, _corrected(made)
    if not groups or (inputs, groups) == (before.get("inputs"), before.get("groups")):
        return None
    return {"inputs": inputs, "groups": groups, "versions": versions()}


def _kept(
    before: Mapping[str, Any], group: str, pair: tuple[Row, Row], store: ResultStore
) -> dict[str, Any] | None:
    """Metric → stored test between two rows; None if there is none, or the runs behind it are not the rows' any more.

    The name of a run says its settings; that its figures are still those of the test, the difference says.
    """
    used = before.get("inputs", {}).get(group, {})
    found = {}
    for metric in _TESTED:
        means = []
        for row in pair:
            figures = {name: run.metrics[metric] for name, run in _runs(row, store).items()}
            means.append(np.mean([figures.get(name, np.nan) for name in used.get(row.method, [""])]))
        tests = before.get("groups", {}).get(group, {}).get(metric, {}).get("against", {})
        found[metric] = tests.get(pair[1].method)
        if found[metric] is None or not abs(means[0] - means[1] - found[metric]["difference"]) < _ROUNDING:
            return None
    return found


def _runs(row: Row, store: ResultStore) -> dict[str, StoredRun]:
    """Name without the data set → run, of every seed that is stored."""
    recipe = store.resolved(row.recipe)
    found = [] if recipe is None else store.runs(recipe, max(row.seeds, 5))
    return {run_name(recipe, run.seed).partition("/")[2]: run for run in found if recipe is not None}


def _test(talos: NDArray[np.float64], other: NDArray[np.float64], rival: str) -> dict[str, Any]:
    one = compare(talos, other, names=("talos", rival))
    return {
        "difference": one.difference,
        "p_values": one.p_values,
        "users_higher": one.wins,
        "users_lower": one.losses,
        "effect_size": one.effect_size,
    }


def _corrected(made: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Metric → rival → its test, with the p-value corrected for the number of rivals."""
    found = {}
    for metric in _TESTED:
        corrected = holm([tests[metric]["p_values"]["t"] for tests in made.values()])
        against = {
            rival: {**tests[metric], "p": p}
            for (rival, tests), p in zip(made.items(), corrected, strict=True)
        }
        found[metric] = {"test": _TEST, "against": against}
    return found


def _per_user(
    row: Row, store: ResultStore, runner: Runner
) -> tuple[list[str], dict[str, NDArray[np.float64]]] | None:
    """The runs of a row and each user's metrics, averaged over them; None without per-user metrics."""
    frames = {}
    for name in _runs(row, store):
        frame = runner.per_user(f"{row.dataset}/{name}")
        if frame is not None:
            frames[name] = frame.sort("user_id")
    if not frames:
        return None
    return list(frames), {
        metric: np.mean([frame[metric].to_numpy().astype(np.float64) for frame in frames.values()], axis=0)
        for metric in _TESTED
    }
