"""A process that has everything imported and forks one child for each job: a command costs milliseconds to start.

Lists of jobs are JSON lines on standard input, lists of outcomes JSON lines on standard output. Nothing is computed
before a fork: the thread pools of polars and torch do not survive one.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import os
import select
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import optuna  # noqa: F401
import torch
import torch._dynamo  # torch imports it with the first optimizer, which takes longer than a whole job

import talos.cli
import talos.data.open
import talos.data.shards
import talos.exports
import talos.report
import talos.studies.tune.search
import talos.training
from talos.model.recommender import Recommender


def command(*arguments: str) -> int:
    """`talos` with these arguments; its exit code."""
    sys.argv = ["talos", *arguments]
    try:
        talos.cli.main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def save_over(run: str, seed: str) -> int:
    """Load a run, learn from a few more interactions and save it over itself."""
    from talos.data.interactions import Interactions

    model = Recommender.load(run)
    users, items = model.fitted_model().train.user_ids.ids, model.fitted_model().train.item_ids.ids
    pairs = [(users[(int(seed) + n) % len(users)], items[n % len(items)]) for n in range(5)]
    model.partial_fit(Interactions.from_ids(*zip(*pairs, strict=True)))
    model.save(run)
    return 0


def fingerprint(run: str) -> int:
    """Print what a run holds, by a hash of its vectors, ids and interactions."""
    print(Recommender.load(run).fitted_model().fingerprint())
    return 0


def check_export(folder: str) -> int:
    """An error unless an export is whole."""
    import polars as pl

    record = json.loads(Path(folder, "export.json").read_text())
    for name in record["files"]:
        assert len(pl.read_parquet(Path(folder, name)))
    return 0


def check_shards(folder: str) -> int:
    """An error unless all shards are whole."""
    talos.data.shards.read_shards(folder)
    return 0


def work(job: dict[str, Any]) -> dict[str, Any]:
    """Do a job; returns its exit code, what it printed, and how often it changed files."""
    faults = ctypes.CDLL(None)
    torch.set_num_threads(1)
    said, printed = io.StringIO(), io.StringIO()
    fault = job["fault"]
    faults.faults_set(
        job["below"].encode(),
        ctypes.c_long(fault["at"]),
        *(fault[name] for name in ("kind", "error", "forever")),
    )
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(printed):
        try:
            name, *arguments = job["work"]
            code = globals()[name](*arguments)
        except talos.errors.TalosError as error:
            code = error.exit_code
            said.write(f"error: {error}")
        except BaseException:
            code = -1
            said.write(traceback.format_exc())
    faults.faults_calls.restype = ctypes.c_long
    calls = faults.faults_calls()
    faults.faults_set(b"", ctypes.c_long(-1), 0, 0, 0)
    return {"code": code, "stderr": said.getvalue(), "stdout": printed.getvalue(), "calls": calls}


class Child:
    """A process that does one job."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.deadline = time.monotonic() + job["seconds"]
        self.receive, send = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            os.close(self.receive)
            with os.fdopen(send, "w") as pipe:
                pipe.write(json.dumps(work(job)))
            os._exit(0)
        os.close(send)

    def outcome(self) -> dict[str, Any]:
        """The outcome of the job; the code of a killed one is the negative number of its signal."""
        content = b""
        while True:
            ready, _, _ = select.select([self.receive], [], [], max(0.0, self.deadline - time.monotonic()))
            if not ready:
                os.killpg(self.pid, signal.SIGKILL)
                break
            piece = os.read(self.receive, 1 << 16)
            if not piece:
                break
            content += piece
        os.close(self.receive)
        _, status = os.waitpid(self.pid, 0)
        if content:
            return dict(json.loads(content))
        hung = time.monotonic() >= self.deadline
        code = os.waitstatus_to_exitcode(status)
        return {"code": code, "stderr": "", "stdout": "", "calls": 0, "hung": hung}


def main() -> None:
    """Do jobs until there are no more; those of one line at the same time."""
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        children = [Child(job) for job in json.loads(line)]
        print(json.dumps([child.outcome() for child in children]), flush=True)


if __name__ == "__main__":
    main()
