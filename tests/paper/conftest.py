"""A data set small enough to run the paper's recipes on, in the layout of the real ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from talos.data.datasets import synthetic
from talos_paper import datasets
from talos_paper.recipes import Recipe, recipe
from talos_paper.results import ResultStore
from talos_paper.runs import Runner


@pytest.fixture(scope="session")
def small_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a made-up `beauty`: parts, and all interactions with timestamps."""
    root = tmp_path_factory.mktemp("data")
    made = synthetic(users=80, items=100, interactions=1600, seed=0)
    parts = made.split(seed=0, paper=True)
    (root / "beauty").mkdir()
    for name, part in parts.parts.items():
        part.to_polars().select("user_id", "item_id").write_csv(
            root / "beauty" / f"{name}.tsv", separator="\t"
        )
    stamps = np.random.default_rng(0).permutation(len(made))
    frame = made.to_polars().select("user_id", "item_id").with_columns(timestamp=pl.Series(stamps))
    frame.write_csv(root / "beauty" / "interactions.tsv", separator="\t")
    return root


@pytest.fixture
def store(tmp_path: Path) -> ResultStore:
    return ResultStore(tmp_path / "results")


@pytest.fixture
def runner(store: ResultStore, tmp_path: Path, small_data: Path) -> Runner:
    return Runner(
        store,
        tmp_path / "work",
        lambda dataset, scenario: datasets.load(dataset, scenario, folder=small_data),
    )


@pytest.fixture
def short() -> Recipe:
    """A fit of a few epochs."""
    changes = {
        "training.epochs": 6,
        "training.evaluate_every": 2,
        "backbone.dim": 8,
        "training.batch_size": 16,
    }
    return recipe("beauty", "mf", "talos", changes=changes)
