from __future__ import annotations

from urllib.parse import quote

import pytest

from talos.data.databases import DatabaseURL, without_password, without_passwords
from talos.errors import DataError

SECRETS = (
    *("secret", "pa/sec", "pa@sec", "pa?sec", "p:a/s@s?w", "100%sec", "@sec", "sec@", "//sec", "5432/x"),
    *("s=ec&r=et", "se#cret", "[se]cret", "se,cret", "%zzsec"),
)
TAILS = ("host/shop", "host:5432/shop?sslmode=require", "[::1]:5432/shop", "/shop?host=/run&user=me", "host")


def urls(secret: str, tail: str) -> list[str]:
    return [
        f"postgresql://me:{secret}@{tail}",
        f"postgres://me:{secret}@{tail}{'&' if '?' in tail else '?'}table=x&password={secret}",
        f"postgresql://me@{tail}{'&' if '?' in tail else '?'}sslpassword={secret}&table=x",
        f"mysql://me:{secret}@{tail}",
    ]


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("secret", SECRETS)
def test_no_form_of_a_url_shows_its_password(secret: str, tail: str) -> None:
    escaped = quote(secret, safe="")
    for url in urls(escaped, tail):
        for text in (
            DatabaseURL.parse(url).shown,
            without_password(url),
            without_passwords(f"no {url} here"),
        ):
            assert escaped not in text, url
            assert "me" in text
    for url in urls(secret, tail):
        hidden = [without_password(url)]
        if "=ec" not in secret:  # in a text nobody can tell `password=s=ec&r=et` from two parameters
            hidden.append(without_passwords(f"no {url} here"))
        assert all(secret not in text and "me" in text for text in hidden), url
        try:
            said = DatabaseURL.parse(url).shown
        except DataError as error:
            said = str(error)
        assert secret not in said


@pytest.mark.parametrize("secret", ["pa/ss", "pa@ss", "pa?ss", "p:a/s@s?w", "100%", "a b", "#a", "a\n"])
@pytest.mark.parametrize("tail", ["@host/shop", "@host:5432/shop?sslmode=require", ""])
def test_a_password_that_is_not_escaped_is_refused(secret: str, tail: str) -> None:
    """Without a host, as somebody forgets it, the driver would take any password for a port."""
    if secret == "pa@ss" and not tail:
        pytest.skip("a password and a host")
    with pytest.raises(DataError, match="postgresql://…: not a URL; expected postgresql://USER") as caught:
        DatabaseURL.parse(f"postgresql://me:{secret}{tail}")
    assert caught.value.__cause__ is None
    escaped = quote(secret, safe="")
    assert "write %40 for @" in str(caught.value)
    if tail:
        assert DatabaseURL.parse(f"postgresql://me:{escaped}{tail}").address.startswith(
            f"postgresql://me:{escaped}@"
        )


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me@host/shop",
        "postgresql://host:5432/shop?options=a",
        "postgresql://one:5432,two:5433/shop?target_session_attrs=any",
        "postgresql:///shop?host=/run/postgresql",
        "postgresql://%2Frun%2Fpostgresql/shop",
        "postgresql://[::1]:5432",
        "postgresql://",
    ],
)
def test_addresses_of_servers(url: str) -> None:
    assert DatabaseURL.parse(url).address == url
    assert without_password(f"{url}{'&' if '?' in url else '?'}table=x y").endswith("table=x y")


def test_what_has_no_password_stays_as_it_is() -> None:
    for url in (
        "postgresql://me@host/shop?table=x",
        "postgresql://host:5432/shop?options=a",
        "sqlite:///a:b@c.db?table=x",
        "clicks:a@b.csv",
        "movielens-100k",
    ):
        assert without_password(url) == url


def test_table_and_query() -> None:
    url = DatabaseURL.parse("postgresql://me:secret@host/shop?sslmode=require&table=a%20b")
    assert (url.address, url.table) == ("postgresql://me:secret@host/shop?sslmode=require", "a b")
    text = "postgresql://me:secret@host/shop?password=x&query=SELECT a&b FROM t WHERE c = '@'"
    url = DatabaseURL.parse(text)
    assert (url.query, url.table) == ("SELECT a&b FROM t WHERE c = '@'", None)
    assert without_password(text) == "postgresql://me@host/shop?query=SELECT a&b FROM t WHERE c = '@'"
    assert DatabaseURL.parse("sqlite:///a b#@%.db?table=x?&y=1").address == "sqlite:///a b#@%.db?y=1"
