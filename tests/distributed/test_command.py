"""`torchrun … -m talos train`: the same command, the same run directory, also when processes are killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from talos import Recommender
from talos.training.callbacks import read_history

OPTIONS = ("--k", "5", "--dim", "8", "--batch-size", "16", "--valid", "0.2", "--seed", "3")


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
    np.testing.assert_allclose(both.model.user_vectors, alone.model.user_vectors, atol=1e-4)
    np.testing.assert_allclose(both.model.item_vectors, alone.model.item_vectors, atol=1e-4)
    assert both.model.facts["metrics"] == pytest.approx(alone.model.facts["metrics"], abs=0.002)
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


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc")
@pytest.mark.parametrize(("seed", "parallel"), [(0, "users"), (1, "users"), (2, "items")])
def test_killed_ranks_are_started_again_and_the_metrics_are_the_same(
    clicks: Path, tmp_path: Path, seed: int, parallel: str, history_of: Callable[[Path], int]
) -> None:
    dice = random.Random(seed)
    command = ("train", clicks, *OPTIONS, "--epochs", 300, "--patience", 300, "--out")
    assert talos(*command, tmp_path / "alone").returncode == 0
    run = tmp_path / "both"
    agent = subprocess.Popen(
        torchrun(2, *command, run, "--parallel", parallel, restarts=10),
        env=plain_environment(),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    killed = 0
    try:
        for _ in range(3):
            done = history_of(run)
            deadline = time.monotonic() + 60
            # wait until it is on its way again, then a moment more
            while history_of(run) < done + 8 and agent.poll() is None and time.monotonic() < deadline:
                time.sleep(0.02)
            time.sleep(dice.random())
            ranks = children(agent.pid)
            if agent.poll() is None and ranks:
                os.kill(dice.choice(ranks), signal.SIGKILL)
                killed += 1
        _, errors = agent.communicate(timeout=300)
    finally:
        agent.kill()
        agent.wait()
    assert agent.returncode == 0, errors
    assert killed > 0
    alone, both = (Recommender.load(tmp_path / name) for name in ("alone", "both"))
    assert alone.model is not None
    assert both.model is not None
    assert both.model.facts["metrics"] == pytest.approx(alone.model.facts["metrics"], abs=0.002)
    lines = read_history(run / "history.jsonl")
    assert [line["epoch"] for line in lines] == list(range(1, len(lines) + 1))


@pytest.fixture
def history_of() -> Callable[[Path], int]:
    return lambda run: len(read_history(run / "history.jsonl"))
