"""The search: Optuna's `Study.optimize`, in this process or with a worker process for each of its threads.

This process alone uses the storage of the study. A worker process fits one config after another and reports its
epochs through a pipe (`talos.studies.tune.trial`), so nothing is lost with it but the trial it was fitting. Such a
trial, one that was stopped, and one whose machine sends no heartbeats are run again by Optuna's retry callback: each
trial that is wanted ends at least once.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeAlias

import optuna
import torch
from optuna.trial import FrozenTrial, TrialState

from talos.config import RunConfig
from talos.errors import TalosError
from talos.studies.tune.data import map_parts
from talos.studies.tune.study import (
    TuneSettings,
    current_trials,
    is_interrupted,
    make_pruner,
    make_sampler,
    point_at,
    retry,
)
from talos.studies.tune.trial import Outcome, Report, Verdict, fit, reason_of
from talos.training import InterruptedRunError
from talos.training.callbacks import stop_signals

__all__ = ["Search", "recover"]

_POLL = 0.5  # seconds between two looks for trials that other machines may give back
_TO_END = 30  # seconds that a killed worker may take to end

Fit: TypeAlias = Callable[[RunConfig, Report], Outcome]


class _NoTrialError(Exception):
    """There is no trial to take: all that are wanted are running or have ended, or the time is up."""


class _InterruptedError(Exception):
    """The trial was stopped or its worker died: it is to be run again."""


class _WorkerError(TalosError):
    """Worker processes cannot be started, which is nothing about the trial."""


class _FailedError(Exception):
    """The trial raised an error, which is written down; the same would happen again."""


def recover(study: optuna.Study) -> None:
    """Queue the trials again that a killed process was running; only while no other process uses the study."""
    for trial in current_trials(study):
        running = trial.state == TrialState.RUNNING
        if running:
            study.tell(trial.number, state=TrialState.FAIL)
        if running or is_interrupted(trial):
            retry(study, trial)


class Search(optuna.Study):
    """Optuna's study, whose `run` ends when all trials that are wanted have ended or the time is up.

    Interrupted trials come before new ones, and no more begin than are wanted.

    Args:
        study_name: its name in the storage.
        storage: Optuna's storage.
        settings: what is searched.
        data: the folder with train and validation.
        wanted: the number of trials in all, by all processes; None for as many as time allows.
        deadline: when to stop, on the clock of `time.monotonic`; None for never.
        notify: called with a line for every trial that ended.
    """

    def __init__(
        self,
        study_name: str,
        storage: Any,
        settings: TuneSettings,
        data: Path,
        *,
        wanted: int | None,
        deadline: float | None,
        notify: Callable[[str], None],
    ) -> None:
        super().__init__(study_name, storage, pruner=make_pruner(settings))
        self.settings, self.data, self.wanted, self.deadline = settings, data, wanted, deadline
        self.notify, self.stopped, self.workers = notify, False, list[_Worker]()
        self.fitting = False  # in this process, outside of the storage: Ctrl-C may raise
        self.taking = threading.Lock()  # only one thread takes a trial at a time
        self.free: SimpleQueue[Fit] = SimpleQueue()

    def run(self, workers: int) -> None:
        """Run the search with so many worker processes; a single worker is this process.

        Raises:
            InterruptedRunError: on SIGINT or SIGTERM; running trials are queued again.
        """
        if self.ended():
            self.notify(f"{len(self.ended()):,} trials were finished before")
        if workers > 1:
            self.workers = [_Worker(self, max(1, torch.get_num_threads() // workers)) for _ in range(workers)]
            for worker in self.workers:
                self.free.put(worker.fit)
        else:
            parts = map_parts(self.data)
            self.free.put(lambda config, report: fit(config, parts, report, shared=self.data))
        try:
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
            what = f"stopped after {len(self.ended()):,}{total} trials"
            raise InterruptedRunError(f"{what}; run it again to continue")

    def _optimize(self, workers: int) -> bool:
        """Run trials until there are none to take; returns whether some may come back from other machines."""
        try:
            catch = (_InterruptedError, _FailedError)
            self.optimize(self._objective, n_jobs=workers, catch=catch, callbacks=[self._after_trial])
        except _NoTrialError:
            pass
        except ValueError as error:
            if "Cannot tell" not in str(error):  # it ended meanwhile: another machine took it for lost
                raise
            return True
        open_trials = any(not trial.state.is_finished() for trial in current_trials(self))
        return open_trials and not self.stopped and not self.out_of_time

    @property
    def out_of_time(self) -> bool:
        """Whether the deadline has passed."""
        return self.deadline is not None and time.monotonic() >= self.deadline

    def ended(self) -> list[FrozenTrial]:
        """The trials that have ended, each with its last attempt."""
        return [trial for trial in current_trials(self) if trial.state.is_finished()]

    def ask(self, fixed_distributions: Any = None) -> optuna.Trial:
        """Take a trial that was interrupted, or begin the next one; with a value for every entry of the space."""
        with self.taking:
            trials = current_trials(self)
            waiting = [place for place, trial in enumerate(trials) if trial.state == TrialState.WAITING]
            place = waiting[0] if waiting else len(trials)
            enough = not waiting and self.wanted is not None and place >= self.wanted
            if enough or self.stopped or self.out_of_time:
                raise _NoTrialError
            point = None if waiting else point_at(self.settings, place)
            if point is not None:
                self.enqueue_trial(point)
            self.sampler = make_sampler(self.settings, place, several=bool(self.workers))
            return super().ask(dict(self.settings.space.entries))

    def _objective(self, trial: optuna.Trial) -> float:
        fit_config = self.free.get()
        try:
            self.fitting = not self.workers
            if self.stopped:
                raise _InterruptedError
            outcome = fit_config(self.settings.config.with_values(trial.params), partial(self._judge, trial))
        except KeyboardInterrupt:
            self.stopped = True
            raise _InterruptedError from None
        except (_InterruptedError, _WorkerError, optuna.exceptions.OptunaError):  # the last of the storage
            raise
        except Exception as error:
            trial.set_user_attr("error", reason_of(error))
            raise _FailedError from error
        finally:
            self.fitting = False
            self.free.put(fit_config)
        if outcome["value"] is None:  # the time was up before the first evaluation
            raise _InterruptedError
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
            raise _InterruptedError
        return "out of time" if verdict == "go on" and self.out_of_time else verdict

    def _after_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        """Queue an interrupted trial again; report any other one."""
        if is_interrupted(trial):
            retry(self, trial, on_purpose=self.stopped or self.out_of_time)
            return
        ended = self.ended()
        best = max((one.value or 0.0 for one in ended if one.state == TrialState.COMPLETE), default=0.0)
        what = str(trial.user_attrs.get("error", ""))
        if not what:
            how = "pruned" if trial.state == TrialState.PRUNED else f"best {best:.5f}"
            what = f"{self.settings.metric} {trial.value:.5f}  {how}  {trial.user_attrs['outcome']['seconds']:.1f} s"
        total = "" if self.wanted is None else f"/{self.wanted}"
        self.notify(f"{len(ended)}{total}  trial {trial.number}  {what}")

    def _interrupt(self) -> None:
        self.stopped = True
        for worker in self.workers:
            worker.kill()
        if self.fitting:  # never within a transaction, whose lock on the file would stay
            raise KeyboardInterrupt


class _Worker:
    """A process that fits configs; it is started when it is needed, and again after it died."""

    def __init__(self, search: Search, threads: int) -> None:
        self.search, self.threads = search, threads
        self.process: subprocess.Popen[str] | None = None

    def fit(self, config: RunConfig, report: Report) -> Outcome:
        """As `talos.studies.tune.trial.fit`; `_InterruptedError` if the process was killed."""
        process = self.process = self.process or self._start()
        if self.search.stopped:
            self.kill()
        try:
            answer = self._ask(process, config.as_dict())
            while "epoch" in answer:
                answer = self._ask(process, report(answer["epoch"], answer["value"]))
        except BaseException:  # the process waits for a verdict, and is of no use for another trial
            self.end()
            raise
        if "error" in answer:
            raise TalosError(answer["error"])
        if "outcome" in answer:
            return dict(answer["outcome"])
        if self.end() > 0:
            raise _WorkerError("worker processes fail when they start; a search with one worker needs none")
        raise _InterruptedError

    def kill(self) -> None:
        """Kill the process, if there is one: its trial is interrupted."""
        if self.process is not None:
            self.process.kill()

    def end(self) -> int:
        """End the process, if there is one; returns its exit code."""
        process, self.process = self.process, None
        if process is None:
            return 0
        process.kill()
        process.communicate(timeout=_TO_END)
        return process.returncode

    def _start(self) -> subprocess.Popen[str]:
        names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS")
        process = subprocess.Popen(
            # -P: without it a hashlib.py in the current folder would be imported in place of Python's
            [sys.executable, "-P", "-c", "from talos.studies.tune.trial import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **dict.fromkeys(names, str(self.threads))},
            start_new_session=True,  # Ctrl-C reaches this process only, which then kills the workers
        )
        path = [str(Path(place).resolve()) for place in sys.path]
        self._send(process, {"data": str(self.search.data), "search_path": path})
        return process

    def _ask(self, process: subprocess.Popen[str], value: Any) -> dict[str, Any]:
        """The answer to a line; an empty one if the process is gone."""
        self._send(process, value)
        line = "" if process.stdout is None else process.stdout.readline()
        return dict(json.loads(line)) if line.endswith("\n") else {}

    def _send(self, process: subprocess.Popen[str], value: Any) -> None:
        with contextlib.suppress(BrokenPipeError):  # it is gone, which the next answer says
            print(json.dumps(value), file=process.stdin, flush=True)
