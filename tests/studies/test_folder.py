"""The folder of a study: whom it belongs to, and the digests by which earlier results are found again."""

from __future__ import annotations

from pathlib import Path

import pytest

from talos.config import RunConfig
from talos.errors import ConfigError, DataError
from talos.studies.compare import CompareSettings
from talos.studies.folder import FolderKind, first_difference, open_folder, read_folder
from talos.studies.tune import Space, TuneSettings

KIND = FolderKind("trip", "trip.json", may_exist=("map",))


def test_a_folder_is_reopened_with_equal_settings_only(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert open_folder(out, KIND, {"a": 1}, {"name": "first", "note": "x"}) == {"name": "first", "note": "x"}
    kept = open_folder(out, KIND, {"a": 1}, {"name": "second", "note": "y"}, keep=("name",))
    assert kept == {"name": "first", "note": "y"}
    assert read_folder(out, KIND) == ({"a": 1}, kept)
    with pytest.raises(ConfigError, match=r"holds a trip with other settings \(a: 1 there, 2 now\)"):
        open_folder(out, KIND, {"a": 2}, {})
    # settings of an earlier version may lack a key that has a default by now
    open_folder(out, KIND, {"a": 1, "b": 0}, {}, parse=lambda stored: {"b": 0, **stored})


def test_only_an_empty_folder_becomes_one(tmp_path: Path) -> None:
    (tmp_path / "map").mkdir()
    open_folder(tmp_path, KIND, {}, {})
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("dear")
    with pytest.raises(ConfigError, match="is not empty"):
        open_folder(tmp_path / "full", KIND, {}, {})
    with pytest.raises(ConfigError, match="is not a folder"):
        open_folder(tmp_path / "full" / "letter.txt", KIND, {}, {})
    with pytest.raises(DataError, match=r"has no trip\.json"):
        read_folder(tmp_path / "full", KIND)


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
