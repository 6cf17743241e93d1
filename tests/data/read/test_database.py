from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import polars as pl
import pytest

from talos.data.options import SourceOptions
from talos.data.read.database import Database
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


def test_blocks_have_one_schema(shop: str) -> None:
    """Also where the first block holds integers alone; of a column that is not asked for, any values will do."""
    database = opened(shop, user="user_id", rating="score")
    assert (database.file.name, database.format, database.unused) == (shop, "sqlite", ("note",))
    blocks = list(database.frames(["score", "user_id"], 100))
    assert [block.height for block in blocks] == [100, 100, 50]
    assert all(block.schema == {"score": pl.Float64, "user_id": pl.Int64} for block in blocks)
    assert pl.concat(blocks)["user_id"].to_list() == list(range(250))
    with pytest.raises(DataError, match="column 'note': mixed types integer, text; expected values of one"):
        list(database.frames(["user_id", "note"], 100))


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
