"""Database URLs and connections, for everything that reads from a database or writes to one.

Passwords never leave this module: messages have `***` in their place (`without_passwords`), and a URL that is written
to a file has none (`without_password`).
"""

from __future__ import annotations

import re
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from talos.checks import require
from talos.errors import DataError, MissingExtraError, first_line
from talos.files import expanded

__all__ = [
    "SQLITE_ERRORS",
    "DatabaseURL",
    "connect_postgres",
    "is_database_url",
    "quoted",
    "without_password",
    "without_passwords",
]

# What the driver of SQLite raises.
SQLITE_ERRORS = (sqlite3.Error, sqlite3.Warning, OverflowError, UnicodeError)

_PASSWORD = re.compile(r"(://[^\s/:@?]*):\S*@")
_PARAMETER = re.compile(r"(?i)([?&](?:ssl)?password=)[^&\s]*")
_SQL = re.compile(r"(?<=[?&])query=")
_TABLE = re.compile(r"(?<=[?&])table=([^&]*)&?")

# An address that can be read in one way only. Of another one a driver may quote a piece of the password in its message:
# `me:pa/ss@host` has no valid port, it says, `pa`.
_ESCAPE = "%[0-9A-Fa-f]{2}"
_HOST = rf"(?:\[[^]\s@]*]|(?:[^][\s%@:/?#,]|{_ESCAPE})*)(?::\d*)?"
_UNAMBIGUOUS = re.compile(
    rf"[\w+.-]+://(?:(?:[^][\s%@/?#]|{_ESCAPE})*@)?{_HOST}(?:,{_HOST})*(?:/(?:[^\s%@?#]|{_ESCAPE})*)?"
    rf"(?:\?(?:[\w.-]+=(?:[^\s%@&=#]|{_ESCAPE})*(?:&|$))*)?"
)


def is_database_url(source: str) -> bool:
    """Whether a source is the URL of a database, and not a path.

    >>> is_database_url("sqlite:///shop.db"), is_database_url("clicks.csv")
    (True, False)
    """
    return source.startswith(("sqlite://", "postgresql://", "postgres://"))


def without_passwords(text: str) -> str:
    """A text for people with `***` for the password of every URL in it; rather too much is hidden than too little.

    >>> without_passwords("cannot connect to postgresql://me:pa/ss@word@host/shop?sslmode=require&password=x")
    'cannot connect to postgresql://me:***@host/shop?sslmode=require&password=***'
    """
    return _PASSWORD.sub(r"\1:***@", _PARAMETER.sub(r"\1***", text))


def without_password(source: str) -> str:
    """A source as it is written to a file: a URL without its password, anything else as it is.

    >>> without_password("postgresql://me:secret@host/shop?password=x&table=clicks")
    'postgresql://me@host/shop?table=clicks'
    >>> without_password("clicks.csv")
    'clicks.csv'
    """
    if "://" not in source or source.startswith("sqlite:"):
        return source
    address, *sql = _SQL.split(source, maxsplit=1)
    # the password of another one may be anything from `password=` on, or up to the last @
    if _UNAMBIGUOUS.fullmatch(address) is None:
        bare = re.sub(r"(?is)[?&](ssl)?password=.*", "", source)
        return re.sub(r"(?s)(://[^/:@?]*):.*@", r"\1@", bare)
    bare = re.sub(r"(?i)(?<=[?&])(ssl)?password=[^&]*&?", "", _PASSWORD.sub(r"\1@", address))
    return "query=".join([bare, *sql]).rstrip("?&")


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
        """Take a URL apart; `query=` extends to the end of the URL, so that SQL may hold `&` unescaped.

        Raises:
            DataError: a driver could take the URL apart in another way, as with an unescaped @ in the password.
        """
        address, *sql = _SQL.split(url, maxsplit=1)
        table = _TABLE.search(address)
        address = _TABLE.sub("", address).rstrip("?&")
        require(
            address.startswith("sqlite:") or _UNAMBIGUOUS.fullmatch(address) is not None,
            "not a URL",
            where=f"{address.partition('://')[0]}://…",
            expected="postgresql://USER:PASSWORD@HOST:PORT/DATABASE?NAME=VALUE",
            hint="in a user or password, write %40 for @, %2F for /, %3A for :, %3F for ?, %23 for #, %25 for %",
            error=DataError,
        )
        return cls(address=address, table=table and unquote(table[1]), query=unquote(sql[0]) if sql else None)

    @property
    def shown(self) -> str:
        """The address without the password, for messages."""
        return self.address if self.is_sqlite else without_passwords(self.address)

    @property
    def is_sqlite(self) -> bool:
        """Whether it is a SQLite file; anything else is a PostgreSQL server."""
        return self.address.startswith("sqlite:")

    @property
    def sqlite_path(self) -> Path | None:
        """The file of `sqlite:///FILE`; None if the URL names none."""
        name = unquote(self.address.removeprefix("sqlite:///").partition("?")[0])
        return expanded(name) if name and self.address.startswith("sqlite:///") else None


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
            f"cannot connect ({without_passwords(first_line(error))})",
            where=url.shown,
            expected="a PostgreSQL server",
        ) from None  # the driver's own error may quote the address
