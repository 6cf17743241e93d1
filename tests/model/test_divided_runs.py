"""Runs that several processes wrote: read as one, or a part of the users each, by any number of processes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from talos.data.datasets import synthetic
from talos.distributed import Group
from talos.errors import DataError, TalosError
from talos.files import sealed_text
from talos.model.model import Model, Vectors
from talos.model.recommender import Recommender
from talos.model.store import load_model, save_model

InThreads = Callable[[int, Callable[[Group], Any]], list[Any]]


@pytest.fixture
def whole() -> Model:
    parts = synthetic(users=41, items=30, interactions=500, seed=0).split(seed=0)
    vectors = torch.Generator().manual_seed(0)
    return Model(
        scored_by=Vectors(
            torch.randn(41, 4, generator=vectors),
            torch.randn(30, 4, generator=vectors),
            torch.randn(41, generator=vectors),
        ),
        train=parts.train,
        valid=parts.valid,
        metadata={"config": {"k": 3}, "metrics": {"recall@3": 0.5}},
    )


def part_of(model: Model, users: range) -> Model:
    rows = slice(users.start, users.stop)
    assert model.vectors.thresholds is not None
    return replace(
        model,
        scored_by=Vectors(model.vectors.users[rows], model.vectors.items, model.vectors.thresholds[rows]),
        train=model.train.user_range(users),
        valid=None if model.valid is None else model.valid.user_range(users),
        users=users,
    )


def same(found: Model, wanted: Model) -> None:
    for name in ("users", "items", "thresholds"):
        assert torch.equal(getattr(found.vectors, name), getattr(wanted.vectors, name)), name
    assert found.train.fingerprint() == wanted.train.fingerprint()
    assert found.valid is not None
    assert wanted.valid is not None
    assert found.valid.fingerprint() == wanted.valid.fingerprint()


@pytest.fixture
def run(whole: Model, tmp_path: Path, in_threads: InThreads) -> Path:
    folder = tmp_path / "run"
    in_threads(3, lambda group: save_model(part_of(whole, group.range_of(41)), folder, group=group))
    return folder


def test_a_run_of_three_is_read_as_one(run: Path, whole: Model) -> None:
    same(load_model(run), whole)
    names = {path.name for path in run.iterdir()}
    assert names == {
        "model.json", "model.safetensors", "users.parquet", "items.parquet",
        "users-0-13.safetensors", "users-13-27.safetensors", "users-27-41.safetensors",
    }  # fmt: skip
    facts = json.loads((run / "model.json").read_text())
    assert facts["format"] == 6
    assert len(facts["user_files"]) == 3
    assert facts["metrics"] == {"recall@3": 0.5}
    again = run.parent / "again"  # saved by one, it is an ordinary run
    Recommender.load(run).save(again)
    assert "user_files" not in json.loads((again / "model.json").read_text())
    same(load_model(again), whole)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_each_of_any_number_of_processes_gets_its_own_users(
    run: Path, whole: Model, in_threads: InThreads, size: int
) -> None:
    alone = run.parent / "alone"
    save_model(whole, alone)
    for folder in (run, alone):
        for rank, found in enumerate(in_threads(size, lambda group, f=folder: load_model(f, group=group))):
            users = range(41 * rank // size, 41 * (rank + 1) // size)
            assert found.users == users
            same(found, part_of(whole, users))


def test_damage_is_named(run: Path, in_threads: InThreads) -> None:
    path = run / "users-13-27.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-4] + b"\0\0\0\0")
    with pytest.raises(DataError, match=r"users-13-27.safetensors: differs from its checksum"):
        load_model(run)
    path.unlink()
    with pytest.raises(DataError, match=r"users-13-27.safetensors: is missing"):
        load_model(run)
    path.write_bytes(content)
    facts = json.loads((run / "model.json").read_text())
    for files in ([[0, 13], [27, 41]], [[0, 41, 1]], [["x", 3]], [[0, 13], [13, 27], [27, 40]], 7):
        (run / "model.json").write_text(sealed_text({**facts, "user_files": files}))
        with pytest.raises(DataError, match=r"user_files|no key"):
            load_model(run)


def test_if_one_cannot_write_nothing_appears(whole: Model, tmp_path: Path, in_threads: InThreads) -> None:
    folder = tmp_path / "run"

    def work(group: Group) -> str:
        part = part_of(whole, group.range_of(41))
        if group.rank == 1:
            (folder / "users-20-41.safetensors").mkdir(parents=True)
        try:
            save_model(part, folder, group=group)
        except TalosError as error:
            return str(error)
        return ""

    first, second = in_threads(2, work)
    assert "rank 1 could not do its part" in first
    assert "users-20-41.safetensors could not be written" in second
    assert not (folder / "model.json").exists()
