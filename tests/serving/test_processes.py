"""The service as processes: several workers see the same feedback and reloads, share the run, and drain on SIGTERM."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from talos.serving.server import _listen, serve
from talos.serving.settings import Settings

from .conftest import copied, until


def workers_of(service: Any) -> list[int]:
    """The workers that a service has started, without the process in which multiprocessing tracks resources."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            rest = path.read_text().rpartition(")")[2].split()
            line = path.with_name("cmdline").read_bytes()
        except OSError:  # it has ended meanwhile
            continue
        if int(rest[1]) == service.process.pid and rest[0] != "Z" and b"spawn_main" in line:
            found.append(int(path.parent.name))
    return sorted(found)


@contextmanager
def only(worker: int, service: Any) -> Iterator[httpx.Client]:
    """A client of one worker: the others stand still, so that nobody else accepts its connection."""
    others = [one for one in workers_of(service) if one != worker]
    for other in others:
        os.kill(other, signal.SIGSTOP)
    try:
        with httpx.Client(base_url=service.url, timeout=60) as client:
            yield client
    finally:
        for other in others:
            os.kill(other, signal.SIGCONT)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
def test_every_worker_knows_feedback_and_reloads(
    server: Callable[..., Any], saved: dict[str, Path], run: Path, tmp_path: Path
) -> None:
    service = server(run, "--feedback", tmp_path / "log", "--workers", 2)
    first, second = workers_of(service)
    maps = [Path(f"/proc/{worker}/maps").read_text().splitlines() for worker in (first, second)]
    files = [{row.split()[3:5][1] for row in rows if "model.safetensors" in row} for rows in maps]
    assert len(files[0]) == 1
    assert files[0] == files[1]  # one file, hence one copy in memory
    for told, other, item in ((first, second, "item30"), (second, first, "item31")):
        with only(told, service) as client:
            client.post("/v1/feedback", json={"events": [{"user": item, "item": item}]}).raise_for_status()
            mine = client.get(f"/v1/recommend/{item}").json()["results"]
        assert mine[0]["source"] == "folded"
        with only(other, service) as client:
            assert client.get(f"/v1/recommend/{item}").json()["results"] == mine
    before = httpx.get(f"{service.url}/readyz", timeout=60).json()["models"]["run"]
    copied(saved["second"], run)
    with only(first, service) as client:
        client.post("/v1/model/reload").raise_for_status()
        assert client.get("/readyz").json()["models"]["run"] != before
    with only(second, service) as client:  # looks every half second
        until(lambda: client.get("/readyz").json()["models"]["run"] != before)
    text = httpx.get(f"{service.url}/metrics", timeout=60).text
    assert 'talos_requests_total{route="recommend",status="2xx"} 4' in text  # of both together
    # a worker that dies is replaced by one that knows as much
    os.kill(first, signal.SIGKILL)
    until(lambda: set(workers_of(service)) - {first, second})
    (third,) = set(workers_of(service)) - {first, second}
    with only(third, service) as client:
        assert client.get("/v1/recommend/item30").json()["results"][0]["source"] == "folded"
        assert client.get("/readyz").json()["models"]["run"] != before
    assert service.stop() in (0, -signal.SIGTERM)
    assert '"worker ended"' in service.text


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_workers_end_with_the_process_that_started_them(
    server: Callable[..., Any], saved: dict[str, Path]
) -> None:
    service = server(saved["first"], "--workers", 2)
    workers = workers_of(service)
    assert len(workers) == 2
    service.stop(signal.SIGKILL)
    until(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers))


