"""Lists that several processes write, each for its users: the file that one process would have written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

from talos.data.datasets import synthetic
from talos.distributed import Group
from talos.errors import ArgumentError, TalosError
from talos.exports import write_lists
from talos.model.model import Model, Vectors
from talos.model.store import load_model, save_model

InThreads = Callable[[int, Callable[[Group], Any]], list[Any]]

READERS: dict[str, Callable[[Path], pl.DataFrame]] = {
    ".parquet": pl.read_parquet,
    ".csv": pl.read_csv,
    ".jsonl": pl.read_ndjson,
    ".tsv.gz": lambda path: pl.read_csv(path, separator="\t"),
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    parts = synthetic(users=41, items=30, interactions=500, seed=0).split(seed=0)
    rng = torch.Generator().manual_seed(0)
    users, items = torch.randn(41, 4, generator=rng), torch.randn(30, 4, generator=rng)
    model = Model(scored_by=Vectors(users, items), train=parts.train, valid=parts.valid)
    save_model(replace(model, metadata={"config": {"k": 3}}), tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize("suffix", READERS)
def test_the_file_is_that_of_one_process(run: Path, in_threads: InThreads, suffix: str) -> None:
    alone, both = run.parent / f"alone{suffix}", run.parent / f"both{suffix}"
    expected = write_lists(load_model(run), alone, k=4)
    found = in_threads(3, lambda group: write_lists(load_model(run, group=group), both, k=4, group=group))
    for done in found:
        assert {name: done[name] for name in ("users", "rows", "k")} == {
            name: expected[name] for name in ("users", "rows", "k")
        }
    left, right = (READERS[suffix](path) for path in (both, alone))
    assert left.drop("score").equals(right.drop("score"))
    assert (left["score"] - right["score"]).abs().max() < 1e-5
    assert {path.name for path in run.parent.iterdir()} == {"run", both.name, alone.name}


def test_refusals(run: Path, in_threads: InThreads) -> None:
    taken = run.parent / "taken.csv"
    taken.write_text("mine")

    def work(out: str | Path, error: type[TalosError], match: str) -> None:
        def each(group: Group) -> None:
            with pytest.raises(error, match=match):
                write_lists(load_model(run, group=group), out, group=group)

        in_threads(2, each)

    work(taken, ArgumentError, "exists; expected a new name")
    work("sqlite:///x.db?table=t", ArgumentError, "a database from several processes; expected a file")
    assert taken.read_text() == "mine"
    assert {path.name for path in run.parent.iterdir()} == {"run", "taken.csv"}
