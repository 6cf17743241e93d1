"""Callbacks: history, progress and logs of a run; and the signals that stop a run where it can be resumed."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from talos.errors import DataError, TalosError
from talos.files import replace_text
from talos.training.plan import Plan

__all__ = [
    "Callback",
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
        """Before training starts, one candidate of a race has done a leg; see `talos.training.race.RaceResult`."""

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
    """Writes one JSON line an epoch to a file, which a resumed run continues; before them those of a race.

    Every line has its own checksum.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_race(self, record: dict[str, Any]) -> None:
        """Append the record of a leg."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        place = {name: record[name] for name in ("stage", "candidate")}
        self.on_epoch({"epoch": record["epoch"], "race": place, "metrics": record["metrics"]})

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


def _history_line(record: Mapping[str, Any]) -> str:
    return json.dumps({**record, "crc32": _crc(record)}) + "\n"


def _crc(record: Mapping[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(record, sort_keys=True).encode()):08x}"


def read_history(path: Path, *, races: bool = False) -> list[dict[str, Any]]:
    """The records of a history file, without an incomplete last line; none if there is no such file.

    `races` includes the legs of a race before the first epoch.

    Raises:
        DataError: a line is damaged, or the file is no history. Lines without a checksum are of older versions.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise DataError(f"cannot be read ({error.strerror})", where=str(path)) from None
    records = []
    # what follows the last newline was being written, unless it is no beginning of a line
    whole = lines if not lines[-1].startswith(b'{"') and lines[-1] not in (b"", b"{") else lines[:-1]
    for number, line in enumerate(whole, start=1):
        try:
            record = json.loads(line)
            if not isinstance(record, dict) or type(record.get("epoch")) is not int:
                raise ValueError("it has no epoch")
            if (crc := record.pop("crc32", None)) is not None and crc != _crc(record):
                raise ValueError("it differs from its checksum")
            _check_record(record)
        except (ValueError, RecursionError) as error:
            hint = "without this file a run continues all the same"
            raise DataError(
                f"is damaged: {error}",
                where=f"{path}, line {number}",
                expected="a line of a history of training",
                hint=hint,
            ) from None
        if races or "race" not in record:
            records.append(record)
    return records


def _check_record(record: Mapping[str, Any]) -> None:
    """Refuse what is missing or of another type than is written: lines of older versions have no checksum."""
    if not isinstance(record.get("metrics"), dict):
        raise ValueError("it has no metrics")
    clock = "cpu_seconds" if "cpu_seconds" in record else "seconds"  # reproduced runs count processor time
    own = {} if "race" in record else {name: record.get(name) for name in ("loss", clock)}
    for name, value in {**record["metrics"], **own}.items():
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ValueError(f"its {name:.60} is no number")


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
            metrics = "  ".join(f"{name} {value:.4f}" for name, value in record["metrics"].items())
            head = f"epoch {record['epoch']:>4}  loss {record['loss']:.4f}"
            self._print(f"{head}  {metrics}  {record['seconds']:.2f} s")

    def _print(self, line: str) -> None:
        if self.stream is not None:
            try:
                print(line, file=self.stream, flush=True)
            except (OSError, ValueError):  # nobody reads any more: no reason to stop training
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
        """Print the candidate above the bar."""
        self.bar.console.print(_race_line(record), highlight=False)

    def on_start(self, epoch: int, epochs: int, steps: int) -> None:
        """Show the bar."""
        self.steps, self.began = steps, time.perf_counter()
        self.task = self.bar.add_task("training", total=epochs, completed=epoch, rate="", status="")
        with contextlib.suppress(OSError):  # the terminal was closed: no reason to stop training
            self.bar.start()

    def on_step(self, epoch: int, step: int, loss: float) -> None:
        """Advance the bar."""
        with contextlib.suppress(OSError):
            self.bar.update(self.task, completed=epoch + step / self.steps)

    def on_epoch(self, record: dict[str, Any]) -> None:
        """Show the loss and the last validation."""
        fields: dict[str, Any] = {"rate": f"{record['seconds']:.2f} s/epoch"}
        if record["metrics"]:
            name, value = next(iter(record["metrics"].items()))
            fields["status"] = f"loss {record['loss']:.3f}  {name} {value:.4f}"
        with contextlib.suppress(OSError):
            self.bar.update(self.task, completed=record["epoch"], **fields)

    def on_end(self) -> None:
        """Stop updating; the bar stays on the screen."""
        with contextlib.suppress(OSError):
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

    SIGHUP, which a closed terminal sends, stays ignored if it is (`nohup`). A handler of SIGINT from before that has a
    true attribute `asked` was called already, and what it raised got lost on the way: `ask` is called at once.

    Python allows signal handlers in the main thread only; in another one signals do what they did before.

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
    asked = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        # a closed terminal sends SIGHUP more than once: not to be taken for somebody who is impatient
        if number in (signal.SIGINT, signal.SIGTERM) or not asked:
            asked = True
            ask()

    before = {one: signal.signal(one, handle) for one in signals}
    try:
        if getattr(before[signal.SIGINT], "asked", False):
            handle(signal.SIGINT, None)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
