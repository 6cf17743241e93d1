"""A worker: takes the next trial, runs it, writes down what came of it, until nothing is left to do.

Run as a process (`main`) it reads its orders as one JSON object from standard input, where
an address with a password stays out of the list of processes.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from talos.errors import TalosError
from talos.studies.tune import samplers
from talos.studies.tune.check import default_point
from talos.studies.tune.data import map_parts
from talos.studies.tune.ledger import balance
from talos.studies.tune.objective import Outcome, Verdict, fit, peak_megabytes
from talos.studies.tune.presence import BEAT, Pulse, signature
from talos.studies.tune.settings import Settings
from talos.studies.tune.storage import Place, Store, import_optuna, open_store, quiet

__all__ = ["Worker", "main"]


class Worker:
    """Runs trials of a study, one after another.

    Args:
        store: the study.
        settings: what is searched.
        data: the folder with train and validation.
        wanted: how many trials there are to be in all, by all workers; None for as many as time allows.
        deadline: on the clock of `time.monotonic`; None for none.
        several: whether others work on the study.
        beat: seconds between signs of life.
        parent: the process without which this one is to end.
        finished: called after every trial.
    """

    def __init__(
        self,
        store: Store,
        settings: Settings,
        data: Path,
        *,
        wanted: int | None,
        deadline: float | None,
        several: bool = False,
        beat: float = BEAT,
        parent: int | None = None,
        finished: Callable[[], None] = lambda: None,
    ) -> None:
        self.store, self.settings, self.data, self.parts = store, settings, data, map_parts(data)
        self.wanted, self.deadline, self.several, self.finished = wanted, deadline, several, finished
        self.signature = signature()
        self.first = default_point(settings.space, settings.config)
        self.pulse = Pulse(
            lambda trial, number: store.storage.set_trial_user_attr(trial, "beat", number),
            every=beat,
            parent=parent,
        )

    def run(self) -> None:
        """Work until no trial waits or time is up."""
        self.store.study.pruner = samplers.make_pruner(self.settings)
        with self.pulse:
            while not self._out_of_time():
                taken = self._take()
                if taken is not None:
                    self._run_one(*taken)
                elif self.wanted is None:
                    self.store.study.enqueue_trial({})
                else:
                    return

    # ------------------------------------------------------------------ taking a trial

    def _take(self) -> tuple[Any, int] | None:
        """The next trial that nobody else has taken, and its place in the search; None if none waits."""
        optuna, store = import_optuna(), self.store
        everything = store.study.get_trials(deepcopy=False)
        for waiting in balance(everything, self.wanted).waiting:
            number = store.id_of(waiting.number)
            try:
                with store.exclusive():
                    won = store.storage.set_trial_state_values(number, optuna.trial.TrialState.RUNNING)
            except RuntimeError:  # finished already
                continue
            if won:
                store.storage.set_trial_user_attr(number, "worker", self.signature)
                place = _place(waiting, everything)
                store.study.sampler = samplers.make_sampler(
                    self.settings, place, self.first, several=self.several
                )
                return optuna.Trial(store.study, number), place
        return None

    # ------------------------------------------------------------------- running it

    def _run_one(self, trial: Any, place: int) -> None:
        number = self.store.id_of(trial.number)
        self.pulse.follow(number)
        try:
            config = self.settings.config.with_values(samplers.suggest(trial, self.settings))
            judge = partial(self._judge, trial)
            outcome = fit(config, self.parts, judge, shared=self.data)
            self._finish(trial, outcome)
        except KeyboardInterrupt:
            self._give_back(trial)
            raise
        except Exception as error:
            if self._is_ours(trial):  # a trial that was taken over refuses to be written to
                self._fail(trial, error)
        finally:
            self.pulse.follow(None)
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
        if self.pulse.taken_over:
            return "taken over"
        return "out of time" if self._out_of_time() else "go on"

    def _finish(self, trial: Any, outcome: Outcome) -> None:
        if outcome.ended == "taken over":
            return
        if outcome.value is None:  # time was up before the first look: as if it had not begun
            self._give_back(trial)
            return
        facts = {**vars(outcome), "metrics": dict(outcome.metrics), "peak_mb": peak_megabytes()}
        del facts["value"]
        for name, fact in facts.items():
            trial.set_user_attr(name, fact)
        optuna = import_optuna()
        with self.store.exclusive():
            if outcome.ended == "prune":
                self.store.study.tell(trial, state=optuna.trial.TrialState.PRUNED)
            else:
                self.store.study.tell(trial, outcome.value)

    def _fail(self, trial: Any, error: Exception) -> None:
        """The trial's own fault, and the same would happen again: it is over."""
        said = str(error) if isinstance(error, TalosError) else f"{type(error).__name__}: {error}"
        trial.set_user_attr("error", said[:500])
        self._end(trial)

    def _give_back(self, trial: Any) -> None:
        """Not the trial's fault: it is run again, and this does not count as a loss."""
        if self._is_ours(trial):
            trial.set_user_attr("interrupted", True)
            self._end(trial)

    def _end(self, trial: Any) -> None:
        with self.store.exclusive():
            self.store.study.tell(trial, state=import_optuna().trial.TrialState.FAIL)

    def _is_ours(self, trial: Any) -> bool:
        return not self.store.storage.get_trial(self.store.id_of(trial.number)).state.is_finished()

    def _out_of_time(self) -> bool:
        return self.deadline is not None and time.monotonic() >= self.deadline


def _place(trial: Any, everything: list[Any]) -> int:
    """Which of the trials asked for this is: that of the first attempt, if it is a later one."""
    by_number = {one.number: one for one in everything}
    while (parent := trial.user_attrs.get("retry_of")) is not None:
        trial = by_number[int(parent)]
    return sum(1 for one in everything if one.number < trial.number and "retry_of" not in one.user_attrs)


def main() -> None:
    """The process: orders from standard input, exit code 0 when nothing is left to do."""
    orders = json.load(sys.stdin)
    import torch

    torch.set_num_threads(orders["threads"])
    with quiet():
        settings = Settings.from_dict(orders["settings"], where="orders")
        store = open_store(Place(**orders["place"]), orders["study"])
        seconds = orders["seconds"]
        Worker(
            store,
            settings,
            Path(orders["data"]),
            wanted=orders["wanted"],
            deadline=None if seconds is None else time.monotonic() + seconds,
            several=True,
            beat=orders["beat"],
            parent=os.getppid(),
        ).run()
