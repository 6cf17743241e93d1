"""Eight times as many users need no more memory, beyond the model itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import json, sys
import numpy as np, polars as pl, torch
from talos.model.model import Model, Vectors
from talos.exports import write_lists
from talos.data.interactions import Interactions
from talos.data.vocabulary import Vocabulary
users, items, rng = int(sys.argv[1]), 300, np.random.default_rng(0)
train = Interactions.from_codes(
    rng.integers(0, users, 3 * users), rng.integers(0, items, 3 * users),
    user_ids=Vocabulary(pl.Series([f"user{u:08d}" for u in range(users)])),
    item_ids=Vocabulary(pl.Series([f"item{i:08d}" for i in range(items)])))
model = Model(scored_by=Vectors(torch.randn(users, 8), torch.randn(items, 8)), train=train)
def status(name):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name)) / 1024
open("/proc/self/clear_refs", "w").write("5")  # the peak starts from here
before = status("VmRSS")
rows = write_lists(model, sys.argv[2], k=20)["rows"]
print(json.dumps({"rows": rows, "added": status("VmHWM") - before}))
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["recs.parquet", "recs.csv", "recs.db"])
def test_memory_does_not_grow_with_the_users(tmp_path: Path, name: str) -> None:
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("peak memory is read from Linux's /proc")
    added = {}
    for users in (50_000, 400_000):
        out = str(tmp_path / f"{users}{name}")
        address = f"sqlite:///{out}" if name.endswith("db") else out
        done = subprocess.run(
            [sys.executable, "-c", CODE, str(users), address],
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        )
        result = json.loads(done.stdout)
        assert result["rows"] == 20 * users
        added[users] = result["added"]
    assert added[400_000] < added[50_000] + 64, added
    assert added[400_000] < 400, added
