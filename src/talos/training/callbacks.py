"""What watches a run: history on disk, progress on the terminal, TensorBoard."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any, Protocol, TextIO

from talos.errors import MissingExtraError
from talos.files import replace_file

__all__ = ["Callback", "History", "PlainProgress", "Records", "TensorBoard", "progress", "read_history"]


class Callback(Protocol):
    """Called by the trainer; every method may be left as it is."""

    def on_start(self, epoch: int, epochs: int, steps: int) -> None:
        """Training starts or goes on at this epoch, of so many, with so many steps each."""
        ...

    def on_step(self, epoch: int, step: int, loss: float) -> None:
        """A step is done."""
        ...

    def on_epoch(self, record: dict[str, Any]) -> None:
        """An epoch is done; the record is a line of `history.jsonl`."""
        ...

    def on_end(self) -> None:
        """Training is over, for whatever reason."""
        ...


class _Silent:
    """A callback that does nothing, to inherit from."""

    def on_start(self, epoch: int, epochs: int, steps: int) -> None:
        """Nothing."""

    def on_step(self, epoch: int, step: int, loss: float) -> None:
        """Nothing."""

    def on_epoch(self, record: dict[str, Any]) -> None:
        """Nothing."""

    def on_end(self) -> None:
        """Nothing."""


class History(_Silent):
    """One JSON line an epoch, in a file that a resumed run goes on with from where it resumes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_start(self, epoch: int, epochs: int, steps: int) -> None:
        """Drop lines of epochs that will be done again, and a last line that was cut off."""
        kept = [line for line in read_history(self.path) if line["epoch"] <= epoch]
        text = "".join(json.dumps(line) + "\n" for line in kept)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self.path, lambda path: path.write_text(text))

    def on_epoch(self, record: dict[str, Any]) -> None:
        """Append the record."""
        with self.path.open("a") as file:
            file.write(json.dumps(record) + "\n")


class Records(_Silent):
    """The same lines in memory, for runs that leave no files."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def on_epoch(self, record: dict[str, Any]) -> None:
        """Keep the record."""
        self.lines.append(record)


def read_history(path: Path) -> list[dict[str, Any]]:
    """The records of a history file; none if there is no such file, and without a line that was cut off."""
    records = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            records.append(json.loads(line))
        except ValueError:  # the machine stopped in the middle of this line
            break
    return records


class PlainProgress(_Silent):
    """A line for every look at the validation set: for logs and pipes."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr

    def on_epoch(self, record: dict[str, Any]) -> None:
        """Print the epoch, the loss, and what validation said."""
        if record["metrics"]:
            metrics = "  ".join(f"{name} {value:.4f}" for name, value in record["metrics"].items())
            line = (
                f"epoch {record['epoch']:>4}  loss {record['loss']:.4f}  {metrics}  {record['seconds']:.2f} s"
            )
            print(line, file=self.stream, flush=True)


class _Bar(_Silent):
    """A live line with rate and time left, on a terminal."""

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

    def on_start(self, epoch: int, epochs: int, steps: int) -> None:
        """Show the bar."""
        self.steps, self.began = steps, time.perf_counter()
        self.task = self.bar.add_task("training", total=epochs, completed=epoch, rate="", status="")
        self.bar.start()

    def on_step(self, epoch: int, step: int, loss: float) -> None:
        """Move on."""
        self.bar.update(self.task, completed=epoch + step / self.steps)

    def on_epoch(self, record: dict[str, Any]) -> None:
        """Show the loss and the last validation."""
        fields: dict[str, Any] = {"rate": f"{record['seconds']:.2f} s/epoch"}
        if record["metrics"]:
            name, value = next(iter(record["metrics"].items()))
            fields["status"] = f"loss {record['loss']:.3f}  {name} {value:.4f}"
        self.bar.update(self.task, completed=record["epoch"], **fields)

    def on_end(self) -> None:
        """Leave the last state standing."""
        self.bar.stop()


def progress() -> Callback:
    """A live bar on a terminal, plain lines elsewhere; both on stderr."""
    return _Bar() if sys.stderr.isatty() else PlainProgress()


class TensorBoard(_Silent):
    """Loss and validation metrics as TensorBoard scalars (extra `tensorboard`)."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingExtraError("TensorBoard", extra="tensorboard") from None
        self.writer = SummaryWriter(str(folder))

    def on_epoch(self, record: dict[str, Any]) -> None:
        """Write the scalars of an epoch."""
        for name, value in {"loss": record["loss"], **record["metrics"]}.items():
            self.writer.add_scalar(name.replace("@", "_at_"), value, record["epoch"])

    def on_end(self) -> None:
        """Flush and close."""
        self.writer.close()
