"""Many rounds of fit, save, load and recommend: memory stays flat, and no file, process or open file is left."""

from __future__ import annotations

import gc
import os
import resource
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from talos.data.interactions import Interactions
from talos.model.recommender import Recommender

WARM = 20  # rounds until caches and thread pools have their size


def resident() -> int:
    """Bytes of memory that this process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def children() -> str:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_soak(budget: Any, tmp_path: Path) -> None:
    pairs = np.argwhere(np.random.default_rng(0).random((30, 20)) < 0.4)
    data = Interactions.from_ids(pairs[:, 0], pairs[:, 1])
    memory: list[int] = []
    before = children()
    wanted: Any = None
    row = budget.row("soak", short=2 * WARM, full=2_000)
    row.done = 0  # one process from the first round on: a soak cannot be continued
    for number in row:
        model = Recommender(k=3, dim=4, epochs=1).fit(data, run=tmp_path / "run")
        model.save(tmp_path / "run")
        found = Recommender.load(tmp_path / "run").recommend(k=3)
        wanted = found if wanted is None else wanted
        assert found.equals(wanted), number
        del model, found
        if number >= WARM:
            gc.collect()
            memory.append(resident())
        if number == WARM:
            files, opened = sorted(map(str, tmp_path.rglob("*"))), open_files()
    assert sorted(map(str, tmp_path.rglob("*"))) == files
    assert open_files() <= opened
    assert children() == before
    third = max(1, len(memory) // 3)
    early, late = float(np.median(memory[:third])), float(np.median(memory[-third:]))
    print(f"soak: {early / 2**20:.1f} MB early, {late / 2**20:.1f} MB late")
    assert late < 1.05 * early
