"""Read interactions from a SQLite file or a PostgreSQL server."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import polars as pl

from talos.data.databases import SQLITE_ERRORS, DatabaseURL, connect_postgres, quoted
from talos.data.readers.cleaning import CleanTable
from talos.data.readers.columns import find_columns
from talos.data.readers.frames import from_frame
from talos.data.readers.options import ReadOptions
from talos.errors import DataError, first_line, nearest

__all__ = ["read_database"]

_ROWS_AT_ONCE = 100_000
_SQLITE_TABLES = (
    "SELECT name FROM sqlite_master WHERE type != 'index' AND name NOT GLOB 'sqlite_*' ORDER BY 1"
)
_POSTGRES_TABLES = (
    "SELECT table_name FROM information_schema.tables "
    "WHERE table_schema = ANY (current_schemas(false)) ORDER BY table_name"
)


def read_database(source: str, options: ReadOptions) -> CleanTable:
    """Read a table or the rows of a query; never writes, and never creates a missing file.

    The query is one statement, in a session that is read-only by its settings.
    """
    url = DatabaseURL.parse(source)
    query, table = options.query or url.query, options.table or url.table
    with (_sqlite if url.is_sqlite else _postgres)(url) as database:
        if query is None:
            query = f"SELECT * FROM {quoted(table or database.only_table())}"
            where = f"{url.shown}, table {table}" if table else url.shown
        else:
            where = f"{url.shown}, query"
        query = query.strip().rstrip(";")
        names, _ = database.rows(f"SELECT * FROM ({query}) AS talos_rows LIMIT 0", table)
        chosen = [names[position] for position in find_columns(options.wanted, names, where).values()]
        needed = ", ".join(map(quoted, chosen))
        _, chunks = database.rows(f"SELECT {needed} FROM ({query}) AS talos_rows", table)
        columns: list[list[Any]] = [[] for _ in chosen]
        for chunk in chunks:
            for column, values in zip(columns, zip(*chunk, strict=True), strict=True):
                column.extend(values)
    frame = pl.DataFrame([_series(n, v, where) for n, v in zip(chosen, columns, strict=True)])
    return from_frame(frame, options, source=where, format=url.address.partition(":")[0])


def _series(name: str, values: list[Any], where: str) -> pl.Series:
    types = sorted({type(value).__name__ for value in values if value is not None})
    if types == ["float", "int"]:
        return pl.Series(name, values, dtype=pl.Float64, strict=False)
    if len(types) > 1:
        place = f"{where}, column {name!r}"
        raise DataError(f"mixed types {', '.join(types)}", where=place, expected="values of one type")
    try:
        return pl.Series(name, values, strict=True)
    except (pl.exceptions.PolarsError, TypeError, ValueError, OverflowError) as error:
        raise DataError(f"values of type {', '.join(types)}", where=f"{where}, column {name!r}") from error


@dataclass
class _Database:
    """Runs queries on one connection; what the driver raises becomes a `DataError`."""

    connection: Any  # of the driver
    shown: str  # the address, for messages
    failures: tuple[type[Exception], ...]  # what the driver raises
    tables: str  # the query that lists the tables
    one_statement: Mapping[str, Any]  # arguments of `execute` with which a second statement is an error

    def rows(self, query: str, table: str | None) -> tuple[list[str], Iterator[list[Any]]]:
        """The names of a query's columns, and its rows in chunks; `table` is for the hint if it does not exist."""
        cursor = self.connection.cursor()
        with self._errors(table):
            cursor.execute(query, **self.one_statement)
        return [column[0] for column in cursor.description or ()], self._chunks(cursor)

    def only_table(self) -> str:
        """The name of the only table."""
        names = self._table_names()
        if len(names) == 1:
            return names[0]
        found = f"tables {', '.join(names)}" if names else "no table"
        raise DataError(found, where=self.shown, expected="?table=NAME at the end of the URL, or query='SQL'")

    def _table_names(self) -> list[str]:
        with self._errors():
            self.connection.rollback()
            cursor = self.connection.cursor()
            cursor.execute(self.tables)
            return [str(row[0]) for row in cursor.fetchall()]

    def _chunks(self, cursor: Any) -> Iterator[list[Any]]:
        while True:
            with self._errors():
                chunk = cursor.fetchmany(_ROWS_AT_ONCE)
            if not chunk:
                return
            yield chunk

    @contextmanager
    def _errors(self, table: str | None = None) -> Iterator[None]:
        try:
            yield
        except self.failures as error:
            raise DataError(
                f"the database says: {first_line(error)}",
                where=self.shown,
                expected="a database and a query that it can run",
                hint=nearest(table, self._table_names()) if table else None,
            ) from error


@contextmanager
def _sqlite(url: DatabaseURL) -> Iterator[_Database]:
    path = url.sqlite_path
    if path is None:
        raise DataError(f"{url.shown!r} names no file", where="source", expected="sqlite:///FILE")
    if not path.is_file():
        raise DataError("no such file", where=url.shown, expected="a SQLite database")
    try:  # read-only, so that a wrong name does not make a new database
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    except SQLITE_ERRORS as error:
        raise DataError(
            f"cannot be opened ({error})", where=url.shown, expected="a SQLite database"
        ) from error
    with closing(connection):
        try:
            connection.execute("PRAGMA query_only = ON")
            # functions with side effects cannot hide in the views of a file that somebody else made
            connection.execute("PRAGMA trusted_schema = OFF")
        except SQLITE_ERRORS as error:
            raise DataError(f"the database says: {first_line(error)}", where=url.shown) from error
        yield _Database(connection, url.shown, SQLITE_ERRORS, _SQLITE_TABLES, {})


@contextmanager
def _postgres(url: DatabaseURL) -> Iterator[_Database]:
    with closing(connect_postgres(url, "reading from", autocommit=True)) as connection:
        import psycopg

        try:
            # of the session, so that no transaction in it can write, whoever begins it
            connection.execute("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY")
            connection.autocommit, connection.read_only = False, True
        except psycopg.Error as error:
            raise DataError(f"the database says: {first_line(error)}", where=url.shown) from error
        # the simple protocol would run several statements, and one of them might end the transaction
        one_statement = {"prepare": True}
        yield _Database(connection, url.shown, (psycopg.Error,), _POSTGRES_TABLES, one_statement)
