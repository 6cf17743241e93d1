"""The search: data and a space in, Optuna's `Study.optimize` over one or several workers, a study and its winner out.

This process alone uses the storage of the study. It fits by itself, or with a worker process for each thread of
`optimize`, which fits one config after another and reports its epochs through a pipe (`talos.studies.tune.trial`), so
nothing is lost with it but the trial it was fitting. Such a trial, one that was stopped, and one whose machine sends
no heartbeats are run again by Optuna's retry callback: each trial that is wanted ends at least once.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import optuna
import polars as pl
import torch
from optuna.trial import FrozenTrial, TrialState

from talos.checks import require
from talos.config import RunConfig
from talos.data.databases import without_password
from talos.data.interactions import Interactions
from talos.data.options import SourceOptions
from talos.data.splits import Split
from talos.errors import ConfigError, TalosError
from talos.files import replace_text
from talos.model.recommender import Recommender
from talos.studies.folder import study_folder
from talos.studies.tune.data import FitParts, fit_parts, map_parts, write_parts
from talos.studies.tune.space import Space, check_space, default_space
from talos.studies.tune.study import (
    DATA,
    FINAL,
    MANIFEST,
    NOUN,
    Pruner,
    Sampler,
    TrialRow,
    Tuned,
    TuneSettings,
    check_reachable,
    current_trials,
    is_interrupted,
    open_storage,
    parse_storage,
    quiet,
    retry,
    storage_errors,
)
from talos.studies.tune.trial import Outcome, Report, Verdict, fit, reason_of
from talos.training import InterruptedRunError
from talos.training.callbacks import stop_signals

__all__ = ["DEFAULT_TRIALS", "run_study", "tune"]

DEFAULT_TRIALS = 50
_STARTUP = 10  # random trials before TPE has enough to learn from
_POLL = 0.5  # seconds between two looks for trials that other machines may give back
_TO_END = 30  # seconds that a killed worker may take to end


def tune(
    data: Split | Interactions | FitParts,
    space: Space | Mapping[str, Any] | str | Path = "default",
    *,
    trials: int | None = None,
    budget: float | None = None,
    workers: int = 1,
    storage: str | None = None,
    out: str | Path | None = None,
    sampler: Sampler = "auto",
    pruner: Pruner = "median",
    search_seed: int = 0,
    config: RunConfig | None = None,
    notify: Callable[[str], None] = lambda line: None,
    **options: Any,
) -> Tuned:
    """Search for the config with the best validation metric; the test part is never used.

    Args:
        data: a split, of which train and validation are used; or `(train, valid)`; or interactions, which are
            split with the default shares and their test part dropped.
        space: what varies: `default` (chosen by loss and backbone), a `Space`, nested values as in a TOML file, or
            the name of a TOML file.
        trials: the number of trials; default: 50, or no limit if there is a budget.
        budget: seconds; running trials then end after the current epoch.
        workers: processes on this machine, each with its share of the threads.
        storage: a SQLite file, `sqlite:///FILE` or `postgresql://…`; default: a file in `out`. Calls with equal
            settings and data on the same storage work on one study, from any number of machines.
        out: a folder that keeps everything; an interrupted search is continued there.
        sampler: see `TuneSettings`.
        pruner: see `TuneSettings`.
        search_seed: the seed of the sampler; the seed of training is `seed` among the options.
        config: the config that every trial starts from.
        notify: called with a line for every trial that ended.
        options: options of `talos.Recommender`: `k`, `loss`, `backbone`, `epochs`, `metric`, ….

    >>> from talos.data.datasets import synthetic
    >>> data = synthetic(users=40, items=30, interactions=400)
    >>> study, model = tune(data, {"loss": {"tau": [0.1, 0.2]}}, k=5, dim=4, epochs=2, evaluate_every=1)
    >>> len(study.trials), model.config.loss.options["tau"] in (0.1, 0.2)
    (2, True)
    """
    base, where = Recommender(config=config, **options).config, ""
    if isinstance(space, Mapping):
        space = Space.from_dict(space)
    elif space == "default":
        space = default_space(base)
    elif not isinstance(space, Space):
        space, where = Space.from_toml(Path(space)), str(space)
    settled, parts = check_space(space, base, where=where), _parts(data)
    settings = TuneSettings(
        config=settled,
        space=space,
        data=parts.fingerprints(),
        sampler=sampler,
        pruner=pruner,
        seed=search_seed,
    )
    with tempfile.TemporaryDirectory(prefix="talos-tune-") as scratch:
        tuned = run_study(
            settings,
            parts,
            Path(scratch, "study") if out is None else Path(out),
            trials=trials,
            budget=budget,
            workers=workers,
            storage=storage,
            notify=notify,
        )
        if out is not None:
            return tuned
        # copy the study into memory: its folder is about to be deleted
        with quiet():
            study = optuna.create_study(direction="maximize", study_name=settings.study_name)
            study.add_trials(tuned.study.get_trials(deepcopy=False))
    return replace(tuned, study=study, parts=parts, folder=None)


def _parts(data: Any) -> FitParts:
    if isinstance(data, Interactions):
        data = data.split()
    if isinstance(data, Split):
        data = (data.train, data.valid)
    require(
        isinstance(data, tuple) and len(data) == 2 and isinstance(data[0], Interactions),
        type(data).__name__,
        where="data",
        expected="a split, interactions, or (train, valid)",
    )
    return fit_parts(*data)


def run_study(
    settings: TuneSettings,
    parts: FitParts,
    out: Path,
    *,
    trials: int | None = None,
    budget: float | None = None,
    workers: int = 1,
    storage: str | None = None,
    notify: Callable[[str], None] = lambda line: None,
    facts: Mapping[str, Any] | None = None,
) -> Tuned:
    """Start or continue the study of a folder; writes `run.toml` and `trials.csv` at the end.

    Arguments of `tune` mean the same here; `trials` includes those finished before. `facts` are written to `tune.json`
    beside the settings.
    """
    for name, number in (("trials", trials), ("budget", budget), ("workers", workers)):
        require(number is None or number > 0, f"{number}", where=name, expected="more than 0")
    require(
        not (out / FINAL).exists(),
        "is finalised: its test part has been evaluated",
        where=str(out),
        expected="a new folder for a new search",
        error=ConfigError,
    )
    url = parse_storage(storage, out)
    check_reachable(url)
    if trials is None and budget is None:
        trials = DEFAULT_TRIALS
    points = settings.space.size if settings.resolved_sampler == "grid" else None
    wanted = min((number for number in (trials, points) if number is not None), default=None)
    if trials is not None and points is not None and points < trials:
        notify(f"the grid has {points:,} points: {points:,} trials")
    facts = {**(facts or {}), "storage": None if storage is None else without_password(url)}
    with study_folder(out / MANIFEST, NOUN, settings.as_dict(), facts):
        write_parts(out / DATA, parts)
        database, study = open_storage(url, settings.study_name)
        search = _Search(
            study.study_name,
            database,
            settings,
            wanted=wanted,
            deadline=math.inf if budget is None else time.monotonic() + budget,
            notify=notify,
        )
        with storage_errors(url):
            if storage is None:  # its folder is locked: no other process runs these trials
                search.recover()
            search.run(out / DATA, workers)
            tuned = Tuned.of(study, settings, out)
        _write_results(out, tuned, facts.get("source"))
    return tuned


def _write_results(out: Path, tuned: Tuned, source: Mapping[str, Any] | None) -> None:
    """Write the best config as `run.toml`, with the record of the data, and the table of trials as `trials.csv`."""
    best, metric = tuned.best, tuned.settings.metric
    head = (
        f"# The best of {len(tuned.rows):,} trials: number {best.number}, "
        f"validation {metric} {best.value:.6f} in epoch {best.epoch}.\n"
    )
    data = "" if source is None else "\n" + SourceOptions.from_dict(source).to_toml(source["path"])
    replace_text(out / "run.toml", head + tuned.config.to_toml() + data)
    rows = [
        {
            "trial": row.number,
            "state": row.state,
            metric: "" if row.value is None else f"{row.value:.6f}",
            "epoch": row.epoch,
            "epochs": row.epochs,
            "seconds": f"{row.seconds:.2f}",
            "runs": row.runs,
            **{key: row.parameters.get(key, "") for key in tuned.settings.space.entries},
            "error": row.error,
        }
        for row in tuned.rows
    ]
    texts = [{name: str(value) for name, value in row.items()} for row in rows]
    replace_text(out / "trials.csv", pl.DataFrame(texts).write_csv())


class _NoTrialError(Exception):
    """There is no trial to take: all that are wanted are running or have ended, or the time is up."""


class _Search(optuna.Study):
    """Optuna's study, whose `run` ends when all trials that are wanted have ended or the time is up.

    Interrupted trials come before new ones, and no more begin than are wanted.

    Args:
        study_name: its name in the storage.
        storage: Optuna's storage.
        settings: what is searched.
        wanted: the number of trials in all, by all processes; None for as many as time allows.
        deadline: when to stop, on the clock of `time.monotonic`.
        notify: called with a line for every trial that ended.
    """

    def __init__(
        self,
        study_name: str,
        storage: Any,
        settings: TuneSettings,
        *,
        wanted: int | None,
        deadline: float,
        notify: Callable[[str], None],
    ) -> None:
        super().__init__(study_name, storage, pruner=_pruner(settings))
        self.settings, self.wanted, self.deadline, self.notify = settings, wanted, deadline, notify
        self.workers: list[_Worker] = []
        self.free = SimpleQueue[Callable[[RunConfig, Report], Outcome]]()
        self.taking = threading.Lock()  # only one thread takes a trial at a time
        self.stopped = False
        self.fitting = False  # in this process, outside of the storage: Ctrl-C may raise

    def recover(self) -> None:
        """Queue the trials again that a killed process was running; only while no other process uses the study."""
        for trial in current_trials(self):
            if trial.state == TrialState.RUNNING:
                trial = self.tell(trial.number, state=TrialState.FAIL)
            if is_interrupted(trial):
                retry(self, trial)

    def run(self, data: Path, workers: int) -> None:
        """Run the search on the data of a folder with so many worker processes; a single worker is this process.

        Raises:
            InterruptedRunError: on SIGINT or SIGTERM; running trials are queued again.
        """
        if self.ended():
            self.notify(f"{len(self.ended()):,} trials were finished before")
        try:
            if workers == 1:
                parts = map_parts(data)
                self.free.put(lambda config, report: fit(config, parts, report, shared=data))
            else:
                threads = max(1, torch.get_num_threads() // workers)
                self.workers = [_Worker(data, threads) for _ in range(workers)]
            for worker in self.workers:
                worker.check()
                self.free.put(worker.fit)
            with stop_signals(self._interrupt):
                while self._optimize(workers):
                    time.sleep(_POLL)
                    optuna.storages.fail_stale_trials(self)
        except KeyboardInterrupt:
            self.stopped = True
        finally:
            for worker in self.workers:
                worker.end()
        if self.stopped:
            total = "" if self.wanted is None else f" of {self.wanted:,}"
            raise InterruptedRunError(
                f"stopped after {len(self.ended()):,}{total} trials; run it again to continue"
            )

    def _optimize(self, workers: int) -> bool:
        """Run trials until there are none to take; returns whether some may come back from other machines."""
        try:
            self.optimize(self._objective, n_jobs=workers, callbacks=[self._after_trial])
        except _NoTrialError:
            pass
        except ValueError as error:
            if "Cannot tell" not in str(error):  # it ended meanwhile: another machine took it for lost
                raise
            return True
        return not self._is_over() and any(not trial.state.is_finished() for trial in current_trials(self))

    def _is_over(self) -> bool:
        """Whether no trial may begin any more, however many are wanted."""
        return self.stopped or time.monotonic() >= self.deadline

    def ended(self) -> list[FrozenTrial]:
        """The trials that have ended, each with its last attempt."""
        return [trial for trial in current_trials(self) if trial.state.is_finished()]

    def ask(self, fixed_distributions: Any = None) -> optuna.Trial:
        """Take a trial that was interrupted, or begin the next one; with a value for every entry of the space.

        Each trial has a sampler of its own. Its random numbers depend on the seed of the search and the trial's place
        alone, so one worker proposes the same points whether it was interrupted or not, and two never repeat one.
        """
        settings = self.settings
        with self.taking:
            trials = current_trials(self)
            waiting = [place for place, trial in enumerate(trials) if trial.state == TrialState.WAITING]
            place = waiting[0] if waiting else len(trials)
            if self._is_over() or (not waiting and self.wanted is not None and place >= self.wanted):
                raise _NoTrialError
            seed = int(np.random.SeedSequence([settings.seed, place]).generate_state(1)[0])
            self.sampler = optuna.samplers.RandomSampler(seed=seed)
            if settings.resolved_sampler == "tpe":
                # with several workers, running trials count as bad ones, so that the others search elsewhere
                self.sampler = optuna.samplers.TPESampler(
                    seed=seed, n_startup_trials=_STARTUP, constant_liar=bool(self.workers)
                )
            point = None if waiting else settings.point(place)
            if point is not None:
                self.enqueue_trial(point)
            return super().ask(dict(settings.space.entries))

    def _objective(self, trial: optuna.Trial) -> float:
        """The value of a trial; NaN, by which Optuna knows a failure, if it has none or is to be run again."""
        fit_config = self.free.get()
        try:
            self.fitting = not self.workers
            if self.stopped:
                raise InterruptedRunError("stopped")
            outcome = fit_config(self.settings.config.with_values(trial.params), partial(self._judge, trial))
        except (InterruptedRunError, KeyboardInterrupt):
            return math.nan
        except optuna.exceptions.OptunaError:  # of the storage, in a report
            raise
        except Exception as error:
            outcome = {"error": reason_of(error)}
        finally:
            self.fitting = False
            self.free.put(fit_config)
        if outcome.get("value") is None:  # it failed, or the time was up before the first evaluation
            if "error" in outcome:
                trial.set_user_attr("error", outcome["error"])
            return math.nan
        trial.set_user_attr("outcome", outcome)
        if outcome["ended"] == "prune":
            raise optuna.TrialPruned
        return float(outcome["value"])

    def _judge(self, trial: optuna.Trial, epoch: int, value: float | None) -> Verdict:
        self.fitting = False
        verdict: Verdict = "go on"
        if value is not None and not self.stopped:
            trial.report(value, epoch)
            verdict = "prune" if trial.should_prune() else verdict
        self.fitting = not self.workers
        if self.stopped:  # Ctrl-C fell into the storage, or its exception was lost, as in a finaliser
            raise InterruptedRunError("stopped")
        return "out of time" if verdict == "go on" and self._is_over() else verdict

    def _after_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        """Queue an interrupted trial again; report any other one."""
        if is_interrupted(trial):
            retry(self, trial, on_purpose=self._is_over())
            return
        ended, row = self.ended(), TrialRow.of(trial)
        best = max((one.value or 0.0 for one in ended if one.state == TrialState.COMPLETE), default=0.0)
        how = "pruned" if row.state == "pruned" else f"best {best:.5f}"
        what = row.error or f"{self.settings.metric} {row.value:.5f}  {how}  {row.seconds:.1f} s"
        total = "" if self.wanted is None else f"/{self.wanted}"
        self.notify(f"{len(ended)}{total}  trial {trial.number}  {what}")

    def _interrupt(self) -> None:
        self.stopped = True
        for worker in self.workers:
            worker.process.kill()
        if self.fitting:  # never within a transaction, whose lock on the file would stay
            raise KeyboardInterrupt


def _pruner(settings: TuneSettings) -> optuna.pruners.BasePruner:
    """The pruner; its steps are epochs."""
    two = 2 * settings.config.training.evaluate_every  # evaluations at least before a trial is stopped
    pruners: dict[Pruner, optuna.pruners.BasePruner] = {
        "median": optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=two - 1),
        "asha": optuna.pruners.SuccessiveHalvingPruner(min_resource=two, reduction_factor=3),
        "none": optuna.pruners.NopPruner(),
    }
    return pruners[settings.pruner]


class _Worker:
    """A process that fits configs, and is started again after it died."""

    def __init__(self, data: Path, threads: int) -> None:
        self.job = {
            "data": str(data),
            "search_path": [str(Path(place).resolve()) for place in sys.path],
        }
        self.threads = dict.fromkeys(
            ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS"), str(threads)
        )
        self.process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            # -P: without it a hashlib.py in the current folder would be imported in place of Python's
            [sys.executable, "-P", "-c", "from talos.studies.tune.trial import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **self.threads},
            start_new_session=True,  # Ctrl-C reaches this process only, which then kills the workers
        )
        _send(process, self.job)
        return process

    def check(self) -> None:
        """Wait until the process is ready; an error if it cannot start."""
        if not _answer(self.process) and self.process.wait(_TO_END) > 0:  # below 0 it was killed
            raise TalosError("worker processes fail when they start; a search with one worker needs none")

    def fit(self, config: RunConfig, report: Report) -> Outcome:
        """As `talos.studies.tune.trial.fit`; an `error` in place of the outcome if there was one.

        Raises:
            InterruptedRunError: the process was killed.
        """
        if self.process.poll() is not None:
            self.end()  # closes its pipes
            self.process = self._start()
            _answer(self.process)
        try:
            _send(self.process, config.as_dict())
            while "report" in (answer := _answer(self.process)):
                _send(self.process, report(*answer["report"]))
            if not answer:
                raise InterruptedRunError("the worker died")
        except BaseException:  # the process waits for a verdict, and is of no use for another trial
            self.end()
            raise
        return answer

    def end(self) -> None:
        """End the process, if it has not ended."""
        self.process.kill()
        self.process.communicate(timeout=_TO_END)


def _send(process: subprocess.Popen[str], value: Any) -> None:
    with suppress(BrokenPipeError):  # it is gone, which the next answer says
        print(json.dumps(value), file=process.stdin, flush=True)


def _answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The next line of a worker; nothing if the process is gone."""
    line = "" if process.stdout is None else process.stdout.readline()
    return dict(json.loads(line)) if line.endswith("\n") else {}
