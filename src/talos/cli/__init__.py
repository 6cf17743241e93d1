"""The `talos` command: one file for each subcommand, which parses, calls the library and prints.

Nothing but `main` is here, so that it runs at once and handles Ctrl-C while everything else is imported.
"""

from __future__ import annotations

import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from talos.cli.application import app as app

__all__ = ["app", "main"]


def main() -> None:
    """Run the command line: exit code 0 done, 1 failed, 2 the user's input is wrong, 130 interrupted."""
    before = _listen_for_ctrl_c()
    try:
        from talos.cli.application import run

        run()
    except KeyboardInterrupt:
        with suppress(OSError, ValueError):  # if the terminal is gone
            print("interrupted", file=sys.stderr)
        sys.exit(130)
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)


class _CtrlC:
    """Python's own handler of SIGINT, which remembers that it was called.

    What it raises may get lost while other libraries are imported or call back; training looks at `asked` when it
    begins (`talos.training.callbacks.stop_signals`).
    """

    asked = False

    def __call__(self, number: int, frame: object) -> None:
        self.asked = True
        raise KeyboardInterrupt


def _listen_for_ctrl_c() -> Any:
    """Put `_CtrlC` in place of Python's handler; returns that, or None if there is another one."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return None
    try:
        return signal.signal(signal.SIGINT, _CtrlC())
    except ValueError:  # not the main thread, which alone gets signals
        return None


def __getattr__(name: str) -> Any:
    if name == "app":
        from talos.cli.application import app

        return app
    raise AttributeError(f"module 'talos.cli' has no attribute {name!r}")
