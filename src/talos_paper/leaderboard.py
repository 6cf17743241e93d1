"""Talos and the baselines on the public splits of Gowalla and Yelp2018, by a protocol that reads test once.

For every method and split:

1. `hold_out`: a tenth of train, drawn per user with a fixed seed, becomes the validation part;
2. every candidate is fitted on the rest, and validation Recall@20 decides on the settings (a trained model races those
   that the candidate leaves open, as it does by default) and, where there are epochs, on their number;
3. `Recommender.refit`: one fit on all of train with what was chosen, for each seed;
4. the test part, once for each of these fits, in the standard dialect.

Steps 2 and 3 are not given test. After every step the result so far is stored, so a call that was stopped continues
with the next step. `data/leaderboard.toml` has the methods and the results of the literature.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

from talos.checks import one_of, require
from talos.config import RunConfig
from talos.data import splits
from talos.data.interactions import Interactions
from talos.data.open import open_split
from talos.data.source import Source
from talos.errors import DataError
from talos.model.recommender import Recommender
from talos_paper.datasets import LOCAL, local_copy
from talos_paper.published import read_toml
from talos_paper.results import ResultStore, versions

__all__ = [
    "LITERATURE",
    "METHODS",
    "SPLITS",
    "candidates_of",
    "hold_out",
    "leaderboard_page",
    "load",
    "run_leaderboard",
    "stored_name",
]

K = 20
METRIC = "recall"
_HELD_OUT, _SEED = 0.1, 0
_DATA = read_toml("leaderboard")

SPLITS: dict[str, str] = _DATA["splits"]
"""Folder of a split → name in tables."""

LITERATURE: list[dict[str, Any]] = _DATA["literature"]
"""Published results, with where each is from."""


METHODS: dict[str, dict[str, Any]] = {facts["name"]: facts for facts in _DATA["method"]}
"""Name → row, in the order in which they are offered; see `data/leaderboard.toml`."""


def candidates_of(method: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The settings to try for a row.

    >>> candidates_of(METHODS["popularity"])
    [{'baseline.name': 'popularity'}]
    """
    grid = method.get("grid", {})
    return [
        {**method["settings"], **dict(zip(grid, values, strict=True))} for values in product(*grid.values())
    ]


# ------------------------------------------------------------------------------------ the protocol


def load(dataset: str, folder: Path | None = None) -> tuple[Interactions, Interactions]:
    """Train and test of a public split, over the same ids."""
    one_of("--dataset", dataset, tuple(SPLITS))
    place = local_copy(dataset, folder)
    if place is None or Source.of(place).kind != "parts":
        what = f"no folder {dataset}/ with train and test files"
        raise DataError(what, where="--data", expected=f"the data in --data or {LOCAL}")
    parts = open_split(place)
    return parts.train, parts.test


def hold_out(train: Interactions) -> tuple[Interactions, Interactions]:
    """Train without a tenth of every user's interactions, and that tenth."""
    drawn = splits.split(train, test=_HELD_OUT, valid=0.0, seed=_SEED, paper=True)
    return drawn.train, drawn.test


def _timed(fit: Callable[[], object]) -> dict[str, float]:
    began, clock = time.perf_counter(), time.process_time()
    fit()
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - clock
    return {"seconds": round(seconds, 1), "cpu_seconds": round(cpu_seconds, 1)}


# ---------------------------------------------------------------------------------------- running it


def stored_name(dataset: str, method: str) -> str:
    """The name of the measurement of a method on a split.

    >>> stored_name("gowalla-lightgcn", "als")
    'leaderboard/gowalla-lightgcn/als'
    """
    return f"leaderboard/{dataset}/{method}"


def run_leaderboard(
    store: ResultStore,
    *,
    datasets: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    seeds: int | None = None,
    folder: Path | None = None,
    work: Path | None = None,
    notify: Callable[[str], None] = lambda line: None,
) -> None:
    """Make what is missing: the choice and the fits of each method on each split, one after another.

    Args:
        store: where results are looked up and saved.
        datasets: the splits; all of them if None.
        methods: names in `METHODS`; all of them if None.
        seeds: number of fits on all of train; each method's own number if None.
        folder: with the splits, a subfolder each; the folder that TALOS_DATA names if None.
        work: folder for checkpoints of fits that are not finished.
        notify: called with a line after each step.
    """
    methods = list(METHODS) if methods is None else methods
    for name in methods:
        one_of("--methods", name, tuple(METHODS))
    for dataset in SPLITS if datasets is None else datasets:
        train, test = load(dataset, folder)
        data = (train, test, *hold_out(train))
        for name in methods:
            place = None if work is None else work / dataset / name
            _run_method(METHODS[name], dataset, data, store, seeds, place, notify)


