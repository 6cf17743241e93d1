"""Lists into a database table: SQLite by the standard library, PostgreSQL by the extra `postgres`.

Rows are collected in `NAME__talos`, and `NAME__talos_progress` says how many users are in it. Both change in the same
transaction, so that a restart neither loses nor doubles a row. When all users are there, one last transaction
gives the table its name: readers see the table as it was before, or the whole new one.
"""

from __future__ import annotations

import json
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import polars as pl

from talos.data.databases import SQLITE_ERRORS, DatabaseURL, connect_postgres, quoted
from talos.errors import ArgumentError, DataError, TalosError, first_line

if TYPE_CHECKING:
    from talos.exports.lists import Job

__all__ = ["PostgresSink", "SqliteSink"]

_DEFAULT_TABLE = "recommendations"
# PostgreSQL cuts longer names off without a word, and ours must stay apart.
_LONGEST_NAME = 63 - len("__talos_progress")


class _DatabaseSink(ABC):
    """What both databases have in common; a subclass knows its driver."""

    types: tuple[str, str, str, str]  # of text, integers, scores, and what follows the table's columns
    mark: str  # stands for a value in a statement

    def __init__(self, url: str, job: Job, overwrite: bool, *, integers: tuple[bool, bool]) -> None:
        self.url = DatabaseURL.parse(url)
        table = _DEFAULT_TABLE if self.url.table is None else self.url.table
        self.job, self.overwrite, self.integers = job, overwrite, integers
        self.users = self.written = 0
        self.shown = self.url.shown
        schema, dot, bare = table.rpartition(".")
        self.table, self.prefix = bare, f"{quoted(schema)}." if dot else ""
        if not 1 <= len(bare.encode()) <= _LONGEST_NAME or "\0" in table or (dot and not schema):
            raise ArgumentError(
                f"table {table!r}", where=self.shown, expected=f"a name of 1 to {_LONGEST_NAME} bytes"
            )
        self.final = self.prefix + quoted(bare)
        self.staging = self.prefix + quoted(f"{bare}__talos")
        self.progress = self.prefix + quoted(f"{bare}__talos_progress")
        self.connection: Any = None

    @property
    def name(self) -> str:
        """The address without a password, and the table."""
        return f"{self.shown}, table {self.table}"

    def begin(self) -> tuple[int, int]:
        """Make the tables, or find out how far they are."""
        self.connection = self._connect()
        with self._explained(DataError, ""), self._transaction():
            self._refuse_existing()
            begun = self._begun()
            if begun is not None:
                difference = self.job.difference(begun)
                if difference is None:
                    return self.users, self.written
                if not self.overwrite:
                    raise DataError(
                        f"was begun with {difference}",
                        where=self.name,
                        expected="the same model and options",
                        hint="start anew with --overwrite",
                    )
                self._run(f"DROP TABLE IF EXISTS {self.staging}")
                self._run(f"DROP TABLE {self.progress}")
            text, integer, score, tail = self.types
            user, item = (integer if whole else text for whole in self.integers)
            self._run(
                f'CREATE TABLE {self.staging} ("user_id" {user} NOT NULL, "item_id" {item} NOT NULL, '
                f'"score" {score} NOT NULL, "rank" INTEGER NOT NULL, PRIMARY KEY ("user_id", "rank")) {tail}'
            )
            self._run(f"CREATE TABLE {self.progress} (job {text}, users {integer}, written {integer})")
            self._run(
                f"INSERT INTO {self.progress} VALUES ({self.mark}, 0, 0)", (json.dumps(self.job.as_dict()),)
            )
        self.users = self.written = 0
        return 0, 0

    def add(self, rows: pl.DataFrame, users: int) -> None:
        """One transaction: the rows, and how far they reach."""
        written = self.written + len(rows)
        with self._explained(TalosError, "; the same command goes on from here"), self._transaction():
            moved = self._run(
                f"UPDATE {self.progress} SET users = {self.mark}, written = {self.mark} WHERE users = {self.mark}",
                (users, written, self.users),
            )
            if moved.rowcount != 1:
                raise TalosError(f"another process is writing {self.name}")
            self._insert(rows)
        self.users, self.written = users, written

    def finish(self) -> None:
        """One transaction: the table gets its name, and what was there before goes."""
        with self._explained(TalosError, "; the same command goes on from here"), self._transaction():
            self._refuse_existing()
            self._run(f"DROP TABLE IF EXISTS {self.final}")
            self._run(f"ALTER TABLE {self.staging} RENAME TO {quoted(self.table)}")
            self._run(f"DROP TABLE {self.progress}")

    def close(self) -> None:
        """Hang up; an open transaction is undone."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def _refuse_existing(self) -> None:
        if not self.overwrite and self._exists(self.final):
            raise ArgumentError("exists", where=self.name, expected="a new table", hint="or --overwrite")

    def _begun(self) -> dict[str, Any] | None:
        if not self._exists(self.progress):
            return None
        row = self._run(f"SELECT job, users, written FROM {self.progress}").fetchone()
        try:
            text, self.users, self.written = row
            job = json.loads(text)
        except (TypeError, ValueError):  # somebody has been at it: not what we began
            return {}
        return job if isinstance(job, dict) else {}

    @contextmanager
    def _explained(self, kind: type[TalosError], advice: str) -> Iterator[None]:
        try:
            yield
        except self._failures() as error:
            raise kind(f"{self.name}: the database says: {first_line(error)}{advice}") from error

    def _run(self, statement: str, values: tuple[Any, ...] = ()) -> Any:
        return self.connection.execute(statement, values)

    @abstractmethod
    def _connect(self) -> Any:
        """A connection."""

    @abstractmethod
    def _failures(self) -> tuple[type[Exception], ...]:
        """What the driver raises."""

    @abstractmethod
    def _transaction(self) -> AbstractContextManager[Any]:
        """A block that happens as a whole or not at all."""

    @abstractmethod
    def _exists(self, table: str) -> bool:
        """Whether there is a table or view of this (quoted) name."""

    @abstractmethod
    def _insert(self, rows: pl.DataFrame) -> None:
        """The driver's fastest way in."""


