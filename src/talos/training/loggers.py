"""Callbacks that log training to TensorBoard, MLflow and Weights & Biases.

Making a callback imports its package, so `talos.training` needs none of them. All three log the loss and the validation
metrics of each epoch; MLflow and Weights & Biases also the settings, with every `auto` resolved. In names `@` becomes
`_at_`, because MLflow and TensorBoard refuse it.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from talos.config import flat_settings
from talos.errors import MissingExtraError, TalosError, first_line
from talos.files import replace_text
from talos.training.callbacks import Callback, InterruptedRunError
from talos.training.plan import Plan

__all__ = ["LOGGERS", "MLflow", "TensorBoard", "WandB"]

_LONGEST_SETTING = 500  # characters that every version of MLflow takes


def _imported(module: str, title: str, extra: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise MissingExtraError(title, extra=extra) from None


class TensorBoard(Callback):
    """Writes loss and validation metrics as TensorBoard scalars (needs the extra `tensorboard`)."""

    def __init__(self, folder: Path) -> None:
        self.writer = _imported("torch.utils.tensorboard", "TensorBoard", "tensorboard").SummaryWriter(
            str(folder)
        )

    def on_epoch(self, record: dict[str, Any]) -> None:
        """Write the scalars of an epoch."""
        for name, value in _numbers(record).items():
            self.writer.add_scalar(name, value, record["epoch"])

    def on_end(self) -> None:
        """Flush and close."""
        self.writer.close()


class _Tracker(Callback, ABC):
    """A callback that logs to one run of an experiment tracker.

    A tracker that cannot begin a run stops training before its first step. One that fails later does not: a warning
    says so, and nothing more is logged.

    Args:
        folder: where the id of the tracker's run is stored, so that resumed training continues it; None for nowhere.
        name: of the tracker's run.
    """

    title: str  # of the tracker, for messages
    module: str  # its package, and the extra that installs it

    def __init__(self, folder: Path | None = None, *, name: str | None = None) -> None:
        self.folder, self.name, self.works = folder, name, False
        self.package = _imported(self.module, self.title, self.module)

    def on_plan(self, plan: Plan) -> None:
        """Begin or continue a run and log the settings."""
        stored = None
        try:
            if self.folder is not None:
                self.folder.mkdir(parents=True, exist_ok=True)
                with suppress(FileNotFoundError):
                    stored = (self.folder / "run_id").read_text(encoding="utf-8").strip()
            run_id = self._begin(plan.config.as_dict(), stored)
        except Exception as error:  # each tracker has dozens of types, and those of its network library
            raise TalosError(f"{self.title} cannot begin a run: {first_line(error)}") from error
        if self.folder is not None:
            replace_text(self.folder / "run_id", f"{run_id}\n")
        self.works = True

    def on_epoch(self, record: dict[str, Any]) -> None:
        """Log the numbers of an epoch."""
        self._try(lambda: self._log(_numbers(record), record["epoch"]))

    def on_end(self) -> None:
        """End the run, as failed or killed if training was."""
        error = sys.exc_info()[1]  # the trainer calls this on its way out of an error, too
        self._try(lambda: self._end(error))
        self.works = False

    def _try(self, act: Callable[[], object]) -> None:
        try:
            if self.works:
                act()
        except Exception as error:
            self.works = False
            warnings.warn(
                f"{self.title} failed, training goes on without it: {first_line(error)}",
                RuntimeWarning,
                stacklevel=3,
            )

    @abstractmethod
    def _begin(self, settings: Mapping[str, Any], stored: str | None) -> str:
        """Begin a run, or continue the one with the `stored` id, and log the settings; returns the run's id."""

    @abstractmethod
    def _log(self, numbers: Mapping[str, float], epoch: int) -> None:
        """Log the numbers of an epoch."""

    @abstractmethod
    def _end(self, error: BaseException | None) -> None:
        """End the run; `error` is the one that stopped training."""


