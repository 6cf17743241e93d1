"""What `init` and `train` say before training: the temperature, the memory, refused combinations."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Run = Callable[..., Any]
RACED = "tau: raced on validation, starting from 0.045 to 0.2"


def test_a_temperature_that_a_race_decides_is_not_called_chosen(talos: Run, clicks: Path) -> None:
    shown = talos("train", clicks, "--explain", "--k", 5)
    assert shown.returncode == 0, shown.stderr
    assert f"open             {RACED}" in shown.stdout
    assert "chosen           tau" not in shown.stdout
    assert 'tau = "auto"' in shown.stdout
    facts = json.loads(talos("train", clicks, "--explain", "--k", 5, "--json").stdout)
    assert RACED in facts["notes"]
    assert not [note for note in facts["notes"] if note.startswith("tau 0")]
    assert facts["config"]["loss"]["tau"] == "auto"
    written = talos("init", clicks, "--json")
    assert RACED in json.loads(written.stdout)["notes"]
    assert f"# auto means here: {RACED}" in (clicks.parent / "run.toml").read_text()


def test_a_temperature_without_a_race_is_the_chosen_one(talos: Run, clicks: Path) -> None:
    for arguments in (("--valid", 0), ("--epochs", 3)):
        facts = json.loads(talos("train", clicks, "--explain", "--k", 5, *arguments, "--json").stdout)
        assert [note for note in facts["notes"] if note.startswith("tau 0")], arguments
        assert isinstance(facts["config"]["loss"]["tau"], float)


def test_the_memory_is_said_before_training(talos: Run, clicks: Path) -> None:
    arguments = (clicks, "--k", 5, "--dim", 8, "--epochs", 1)
    facts = json.loads(talos("train", *arguments, "--explain", "--json").stdout)
    done = talos("train", *arguments, "--out", "run")
    assert done.returncode == 0, done.stderr
    assert f"memory: {facts['memory_mb']:,.1f} MB at the peak" in done.stderr
    assert done.stderr.index("memory: ") < done.stderr.index("epoch")


def test_positive_power_with_negatives_per_positive_is_refused(talos: Run, clicks: Path) -> None:
    power = ("--set", "loss.positive_power=0.2")
    for negatives, code in (("16", 2), ("shared:16", 0), ("all", 0)):
        done = talos("train", clicks, "--explain", "--k", 5, "--negatives", negatives, *power)
        assert done.returncode == code, done.stderr
    refused = talos("train", clicks, "--out", "run", "--k", 5, "--negatives", 16, *power)
    assert refused.returncode == 2
    assert "loss.positive_power: 0.2 with '16' negatives per positive" in refused.stderr
    assert "'all' or 'shared:N'" in refused.stderr
    assert not (clicks.parent / "run").exists()
