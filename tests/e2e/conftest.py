"""The command as tests run it: in this process, or started as one of its own; and clicks to run it on."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from talos.cli import main

Done = subprocess.CompletedProcess[str]


@pytest.fixture
def talos(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., Done]]:
    """The command in this process: starting one for each call takes longer than all that they do."""
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)

    def run(*arguments: object) -> Done:
        line = ["talos", *map(str, arguments)]
        monkeypatch.setattr(sys, "argv", line)
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return subprocess.CompletedProcess(line, int(ended.value.code or 0), *capsys.readouterr())

    yield run
    torch.set_num_threads(threads)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts the command as a process of its own, to be sent signals or looked at from outside.

    Its output is read with `communicate`; `before` is what stands before the command on the line. What still runs at
    the end of a test is killed.
    """
    started: list[subprocess.Popen[str]] = []

    def begin(
        *arguments: object, cwd: Path = tmp_path, before: tuple[str, ...] = ()
    ) -> subprocess.Popen[str]:
        options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        line = [*before, sys.executable, "-m", "talos", *map(str, arguments)]
        process = subprocess.Popen(line, cwd=cwd, env={**os.environ, "OMP_NUM_THREADS": "1"}, **options)
        started.append(process)
        return process

    yield begin
    for process in started:
        with process:  # closes its pipes and waits
            process.kill()


@pytest.fixture
def written() -> Callable[[Path, subprocess.Popen[str]], None]:
    """Waits until a process has written something to a file, and fails if it ends before or takes too long."""

    def wait(path: Path, process: subprocess.Popen[str], seconds: float = 120.0) -> None:
        end = time.monotonic() + seconds
        while not (path.exists() and path.stat().st_size):
            assert process.poll() is None, (f"{path} did not appear", process.communicate())
            assert time.monotonic() < end, f"{path} did not appear within {seconds:g} s"
            time.sleep(0.02)

    return wait


@pytest.fixture
def clicks(tmp_path: Path) -> Path:
    """Two tastes, and titles that are not to be trusted."""
    rng = np.random.default_rng(0)
    rows = ["user,item,title"]
    for user in range(40):
        liked = rng.permutation(20)[:12] + 20 * (user % 2)
        rows += [f"user{user:02d},item{item:02d},<script>Title {item}</script>" for item in liked]
    path = tmp_path / "clicks.csv"
    path.write_text("\n".join(rows) + "\n")
    return path
