"""Callbacks: history, progress and logs of a run; and the signals that stop a run where it can be resumed."""

from __future__ import annotations

import json
import signal
import sys
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TextIO

from talos.errors import DataError, TalosError
from talos.files import replace_text
from talos.training.plan import Plan

if TYPE_CHECKING:
    from talos.training.trainer import Trainer

__all__ = [
    "Callback",
    "Ending",
    "History",
    "InterruptedRunError",
    "PlainProgress",
    "PlanLines",
    "Records",
    "progress",
    "read_history",
    "stop_signals",
]


class Callback:
    """Base of all callbacks: the trainer calls these methods, which do nothing until they are overridden.

    With several processes, only rank 0 calls them.
    """

    def on_plan(self, plan: Plan) -> None:
        """The trainer has been made, by this plan."""

    def on_race(self, record: dict[str, Any]) -> None:
        """Before training starts, one candidate of a race has done a leg; see `talos.studies.race.RaceResult`."""

    def on_start(self, epoch: int, epochs: int, steps: int) -> None:
        """Training starts, or resumes, after `epoch` of `epochs` epochs of `steps` steps each."""

    def on_step(self, epoch: int, step: int, loss: float) -> None:
        """A step is done; `loss` is the mean over the steps of this epoch so far."""

    def on_epoch(self, record: dict[str, Any]) -> None:
        """An epoch is done; `record` is a line of `history.jsonl`."""

    def on_end(self) -> None:
        """Training is over, also by an error."""


class PlanLines(Callback):
    """Gives every decision of the plan to a function, one line each.

    >>> from talos.config import RunConfig
    >>> sizes = {"steps_per_epoch": 1, "parameters": 8, "memory": 256}
    >>> PlanLines(print).on_plan(Plan(config=RunConfig(), batches="users", notes=("k 5",), **sizes))
    chosen: k 5
    """

    def __init__(self, write: Callable[[str], object]) -> None:
        self.write = write

    def on_plan(self, plan: Plan) -> None:
        """Write the lines."""
        if plan.sharding:
            self.write(plan.sharding)
        for note in plan.notes:
            self.write(f"chosen: {note}")


class History(Callback):
    """Writes one JSON line an epoch to a file, before them one for each leg of a race; a resumed run continues it.

    Every line has its own checksum.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_race(self, record: dict[str, Any]) -> None:
        """Append the record of a leg."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.on_epoch(
            {
                "epoch": record["epoch"],
                "race": {name: record[name] for name in ("stage", "candidate")},
                "metrics": record["metrics"],
            }
        )

    def on_start(self, epoch: int, epochs: int, steps: int) -> None:
        """Drop the lines of epochs that will be trained again, and an incomplete last line."""
        kept = [line for line in read_history(self.path, races=True) if line["epoch"] <= epoch]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(self.path, "".join(map(_history_line, kept)))

    def on_epoch(self, record: dict[str, Any]) -> None:
        """Append the record."""
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(_history_line(record))
        except OSError as error:
            raise TalosError(f"{self.path} could not be written ({error})") from error


