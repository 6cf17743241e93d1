"""What several test files share: real data where it is at hand, small random data, a PostgreSQL server of our own."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from talos.data.interactions import Interactions
from talos.data.splits import Split
from talos.distributed import Group

if TYPE_CHECKING:
    from torch import Tensor

settings.register_profile(
    "talos", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
settings.load_profile("talos")
# In the background of a shell SIGINT is ignored, under nohup SIGHUP; every command under test would inherit that.
for _name, _handler in (("SIGINT", signal.default_int_handler), ("SIGHUP", signal.SIG_DFL)):
    if hasattr(signal, _name) and signal.getsignal(getattr(signal, _name)) == signal.SIG_IGN:
        signal.signal(getattr(signal, _name), _handler)


@pytest.fixture(scope="session")
def real_data() -> Callable[[str], Path]:
    """Path of a real dataset's folder, or skip: only the project's own test data is always there."""

    def find(name: str) -> Path:
        root = Path(os.environ.get("TALOS_DATA", Path(__file__).parents[2] / "shared" / "data"))
        if not (root / name).is_dir():
            pytest.skip(f"real dataset {name!r} is not at hand (TALOS_DATA names its parent folder)")
        return root / name

    return find


@pytest.fixture
def random_data() -> Callable[..., Interactions]:
    """Random interactions; every pair distinct."""

    def make(
        users: int = 30, items: int = 20, density: float = 0.3, seed: int = 0, stamps: bool = False
    ) -> Interactions:
        rng = np.random.default_rng(seed)
        pairs = np.argwhere(rng.random((users, items)) < density)
        return Interactions.from_ids(
            pairs[:, 0], pairs[:, 1], timestamps=rng.integers(0, 1000, len(pairs)) if stamps else None
        )

    return make


@pytest.fixture
def full_disk() -> Callable[[int], AbstractContextManager[None]]:
    """A block in which no file can grow beyond so many bytes: writing fails there as on a full disk."""
    resource = pytest.importorskip("resource", reason="no limits for files on this platform")

    @contextmanager
    def limited(size: int) -> Iterator[None]:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))  # Python ignores SIGXFSZ
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    return limited


@pytest.fixture(scope="session")
def planted() -> Split:
    """48 users in 4 groups: each likes the 8 items of the group, of which two are the test and the rest is train.

    Each also has one of three items that everybody likes, so that popularity has something to recommend, and is wrong.
    """
    groups, users, items = 4, 12, 8
    rng = np.random.default_rng(0)
    train: list[tuple[int, int]] = []
    test: list[tuple[int, int]] = []
    for group in range(groups):
        for member in range(users):
            user = group * users + member
            mine = rng.permutation(items) + group * items
            train += [(user, int(item)) for item in mine[2:]]
            test += [(user, int(item)) for item in mine[:2]]
            train.append((user, groups * items + int(rng.integers(3))))
    pairs = np.array(train + test)
    whole = Interactions.from_ids(pairs[:, 0], pairs[:, 1])
    in_test = {(user, item) for user, item in test}
    flags = np.array([pair in in_test for pair in whole.to_polars().select("user_id", "item_id").rows()])
    return Split(train=whole.where(~flags), valid=whole.where(flags), test=whole.where(flags))


class Threads(Group):
    """A rank that is a thread; a barrier stands for messages."""

    def __init__(self, rank: int, size: int, board: list[Any], barrier: threading.Barrier) -> None:
        self.rank, self.size, self.board, self.barrier = rank, size, board, barrier

    def _all(self, value: Any) -> list[Any]:
        self.board[self.rank] = value
        self.barrier.wait(30)
        found = list(self.board)
        self.barrier.wait(30)
        return found

    def all_gather_numbers(self, numbers: Sequence[float]) -> list[list[float]]:
        return self._all(list(numbers))

    def all_reduce_(self, tensor: Tensor) -> Tensor:
        return tensor.copy_(sum(self._all(tensor.clone())))

    def all_gather_rows(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        import torch

        return torch.cat(self._all(rows.clone()))

    def mean(self, values: Tensor) -> Tensor:
        parts = self._all(values.clone())
        return sum(part.sum() for part in parts) / sum(map(len, parts))


@pytest.fixture(scope="session")
def in_threads() -> Callable[[int, Callable[[Group], Any]], list[Any]]:
    """Does some work as each of so many ranks, and gives what each of them returns."""

    def run(size: int, work: Callable[[Group], Any]) -> list[Any]:
        board: list[Any] = [None] * size
        barrier = threading.Barrier(size)
        with ThreadPoolExecutor(size) as pool:
            return list(pool.map(lambda rank: work(Threads(rank, size, board, barrier)), range(size)))

    return run


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
