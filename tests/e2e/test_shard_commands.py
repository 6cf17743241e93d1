"""`talos data split --shards` and what takes its folder as a PATH: output, exit codes, and nothing half-written."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from talos.data import splits
from talos.data.open import open_fit_parts, read
from talos.data.shards import read_shards, write_shards
from talos.files import read_sealed

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def clicks(tmp_path: Path) -> Path:
    folder = tmp_path / "clicks"
    folder.mkdir()
    for part in range(3):
        rows = [
            f"user{u},item{i},{1_600_000_000 + 97 * u + i}"
            for u in range(12)
            for i in range(10)
            if (u * i) % 3 != 1 and (u + i) % 3 == part
        ]
        (folder / f"{part}.csv").write_text("user_id,item_id,timestamp\n" + "\n".join(rows) + "\n")
    return folder


def test_divide_describe_train(talos: Run, clicks: Path, tmp_path: Path) -> None:
    done = talos("data", "split", clicks, "--out", "parts", "--shards", 2, "--seed", 3, "--json")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record == read_sealed(tmp_path / "parts" / "shards.json", hint="", format=2)
    expected = splits.split(read(clicks), seed=3)
    assert read_shards(tmp_path / "parts").test.fingerprint() == expected.test.fingerprint()

    done = talos("data", "describe", "parts", "--json")
    assert json.loads(done.stdout)["interactions"] == len(read(clicks))
    # a file, a folder and shards of the same data are the same to whoever trains
    done = talos(
        "train", "parts", "--out", "run", "--k", 3, "--dim", 4, "--epochs", 2, "--json", "--min-rating", 2
    )
    assert done.returncode == 0, done.stderr
    assert "already split" in done.stderr
    trained = json.loads(done.stdout)["metrics"]
    measured = talos("evaluate", "run", "--json", "--k", "3,5")
    assert json.loads(measured.stdout)["metrics"]["recall@3"] == trained["recall@3"]
    assert talos("data", "split", "parts", "--out", "more", "--shards", 2).returncode == 2


def test_what_is_wrong_is_said_once(talos: Run, clicks: Path, tmp_path: Path) -> None:
    split = ("data", "split", clicks, "--out", "parts", "--shards")
    (clicks / "2.csv").write_text("user_id,item_id,timestamp\nann,tea,7\nbob,,8\n")
    for arguments, message in (
        (
            (*split, 2),
            f"error: {clicks}/2.csv, line 3: no item in column 'item_id'; expected an id in every row",
        ),
        ((*split, 0), "error: --shards: got 0; expected an integer of at least 1"),
        ((*split, 2, "--k-core", 5), "error: --k-core: needs all interactions in memory"),
        ((*split, 2, "--format", "parquet"), "error: --format: does not go with --shards"),
        ((*split, 2, "--on-bad-row", "skip", "--min-rating", 3), f"error: {clicks}: no ratings"),
        (("data", "split", "nothing", "--out", "parts", "--shards", 2), "error: nothing: no such file"),
    ):
        done = talos(*arguments)
        assert done.returncode == 2
        # what helps stands below the error, indented
        *progress, error = [line for line in done.stderr.splitlines() if not line.startswith("  ")]
        assert error.startswith(message), done.stderr
        assert all(line.endswith(("rows read", "are sorted")) for line in progress)
        assert not (tmp_path / "parts").exists()
    assert talos(*split, 2, "--on-bad-row", "skip").returncode == 0
    before = {path: path.read_bytes() for path in (tmp_path / "parts").rglob("*.*") if path.is_file()}
    again = talos(*split, 3, "--on-bad-row", "skip")
    assert again.returncode == 2
    assert "parts: exists and is not empty; expected a new or empty folder" in again.stderr
    assert before == {path: path.read_bytes() for path in (tmp_path / "parts").rglob("*.*") if path.is_file()}
    assert {path.name for path in tmp_path.iterdir()} == {"clicks", "parts"}
    index = tmp_path / "parts" / "shards.json"
    index.write_text(index.read_text().replace('"seed": 0', '"seed": 1'))
    for command in (("data", "describe", "parts"), ("train", "parts", "--out", "run")):
        done = talos(*command)
        assert done.returncode == 2
        assert done.stderr.startswith("error: parts/shards.json: is damaged"), done.stderr
    assert not (tmp_path / "run").exists()


def test_tuning_sees_train_and_validation_alone(clicks: Path, tmp_path: Path) -> None:
    parts = tmp_path / "parts"
    write_shards(clicks, parts, shards=2)
    for part in parts.glob("*/test.parquet"):
        part.write_bytes(b"not opened")
    train, valid = open_fit_parts(parts)
    assert valid is not None
    expected = splits.split(read(clicks))
    assert expected.valid is not None
    assert (len(train), len(valid)) == (len(expected.train), len(expected.valid))
