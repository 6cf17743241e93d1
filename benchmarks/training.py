"""A whole training epoch, thresholds and optimiser included, against the textbook step of 1,024 negatives."""

from __future__ import annotations

import time
from typing import Any

from talos.config import RunConfig
from talos.data.interactions import Interactions
from talos.training import Callback, Trainer

from . import textbook

MEANING = {
    "textbook_over_shared_beauty": "textbook epoch, 1,024 negatives per positive / epoch with 1,024 shared a batch",
    "textbook_over_uniform_beauty": "textbook epoch / epoch with 1,024 exact negatives per positive and regression",
    "exact_vs_textbook_beauty": "textbook epoch / epoch over all items with exact thresholds",
}

SETTINGS: dict[str, dict[str, Any]] = {
    "shared": {"negatives": "shared:1024", "threshold.name": "regression"},
    "uniform": {"negatives": "1024", "threshold.name": "regression"},
    "exact": {"negatives": "all", "threshold.name": "exact"},
}


def epoch_seconds(train: Interactions, *, epochs: int = 3, **values: Any) -> float:
    """The quickest of a few epochs."""
    seconds: list[float] = []

    class Clock(Callback):
        def on_epoch(self, record: dict[str, Any]) -> None:
            seconds.append(record["seconds"])

    config = RunConfig().with_values({"training.epochs": epochs, **values})
    Trainer(config, train, callbacks=[Clock()]).fit()
    return min(seconds)


def measure(train: Interactions) -> dict[str, float]:
    """Seconds per epoch of all settings and of the textbook step, one after the other in this process."""
    began = time.perf_counter()
    yardstick = textbook.textbook_epoch_seconds(train)
    epochs = {name: epoch_seconds(train, **values) for name, values in SETTINGS.items()}
    return {
        "textbook_over_shared_beauty": yardstick / epochs["shared"],
        "textbook_over_uniform_beauty": yardstick / epochs["uniform"],
        "exact_vs_textbook_beauty": yardstick / epochs["exact"],
        "textbook_epoch_seconds": yardstick,
        **{f"{name}_epoch_seconds": seconds for name, seconds in epochs.items()},
        "training_benchmark_seconds": time.perf_counter() - began,
    }
