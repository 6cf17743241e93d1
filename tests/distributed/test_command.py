"""`torchrun … -m talos train`: the same command, the same run directory, also when processes are killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from talos import Recommender
from talos.training.callbacks import read_history

OPTIONS = ("--k", "5", "--dim", "8", "--batch-size", "16", "--valid", "0.2", "--seed", "3",
           "--set", "training.arithmetic=float32")  # fmt: skip


@pytest.fixture(scope="module")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(1)
    rows = [f"u{user},i{item}" for user in range(90) for item in range(40)
            if rng.random() < (0.5 if item % 5 == user % 5 else 0.08)]  # fmt: skip
    path = tmp_path_factory.mktemp("clicks") / "clicks.csv"
    path.write_text("user_id,item_id\n" + "\n".join(rows) + "\n")
    return path


def plain_environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "TALOS_TIMEOUT": "60"}


def talos(*arguments: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "talos", *map(str, arguments)],
        env=plain_environment(),
        capture_output=True,
        text=True,
        check=False,
    )


def torchrun(ranks: int, *arguments: Any, restarts: int = 0) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}",
            f"--max-restarts={restarts}", "--monitor-interval=0.2", "-m", "talos", *map(str, arguments)]  # fmt: skip


@pytest.fixture(scope="module")
def one_process(clicks: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("alone") / "run"
    done = talos("train", clicks, *OPTIONS, "--epochs", 4, "--out", run)
    assert done.returncode == 0, done.stderr
    return run


@pytest.mark.parametrize(
    ("parallel", "said"), [("users", "users divided"), ("items", "users and items divided")]
)
def test_the_run_directory_is_that_of_one_process(
    clicks: Path, tmp_path: Path, one_process: Path, parallel: str, said: str
) -> None:
    command = ("train", clicks, *OPTIONS, "--epochs", 4, "--out")
    done = subprocess.run(
        torchrun(2, *command, tmp_path / "both", "--parallel", parallel),
        env=plain_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"{said} among 2 processes" in done.stderr
    assert done.stdout.count("written to") == 1
    alone, both = (Recommender.load(run) for run in (one_process, tmp_path / "both"))
    assert alone.model is not None
    assert both.model is not None
    np.testing.assert_allclose(both.model.vectors.users, alone.model.vectors.users, atol=1e-4)
    np.testing.assert_allclose(both.model.vectors.items, alone.model.vectors.items, atol=1e-4)
    assert both.model.metadata["metrics"] == pytest.approx(alone.model.metadata["metrics"], abs=0.002)
    assert len(read_history(tmp_path / "both" / "history.jsonl")) == 4
    assert both.recommend(["u3"], k=2).height == 2


def test_each_training_on_its_own_in_one_directory_is_refused(clicks: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        torchrun(2, "train", clicks, *OPTIONS, "--out", tmp_path / "run", "--parallel", "none"),
        env=plain_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "parallel: 'none' in 2 processes; expected 'users', 'items' or 'auto'" in done.stderr


def children(parent: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                status = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(status[1]) == parent and status[0] != "Z":
                found.append(int(entry.name))
    return sorted(found)


KILLED = ("--epochs", 120, "--patience", 120, "--out")


@pytest.fixture(scope="module")
def undisturbed(clicks: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nobody killed anything of."""
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    assert talos("train", clicks, *OPTIONS, *KILLED, run).returncode == 0
    return run


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc")
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("parallel", ["users", "items"])
def test_a_rank_killed_at_any_moment_is_started_again_and_the_metrics_are_the_same(
    clicks: Path, tmp_path: Path, undisturbed: Path, seed: int, parallel: str
) -> None:
    dice = random.Random(f"{seed} {parallel}")
    run = tmp_path / "both"
    agent = subprocess.Popen(
        torchrun(2, "train", clicks, *OPTIONS, *KILLED, run, "--parallel", parallel, restarts=3),
        env=plain_environment(),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    # from before the first checkpoint to nearly the end
    moment, deadline = dice.randrange(105), time.monotonic() + 120
    history = run / "history.jsonl"
    try:
        while time.monotonic() < deadline and (not history.exists() or len(read_history(history)) < moment):
            time.sleep(0.01)
        os.kill(dice.choice(children(agent.pid)), signal.SIGKILL)
        _, errors = agent.communicate(timeout=300)
    finally:
        agent.kill()
        agent.wait()
    assert agent.returncode == 0, errors
    assert errors.count("divided among 2 processes") == 2  # it did begin again
    alone, both = (Recommender.load(folder) for folder in (undisturbed, run))
    assert alone.model is not None
    assert both.model is not None
    assert both.model.metadata["metrics"] == pytest.approx(alone.model.metadata["metrics"], abs=0.002)
    lines = read_history(history)
    assert [line["epoch"] for line in lines] == list(range(1, len(lines) + 1))
