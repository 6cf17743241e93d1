"""The fits behind the tables: each is made once, stored, and resumed from its checkpoint after a stop."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from talos.data.parquet import scan_file
from talos.data.splits import Split
from talos.errors import InputError, TalosError
from talos.evaluation.evaluate import Report, evaluate
from talos.evaluation.ranking import DotScores
from talos.files import replace_file
from talos.model.store import lock_run
from talos.training import History, InterruptedRunError, Trainer
from talos.training.batches import generator_for
from talos.training.callbacks import read_history
from talos_paper.datasets import notes_on, split_facts
from talos_paper.recipes import Recipe, Searched, Settings, Trial
from talos_paper.results import ResultStore, StoredRun, run_name, versions

__all__ = ["OutOfTimeError", "Runner", "fresh_threshold_error"]


class OutOfTimeError(TalosError):
    """The budget is used up; the fit was saved and the next call resumes it."""


class _TimedHistory(History):
    """The history of a fit with processor time, which does not depend on what else the machine does.

    Ends the fit after the current step when the deadline has passed, and records mean scores if `probe` is set.
    """

    def __init__(self, path: Path, *, deadline: float, probe: bool) -> None:
        super().__init__(path)
        self.trainer: Trainer  # once there is one
        self.deadline, self.probe, self.out_of_time = deadline, probe, False

    def on_start(self, epoch: int, epochs: int, steps: int) -> None:
        super().on_start(epoch, epochs, steps)
        self.clock = time.process_time()

    def on_step(self, epoch: int, step: int, loss: float) -> None:
        if time.monotonic() >= self.deadline:
            self.out_of_time = self.trainer.stop_requested = True

    def on_epoch(self, record: dict[str, Any]) -> None:
        now = time.process_time()
        kept = {name: record[name] for name in ("epoch", "loss", "metrics")}
        more = {"scores": _mean_scores(self.trainer)} if self.probe else {}
        super().on_epoch({**kept, "cpu_seconds": round(now - self.clock, 3), **more})
        self.clock = now


def _mean_scores(trainer: Trainer) -> list[float]:
    """Mean score of positives and of all items, and mean exact threshold, over the same sample at each call."""
    from talos.kernels import kth_scores

    rng, train = np.random.default_rng(0), trainer.own_train
    active = np.flatnonzero(train.user_degrees)
    users = np.sort(rng.choice(active, min(1000, len(active)), replace=False))
    items = np.sort(rng.choice(train.num_items, min(1000, train.num_items), replace=False))
    user_vectors, item_vectors = trainer.vectors()
    indices, ends = torch.from_numpy(train.indices.astype(np.int64)), train.indptr
    own = [(item_vectors[indices[ends[u] : ends[u + 1]]] @ user_vectors[u]).mean() for u in users]
    chosen = user_vectors[torch.from_numpy(users)]
    every = chosen @ item_vectors[torch.from_numpy(items)].T
    threshold = kth_scores(chosen, item_vectors, trainer.config.k)
    return [round(float(values.mean()), 5) for values in (torch.stack(own).double(), every, threshold)]


@dataclass
class Runner:
    """Makes runs that the store does not have yet.

    Args:
        store: where results are saved.
        work: folder for checkpoints and per-user metrics; may be deleted while nothing runs.
        data: (data set, scenario) → its split.
        deadline: a time of `time.monotonic`, after which the current fit is saved and left.
        notify: called with a line of progress.
    """

    store: ResultStore
    work: Path
    data: Callable[[str, Any], Split]
    deadline: float = math.inf
    notify: Callable[[str], None] = lambda line: None

    def run(self, recipe: Recipe, seed: int) -> StoredRun:
        """The result of a recipe and a seed, from the store or from a fit, which resumes at its last checkpoint.

        Raises:
            OutOfTimeError: the deadline came first.
            InterruptedRunError: SIGINT or SIGTERM came first.
        """
        chosen = self.resolve(recipe)
        stored = self.store.run(chosen, seed)
        if stored is not None:
            return stored
        split = self.data(chosen.dataset, chosen.scenario)
        trainer, history = self._fit(chosen, seed, split)
        # As the paper measures: items of train are masked, those of validation are not.
        report = evaluate(
            DotScores(*trainer.vectors()),
            split.test,
            seen=split.train,
            ks=chosen.ks,
            metrics=("precision", "recall", "ndcg", "mrr"),
            dialect="paper",
        )
        at = trainer.position
        errors = {"error": trainer.threshold_error(), "fresh error": fresh_threshold_error(trainer)}
        measured = {**report.metrics, **{name: error for name, error in errors.items() if error is not None}}
        run = StoredRun(
            made_with={
                "dataset": chosen.dataset,
                "scenario": chosen.scenario,
                "fidelity": chosen.fidelity,
                "settings": dict(chosen.settings),
                "config": trainer.config.as_dict(),
                "deviations": list(chosen.deviations()),
                "split": split_facts(split),
                "dialect": report.dialect,
                "versions": versions(),
                "threads": torch.get_num_threads(),
            },
            notes=list(notes_on(chosen.dataset, chosen.scenario)),
            seed=seed,
            cpu_seconds=round(sum(line["cpu_seconds"] for line in history), 1),
            epochs=at.epoch,
            best_epoch=at.best_epoch or at.epoch,
            stopped="patience" if at.finished else "epochs",
            users=report.num_users,
            valid={name: round(value, 6) for name, value in at.best_metrics.items()},
            metrics={name: round(value, 6) for name, value in measured.items()},
            stderr={
                name: round(float(values.std(ddof=1) / np.sqrt(len(values))), 6)
                for name, values in report.per_user.items()
            },
            curve=_curve(history),
            scores=[line["scores"] for line in history if "scores" in line],
        )
        self._save_per_user(chosen, seed, report)
        self.store.save_run(chosen, run)
        shutil.rmtree(self._folder(chosen, seed), ignore_errors=True)
        self.notify(
            f"{run_name(chosen, seed)}: recall@20 {run.metrics['recall@20']:.4f}, "
            f"epoch {run.best_epoch} of {run.epochs}, {run.cpu_seconds:.0f} s"
        )
        return run

    def resolve(self, recipe: Recipe) -> Recipe:
        """The recipe with the settings that its search chose; makes and saves the search if it is missing."""
        resolved = self.store.resolved(recipe)
        if resolved is not None:
            return resolved
        split = self.data(recipe.dataset, recipe.scenario)
        found = self._searched(recipe, split)
        self.store.save_search(recipe, found)
        for place, candidate in enumerate(found.candidates):
            if place != found.best:
                shutil.rmtree(self._folder(recipe.with_settings(candidate), 0), ignore_errors=True)
        best = found.candidates[found.best]
        self.notify(f"{recipe.dataset} {recipe.backbone} {recipe.loss}: validation chose {best}")
        return recipe.with_settings(best)

    def _searched(self, recipe: Recipe, split: Split) -> Searched:
        """What the search of a recipe tried: candidates, each trained to its end, or option by option."""
        if recipe.options is None:
            trials = [self._trial(candidate, split) for candidate in recipe.candidates()]
            best = max(range(len(trials)), key=lambda place: trials[place][recipe.watched])
            return Searched([dict(one) for one in recipe.search], trials, best)

        def train(setting: Settings, epochs: int) -> tuple[float, Trial]:
            trial = self._trial(recipe.with_settings(setting), split, until=epochs)
            return trial[recipe.watched], trial

        return recipe.options.run(recipe.settings, train)  # its best fit is continued when its run is made

    def _trial(self, candidate: Recipe, split: Split, *, until: int | None = None) -> dict[str, Any]:
        """The validation metric of a candidate, after `until` epochs if that is given.

        The fit stays in the work folder, since the best one is used again.
        """
        stored = self.store.run(candidate, 0)
        if stored is not None and until is None:  # another row needed the same fit
            return {
                candidate.watched: stored.valid[candidate.watched],
                "best_epoch": stored.best_epoch,
                "epochs": stored.epochs,
                "cpu_seconds": stored.cpu_seconds,
                "curve": stored.curve,
            }
        path = self._folder(candidate, 0) / ("trial.json" if until is None else f"trial-{until}.json")
        if path.exists():
            return dict(json.loads(path.read_text()))
        try:
            trainer, history = self._fit(candidate, 0, split, until=until)
        except (InterruptedRunError, OutOfTimeError, InputError):
            raise  # not a failure of the candidate
        except TalosError as error:
            if isinstance(error.__cause__, OSError):  # a full disk
                raise
            # a candidate that diverges counts as the worst
            trial: dict[str, Any] = {candidate.watched: 0.0, "epochs": 0, "failed": str(error)}
        else:
            trial = {
                candidate.watched: trainer.position.best,
                "best_epoch": trainer.position.best_epoch,
                "epochs": trainer.position.epoch,
                "cpu_seconds": round(sum(line["cpu_seconds"] for line in history), 1),
                "curve": _curve(history),
            }
        replace_file(path, lambda temporary: temporary.write_text(json.dumps(trial)))
        return trial

    def _fit(
        self, recipe: Recipe, seed: int, split: Split, *, until: int | None = None
    ) -> tuple[Trainer, list[dict[str, Any]]]:
        try:
            trainer, history = self._resume(recipe, seed, split, until)
            if until is None or trainer.position.epoch <= until:
                return trainer, history
            reason = f"its checkpoint is beyond epoch {until}"
        except InputError as error:  # a checkpoint of other data or settings
            reason = str(error)
        self.notify(f"{recipe.key} seed {seed} starts from the beginning: {reason}")
        shutil.rmtree(self._folder(recipe, seed), ignore_errors=True)
        return self._resume(recipe, seed, split, until)

    def _resume(
        self, recipe: Recipe, seed: int, split: Split, until: int | None
    ) -> tuple[Trainer, list[dict[str, Any]]]:
        """Train to the end or until an epoch, from the last checkpoint if there is one."""
        folder = self._folder(recipe, seed)
        history = _TimedHistory(folder / "history.jsonl", deadline=self.deadline, probe=recipe.probe)
        with lock_run(folder, "reproducing"):
            trainer = history.trainer = Trainer(
                recipe.config(seed),
                split.train,
                split.valid,
                folder=folder / "checkpoint",
                callbacks=[history],
            )
            trainer.resume()
            try:
                if until is None:
                    trainer.fit()
                else:
                    history.on_start(trainer.position.epoch, until, len(trainer.batches))
                    trainer.train_until(until)
            except InterruptedRunError:
                if history.out_of_time:
                    raise OutOfTimeError("the budget is used up") from None
                raise
            return trainer, read_history(history.path)

    def _folder(self, recipe: Recipe, seed: int) -> Path:
        return self.work / "runs" / run_name(recipe, seed)

    # ------------------------------------------------------- per-user metrics

    def per_user(self, name: str) -> pl.DataFrame | None:
        """The metrics of each user of a run, for significance tests; None if the work folder does not have them."""
        path = self._per_user_path(name)
        return scan_file(path).collect() if path.exists() else None

    def _save_per_user(self, recipe: Recipe, seed: int, report: Report) -> None:
        path = self._per_user_path(run_name(recipe, seed))
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = ("precision@20", "recall@20", "ndcg@20")
        values = {name: report.per_user[name].astype(np.float32) for name in kept}
        replace_file(path, pl.DataFrame({"user_id": report.user_ids, **values}).write_parquet)

    def _per_user_path(self, name: str) -> Path:
        return self.work / "per-user" / f"{name}.parquet"


@torch.no_grad()
def fresh_threshold_error(trainer: Trainer) -> float | None:
    """The threshold error after one more epoch that updates thresholds and leaves the vectors as they are.

    What a threshold is wrong by at the end of a fit has two parts: the estimate itself, and that the vectors moved
    after a user's last batch. Here nothing moves, so only the first is left. None without thresholds.
    """
    if trainer.objective.threshold is None:
        return None
    generator = generator_for(trainer.config.seed, 2)
    order = trainer.batches.order(generator)
    for step in range(len(trainer.batches)):
        trainer.objective(trainer.batches.batch(order, step), generator, frozen=True)
    return trainer.threshold_error()


def _curve(history: list[dict[str, Any]]) -> list[list[float | None]]:
    """Epoch, loss and the watched validation metric, at each evaluation."""
    evaluated = [line for line in history if line["metrics"]]
    return [
        [line["epoch"], round(line["loss"], 4), round(next(iter(line["metrics"].values())), 6)]
        for line in evaluated
    ]
