"""Several processes at the same place at the same time: nothing is lost, doubled or mixed."""

from __future__ import annotations

import csv
import hashlib
import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from talos.data.datasets import Counts, DatasetInfo, Download, fetch
from talos.model.recommender import Recommender

SMALL = ("--k", "5", "--dim", "8", "--epochs", "3", "--set", "training.batch_size=16")


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts the command as a process of its own."""
    started: list[subprocess.Popen[str]] = []

    def begin(*arguments: object) -> subprocess.Popen[str]:
        line = [sys.executable, "-m", "talos", *map(str, arguments)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        with process:
            process.kill()


def test_two_trainings_into_one_folder(server: Any, clicks: Path, tmp_path: Path) -> None:
    """Both at once: one is refused by the name of the other, or finds its finished run."""
    out = tmp_path / "run"
    line = ("command", "train", clicks, "--out", out, *SMALL)
    found = server.together(line, line, below=tmp_path)
    codes = sorted(done.code for done in found)
    assert codes[0] == 0, found
    assert codes[1] in (1, 2), found
    (refused,) = [done.stderr for done in found if done.code]
    assert (
        "is being written by process" in refused or "is a finished run" in refused or "not empty" in refused
    )
    Recommender.load(out)
    epochs = [json.loads(line)["epoch"] for line in (out / "history.jsonl").read_text().splitlines()]
    assert epochs == [1, 2, 3]


def test_two_exports_and_two_lists_at_once(server: Any, clicks: Path, tmp_path: Path) -> None:
    done = server.run("command", "train", clicks, "--out", tmp_path / "run", *SMALL, below=tmp_path)
    assert done.code == 0, done.stderr
    export = (
        "command",
        "export",
        tmp_path / "run",
        "--format",
        "parquet",
        "--out",
        tmp_path / "vectors",
        "--overwrite",
    )
    lists = ("command", "recommend", tmp_path / "run", "--all", "--out", tmp_path / "recs.csv", "--overwrite")
    found = server.together(export, export, lists, lists, below=tmp_path)
    for pair in (found[:2], found[2:]):
        assert min(done.code for done in pair) == 0, pair
        assert all(not done.code or "is being written by process" in done.stderr for done in pair), pair
    checked = server.run("check_export", tmp_path / "vectors", below=tmp_path)
    assert checked.code == 0, checked.stderr
    assert len((tmp_path / "recs.csv").read_text().splitlines()) == 1 + 40 * 5
    assert sorted(path.name for path in tmp_path.iterdir()) == ["recs.csv", "run", "vectors"]


def test_two_downloads_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second waits for the first and finds the dataset in the cache: the server is asked once."""
    content = b"user,item\n" + b"".join(b"%d,%d\n" % (n % 50, n) for n in range(5_000))
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args: object) -> None:
            pass

    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01}).start()
        source = Download(
            url=f"http://127.0.0.1:{running.server_port}/x.csv",
            checksum="sha256:" + hashlib.sha256(content).hexdigest(),
            layout="table",
            counts=Counts(50, 5_000, 5_000),
        )
        one = DatasetInfo(name="made-up", title="Made up", homepage="", licence="", downloads=(source,))
        found: list[Any] = []
        threads = [
            threading.Thread(target=lambda: found.append(fetch(one, cache=tmp_path))) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        running.shutdown()
    assert [fetched.files[0].read_bytes() for fetched in found] == [content] * 4
    assert asked == ["/x.csv"]
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["source.json", "x.csv"]


@pytest.mark.torture
def test_eight_workers_with_kills(start: Any, budget: Any, clicks: Path, tmp_path: Path) -> None:
    """8 workers, 20 trials, and a worker killed every now and then: 20 trials end, none twice."""
    row = budget.row("8 workers x 20 trials", short=1, full=1)
    for number in row:
        rng = row.rng(number)
        out = tmp_path / f"study{number}"
        line = ("tune", clicks, "--out", out, "--trials", 20, "--workers", 8, "--k", 5, "--epochs", 3)
        process = start(*line, "--sampler", "random", "--set", "backbone.dim=4")
        kills = 0
        while process.poll() is None:
            time.sleep(rng.uniform(0.5, 3.0))
            tasks = Path(f"/proc/{process.pid}/task").glob("*/children")  # threads of the command start them
            try:
                alive = [one for task in tasks for one in task.read_text().split()]
            except OSError:
                continue
            if alive and kills < 12:
                os.kill(int(rng.choice(alive)), signal.SIGKILL)
                kills += 1
        said = process.communicate()[1]
        assert process.returncode == 0, said
        rows = list(csv.DictReader((out / "trials.csv").read_text().splitlines()))
        assert len({row["trial"] for row in rows}) == len(rows) == 20, said
        ended = [row for row in rows if row["state"] in ("complete", "pruned")]
        lost = [row for row in rows if row["error"] == "its worker died too often"]
        assert len(ended) + len(lost) == 20
        row.counts.update({"workers killed": kills, "trials ended": len(ended), "trials given up": len(lost)})
