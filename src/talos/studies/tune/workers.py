"""Workers: processes that take trials, run them and store what they found, and the pool that keeps them running.

A worker signs the trial it takes with its machine, process id and start time, and writes a growing number to it every
few seconds, its heartbeat. A dead process of the same machine is noticed at once by its signature. Processes of other
machines are watched by their heartbeat and the watcher's own clock, so clocks need not agree.

Optuna has heartbeats and retries, too, for relational databases only. They are not used here, for three reasons: its
heartbeat is sent inside `Study.optimize` alone, and not for trials that are taken one by one as here; its retry is
queued by whoever marked the trial as failed, so a process killed between the two loses the trial; and a journal file,
the default storage, has neither. One mechanism for all storages takes less code than two.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from talos.errors import TalosError
from talos.studies.tune.data import map_parts
from talos.studies.tune.settings import TuneSettings, make_pruner, make_sampler, suggest
from talos.studies.tune.space import default_point
from talos.studies.tune.storage import (
    StorageAddress,
    StorageError,
    TrialCounts,
    TrialStore,
    chains,
    count_trials,
    import_optuna,
    open_store,
    quiet,
)
from talos.studies.tune.trial import TrialOutcome, Verdict, fit, peak_megabytes
from talos.training import InterruptedRunError
from talos.training.callbacks import stop_signals

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

__all__ = ["GRACE", "HEARTBEAT", "Search", "Watcher", "Worker", "WorkerPool", "main", "signature"]

HEARTBEAT = 5.0  # seconds between heartbeats
GRACE = 60.0  # seconds without a heartbeat after which a worker counts as dead
_UNSIGNED_GRACE = 10.0  # the same for a trial that was taken but not signed: its worker died in between
_POLL = 0.2  # seconds between two looks at the workers
_MOST_FAILURES = 3  # in a row, without a trial ended in between, before the search is given up


# --------------------------------------------------------------------- is a worker alive?


def signature() -> str:
    """Machine, process id and start time of this process, separated by colons."""
    return f"{_machine()}:{os.getpid()}:{_started(os.getpid())}"


class Watcher:
    """Finds running trials whose worker is dead; ask it repeatedly."""

    def __init__(self, *, grace: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.grace = grace
        self.clock = clock
        self._seen: dict[int, tuple[Any, float]] = {}

    def is_gone(self, trial: FrozenTrial) -> bool:
        """Whether the worker of this trial is known to be dead or has sent no heartbeat for the grace period."""
        signed = trial.user_attrs.get("worker")
        sign, now = (signed, trial.user_attrs.get("beat")), self.clock()
        if self._seen.get(trial.number, (None, 0.0))[0] != sign:
            self._seen[trial.number] = (sign, now)
        if signed is not None and not _may_be_alive(str(signed)):
            return True
        grace = min(self.grace, _UNSIGNED_GRACE) if signed is None else self.grace
        return now - self._seen[trial.number][1] > grace


class _Heartbeat:
    """A thread that sends heartbeats for the current trial, and ends the process if its parent process is gone."""

    def __init__(self, storage: Any, *, every: float, parent: int | None) -> None:
        self.storage, self.every, self.parent = storage, every, parent
        self.taken_over = False
        self._trial: int | None = None
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="talos-heartbeat", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def follow(self, trial: int | None) -> None:
        """Send heartbeats for the trial of this id in the storage from now on, or for none."""
        with self._lock:
            self._trial, self.taken_over = trial, False

    def _run(self) -> None:
        beat, last = 0, time.monotonic()
        while not self._over.wait(min(1.0, self.every)):
            if self.parent is not None and os.getppid() != self.parent:
                os._exit(1)  # an orphan: the next run of the study finds its trial and runs it again
            if time.monotonic() - last < self.every:
                continue
            beat, last = beat + 1, time.monotonic()
            with self._lock:
                if self._trial is None:
                    continue
                try:
                    self.storage.set_trial_user_attr(self._trial, "beat", beat)
                except RuntimeError:  # the trial was declared lost and is over
                    self.taken_over, self._trial = True, None
                except Exception:  # a server that is unreachable for a moment: the next heartbeat will do
                    continue


def _may_be_alive(signed: str) -> bool:
    """False if the signature is of this machine and its process is gone; True if that cannot be known."""
    machine, _, rest = signed.partition(":")
    number, _, started = rest.partition(":")
    if machine != _machine() or not number.isdecimal():
        return True
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return _started(int(number)) == started


def _machine() -> str:
    """A name for this machine since its last boot; process ids are comparable where it is equal."""
    parts = [platform.node()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    with contextlib.suppress(OSError):
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def _started(process: int) -> str:
    """The start time of a process, which tells it from a later one with the same id; "" if it is unknown."""
    try:
        status = Path(f"/proc/{process}/stat").read_text()
        fields = status.rpartition(")")[2].split()  # the fields after the name, which may contain anything
        return "" if fields[0] == "Z" else fields[19]  # a zombie counts as gone
    except (OSError, IndexError):
        return ""


# --------------------------------------------------------------------------- one worker


@dataclass(frozen=True, kw_only=True)
class Search:
    """What all workers of a study are given."""

    store: TrialStore  # the study
    settings: TuneSettings  # its settings
    data: Path  # the folder with train and validation
    wanted: int | None  # the number of trials in all, by all workers; None for as many as time allows
    deadline: float | None  # when to stop, on the clock of `time.monotonic`; None for never
    heartbeat: float  # seconds between heartbeats

    @property
    def out_of_time(self) -> bool:
        """Whether the deadline has passed."""
        return self.deadline is not None and time.monotonic() >= self.deadline


class Worker:
    """Runs trials of a study, one after another.

    Args:
        search: the study and its limits.
        several: whether other workers may run trials of the study at the same time.
        parent: id of the process without which this one has to end.
        finished: called after every trial.
    """

    def __init__(
        self,
        search: Search,
        *,
        several: bool = False,
        parent: int | None = None,
        finished: Callable[[], None] = lambda: None,
    ) -> None:
        self.search, self.several, self.finished = search, several, finished
        self.store, self.settings, self.parts = search.store, search.settings, map_parts(search.data)
        self.signature = signature()
        self.first = default_point(self.settings.space, self.settings.config)
        self.heartbeat = _Heartbeat(self.store.storage, every=search.heartbeat, parent=parent)

    def run(self) -> None:
        """Work until no trial is waiting or the time is up."""
        self.store.study.pruner = make_pruner(self.settings)
        with self.heartbeat:
            while not self.search.out_of_time:
                trial = self._take()
                if trial is not None:
                    self._run_trial(trial)
                elif self.search.wanted is None:
                    self.store.study.enqueue_trial({})
                else:
                    return

    def _take(self) -> Any:
        """Take the next waiting trial that no other worker takes first; None if none is waiting."""
        optuna, store = import_optuna(), self.store
        started = chains(store.study.get_trials(deepcopy=False))
        for place, (*_, waiting) in enumerate(started[: self.search.wanted]):
            if waiting.state.name != "WAITING":
                continue
            number = store.id_of(waiting.number)
            try:
                with store.lock:
                    won = store.storage.set_trial_state_values(number, optuna.trial.TrialState.RUNNING)
            except RuntimeError:  # it is finished already
                continue
            if won:
                store.storage.set_trial_user_attr(number, "worker", self.signature)
                store.study.sampler = make_sampler(self.settings, place, self.first, several=self.several)
                return optuna.Trial(store.study, number)
        return None

    def _run_trial(self, trial: Any) -> None:
        self.heartbeat.follow(self.store.id_of(trial.number))
        try:
            config = self.settings.config.with_values(suggest(trial, self.settings.space))
            self._finish(trial, fit(config, self.parts, partial(self._judge, trial), shared=self.search.data))
        except (KeyboardInterrupt, StorageError):
            with contextlib.suppress(StorageError):  # then its worker is gone, and it is run again
                self._end(trial, "interrupted", True)
            raise
        except Exception as error:  # the trial is not run again, since the same would happen
            text = str(error) if isinstance(error, TalosError) else f"{type(error).__name__}: {error}"
            self._end(trial, "error", text[:500])
        finally:
            self.heartbeat.follow(None)
        self.finished()

    def _judge(self, trial: Any, epoch: int, value: float | None) -> Verdict:
        try:
            if value is not None:
                trial.report(value, epoch)
                if trial.should_prune():
                    return "prune"
        except RuntimeError:
            if self._is_ours(trial):
                raise
            return "taken over"
        if self.heartbeat.taken_over:
            return "taken over"
        return "out of time" if self.search.out_of_time else "go on"

    def _finish(self, trial: Any, outcome: TrialOutcome) -> None:
        if outcome.ended == "taken over":
            return
        if outcome.value is None:  # the time was up before the first evaluation
            self._end(trial, "interrupted", True)
            return
        facts = {**vars(outcome), "metrics": dict(outcome.metrics), "peak_mb": peak_megabytes()}
        del facts["value"]
        for name, fact in facts.items():
            trial.set_user_attr(name, fact)
        with self.store.lock:
            if outcome.ended == "prune":
                self.store.study.tell(trial, state=import_optuna().trial.TrialState.PRUNED)
            else:
                self.store.study.tell(trial, outcome.value)

    def _end(self, trial: Any, name: str, fact: Any) -> None:
        """Mark a trial as failed, unless it was declared lost; an interrupted one is run again, at no retry's cost."""
        if self._is_ours(trial):
            trial.set_user_attr(name, fact)
            with self.store.lock:
                self.store.study.tell(trial, state=import_optuna().trial.TrialState.FAIL)

    def _is_ours(self, trial: Any) -> bool:
        return not self.store.storage.get_trial(self.store.id_of(trial.number)).state.is_finished()


