"""Models without training, and a PostgreSQL server of our own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from talos.data.interactions import Interactions
from talos.data.vocabulary import Vocabulary
from talos.model.run_directory import Model

Make = Callable[..., Model]


@pytest.fixture
def make() -> Make:
    """A model with random vectors; user 0 has nothing, user 1 has everything but two items."""

    def build(
        users: int = 90,
        items: int = 40,
        dim: int = 8,
        *,
        strings: bool = True,
        seed: int = 0,
        titles: bool = False,
    ) -> Model:
        rng = np.random.default_rng(seed)
        has = rng.random((users, items)) < 0.2
        has[0], has[1], has[1, :2] = False, True, False
        of_valid = has & (rng.random(has.shape) < 0.2)
        names = {
            "user_ids": Vocabulary(
                pl.Series([f"u,{u:05d} é" for u in range(users)] if strings else range(users))
            ),
            "item_ids": Vocabulary(
                pl.Series([f'i"{i:05d}' for i in range(items)] if strings else range(items))
            ),
        }
        title = pl.Series([f"Title {i}" for i in range(items)]) if titles else None
        parts = [
            Interactions.from_codes(*np.nonzero(rows), **names, item_titles=title)
            for rows in (has & ~of_valid, of_valid)
        ]
        torch.manual_seed(seed)
        return Model(
            # eighths: products are exact in whatever order they are added up, and some scores are equal
            user_vectors=torch.randint(-16, 17, (users, dim)) / 8,
            item_vectors=torch.randint(-16, 17, (items, dim)) / 8,
            thresholds=torch.rand(users),
            train=parts[0],
            valid=parts[1],
            metadata={"config": {"k": 5}},
        )

    return build


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The address of a fresh server that lives as long as the tests."""
    pytest.importorskip("psycopg", reason="psycopg is not installed (extra `postgres`)")
    programs = Path(shutil.which("initdb") or "/nowhere").resolve().parent
    if not (programs / "pg_ctl").exists():
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"))
        if not found:
            pytest.skip("PostgreSQL's initdb and pg_ctl are neither in PATH nor in /usr/lib/postgresql")
        programs = found[-1].parent
    root = os.geteuid() == 0
    if root and (
        shutil.which("runuser") is None or subprocess.run(["id", "postgres"], capture_output=True).returncode
    ):
        pytest.skip("PostgreSQL refuses to run as root, and there is no user `postgres` to run it")
    folder = Path(tempfile.mkdtemp(prefix="talos-pg-"))  # short: a socket's path has a limit
    if root:
        shutil.chown(folder, "postgres")
    user = ["runuser", "-u", "postgres", "--"] if root else []
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def run(*arguments: str) -> None:
        done = subprocess.run(
            [*user, *arguments],
            cwd=folder,
            text=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=60,
        )
        if done.returncode:
            pytest.skip(f"a PostgreSQL server cannot be started here: {done.stderr.strip()[-200:]}")

    data = str(folder / "data")
    try:
        run(str(programs / "initdb"), "-D", data, "-U", "talos", "-A", "trust", "-E", "UTF8", "--no-sync")
        settings = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off"
        run(str(programs / "pg_ctl"), "-D", data, "-l", str(folder / "log"), "-o", settings, "-w", "start")
        yield f"postgresql://talos:secret@127.0.0.1:{port}/postgres"
    finally:
        subprocess.run(
            [*user, str(programs / "pg_ctl"), "-D", data, "-m", "immediate", "stop"], capture_output=True
        )
        shutil.rmtree(folder, ignore_errors=True)
