"""Talos and the baselines on the public splits of Gowalla and Yelp2018, by a protocol that reads test once.

For every method and split:

1. `hold_out`: a tenth of train, drawn per user with a fixed seed, becomes the validation part;
2. `choose`: every candidate is fitted on the rest, and validation Recall@20 decides on the settings (a trained model
   races those that the candidate leaves open, as it does by default) and, where there are epochs, on their number;
3. `fit_on_all`: `Recommender.refit`, one fit on all of train with what was chosen, for each seed;
4. `measure`: the test part, once for each of these fits, in the standard dialect.

Steps 2 and 3 know nothing of test: they are not given it. After every step the result so far is written to a sealed
file, so a call that was stopped continues with the next step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch

from talos import registry
from talos.config import RunConfig
from talos.data import readers, splits
from talos.data.datasets.cache import LOCAL, local_copy
from talos.data.interactions import Interactions
from talos.errors import ConfigError, DataError, InputError, nearest
from talos.model.recommender import Recommender
from talos_paper.published.leaderboard import SPLITS
from talos_paper.results import ResultStore, versions

__all__ = [
    "METHODS",
    "Choice",
    "Method",
    "choose",
    "fit_on_all",
    "hold_out",
    "run_leaderboard",
    "stored_name",
]

K = 20
METRIC = "recall"
_HELD_OUT, _SEED = 0.1, 0
_KS = (10, 20, 50)
_METRICS = ("precision", "recall", "ndcg", "mrr")


@dataclass(frozen=True, kw_only=True)
class Method:
    """A row of the leaderboard: settings by dotted name of the config, and candidates, of which validation picks one.

    Attributes:
        name: on the command line.
        title: in the table.
        settings: of every candidate.
        grid: key → values; every combination is a candidate. Empty: the settings are the only one.
        seeds: number of fits on all of train.
        loss_of: the row from whose choice the settings of the loss come, in place of a race.
    """

    name: str
    title: str
    settings: Mapping[str, Any]
    grid: Mapping[str, Sequence[Any]]
    seeds: int = 3
    loss_of: str | None = None

    def candidates(self) -> list[dict[str, Any]]:
        """The settings to try.

        >>> METHODS["popularity"].candidates()
        [{'baseline.name': 'popularity'}]
        """
        keys = list(self.grid)
        return [
            {**self.settings, **dict(zip(keys, values, strict=True))}
            for values in product(*self.grid.values())
        ]


def _baseline(name: str, title: str, **grid: Sequence[Any]) -> Method:
    return Method(
        name=name,
        title=title,
        settings={"baseline.name": name},
        grid={f"baseline.{option}": values for option, values in grid.items()},
        seeds=3 if registry.resolve("baseline", name).random else 1,
    )


def _larger(row: str, title: str, *, loss_of: str | None = "talos-64", **backbone: Any) -> Method:
    """Talos on a backbone whose epochs take longer, so that the rate falls faster and fewer are needed.

    The loss is the one that another row chose, or raced again.
    """
    settings = {
        **{f"backbone.{option}": value for option, value in backbone.items()},
        "optimizer.lr_decay": 0.93,
    }
    title = title if loss_of is None else f"{title}, loss of 64"
    return Method(name=row, title=f"Talos on {title}", settings=settings, grid={}, loss_of=loss_of)


# 256 and 512 are the largest powers of 2 with which choice and fit take less than an hour on two cores, with a race and
# without.
METHODS: dict[str, Method] = {
    one.name: one
    for one in (
        Method(name="talos-64", title="Talos on MF", settings={"backbone.dim": 64}, grid={}),
        _larger("talos-lightgcn", "LightGCN", name="lightgcn", dim=64),
        _larger("talos", "MF, 256 dimensions", dim=256, loss_of=None),
        _larger("talos-256", "MF, 256 dimensions", dim=256),
        _larger("talos-512", "MF, 512 dimensions", dim=512),
        _baseline("popularity", "popularity"),
        _baseline("itemknn", "ItemKNN", neighbours=[100, 500], shrinkage=[0.0, 50.0]),
        _baseline("rp3beta", "RP3beta", alpha=[0.5, 1.0], beta=[0.0, 0.3], neighbours=[200]),
        _baseline("als", "ALS", dim=[64], regularization=[30.0, 100.0], weight=[30.0, 100.0]),
    )
}
"""Name → row, in the order in which they are offered. EASE is left to the literature: its matrix of 41 thousand items
squared takes 6.7 GB and about 25 minutes a fit on one core, so that a grid of settings is out of reach here."""


# ------------------------------------------------------------------------------------ the protocol


@dataclass(frozen=True)
class Choice:
    """What validation chose: the best of the trials, and all that were tried."""

    trials: list[dict[str, Any]]  # of every candidate: its settings, race, validation metrics, epoch, seconds
    best: int

    def recommender(self, rest: Interactions, valid: Interactions, seed: int) -> Recommender:
        """The chosen model before its refit on all of train, which are these two parts."""
        trial = self.trials[self.best]
        return Recommender.from_choice(
            RunConfig.from_dict(trial["config"]).with_values({"seed": seed}),
            rest,
            valid,
            epoch=max(1, trial["epoch"]),
            epochs_from=f"the best epoch of candidate {self.best + 1} of {len(self.trials)}",
            metrics=trial["valid"],
            race=trial.get("race"),
        )


def load(dataset: str, folder: Path | None = None) -> tuple[Interactions, Interactions]:
    """Train and test of a public split, over the same ids."""
    if dataset not in SPLITS:
        raise ConfigError(f"{dataset!r} is not known", where="--dataset", hint=nearest(dataset, SPLITS))
    place = local_copy(dataset, folder)
    if place is None or not readers.is_parts(place):
        what = f"no folder {dataset}/ with train and test files"
        raise DataError(what, where="--data", expected=f"the data in --data or {LOCAL}")
    parts = readers.read_parts(place)
    split = splits.predefined(parts.train, None, parts.test)
    return split.train, split.test


def hold_out(train: Interactions) -> tuple[Interactions, Interactions]:
    """Train without a tenth of every user's interactions, and that tenth."""
    drawn = splits.split(train, test=_HELD_OUT, valid=0.0, seed=_SEED, paper=True)
    return drawn.train, drawn.test


