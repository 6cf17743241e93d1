"""One trial: a fit that reports its validation metric after each evaluation and can be stopped early.

`fit` runs in the process of the search, or in a worker process (`main`) that is given configs one after another and
answers in lines of JSON. A worker knows nothing of the study and its storage: it may be killed at any moment.

Trials share their initial vectors. If training starts from a factorisation of the data (`training.init`), the first
trial that needs it writes the result beside the prepared data and the others load it. Initial vectors depend on the
data, the backbone, the kind of initialisation and the seed, not on what is searched, so a trial that loads them ends
with the same bytes as one that computes them.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeAlias

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from talos import registry
from talos.config import RunConfig
from talos.errors import TalosError
from talos.files import digest_of, replace_file
from talos.model.fitting import fit_baseline
from talos.studies.tune.data import FitParts, map_parts
from talos.training import Callback, Trainer
from talos.training.callbacks import Ending

__all__ = ["Outcome", "Report", "Verdict", "fit", "main", "reason_of"]

Verdict: TypeAlias = Literal["go on", "prune", "out of time"]
Outcome: TypeAlias = dict[str, Any]
"""The result of a trial, as it is stored with it: `value`, the best validation metric (None if there was no
evaluation), and its `epoch`; how many `epochs` were trained in how many `seconds`, and why it `ended` (`epochs`,
`patience` or a verdict other than `go on`); all `metrics` of the best epoch, the `resolved` config without any `auto`,
and `peak_mb`, the peak memory of the process so far. Of a fit that failed in a worker process: its `error`."""
Report: TypeAlias = Callable[[int, float | None], Verdict]
"""Called after every epoch with its number and the validation metric, None if the epoch was not evaluated."""


def fit(config: RunConfig, parts: FitParts, report: Report, *, shared: Path | None = None) -> Outcome:
    """Train on the train part and measure the validation part.

    `shared` is a folder in which trials share their initial vectors. A baseline is one epoch, for the pruner.
    """
    began = time.perf_counter()
    if config.baseline is not None:
        metrics = fit_baseline(config, *parts).metadata["valid"]
        value, epoch, epochs, ended = next(iter(metrics.values())), 1, 1, "epochs"
        report(epoch, value)
    else:

        def ask(record: dict[str, Any]) -> str:  # the metric that is maximised comes first in a record
            verdict = report(record["epoch"], next(iter(record["metrics"].values()), None))
            return "" if verdict == "go on" else verdict

        ending = Ending(ask)
        trainer = ending.trainer = _make_trainer(config, parts, ending, shared)
        trainer.fit()
        at, config = trainer.position, trainer.config
        value, epoch, epochs, metrics = at.best, at.best_epoch, at.epoch, dict(at.best_metrics)
        ended = ending.ended_by
    return {
        "value": value if math.isfinite(value) else None,
        "epoch": epoch,
        "epochs": epochs,
        "seconds": round(time.perf_counter() - began, 3),
        "metrics": metrics,
        "resolved": config.as_dict(),
        "ended": ended,
        "peak_mb": _peak_megabytes(),
    }


def main() -> None:
    """The main function of a worker process.

    It reads its job, answers that it is ready, and reads one config after another as lines of JSON. It answers each
    config with the epochs as they end, each of which is answered with a verdict, and with the outcome or an error.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    job = json.loads(sys.stdin.readline())
    # at the end: what is there can add modules and replace none
    sys.path += [place for place in job["search_path"] if place not in sys.path]
    folder = Path(job["data"])

    def answer(values: dict[str, Any]) -> None:
        print(json.dumps(values), file=answers, flush=True)

    def report(epoch: int, value: float | None) -> Any:
        answer({"report": [epoch, value]})
        line = sys.stdin.readline()
        return json.loads(line) if line else sys.exit()  # an orphan ends

    answer({"ready": True})
    while line := sys.stdin.readline():
        try:
            config = RunConfig.from_dict(json.loads(line))
            outcome = fit(config, map_parts(folder), report, shared=folder)
        except Exception as error:
            outcome = {"error": reason_of(error)}
        answer(outcome)


def reason_of(error: Exception) -> str:
    """Why a trial failed, in one line of at most 500 characters."""
    text = str(error) if isinstance(error, TalosError) else f"{type(error).__name__}: {error}"
    return text[:500]


def _make_trainer(config: RunConfig, parts: FitParts, callback: Callback, shared: Path | None) -> Trainer:
    """A trainer whose initial vectors are those of an earlier trial in `shared`, or are saved there for later ones."""
    # everything but the data that decides the initial vectors
    decides = {
        "backbone": config.backbone.model_dump(),
        "init": config.training.init,
        "negatives": config.as_dict()["negatives"],  # `training.init = "auto"` depends on them
        "seed": config.seed,
        # an adversarial loss draws its own vectors first
        "loss": [config.loss.name, config.loss.options.get("dim")],
    }
    file = None if shared is None else shared / f"start-{digest_of(decides)[:16]}.safetensors"
    initial = None
    if file is not None and file.is_file():
        with contextlib.suppress(SafetensorError, OSError, RuntimeError):  # damaged: compute it again
            tensors = load_file(file)
            backbone = registry.make_backbone(config.backbone, parts.train, generator=None)
            backbone.load_state_dict(tensors)
            initial = backbone
    trainer = Trainer(config, *parts, callbacks=[callback], backbone=initial)
    # random vectors cost nothing to compute
    if file is not None and initial is None and trainer.config.training.init != "random":
        state = trainer.objective.backbone.state_dict()
        tensors = {name: one.detach().cpu().contiguous() for name, one in state.items()}
        with contextlib.suppress(TalosError):  # a full disk, for example: the next trial computes its own
            replace_file(file, lambda path: save_file(tensors, path))
    return trainer


def _peak_megabytes() -> float:
    """The peak resident memory of this process in megabytes, memory-mapped data included."""
    with contextlib.suppress(OSError):  # `getrusage` may report the peak of the process that started this one
        status = Path("/proc/self/status").read_text()
        return round(int(status.partition("VmHWM:")[2].split()[0]) / 1024, 1)
    import resource  # not on every system

    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)
