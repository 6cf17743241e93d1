"""The workers of one machine, and the bookkeeping around them: who died, which trials are run again."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from talos.errors import TalosError
from talos.studies.tune.ledger import Ledger, balance
from talos.studies.tune.presence import BEAT, GRACE, Watcher
from talos.studies.tune.settings import Settings
from talos.studies.tune.storage import Store, import_optuna
from talos.studies.tune.worker import Worker
from talos.training import InterruptedRunError

__all__ = ["Order", "run_workers", "threads_each"]

_TICK = 0.2
_FRUITLESS = 3  # workers that end with an error one after another, before it is taken for the rule


@dataclass(frozen=True, kw_only=True)
class Order:
    """What is to be done.

    Attributes:
        store: the study.
        settings: what is searched.
        data: the folder of the prepared parts.
        wanted: trials in all; None for as many as time allows.
        seconds: how long; None for as long as it takes.
        workers: how many at once; one works in this process.
        notify: called with a line for every trial that ended.
        beat: seconds between a worker's signs of life.
        grace: seconds without one after which it counts as gone.
    """

    store: Store
    settings: Settings
    data: Path
    wanted: int | None
    seconds: float | None
    workers: int
    notify: Callable[[str], None]
    beat: float = BEAT
    grace: float = GRACE


def threads_each(workers: int) -> int:
    """A worker's share of the threads: of `OMP_NUM_THREADS` if that is set, else of all cores.

    >>> threads_each(10_000)
    1
    """
    given = os.environ.get("OMP_NUM_THREADS", "")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, (int(given) if given.isdecimal() and int(given) else cores) // workers)


def run_workers(order: Order) -> Ledger:
    """Work until every trial that is wanted has come to its end, or time is up.

    Raises:
        InterruptedRunError: SIGINT or SIGTERM; trials under way are given back.
    """
    deadline = None if order.seconds is None else time.monotonic() + order.seconds
    crew = _Crew(order, deadline)
    news = _News(order)
    with _terminations_as_interrupts():
        try:
            while True:
                ledger = crew.keep_books()
                news.tell(ledger)
                late = deadline is not None and time.monotonic() >= deadline
                if (ledger.open == 0 and order.wanted is not None) or (late and not crew.processes):
                    return ledger
                if order.workers > 1:
                    crew.man(ledger, late=late)
                    time.sleep(_TICK)
                elif ledger.waiting or order.wanted is None:
                    crew.work_here(lambda: news.tell(crew.ledger()))
                else:
                    time.sleep(_TICK)  # the rest is in other hands
        except KeyboardInterrupt:
            crew.dismiss()
            ledger = crew.ledger()
            total = "" if order.wanted is None else f" of {order.wanted:,}"
            raise InterruptedRunError(
                f"stopped after {ledger.done:,}{total} trials; go on with the same command"
            ) from None
        finally:
            crew.dismiss()


class _Crew:
    """The processes, and what has to be written down about them."""

    def __init__(self, order: Order, deadline: float | None) -> None:
        self.order, self.deadline = order, deadline
        self.processes: list[tuple[subprocess.Popen[bytes], IO[bytes]]] = []
        self.watcher = Watcher(grace=order.grace)
        self.fruitless = 0
        self.done_before = -1

    def ledger(self) -> Ledger:
        return balance(self.order.store.study.get_trials(deepcopy=False), self.order.wanted)

    def keep_books(self) -> Ledger:
        """Begin what is wanted, bury what is gone, ask again for what was lost."""
        self._reap()
        study, wanted = self.order.store.study, self.order.wanted
        ledger = self.ledger()
        for _ in range(0 if wanted is None else wanted - ledger.begun):
            study.enqueue_trial({})
        gone = [trial for trial in ledger.running if self.watcher.is_gone(trial)]
        for trial in gone:
            self._bury(trial)
        if gone:
            ledger = self.ledger()
        for trial in ledger.lost:
            attempt = int(trial.user_attrs.get("attempt", 0))
            again = {
                "retry_of": trial.number,
                "attempt": attempt if trial.user_attrs.get("interrupted") else attempt + 1,
            }
            study.enqueue_trial(trial.params, user_attrs=again)
        return self.ledger()

    def _bury(self, trial: Any, *, interrupted: bool = False) -> None:
        """Mark a trial as lost, unless it came to its end after all."""
        store = self.order.store
        number = store.id_of(trial.number)
        with contextlib.suppress(RuntimeError), store.exclusive():
            if interrupted:
                store.storage.set_trial_user_attr(number, "interrupted", True)
            store.storage.set_trial_state_values(number, import_optuna().trial.TrialState.FAIL)

    def work_here(self, finished: Callable[[], None]) -> None:
        """One worker, in this process."""
        order = self.order
        Worker(
            order.store,
            order.settings,
            order.data,
            wanted=order.wanted,
            deadline=self.deadline,
            beat=order.beat,
            finished=finished,
        ).run()

    def man(self, ledger: Ledger, *, late: bool) -> None:
        """Start processes until there are as many as asked for, or as there is work."""
        work = (
            len(ledger.waiting) + len(self.processes) if self.order.wanted is not None else self.order.workers
        )
        while not late and len(self.processes) < min(self.order.workers, work):
            self.processes.append(self._start())

    def _start(self) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
        order = self.order
        threads = threads_each(order.workers)
        orders = {
            "settings": order.settings.as_dict(),
            "place": vars(order.store.place),
            "study": order.store.study.study_name,
            "data": str(order.data),
            "wanted": order.wanted,
            "seconds": None if self.deadline is None else max(0.0, self.deadline - time.monotonic()),
            "threads": threads,
            "beat": order.beat,
        }
        shares = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS"), str(threads))
        said = tempfile.TemporaryFile()  # noqa: SIM115  # closed when the process is reaped
        process = subprocess.Popen(
            [sys.executable, "-c", "from talos.studies.tune.worker import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=said,
            env={**os.environ, **shares},
            start_new_session=True,  # Ctrl-C reaches this process alone, which then ends them
        )
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
            pipe.write(json.dumps(orders).encode())
        return process, said

    def _reap(self) -> None:
        """Forget processes that ended; if they do nothing but fail, say why and give up."""
        left = []
        for process, said in self.processes:
            code = process.poll()
            if code is None:
                left.append((process, said))
                continue
            if code > 0:
                self._count_failure(said)
            said.close()
        self.processes = left

    def _count_failure(self, said: IO[bytes]) -> None:
        done = self.ledger().done
        self.fruitless = self.fruitless + 1 if done == self.done_before else 1
        self.done_before = done
        if self.fruitless >= _FRUITLESS:
            said.seek(0)
            lines = said.read().decode(errors="replace").strip().splitlines()
            raise TalosError(
                f"workers end without doing anything: {lines[-1] if lines else 'no reason given'}"
            )

    def dismiss(self) -> None:
        """End all processes and give back what they had taken."""
        ended = {process.pid for process, _ in self.processes}
        for process, _ in self.processes:
            process.terminate()
        for process, said in self.processes:
            process.wait()
            said.close()
        self.processes = []
        for trial in self.ledger().running if ended else ():
            _, _, rest = str(trial.user_attrs.get("worker", "")).partition(":")
            if rest.partition(":")[0] in map(str, ended) and self.watcher.is_gone(trial):
                self._bury(trial, interrupted=True)


class _News:
    """A line for every trial that came to its end."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.told: set[int] | None = None
        self.best = float("-inf")

    def tell(self, ledger: Ledger) -> None:
        """Say what is new; what was there at the beginning is summed up in one line."""
        ended = sorted((*ledger.finished, *ledger.failed), key=lambda trial: trial.number)
        first = self.told is None
        told = self.told = set() if self.told is None else self.told
        for trial in ended:
            if trial.number in told:
                continue
            told.add(trial.number)
            if trial.state.name == "COMPLETE" and trial.value is not None:
                self.best = max(self.best, trial.value)
            if not first:
                self.order.notify(self._line(trial, len(told)))
        if first and ended:
            self.order.notify(f"{len(ended):,} trials were finished before")

    def _line(self, trial: Any, count: int) -> str:
        total = "" if self.order.wanted is None else f"/{self.order.wanted}"
        attrs = trial.user_attrs
        if trial.state.name == "FAIL":
            what = attrs.get("error", "its worker died too often")
        else:
            value = "–" if trial.value is None else f"{trial.value:.5f}"
            how = "pruned" if trial.state.name == "PRUNED" else f"best {self.best:.5f}"
            what = f"{self.order.settings.metric} {value}  {how}  {attrs.get('seconds', 0):.1f} s"
        return f"{count}{total}  trial {trial.number}  {what}"


@contextlib.contextmanager
def _terminations_as_interrupts() -> Iterator[None]:
    """SIGTERM ends tuning as Ctrl-C does: trials under way are given back."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