def main() -> None:
    """The main function of a worker process; it reads its job as one JSON object from standard input.

    A storage address with a password therefore stays out of the list of processes.
    """
    job = json.load(sys.stdin)
    # at the end: what is there can add modules and replace none
    sys.path += [place for place in job["search_path"] if place not in sys.path]
    import torch

    torch.set_num_threads(job["threads"])
    with quiet():
        search = Search(
            store=open_store(StorageAddress(**job["address"]), job["study"]),
            settings=TuneSettings.from_dict(job["settings"], where="job"),
            data=Path(job["data"]),
            wanted=job["wanted"],
            deadline=None if job["seconds"] is None else time.monotonic() + job["seconds"],
            heartbeat=job["heartbeat"],
        )
        Worker(search, several=True, parent=os.getppid()).run()


# --------------------------------------------------------------------- the workers of one machine


class WorkerPool:
    """Runs the trials of a study on this machine: starts workers, replaces dead ones, requeues lost trials.

    Args:
        search: the study and its limits.
        workers: how many processes; a single worker runs in this process.
        notify: called with a line for every trial that ended.
        grace: seconds without a heartbeat after which a worker counts as dead.
    """

    def __init__(
        self, search: Search, *, workers: int, notify: Callable[[str], None], grace: float = GRACE
    ) -> None:
        self.search, self.store, self.wanted = search, search.store, search.wanted
        self.workers, self.notify, self.watcher = workers, notify, Watcher(grace=grace)
        self._processes: list[tuple[subprocess.Popen[bytes], IO[bytes]]] = []  # each with its stderr
        self._failures, self._done_at_failure = 0, -1
        self._reported: set[int] | None = None
        self._best = float("-inf")

    def run(self) -> None:
        """Work until every trial that is wanted has ended, or the time is up.

        Raises:
            InterruptedRunError: on SIGINT or SIGTERM; running trials are given back.
        """
        with stop_signals(_interrupt):
            try:
                while not self._step():
                    pass
            except KeyboardInterrupt:
                self._stop_processes()
                total = "" if self.wanted is None else f" of {self.wanted:,}"
                raise InterruptedRunError(
                    f"stopped after {len(self.counts().ended):,}{total} trials; run it again to continue"
                ) from None
            finally:
                self._stop_processes()

    def counts(self) -> TrialCounts:
        """The trials of the study by state."""
        return count_trials(self.store.study.get_trials(deepcopy=False), self.wanted)

    def _step(self) -> bool:
        """Look after trials and workers once; returns whether the search is over."""
        self._reap()
        counts = self._queue_trials()
        self._report(counts)
        late = self.search.out_of_time
        if (counts.open == 0 and self.wanted is not None) or (late and not self._processes):
            return True
        if self.workers == 1 and (counts.waiting or self.wanted is None):
            Worker(self.search, finished=lambda: self._report(self.counts())).run()
            return False
        if self.workers > 1:
            work = self.workers if self.wanted is None else len(counts.waiting) + len(self._processes)
            while not late and len(self._processes) < min(self.workers, work):
                self._processes.append(self._start())
        time.sleep(_POLL)  # this machine's workers or other machines run the rest
        return False

    # ------------------------------------------------------------------ trials

    def _queue_trials(self) -> TrialCounts:
        """Queue the trials that are wanted, mark those of dead workers as failed, and queue these again."""
        study, counts = self.store.study, self.counts()
        for _ in range(0 if self.wanted is None else self.wanted - counts.started):
            study.enqueue_trial({})
        gone = [trial for trial in counts.running if self.watcher.is_gone(trial)]
        for trial in gone:
            self._mark_failed(trial)
        if gone:
            counts = self.counts()
        for trial in counts.lost:
            attempt = int(trial.user_attrs.get("attempt", 0))
            attempt += not trial.user_attrs.get("interrupted")
            # Some of its values alone would shift the sampler's random numbers for the others.
            whole = trial.params.keys() >= self.search.settings.space.entries.keys()
            again = {"retry_of": trial.number, "attempt": attempt}
            study.enqueue_trial(trial.params if whole else {}, user_attrs=again)
        return self.counts()

    def _mark_failed(self, trial: Any, *, interrupted: bool = False) -> None:
        """Mark a trial as failed, unless it has ended in the meantime."""
        number = self.store.id_of(trial.number)
        with contextlib.suppress(RuntimeError), self.store.lock:
            if interrupted:
                self.store.storage.set_trial_user_attr(number, "interrupted", True)
            self.store.storage.set_trial_state_values(number, import_optuna().trial.TrialState.FAIL)

    # --------------------------------------------------------------- processes

    def _start(self) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
        threads, deadline = _threads_each(self.workers), self.search.deadline
        job = {
            "settings": self.search.settings.as_dict(),
            "address": vars(self.store.address),
            "study": self.store.study.study_name,
            "data": str(self.search.data),
            "wanted": self.wanted,
            "seconds": None if deadline is None else max(0.0, deadline - time.monotonic()),
            "threads": threads,
            "heartbeat": self.search.heartbeat,
            "search_path": _search_path(self.search.settings),
        }
        limits = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS"), str(threads))
        errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed when the process is reaped
        process = subprocess.Popen(
            # -P: without it a hashlib.py in the current folder would be imported in place of Python's
            [sys.executable, "-P", "-c", "from talos.studies.tune.workers import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env={**os.environ, **limits},
            start_new_session=True,  # Ctrl-C reaches this process only, which then stops the workers
        )
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
            pipe.write(json.dumps(job).encode())
        return process, errors

    def _reap(self) -> None:
        """Remove processes that ended; if workers do nothing but fail, raise with the reason."""
        running = []
        for process, errors in self._processes:
            code = process.poll()
            if code is None:
                running.append((process, errors))
                continue
            if code > 0:
                self._count_failure(errors)
            errors.close()
        self._processes = running

    def _count_failure(self, errors: IO[bytes]) -> None:
        done = len(self.counts().ended)
        self._failures = self._failures + 1 if done == self._done_at_failure else 1
        self._done_at_failure = done
        if self._failures >= _MOST_FAILURES:
            errors.seek(0)
            lines = errors.read().decode(errors="replace").strip().splitlines()
            raise TalosError(
                f"workers fail before they end a trial: {lines[-1] if lines else 'no reason given'}"
            )

    def _stop_processes(self) -> None:
        """Terminate all processes and give back the trials they were running."""
        stopped = {str(process.pid) for process, _ in self._processes}
        for process, _ in self._processes:
            process.terminate()
        for process, errors in self._processes:
            process.wait()
            errors.close()
        self._processes = []
        for trial in self.counts().running if stopped else ():
            process_id = f"{trial.user_attrs.get('worker', '')}::".split(":")[1]
            if process_id in stopped and self.watcher.is_gone(trial):
                self._mark_failed(trial, interrupted=True)

    # ---------------------------------------------------------------- progress

    def _report(self, counts: TrialCounts) -> None:
        """Report trials that ended since the last call; the first call only counts those that had ended before."""
        first = self._reported is None
        reported = self._reported = self._reported or set()
        for trial in counts.ended:
            if trial.number in reported:
                continue
            reported.add(trial.number)
            if trial.state.name == "COMPLETE" and trial.value is not None:
                self._best = max(self._best, trial.value)
            if not first:
                self.notify(self._line(trial, len(reported)))
        if first and reported:
            self.notify(f"{len(reported):,} trials were finished before")

    def _line(self, trial: Any, count: int) -> str:
        total = "" if self.wanted is None else f"/{self.wanted}"
        attrs = trial.user_attrs
        if trial.state.name == "FAIL":
            what = attrs.get("error", "its worker died too often")
        else:
            value = "–" if trial.value is None else f"{trial.value:.5f}"
            how = "pruned" if trial.state.name == "PRUNED" else f"best {self._best:.5f}"
            what = f"{self.search.settings.metric} {value}  {how}  {attrs.get('seconds', 0):.1f} s"
        return f"{count}{total}  trial {trial.number}  {what}"


def _search_path(settings: TuneSettings) -> list[str]:
    """Where the starting process looks for modules, if the study has classes of the user's own; else nothing."""
    text = json.dumps(settings.as_dict())
    own = re.search(r'"(?!shared:)[A-Za-z_][\w.]*:[A-Za-z_][\w.]*"', text) is not None
    return [str(Path(place).resolve()) for place in sys.path] if own else []


def _threads_each(workers: int) -> int:
    """The threads of each worker: an equal share of `OMP_NUM_THREADS` if that is set, else of all cores."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, (int(given) if given.isdecimal() and int(given) else cores) // workers)


def _interrupt() -> None:
    raise KeyboardInterrupt
