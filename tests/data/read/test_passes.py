"""The quick pass, the careful pass and the reference without the compiled library read the same."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from talos.data import arrays, source
from talos.data.interactions import Interactions
from talos.data.open import read
from talos.data.options import SourceOptions
from talos.data.read import text
from talos.data.read.clean import Block
from talos.data.source import Pass, Source
from talos.errors import DataError

Frame = pl.DataFrame


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The first careful file of each pass that was begun."""
    begun: list[int] = []
    inner = Pass.__iter__

    def watched(self: Pass) -> Iterator[tuple[str, Block]]:
        begun.append(self.careful_from)
        return inner(self)

    monkeypatch.setattr(Pass, "__iter__", watched)
    return begun


def rows(seed: int = 0, count: int = 1000) -> Frame:
    rng = np.random.default_rng(seed)
    return pl.DataFrame(
        {"user_id": rng.integers(0, 60, count), "item_id": rng.integers(100, 140, count),
         "timestamp": rng.integers(0, 50, count), "rating": rng.integers(1, 6, count) / 2}
    )  # fmt: skip


def named(frame: Frame) -> Frame:
    return frame.with_columns(
        user_id=pl.format("u{}", "user_id"), item_id=pl.format("an item with a long name {}", "item_id")
    )


def wide(frame: Frame) -> Frame:
    """Integers far apart, of which only later blocks have some that need 64 bits."""
    far = pl.when(pl.int_range(pl.len()) > 500).then(pl.lit(2**40)).otherwise(1_000_003)
    return frame.with_columns(pl.col("user_id") * far, pl.col("item_id") * 1_000_003)


def titled(frame: Frame) -> Frame:
    return frame.with_columns(title=pl.format("title {} {}", "item_id", pl.int_range(pl.len())))


def same(one: Interactions, other: Interactions) -> None:
    assert one.to_polars().equals(other.to_polars())
    assert one.user_ids == other.user_ids
    assert one.item_ids == other.item_ids
    assert one.provenance == other.provenance
    for name in ("repeats", "source_rows"):
        mine, theirs = getattr(one, name), getattr(other, name)
        assert (mine is None) == (theirs is None)
        assert mine is None or np.array_equal(mine, theirs)
    titles = [
        data.item_titles if data.item_titles is None else data.item_titles.to_list() for data in (one, other)
    ]
    assert titles[0] == titles[1]


def carefully(path: Path) -> Interactions:
    options = SourceOptions()
    one = Pass(Source.of(path), options, asdict(options.columns), careful_from=0)
    return source.encoded(one, whole=True)["all"]


def write(frame: Frame, path: Path) -> Path:
    frame.write_parquet(path) if path.suffix == ".parquet" else frame.write_csv(path)
    return path


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("ids", [lambda frame: frame, named, wide, titled])
def test_every_way_gives_the_same(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    passes: list[int],
    kind: str,
    ids: Callable[[Frame], Frame],
) -> None:
    frame = ids(rows(count=3000))
    path = write(frame, tmp_path / f"events.{kind}")
    whole = read(path)
    assert passes == [sys.maxsize]
    expected = Interactions.from_ids(
        frame["user_id"], frame["item_id"], timestamps=frame["timestamp"].to_numpy(),
        ratings=frame["rating"].to_numpy(), titles=frame["title"] if "title" in frame.columns else None,
        provenance=Interactions.from_ids([1], [1]).provenance,
    )  # fmt: skip
    assert expected.to_polars().equals(whole.to_polars())
    same(carefully(path), whole)
    monkeypatch.setattr(text, "_CHUNK", 4096)
    in_blocks = source.read_through(
        Source.of(path), SourceOptions(), partial(source.encoded, whole=True), rows=500
    )
    same(in_blocks["all"], whole)
    monkeypatch.setenv("TALOS_KERNEL", "torch")
    same(read(path), whole)


@pytest.mark.parametrize(
    ("name", "content", "quick"),
    [
        ("blanks.csv", "user,item\n ann,tea\nann ,jam\n", False),
        ("late_string.csv", "user,item\n" + "1,2\n" * 80_000 + "x,3\n" + "1,2\n" * 400_000, True),
        ("zeros.csv", "user,item\n007,2\n8,3\n", True),
        ("titles.csv", "user,item,title\n1,2,Tea\n1,3,Jam\n", True),
        ("quoted_numbers.csv", 'user,item\n"1","2"\nx1,3\n', True),
        ("times.csv", "user,item,ts\n" + "1,2,5\n" * 1000 + "1,3,5.5\n", True),
        ("dates.csv", "user,item,ts\n1,2,2020-01-01\n1,3,2020-01-01 10:00\n", True),
    ],
)
def test_the_careful_pass_is_for_what_the_quick_one_cannot_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, passes: list[int], name: str, content: str, quick: bool
) -> None:
    path = tmp_path / name
    path.write_text(content)
    found = read(path)
    assert passes == ([sys.maxsize] if quick else [sys.maxsize, 0])
    same(carefully(path), found)
    monkeypatch.setenv("TALOS_KERNEL", "torch")
    same(found, read(path))


@pytest.mark.parametrize(
    ("content", "message"),
    [("ann,tea\nbob,\n", "line 3"), ("ann,tea\nNaN,jam\n", "line 3"), ("ann,tea\nbob,jam,rye\n", "line 3")],
)
def test_a_bad_row_is_named_by_the_second_pass(
    tmp_path: Path, passes: list[int], content: str, message: str
) -> None:
    (tmp_path / "bad.csv").write_text("user,item\n" + content)
    with pytest.raises(DataError, match=message):
        read(tmp_path / "bad.csv")
    assert passes == [sys.maxsize, 0]
    assert len(read(tmp_path / "bad.csv", on_bad_row="skip")) == 1


def test_files_before_the_bad_one_stay_quick(tmp_path: Path, passes: list[int]) -> None:
    for number in range(3):
        (tmp_path / f"{number}.csv").write_text("user,item\na,x\n" + "b \n" * (number == 1))
    assert len(read(tmp_path, on_bad_row="skip")) == 1
    assert passes == [sys.maxsize, 1]


def test_an_error_of_our_own_is_no_bad_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, passes: list[int]
) -> None:
    path = write(rows(), tmp_path / "events.csv")

    def broken(*_: object, **__: object) -> None:
        raise TypeError("a mistake in this library")

    monkeypatch.setattr(source.IdColumn, "add", broken)
    with pytest.raises(TypeError, match="a mistake"):
        read(path)
    assert passes == [sys.maxsize]


@pytest.mark.skipif(arrays.library() is None, reason="the library is not built")
def test_memory_is_a_small_multiple_of_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts the bytes of all arrays that are made for rows: nothing of the size of the ids' text is among them."""
    frame = named(rows(0, 20_000)).with_columns(user_id=pl.format("{}-{}", "user_id", "timestamp"))
    path = write(frame, tmp_path / "e.parquet")
    made: list[int] = []
    empty = np.empty

    def counted(*arguments: object, **options: object) -> object:
        array = empty(*arguments, **options)  # type: ignore[call-overload]
        made.append(array.nbytes)
        return array

    monkeypatch.setattr(np, "empty", counted)
    blocks = partial(source.encoded, whole=True)
    data = source.read_through(Source.of(path), SourceOptions(), blocks, rows=500)["all"]
    monkeypatch.undo()
    kept = (data.indptr, data.indices, data.timestamps, data.ratings, data.repeats, data.source_rows)
    result = sum(array.nbytes for array in kept if array is not None)
    assert sum(size for size in made if size >= 20_000) <= 3 * result