def test_sigterm_lets_requests_finish(server: Callable[..., Any], saved: dict[str, Path]) -> None:
    service = server(saved["first"])
    service.client.get("/readyz").raise_for_status()
    statuses: list[int] = []
    begun = threading.Event()

    def body() -> Any:
        yield b'{"users": ["user20"], '
        begun.set()
        term.wait(60)
        yield b'"k": 3}'

    term = threading.Event()

    def ask() -> None:
        answer = httpx.post(
            f"{service.url}/v1/recommend",
            content=body(),
            headers={"content-type": "application/json"},
            timeout=60,
        )
        statuses.append(answer.status_code)

    asking = threading.Thread(target=ask)
    asking.start()
    assert begun.wait(60)
    until(lambda: "talos_in_flight 1" in service.client.get("/metrics").text)  # the request is being read
    service.process.send_signal(signal.SIGTERM)

    def refused() -> bool:
        try:
            return httpx.get(f"{service.url}/livez", timeout=60) is None
        except httpx.HTTPError:
            return True

    until(refused)
    term.set()
    asking.join(60)
    assert statuses == [200]
    assert service.process.wait(60) in (0, -signal.SIGTERM)


def test_bad_starts_are_one_message(saved: dict[str, Path], tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for arguments, message in (
        ([saved["first"], "--host", "0.0.0.0"], "--host: '0.0.0.0' without keys"),
        ([tmp_path / "nowhere"], "no such run directory"),
        ([tmp_path / "no\x1b[2Jwhere", "--workers", 2], "no\\x1b[2Jwhere: no such run directory"),
        ([saved["first"], "--read-key-file", tmp_path / "nokey"], "--read-key-file"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "talos", "serve", *map(str, arguments), "--port", "0"],
            capture_output=True,
            text=True,
            env=environment,
            timeout=120,
        )
        assert done.returncode == 2, done.stderr
        assert message in done.stderr
        assert "Traceback" not in done.stderr
        assert "\x1b" not in done.stderr
        assert done.stderr.count("error:") == 1


def test_workers_import_nothing_from_the_current_folder(tmp_path: Path) -> None:
    for module in ("pickle", "socket", "signal", "hashlib"):
        (tmp_path / f"{module}.py").write_text("open('it-ran', 'w').close(); raise SystemExit(1)\n")
    # as the installed command, which does not look there either
    code = "import sys; del sys.path[0]; from talos.cli import main; main()"
    line = [sys.executable, "-c", code, "serve", "nowhere", "--workers", "2", "--port", "0"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert "nowhere: no such run directory" in done.stderr
    assert not (tmp_path / "it-ran").exists()


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs /proc")
def test_vectors_are_mapped_from_the_file(saved: dict[str, Path]) -> None:
    """Pages of a mapped file are in memory once, however many workers map it."""
    code = (
        "import sys; from pathlib import Path; from talos.serving.runs import ServedRun\n"
        "run = ServedRun(Path(sys.argv[1]))\n"
        "def file_at(address):\n"
        "    for line in open('/proc/self/maps'):\n"
        "        low, high = (int(part, 16) for part in line.split()[0].split('-'))\n"
        "        if low <= address < high: return 'model.safetensors' in line\n"
        "print(file_at(run.model.vectors.items.data_ptr()), file_at(run.model.vectors.users.data_ptr()))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(saved["first"])], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True", "True"]


def test_answers_leave_at_once(saved: dict[str, Path]) -> None:
    """Nagle's algorithm is off for whoever connects: head and body of an answer are written one after the other."""

    async def look() -> int:
        found: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def connected(_: Any, writer: asyncio.StreamWriter) -> None:
            link = writer.get_extra_info("socket")
            found.set_result(link.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        with _listen(Settings(runs=(str(saved["first"]),), port=0)) as listening:
            async with await asyncio.start_server(connected, sock=listening):
                _, writer = await asyncio.open_connection(*listening.getsockname())
                option = await found
                writer.close()
        return option

    assert asyncio.run(look()) == 1


def test_the_garbage_collector_leaves_what_was_loaded_alone(saved: dict[str, Path]) -> None:
    frozen: list[int] = []

    def look(address: str) -> None:
        frozen.append(gc.get_freeze_count())
        raise KeyboardInterrupt

    try:
        with pytest.raises(KeyboardInterrupt):
            serve(Settings(runs=(str(saved["first"]),), port=0), look)
    finally:
        gc.unfreeze()
    assert frozen[0] > 10_000
