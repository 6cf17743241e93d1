"""Who is running a trial, and whether it is still there.

A worker signs the trial it took with its machine, process id and start time, and writes a number that grows, its
beat, every few seconds. On the same machine a dead process is seen at once. For others, the beat is watched by the
watcher's own clock, so machines need not agree on the time.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

__all__ = ["BEAT", "GRACE", "Pulse", "Watcher", "signature"]

BEAT = 5.0  # seconds between beats
GRACE = 60.0  # seconds without a beat after which a worker counts as gone
_UNSIGNED = 10.0  # the same for a trial that was taken but not signed: its worker died in between


def signature() -> str:
    """Machine, process id and start time of this process.

    >>> signature().count(":")
    2
    """
    return f"{_machine()}:{os.getpid()}:{_started(os.getpid())}"


class Watcher:
    """Tells which running trials have lost their worker."""

    def __init__(self, *, grace: float = GRACE) -> None:
        self.grace = grace
        self._seen: dict[int, tuple[Any, float]] = {}

    def is_gone(self, trial: FrozenTrial) -> bool:
        """Whether nobody runs this trial any more; to be asked again and again."""
        signed = trial.user_attrs.get("worker")
        beat, now = (signed, trial.user_attrs.get("beat")), time.monotonic()
        if self._seen.get(trial.number, (None, 0.0))[0] != beat:
            self._seen[trial.number] = (beat, now)
        if signed is not None and not _may_live(str(signed)):
            return True
        return now - self._seen[trial.number][1] > (
            min(self.grace, _UNSIGNED) if signed is None else self.grace
        )


class Pulse:
    """A thread that beats for the trial at hand, and ends the process if the one that started it is gone.

    Args:
        write: called with the storage's id of the trial and the beat; raises `RuntimeError` if the trial was
            given to somebody else.
        every: seconds between beats.
        parent: the process to watch; None for nobody.
    """

    def __init__(
        self, write: Callable[[int, int], None], *, every: float = BEAT, parent: int | None = None
    ) -> None:
        self.write, self.every, self.parent = write, every, parent
        self.taken_over = False
        self._trial: int | None = None
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="talos-pulse", daemon=True)

    def __enter__(self) -> Pulse:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def follow(self, trial: int | None) -> None:
        """Beat for this trial from now on, or for none."""
        with self._lock:
            self._trial, self.taken_over = trial, False

    def _run(self) -> None:
        beat, last = 0, time.monotonic()
        while not self._over.wait(min(1.0, self.every)):
            if self.parent is not None and os.getppid() != self.parent:
                os._exit(1)  # an orphan: its trial is found and run again by whoever goes on
            if time.monotonic() - last < self.every:
                continue
            beat, last = beat + 1, time.monotonic()
            with self._lock:
                if self._trial is None:
                    continue
                try:
                    self.write(self._trial, beat)
                except RuntimeError:
                    self.taken_over, self._trial = True, None
                except Exception:  # a server out of reach for a moment: the next beat will do
                    continue


def _may_live(signed: str) -> bool:
    """False if a signature is of this machine and its process is gone; True if that cannot be known."""
    machine, _, rest = signed.partition(":")
    number, _, started = rest.partition(":")
    if machine != _machine() or not number.isdecimal():
        return True
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return _started(int(number)) == started


def _machine() -> str:
    """A name of this machine since its last start; process ids mean the same wherever it is equal."""
    parts = [platform.node()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    with contextlib.suppress(OSError):
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def _started(process: int) -> str:
    """When a process started, so that a later one with the same id is not taken for it; "" where unknown."""
    try:
        status = Path(f"/proc/{process}/stat").read_text()
        fields = status.rpartition(")")[2].split()  # after the name, which may hold anything
        return "" if fields[0] == "Z" else fields[19]  # a dead process that nobody has buried counts as gone
    except (OSError, IndexError):
        return ""
