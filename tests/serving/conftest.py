"""A small run with titles and attributes, the service in this process, and as a process of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
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
    "\x00\n",
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
    model = Recommender(k=5, dim=8, epochs=2, seed=seed).fit(data)
    ids = data.item_ids.ids
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


class Server:
    """`talos serve` as a process of its own, on a free port."""

    def __init__(self, log: Path, *arguments: object) -> None:
        self.log = log.open("wb")
        line = [sys.executable, "-m", "talos", "serve", *map(str, arguments), "--port", "0"]
        self.process = subprocess.Popen(
            line,
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert self.process.stderr is not None
        self.text = ""
        for raw in self.process.stderr:
            self.text += raw.decode()
            found = re.search(r"at (http://\S+)", self.text)
            if found:
                self.url = found[1]
                break
        else:
            raise AssertionError(self.text)
        self.client = httpx.Client(base_url=self.url, timeout=60)

    def stop(self, how: int = signal.SIGTERM) -> int:
        """Send a signal, and wait; returns the exit code."""
        self.client.close()
        self.process.send_signal(how)
        assert self.process.stderr is not None
        self.text += self.process.stderr.read().decode()
        self.process.stderr.close()
        self.log.close()
        return self.process.wait(60)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Starts `talos serve` with these arguments; what still runs at the end of a test is killed."""
    started: list[Server] = []

    def start(*arguments: object) -> Server:
        one = Server(tmp_path / f"server{len(started)}.log", *arguments)
        started.append(one)
        return one

    yield start
    for one in started:
        if one.process.poll() is None:
            one.stop(signal.SIGKILL)
        if one.process.stderr is not None:
            one.process.stderr.close()
        one.client.close()
        one.log.close()
