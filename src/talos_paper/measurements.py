"""Results that need no whole fit: data set statistics, inconsistency, theory, seconds per epoch, significance tests."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from talos.data.splits import Split
from talos.evaluation.significance import compare, holm
from talos.training import Callback, Trainer
from talos_paper import data as paper_data
from talos_paper import inconsistency, theory
from talos_paper.equal import equal_recipe
from talos_paper.experiments import EXPERIMENTS, Row
from talos_paper.recipes import LOSSES, Fidelity, Protocol, Recipe, recipe
from talos_paper.results import ResultStore, versions
from talos_paper.runs import Runner

__all__ = ["measure", "save_significance", "significance_tests"]

_TEST = "paired t-test over users, two-sided, Holm-corrected over the rivals"
_TESTED = ("precision@20", "recall@20")
_ROUNDING = 2e-6  # stored metrics have six digits


def measure(experiment: str, dataset: str, *, folder: Path | None) -> dict[str, Any]:
    """Make a measurement: plain values, with the versions and the data they were made with."""
    if experiment == "theory":
        return {"versions": versions(), **theory.measure()}
    split = paper_data.load(dataset, folder=folder)
    values = {"statistics": _statistics, "efficiency": _efficiency, "inconsistency": inconsistency.measure}
    return {
        "dataset": dataset,
        "versions": versions(),
        "split": paper_data.split_facts(split),
        "notes": list(paper_data.notes_on(dataset)),
        **values[experiment](split, dataset),
    }


def _statistics(split: Split, dataset: str) -> dict[str, Any]:
    """Users, items and interactions of all parts together."""
    users = np.zeros(split.train.num_users, bool)
    items = np.zeros(split.train.num_items, bool)
    total = 0
    for part in split.parts.values():
        users |= part.user_degrees > 0
        items |= part.item_degrees > 0
        total += len(part)
    return {
        "users": int(users.sum()),
        "items": int(items.sum()),
        "interactions": total,
        "density": round(total / (int(users.sum()) * int(items.sum())), 6),
    }


# ------------------------------------------------------------------------------------------------ seconds per epoch


def _efficiency(split: Split, dataset: str) -> dict[str, Any]:
    """Seconds per epoch of every loss under each protocol, and their ratios to SL."""
    found: dict[str, Any] = {"threads": torch.get_num_threads(), "protocols": {}}
    protocols: dict[Protocol, Callable[[str], Recipe]] = {
        "paper": lambda loss: recipe(dataset, "mf", loss, fidelity="paper"),
        "fast": lambda loss: recipe(dataset, "mf", loss, fidelity="fast"),
        "equal": lambda loss: equal_recipe(dataset, "mf", loss),
    }
    for protocol, recipe_of in protocols.items():
        seconds = _seconds_per_epoch(split, recipe_of)
        found["protocols"][protocol] = {
            loss: {"seconds": round(value, 3), "ratio": round(value / seconds["sl"], 3)}
            for loss, value in seconds.items()
        }
    return found


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
            clock = _StepClock(1 + min(steps, max(1, len(trainer.batches) - 1)))
            trainer.callbacks = [clock]
            with contextlib.suppress(_EnoughStepsError):
                trainer.fit()
            found = median(clock.times[1:]) * len(trainer.batches)
            best[loss] = min(found, best.get(loss, found))
    return best


class _EnoughStepsError(Exception):
    """Ends training once enough steps are timed."""


class _StepClock(Callback):
    """Times single steps, and ends training after a number of them."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.times: list[float] = []

    def on_start(self, epoch: int, epochs: int, steps: int) -> None:
        """Start the clock."""
        self.last = time.perf_counter()

    def on_step(self, epoch: int, step: int, loss: float) -> None:
        """Note the time of the step."""
        now = time.perf_counter()
        self.times.append(now - self.last)
        self.last = now
        if len(self.times) == self.steps:
            raise _EnoughStepsError

    def on_epoch(self, record: dict[str, Any]) -> None:
        """Start the clock again: what happens between epochs belongs to no step."""
        self.last = time.perf_counter()


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
    rows: list[Row], store: ResultStore, runner: Runner, before: dict[str, Any]
) -> dict[str, Any] | None:
    """Group → metric → rival → p-value; None where nothing is new."""
    inputs: dict[str, dict[str, list[str]]] = {}
    groups: dict[str, dict[str, Any]] = {}
    for group in dict.fromkeys(row.group for row in rows):
        members = {
            row.method: row for row in rows if row.group == group and not row.method.startswith("talos,")
        }
        if "talos" not in members:
            continue
        talos = _per_user(members["talos"], store, runner)
        earlier = _Earlier(before.get("inputs", {}).get(group, {}), before.get("groups", {}).get(group, {}))
        used: dict[str, list[str]] = {}
        made: dict[str, dict[str, Any]] = {}
        for method, row in members.items():
            if method == "talos":
                continue
            other = _per_user(row, store, runner)
            kept = earlier.against(members["talos"], row, store)
            if (
                talos is not None
                and other is not None
                and (kept is None or len(talos[0]) > len(earlier.talos))
            ):
                used |= {"talos": talos[0], method: other[0]}
                made[method] = {
                    metric: _test(talos[1][metric], other[1][metric], method) for metric in _TESTED
                }
            elif kept is not None:
                used |= {"talos": earlier.talos, method: earlier.inputs[method]}
                made[method] = kept
        if made:
            inputs[group], groups[group] = used, _corrected(made)
    if not groups or (inputs, groups) == (before.get("inputs"), before.get("groups")):
        return None
    return {"inputs": inputs, "groups": groups, "versions": versions()}


