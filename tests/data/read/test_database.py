from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path

import polars as pl
import pytest

from talos.data.interactions import Interactions
from talos.data.options import SourceOptions
from talos.data.read.database import Database
from talos.data.source import Source, encoded, read_through
from talos.errors import DataError


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[str]:
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE clicks (user_id, item_id TEXT, score, note)")
        rows = [(n, f"i{n % 7}", n if n < 120 else n + 0.5, "text" if n % 2 else n) for n in range(250)]
        connection.executemany("INSERT INTO clicks VALUES (?, ?, ?, ?)", rows)
    before = path.read_bytes()
    yield f"sqlite:///{path}"
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["shop.db"]


def opened(url: str, **options: str) -> Database:
    how = SourceOptions.of(**options)
    return Database(url, how, asdict(how.columns))


def test_blocks(shop: str) -> None:
    database = opened(shop, user="user_id", rating="score")
    assert (database.provenance.source, database.provenance.format, database.provenance.unused) == (
        shop,
        "sqlite",
        ("note",),
    )
    blocks = list(database.frames(["score", "user_id"], 100))
    assert [block.height for block in blocks] == [100, 100, 50]
    assert pl.concat(blocks, how="vertical_relaxed")["user_id"].to_list() == list(range(250))


def read_in_blocks(url: str, rows: int, **options: str) -> Interactions:
    whole = partial(encoded, whole=True)
    return read_through(Source.of(url), SourceOptions.of(**options), whole, rows=rows)["all"]


@pytest.mark.parametrize("rows", [7, 100, 1000])
def test_a_block_has_the_types_of_its_values(shop: str, rows: int) -> None:
    """Numbers may be integers first and fractions later; ids of both types are strings, or an error between blocks."""
    expected = [n if n < 120 else n + 0.5 for n in range(250)]
    for role in ("rating", "timestamp"):
        data = read_in_blocks(shop, rows, **{"rating": "", role: "score"})
        assert data.to_polars().sort("user_id")[role].to_list() == expected
        assert data.user_ids.ids.dtype == pl.Int64
    assert {"text", "0"} < set(read_in_blocks(shop, rows, item="note").item_ids.ids)
    query = "SELECT user_id AS item_id, CASE WHEN user_id < 100 THEN user_id ELSE item_id END AS user_id FROM clicks"
    if rows == 1000:
        assert {"i6", "99"} < set(read_in_blocks(shop, rows, query=query).user_ids.ids)
    else:
        with pytest.raises(DataError, match="user ids are strings in one file and integers in another"):
            read_in_blocks(shop, rows, query=query)


def test_rows_of_a_query(shop: str) -> None:
    with pytest.raises(DataError, match='query: the database says: near ";": syntax error'):
        opened(f"{shop}?query=SELECT 1 AS a, 2 AS b", query="SELECT user_id FROM clicks LIMIT 3; -- three")
    query = "SELECT user_id, NULL AS item_id FROM clicks LIMIT 3 -- three"
    blocks = opened(shop, query=query).frames(["item_id", "user_id"], 2)
    assert [block.rows() for block in blocks] == [[(None, 0), (None, 1)], [(None, 2)]]
    database = opened(shop, query="SELECT user_id, item_id FROM clicks WHERE user_id > 999")
    assert list(database.cleaner.columns) == ["user", "item"]
    assert not list(database.frames(["user_id"], 2))


@pytest.mark.parametrize("table", ["click", "CLICKS_"])
def test_the_nearest_table_is_named(shop: str, table: str) -> None:
    with pytest.raises(DataError, match=f"shop.db, table {table}: .*no such table.*did you mean 'clicks'"):
        opened(shop, table=table)


@pytest.mark.parametrize(
    "query",
    ["DELETE FROM clicks RETURNING user_id", "SELECT 1) AS a; DROP TABLE clicks; SELECT * FROM (SELECT 1"],
)
def test_nothing_is_written(shop: str, query: str) -> None:
    with pytest.raises(DataError, match="the database says"):
        opened(shop, query=query)
    database = opened(shop)
    database._query = query  # as if the first rows had been read
    with pytest.raises(DataError, match="the database says"):
        list(database.frames(["user_id"], 9))