class Records(Callback):
    """Keeps the lines of the history in memory, for runs that write no files."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def on_epoch(self, record: dict[str, Any]) -> None:
        """Keep the record."""
        self.lines.append(record)


class Ending(Records):
    """Keeps the lines of the history, and ends the fit after the first epoch for which `ask` gives a reason.

    A fit ends between epochs, where its best weights are known. `trainer` is to be set before it begins.
    """

    trainer: Trainer
    reason = ""

    def __init__(self, ask: Callable[[dict[str, Any]], str]) -> None:
        super().__init__()
        self.ask = ask

    def on_epoch(self, record: dict[str, Any]) -> None:
        """Keep the record and ask, unless the fit is over by itself."""
        super().on_epoch(record)
        reason, at = self.ask(record), self.trainer.position
        if reason and not at.finished and at.epoch < self.trainer.config.training.epochs:
            self.reason, at.finished = reason, True

    @property
    def ended_by(self) -> str:
        """What ended the fit: the reason given, `patience` or `epochs`."""
        return self.reason or ("patience" if self.trainer.position.finished else "epochs")


def _history_line(record: Mapping[str, Any]) -> str:
    crc = zlib.crc32(json.dumps(record, sort_keys=True).encode())
    return json.dumps({**record, "crc32": f"{crc:08x}"}) + "\n"


def read_history(path: Path, *, races: bool = False) -> list[dict[str, Any]]:
    """The records of a history file, without an incomplete last line; none if there is no such file.

    `races` includes the legs of a race before the first epoch.

    Raises:
        DataError: a line is damaged or has no checksum, or the file is no history.
    """
    try:
        *lines, last = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise DataError(f"cannot be read ({error.strerror})", where=str(path)) from None
    if not b'{"'.startswith(last[:2]):  # otherwise it was being written
        lines.append(last)
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            record.pop("crc32", None)
            if _history_line(record).encode() != line + b"\n":
                raise ValueError("it differs from its checksum or has none")
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise DataError(
                f"is damaged: {error}",
                where=f"{path}, line {number}",
                expected="a line of a history of training",
                hint="a run continues without this file",
            ) from None
        if races or "race" not in record:
            records.append(record)
    return records


class PlainProgress(Callback):
    """Prints a line after every validation: for logs and pipes."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream: TextIO | None = stream or sys.stderr  # None if the process was started without one

    def on_race(self, record: dict[str, Any]) -> None:
        """Print the candidate and the first of its metrics."""
        self._print(_race_line(record))

    def on_epoch(self, record: dict[str, Any]) -> None:
        """Print the epoch, the loss and the validation metrics."""
        if record["metrics"]:
            numbers = {"loss": record["loss"], **record["metrics"]}
            shown = "  ".join(f"{name} {value:.4f}" for name, value in numbers.items())
            self._print(f"epoch {record['epoch']:>4}  {shown}  {record['seconds']:.2f} s")

    def _print(self, line: str) -> None:
        if self.stream is not None:
            try:
                print(line, file=self.stream, flush=True)
            except (OSError, ValueError):  # the stream is closed: no reason to stop training
                self.stream = None


def _race_line(record: dict[str, Any]) -> str:
    name, value = next(iter(record["metrics"].items()))
    return f"race  {record['candidate']:<24} epoch {record['epoch']:>3}  {name} {value:.4f}"


class _Bar(Callback):
    """A progress bar with seconds per epoch and time left, on a terminal."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("epochs  {task.fields[rate]}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[status]}"),
            console=Console(stderr=True),
            transient=False,
        )

    def on_race(self, record: dict[str, Any]) -> None:
        self.bar.console.print(_race_line(record), highlight=False)

    def on_start(self, epoch: int, epochs: int, steps: int) -> None:
        self.steps = steps
        self.task = self.bar.add_task("training", total=epochs, completed=epoch, rate="", status="")
        with suppress(OSError):  # the terminal was closed: no reason to stop training
            self.bar.start()

    def on_step(self, epoch: int, step: int, loss: float) -> None:
        with suppress(OSError):
            self.bar.update(self.task, completed=epoch + step / self.steps)

    def on_epoch(self, record: dict[str, Any]) -> None:
        fields: dict[str, Any] = {"rate": f"{record['seconds']:.2f} s/epoch"}
        if record["metrics"]:
            name, value = next(iter(record["metrics"].items()))
            fields["status"] = f"loss {record['loss']:.3f}  {name} {value:.4f}"
        with suppress(OSError):
            self.bar.update(self.task, completed=record["epoch"], **fields)

    def on_end(self) -> None:
        with suppress(OSError):
            self.bar.stop()


def progress() -> Callback:
    """A progress bar on a terminal, plain lines elsewhere; both on stderr."""
    return _Bar() if sys.stderr is not None and sys.stderr.isatty() else PlainProgress()


class InterruptedRunError(TalosError):
    """Training was asked to stop, and stopped with a checkpoint from which it can be resumed."""

    exit_code = 130


@contextmanager
def stop_signals(ask: Callable[[], None]) -> Iterator[None]:
    """Within this block SIGINT, SIGTERM and SIGHUP call `ask` instead of ending the process.

    SIGHUP, which a closed terminal sends, stays ignored if it is (`nohup`). If Ctrl-C was pressed before and its
    exception was lost (the earlier SIGINT handler has a true attribute `asked`), `ask` is called at once.

    Python allows signal handlers in the main thread only; in another thread the block changes nothing.

    >>> asked = []
    >>> with stop_signals(lambda: asked.append("to stop")):
    ...     signal.raise_signal(signal.SIGTERM)
    >>> asked
    ['to stop']
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    signals = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signals.append(signal.SIGHUP)
    asked: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        # a closed terminal sends SIGHUP more than once, which does not mean "stop at once"
        if number in (signal.SIGINT, signal.SIGTERM) or not asked:
            asked.append(number)
            ask()

    before = {one: signal.signal(one, handle) for one in signals}
    try:
        if getattr(before[signal.SIGINT], "asked", False):
            handle(signal.SIGINT, None)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
