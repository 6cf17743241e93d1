"""Reading a block at a time gives what reading at once gives: the same rows, ids, counts and errors."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from talos.data.interactions import Interactions
from talos.data.open import read
from talos.data.options import SourceOptions
from talos.data.read.clean import Block
from talos.data.source import Pass, Source, encoded, read_through
from talos.errors import DataError

CSV = "user,item,ts,stars\n" + "".join(f"{n % 7},{n % 5},{n},{n % 4 + 1}\n" for n in range(50))


def in_blocks(path: Path, **options: Any) -> tuple[Interactions, list[pl.DataFrame]]:
    """Interactions of a PATH that is read at most eight rows at a time, and the blocks."""
    blocks: list[pl.DataFrame] = []

    def into(one: Pass) -> Interactions:
        blocks.clear()
        inner = iter(one)

        def watched() -> Iterator[tuple[str, Block]]:
            for part, block in inner:
                blocks.append(block.frame)
                yield part, block

        one.__class__ = type("Watched", (Pass,), {"__iter__": lambda self: watched()})
        return encoded(one, whole=True)["all"]

    return read_through(Source.of(path), SourceOptions.of(**options), into, rows=8), blocks


def compare(path: Path, **options: Any) -> Interactions:
    found, blocks = in_blocks(path, **options)
    whole = read(path, **options)
    assert max(map(len, blocks)) <= 8
    assert found.provenance == whole.provenance
    assert found.fingerprint() == whole.fingerprint()
    assert found.to_polars().equals(whole.to_polars())
    return found


def test_plain_text(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(CSV)
    assert set(compare(path).to_polars().columns) == {"user_id", "item_id", "timestamp", "rating"}


def test_other_text(tmp_path: Path) -> None:
    for name, text in {
        "u.data": "".join(f"{n % 7}\t{n % 5}\t3\t{881250949 + n}\n" for n in range(50)),
        "ratings.dat": "".join(f"{n % 7}::{n % 5}::3::{881250949 + n}\n" for n in range(50)),
        "lists.txt": "".join(f"{n} {' '.join(str(m) for m in range(n % 5 + 1))}\n" for n in range(20)),
        "a.jsonl": "".join(f'{{"user": "u{n % 7}", "item": {n % 5}}}\n' for n in range(50)),
    }.items():
        path = tmp_path / name
        path.write_text(text)
        compare(path)
    zipped = tmp_path / "a.csv.gz"
    zipped.write_bytes(gzip.compress(CSV.encode()))
    compare(zipped)


def test_an_id_that_is_no_integer_late_in_the_file_makes_all_of_them_strings(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(CSV + "x9,007,60,3\n")
    data = compare(path)
    assert data.user_ids.ids.dtype == pl.String
    assert "007" in data.item_ids.ids
    mixed = tmp_path / "mixed"
    mixed.mkdir()
    (mixed / "a.csv").write_text(CSV)
    (mixed / "b.csv").write_text("user,item,ts,stars\nann,3,7,2\n")
    assert compare(mixed).user_ids.ids.dtype == pl.String


def test_bad_rows_are_counted_or_named_by_their_line(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(CSV + "5,6,noon,3\n7\n8,9,61,3,1,1\n1,2,62,3\n")
    compare(path, on_bad_row="skip")
    for reader in (read, in_blocks):
        with pytest.raises(DataError, match=r"a\.csv, line 52: 'noon' is not a timestamp"):
            reader(path)


def test_a_parquet_file_names_the_row(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pl.DataFrame({"user": ["a"] * 20 + [None], "item": range(21)}).write_parquet(path)
    for reader in (read, in_blocks):
        with pytest.raises(DataError, match=r"a\.parquet, row 20 \(counting from 0\): no user"):
            reader(path)
    compare(path, on_bad_row="skip")


def test_files_that_do_not_fit_together(tmp_path: Path) -> None:
    for number, user in enumerate(("a", 1)):
        pl.DataFrame({"user": [user], "item": [1]}).write_parquet(tmp_path / f"{number}.parquet")
    with pytest.raises(DataError, match="user ids are strings in one file and integers in another"):
        in_blocks(tmp_path)
    (tmp_path / "1.parquet").write_bytes((tmp_path / "0.parquet").read_bytes()[:-20])
    with pytest.raises(DataError, match=r"1\.parquet: cannot be read"):
        in_blocks(tmp_path)
    empty = tmp_path / "empty.csv"
    empty.write_text("")
    with pytest.raises(DataError, match=r"empty\.csv: is empty"):
        in_blocks(empty)


def test_the_ids_of_skipped_rows_do_not_make_strings_of_the_others(tmp_path: Path) -> None:
    """A block of nothing but such a row has no say either, so the whole file must not give it one."""
    path = tmp_path / "a.csv"
    rows = [f"{n % 7},{n % 5},{n},{n % 4 + 1}\n" for n in range(50)]
    path.write_text("user,item,ts,stars\n" + "".join(f"u{n},i,now,5\n" for n in range(16)) + "".join(rows))
    data = compare(path, on_bad_row="skip")
    assert (data.user_ids.ids.dtype, data.item_ids.ids.dtype) == (pl.Int64, pl.Int64)


@pytest.mark.parametrize("first", ["2020-01-01", "5.5"])
def test_the_first_time_of_a_file_says_whether_there_are_dates_or_numbers(tmp_path: Path, first: str) -> None:
    """Also of the blocks after it, which may have nothing but the other kind: those rows are bad in each."""
    path = tmp_path / "a.csv"
    others = [f"{n % 7},{n % 5},{'7.5' if '-' in first else '2021-02-03'}\n" for n in range(20)]
    path.write_text("user,item,ts\n" + f"1,1,{first}\n2,2,{first}\n" + "".join(others))
    assert len(compare(path, on_bad_row="skip")) == 2
