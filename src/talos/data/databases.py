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
from urllib.parse import quote, unquote

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

SQLITE_ERRORS = (sqlite3.Error, sqlite3.Warning, OverflowError, UnicodeError)
"""What the driver of SQLite raises."""

# A password may hold any character, so it extends to the last @.
_PASSWORD = re.compile(r"(://[^\s/:@?]*):\S*@")
_PARAMETER = re.compile(r"(?i)([?&](?:ssl)?password=)[^&\s]*")
_IS_PARAMETER = re.compile(r"(?i)(ssl)?password=").match
_ARE_PARAMETERS = re.compile(r"([\w.-]+=[^&]*(&|$))*").fullmatch
_IS_PORT = re.compile(r"\d*(/.*)?").fullmatch


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

    >>> without_password("postgresql://me:pa/ss@word@host/shop?password=x&table=clicks")
    'postgresql://me@host/shop?table=clicks'
    >>> without_password("clicks.csv")
    'clicks.csv'
    """
    if "://" not in source or source.startswith("sqlite:"):
        return source
    head, user, rest = _taken_apart(source)
    address, mark, parameters = rest.partition("?")
    kept = "&".join(one for one in parameters.split("&") if not _IS_PARAMETER(one))
    bare = head + (f"{user.partition(':')[0]}@" if user else "") + address + (mark + kept if kept else "")
    return bare if _PASSWORD.search(bare) is None else _PASSWORD.sub(r"\1@", bare)


def _taken_apart(url: str) -> tuple[str, str, str]:
    """`postgresql://`, then `user:password`, then what follows the @ after it; no user is an empty string.

    People write passwords with `/`, `@` and `?` in them, which a URL should have as %2F, %40 and %3F. The @ that ends
    the password is therefore the last one before the parameters, if what follows then are parameters indeed.
    """
    head, _, rest = url.partition("://")
    before, mark, parameters = rest.partition("?")
    user, at, host = before.rpartition("@")
    if at and (not mark or "@" not in parameters or _ARE_PARAMETERS(parameters.partition("query=")[0])):
        return f"{head}://", user, host + mark + parameters
    name, colon, port = before.partition(":")
    if not at and (not colon or _IS_PORT(port) or "/" in name):  # `host:5432/shop?options=a@b` has no user
        return f"{head}://", "", rest
    user, at, host = rest.rpartition("@")
    return f"{head}://", user, host


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
        head, user, rest = ("", "", url) if url.startswith("sqlite:") else _taken_apart(url)
        address, _, parameters = rest.partition("?")
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
                key, equals, value = one.partition("=")
                kept.append(f"{key}={_escaped(value)}" if equals and _IS_PARAMETER(one) else one)
        name, colon, password = user.partition(":")
        address = head + (f"{name}{colon}{_escaped(password)}@" if user else "") + address
        return cls(address=address + ("?" + "&".join(kept) if kept else ""), table=table, query=query)

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


def _escaped(password: str) -> str:
    """A password as a URL has it; what is escaped already stays as it is."""
    return quote(re.sub(r"%(?![0-9A-Fa-f]{2})", "%25", password), safe="%")


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
        reason = without_passwords(first_line(error))
        raise DataError(
            f"cannot connect ({reason})", where=url.shown, expected="a PostgreSQL server"
        ) from None  # the driver's own error may quote the address
