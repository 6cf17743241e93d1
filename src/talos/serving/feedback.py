"""The log of feedback: one SQLite file that every worker writes to and reads from.

The table `events` has the columns `number`, `user`, `item`, `timestamp` and `id`; ids of users and items are text. In
WAL mode with `synchronous=FULL` a transaction is on the disk before it is acknowledged, and readers do not wait for
writers. Events are read by user when asked for, so memory does not grow with the log.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import polars as pl

from talos.data.interactions import Interactions
from talos.data.open import read
from talos.data.options import SourceOptions
from talos.data.vocabulary import spelled_as
from talos.errors import DataError, TalosError
from talos.serving.schemas import Event, IdField

__all__ = ["FeedbackLog", "is_log", "read_events", "read_log"]

_KIND = 0x74616C6F  # the application id of the file: "talo"
_BLOCK = 1000
# AUTOINCREMENT: numbers of deleted events are not given again, so "newer than number N" stays true.
_SCHEMA = f"""
BEGIN IMMEDIATE;
PRAGMA application_id = {_KIND};
CREATE TABLE IF NOT EXISTS events (
    number INTEGER PRIMARY KEY AUTOINCREMENT, user TEXT NOT NULL, item TEXT NOT NULL, timestamp REAL NOT NULL, id TEXT
);
CREATE INDEX IF NOT EXISTS events_by_user ON events (user);
CREATE UNIQUE INDEX IF NOT EXISTS events_by_id ON events (id) WHERE id IS NOT NULL;
COMMIT;
"""
_INSERT = "INSERT INTO events (user, item, timestamp, id) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
_OF_USER = "SELECT item, timestamp FROM events WHERE user = ? ORDER BY number"
_NEWER = """
SELECT number, item, NOT EXISTS (SELECT 1 FROM events AS b WHERE b.user = a.user AND b.number < a.number)
FROM events AS a WHERE number > ? ORDER BY number LIMIT ?
"""


class FeedbackLog:
    """The log, for several threads and processes at a time.

    Args:
        path: the file; created if it does not exist.

    Raises:
        DataError: the file cannot be written, or is something else.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     log = FeedbackLog(Path(folder, "log.db"))
    ...     new = [len(log.append([Event("ann", "tea", 1.0, "e1")])) for _ in range(2)]
    ...     found = log.events_of(["ann"])
    ...     log.close()
    >>> new, found
    ([1, 0], [(0, 'tea', 1.0)])
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writing, self._reading = threading.Lock(), threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # two connections: reads do not wait while a write is synced
            self._writer, self._reader = _connect(path, "rwc"), _connect(path, "rw")
        except (OSError, sqlite3.Error) as error:
            raise _unusable(path, "written", error) from None

    def append(self, events: Sequence[Event]) -> list[Event]:
        """Write events to the disk; those whose id is in the log already are left out. Returns the others.

        Raises:
            TalosError: the disk did not take them; the log is as it was before.
        """
        try:
            with self._writing, self._writer as link:
                link.execute("BEGIN IMMEDIATE")
                now = time.time()
                return [one for one in events if link.execute(_INSERT, _row(one, now)).rowcount]
        except sqlite3.Error as error:
            raise TalosError(f"{self.path} could not be written ({error})") from error

    def events_of(self, users: Sequence[IdField | None]) -> list[tuple[int, str, float]]:
        """The events of some users, in the order of writing for each: position in `users`, item, time."""
        with self._reading:  # a statement that another thread is about to step would be bound anew
            return [
                (place, item, seconds)
                for place, user in enumerate(users)
                if user is not None
                for item, seconds in self._reader.execute(_OF_USER, (str(user),))
            ]

    def newer(self, number: int) -> list[tuple[int, str, bool]]:
        """Of the next thousand events: number, item, and whether it is the first one of its user."""
        with self._reading:
            return self._reader.execute(_NEWER, (number, _BLOCK)).fetchall()

    def close(self) -> None:
        """Close the file."""
        self._reader.close()
        self._writer.close()


def _row(event: Event, now: float) -> tuple[str, str, float, str | None]:
    return str(event.user), str(event.item), now if event.timestamp is None else event.timestamp, event.id


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    link = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}",
        uri=True, timeout=10.0, isolation_level=None, check_same_thread=False,
    )  # fmt: skip
    try:
        (kind,), (version,) = (
            link.execute(f"PRAGMA {name}").fetchone() for name in ("application_id", "schema_version")
        )
        if kind != _KIND and (version or mode != "rwc"):
            raise sqlite3.DatabaseError("another kind of file")
        if kind != _KIND:
            link.executescript(_SCHEMA)
        if mode != "ro":
            link.execute("PRAGMA journal_mode = WAL")
            link.execute("PRAGMA synchronous = FULL")
    except sqlite3.Error:
        link.close()
        raise
    return link


def _unusable(path: Path, how: str, error: Exception) -> DataError:
    reason = (isinstance(error, OSError) and error.strerror) or error
    return DataError(f"cannot be {how} ({reason})", where=str(path), expected="a log of feedback")


def is_log(path: Path) -> bool:
    """Whether a file is a log of feedback, by its first bytes."""
    try:
        with path.open("rb") as file:
            head = file.read(72)
    except OSError:
        return False
    return head.startswith(b"SQLite format 3\0") and head[68:] == _KIND.to_bytes(4, "big")


def read_log(path: Path) -> pl.DataFrame:
    """The events of a log as a table of text ids and times: user, item, timestamp.

    Raises:
        DataError: the file is not a log of feedback, or has no events.
    """
    try:
        with closing(_connect(path, "ro")) as link:
            rows = link.execute("SELECT user, item, timestamp FROM events ORDER BY number").fetchall()
    except sqlite3.Error as error:
        raise _unusable(path, "read", error) from None
    if not rows:
        raise DataError("has no events", where=str(path), expected="a log of feedback")
    return pl.DataFrame(
        rows, schema={"user": pl.String, "item": pl.String, "timestamp": pl.Float64}, orient="row"
    )


def read_events(path: Path, train: Interactions, options: SourceOptions | None = None) -> Interactions:
    """Events for `Recommender.partial_fit`, from a log of feedback or any file of interactions.

    Args:
        path: the log or file.
        train: the interactions of the model, whose types the ids get.
        options: how to read a file that is no log; a log is read as one unless some differ from the defaults.

    Raises:
        DataError: the file cannot be read, or has ids that the model cannot have.
    """
    given = {} if options is None else options.given()
    if not given and is_log(path):
        table = read_log(path).rename({"user": "user_id", "item": "item_id"})
        stamps: Any = table["timestamp"].to_numpy()
    else:
        data = read(path, **given)
        table, stamps = data.to_polars(), data.timestamps
    ids = []
    for name, known in (("user", train.user_ids.ids), ("item", train.item_ids.ids)):
        cast = spelled_as(table[f"{name}_id"], known.dtype)
        if cast.null_count():
            raise DataError(
                f"{name} {table[f'{name}_id'].filter(cast.is_null())[0]!r}",
                where=str(path),
                expected="integer ids, like those of the run",
            )
        ids.append(cast)
    return Interactions.from_ids(*ids, timestamps=stamps)
