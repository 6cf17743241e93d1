"""From files to lists nothing grows with users × items: no array has even one byte for each pair."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from talos.config import RunConfig
from talos.data.datasets import PlantedTastes, write_planted
from talos.data.open import open_split
from talos.evaluation import evaluate, ranking
from talos.exports import write_lists
from talos.kernels import core, topk
from talos.model.recommender import Recommender

USERS = ITEMS = 2500


class LargestTensor(TorchDispatchMode):
    """Notes the bytes of the largest tensor that any operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for part in tree_leaves(result):
            if isinstance(part, torch.Tensor) and part.layout == torch.strided:
                self.bytes = max(self.bytes, part.untyped_storage().nbytes())
        return result


@pytest.fixture
def small_budgets(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a chunk may take, of which the pairs of small data would be a part, is small as well."""
    for function in (ranking.iter_top_k, ranking.top_k, evaluate.evaluate):
        monkeypatch.setitem(function.__kwdefaults__, "budget", 1 << 18)  # type: ignore[arg-type]
    monkeypatch.setattr(topk, "_TILE", 256)


@pytest.mark.parametrize("tiled", [False, True])
def test_no_array_has_a_byte_for_each_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_budgets: None, tiled: bool
) -> None:
    monkeypatch.setattr(topk, "TILED_FROM", 1 if tiled else 1 << 40)
    scratch: list[int] = []
    take = core.scratch.take
    monkeypatch.setattr(core.scratch, "take", lambda size: (scratch.append(size), take(size))[1])
    every_step(tmp_path / "first", users=50, items=ITEMS // 50, events=500)  # imports whatever it needs
    tracemalloc.start()
    with LargestTensor() as largest:
        every_step(tmp_path / "second", users=USERS, items=ITEMS, events=25_000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    pairs = USERS * ITEMS
    assert 0 < largest.bytes < pairs / 3
    assert peak < pairs  # numpy's arrays and everything of Python together
    assert max(scratch, default=0) < pairs


def every_step(folder: Path, *, users: int, items: int, events: int) -> None:
    """Generate, read, train, evaluate, and write lists."""
    world = PlantedTastes(users=users, items=items, events=events, dim=4, held_out=400, events_at_once=5000)
    values = {"negatives": "shared:16", "training.epochs": 1, "training.batch_size": 64, "backbone.dim": 8}
    write_planted(world, folder)
    parts = open_split(folder)
    model = Recommender(config=RunConfig(k=5).with_values(values)).fit(parts.train, parts.valid)
    model.evaluate(parts.test, (5,))
    write_lists(model, folder / "lists.parquet", k=5)
