"""What the torture tests share: a seed, a budget of time, and a process whose files can be made to fail.

`make torture` runs them at length, each row to its full number of tries, but no longer than `TALOS_TORTURE_SECONDS`;
without it each is a short version of itself that belongs to `make test`. `TALOS_TORTURE_SEED` chooses the moments and
the damage. With a file as `TALOS_TORTURE_PROGRESS` a run that was stopped goes on where it was.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

HERE = Path(__file__).parent
KILL, FAIL, SHORT = 1, 2, 3


class Row:
    """The tries of one row of the table: numbers, and counts of what became of them.

    The short version makes a few tries. The long one goes on until the row has its full number or its time is over;
    with a progress file it begins where the last run with the same seed stopped. A try is known by the seed and its
    number alone, so it can be made again by itself.
    """

    def __init__(self, budget: Budget, name: str, short: int, full: int) -> None:
        self.budget, self.name, self.counts = budget, name, Counter[str]()
        self.total = full if budget.seconds else short
        known = budget.known().get(name, {})
        self.done = int(known.pop("tries", 0))
        self.counts.update(known)

    def rng(self, number: int) -> random.Random:
        """The random numbers of one try."""
        return random.Random(f"{self.budget.seed}/{self.name}/{number}")

    def __iter__(self) -> Iterator[int]:
        began = written = time.monotonic()
        try:
            while self.done < self.total:
                yield self.done
                self.done += 1
                now = time.monotonic()
                if self.budget.seconds and now - began > self.budget.seconds:
                    break
                if now - written > 1:
                    written = now
                    self.budget.note(self)
        finally:
            self.budget.note(self)
            facts = ", ".join(f"{count:,} {what}" for what, count in sorted(self.counts.items()))
            print(f"{self.name}: {self.done:,} of {self.total:,}; {facts} (seed {self.budget.seed})")


@dataclass
class Budget:
    """What the environment asks for: a short version, or a long one of so many seconds a row."""

    seconds: float
    seed: int
    progress: Path | None = None

    def row(self, name: str, *, short: int, full: int) -> Row:
        return Row(self, name, short, full)

    def known(self) -> dict[str, dict[str, int]]:
        """The counts of all rows so far, by name."""
        if self.progress is None or not self.progress.exists():
            return {}
        found: dict[str, Any] = json.loads(self.progress.read_text())
        return dict(found.get(str(self.seed), {}))

    def note(self, row: Row) -> None:
        """Write down how far a row is."""
        if self.progress is None:
            return
        seeds = json.loads(self.progress.read_text()) if self.progress.exists() else {}
        seeds.setdefault(str(self.seed), {})[row.name] = {"tries": row.done, **row.counts}
        temporary = self.progress.with_name(f"{self.progress.name}.{os.getpid()}")
        temporary.write_text(json.dumps(seeds, indent=1))
        temporary.replace(self.progress)


@pytest.fixture(scope="session")
def budget() -> Budget:
    progress = os.environ.get("TALOS_TORTURE_PROGRESS")
    return Budget(
        seconds=float(os.environ.get("TALOS_TORTURE_SECONDS", "0")),
        seed=int(os.environ.get("TALOS_TORTURE_SEED", "0")),
        progress=Path(progress) if progress else None,
    )


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
        return self._do([work], below, fault)[0]

    def together(self, *works: tuple[object, ...], below: Path) -> list[Done]:
        """Do several pieces of work at the same time, each in a process of its own."""
        return self._do(works, below, {"at": -1, "kind": 0, "error": 0, "forever": 0})

    def _do(self, works: Sequence[tuple[object, ...]], below: Path, fault: dict[str, int]) -> list[Done]:
        jobs = [
            {"work": [str(part) for part in work], "below": str(below), "fault": fault, "seconds": 600}
            for work in works
        ]
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(jobs) + "\n")
        self.process.stdin.flush()
        outcomes = [Done(**outcome) for outcome in self._receive()]
        for work, done in zip(works, outcomes, strict=True):
            assert not done.hung, work
        return outcomes

    def _receive(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        with self.process:
            self.process.kill()  # it holds nothing, and taking all its modules apart would take seconds


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
