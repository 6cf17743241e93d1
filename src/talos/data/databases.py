"""Database URLs and connections, for everything that reads from a database or writes to one."""

from __future__ import annotations

import re
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from talos.errors import DataError, MissingExtraError, first_line

__all__ = ["SQLITE_ERRORS", "DatabaseURL", "connect_postgres", "is_database_url", "quoted"]

SQLITE_ERRORS = (sqlite3.Error, sqlite3.Warning, OverflowError, UnicodeError)
"""What the driver of SQLite raises."""


def is_database_url(source: str) -> bool:
    """Whether a source is the URL of a database, and not a path.

    >>> is_database_url("sqlite:///shop.db"), is_database_url("clicks.csv")
    (True, False)
    """
    return source.startswith(("sqlite://", "postgresql://", "postgres://"))


@dataclass(frozen=True, kw_only=True)
class DatabaseURL:
    """The URL of a database, with the parameters `table=` and `query=` taken out.

    Attributes:
        address: what the driver connects to.
        table: the table named in the URL, None if there is none.
        query: the SQL query in the URL, None if there is none.

    >>> url = DatabaseURL.parse("postgresql://me:secret@host/shop?sslmode=require&table=recs")
    >>> url.shown, url.table
    ('postgresql://me:***@host/shop?sslmode=require', 'recs')
    """

    address: str
    table: str | None = None
    query: str | None = None

    @classmethod
    def parse(cls, url: str) -> DatabaseURL:
        """Take a URL apart; `query=` extends to the end of the URL, so that SQL may hold `&` unescaped."""
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
            elif one:
                kept.append(one)
        return cls(address=address + ("?" + "&".join(kept) if kept else ""), table=table, query=query)

    @property
    def shown(self) -> str:
        """The address without the password, for messages."""
        return re.sub(r"//([^/:@]*):[^@/]*@", r"//\1:***@", self.address)

    @property
    def is_sqlite(self) -> bool:
        """Whether it is a SQLite file; anything else is a PostgreSQL server."""
        return self.address.startswith("sqlite:")

    @property
    def sqlite_path(self) -> Path | None:
        """The file of `sqlite:///FILE`; None if the URL names none."""
        name = unquote(self.address.removeprefix("sqlite:///").partition("?")[0])
        return Path(name).expanduser() if name and self.address.startswith("sqlite:///") else None


def quoted(name: str) -> str:
    """A table or column name as an SQL identifier.

    >>> print(quoted('the "best" table'))
    "the ""best"" table"
    """
    return '"' + name.replace('"', '""') + '"'


def connect_postgres(url: DatabaseURL, purpose: str, **options: Any) -> Any:
    """A connection of psycopg to a PostgreSQL server.

    Args:
        url: of the server.
        purpose: "reading from" or "writing to", for the error if psycopg is not installed.
        options: for `psycopg.connect`.
    """
    try:
        import psycopg
    except ImportError as error:
        raise MissingExtraError(f"{purpose} PostgreSQL", extra="postgres") from error
    try:
        return psycopg.connect(url.address, connect_timeout=10, **options)
    except psycopg.Error as error:
        raise DataError(
            f"cannot connect ({first_line(error)})", where=url.shown, expected="a PostgreSQL server"
        ) from error
