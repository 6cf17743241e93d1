r"""The log of feedback: JSON lines that are on the disk before they are acknowledged, and that every worker follows.

A line is `{"user": …, "item": …, "timestamp": …}`, with `"id"` if the sender gave one. Lines are written under a lock
of the file, in one piece, and synced. A process that dies while it writes leaves a line without its end; whoever writes
next cuts it off, and readers never see it. Nothing of an acknowledged request is in it.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import polars as pl

from talos.errors import DataError, TalosError
from talos.files import sync

__all__ = ["Event", "FeedbackLog", "LogReader", "is_log", "read_log"]

Id: TypeAlias = str | int

_BLOCK = 4 << 20
# How many of the newest event ids are remembered, to recognise events that are sent again.
_REMEMBERED = 100_000


@dataclass(frozen=True, slots=True)
class Event:
    """One event: a user met an item."""

    user: Id
    item: Id
    timestamp: float
    id: str | None = None

    def line(self) -> bytes:
        """The event as a line of the log."""
        values: dict[str, Any] = {"user": self.user, "item": self.item, "timestamp": self.timestamp}
        if self.id is not None:
            values["id"] = self.id
        return json.dumps(values, separators=(",", ":"), allow_nan=False).encode() + b"\n"

    @classmethod
    def parse(cls, line: bytes) -> Event | None:
        """The event of a line; None if the line is not one."""
        try:
            values = json.loads(line)
            user, item, known = values["user"], values["item"], values.get("id")
            if any(isinstance(one, bool) or not isinstance(one, str | int) for one in (user, item)):
                return None
            return cls(
                user, item, float(values.get("timestamp", 0.0)), known if isinstance(known, str) else None
            )
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None


class LogReader:
    """Follows a log: `read` returns the events that were added since the last call, whoever added them.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     log = FeedbackLog(Path(folder, "log.jsonl"))
    ...     reader = LogReader(log.path)
    ...     _ = log.append([Event("ann", "tea", 1.0)])
    ...     first, second = reader.read(), reader.read()
    ...     reader.close(); log.close()
    >>> first, second
    ([Event(user='ann', item='tea', timestamp=1.0, id=None)], [])
    """

    def __init__(self, path: Path) -> None:
        self.offset = self.bad_lines = 0
        self._file = -1
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> list[Event]:
        """The events of all complete lines that are new."""
        found: list[Event] = []
        # almost always nothing is new, and asking for the size costs a microsecond
        while os.fstat(self._file).st_size > self.offset:
            block = os.pread(self._file, _BLOCK, self.offset)
            end = block.rfind(b"\n") + 1
            if end == 0:
                if len(block) == _BLOCK:  # no line of ours is that long
                    self.offset += len(block)
                    self.bad_lines += 1
                    continue
                break
            for line in block[:end].splitlines():
                event = Event.parse(line)
                if event is None:
                    self.bad_lines += bool(line.strip())
                else:
                    found.append(event)
            self.offset += end
            if len(block) < _BLOCK:
                break
        return found

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    # a run that was replaced is read by requests that began before, and goes when the last of them is answered
    __del__ = close


class FeedbackLog:
    """The end of the log that is written to; safe with several threads and processes.

    Args:
        path: the file; created if it does not exist.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     log = FeedbackLog(Path(folder, "log.jsonl"))
    ...     new = [len(log.append([Event("ann", "tea", 1.0, "e1")])) for _ in range(2)]
    ...     log.close()
    >>> new
    [1, 0]
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise DataError(f"cannot be written ({error.strerror})", where=str(path)) from None
        sync(path.parent)
        self._lock = threading.Lock()
        self._ids: OrderedDict[str, None] = OrderedDict()
        self._reader = LogReader(path)
        with self._locked():
            self._drop_torn_line()
            self._remember(self._reader.read())

    def append(self, events: Sequence[Event]) -> list[Event]:
        """Write events and sync them; those whose id is in the log already are left out. Returns the others.

        Raises:
            TalosError: the disk did not take them; the log is as it was before.
        """
        with self._locked():
            self._drop_torn_line()
            self._remember(self._reader.read())
            fresh: list[Event] = []
            for event in events:
                if event.id is None or event.id not in self._ids:
                    fresh.append(event)
                    self._remember([event])
            if not fresh:
                return []
            size = os.fstat(self._file).st_size
            data = b"".join(event.line() for event in fresh)
            try:
                done = 0
                while done < len(data):
                    done += os.write(self._file, data[done:])
                os.fsync(self._file)
            except OSError as error:
                os.ftruncate(self._file, size)
                for event in fresh:
                    self._ids.pop(event.id or "", None)
                raise TalosError(f"{self.path} could not be written ({error.strerror})") from error
        return fresh

    def close(self) -> None:
        """Close the file."""
        self._reader.close()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _remember(self, events: Sequence[Event]) -> None:
        for event in events:
            if event.id is not None:
                self._ids[event.id] = None
        while len(self._ids) > _REMEMBERED:
            self._ids.popitem(last=False)

    def _drop_torn_line(self) -> None:
        """Cut off what a process that died left after the last line."""
        size = end = os.fstat(self._file).st_size
        while end > 0:
            start = max(0, end - 4096)
            block = os.pread(self._file, end - start, start)
            place = block.rfind(b"\n")
            if place >= 0:
                end = start + place + 1
                break
            end = start
        if end < size:
            os.ftruncate(self._file, end)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._lock:
            fcntl.flock(self._file, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(self._file, fcntl.LOCK_UN)


def is_log(path: Path) -> bool:
    """Whether a file begins like a log of feedback."""
    try:
        with path.open("rb") as file:
            first = file.readline(1 << 16)
    except OSError:
        return False
    return first.startswith(b'{"user":') and (not first.endswith(b"\n") or Event.parse(first) is not None)


def read_log(path: Path) -> pl.DataFrame:
    """The events of a log as a table: user, item, timestamp; a line without its end is left out.

    Ids of users and items are integers if all of them are, else strings.

    Raises:
        DataError: the file is not a log of feedback, or has no events.
    """
    try:
        reader = LogReader(path)
    except OSError as error:
        raise DataError(f"cannot be read ({error.strerror})", where=str(path)) from None
    try:
        events = reader.read()
    finally:
        reader.close()
    if not events:
        raise DataError("has no events", where=str(path), expected="a log of feedback")
    if reader.bad_lines:
        what = f"{reader.bad_lines:,} lines that are not events"
        raise DataError(what, where=str(path), expected="a log of feedback")

    def ids(name: str) -> pl.Series:
        values = [getattr(event, name) for event in events]
        whole = all(isinstance(value, int) for value in values)
        return pl.Series(name, values if whole else [str(value) for value in values])

    stamps = pl.Series("timestamp", [event.timestamp for event in events], dtype=pl.Float64)
    return pl.DataFrame([ids("user"), ids("item"), stamps])
