"""Saving over a model is one swap; what is stored is sealed; runs of older versions load."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from talos.data.interactions import Interactions
from talos.errors import ArgumentError, DataError, InUseError, TalosError
from talos.model import store
from talos.model.recommender import Recommender
from talos.model.store import FILES, load_model, lock_run


@pytest.fixture
def models(random_data: Callable[..., Interactions]) -> tuple[Recommender, Recommender]:
    return tuple(Recommender(k=3, dim=4, epochs=1, seed=seed).fit(random_data()) for seed in (0, 1))


class Killed(BaseException):
    """Stands for SIGKILL: nothing that would run afterwards may be relied on."""


def fingerprint(folder: Path) -> str:
    return load_model(folder).fingerprint()


def test_killed_at_every_renaming(
    models: tuple[Recommender, Recommender], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between any two renamings the directory is as a killed process would leave it: a copy of it is looked at."""
    old, new = models
    old.save(tmp_path / "run")
    states: list[Path] = []
    replace = os.replace

    def look(source: object, target: object, **more: object) -> None:
        copy = tmp_path / f"state{len(states)}"
        shutil.copytree(tmp_path / "run", copy)
        states.append(copy)
        replace(source, target, **more)

    monkeypatch.setattr(os, "replace", look)
    new.save(tmp_path / "run")
    monkeypatch.undo()
    before, after = old.fitted_model().fingerprint(), new.fitted_model().fingerprint()
    found = [fingerprint(state) for state in states]
    assert set(found) == {before, after}
    assert found == sorted(found, key=[before, after].index)  # one swap
    assert len(states) >= 2 * len(FILES)
    for state in states:  # saving again clears up
        new.save(state)
        assert {path.name for path in state.iterdir()} == {*FILES, "model.json"}
        assert fingerprint(state) == after


def test_a_failed_save_leaves_the_old_model_and_no_files(
    models: tuple[Recommender, Recommender], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = models
    old.save(tmp_path / "run")
    write = store.replace_file
    for fails in range(3):
        left = fails

        def full(path: Path, how: Callable[[Path], object]) -> None:
            nonlocal left
            if left == 0:
                raise TalosError(f"{path} could not be written (no space)")
            left -= 1
            write(path, how)

        monkeypatch.setattr(store, "replace_file", full)
        with pytest.raises(TalosError, match="no space"):
            new.save(tmp_path / "run")
        assert fingerprint(tmp_path / "run") == old.fitted_model().fingerprint()
        assert {path.name for path in (tmp_path / "run").iterdir()} == {*FILES, "model.json"}


def test_every_bit_of_model_json_counts(models: tuple[Recommender, Recommender], tmp_path: Path) -> None:
    models[0].save(tmp_path / "run")
    wanted = load_model(tmp_path / "run").metadata
    path = tmp_path / "run" / "model.json"
    content = path.read_bytes()
    for place in range(0, len(content), 7):
        bad = bytearray(content)
        bad[place] ^= 1 << (place % 8)
        path.write_bytes(bad)
        try:
            assert store._read_metadata(tmp_path / "run") == wanted
        except DataError:
            pass


@pytest.mark.parametrize("number", [1, 5])
def test_runs_of_older_versions_are_refused_with_the_version_that_reads_them(
    models: tuple[Recommender, Recommender], tmp_path: Path, number: int
) -> None:
    models[0].save(tmp_path / "run")
    path = tmp_path / "run" / "model.json"
    facts = json.loads(path.read_text())
    del facts["sha256"]
    path.write_text(json.dumps({**facts, "format": number}))
    with pytest.raises(DataError, match=rf"format {number}; expected format 6 \(Talos 0\.2 reads"):
        load_model(tmp_path / "run")
    path.write_text(json.dumps(facts))
    with pytest.raises(DataError, match="differs from its own checksum"):
        load_model(tmp_path / "run")


def test_files_of_somebody_else_are_not_replaced(
    models: tuple[Recommender, Recommender], tmp_path: Path
) -> None:
    (tmp_path / "users.parquet").write_text("mine")
    with pytest.raises(ArgumentError, match=r"users\.parquet: is not of a model"):
        models[0].save(tmp_path)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("users.parquet", "mine")]


def test_a_folder_in_use_is_refused(models: tuple[Recommender, Recommender], tmp_path: Path) -> None:
    import threading

    found: list[str] = []

    def save() -> None:
        try:
            models[0].save(tmp_path / "run")
        except InUseError as error:
            found.append(str(error))

    with lock_run(tmp_path / "run", "training"):
        thread = threading.Thread(target=save)
        thread.start()
        thread.join()
        models[1].save(tmp_path / "run")  # who holds the lock may save
    assert f"being written by process {os.getpid()} (training" in found[0]
    assert fingerprint(tmp_path / "run") == models[1].fitted_model().fingerprint()


def test_what_was_created_for_nothing_is_removed(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), lock_run(tmp_path / "a" / "b", "training"):
        raise RuntimeError
    assert not list(tmp_path.iterdir())
