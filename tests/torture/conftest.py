"""What the torture tests share: a seed, a budget of time, and a process whose files can be made to fail.

`make torture` runs them at length, `TALOS_TORTURE_SECONDS` for each row; without it each is a short version of itself
that belongs to `make test`. `TALOS_TORTURE_SEED` chooses the moments and the damage.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

HERE = Path(__file__).parent
KILL, FAIL, SHORT = 1, 2, 3


@dataclass
class Budget:
    """How long a row may take: a number of tries in the short version, a time in the long one."""

    seconds: float
    seed: int
    began: float = 0.0

    @property
    def rng(self) -> random.Random:
        return random.Random(self.seed)

    def tries(self, short: int) -> Iterator[int]:
        """Numbers of tries: `short` of them, or as many as the time allows, but no fewer."""
        began, number = time.monotonic(), 0
        while number < short or time.monotonic() - began < self.seconds:
            yield number
            number += 1


@pytest.fixture(scope="session")
def budget() -> Budget:
    seconds = float(os.environ.get("TALOS_TORTURE_SECONDS", "0"))
    return Budget(seconds=seconds, seed=int(os.environ.get("TALOS_TORTURE_SEED", "0")))


@dataclass
class Done:
    """What became of a job."""

    code: int
    stderr: str
    stdout: str
    calls: int
    hung: bool = False


class ForkServer:
    """Runs functions of `fork_server.py`, each in a process of its own, with or without a fault."""

    def __init__(self, library: Path, cwd: Path) -> None:
        environment = {
            **os.environ,
            "LD_PRELOAD": str(library),
            "OMP_NUM_THREADS": "1",
            "POLARS_MAX_THREADS": "2",
        }
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "fork_server.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            cwd=cwd,
            text=True,
        )
        self._receive()

    def run(
        self, *work: object, below: Path, kind: int = 0, at: int = -1, error: int = 0, forever: bool = False
    ) -> Done:
        """Do some work; the `at`-th change of a file below a folder goes wrong."""
        fault = {"at": at, "kind": kind, "error": error, "forever": int(forever)}
        job = {"work": [str(part) for part in work], "below": str(below), "fault": fault, "seconds": 600}
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        done = Done(**self._receive())
        assert not done.hung, work
        return done

    def _receive(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        with self.process:  # closes its pipes, by which it ends
            pass


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("needs Linux and a C compiler")
    folder = tmp_path_factory.mktemp("faults")
    library = folder / "faults.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-o", library, HERE / "faults.c", "-ldl"], check=True
    )
    server = ForkServer(library, folder)
    yield server
    server.close()


@pytest.fixture(scope="session")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two tastes, 40 users."""
    rng = np.random.default_rng(0)
    rows = ["user,item"]
    for user in range(40):
        rows += [f"user{user:02d},item{item:02d}" for item in rng.permutation(20)[:12] + 20 * (user % 2)]
    path = tmp_path_factory.mktemp("clicks") / "clicks.csv"
    path.write_text("\n".join(rows) + "\n")
    return path


@pytest.fixture(scope="session")
def content() -> Callable[[Path], dict[str, bytes]]:
    """The bytes of all files below a folder, by name."""

    def read(folder: Path) -> dict[str, bytes]:
        return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}

    return read
