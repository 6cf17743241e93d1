"""How far long work has come: a bar with rate and time left on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TextIO, TypeAlias

__all__ = ["Progress", "counter", "reading"]

Progress: TypeAlias = Callable[[int, int], None]
"""Called with how much is done, and how much there is in all."""

_SECONDS_BETWEEN_LINES = 5.0
_MANY_ROWS = 5_000_000  # take seconds to read


@contextmanager
def counter(doing: str, unit: str, stream: TextIO | None = None) -> Iterator[Progress]:
    """A function that shows how many of how many are done.

    Args:
        doing: what is done, the text before the bar.
        unit: what is counted.
        stream: stderr if not given.

    >>> with counter("recommending", "users", sys.stdout) as show:
    ...     show(10, 10)
    10 of 10 users
    """
    stream = stream or sys.stderr
    began = last = time.perf_counter()
    if not stream.isatty():

        def print_line(done: int, total: int) -> None:
            nonlocal last
            now = time.perf_counter()
            if done == total or now - last >= _SECONDS_BETWEEN_LINES:
                last = now
                print(f"{done:,} of {total:,} {unit}", file=stream, flush=True)

        yield print_line
        return
    from rich import progress as rich
    from rich.console import Console

    columns = (
        rich.TextColumn(doing),
        rich.BarColumn(bar_width=24),
        rich.MofNCompleteColumn(),
        rich.TextColumn(f"{unit}  {{task.fields[rate]}}"),
        rich.TimeRemainingColumn(),
    )
    with rich.Progress(*columns, console=Console(file=stream)) as bar:
        task, start = bar.add_task("", total=None, rate=""), -1

        def move_bar(done: int, total: int) -> None:
            nonlocal start
            start = done if start < 0 else start  # what an earlier call has done does not count for the rate
            rate = (done - start) / max(time.perf_counter() - began, 1e-9)
            bar.update(task, completed=done, total=total, rate=f"{rate:,.0f}/s" if done > start else "")

        yield move_bar


@contextmanager
def reading() -> Iterator[Progress]:
    """A function that shows how many rows of large data are read, as `counter` does; it shows nothing of small data."""
    with ExitStack() as stack:
        shown: list[Progress] = []

        def show(done: int, total: int) -> None:
            if total >= _MANY_ROWS:
                if not shown:
                    shown.append(stack.enter_context(counter("reading", "rows")))
                shown[0](done, total)

        yield show
