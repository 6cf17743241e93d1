"""A small run with titles and attributes, the service in this process, and as a process of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import polars as pl
import pytest

from talos.data.interactions import Interactions
from talos.model.recommender import Recommender

pytest.importorskip("fastapi")

USERS, ITEMS = 40, 60
HOSTILE = [
    "<script>alert(1)</script>",
    "a/b",
    "../..",
    "ü ñ 漢",
    "100%",
    "?q=1&x",
    "#",
    ".",
    "similar",
    "a/similar",
    "'\"",
    "\u202e\u00a0%00",
]


def fit(seed: int = 0, *, strings: bool = True) -> Recommender:
    """Two tastes; some ids are made of anything."""
    rng = np.random.default_rng(seed)
    users, items = [], []
    for user in range(USERS):
        for item in rng.permutation(ITEMS // 2)[:9] + (ITEMS // 2) * (user % 2):
            users.append(user)
            items.append(int(item))
    if not strings:
        data = Interactions.from_ids(users, items)
    else:
        data = Interactions.from_ids([user_name(user) for user in users], [item_name(item) for item in items])
    return add_attributes(Recommender(k=5, dim=8, epochs=2, seed=seed).fit(data))


def add_attributes(model: Recommender) -> Recommender:
    """Titles, two kinds of categories and a year for the items of a model."""
    ids = model.fitted_model().train.item_ids.ids
    table = pl.DataFrame(
        {
            "item_id": ids,
            "title": [f"<b>Title of {one}</b>" for one in ids],
            "category": [["even", "round"] if place % 2 == 0 else ["odd"] for place in range(len(ids))],
            "year": [1950 + place for place in range(len(ids))],
        }
    )
    return model.add_items(table)


def user_name(user: int) -> str:
    return HOSTILE[user] if user < len(HOSTILE) else f"user{user}"


def item_name(item: int) -> str:
    return HOSTILE[item] if item < len(HOSTILE) else f"item{item}"


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two runs over the same ids, and one with integer ids; read only."""
    folder = tmp_path_factory.mktemp("runs")
    for name, model in (("first", fit(0)), ("second", fit(1)), ("numbers", fit(0, strings=False))):
        model.save(folder / name, metrics={"recall@5": 0.5})
    return {name: folder / name for name in ("first", "second", "numbers")}


@pytest.fixture
def run(saved: dict[str, Path], tmp_path: Path) -> Path:
    """A copy of the first run, which a test may change."""
    return copied(saved["first"], tmp_path / "run")


def copied(source: Path, target: Path) -> Path:
    """A copy of a run, put into place as `save` does it: model.json last."""
    target.mkdir(exist_ok=True)
    for path in sorted(source.iterdir(), key=lambda one: one.name == "model.json"):
        if path.is_file():
            temporary = target / f".{path.name}.new"
            temporary.write_bytes(path.read_bytes())
            temporary.replace(target / path.name)
    return target