def choose(
    candidates: Sequence[Mapping[str, Any]],
    rest: Interactions,
    valid: Interactions,
    *,
    done: Sequence[dict[str, Any]] = (),
    work: Path | None = None,
    save: Callable[[list[dict[str, Any]]], None] = lambda trials: None,
) -> Choice:
    """Fit every candidate on `rest` and keep the one with the best validation metric.

    Args:
        candidates: settings by dotted name.
        rest: the interactions to fit.
        valid: those that decide.
        done: the trials of an earlier call, which are not repeated.
        work: a folder for checkpoints, from which an interrupted fit goes on.
        save: called with all trials after each.
    """
    trials = list(done)
    for place in range(len(trials), len(candidates)):
        base = RunConfig().with_values({"k": K, "training.metric": METRIC, **candidates[place]})
        began, clock = time.perf_counter(), time.process_time()
        model = Recommender(config=base)
        folder = None if work is None or base.baseline is not None else work / f"trial-{place}"
        with _says_where(folder):
            model.fit(rest, valid, run=folder, resume=folder is not None)
        facts = model.fitted_model().metadata
        trials.append(
            {
                "settings": dict(candidates[place]),
                "valid": {name: round(value, 6) for name, value in facts["valid"].items()},
                "epoch": facts["epoch"],
                **({"race": facts["race"]} if "race" in facts else {}),
                "seconds": round(time.perf_counter() - began, 1),
                "cpu_seconds": round(time.process_time() - clock, 1),
                "config": model.config.as_dict(),
            }
        )
        save(trials)
    best = max(range(len(trials)), key=lambda place: (trials[place]["valid"][f"{METRIC}@{K}"], -place))
    return Choice(trials, best)


def fit_on_all(
    choice: Choice, rest: Interactions, valid: Interactions, seed: int, *, work: Path | None = None
) -> tuple[Recommender, dict[str, Any]]:
    """The chosen model fitted again on all of train, which are these two parts, and how long it took."""
    began, clock = time.perf_counter(), time.process_time()
    model = choice.recommender(rest, valid, seed)
    with _says_where(work):
        model.refit("train+valid", run=work, resume=work is not None)
    return model, {
        "seconds": round(time.perf_counter() - began, 1),
        "cpu_seconds": round(time.process_time() - clock, 1),
    }


