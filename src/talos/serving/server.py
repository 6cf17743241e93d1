"""The processes of the service: one, or several that share a port, the log of feedback and the run's files.

With several workers, this process opens the port, starts the workers, replaces those that die, and passes SIGTERM on.
"""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from talos.errors import ConfigError, TalosError
from talos.serving.app import create_app
from talos.serving.guard import Guard
from talos.serving.settings import Keys, Settings

__all__ = ["serve"]

_SETTINGS, _SOCKET = "TALOS_SERVE_SETTINGS", "TALOS_SERVE_SOCKET"
_SECONDS_BETWEEN_LOOKS = 0.1


class WorkerError(TalosError):
    """A worker could not start."""


class _Protocol(H11Protocol):
    """HTTP that waits at most `seconds`: for the rest of a request's head, or for a reader to read on."""

    seconds = 10.0
    guard: Guard
    _closing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_arrived()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        refusal = self.guard.refuse_early(data) if self.guard.busy and self._between_requests() else None
        if refusal is None:
            super().data_received(data)
            return
        self._head_arrived()
        self.transport.write(refusal)
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def _between_requests(self) -> bool:
        """Whether nothing of a request or an answer is under way on this connection."""
        idle = {self.conn.our_state, self.conn.their_state} == {h11.IDLE}
        return idle and not self.conn.trailing_data[0] and not self.transport.get_write_buffer_size()

    def handle_events(self) -> None:
        super().handle_events()
        if self.conn.their_state is not h11.IDLE:
            self._head_arrived()
        elif self.conn.trailing_data[
            0
        ]:  # the beginning of a head; without one, uvicorn's keep-alive timer runs
            self._expect_head()

    def send_400_response(self, msg: str) -> None:
        try:
            super().send_400_response(msg)
        except (
            h11.LocalProtocolError
        ):  # an answer has begun already, as where a body is too large and then broken
            self.transport.close()

    def on_response_complete(self) -> None:
        if waiting := self.transport.get_write_buffer_size():
            self.loop.call_later(self.seconds, self._cut_if_unread, self.cycle, waiting)
        super().on_response_complete()

    def _expect_head(self) -> None:
        if self._closing is None:
            self._closing = self.loop.call_later(self.seconds, self.transport.close)

    def _head_arrived(self) -> None:
        if self._closing is not None:
            self._closing.cancel()
            self._closing = None

    def _cut_if_unread(self, cycle: Any, before: int) -> None:
        """Drop an answer of which nothing was read for so long; `close` would keep it until it is."""
        waiting = self.transport.get_write_buffer_size()
        if waiting == 0 or self.cycle is not cycle:
            return
        if waiting >= before:
            self.transport.abort()
        else:
            self.loop.call_later(self.seconds, self._cut_if_unread, cycle, waiting)


def serve(settings: Settings, started: Callable[[str], None] | None = None) -> None:
    """Serve until SIGTERM or SIGINT; requests that were begun are finished first.

    Args:
        settings: what is served and where.
        started: called with the address once every worker can answer.
    """
    Keys.load(settings)  # a key that cannot be read is an error now, not in a worker
    listening = _listen(settings)
    host, port = listening.getsockname()[:2]
    address = f"http://{f'[{host}]' if listening.family == socket.AF_INET6 else host}:{port}"
    tell = started or (lambda text: None)
    with listening:
        if settings.workers == 1:
            _answer(settings, listening, lambda: tell(address))
        else:
            _Workers(settings, listening).run(lambda: tell(address))


def _listen(settings: Settings) -> socket.socket:
    try:
        found = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, _, _, _, address = found[0]
        # asyncio turns Nagle's algorithm off for sockets that say they are TCP. With it the body of an answer, which is
        # written after its head, would wait for the client's delayed acknowledgement: 40 ms with each request.
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(2048)
    except OSError as error:
        where = f"{settings.host}:{settings.port}"
        what = f"{where} cannot be listened on ({error.strerror})"
        raise ConfigError(what, where="port", expected="a free port of this machine") from None
    return listening


