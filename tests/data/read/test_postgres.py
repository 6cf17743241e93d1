"""PostgreSQL as a source: one statement, in a session that cannot write, and no password in any message."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from urllib.parse import quote

import polars as pl
import pytest

from talos.data.open import read
from talos.data.options import SourceOptions
from talos.data.read.database import Database
from talos.errors import DataError

# Ends the read-only transaction, writes and goes on, if several statements are run.
ESCAPE = (
    "SELECT 1 AS user_id) AS a LIMIT 0; ROLLBACK; DROP TABLE precious; SELECT * FROM (SELECT 1 AS user_id"
)


@pytest.fixture
def shop(postgres: str) -> Iterator[str]:
    """A database with clicks, and a table that must stay."""
    import psycopg

    with psycopg.connect(postgres, autocommit=True) as server:
        server.execute("DROP TABLE IF EXISTS clicks, precious, written")
        server.execute("CREATE TABLE clicks AS SELECT 1 AS user_id, 2 AS item_id, DATE '2020-01-01' AS ts")
        server.execute("CREATE TABLE precious AS SELECT 1 AS x")
        yield postgres
        assert server.execute("SELECT x FROM precious").fetchall() == [(1,)]
        assert server.execute("SELECT to_regclass('written')").fetchone() == (None,)
        server.execute("DROP TABLE clicks, precious")


def test_tables_and_queries(shop: str) -> None:
    for source, options in (
        (f"{shop}?table=clicks", {}),
        (shop, {"query": "SELECT * FROM clicks WHERE 3 % 2 = 1;"}),
    ):
        data = read(source, **options)
        assert data.to_polars().rows() == [(1, 2, 1577836800)]
        assert ":***@" in data.provenance.source
        assert "secret" not in data.provenance.source
    with pytest.raises(DataError, match=r"gone.*does not exist") as caught:
        read(shop, query="SELECT * FROM gone")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "query",
    [
        ESCAPE,
        # whoever can run several statements can also take the setting of the session back
        "SELECT 1 AS user_id, 2 AS item_id) AS a; COMMIT; SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE; "
        "COMMIT; CREATE TABLE written AS SELECT 1; COMMIT; SELECT * FROM (SELECT 1 AS user_id, 2 AS item_id",
        "SELECT 1 AS user_id, 2 AS item_id) AS a; COMMIT; CREATE TABLE written AS SELECT 1; SELECT * FROM (SELECT 1",
        "WITH gone AS (DELETE FROM precious RETURNING x) SELECT x AS user_id, x AS item_id FROM gone",
        "SELECT set_config('transaction_read_only', 'off', false) AS user_id, 1 AS item_id",
    ],
)
def test_a_query_cannot_leave_its_statement_or_write(shop: str, query: str) -> None:
    with pytest.raises(DataError, match="the database says"):
        read(shop, query=query)


def test_the_session_is_read_only_by_its_settings(shop: str) -> None:
    query = "SELECT 7 AS user_id, CASE current_setting('{}') WHEN 'on' THEN 1 ELSE 0 END AS item_id"
    for setting in ("transaction_read_only", "default_transaction_read_only"):
        assert read(shop, query=query.format(setting)).to_polars().rows() == [(7, 1)]


@pytest.mark.parametrize("password", ["pa/ss", "pa@ss", "pa?ss", "p:a/s@s?w", "100%", "a b"])
def test_passwords_with_the_signs_of_a_url(shop: str, password: str) -> None:
    """The server trusts everybody, so what is tested is that the address is understood."""
    escaped = quote(password, safe="")
    source = shop.replace(":secret@", f":{escaped}@")
    assert read(f"{source}?table=clicks").to_polars().rows() == [(1, 2, 1577836800)]
    for url in (f"{source}x?table=clicks&password={escaped}", shop.replace(":secret@", f":{password}@")):
        with pytest.raises(DataError) as caught:
            read(url)
        for secret in (password, escaped):
            assert secret not in str(caught.value)


def test_frames_in_blocks(shop: str) -> None:
    query = (
        "SELECT n AS user_id, NULL::int AS item_id, n / 2.0 AS score FROM generate_series(1, 250) AS n -- all"
    )
    options = SourceOptions.of(query=query)
    database = Database(shop, options, asdict(options.columns))
    assert database.provenance.format == "postgresql"
    assert database.file.name.endswith("/postgres, query")
    blocks = list(database.frames(["score", "user_id"], 100))
    assert [block.height for block in blocks] == [100, 100, 50]
    assert pl.concat(blocks)["user_id"].to_list() == list(range(1, 251))
    assert next(database.frames(["item_id"], 1000)).dtypes == [pl.Null]
    with pytest.raises(DataError, match=r"cannot be read \(.*; expected columns of numbers"):
        read(shop, query="SELECT 1 AS user_id, 1 AS item_id, 1e300::numeric AS rating")
