"""Reads a table or the rows of one query from a SQLite file or a PostgreSQL server, and never writes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any, Self

import polars as pl

from talos.data.databases import SQLITE_ERRORS, DatabaseURL, connect_postgres, quoted
from talos.errors import DataError, Option, first_line, nearest

__all__ = ["Database"]

_SAMPLE = 100
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
_SQLITE_TYPES = {
    "": pl.Null,
    "integer": pl.Int64,
    "real": pl.Float64,
    "integer, real": pl.Float64,
    "text": pl.String,
    "blob": pl.Binary,
}


class Database:
    """The rows of a table or of a query, in a session that is read-only by its settings; open within a `with` block.

    Attributes:
        where: the database, and the table or query that was named; what messages call it, without the password.
        format: "sqlite" or "postgresql".

    Args:
        url: `sqlite:///FILE` or `postgresql://…`, which may have `table=` or `query=` in it.
        query: SQL of one statement, instead of that of the URL.
        table: name of the table, instead of that of the URL; needed for a database with several tables.
    """

    def __init__(self, url: str, *, query: str | None = None, table: str | None = None) -> None:
        self._url = DatabaseURL.parse(url)
        self._query, self._table = query or self._url.query, table or self._url.table
        named = ", query" if self._query else f", table {self._table}" if self._table else ""
        self.where, self.format = self._url.shown + named, "sqlite" if self._url.is_sqlite else "postgresql"
        # PostgreSQL's simple protocol would run several statements, one of which might end the transaction; a prepared
        # statement is one. SQLite never runs more.
        self._one_statement = {} if self._url.is_sqlite else {"prepare": True}
        self._connection: Any = None

    def __enter__(self) -> Self:
        with self._errors():
            self._connection = self._connect()
            if self._url.is_sqlite:
                self._connection.executescript(_SQLITE_SESSION)
            else:
                self._connection.execute(_POSTGRES_SESSION)
                self._connection.autocommit, self._connection.read_only = False, True
        return self

    def __exit__(self, *error: object) -> None:
        self._connection.close()

    def sample(self) -> pl.DataFrame:
        """All columns of the first rows, at most 100; values of several types become one that holds them all."""
        with self._errors():
            cursor = self._connection.cursor()
            cursor.execute(f"SELECT * FROM {self._rows} LIMIT {_SAMPLE}", **self._one_statement)
            names = [column[0] for column in cursor.description]
            rows = cursor.fetchall() or [(None,) * len(names)]
            columns = zip(names, zip(*rows, strict=True), strict=True)
            return pl.DataFrame({name: pl.Series(values, strict=False) for name, values in columns})

    def frames(self, columns: Sequence[str], rows: int) -> Iterator[pl.DataFrame]:
        """Some columns of all rows, at most `rows` rows at a time; no frame if there are no rows."""
        with self._errors():
            yield from pl.read_database(
                f"SELECT {', '.join(map(quoted, columns))} FROM {self._rows}",
                self._connection,
                iter_batches=True,
                batch_size=rows,
                schema_overrides=self._types(columns) if self._url.is_sqlite else None,
                infer_schema_length=None,
                execute_options=self._one_statement,
            )

    def _types(self, columns: Sequence[str]) -> dict[str, Any]:
        """The types of columns in SQLite, where a column may hold values of any type."""
        kinds = ", ".join(f"group_concat(DISTINCT typeof({quoted(name)}))" for name in columns)
        found = self._connection.execute(f"SELECT {kinds} FROM {self._rows}").fetchone()
        types = {}
        for name, kinds in zip(columns, found, strict=True):
            kind = ", ".join(sorted({*(kinds or "").split(",")} - {"", "null"}))
            if kind not in _SQLITE_TYPES:
                where = f"{self.where}, column {name!r}"
                raise DataError(f"mixed types {kind}", where=where, expected="values of one type")
            types[name] = _SQLITE_TYPES[kind]
        return types

    @cached_property
    def _rows(self) -> str:
        """The rows for FROM; the line break ends a comment at the end of the query."""
        query = self._query or f"SELECT * FROM {quoted(self._table or self._only_table())}"
        return f"({query.strip().rstrip(';')}\n) AS talos_rows"

    def _only_table(self) -> str:
        names = self._table_names()
        if len(names) == 1:
            return names[0]
        raise DataError(
            f"tables {', '.join(names)}" if names else "no table",
            where=self.where,
            expected="?table=NAME at the end of the URL",
            option=Option("query", "SQL", "reads the rows of a query"),
        )

    def _table_names(self) -> list[str]:
        tables = _SQLITE_TABLES if self._url.is_sqlite else _POSTGRES_TABLES
        return [str(name) for (name,) in self._connection.execute(tables).fetchall()]

    def _connect(self) -> Any:
        """A connection that cannot write and does not create a file that is missing."""
        if not self._url.is_sqlite:
            return connect_postgres(self._url, "reading from", autocommit=True)
        path = self._url.sqlite_path
        if path is None:
            raise DataError(f"{self._url.shown!r} names no file", where="source", expected="sqlite:///FILE")
        if not path.is_file():
            raise DataError("no such file", where=self._url.shown, expected="a SQLite database")
        return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turns what the driver raises, and what polars raises for the driver's values, into a `DataError`."""
        try:
            yield
        except (*SQLITE_ERRORS, getattr(self._connection, "Error", sqlite3.Error)) as error:
            hint = None
            if self._table and self._connection is not None:
                with suppress(*SQLITE_ERRORS, type(error)):
                    self._connection.rollback()  # PostgreSQL answers nothing more in a transaction that failed
                    hint = nearest(self._table, self._table_names())
            what, expected = (
                f"the database says: {first_line(error)}",
                "a database and a query that it can run",
            )
            raise DataError(what, where=self.where, expected=expected, hint=hint) from error
        except (
            pl.exceptions.PolarsError,
            RuntimeError,
        ) as error:  # of a decimal too long polars raises the latter
            what, expected = f"values that make no column ({first_line(error)})", "numbers, texts or dates"
            raise DataError(what, where=self.where, expected=expected) from error
