"""Folders of shards that were damaged or changed, and sources that are: one clear message, and nothing half-written."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from talos import read
from talos.data.shards import Smallest, read_fit_shards, read_shards, write_shards
from talos.distributed.share import read_share
from talos.errors import DataError
from talos.files import checksum_of, write_sealed


@pytest.fixture
def folder(parquet_folder: Path, tmp_path: Path) -> Path:
    out = tmp_path / "out"
    write_shards(parquet_folder, out, shards=3)
    return out


def refused(folder: Path, match: str) -> None:
    with pytest.raises(DataError, match=match) as caught:
        read_shards(folder)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_missing_or_changed_is_named(folder: Path) -> None:
    for name in ("users.parquet", "items.parquet", "shard-0001/valid.parquet"):
        path = folder / name
        content = path.read_bytes()
        path.write_bytes(content[:-9])
        refused(folder, rf"{name}: differs from its checksum in shards.json")
        path.unlink()
        refused(
            folder,
            rf"{name}: cannot be read \(No such file or directory\); expected the file as it was written",
        )
        path.write_bytes(content)
    shutil.rmtree(folder / "shard-0002")
    refused(folder, r"shard-0002/train.parquet: cannot be read")


def test_a_share_does_not_look_at_the_shards_of_others(folder: Path) -> None:
    first = json.loads((folder / "shards.json").read_text())["shards"][0]
    path = folder / "shard-0002" / "train.parquet"
    path.write_bytes(path.read_bytes()[:-9])
    assert len(read_share(folder, lambda _: range(*first)).train.own) > 0
    refused(folder, r"shard-0002/train.parquet: differs")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda record: record.update(users=5), "is damaged"),
        (lambda record: record["shards"].pop(), "is damaged"),
        (
            lambda record: record.update(format=99),
            "is damaged",
        ),
    ],
)
def test_an_edited_index_is_noticed(folder: Path, change: Callable[[Any], Any], match: str) -> None:
    path = folder / "shards.json"
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))
    refused(folder, rf"shards.json: {match}")


@pytest.mark.parametrize("text", ["", "{", "[1]", "3", "null", '{"format": "1"}'])
def test_an_index_that_is_none(folder: Path, text: str) -> None:
    (folder / "shards.json").write_text(text)
    refused(folder, "shards.json: is damaged")


def test_an_index_made_to_fit_is_checked_against_the_files(folder: Path) -> None:
    """Somebody who mends the checksums does not get past the contents."""
    path = folder / "shards.json"
    original = json.loads(path.read_text())

    def store(record: dict[str, Any]) -> None:
        write_sealed(path, record)

    for change in (
        {"users": original["users"] + 1},
        {"items": 3},
        {"shards": original["shards"][1:]},
        {"shards": "x"},
        {"parts": {}},
        {"files": {}},
        {"columns": ["nothing"]},
    ):
        store({**original, **change})
        with pytest.raises(DataError):
            read_shards(folder)
    train = folder / "shard-0000" / "train.parquet"
    rows = pl.read_parquet(train)
    for bad in (
        rows.reverse(),
        rows.with_columns(item=pl.lit(10_000, pl.Int32)),
        rows.with_columns(user=pl.col("user") + 1000),
        rows.cast({"user": pl.Int64}),
        rows.drop("item"),
        rows.head(3),
    ):
        bad.write_parquet(train)
        record = json.loads(json.dumps(original))
        record["files"]["shard-0000/train.parquet"]["checksum"] = checksum_of(train)
        store(record)
        with pytest.raises(DataError, match=r"shard-0000/train.parquet"):
            read_shards(folder)


def test_a_broken_source_leaves_nothing(parquet_folder: Path, tmp_path: Path) -> None:
    broken = parquet_folder / "part-3.parquet"
    broken.write_bytes(broken.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"part-3.parquet: cannot be read"):
        write_shards(parquet_folder, tmp_path / "out", shards=2)
    broken.unlink()
    (parquet_folder / "part-4.parquet").unlink()
    (parquet_folder / "part-2.parquet").write_bytes(b"")
    with pytest.raises(DataError, match=r"part-2.parquet: is empty"):
        write_shards(parquet_folder, tmp_path / "out", shards=2)
    assert {path.name for path in tmp_path.iterdir()} == {"events"}


def test_selection_against_sorting() -> None:
    rng = np.random.default_rng(0)
    for values in (
        rng.integers(-(2**62), 2**62, 1000),
        rng.integers(0, 7, 1000),
        rng.normal(size=1000) * 10.0 ** rng.integers(-300, 300, 1000),
    ):
        order = np.argsort(values, kind="stable")
        for count in (0, 1, 2, 500, 999, 1000):
            chosen = np.zeros(1000, bool)
            chosen[order[:count]] = True
            blocks = np.array_split(values, 7)
            smallest = Smallest(blocks, count)
            np.testing.assert_array_equal(np.concatenate([smallest.of(block) for block in blocks]), chosen)


def test_a_full_disk_leaves_nothing(parquet_folder: Path, tmp_path: Path) -> None:
    code = (
        "import resource, sys; from pathlib import Path; from talos.data.shards import write_shards\n"
        "from talos.errors import TalosError\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))\n"
        "try: write_shards(sys.argv[1], Path(sys.argv[2]), shards=2)\n"
        "except TalosError as error: print(error)\n"
    )
    out = tmp_path / "out"
    done = subprocess.run(
        [sys.executable, "-c", code, str(parquet_folder), str(out)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.startswith(f"{out} could not be written ("), done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"events"}


def test_the_test_part_is_not_opened_for_fitting(folder: Path) -> None:
    assert len(read(folder)) == sum(len(part) for part in read_shards(folder).parts.values())
    train, valid = read_fit_shards(folder)
    (folder / "shard-0001" / "test.parquet").write_bytes(b"not opened")
    again = read_fit_shards(folder)
    assert again[0].fingerprint() == train.fingerprint()
    assert valid is not None
    assert again[1] is not None
    assert again[1].fingerprint() == valid.fingerprint()