def _answer(settings: Settings, listening: socket.socket, ready: Callable[[], None]) -> None:
    """Answer requests in this process until it is told to stop."""
    app = create_app(settings)
    config = uvicorn.Config(
        app,
        http=type("_Protocol", (_Protocol,), {"seconds": settings.deadline, "guard": app}),
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=int(settings.deadline) + 1,
        timeout_keep_alive=30,
        h11_max_incomplete_event_size=64 << 10,
    )
    server = uvicorn.Server(config)
    # All that was imported and loaded stays. Left to the garbage collector, it would be searched again and again under
    # load, and nothing would be answered for 0.15 s each time.
    gc.collect()
    gc.freeze()
    ready()
    server.run(sockets=[listening])


class _Workers:
    """The workers, as processes of their own."""

    def __init__(self, settings: Settings, listening: socket.socket) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="talos-serve-"))
        self._settings = replace(settings, control=str(self._folder))
        self._listening, self._stop = listening, False
        self._workers: list[subprocess.Popen[bytes]] = []

    def run(self, ready: Callable[[], None]) -> None:
        """Start the workers and look after them until SIGTERM or SIGINT."""
        before = {one: signal.signal(one, self._stopped) for one in (signal.SIGTERM, signal.SIGINT)}
        try:
            self._workers = [self._start() for _ in range(self._settings.workers)]
            waiting = True
            while not self._stop:
                time.sleep(_SECONDS_BETWEEN_LOOKS)
                if waiting and len(list(self._folder.glob("ready-*"))) >= self._settings.workers:
                    waiting = False
                    ready()
                for place, worker in enumerate(self._workers):
                    code = worker.poll()
                    if code is None or self._stop:
                        continue
                    if not (
                        self._folder / f"ready-{worker.pid}"
                    ).exists():  # another one would fare no better
                        error = WorkerError(self._reason(worker.pid) or "a worker could not start")
                        error.exit_code = code if code in (1, 2) else 1
                        raise error
                    print(f'{{"event": "worker ended", "code": {code}}}', file=sys.stderr, flush=True)
                    self._workers[place] = self._start()
        finally:
            for worker in self._workers:
                if worker.poll() is None:
                    worker.terminate()
            for worker in self._workers:
                worker.wait()
            for one, handler in before.items():
                signal.signal(one, handler)
            shutil.rmtree(self._folder, ignore_errors=True)

    def _stopped(self, *_: object) -> None:
        self._stop = True

    def _reason(self, worker: int) -> str:
        """Why a worker could not start, as it has left it; the command line shows it, control characters escaped."""
        try:
            return (self._folder / f"failed-{worker}").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def _start(self) -> subprocess.Popen[bytes]:
        file = self._listening.fileno()
        environment = {**os.environ, _SETTINGS: self._settings.as_json(), _SOCKET: str(file)}
        return subprocess.Popen([sys.executable, "-P", "-m", __name__], env=environment, pass_fds=[file])


def _end_with_parent(parent: int) -> None:
    """Stop this worker if the process that started it is gone: nobody would stop it otherwise."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os.kill(os.getpid(), signal.SIGTERM)


def _work() -> int:
    """Be a worker: settings and the open port are in the environment."""
    import torch

    settings = Settings.from_json(os.environ.pop(_SETTINGS))
    assert settings.control is not None
    torch.set_num_threads(max(1, torch.get_num_threads() // settings.workers))
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    mark = Path(settings.control) / f"ready-{os.getpid()}"
    try:
        with socket.socket(fileno=int(os.environ.pop(_SOCKET))) as listening:
            _answer(settings, listening, mark.touch)
    except TalosError as error:
        (Path(settings.control) / f"failed-{os.getpid()}").write_text(
            str(error), encoding="utf-8", errors="backslashreplace"
        )
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(_work())
