"""The example and every Python block of the pages on losses and thresholds run as they stand."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCKS = [
    pytest.param(block, id=f"{page}-{number}")
    for page in ("use-the-loss", "losses", "thresholds")
    for number, block in enumerate(
        re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / f"{page}.md").read_text("utf-8"), re.M | re.S)
    )
]


@pytest.mark.parametrize("block", BLOCKS)
def test_block_runs(block):
    exec(compile(block, "<docs>", "exec"), {})


def test_two_tower_example():
    example = runpy.run_path(str(ROOT / "examples" / "two_tower.py"))
    talos, plain = (example["train_towers"](plain=plain) for plain in (False, True))
    assert talos > 0.15
    assert talos > plain - 0.02


def test_benchmarks_give_what_they_print():
    times = runpy.run_path(str(ROOT / "benchmarks" / "losses.py"))["loss_times"](rows=8, columns=8, repeats=1)
    assert set(times["seconds"]) == {*times["over_sl"]}
    assert times["talos_with_threshold_over_sl"] > 0
    errors = runpy.run_path(str(ROOT / "benchmarks" / "thresholds.py"))["threshold_errors"](
        users=5, items=200, k=3, samples=(20,), steps=(5,)
    )
    assert {row["threshold"] for row in errors} == {"regression", "monte-carlo"}
