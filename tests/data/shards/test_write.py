"""Splits of any size: the same interactions in the same parts, whatever the shards and however little is held."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from talos import read
from talos.data import splits
from talos.data.interactions import Interactions
from talos.data.shards import ShardIndex, read_shards, write_shards
from talos.data.splits import Split
from talos.distributed.share import read_share
from talos.errors import ArgumentError, ConfigError, DataError
from talos.files import read_sealed

Make = Callable[..., pl.DataFrame]


def same(ours: Interactions | None, theirs: Interactions | None) -> None:
    assert (ours is None) == (theirs is None)
    if ours is None or theirs is None:
        return
    assert ours.fingerprint() == theirs.fingerprint()
    for name in ("timestamps", "ratings"):
        mine, other = getattr(ours, name), getattr(theirs, name)
        assert (mine is None) == (other is None)
        if mine is not None:
            np.testing.assert_array_equal(mine, other)
    if theirs.item_titles is not None:
        assert ours.item_titles is not None
        assert ours.item_titles.to_list() == theirs.item_titles.to_list()


def same_split(ours: Split, theirs: Split) -> None:
    for part in ("train", "valid", "test"):
        same(getattr(ours, part), getattr(theirs, part))


@pytest.mark.parametrize("shards", [1, 3, 8])
@pytest.mark.parametrize("by", ["user", "last", "future"])
def test_the_split_is_that_of_the_whole_in_memory(
    parquet_folder: Path, tmp_path: Path, by: Any, shards: int
) -> None:
    expected = splits.split(read(parquet_folder), by=by, seed=3)
    record = write_shards(parquet_folder, tmp_path / "out", shards=shards, by=by, seed=3, rows_at_once=256)
    same_split(read_shards(tmp_path / "out"), expected)
    assert record["source"]["duplicates"] == read(parquet_folder).provenance.duplicates
    assert len(record["shards"]) == shards


def test_by_time_the_latest_are_for_test_and_validation_is_a_draw_of_the_rest(
    parquet_folder: Path, tmp_path: Path
) -> None:
    expected = splits.split(read(parquet_folder), by="time", seed=3)
    found = []
    for shards, rows in ((1, 300), (3, 1000), (8, 100_000)):
        out = tmp_path / str(shards)
        write_shards(parquet_folder, out, shards=shards, by="time", seed=3, rows_at_once=rows)
        found.append(read_shards(out))
        same(found[-1].test, expected.test)
        assert found[-1].valid is not None
        assert expected.valid is not None
        # other random numbers: as many users may have had to be left one interaction, or a few more or fewer
        assert abs(len(found[-1].valid) - len(expected.valid)) <= 0.05 * len(expected.valid)
        assert (found[-1].train.user_degrees > 0).sum() == (expected.train.user_degrees > 0).sum()
        same(found[-1].train.union(found[-1].valid), expected.train.union(expected.valid))
    same_split(found[0], found[1])
    same_split(found[0], found[2])
    other = write_shards(parquet_folder, tmp_path / "other", shards=1, by="time", seed=4)
    assert other["parts"]["valid"]["fingerprint"] != found[0].valid.fingerprint()  # type: ignore[union-attr]


def test_interactions_that_are_in_memory_and_low_ratings(make_events: Make, tmp_path: Path) -> None:
    data = read(make_events())
    expected = splits.split(splits.min_rating(data, 4), test=0.3, valid=0.0)
    record = write_shards(
        data, tmp_path / "out", shards=3, test=0.3, valid=0.0, min_rating=4, rows_at_once=200
    )
    same_split(read_shards(tmp_path / "out"), expected)
    assert record["cleaned"] == {"min_rating": 4}
    assert set(record["parts"]) == {"train", "test"}


def test_users_and_items_without_interactions_are_left_out(make_events: Make, tmp_path: Path) -> None:
    whole = read(make_events())
    data = whole.where((whole.rows > 5) & (whole.rows < 40) & (whole.indices != 3))
    write_shards(data, tmp_path / "out", shards=3, rows_at_once=len(data) // 2)
    write_shards(data, tmp_path / "one-by-one", shards=3, rows_at_once=1)
    for name in ("out", "one-by-one"):
        same_split(read_shards(tmp_path / name), splits.split(data.compact()))


def test_equal_times_of_interactions_in_memory_keep_the_order_of_the_source(
    make_events: Make, tmp_path: Path
) -> None:
    data = read(make_events().with_columns(timestamp=pl.col("timestamp") // 100))
    write_shards(data, tmp_path / "out", shards=3, by="last", rows_at_once=200)
    same_split(read_shards(tmp_path / "out"), splits.split(data, by="last"))


def test_what_the_index_counts(make_events: Make, tmp_path: Path) -> None:
    source = tmp_path / "events.parquet"
    make_events().write_parquet(source)
    out = tmp_path / "out"
    record = write_shards(source, out, shards=4, rows_at_once=500)
    parts = read_shards(out)
    assert read_sealed(out / "shards.json", hint="", format=2) == record
    for name, part in parts.parts.items():
        facts = record["parts"][name]
        assert (
            facts["interactions"]
            == len(part)
            == sum(
                file["rows"] for path, file in record["files"].items() if path.endswith(f"/{name}.parquet")
            )
        )
        assert facts["users"] == part.active_users
        assert facts["items"] == part.describe()["items"]
        assert facts["fingerprint"] == part.fingerprint()
    for name in ("valid", "test"):
        assert record["cold"][name] == parts.cold(name)
    loads = [sum(file["rows"] for path, file in record["files"].items() if path.startswith(f"shard-{n:04d}/"))
             for n in range(4)]  # fmt: skip
    heaviest = parts.train.union(parts.test).user_degrees.max() + 30  # validation
    assert max(loads) - min(loads) <= 2 * heaviest
    assert not list(tmp_path.glob(".out-*"))
    write_shards(source, tmp_path / "shards", shards=4, rows_at_once=500)  # a name that is also used inside
    assert {path.name for path in (tmp_path / "shards").iterdir()} == {path.name for path in out.iterdir()}


@pytest.mark.parametrize(("shards", "ranks"), [(1, 3), (3, 2), (8, 5)])
def test_a_share_is_the_rows_of_its_users(
    parquet_folder: Path, tmp_path: Path, shards: int, ranks: int
) -> None:
    out = tmp_path / "out"
    write_shards(parquet_folder, out, shards=shards)
    whole, index = read_shards(out), ShardIndex.read(out)
    for rank in range(ranks):
        users = range(index.num_users * rank // ranks, index.num_users * (rank + 1) // ranks)
        share = read_share(out, lambda _: users)  # noqa: B023  # called at once
        for name, part in whole.parts.items():
            mine = getattr(share, name)
            assert mine.own.fingerprint() == part.user_range(users).fingerprint()
            assert mine.own.timestamps is None
            assert (len(mine), mine.num_users, mine.active_users) == (
                len(part),
                part.num_users,
                part.active_users,
            )
            assert mine.fingerprint() == part.fingerprint()
            np.testing.assert_array_equal(mine.user_degrees, part.user_degrees)
            np.testing.assert_array_equal(mine.item_degrees, part.item_degrees)
        items = range(index.num_items * rank // ranks, index.num_items * (rank + 1) // ranks)
        indptr, indices = share.train.of_items(items)
        wanted = whole.train.to_scipy()[:, items.start : items.stop].sorted_indices()
        np.testing.assert_array_equal(indptr, wanted.indptr)
        np.testing.assert_array_equal(indices, wanted.indices)
    with pytest.raises(ArgumentError, match="expected within"):
        read_share(out, lambda num_users: range(num_users + 1))


def test_refusals(parquet_folder: Path, make_events: Make, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(ConfigError, match=r"^shards: 500; expected at most 96, the number of users"):
        write_shards(parquet_folder, out, shards=500)
    with pytest.raises(ArgumentError, match="shards: got 0; expected an integer of at least 1"):
        write_shards(parquet_folder, out, shards=0)
    with pytest.raises(DataError, match="no rating of 6 or higher"):
        write_shards(parquet_folder, out, shards=2, min_rating=6)
    bare = tmp_path / "bare.parquet"
    make_events().select("user_id", "item_id").write_parquet(bare)
    with pytest.raises(DataError, match="no timestamps; expected a time column to split by time"):
        write_shards(bare, out, shards=2, by="time")
    with pytest.raises(DataError, match="no ratings"):
        write_shards(bare, out, shards=2, min_rating=3)
    assert not out.exists()
    write_shards(bare, out, shards=2)
    with pytest.raises(ConfigError, match="exists and is not empty"):
        write_shards(bare, out, shards=2)
    assert {path.name for path in tmp_path.iterdir()} == {"events", "bare.parquet", "out"}