@dataclass(frozen=True)
class _Earlier:
    """The tests of a group that are stored already."""

    inputs: dict[str, list[str]]
    tests: dict[str, Any]

    @property
    def talos(self) -> list[str]:
        """The runs of Talos behind them."""
        return self.inputs.get("talos", [])

    def against(self, talos: Row, rival: Row, store: ResultStore) -> dict[str, Any] | None:
        """Metric → test against a rival; None if there is none, or the runs behind it are not the rows' any more."""
        means = [self._means(row, store) for row in (talos, rival)]
        found = {
            metric: self.tests.get(metric, {}).get("against", {}).get(rival.method) for metric in _TESTED
        }
        for metric, test in found.items():
            if test is None or not all(means):
                return None
            # the name of a run says its settings; that the figures are still those of the test, the difference says
            if abs(means[0][metric] - means[1][metric] - test["difference"]) > _ROUNDING:
                return None
        return found

    def _means(self, row: Row, store: ResultStore) -> dict[str, float]:
        """The tested metrics, averaged over the runs behind the tests; empty if the row has not all of them."""
        resolved = store.resolved(row.recipe)
        names = self.inputs.get(row.method, [])
        if resolved is None or not names:
            return {}
        runs = {
            store.run_path(resolved, run.seed).stem: run for run in store.runs(resolved, max(row.seeds, 5))
        }
        if not set(names) <= set(runs):
            return {}
        return {metric: float(np.mean([runs[name].metrics[metric] for name in names])) for metric in _TESTED}


def _test(talos: NDArray[np.float64], other: NDArray[np.float64], rival: str) -> dict[str, Any]:
    one = compare(talos, other, names=("talos", rival))
    return {
        "difference": one.difference,
        "p_values": one.p_values,
        "users_higher": one.wins,
        "users_lower": one.losses,
        "effect_size": one.effect_size,
    }


def _corrected(made: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Metric → rival → its test, with the p-value corrected for the number of rivals."""
    found = {}
    for metric in _TESTED:
        corrected = holm([tests[metric]["p_values"]["t"] for tests in made.values()])
        found[metric] = {
            "test": _TEST,
            "against": {
                rival: {**tests[metric], "p": p}
                for (rival, tests), p in zip(made.items(), corrected, strict=True)
            },
        }
    return found


def _per_user(
    row: Row, store: ResultStore, runner: Runner
) -> tuple[list[str], dict[str, NDArray[np.float64]]] | None:
    """The runs of a row and each user's metrics, averaged over them; None without per-user metrics."""
    resolved = store.resolved(row.recipe)
    if resolved is None:
        return None
    frames = {}
    for seed in range(max(row.seeds, 5)):
        frame = runner.per_user(resolved, seed)
        if frame is not None and store.run_path(resolved, seed).exists():
            frames[store.run_path(resolved, seed).stem] = frame.sort("user_id")
    if not frames:
        return None
    return list(frames), {
        metric: np.mean([frame[metric].to_numpy().astype(np.float64) for frame in frames.values()], axis=0)
        for metric in _TESTED
    }