@pytest.fixture
def client(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """The service in this process: `client(runs…, setting=value)`."""
    from starlette.testclient import TestClient

    from talos.serving.app import create_app
    from talos.serving.settings import Settings

    opened: list[TestClient] = []

    def start(*runs: Path, **settings: Any) -> TestClient:
        app = create_app(Settings(runs=tuple(map(str, runs)), **settings))
        one = TestClient(app, base_url="http://localhost")
        one.__enter__()
        opened.append(one)
        return one

    yield start
    for one in opened:
        one.__exit__(None, None, None)


def until(true: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait until something is true, and fail if it is not within `seconds`."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"not within {seconds:g} s"
        time.sleep(0.01)


class Server:
    """`talos serve` as a process of its own, on a free port; `text` is what it has said on standard error."""

    def __init__(self, *arguments: object) -> None:
        line = [sys.executable, "-m", "talos", "serve", *map(str, arguments), "--port", "0"]
        self.process = subprocess.Popen(
            line,
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        self.text, self._said = "", threading.Event()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        assert self._said.wait(120), self.text
        found = re.search(r"at (http://\S+)", self.text)
        assert found is not None, self.text
        self.url = found[1]
        self.client = httpx.Client(base_url=self.url, timeout=60)

    def _read(self) -> None:
        """Read all the time: a process whose pipe is full would wait for ever."""
        assert self.process.stderr is not None
        with self.process.stderr as pipe:
            for raw in pipe:
                self.text += raw.decode(errors="replace")
                if "at http://" in self.text:
                    self._said.set()
        self._said.set()

    def stop(self, how: int = signal.SIGTERM) -> int:
        """Send a signal, and wait; returns the exit code."""
        self.client.close()
        self.process.send_signal(how)
        self._reader.join(60)
        return self.process.wait(60)


@pytest.fixture
def server() -> Iterator[Callable[..., Server]]:
    """Starts `talos serve` with these arguments; what still runs at the end of a test is killed."""
    started: list[Server] = []

    def start(*arguments: object) -> Server:
        started.append(Server(*arguments))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.stop(signal.SIGKILL)
        one.client.close()


# ----------------------------------------------------------------------------- at length


def times(name: str, short: int, long: int) -> int:
    """How often something is tried: `long` by `make torture`, `TALOS_TORTURE_<NAME>` if it is set, else `short`."""
    seconds = float(os.environ.get("TALOS_TORTURE_SECONDS", "0"))
    return int(os.environ.get(f"TALOS_TORTURE_{name.upper()}", long if seconds > 0 else short))


SEED = int(os.environ.get("TALOS_TORTURE_SEED", "0"))


class Forked:
    """A service that was forked from a process with everything imported."""

    def __init__(self, pid: int, url: str, log: Path) -> None:
        self.pid, self.url, self.log = pid, url, log
        self.client = httpx.Client(base_url=url, timeout=60)

    @property
    def text(self) -> str:
        """What it has said on standard error."""
        return self.log.read_text(errors="replace")

    def resident(self) -> int:
        """Kilobytes of memory that are its own: without what it shares with the process it was forked from."""
        rows = Path(f"/proc/{self.pid}/smaps_rollup").read_text().splitlines()
        return sum(int(row.split()[1]) for row in rows if row.startswith("Private_"))

    def mapped(self) -> int:
        """How many files of vectors it has mapped."""
        rows = Path(f"/proc/{self.pid}/maps").read_text().splitlines()
        return len({row.split()[4] for row in rows if "model.safetensors" in row})

    def open_files(self) -> int:
        """How many files and connections it has open."""
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def kill(self) -> None:
        """End it as a crash does, and wait until it is gone."""
        self.client.close()
        os.kill(self.pid, signal.SIGKILL)
        until(lambda: not Path(f"/proc/{self.pid}").exists())


@pytest.fixture
def fork(tmp_path: Path) -> Iterator[Callable[..., Forked]]:
    """Starts services, `fork(run, setting=value)`, quickly; kills those that still run at the end of a test."""
    if not Path("/proc/self/smaps_rollup").exists():
        pytest.skip("needs Linux")
    here = Path(__file__).parent / "fork_services.py"
    started: list[Forked] = []
    with subprocess.Popen(
        [sys.executable, str(here)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "2"},
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def start(*runs: Path, **settings: Any) -> Forked:
            assert process.stdin is not None
            assert process.stdout is not None
            log = tmp_path / f"service{len(started)}.log"
            job = {"settings": {"runs": [str(run) for run in runs], "port": 0, **settings}, "log": str(log)}
            process.stdin.write(json.dumps(job).encode() + b"\n")
            process.stdin.flush()
            answer = process.stdout.readline()
            assert answer.strip(), log.read_text() if log.exists() else "no service"
            started.append(Forked(**json.loads(answer), log=log))
            return started[-1]

        yield start
        for one in started:
            if Path(f"/proc/{one.pid}").exists():
                one.kill()
            one.client.close()
        process.stdin.close()
