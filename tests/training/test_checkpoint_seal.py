"""A checkpoint of which one bit has changed is not resumed from, nor is one of another format."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from talos.config import RunConfig
from talos.data.interactions import Interactions
from talos.errors import DataError, TalosError
from talos.files import write_sealed
from talos.training import Trainer
from talos.training.callbacks import History, read_history


def trainer(data: Interactions, folder: Path, *, keep: int = 1, epochs: int = 4) -> Trainer:
    training = {"epochs": epochs, "evaluate_every": 1, "checkpoint_every": 1, "keep_checkpoints": keep}
    config = RunConfig.from_dict({"k": 3, "backbone": {"name": "mf", "dim": 4}, "training": training})
    parts = data.split(seed=0)
    return Trainer(config, parts.train, parts.valid, folder=folder)


@pytest.fixture
def folder(random_data: Callable[..., Interactions], tmp_path: Path) -> Path:
    trainer(random_data(), tmp_path / "checkpoint").fit()
    return tmp_path / "checkpoint"


def test_every_flipped_bit_is_refused(random_data: Callable[..., Interactions], folder: Path) -> None:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {path.name for path in files} == {"state.json", "state.safetensors"}
    assert len({path.parent for path in files}) == 2  # the checkpoint and the best weights
    data = random_data()
    for path in files:
        content = path.read_bytes()
        for place in range(0, len(content), max(1, len(content) // 25)):
            bad = bytearray(content)
            bad[place] ^= 1 << (place % 8)
            path.write_bytes(bad)
            with pytest.raises(DataError, match="no checkpoint can be read"):
                trainer(data, folder).resume()
        path.write_bytes(content)
    assert trainer(data, folder).resume()


def test_a_damaged_one_is_passed_over_for_the_one_before(
    random_data: Callable[..., Interactions], tmp_path: Path
) -> None:
    data = random_data()
    whole = trainer(data, tmp_path / "whole", keep=2)
    whole.fit()
    other = trainer(data, tmp_path / "part", keep=2)
    other.fit()
    newest = sorted((tmp_path / "part").glob("0*"))[-1] / "state.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1] + b"\x7f")
    resumed = trainer(data, tmp_path / "part", keep=2)
    assert resumed.resume()
    assert resumed.position.epoch == 3
    resumed.fit()
    for mine, theirs in zip(resumed.vectors(), whole.vectors(), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("number", [1, 2, 4])
def test_one_of_another_format_is_refused(
    random_data: Callable[..., Interactions], folder: Path, number: int
) -> None:
    (path,) = folder.glob("0*/state.json")
    facts = json.loads(path.read_text())
    write_sealed(path, {**facts, "format": number})
    with pytest.raises(DataError, match=rf"format {number}; expected 3 \(Talos 0\.2 reads .* format 2\)"):
        trainer(random_data(), folder).resume()
    del facts["sha256"]
    path.write_text(json.dumps(facts))  # without a digest of itself
    with pytest.raises(DataError, match="differs from the digest it carries"):
        trainer(random_data(), folder).resume()


def test_best_weights_without_a_checkpoint_are_removed(
    random_data: Callable[..., Interactions], folder: Path
) -> None:
    (folder / "best-00000009").mkdir()  # of a process that was killed before its checkpoint
    (folder / ".00000009-00000000.tmp").mkdir()
    found = trainer(random_data(), folder)
    assert found.resume()
    found.save()
    assert [path.name for path in folder.glob("best-*")] == [f"best-{found.position.best_epoch:08d}"]
    assert not list(folder.glob(".*"))
    again = trainer(random_data(), folder)
    assert again.resume()
    again.fit()


def test_a_full_disk_under_the_history(tmp_path: Path, full_disk: Any) -> None:
    history = History(tmp_path / "history.jsonl")
    record = {"epoch": 1, "loss": 0.5, "seconds": 0.0, "metrics": {}}
    history.on_start(0, 2, 1)
    history.on_epoch(record)
    with (
        full_disk(history.path.stat().st_size + 20),
        pytest.raises(TalosError, match=r"history\.jsonl could not be written"),
    ):
        history.on_epoch({**record, "epoch": 2})
    assert read_history(history.path) == [record]  # what was written of the second line is none


def test_the_history_is_checked_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    history = History(path)
    history.on_start(0, 3, 1)
    records = [{"epoch": epoch, "loss": 0.1 * epoch, "seconds": 0.0, "metrics": {}} for epoch in (1, 2, 3)]
    for record in records:
        history.on_epoch(record)
    assert read_history(path) == records
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines)[:-5])  # killed while it wrote
    assert read_history(path) == records[:2]
    path.write_text(lines[0] + lines[1].replace("0.2", "0.3") + lines[2])
    with pytest.raises(DataError, match=r"history\.jsonl, line 2: is damaged: it differs from its checksum"):
        read_history(path)
    old = '{"epoch": 1, "loss": 0.5, "seconds": 1, "metrics": {"recall@5": 0.1}}\n'  # has no checksum
    wrong = (("0.5", '"x"'), ("0.5", "true"), ("0.1", "[]"), ("0.1", "null"), ('"seconds": 1, ', ""))
    others = [old.replace(*change) for change in (*wrong, ('{"recall@5": 0.1}', "3"))]
    for strange in ("my notes\n", "[1]\n", '{"a": 1}\n', "\xff\n", '{"epoch": 1}\n', *others):
        path.write_text(strange, encoding="latin-1")
        with pytest.raises(DataError, match="expected a line of a history"):
            read_history(path)
    path.write_text(old)
    with pytest.raises(DataError, match="line 1: is damaged: it differs from its checksum"):
        read_history(path)
