"""Asking a run to stop where it can go on."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from talos.errors import TalosError

__all__ = ["InterruptedRunError", "stop_signals"]


class InterruptedRunError(TalosError):
    """Training was asked to stop, and stopped where it can go on."""

    exit_code = 130


@contextmanager
def stop_signals(ask: Callable[[], None]) -> Iterator[None]:
    """Within this block SIGINT and SIGTERM call `ask`, instead of breaking off what is under way.

    Only in the main thread, where Python allows it; elsewhere signals do what they did before.

    >>> asked = []
    >>> with stop_signals(lambda: asked.append("to stop")):
    ...     signal.raise_signal(signal.SIGTERM)
    >>> asked
    ['to stop']
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: Any) -> None:
        ask()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
