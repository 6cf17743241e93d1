"""The quick way to read equals the careful one, and leaves to it what it cannot do."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from talos.data import compiled
from talos.data.readers import encoded, read, read_parts
from talos.errors import DataError

pytestmark = pytest.mark.skipif(not compiled.available(), reason="the library is not built")


@pytest.fixture
def quick(monkeypatch):
    """Blocks of a few rows; and a list with True for each time that the quick way was taken, False if not."""
    monkeypatch.setattr(encoded, "_ROWS_AT_ONCE", 500)
    taken: list[bool] = []
    inner = encoded.read_encoded

    def watched(*arguments):
        found = inner(*arguments)
        taken.append(found is not None)
        return found

    monkeypatch.setattr("talos.data.readers.dispatch.read_encoded", watched)
    return taken


def rows(seed: int = 0, count: int = 1000) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    return pl.DataFrame(
        {"user_id": rng.integers(0, 60, count), "item_id": rng.integers(100, 140, count),
         "timestamp": rng.integers(0, 50, count), "rating": rng.integers(1, 6, count) / 2}
    )  # fmt: skip


def named(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(
        user_id=pl.format("u{}", "user_id"), item_id=pl.format("an item with a long name {}", "item_id")
    )


def wide(frame: pl.DataFrame) -> pl.DataFrame:
    """Integers far apart, of which only later blocks have some that need 64 bits."""
    far = pl.when(pl.int_range(pl.len()) > 500).then(pl.lit(2**40)).otherwise(1_000_003)
    return frame.with_columns(pl.col("user_id") * far, pl.col("item_id") * 1_000_003)


def same(one, other) -> None:
    assert one.to_polars().equals(other.to_polars())
    assert one.user_ids == other.user_ids
    assert one.item_ids == other.item_ids
    assert one.provenance == other.provenance
    assert (one.repeats is None) == (other.repeats is None)
    assert one.repeats is None or np.array_equal(one.repeats, other.repeats)


def write(frame: pl.DataFrame, path) -> None:
    frame.write_parquet(path) if path.suffix == ".parquet" else frame.write_csv(path)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("ids", [lambda frame: frame, named, wide])
def test_equal_to_the_careful_way(tmp_path, monkeypatch, quick, kind, ids):
    file, folder = tmp_path / f"events.{kind}", tmp_path / "several"
    write(ids(rows()), file)
    folder.mkdir()
    write(ids(rows(1)), folder / f"a.{kind}")
    write(ids(rows(2, 37)), folder / f"b.{kind}")
    split = tmp_path / "split"
    (split / "train").mkdir(parents=True)
    write(ids(rows(3)), split / "train" / f"part-0.{kind}")
    write(ids(rows(4)), split / "train" / f"part-1.{kind}")
    write(ids(rows(5, 80)), split / f"test.{kind}")
    seen: list[tuple[int, int]] = []
    found = [read(file, progress=lambda *done: seen.append(done)), read(folder)]
    parts = read_parts(split)
    assert quick == [True, True, True]
    assert seen[-1][0] == seen[-1][1]
    assert abs(seen[-1][1] - 1000) < 30  # of a text it is an estimate
    monkeypatch.setenv("TALOS_KERNEL", "torch")
    for one, other in zip(found, [read(file), read(folder)], strict=True):
        same(one, other)
    for one, other in zip(parts.parts.values(), read_parts(split).parts.values(), strict=True):
        same(one, other)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("blanks.csv", "user,item\n ann,tea\nann ,jam\n"),
        ("late_string.csv", "user,item\n" + "1,2\n" * 80_000 + "x,3\n" + "1,2\n" * 400_000),
        ("zeros.csv", "user,item\n007,2\n8,3\n"),
        ("titles.csv", "user,item,title\n1,2,Tea\n1,3,Jam\n"),
        ("quoted_numbers.csv", 'user,item\n"1","2"\nx1,3\n'),
    ],
)
def test_what_is_unusual_is_read_the_careful_way(tmp_path, monkeypatch, quick, name, content):
    path = tmp_path / name
    path.write_text(content)
    found = read(path)
    monkeypatch.setenv("TALOS_KERNEL", "torch")
    same(found, read(path))
    assert quick[0] == (name == "quoted_numbers.csv")


@pytest.mark.parametrize(
    ("content", "message"),
    [("ann,tea\nbob,\n", "line 3"), ("ann,tea\nNaN,jam\n", "line 3"), ("ann,tea\nbob,jam,rye\n", "line 3")],
)
def test_errors_are_those_of_the_careful_way(tmp_path, quick, content, message):
    (tmp_path / "bad.csv").write_text("user,item\n" + content)
    with pytest.raises(DataError, match=message):
        read(tmp_path / "bad.csv")
    assert quick == [False]
    assert len(read(tmp_path / "bad.csv", on_bad_row="skip")) == 1


def test_memory_is_a_small_multiple_of_the_result(tmp_path, monkeypatch):
    """Counts the bytes of all arrays that are made for rows: nothing of the size of the ids' text is among them."""
    write(
        named(rows(0, 20_000)).with_columns(user_id=pl.format("{}-{}", "user_id", "timestamp")),
        tmp_path / "e.parquet",
    )
    made: list[int] = []
    empty = np.empty

    def counted(*arguments, **options):
        array = empty(*arguments, **options)
        made.append(array.nbytes)
        return array

    monkeypatch.setattr(encoded, "_ROWS_AT_ONCE", 500)
    monkeypatch.setattr(np, "empty", counted)
    data = read(tmp_path / "e.parquet")
    monkeypatch.undo()
    arrays = (data.indptr, data.indices, data.timestamps, data.ratings, data.repeats)
    result = sum(array.nbytes for array in arrays if array is not None)
    large = [size for size in made if size >= 20_000]
    assert sum(large) <= 3 * result
