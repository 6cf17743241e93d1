"""The processes of the service: one, or several that share a port, the log of feedback and the run's files."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import h11
import torch
import uvicorn
from prometheus_client.multiprocess import mark_process_dead
from uvicorn.config import STARTUP_FAILURE
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.supervisors.multiprocess import Multiprocess, Process

from talos.errors import ConfigError, TalosError
from talos.serving.app import create_app
from talos.serving.guard import Guard
from talos.serving.metrics import log_line
from talos.serving.service import Service
from talos.serving.settings import Keys, Settings

__all__ = ["serve"]


class _Protocol(H11Protocol):
    """uvicorn's HTTP, with two additions: a time limit for the head of a request, and early refusals.

    uvicorn closes connections that are idle between two requests, and waits forever for the first request or for the
    rest of a head. Refusing a request before it is parsed keeps goodput up: at four times the load that the service
    carries, 0.80 of capacity with early refusals and 0.47 without, on two cores that the clients share.
    """

    _closing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._guard: Guard = self.app_state["guard"]
        self._limit_head(waiting=True)

    def data_received(self, data: bytes) -> None:
        between_requests = (
            {self.conn.our_state, self.conn.their_state} == {h11.IDLE}
            and not self.conn.trailing_data[0]
            and not self.transport.get_write_buffer_size()
        )
        refusal = self._guard.refuse_early(data) if self._guard.busy and between_requests else None
        if refusal is None:
            try:
                super().data_received(data)
            except h11.LocalProtocolError:  # a broken body after its answer has begun
                self.transport.close()
            return
        self._limit_head(waiting=False)
        self.transport.write(refusal)
        self.on_response_complete()

    def handle_events(self) -> None:
        super().handle_events()
        self._limit_head(waiting=self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0]))

    def _limit_head(self, *, waiting: bool) -> None:
        if self._closing is not None and not waiting:
            self._closing.cancel()
            self._closing = None
        elif self._closing is None and waiting:
            self._closing = self.loop.call_later(self._guard.settings.deadline, self.transport.close)


def serve(settings: Settings, started: Callable[[str], None] = lambda address: None) -> None:
    """Serve until SIGTERM or SIGINT; requests that were begun are finished first.

    Args:
        settings: what is served and where.
        started: called with the address once every worker can answer.
    """
    Keys.load(settings)  # a key that cannot be read is an error now, not in a worker
    with _listen(settings) as listening, tempfile.TemporaryDirectory(prefix="talos-serve-") as folder:
        host, port = listening.getsockname()[:2]
        address = f"http://{f'[{host}]' if listening.family == socket.AF_INET6 else host}:{port}"
        if settings.workers == 1:
            config = _config(settings)
            config.load()
            started(address)
            uvicorn.Server(config).run([listening])
            return
        settings = replace(settings, control=folder)
        # its errors are raised here; the log is created before several workers open it, and they map the same copies
        Service(settings).close()
        os.environ |= {"PROMETHEUS_MULTIPROC_DIR": folder, "PYTHONSAFEPATH": "1"}  # for the workers
        workers = _Workers(_config(settings), [listening])
        workers.ready = partial(started, address)
        workers.run()
        if any(worker.exitcode == STARTUP_FAILURE for worker in workers.processes):
            raise TalosError("a worker could not start")


def _listen(settings: Settings) -> socket.socket:
    v6 = ":" in settings.host
    try:
        listening = socket.create_server(
            (settings.host, settings.port),
            family=socket.AF_INET6 if v6 else socket.AF_INET,
            backlog=2048,
            dualstack_ipv6=v6 and socket.has_dualstack_ipv6(),
        )
    except OSError as error:
        reason = str(error.strerror).partition(" (while ")[0]
        raise ConfigError(
            f"{settings.host}:{settings.port} cannot be listened on ({reason})",
            where="port",
            expected="a free port of this machine",
        ) from None
    # Connections inherit the options. With Nagle's algorithm the body of an answer, which is written after its head,
    # would wait for the client's delayed acknowledgement: 40 ms with each request.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if sys.platform == "linux":  # one whose client reads nothing is cut off
        listening.setsockopt(
            socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1, int(1000 * settings.deadline))
        )
    return listening


def _config(settings: Settings) -> uvicorn.Config:
    return uvicorn.Config(
        partial(_application, settings),
        factory=True,
        workers=settings.workers,
        http=_Protocol,
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=int(settings.deadline) + 1,
        timeout_keep_alive=30,
        timeout_worker_healthcheck=120,  # of a worker that takes the place of another after SIGHUP
        h11_max_incomplete_event_size=64 << 10,
    )


def _application(settings: Settings) -> Guard:
    """The application of this process, which is a worker if the settings have a `control` folder."""
    if settings.control is not None:
        torch.set_num_threads(max(1, torch.get_num_threads() // settings.workers))
        threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        app = create_app(settings)
    except Exception as error:
        if settings.control is None:
            raise
        log_line(event="worker could not start", error=str(error))
        sys.exit(STARTUP_FAILURE)
    # All that was imported and loaded stays. Left to the garbage collector, it would be searched again and again under
    # load, and nothing would be answered for 0.15 s each time.
    gc.collect()
    gc.freeze()
    return app


def _end_with_parent() -> None:
    """Stop this worker when the process that started it is gone: nothing else would."""
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


class _Workers(Multiprocess):
    """uvicorn's supervisor, which also says when all workers can answer and when one has ended."""

    ready: Callable[[], None] | None = None

    def keep_subprocess_alive(self) -> None:
        # uvicorn also asks each worker for a sign of life: it would kill one that is still importing, and wait for the
        # answer of one that has just died
        for place, worker in enumerate(self.processes):
            if worker.process.is_alive() or self.should_exit.is_set():
                continue
            worker.kill()  # closes its pipe
            mark_process_dead(worker.pid)  # type: ignore[no-untyped-call]
            log_line(event="worker ended", code=worker.exitcode)
            if worker.exitcode == STARTUP_FAILURE:  # another one would fare no better
                self.should_exit.set()
            else:
                self.processes[place] = Process(self.config, self.sockets)
                self.processes[place].start()
        if self.ready is not None and all(worker.is_ready() for worker in self.processes):
            self.ready()
            self.ready = None
