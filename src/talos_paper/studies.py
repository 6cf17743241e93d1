"""Results that are no fits: inconsistency, theory, time an epoch, statistics, and tests between methods."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from talos.evaluation.significance import compare, holm
from talos_paper import data as paper_data
from talos_paper.cells import Cell
from talos_paper.data import PaperData
from talos_paper.experiments import EXPERIMENTS
from talos_paper.results import Store, versions
from talos_paper.runs import Runner, split_facts

if TYPE_CHECKING:
    from talos_paper.reproduce import Asked

__all__ = ["TEST", "keep_significance", "key", "measure"]

TEST = "paired t-test over users, two-sided, Holm-corrected over the rivals"
TESTED = ("precision@20", "recall@20")


def key(experiment: str, dataset: str) -> str:
    """The name under which a study is kept.

    >>> key("inconsistency", "beauty")
    'inconsistency-beauty'
    """
    return f"{experiment}-{dataset}"


def measure(experiment: str, dataset: str, *, folder: Path | None) -> dict[str, Any]:
    """Make a study: plain values, with the versions and the data they were made with."""
    if experiment == "theory":
        from talos_paper.theory_study import measure as made_up

        return {"versions": versions(), **made_up()}
    data = paper_data.load(dataset, folder=folder)
    made = _STUDIES[experiment](data)
    return {
        "dataset": dataset,
        "versions": versions(),
        "split": split_facts(data),
        "notes": list(data.notes),
        **made,
    }


def _statistics(data: PaperData) -> dict[str, Any]:
    """Users, items and interactions of all parts together."""
    users = np.zeros(data.split.train.num_users, bool)
    items = np.zeros(data.split.train.num_items, bool)
    total = 0
    for part in data.split.parts.values():
        users |= part.user_degrees > 0
        items |= part.item_degrees > 0
        total += len(part)
    return {
        "users": int(users.sum()),
        "items": int(items.sum()),
        "interactions": total,
        "density": round(total / (int(users.sum()) * int(items.sum())), 6),
    }


def _efficiency(data: PaperData) -> dict[str, Any]:
    from talos_paper.efficiency import measure as seconds

    return seconds(data)


def _inconsistency(data: PaperData) -> dict[str, Any]:
    from talos_paper.inconsistency_study import measure as shares

    return shares(data)


_STUDIES: dict[str, Callable[[PaperData], dict[str, Any]]] = {
    "statistics": _statistics,
    "efficiency": _efficiency,
    "inconsistency": _inconsistency,
}


# ------------------------------------------------------------------ significance


def keep_significance(
    asked: Asked, store: Store, runner: Runner, notify: Callable[[str], None] = lambda line: None
) -> None:
    """Paired tests of Talos against each rival, wherever the per-user values of both are at hand.

    Per-user values stay in the work folder; what is kept are p-values and what they are of. Tests whose runs
    have not changed are not made again.
    """
    for name in ("overall", "temporal", "ablation"):
        for dataset in EXPERIMENTS[name].datasets:
            cells = EXPERIMENTS[name].rows(dataset, asked.fidelity)
            found = _tests(cells, store, runner, store.measurement(f"significance-{name}-{dataset}") or {})
            if found is not None:
                store.save_measurement(f"significance-{name}-{dataset}", found)
                notify(f"tests between methods: {name} {dataset}")


def _tests(cells: list[Cell], store: Store, runner: Runner, before: dict[str, Any]) -> dict[str, Any] | None:
    """Group → metric → rival → p-value; None where nothing is new."""
    values: dict[str, dict[str, tuple[list[str], dict[str, NDArray[np.float64]]]]] = {}
    for cell in cells:
        found = _per_user(cell, store, runner)
        if found is not None:
            values.setdefault(cell.group, {})[cell.method] = found
    inputs = {
        group: {method: runs for method, (runs, _) in methods.items()}
        for group, methods in values.items()
        if "talos" in methods and len(methods) > 1
    }
    if not inputs or inputs == before.get("inputs"):
        return None
    groups: dict[str, Any] = {}
    for group in inputs:
        methods = values[group]
        groups[group] = {}
        for metric in TESTED:
            rivals = [method for method in methods if method != "talos" and not method.startswith("talos,")]
            made = {
                rival: compare(methods["talos"][1][metric], methods[rival][1][metric], names=("talos", rival))
                for rival in rivals
            }
            corrected = holm([one.p_values["t"] for one in made.values()])
            groups[group][metric] = {
                "test": TEST,
                "against": {
                    rival: {
                        "difference": one.difference,
                        "p": p,
                        "p_values": one.p_values,
                        "users_higher": one.wins,
                        "users_lower": one.losses,
                        "effect_size": one.effect_size,
                    }
                    for (rival, one), p in zip(made.items(), corrected, strict=True)
                },
            }
    return {"inputs": inputs, "groups": groups, "versions": versions()}


def _per_user(
    cell: Cell, store: Store, runner: Runner
) -> tuple[list[str], dict[str, NDArray[np.float64]]] | None:
    """Mean over seeds of every user's metrics, and of which runs; None without per-user values."""
    resolved = store.resolved(cell.recipe)
    if resolved is None:
        return None
    frames = {}
    for seed in range(max(cell.seeds, 5)):
        frame = runner.per_user(resolved, seed)
        if frame is not None and store.run_path(resolved, seed).exists():
            frames[store.run_path(resolved, seed).stem] = frame.sort("user_id")
    if not frames:
        return None
    return list(frames), {
        metric: np.mean([frame[metric].to_numpy().astype(np.float64) for frame in frames.values()], axis=0)
        for metric in TESTED
    }
