"""Loading a model and recommending imports no trainer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

from talos.data.interactions import Interactions
from talos.model.recommender import Recommender

CODE = """
import sys
import talos
from talos.data.interactions import Interactions

model = talos.Recommender.load(sys.argv[1])
assert len(model.recommend([0, 1], k=3)) == 6
assert len(model.recommend(history=[1, 2], k=3)) == 3
model.recommend(["nobody"], on_unknown="popular")
model.similar_items(1, k=3)
model.similar_users(1, k=3)
model.explain(0, 3)
model.evaluate(Interactions.from_ids([0, 1], [4, 5]), k=3)
talos.exports.write_lists(model, sys.argv[2])
model.save(sys.argv[1])
print("\\n".join(name for name in sys.modules if name.startswith("talos")))
"""
UNWANTED = (
    "talos.training",
    "talos.studies",
    "talos.data.open",
    "talos.data.datasets",
    "talos.data.shards",
)


def test_loading_and_recommending_import_no_trainer(tmp_path: Path) -> None:
    pairs = np.argwhere(np.random.default_rng(0).random((30, 20)) < 0.3)
    run = tmp_path / "run"
    Recommender(k=3, dim=4, epochs=1).fit(Interactions.from_ids(pairs[:, 0], pairs[:, 1])).save(run)
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(run), str(tmp_path / "recs.csv")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    loaded = done.stdout.split()
    assert "talos.model.fold_in" in loaded
    assert [name for name in loaded if name.startswith(UNWANTED)] == []