@contextmanager
def _says_where(work: Path | None) -> Iterator[None]:
    """Errors about the checkpoints of another fit say what to do with the folder."""
    try:
        yield
    except InputError as error:
        if work is None:
            raise
        raise DataError(
            str(error), where=str(work), hint="delete this folder to start the fit again"
        ) from error


def measure(model: Recommender, test: Interactions) -> dict[str, Any]:
    """Metrics on test: all of train masked, means over the users with test items."""
    report = model.evaluate(test, k=_KS, metrics=_METRICS)
    return {
        "metrics": {name: round(value, 6) for name, value in report.metrics.items()},
        "users": report.num_users,
    }


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
        if name not in METHODS:
            raise ConfigError(f"{name!r} is not known", where="--methods", hint=nearest(name, METHODS))
    for dataset in SPLITS if datasets is None else datasets:
        train, test = load(dataset, folder)
        rest, valid = hold_out(train)
        for name in methods:
            place = None if work is None else work / dataset / name
            _run_method(METHODS[name], dataset, (train, test, rest, valid), store, seeds, place, notify)


def _chosen_loss(method: Method, dataset: str, store: ResultStore) -> dict[str, Any]:
    """The settings of the loss that another row's choice has, by dotted name; none for a row of its own."""
    if method.loss_of is None:
        return {}
    other = store.measurement(stored_name(dataset, method.loss_of))
    if other is None or "best" not in other:
        expected = f"--methods {method.loss_of} first: its settings are taken"
        raise DataError(f"{method.loss_of} has no result yet", where=method.name, expected=expected)
    loss = other["trials"][other["best"]]["config"]["loss"]
    return {f"loss.{option}": value for option, value in loss.items()}


def _run_method(
    method: Method,
    dataset: str,
    data: tuple[Interactions, Interactions, Interactions, Interactions],
    store: ResultStore,
    seeds: int | None,
    work: Path | None,
    notify: Callable[[str], None],
) -> None:
    train, test, rest, valid = data
    name = stored_name(dataset, method.name)
    candidates = [{**one, **_chosen_loss(method, dataset, store)} for one in method.candidates()]
    protocol = {
        "candidates": candidates,
        "decided_by": f"validation {METRIC}@{K}",
        "held_out": {"share": _HELD_OUT, "seed": _SEED},
        "data": {part: one.fingerprint() for part, one in (("train", train), ("test", test))},
    }
    result = store.measurement(name) or {"protocol": protocol, "trials": [], "runs": []}
    if result["protocol"] != protocol:
        what = f"{name} was made with other candidates or data"
        raise DataError(what, where=str(store.root), hint="delete its file to make it again")

    def save_trials(trials: list[dict[str, Any]]) -> None:
        result["trials"] = trials
        store.save_measurement(name, result)
        shown = trials[-1]["settings"]
        value = trials[-1]["valid"][f"{METRIC}@{K}"]
        notify(f"{dataset} {method.name} {len(trials)}/{len(candidates)} {shown}: validation {value:.4f}")

    choice = choose(candidates, rest, valid, done=result["trials"], work=work, save=save_trials)
    result["best"] = choice.best
    for seed in range(len(result["runs"]), method.seeds if seeds is None else min(seeds, method.seeds)):
        place = None if work is None else work / f"final-{seed}"
        model, times = fit_on_all(choice, rest, valid, seed, work=place)
        run = {"seed": seed, **measure(model, test), **times, "config": model.config.as_dict()}
        result["runs"].append({**run, "threads": torch.get_num_threads(), "versions": versions()})
        store.save_measurement(name, result)
        found = run["metrics"]
        notify(
            f"{dataset} {method.name} seed {seed}: test recall@{K} {found[f'recall@{K}']:.4f}, "
            f"ndcg@{K} {found[f'ndcg@{K}']:.4f}, {times['seconds']:.0f} s"
        )
