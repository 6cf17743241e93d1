"""Progress of a long export: a bar with rate and time left on a terminal, plain lines elsewhere; both on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO, TypeAlias

__all__ = ["Progress", "progress"]

Progress: TypeAlias = Callable[[int, int], None]  # users done, users in all
_SECONDS_BETWEEN_LINES = 5.0


@contextmanager
def progress(stream: TextIO | None = None) -> Iterator[Progress]:
    """A function that shows how many of how many users are done, for use inside the block.

    >>> with progress(sys.stdout) as show:
    ...     show(10, 10)
    10 of 10 users
    """
    stream = stream or sys.stderr
    if not stream.isatty():
        yield _Lines(stream)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("recommending"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("users  {task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(file=stream)) as bar:
        task = bar.add_task("", total=None, rate="")
        began, start = time.perf_counter(), -1

        def show(done: int, total: int) -> None:
            nonlocal start
            start = done if start < 0 else start  # users of an earlier call do not count for the rate
            rate = (done - start) / max(time.perf_counter() - began, 1e-9)
            bar.update(task, completed=done, total=total, rate=f"{rate:,.0f}/s" if done > start else "")

        yield show


class _Lines:
    """Prints a line every few seconds, and one at the end."""

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.last = stream, time.perf_counter()

    def __call__(self, done: int, total: int) -> None:
        now = time.perf_counter()
        if done == total or now - self.last >= _SECONDS_BETWEEN_LINES:
            self.last = now
            print(f"{done:,} of {total:,} users", file=self.stream, flush=True)
