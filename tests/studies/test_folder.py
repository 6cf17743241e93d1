"""The folder of a study: whom it belongs to, and the digests by which earlier results are found again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from talos.config import RunConfig
from talos.errors import ConfigError, DataError, InUseError
from talos.files import read_record, write_record
from talos.studies.compare import CompareSettings
from talos.studies.folder import first_difference, read_manifest, study_folder
from talos.studies.tune import Space, TuneSettings


def reopen(out: Path, settings: dict[str, Any], **facts: Any) -> None:
    with study_folder(out / "trip.json", "trip", settings, facts, may_hold=("map",)):
        pass


def test_a_folder_is_reopened_with_equal_settings_only(tmp_path: Path) -> None:
    out = tmp_path / "out"
    reopen(out, {"a": (1, 2)}, note="x")
    reopen(out, {"a": (1, 2)}, note="y")
    assert read_manifest(out / "trip.json", "trip") == ({"a": [1, 2]}, {"note": "y"})
    with pytest.raises(ConfigError, match=r"holds a trip with other settings \(a: \[1, 2\] there, 2 now\)"):
        reopen(out, {"a": 2})
    assert [entry.name for entry in out.iterdir()] == ["trip.json"]


def test_only_an_empty_folder_becomes_one(tmp_path: Path) -> None:
    (tmp_path / "map").mkdir()
    reopen(tmp_path, {})
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("dear")
    with pytest.raises(ConfigError, match="is not empty"):
        reopen(tmp_path / "full", {})
    with pytest.raises(ConfigError, match="is not a folder"):
        reopen(tmp_path / "full" / "letter.txt", {})
    with pytest.raises(DataError, match=r"has no trip\.json"):
        read_manifest(tmp_path / "full" / "trip.json", "trip")


def test_one_process_at_a_time_works_in_a_folder(tmp_path: Path) -> None:
    with (
        study_folder(tmp_path / "trip.json", "trip", {}, {}),
        pytest.raises(InUseError, match="working on a trip"),
    ):
        reopen(tmp_path, {})
    reopen(tmp_path, {})


def test_a_record_is_complete_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "fit.json"
    path.with_name("fit.txt").write_text("values")
    write_record(path, {"epoch": 3}, ["fit.txt"])
    assert read_record(path, ["fit.txt"], hint="fit again") == read_record(path, hint="fit again")
    assert read_record(path, hint="fit again")["epoch"] == 3
    with pytest.raises(DataError, match=r"other\.txt: is missing .*fit again"):
        read_record(path, ["other.txt"], hint="fit again")
    path.with_name("fit.txt").write_text("other values")
    with pytest.raises(DataError, match=r"fit\.txt: .* differs from its checksum in fit\.json"):
        read_record(path, ["fit.txt"], hint="fit again")
    path.write_text(path.read_text().replace("3", "4", 1))
    with pytest.raises(DataError, match=r"fit\.json: is damaged"):
        read_record(path, ["fit.txt"], hint="fit again")


def test_the_first_difference_is_named() -> None:
    stored = {"k": 5, "loss": {"tau": {"low": 0.1, "high": 1}}, "ks": [1, 2]}
    assert first_difference(stored, {**stored}) == ""
    assert first_difference(stored, {**stored, "ks": [1]}) == "ks: [1, 2] there, [1] now"
    assert first_difference(stored, {**stored, "loss": {"tau": [0.1]}}).startswith("loss.tau: {'low'")
    assert first_difference(stored, {**stored, "new": 1}) == "new: nothing there, 1 now"


def test_digests_are_those_of_earlier_versions() -> None:
    """Finished fits and shared studies are found by them; they change only when a new key of the config does."""
    sl = RunConfig().with_values({"loss.name": "sl"})
    compared = CompareSettings(
        models={"a": RunConfig(), "b": sl},
        data={"train": "1", "test": "2"},
        ks=(5, 20),
        dialect="standard",
        budget=None,
    )
    assert compared.digest("b", 3) == "7af2770e82b8b54b4ec6c661cb5364f1de1590ebd72ddd4673f7816bbd2d9b3d"
    space = {"loss": {"tau": [0.1, 0.2]}, "optimizer": {"lr": {"low": 0.01, "high": 0.1, "log": True}}}
    tuned = TuneSettings(
        config=RunConfig(),
        space=Space.from_dict(space),
        sampler="auto",
        pruner="median",
        seed=0,
        data={"train": "1", "valid": "2"},
    )
    assert tuned.study_name == "talos-0513409046652854"
