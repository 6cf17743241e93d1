"""One trial: a fit whose validation metric is reported at every look, and which may be stopped early."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from talos.config import RunConfig
from talos.studies.tune.data import FitParts
from talos.studies.tune.warm import keep_start, shared_start
from talos.training import Callback, Trainer

__all__ = ["Outcome", "Verdict", "fit", "peak_megabytes"]

Verdict: TypeAlias = Literal["go on", "prune", "out of time", "taken over"]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a trial came to.

    Attributes:
        value: the best validation metric; None if there was no look at the validation set.
        epoch: the epoch it was reached in.
        epochs: how many were trained.
        seconds: wall-clock, validation included.
        metrics: all validation metrics of that epoch.
        ended: what ended it: `epochs`, `patience`, or one of the verdicts.
    """

    value: float | None
    epoch: int
    epochs: int
    seconds: float
    metrics: Mapping[str, float]
    ended: str


class _Watch(Callback):
    """Reports every look at the validation set and ends the fit if told so, at the end of an epoch."""

    def __init__(self, report: Callable[[int, float | None], Verdict]) -> None:
        self.report = report
        self.trainer: Trainer | None = None
        self.verdict: Verdict = "go on"

    def on_start(self, epoch: int, epochs: int, steps: int) -> None:
        """Nothing."""

    def on_step(self, epoch: int, step: int, loss: float) -> None:
        """Nothing."""

    def on_epoch(self, record: dict[str, Any]) -> None:
        """Report; the watched metric is the first of a record."""
        assert self.trainer is not None
        value = next(iter(record["metrics"].values()), None)
        verdict = self.report(record["epoch"], value)
        over = self.trainer.position.finished or record["epoch"] == self.trainer.config.training.epochs
        if verdict != "go on" and not over:
            self.verdict = verdict
            self.trainer.position.finished = True

    def on_end(self) -> None:
        """Nothing."""


def fit(
    config: RunConfig,
    parts: FitParts,
    report: Callable[[int, float | None], Verdict],
    *,
    shared: Path | None = None,
) -> Outcome:
    """Train on the train part and watch the validation part.

    Args:
        config: of this trial.
        parts: train and validation.
        report: called after every epoch with its number and, if the validation set was looked at, the metric;
            says whether to go on.
        shared: a folder in which trials leave each other their starting vectors.

    >>> from talos.data.datasets import synthetic
    >>> split = synthetic(users=40, items=30, interactions=400).split()
    >>> config = RunConfig.from_dict({"k": 5, "training": {"epochs": 4, "evaluate_every": 1}})
    >>> outcome = fit(config, (split.train, split.valid), lambda epoch, value: "prune" if epoch == 2 else "go on")
    >>> outcome.epochs, outcome.ended
    (2, 'prune')
    """
    watch, began = _Watch(report), time.perf_counter()
    start = None if shared is None else shared_start(shared, config, parts[0])
    trainer = watch.trainer = Trainer(config, *parts, callbacks=[watch], backbone=start)
    if shared is not None and start is None:
        keep_start(shared, config, trainer)
    trainer.fit()
    at = trainer.position
    ended = watch.verdict
    return Outcome(
        value=at.best if math.isfinite(at.best) else None,
        epoch=at.best_epoch,
        epochs=at.epoch,
        seconds=round(time.perf_counter() - began, 3),
        metrics=dict(at.best_metrics),
        ended=ended if ended != "go on" else "patience" if at.finished else "epochs",
    )


def peak_megabytes() -> float:
    """The most memory this process has held so far, mapped data included.

    >>> peak_megabytes() > 1
    True
    """
    try:  # the process's own: what `getrusage` says may be that of the process that started this one
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return round(int(line.split()[1]) / 1024, 1)
    except OSError:
        pass
    import resource  # not on every system

    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)
