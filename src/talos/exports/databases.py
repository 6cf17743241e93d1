"""Lists in a database table: SQLite by the standard library, PostgreSQL by the extra `postgres`.

Rows are collected in the table `NAME__talos`, and `NAME__talos_progress` counts the users in it. Both change in one
transaction, so that a restart neither loses nor repeats a row. When all users are there, one last transaction renames
the table: readers see the old table or the complete new one.
"""

from __future__ import annotations

import json
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import polars as pl

from talos.data.databases import SQLITE_ERRORS, DatabaseURL, connect_postgres, quoted
from talos.errors import ArgumentError, DataError, TalosError, first_line

if TYPE_CHECKING:
    from talos.exports.lists import ListSettings

__all__ = ["PostgresSink", "SqliteSink"]

_DEFAULT_TABLE = "recommendations"
# PostgreSQL truncates longer names silently, and then the names of our three tables would be the same.
_LONGEST_NAME = 63 - len("__talos_progress")


class _DatabaseSink(ABC):
    """A table of lists; a subclass knows its database's driver."""

    types: tuple[str, str, str, str]  # SQL types of text, integers and scores, and options after the columns
    mark: str  # the placeholder of a value in a statement

    def __init__(
        self, url: str, settings: ListSettings, overwrite: bool, *, integers: tuple[bool, bool]
    ) -> None:
        self.url = DatabaseURL.parse(url)
        table = _DEFAULT_TABLE if self.url.table is None else self.url.table
        self.settings, self.overwrite, self.integers = settings, overwrite, integers
        self.users = self.written = 0
        self.shown = self.url.shown
        schema, dot, bare = table.rpartition(".")
        self.table, self.prefix = bare, f"{quoted(schema)}." if dot else ""
        self.name = f"{self.shown}, table {bare}"  # without the password
        if not 1 <= len(bare.encode()) <= _LONGEST_NAME or "\0" in table or (dot and not schema):
            raise ArgumentError(
                f"table {table!r}", where=self.shown, expected=f"a name of 1 to {_LONGEST_NAME} bytes"
            )
        self.final = self.prefix + quoted(bare)
        self.staging = self.prefix + quoted(f"{bare}__talos")
        self.progress = self.prefix + quoted(f"{bare}__talos_progress")
        self.connection: Any = None
        self.disk_failed = False

    def begin(self) -> tuple[int, int]:
        """Create the tables, or count what an interrupted export has left in them."""
        self.connection = self._connect()
        with self._explained(DataError, ""), self._transaction():
            self._refuse_existing()
            found = self._read_progress()
            if found is not None:
                if self.settings.same_as(found, name=self.name, overwrite=self.overwrite):
                    return self.users, self.written
                self._run(f"DROP TABLE IF EXISTS {self.staging}")
                self._run(f"DROP TABLE {self.progress}")
            text, integer, score, tail = self.types
            user, item = (integer if whole else text for whole in self.integers)
            self._run(
                f'CREATE TABLE {self.staging} ("user_id" {user} NOT NULL, "item_id" {item} NOT NULL, '
                f'"score" {score} NOT NULL, "rank" INTEGER NOT NULL, PRIMARY KEY ("user_id", "rank")) {tail}'
            )
            self._run(f"CREATE TABLE {self.progress} (job {text}, users {integer}, written {integer})")
            job = json.dumps(asdict(self.settings))
            self._run(f"INSERT INTO {self.progress} VALUES ({self.mark}, 0, 0)", (job,))
        self.users = self.written = 0
        return 0, 0

    def add(self, rows: pl.DataFrame, users: int) -> None:
        """Insert rows and count their users, in one transaction."""
        written = self.written + len(rows)
        with self._explained(TalosError, "; run it again to continue"), self._transaction():
            moved = self._run(
                f"UPDATE {self.progress} SET users = {self.mark}, written = {self.mark} WHERE users = {self.mark}",
                (users, written, self.users),
            )
            if moved.rowcount != 1:
                raise TalosError(f"another process is writing {self.name}")
            self._insert(rows)
        self.users, self.written = users, written

    def finish(self) -> None:
        """Drop the old table and rename the new one, in one transaction."""
        with self._explained(TalosError, "; run it again to continue"), self._transaction():
            self._refuse_existing()
            self._run(f"DROP TABLE IF EXISTS {self.final}")
            self._run(f"ALTER TABLE {self.staging} RENAME TO {quoted(self.table)}")
            self._run(f"DROP TABLE {self.progress}")

    def close(self) -> None:
        """Close the connection; an open transaction is rolled back."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def _refuse_existing(self) -> None:
        if not self.overwrite and self._exists(self.final):
            raise ArgumentError("exists", where=self.name, expected="a new table", hint="or overwrite=True")

    def _read_progress(self) -> dict[str, Any] | None:
        """The settings of an interrupted export; empty if they cannot be read."""
        if not self._exists(self.progress):
            return None
        row = self._run(f"SELECT job, users, written FROM {self.progress}").fetchone()
        try:
            text, self.users, self.written = row
            job = json.loads(text)
        except (TypeError, ValueError, RecursionError):  # not written by us, or changed since
            return {}
        return job if isinstance(job, dict) else {}

    @contextmanager
    def _explained(self, kind: type[TalosError], advice: str) -> Iterator[None]:
        try:
            yield
        except self._failures() as error:
            self.disk_failed = _is_of_the_disk(error)
            kind = TalosError if self.disk_failed else kind  # which is not the user's to mend
            raise kind(f"{self.name}: the database says: {first_line(error)}{advice}") from error

    def _run(self, statement: str, values: tuple[Any, ...] = ()) -> Any:
        return self.connection.execute(statement, values)

    @abstractmethod
    def _connect(self) -> Any:
        """A connection."""

    @abstractmethod
    def _failures(self) -> tuple[type[Exception], ...]:
        """The exceptions that the driver raises."""

    @abstractmethod
    def _transaction(self) -> AbstractContextManager[Any]:
        """A block that is committed as a whole or rolled back."""

    @abstractmethod
    def _exists(self, table: str) -> bool:
        """Whether there is a table or view with this (quoted) name."""

    @abstractmethod
    def _insert(self, rows: pl.DataFrame) -> None:
        """Insert rows into the staging table, in the driver's fastest way."""


