"""Reads a table or the rows of one query from a SQLite file or a PostgreSQL server, and never writes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl

from talos.checks import require
from talos.data.databases import SQLITE_ERRORS, DatabaseURL, connect_postgres, quoted
from talos.data.options import SourceOptions
from talos.data.read.clean import polars_errors
from talos.data.read.frames import SAMPLED, Typed
from talos.data.read.text import File
from talos.errors import DataError, Option, first_line, nearest

__all__ = ["Database"]

# Functions with side effects cannot hide in the views of a stranger's file; types and rows are those of one moment.
_SQLITE_SESSION = "PRAGMA query_only = ON; PRAGMA trusted_schema = OFF; BEGIN"
# Of the session, so that no transaction in it can write, whoever begins it.
_POSTGRES_SESSION = "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY"
_SQLITE_TABLES = (
    "SELECT name FROM sqlite_master WHERE type != 'index' AND name NOT GLOB 'sqlite_*' ORDER BY 1"
)
_POSTGRES_TABLES = (
    "SELECT table_name FROM information_schema.tables "
    "WHERE table_schema = ANY (current_schemas(false)) ORDER BY table_name"
)


class Database(Typed):
    """The rows of a table or of one query, each pass in a session that is read-only by its settings.

    Args:
        url: `sqlite:///FILE` or `postgresql://…`, which may have `table=` or `query=` in it.
        options: `query` is SQL of one statement, `table` the name of a table; each instead of that of the URL. One of
            them is needed for a database with several tables.
        wanted: the columns to look for.
    """

    def __init__(self, url: str, options: SourceOptions, wanted: Mapping[str, str | None]) -> None:
        self._url = DatabaseURL.parse(url)
        self._query, self._table = options.query or self._url.query, options.table or self._url.table
        self._tables: list[str] = []
        named = ", query" if self._query else f", table {self._table}" if self._table else ""
        # PostgreSQL's simple protocol would run several statements, one of which might end the transaction; a prepared
        # statement is one. SQLite never runs more.
        self._one_statement: dict[str, Any] = {} if self._url.is_sqlite else {"prepare": True}
        super().__init__(File(Path(), self._url.shown + named, options.max_bytes), options, wanted)

    def open(self) -> None:
        """Find the columns by the first rows; values of several types become one that holds them all."""
        with self._session() as connection:
            cursor = connection.cursor()
            cursor.execute(f"SELECT * FROM {self._rows} LIMIT {SAMPLED}", **self._one_statement)
            names = [column[0] for column in cursor.description]
            rows = cursor.fetchall() or [(None,) * len(names)]
            columns = zip(names, zip(*rows, strict=True), strict=True)
            sample = pl.DataFrame({name: pl.Series(values, strict=False) for name, values in columns})
        self.find(sample, "sqlite" if self._url.is_sqlite else "postgresql")

    def frames(self, columns: Sequence[str], rows: int) -> Iterator[pl.DataFrame]:
        """Some columns of all rows, at most `rows` rows at a time; no frame if there are no rows."""
        with self._session() as connection:
            yield from pl.read_database(
                f"SELECT {', '.join(map(quoted, columns))} FROM {self._rows}",
                connection,
                iter_batches=True,
                batch_size=rows,
                infer_schema_length=None,
                execute_options=self._one_statement,
            )

    @property
    def _rows(self) -> str:
        """The rows for FROM; the line break ends a comment at the end of the query."""
        if self._query:
            return f"({self._query.strip().rstrip(';')}\n) AS talos_rows"
        names = [self._table] if self._table else self._tables
        require(
            len(names) == 1,
            f"tables {', '.join(names)}" if names else "no table",
            where=self.file.name,
            expected="?table=NAME at the end of the URL",
            option=Option("query", "SQL", "reads the rows of a query"),
            error=DataError,
        )
        return quoted(names[0])

    @contextmanager
    def _session(self) -> Iterator[Any]:
        """A connection that cannot write; what the driver raises, or polars for its values, becomes a `DataError`."""
        connection: Any = None
        try:
            if self._url.is_sqlite:
                path = self._url.sqlite_path or Path()
                require(
                    path.is_file(),
                    "no such file",
                    where=self._url.shown,
                    expected="sqlite:///FILE",
                    error=DataError,
                )
                # The address creates no file. A pass that is given up may be closed on another thread.
                address = f"{path.absolute().as_uri()}?mode=ro"
                connection = sqlite3.connect(address, uri=True, check_same_thread=False)
                connection.executescript(_SQLITE_SESSION)
            else:
                connection = connect_postgres(self._url, "reading from", autocommit=True)
                connection.execute(_POSTGRES_SESSION)
                connection.autocommit, connection.read_only = False, True
            tables = _SQLITE_TABLES if self._url.is_sqlite else _POSTGRES_TABLES
            self._tables = [str(name) for (name,) in connection.execute(tables).fetchall()]
            with polars_errors(self.file.name, "columns of numbers, texts or dates", RuntimeError):
                yield connection  # a decimal that is too long is a RuntimeError
        except (*SQLITE_ERRORS, getattr(connection, "Error", sqlite3.Error)) as error:
            raise DataError(
                f"the database says: {first_line(error)}",
                where=self.file.name,
                expected="a database and a query that it can run",
                hint=nearest(self._table, self._tables) if self._table and self._tables else None,
            ) from error
        finally:
            if connection is not None:
                connection.close()
