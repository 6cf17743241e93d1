from __future__ import annotations

import pytest

from talos.data.databases import DatabaseURL, without_password, without_passwords

SECRETS = ("secret", "pa/sec", "pa@sec", "pa?sec", "p:a/s@s?w", "100%sec", "@sec", "sec@", "//sec", "5432/x")
TAILS = ("host/shop", "host:5432/shop?sslmode=require", "[::1]:5432/shop", "/shop?host=/run&user=me", "host")


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("secret", SECRETS)
def test_no_form_of_a_url_shows_its_password(secret: str, tail: str) -> None:
    for url in (
        f"postgresql://me:{secret}@{tail}",
        f"postgres://me:{secret}@{tail}{'&' if '?' in tail else '?'}table=x&password={secret}",
        f"postgresql://me@{tail}{'&' if '?' in tail else '?'}sslpassword={secret}&table=x",
        f"mysql://me:{secret}@{tail}",
    ):
        for text in (
            DatabaseURL.parse(url).shown,
            without_password(url),
            without_passwords(f"no {url} here"),
        ):
            assert secret not in text, url
            assert "me" in text


def test_what_has_no_password_stays_as_it_is() -> None:
    for url in (
        "postgresql://me@host/shop?table=x",
        "postgresql://host:5432/shop?options=a",
        "sqlite:///a:b@c.db?table=x",
        "clicks:a@b.csv",
        "movielens-100k",
    ):
        assert without_password(url) == url
    assert DatabaseURL.parse("postgresql://me:secret@host/shop?sslmode=require&table=x").address == (
        "postgresql://me:secret@host/shop?sslmode=require"
    )
    assert DatabaseURL.parse("postgresql://host:5432/shop?options=a@b").address == (
        "postgresql://host:5432/shop?options=a@b"
    )