class SqliteSink(_DatabaseSink):
    """A table in a SQLite file, which is created if it does not exist: `sqlite:///FILE?table=NAME`."""

    # Rows come in the order of the primary key, so storing them by it costs nothing.
    types = ("TEXT", "INTEGER", "REAL", "WITHOUT ROWID")
    mark = "?"
    _created = False  # whether there was no such file before

    def _connect(self) -> Any:
        path = self.url.sqlite_path
        if path is None:
            raise ArgumentError(f"{self.shown!r} names no file", where="out", expected="sqlite:///FILE")
        if self.prefix:
            raise ArgumentError("a schema", where=self.shown, expected="a table's name without a dot")
        if not path.parent.is_dir():
            raise ArgumentError("no such folder", where=str(path.parent), expected="an existing folder")
        self._created = not path.exists()
        with self._explained(DataError, ""):
            connection = sqlite3.connect(path, timeout=30, isolation_level=None)
            # connecting alone does not open the file
            connection.execute("SELECT 1 FROM sqlite_master").fetchone()
            return connection

    def close(self) -> None:
        """Close the connection; a file that was created here, on a disk too full for its first page, is removed."""
        super().close()
        path = self.url.sqlite_path
        mine = self._created and self.disk_failed
        if mine and path is not None and path.is_file() and path.stat().st_size == 0:
            path.unlink()

    def _failures(self) -> tuple[type[Exception], ...]:
        return SQLITE_ERRORS

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._run("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            if self.connection.in_transaction:  # if the disk is full, SQLite has rolled back already
                self._run("ROLLBACK")
            raise
        self._run("COMMIT")

    def _exists(self, table: str) -> bool:
        bare = table[1:-1].replace('""', '"')
        found = self._run("SELECT 1 FROM sqlite_master WHERE lower(name) = lower(?)", (bare,))
        return found.fetchone() is not None

    def _insert(self, rows: pl.DataFrame) -> None:
        self.connection.executemany(f"INSERT INTO {self.staging} VALUES (?, ?, ?, ?)", rows.iter_rows())


def _is_of_the_disk(error: Exception) -> bool:
    """Whether a database says that its disk is full or fails: by SQLite's result code or PostgreSQL's SQLSTATE."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the rest says which operation it was
    state = getattr(error, "sqlstate", None) or ""
    return code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR) or state.startswith(("53", "58"))


class PostgresSink(_DatabaseSink):
    """A table of a PostgreSQL server: `postgresql://USER@HOST/DATABASE?table=NAME` or `?table=SCHEMA.NAME`."""

    types = ("TEXT", "BIGINT", "REAL", "")
    mark = "%s"

    def _connect(self) -> Any:
        return connect_postgres(self.url, "writing to", autocommit=True)

    def _failures(self) -> tuple[type[Exception], ...]:
        import psycopg

        return (psycopg.Error,)

    def _transaction(self) -> AbstractContextManager[Any]:
        return self.connection.transaction()  # type: ignore[no-any-return]

    def _exists(self, table: str) -> bool:
        return self._run("SELECT to_regclass(%s)", (table,)).fetchone()[0] is not None

    def _insert(self, rows: pl.DataFrame) -> None:
        # everything but numbers is quoted, because an empty field without quotes would become NULL
        text = rows.write_csv(include_header=False, quote_style="non_numeric")
        with self.connection.cursor().copy(f"COPY {self.staging} FROM STDIN (FORMAT csv)") as copy:
            copy.write(text)
