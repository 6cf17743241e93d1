"""Callbacks that log training to TensorBoard, MLflow and Weights & Biases.

Each package is imported when its callback is made, so that `talos.training` needs none of them. All three log the loss
and the validation metrics of each epoch; MLflow and Weights & Biases also the settings, with every `auto` resolved.
In names `@` becomes `_at_`, because MLflow and TensorBoard refuse it.
"""

from __future__ import annotations

import os
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from talos.config import flat_settings
from talos.errors import MissingExtraError, TalosError, first_line
from talos.files import replace_text
from talos.training.callbacks import Callback, InterruptedRunError
from talos.training.plan import Plan

__all__ = ["LOGGERS", "MLflow", "TensorBoard", "WandB"]

_LONGEST_SETTING = 500  # characters that every version of MLflow takes


class TensorBoard(Callback):
    """Writes loss and validation metrics as TensorBoard scalars (needs the extra `tensorboard`)."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingExtraError("TensorBoard", extra="tensorboard") from None
        self.writer = SummaryWriter(str(folder))

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
        folder: where the tracker's run is remembered, so that training that is resumed continues it; None for nowhere.
        name: of the tracker's run.
    """

    title: str  # of the tracker, for messages

    def __init__(self, folder: Path | None = None, *, name: str | None = None) -> None:
        self.folder, self.name = folder, name
        self.works = False

    def on_plan(self, plan: Plan) -> None:
        """Begin or continue a run and log the settings."""
        with self._errors():
            remembered = None
            if self.folder is not None and (self.folder / "run_id").is_file():
                remembered = (self.folder / "run_id").read_text(encoding="utf-8").strip()
            begun = self.begin(plan.config.as_dict(), remembered)
            if self.folder is not None and begun != remembered:
                self.folder.mkdir(parents=True, exist_ok=True)
                replace_text(self.folder / "run_id", f"{begun}\n")
        self.works = True

    def on_epoch(self, record: dict[str, Any]) -> None:
        """Log the numbers of an epoch."""
        if self.works:
            with self._warnings():
                self.log(_numbers(record), record["epoch"])

    def on_end(self) -> None:
        """End the run, as failed or killed if training was."""
        if self.works:
            self.works = False
            with self._warnings():
                self.end(sys.exc_info()[1])  # the trainer calls this on its way out of an error, too

    @abstractmethod
    def begin(self, settings: Mapping[str, Any], remembered: str | None) -> str:
        """Begin a run, or continue the `remembered` one, and log the settings; returns the id of the run."""

    @abstractmethod
    def log(self, numbers: Mapping[str, float], epoch: int) -> None:
        """Log the numbers of an epoch."""

    @abstractmethod
    def end(self, error: BaseException | None) -> None:
        """End the run; `error` is what stopped training."""

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except TalosError:
            raise
        except Exception as error:  # each tracker has dozens of types, and those of its network library
            raise TalosError(f"{self.title} cannot begin a run: {first_line(error)}") from error

    @contextmanager
    def _warnings(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.works = False
            text = f"{self.title} failed, training goes on without it: {first_line(error)}"
            warnings.warn(text, RuntimeWarning, stacklevel=4)


class MLflow(_Tracker):
    """Logs settings, loss and validation metrics to MLflow (needs the extra `mlflow`).

    `MLFLOW_TRACKING_URI` and `MLFLOW_EXPERIMENT_NAME` say where to, as for any program; without them it is MLflow's own
    default and an experiment called `talos`. If a run is active (`mlflow.start_run()`), that one is logged to and left
    open.

    >>> model = Recommender(k=10)                                       # doctest: +SKIP
    >>> model.fit(train, valid, callbacks=[MLflow(name="first try")])   # doctest: +SKIP
    """

    title = "MLflow"

    def __init__(self, folder: Path | None = None, *, name: str | None = None) -> None:
        super().__init__(folder, name=name)
        try:
            import mlflow
        except ImportError:
            raise MissingExtraError("MLflow", extra="mlflow") from None
        self.mlflow: Any = mlflow

    def begin(self, settings: Mapping[str, Any], remembered: str | None) -> str:
        """Find the run, or make one."""
        self.client = self.mlflow.MlflowClient()
        active = self.mlflow.active_run()
        self.ends = active is None
        if active is not None:
            self.run_id = str(active.info.run_id)
        elif remembered is not None:
            self.client.update_run(remembered, status="RUNNING")
            self.run_id = remembered
        else:
            self.run_id = self.client.create_run(self._experiment(), run_name=self.name).info.run_id
        # a setting that is there cannot be changed: resumed training may have another number of epochs
        known = self.client.get_run(self.run_id).data.params
        params = [
            self.mlflow.entities.Param(name, value[:_LONGEST_SETTING])
            for name, value in flat_settings(settings).items()
            if name not in known
        ]
        self.client.log_batch(self.run_id, params=params)
        return self.run_id

    def _experiment(self) -> str:
        if given := os.environ.get("MLFLOW_EXPERIMENT_ID"):
            return given
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "talos"
        found = self.client.get_experiment_by_name(name)
        return str(self.client.create_experiment(name) if found is None else found.experiment_id)

    def log(self, numbers: Mapping[str, float], epoch: int) -> None:
        """Log the numbers of an epoch in one request."""
        now = self.mlflow.utils.time.get_current_time_millis()
        metrics = [self.mlflow.entities.Metric(name, value, now, epoch) for name, value in numbers.items()]
        self.client.log_batch(self.run_id, metrics=metrics)

    def end(self, error: BaseException | None) -> None:
        """Say how the run ended."""
        stopped = isinstance(error, InterruptedRunError | KeyboardInterrupt)
        if self.ends:
            status = "FINISHED" if error is None else "KILLED" if stopped else "FAILED"
            self.client.set_terminated(self.run_id, status)


class WandB(_Tracker):
    """Logs settings, loss and validation metrics to Weights & Biases (needs the extra `wandb`).

    Its own environment variables say where to: `WANDB_PROJECT` (`talos` if not given), `WANDB_MODE=offline` for files
    alone, which `wandb sync` sends later. If a run is active (`wandb.init()`), that one is logged to and left open.

    >>> model = Recommender(k=10)                                          # doctest: +SKIP
    >>> model.fit(train, valid, callbacks=[WandB(Path("runs/clicks"))])    # doctest: +SKIP
    """

    title = "Weights & Biases"

    def __init__(self, folder: Path | None = None, *, name: str | None = None) -> None:
        super().__init__(folder, name=name)
        try:
            import wandb
        except ImportError:
            raise MissingExtraError("Weights & Biases", extra="wandb") from None
        self.wandb: Any = wandb

    def begin(self, settings: Mapping[str, Any], remembered: str | None) -> str:
        """Find the run, or make one."""
        self.ends = self.wandb.run is None
        if self.ends:
            if self.folder is not None:
                self.folder.mkdir(parents=True, exist_ok=True)
            self.run = self.wandb.init(
                project=os.environ.get("WANDB_PROJECT") or "talos",
                dir=None if self.folder is None else str(self.folder),
                name=self.name,
                id=remembered,
                resume=None if remembered is None else "allow",
            )
        else:
            self.run = self.wandb.run
        self.run.config.update(dict(settings), allow_val_change=True)
        return str(self.run.id)

    def log(self, numbers: Mapping[str, float], epoch: int) -> None:
        """Log the numbers of an epoch in one step."""
        # without `step`: Weights & Biases drops steps that are not higher than the last, as after resuming
        self.run.log({"epoch": epoch, **numbers})

    def end(self, error: BaseException | None) -> None:
        """Send what is left."""
        if self.ends:
            self.run.finish(exit_code=0 if error is None else 1)


LOGGERS: Mapping[str, type[TensorBoard] | type[_Tracker]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WandB,
}
"""Name → callback, each made with the folder that it may write to."""


def _numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """What is logged of an epoch.

    >>> _numbers({"epoch": 3, "loss": 0.5, "seconds": 1.5, "metrics": {"recall@20": 0.2}})
    {'loss': 0.5, 'recall_at_20': 0.2}
    """
    named = {"loss": record["loss"], **record["metrics"]}
    return {name.replace("@", "_at_"): float(value) for name, value in named.items()}
