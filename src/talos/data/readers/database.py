"""Interactions from a database: SQLite by the standard library, PostgreSQL by the extra `postgres`."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import polars as pl

from talos.data.readers.columns import Role, resolve
from talos.data.readers.frames import from_frame
from talos.data.readers.options import Options
from talos.data.readers.table import Table
from talos.errors import DataError, MissingExtraError, nearest

__all__ = ["is_database_url", "read_database"]

_ROWS_AT_ONCE = 100_000
_POSTGRES = ("postgresql://", "postgres://")


def is_database_url(source: str) -> bool:
    """Whether a source is the address of a database and not a path."""
    return source.startswith(("sqlite://", *_POSTGRES))


def read_database(url: str, roles: Sequence[Role], options: Options) -> Table:
    """Read a table or the rows of a query; nothing is ever written, nor is a missing file created."""
    address, query, table = _parts_of(url)
    query, table = options.query or query, options.table or table
    shown = re.sub(r"//([^/:@]*):[^@/]*@", r"//\1:***@", address)  # a password is nobody's business
    connect = _sqlite if address.startswith("sqlite:") else _postgres
    with connect(address, shown) as run:
        if query is None:
            query = f"SELECT * FROM {_quoted(table or run.only_table())}"
            where = f"{shown}, table {table}" if table else shown
        else:
            where = f"{shown}, query"
        query = query.strip().rstrip(";")
        names, _ = run.rows(f"SELECT * FROM ({query}) AS talos_rows LIMIT 0", table)
        positions = resolve(roles, names, where)
        chosen = [names[position] for position in positions.values()]
        needed = ", ".join(map(_quoted, chosen))
        _, chunks = run.rows(f"SELECT {needed} FROM ({query}) AS talos_rows", table)
        columns: list[list[Any]] = [[] for _ in chosen]
        for chunk in chunks:
            for column, values in zip(columns, zip(*chunk, strict=True), strict=True):
                column.extend(values)
    frame = pl.DataFrame([_series(n, v, where) for n, v in zip(chosen, columns, strict=True)])
    return from_frame(frame, roles, options, source=where, format=address.partition(":")[0])


def _parts_of(url: str) -> tuple[str, str | None, str | None]:
    """The address, the query and the table of a URL; a query reaches to the end, unescaped or not."""
    address, _, parameters = url.partition("?")
    query = table = None
    kept = []
    while parameters:
        if parameters.startswith("query="):
            query, parameters = unquote(parameters.removeprefix("query=")), ""
            continue
        one, _, parameters = parameters.partition("&")
        if one.startswith("table="):
            table = unquote(one.removeprefix("table="))
        else:
            kept.append(one)
    return address + ("?" + "&".join(kept) if kept else ""), query, table


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


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


class _Runner:
    """Runs queries on one connection and turns the driver's errors into ours."""

    def __init__(
        self, connection: Any, shown: str, failures: tuple[type[Exception], ...], tables: str
    ) -> None:
        self.connection = connection
        self.shown = shown
        self.failures = failures
        self.tables = tables

    def rows(self, query: str, table: str | None) -> tuple[list[str], Iterator[list[Any]]]:
        cursor = self.connection.cursor()
        try:
            cursor.execute(query)
        except self.failures as error:
            hint = nearest(table, self.table_names()) if table else None
            raise self.failed(error, hint) from error
        return [column[0] for column in cursor.description or ()], self._chunks(cursor)

    def _chunks(self, cursor: Any) -> Iterator[list[Any]]:
        while True:
            try:
                chunk = cursor.fetchmany(_ROWS_AT_ONCE)
            except self.failures as error:
                raise self.failed(error, None) from error
            if not chunk:
                return
            yield chunk

    def failed(self, error: Exception, hint: str | None) -> DataError:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return DataError(
            f"the database says: {reason}",
            where=self.shown,
            expected="a database and a query that it can run",
            hint=hint,
        )

    def table_names(self) -> list[str]:
        try:
            self.connection.rollback()
            cursor = self.connection.cursor()
            cursor.execute(self.tables)
            return [str(row[0]) for row in cursor.fetchall()]
        except self.failures as error:
            raise self.failed(error, None) from error

    def only_table(self) -> str:
        names = self.table_names()
        if len(names) == 1:
            return names[0]
        found = f"tables {', '.join(names)}" if names else "no table"
        raise DataError(found, where=self.shown, expected="a query= or a table= that says what to read")


@contextmanager
def _sqlite(address: str, shown: str) -> Iterator[_Runner]:
    if not address.startswith("sqlite:///"):
        raise DataError(f"{address!r} names no file", where="source", expected="sqlite:///FILE")
    path = Path(unquote(address.removeprefix("sqlite:///").partition("?")[0])).expanduser()
    if not path.is_file():
        raise DataError("no such file", where=shown, expected="a SQLite database")
    failures = (sqlite3.Error, sqlite3.Warning, OverflowError, UnicodeError)
    # `mode=ro`: reading must not write, and a wrong name must not make a new database.
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    except failures as error:
        raise DataError(f"cannot be opened ({error})", where=shown, expected="a SQLite database") from error
    tables = "SELECT name FROM sqlite_master WHERE type != 'index' AND name NOT GLOB 'sqlite_*' ORDER BY 1"
    with closing(connection):
        yield _Runner(connection, shown, failures, tables)


@contextmanager
def _postgres(address: str, shown: str) -> Iterator[_Runner]:
    try:
        import psycopg
    except ImportError as error:
        raise MissingExtraError("reading from PostgreSQL", extra="postgres") from error
    tables = (
        "SELECT table_name FROM information_schema.tables "
        "WHERE table_schema = ANY (current_schemas(false)) ORDER BY table_name"
    )
    try:
        connection = psycopg.connect(address, connect_timeout=10)
    except psycopg.Error as error:
        reason = (str(error).strip().splitlines() or ["no answer"])[0]
        raise DataError(f"cannot connect ({reason})", where=shown, expected="a PostgreSQL server") from error
    with closing(connection):
        connection.read_only = True
        yield _Runner(connection, shown, (psycopg.Error,), tables)
