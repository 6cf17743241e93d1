"""Seconds an epoch of every loss, measured in turns within one run, so that ratios mean something."""

from __future__ import annotations

import contextlib
import time
from statistics import median
from typing import Any

import torch

from talos.training import Callback, Trainer
from talos_paper.data import PaperData
from talos_paper.recipes import LOSSES, Fidelity, recipe

__all__ = ["seconds_per_epoch"]


class _EnoughError(Exception):
    """As many steps as were asked for are done."""


class _StepClock(Callback):
    """Times single steps and ends training after a number of them."""

    def __init__(self, steps: int, skipped: int) -> None:
        self.steps, self.skipped = steps, skipped
        self.times: list[float] = []

    def on_start(self, epoch: int, epochs: int, steps: int) -> None:
        """The clock starts."""
        self.last = time.perf_counter()

    def on_step(self, epoch: int, step: int, loss: float) -> None:
        """One more."""
        now = time.perf_counter()
        self.times.append(now - self.last)
        self.last = now
        if len(self.times) == self.steps + self.skipped:
            raise _EnoughError

    def on_epoch(self, record: dict[str, Any]) -> None:
        """Nothing: an epoch's end is not a step."""
        self.last = time.perf_counter()

    def on_end(self) -> None:
        """Nothing."""


def seconds_per_epoch(
    data: PaperData, fidelity: Fidelity, *, steps: int = 8, rounds: int = 3
) -> dict[str, float]:
    """Loss → seconds an epoch on MF: the median step times the steps of an epoch, the best of some rounds.

    The losses take turns, so that a change of the machine's mood falls on all of them. Validation and the
    extra epochs of adversaries are not counted.
    """
    best: dict[str, float] = {}
    for _ in range(rounds):
        for loss in LOSSES:
            made = recipe(data.dataset, "mf", loss, fidelity=fidelity)
            trainer = Trainer(made.candidates()[0].config(0), data.split.train)
            clock = _StepClock(min(steps, max(1, len(trainer.batches) - 1)), skipped=1)
            trainer.callbacks = [clock]
            with contextlib.suppress(_EnoughError):
                trainer.fit()
            found = median(clock.times[1:]) * len(trainer.batches)
            best[loss] = min(found, best.get(loss, found))
    return best


def measure(data: PaperData) -> dict[str, Any]:
    """Both fidelities, with the ratios to SL."""
    found: dict[str, Any] = {"threads": torch.get_num_threads(), "protocols": {}}
    fidelities: tuple[Fidelity, ...] = ("paper", "fast")
    for fidelity in fidelities:
        seconds = seconds_per_epoch(data, fidelity)
        found["protocols"][fidelity] = {
            loss: {"seconds": round(value, 3), "ratio": round(value / seconds["sl"], 3)}
            for loss, value in seconds.items()
        }
    return found
