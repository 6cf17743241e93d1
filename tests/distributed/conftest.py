"""Groups of processes on this machine, joined over loopback."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

Job = dict[str, Any]


class Outcome:
    """What the ranks left behind."""

    def __init__(self, out: Path, size: int) -> None:
        self.out, self.size = out, size

    def facts(self, name: str, rank: int = 0) -> dict[str, Any]:
        return json.loads((self.out / f"{name}.{rank}.json").read_text())

    def tensors(self, name: str, rank: int = 0) -> dict[str, torch.Tensor]:
        found = self.facts(name, rank)
        assert "error" not in found, found["error"]
        return load_file(self.out / f"{name}.{rank}.safetensors")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def rank_environment(rank: int, size: int, port: int, **more: str) -> dict[str, str]:
    return {
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
        "TALOS_TIMEOUT": "120",
        **more,
    }


def launch(size: int, out: Path, jobs: Sequence[Job]) -> Outcome:
    """Run jobs one after the other on `size` ranks."""
    out.mkdir(parents=True, exist_ok=True)
    plan, port = out / f"plan-{size}.json", free_port()
    plan.write_text(json.dumps({"out": str(out), "jobs": list(jobs)}))
    ranks = [
        subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("worker.py")), str(plan)],
            env=rank_environment(rank, size, port),
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    for rank, process in enumerate(ranks):
        _, errors = process.communicate(timeout=170)
        assert process.returncode == 0, f"rank {rank} of {size}: {errors}"
    return Outcome(out, size)


@pytest.fixture
def group_run(tmp_path: Path) -> Callable[..., Outcome]:
    return lambda size, jobs, out=None: launch(size, out or tmp_path, jobs)


@pytest.fixture(scope="session")
def launched() -> Callable[..., Outcome]:
    return launch


@pytest.fixture(scope="session")
def environment() -> Callable[..., dict[str, str]]:
    return rank_environment


@pytest.fixture(scope="session")
def new_port() -> Callable[[], int]:
    return free_port


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture(scope="session")
def outcome() -> Callable[..., Outcome]:
    return lambda out: Outcome(out, 0)