class SqliteSink(_DatabaseSink):
    """A table in a SQLite file, which is made if it is not there: `sqlite:///FILE?table=NAME`."""

    # Rows come in the order of the key, so they may as well be stored by it.
    types = ("TEXT", "INTEGER", "REAL", "WITHOUT ROWID")
    mark = "?"

    def _connect(self) -> Any:
        path = self.url.sqlite_path
        if path is None:
            raise ArgumentError(f"{self.shown!r} names no file", where="out", expected="sqlite:///FILE")
        if self.prefix:
            raise ArgumentError("a schema", where=self.shown, expected="a table's name without a dot")
        if not path.parent.is_dir():
            raise ArgumentError("no such folder", where=str(path.parent), expected="an existing folder")
        with self._explained(DataError, ""):
            connection = sqlite3.connect(path, timeout=30, isolation_level=None)
            connection.execute("SELECT 1 FROM sqlite_master").fetchone()  # opens it, or says what is wrong
            return connection

    def _failures(self) -> tuple[type[Exception], ...]:
        return SQLITE_ERRORS

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._run("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            if self.connection.in_transaction:  # SQLite itself has undone it where the disk is full
                self._run("ROLLBACK")
            raise
        self._run("COMMIT")

    def _exists(self, table: str) -> bool:
        bare = table[1:-1].replace('""', '"')
        found = self._run("SELECT 1 FROM sqlite_master WHERE lower(name) = lower(?)", (bare,)).fetchone()
        return found is not None

    def _insert(self, rows: pl.DataFrame) -> None:
        self.connection.executemany(f"INSERT INTO {self.staging} VALUES (?, ?, ?, ?)", rows.iter_rows())


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
        transaction: AbstractContextManager[Any] = self.connection.transaction()
        return transaction

    def _exists(self, table: str) -> bool:
        return self._run("SELECT to_regclass(%s)", (table,)).fetchone()[0] is not None

    def _insert(self, rows: pl.DataFrame) -> None:
        # quoted wherever it is not a number: an empty id must not become NULL
        text = rows.write_csv(include_header=False, quote_style="non_numeric")
        with self.connection.cursor().copy(f"COPY {self.staging} FROM STDIN (FORMAT csv)") as copy:
            copy.write(text)
