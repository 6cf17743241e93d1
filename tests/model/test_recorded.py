"""The data that a run is measured on."""

from __future__ import annotations

from pathlib import Path

import pytest

from talos.data.options import SourceOptions
from talos.errors import DataError
from talos.model.recorded import open_test


def test_what_a_run_is_measured_on(tmp_path: Path) -> None:
    clicks = tmp_path / "clicks.csv"
    clicks.write_text("who,what\n" + "".join(f"u{n % 7},i{n}\n" for n in range(30)))
    trained = SourceOptions.of(user="who", item="what", k_core=5, test=0.4)
    source = trained.as_dict(str(clicks))
    # a PATH is read with the run's columns, and neither cleaned nor split
    assert len(open_test(source, str(clicks))) == 30
    other = tmp_path / "other.csv"
    other.write_text("buyer,what\nu1,i2\n")
    assert len(open_test(source, str(other), SourceOptions.of(user="buyer"))) == 1
    with pytest.raises(DataError, match="no column 'who'"):
        open_test(source, str(other))
    assert len(open_test(None, str(other), SourceOptions.of(user="buyer", item="what"))) == 1


def test_a_run_is_measured_on_the_test_part_of_what_is_split(tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    (folder / "train.csv").write_text("user,item\na,x\na,y\nb,x\n")
    (folder / "test.csv").write_text("user,item\nb,y\n")
    said: list[str] = []
    test = open_test(None, str(folder), notify=said.append)
    assert test.to_polars().rows() == [("b", "y")]
    assert said == [f"{folder} is split: measuring its test part"]
    (folder / "test.csv").rename(folder / "valid.csv")
    with pytest.raises(DataError, match=r"has a train file and no test file; expected a test set"):
        open_test(None, str(folder))
