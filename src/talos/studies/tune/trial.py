"""One trial: a fit that reports its validation metric after each evaluation and can be stopped early.

Trials share their initial vectors. If training starts from a factorisation of the data (`training.init`), the first
trial that needs it writes the result beside the prepared data and the others load it. Initial vectors depend on the
data, the backbone, the kind of initialisation and the seed, not on what is searched, so a trial that loads them ends
with the same bytes as one that computes them.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from talos import registry
from talos.backbones import Backbone
from talos.config import RunConfig
from talos.data.interactions import Interactions
from talos.errors import TalosError
from talos.files import digest_of, replace_file
from talos.model.fitting import fit_baseline
from talos.studies.tune.data import FitParts
from talos.training import Callback, Trainer

__all__ = ["TrialOutcome", "Verdict", "fit", "peak_megabytes"]

Verdict: TypeAlias = Literal["go on", "prune", "out of time", "taken over"]


@dataclass(frozen=True, kw_only=True)
class TrialOutcome:
    """The result of a trial."""

    value: float | None  # the best validation metric; None if the fit ended before its first evaluation
    epoch: int  # the epoch of that value
    epochs: int  # how many epochs were trained
    seconds: float  # wall-clock time, validation included
    metrics: Mapping[str, float]  # all validation metrics of that epoch
    resolved: Mapping[str, Any]  # the config with every `auto` resolved, see `RunConfig.as_dict`
    ended: str  # why the fit ended: `epochs`, `patience` (early stopping), or a verdict other than `go on`


class _TrialReporter(Callback):
    """A callback that reports the validation metric of every epoch and ends the fit when the verdict says so."""

    trainer: Trainer
    verdict: Verdict = "go on"

    def __init__(self, report: Callable[[int, float | None], Verdict]) -> None:
        self.report = report

    def on_epoch(self, record: dict[str, Any]) -> None:
        """Report the epoch; the metric that is maximised comes first in a record."""
        value = next(iter(record["metrics"].values()), None)
        verdict = self.report(record["epoch"], value)
        over = self.trainer.position.finished or record["epoch"] == self.trainer.config.training.epochs
        if verdict != "go on" and not over:
            self.verdict = verdict
            self.trainer.position.finished = True


def fit(
    config: RunConfig,
    parts: FitParts,
    report: Callable[[int, float | None], Verdict],
    *,
    shared: Path | None = None,
) -> TrialOutcome:
    """Train on the train part and measure the validation part.

    `report` is called after every epoch with its number and the validation metric (None if the epoch was not
    evaluated), and returns whether to go on. `shared` is a folder in which trials share their initial vectors.
    """
    if config.baseline is not None:
        return _fit_baseline(config, parts, report)
    reporter, began = _TrialReporter(report), time.perf_counter()
    initial = None if shared is None else _load_initial(shared, config, parts.train)
    trainer = reporter.trainer = Trainer(config, *parts, callbacks=[reporter], backbone=initial)
    if shared is not None and initial is None:
        _save_initial(shared, config, trainer)
    trainer.fit()
    at = trainer.position
    ended = reporter.verdict
    return TrialOutcome(
        value=at.best if math.isfinite(at.best) else None,
        epoch=at.best_epoch,
        epochs=at.epoch,
        seconds=round(time.perf_counter() - began, 3),
        metrics=dict(at.best_metrics),
        resolved=trainer.config.as_dict(),
        ended=ended if ended != "go on" else "patience" if at.finished else "epochs",
    )


def _fit_baseline(
    config: RunConfig, parts: FitParts, report: Callable[[int, float | None], Verdict]
) -> TrialOutcome:
    """A baseline is computed and measured in one go: as one epoch, for the pruner."""
    began = time.perf_counter()
    metrics = fit_baseline(config, *parts).metadata["valid"]
    value = next(iter(metrics.values()))
    report(1, value)
    return TrialOutcome(
        value=value,
        epoch=1,
        epochs=1,
        seconds=round(time.perf_counter() - began, 3),
        metrics=metrics,
        resolved=config.as_dict(),
        ended="epochs",
    )


def _load_initial(folder: Path, config: RunConfig, train: Interactions) -> Backbone | None:
    """The untrained backbone of a config, if an earlier trial has saved it."""
    path = folder / _initial_name(config)
    if not path.is_file():
        return None
    try:
        tensors = load_file(path)
        backbone = registry.make_backbone(config.backbone, train, generator=None)
        backbone.load_state_dict(tensors)
    except (SafetensorError, OSError, RuntimeError):  # damaged: compute it again
        return None
    return backbone


def _save_initial(folder: Path, config: RunConfig, trainer: Trainer) -> None:
    """Save the untrained backbone for other trials, unless it is random, which costs nothing to compute."""
    if trainer.config.training.init == "random":
        return
    state = trainer.objective.backbone.state_dict()
    tensors = {name: one.detach().cpu().contiguous() for name, one in state.items()}
    with contextlib.suppress(TalosError):  # a full disk, for example: the next trial computes its own
        replace_file(folder / _initial_name(config), lambda path: save_file(tensors, path))


def _initial_name(config: RunConfig) -> str:
    """A file name made from everything but the data that decides the initial vectors."""
    decides = {
        "backbone": config.backbone.model_dump(),
        "init": config.training.init,
        "negatives": config.as_dict()["negatives"],  # `training.init = "auto"` depends on them
        "seed": config.seed,
        # an adversarial loss draws its own vectors first
        "loss": [config.loss.name, config.loss.options.get("dim")],
    }
    return f"start-{digest_of(decides)[:16]}.safetensors"


def peak_megabytes() -> float:
    """The peak resident memory of this process in megabytes, memory-mapped data included."""
    with contextlib.suppress(OSError):  # `getrusage` may report the peak of the process that started this one
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return round(int(line.split()[1]) / 1024, 1)
    import resource  # not on every system

    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)