def _run_method(
    method: Mapping[str, Any],
    dataset: str,
    data: tuple[Interactions, Interactions, Interactions, Interactions],
    store: ResultStore,
    seeds: int | None,
    work: Path | None,
    notify: Callable[[str], None],
) -> None:
    train, test, rest, valid = data
    name, metric = stored_name(dataset, method["name"]), f"{METRIC}@{K}"
    other = stored_name(
        dataset, method.get("loss_of", method["name"])
    )  # its choice has the settings of the loss
    chosen = store.measurement(other) or {}
    require(
        "loss_of" not in method or "best" in chosen,
        f"{method.get('loss_of')} has no result yet",
        where=method["name"],
        expected=f"--methods {method.get('loss_of')} first: its settings are taken",
        error=DataError,
    )
    loss = chosen["trials"][chosen["best"]]["config"]["loss"] if "loss_of" in method else {}
    given = {f"loss.{option}": value for option, value in loss.items()}
    candidates = [{**one, **given} for one in candidates_of(method)]
    protocol = {
        "candidates": candidates,
        "decided_by": f"validation {metric}",
        "held_out": {"share": _HELD_OUT, "seed": _SEED},
        "data": {part: one.fingerprint() for part, one in (("train", train), ("test", test))},
    }
    result = store.measurement(name) or {"protocol": protocol, "trials": [], "runs": []}
    trials, runs = result["trials"], result["runs"]
    require(
        result["protocol"] == protocol,
        f"{name} was made with other candidates or data",
        where=str(store.root),
        hint="delete its line to make it again",
        error=DataError,
    )
    for place in range(len(trials), len(candidates)):
        base = RunConfig().with_values({"k": K, "training.metric": METRIC, **candidates[place]})
        folder = None if work is None or base.baseline is not None else work / f"trial-{place}"
        model = Recommender(config=base)
        times = _timed(partial(model.fit, rest, valid, run=folder, resume=folder is not None))
        facts = model.fitted_model().metadata
        trial = {
            "settings": dict(candidates[place]),
            "valid": {name: round(value, 6) for name, value in facts["valid"].items()},
            "epoch": facts["epoch"],
            **({"race": facts["race"]} if "race" in facts else {}),
            **times,
            "config": model.config.as_dict(),
        }
        trials.append(trial)
        store.save_measurement(name, result)
        found = f"{trial['settings']}: validation {trial['valid'][metric]:.4f}"
        notify(f"{dataset} {method['name']} {len(trials)}/{len(candidates)} {found}")
    result["best"] = max(range(len(trials)), key=lambda place: trials[place]["valid"][metric])
    best, wanted = trials[result["best"]], method.get("seeds", 1)
    for seed in range(len(runs), min(seeds or wanted, wanted)):
        folder = None if work is None else work / f"final-{seed}"
        model = Recommender.from_choice(
            RunConfig.from_dict(best["config"]).with_values({"seed": seed}),
            rest,
            valid,
            epoch=max(1, best["epoch"]),
            epochs_from=f"the best epoch of candidate {result['best'] + 1} of {len(trials)}",
            metrics=best["valid"],
            race=best.get("race"),
        )
        times = _timed(partial(model.refit, "train+valid", run=folder, resume=folder is not None))
        report = model.evaluate(
            test, k=(10, 20, 50), metrics=("precision", "recall", "ndcg", "mrr")
        )  # all of train masked, users with test items
        figures = {name: round(value, 6) for name, value in report.metrics.items()}
        made_with = {"threads": torch.get_num_threads(), "versions": versions()}
        run = {"seed": seed, "metrics": figures, "users": report.num_users, **times}
        runs.append({**run, "config": model.config.as_dict(), **made_with})
        store.save_measurement(name, result)
        notify(f"{dataset} {method['name']} seed {seed}: test {metric} {figures[metric]:.4f}")


# ----------------------------------------------------------------------------------------------- pages


def leaderboard_page(store: ResultStore) -> str | None:
    """Our rows and the literature's in one table for each public split; None while there is no result."""
    parts = []
    header = [
        "method",
        "d",
        "R@20",
        "NDCG@20",
        "settings chosen on",
        "from, or processor time",
        "chosen settings",
    ]
    for dataset, title in SPLITS.items():
        ours = list(_ours(store, dataset))
        printed = [
            (
                one[dataset][0],
                [
                    *(one["method"], one.get("dim", "–"), *(f"{figure:.4f}" for figure in one[dataset])),
                    *(one.get("chosen_on", "–"), one["source"], ""),
                ],
            )
            for one in LITERATURE
            if dataset in one
        ]
        if ours:
            rows = [cells for _, cells in sorted([*ours, *printed], key=lambda row: -row[0])]
            lines = [f"| {' | '.join(row)} |\n" for row in (header, ["---"] * len(header), *rows)]
            parts += [f"## {title}\n", "".join(lines)]
    return (
        "\n".join([_DATA["page"]["head"].lstrip(), *parts, _DATA["page"]["tail"].lstrip()]) if parts else None
    )


def _ours(store: ResultStore, dataset: str) -> Iterator[tuple[float, list[str]]]:
    for method in METHODS.values():
        result = store.measurement(stored_name(dataset, method["name"])) or {}
        runs, trials = result.get("runs"), result.get("trials", [])
        if runs:
            found = [[run["metrics"][metric] for run in runs] for metric in ("recall@20", "ndcg@20")]
            spread = [f" ± {stdev(values):.4f}" if len(values) > 1 else "" for values in found]
            shown = [f"**{mean(values):.4f}**{half}" for values, half in zip(found, spread, strict=True)]
            config, threads = runs[0]["config"], runs[0]["threads"]
            dim = config.get("backbone", config.get("baseline", {})).get("dim", "–")
            fit, choice = mean(run["cpu_seconds"] for run in runs), sum(one["cpu_seconds"] for one in trials)
            took = f"{fit:,.0f} s, choice {choice:,.0f} s, {threads} thread{'s' * (threads > 1)}"
            cells = [f"**{method['title']}**", f"{dim}", *shown, "validation", took]
            yield mean(found[0]), [*cells, _settings(trials[result["best"]], len(trials))]


def _settings(chosen: Mapping[str, Any], tried: int) -> str:
    """What differs between the candidates or was found in training, in words."""
    loss = chosen["config"].get("loss", {})
    found = {key.rpartition(".")[2]: value for key, value in chosen["settings"].items()}
    found |= {**loss, "epochs": chosen["epoch"]} if loss else {}
    shown = [(key, value) for key, value in found.items() if key not in ("name", "dim")]
    words = [f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in shown]
    return f"{', '.join(words) or '–'}{f' (best of {tried})' if tried > 1 else ''}"
