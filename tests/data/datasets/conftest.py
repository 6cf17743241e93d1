from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


@dataclass
class FileServer:
    """A real HTTP server on this machine, with ranges, that can be told to break off."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    requests: list[tuple[str, str | None]] = field(default_factory=list)  # path and Range of each
    break_after: int | None = None  # bytes of an answer after which the connection is cut
    ranges: bool = True
    version: str | None = None  # the ETag
    if_range: bool = True  # whether it knows If-Range

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        wanted = handler.headers.get("Range")
        self.requests.append((handler.path, wanted))
        content = self.files.get(handler.path.lstrip("/"))
        if content is None:
            handler.send_error(404)
            return
        asked = handler.headers.get("If-Range")
        if self.if_range and asked is not None and asked != self.version:
            wanted = None
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self.ranges else 0
        if start and start >= len(content):
            handler.send_error(416)
            return
        handler.send_response(206 if start else 200)
        if start:
            handler.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        handler.send_header("Content-Length", str(len(content) - start))
        if self.version is not None:
            handler.send_header("ETag", self.version)
        handler.end_headers()
        handler.wfile.write(content[start:][: self.break_after])
        handler.close_connection = True


@pytest.fixture
def server(monkeypatch) -> Iterator[FileServer]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    files = FileServer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            files.answer(self)

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        files.url = f"http://127.0.0.1:{running.server_port}"
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield files
        running.shutdown()
        thread.join()