class MLflow(_Tracker):
    """Logs settings, loss and validation metrics to MLflow (needs the extra `mlflow`).

    `MLFLOW_TRACKING_URI` and `MLFLOW_EXPERIMENT_NAME` say where to, as for any program; without them it is MLflow's own
    default and an experiment called `talos`. If a run is active (`mlflow.start_run()`), that one is logged to and left
    open.

    >>> model = Recommender(k=10)                                       # doctest: +SKIP
    >>> model.fit(train, valid, callbacks=[MLflow(name="first try")])   # doctest: +SKIP
    """

    title, module = "MLflow", "mlflow"

    def _begin(self, settings: Mapping[str, Any], stored: str | None) -> str:
        self.client, active = self.package.MlflowClient(), self.package.active_run()
        self.ends = active is None
        self.run_id = str(active.info.run_id) if active is not None else stored or self._new_run()
        if self.ends:
            self.client.update_run(self.run_id, status="RUNNING")
        # a setting that is there cannot be changed: resumed training may have another number of epochs
        known = self.client.get_run(self.run_id).data.params
        params = [
            self.package.entities.Param(name, value[:_LONGEST_SETTING])
            for name, value in flat_settings(settings).items()
            if name not in known
        ]
        self.client.log_batch(self.run_id, params=params)
        return self.run_id

    def _new_run(self) -> str:
        experiment = os.environ.get("MLFLOW_EXPERIMENT_ID")
        if not experiment:
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "talos"
            found = self.client.get_experiment_by_name(name)
            experiment = self.client.create_experiment(name) if found is None else found.experiment_id
        return str(self.client.create_run(experiment, run_name=self.name).info.run_id)

    def _log(self, numbers: Mapping[str, float], epoch: int) -> None:
        now, metric = int(1000 * time.time()), self.package.entities.Metric
        metrics = [metric(name, value, now, epoch) for name, value in numbers.items()]
        self.client.log_batch(self.run_id, metrics=metrics)

    def _end(self, error: BaseException | None) -> None:
        if self.ends:
            stopped = isinstance(error, InterruptedRunError | KeyboardInterrupt)
            status = "FINISHED" if error is None else "KILLED" if stopped else "FAILED"
            self.client.set_terminated(self.run_id, status)


class WandB(_Tracker):
    """Logs settings, loss and validation metrics to Weights & Biases (needs the extra `wandb`).

    Its own environment variables say where to: `WANDB_PROJECT` (`talos` if not given), `WANDB_MODE=offline` for files
    alone, which `wandb sync` sends later. If a run is active (`wandb.init()`), that one is logged to and left open.

    >>> model = Recommender(k=10)                                          # doctest: +SKIP
    >>> model.fit(train, valid, callbacks=[WandB(Path("runs/clicks"))])    # doctest: +SKIP
    """

    title, module = "Weights & Biases", "wandb"

    def _begin(self, settings: Mapping[str, Any], stored: str | None) -> str:
        self.run, self.ends = self.package.run, self.package.run is None
        if self.ends:
            self.run = self.package.init(
                project=os.environ.get("WANDB_PROJECT") or "talos",
                dir=None if self.folder is None else str(self.folder),
                name=self.name,
                id=stored,
                resume=None if stored is None else "allow",
            )
        self.run.config.update(dict(settings), allow_val_change=True)
        return str(self.run.id)

    def _log(self, numbers: Mapping[str, float], epoch: int) -> None:
        # without `step`: Weights & Biases drops steps that are not higher than the last, as after resuming
        self.run.log({"epoch": epoch, **numbers})

    def _end(self, error: BaseException | None) -> None:
        if self.ends:
            self.run.finish(exit_code=0 if error is None else 1)


LOGGERS: Mapping[str, type[TensorBoard] | type[_Tracker]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WandB,
}
"""Name → callback, each made with the folder that it may write to."""


def _numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of an epoch that are logged.

    >>> _numbers({"epoch": 3, "loss": 0.5, "seconds": 1.5, "metrics": {"recall@20": 0.2}})
    {'loss': 0.5, 'recall_at_20': 0.2}
    """
    named = {"loss": record["loss"], **record["metrics"]}
    return {name.replace("@", "_at_"): float(value) for name, value in named.items()}
