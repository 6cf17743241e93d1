"""Limits and keys: what is refused, with which status, and what is answered all the same."""

from __future__ import annotations

import json
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from talos.errors import ConfigError
from talos.serving.settings import Settings

Client = Callable[..., Any]


def test_bodies_that_are_too_large_or_not_json(client: Client, saved: dict[str, Path]) -> None:
    service = client(saved["first"], max_body=2000)
    answer = service.post("/v1/recommend", json={"users": ["a" * 3000]})
    assert (answer.status_code, answer.json()["field"]) == (413, "body")
    chunks = (b"x" * 500 for _ in range(10))  # without a length
    headers = {"content-type": "application/json"}
    assert service.post("/v1/recommend", content=chunks, headers=headers).status_code == 413
    assert (
        service.post("/v1/recommend", content=b"{}", headers={"content-type": "text/plain"}).status_code
        == 415
    )
    for bad in (
        b"{",
        b"\xff\xfe",
        b"[" * 1900,
        b'{"users": ["\\ud800"]}',
        b'{"users":["a"],"k":NaN}',
        b'{"users": [1e999]}',
    ):
        answer = service.post("/v1/recommend", content=bad, headers=headers)
        assert answer.status_code in (400, 422), bad
        assert answer.json()["error"]


def test_settings_limit_k_and_users(client: Client, saved: dict[str, Path]) -> None:
    service = client(saved["first"], max_k=7, max_users=2, max_items=3, max_explained=1)
    for body, field in (
        ({"users": ["a"], "k": 8}, "k"),
        ({"users": ["a", "b", "c"]}, "users"),
        ({"users": ["a", "b"], "explain": True}, "users"),
        ({"history": ["a"] * 4}, "history"),
        ({"users": ["a"], "exclude": ["a"] * 4}, "exclude"),
    ):
        answer = service.post("/v1/recommend", json=body)
        assert (answer.status_code, answer.json()["field"]) == (422, field)
    assert (
        service.post("/v1/recommend", json={"users": ["user20"], "k": 7, "offset": 10_000}).json()["results"][
            0
        ]["items"]
        == []
    )


def test_keys(client: Client, saved: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "read").write_text("read-key-1\n")
    (tmp_path / "admin").write_text("admin-key-1")
    service = client(
        saved["first"],
        read_key_file=str(tmp_path / "read"),
        admin_key_file=str(tmp_path / "admin"),
        feedback=str(tmp_path / "log"),
        host="0.0.0.0",
    )
    events = {"events": [{"user": "a", "item": "b"}]}

    def status(key: str | None, method: str = "GET", path: str = "/v1/recommend/a", **more: Any) -> int:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        return int(service.request(method, path, headers=headers, **more).status_code)

    assert [status(key) for key in (None, "wrong", "read-key-1", "admin-key-1")] == [401, 401, 200, 200]
    assert service.get("/v1/recommend/a", headers={"x-api-key": "read-key-1"}).status_code == 200
    assert [status(key, path="/metrics") for key in (None, "read-key-1")] == [401, 200]
    assert [status(None, path=path) for path in ("/livez", "/readyz", "/")] == [200, 200, 200]
    write = {"method": "POST", "path": "/v1/feedback", "json": events}
    assert [status(key, **write) for key in (None, "read-key-1", "admin-key-1")] == [401, 401, 200]
    reload = {"method": "POST", "path": "/v1/model/reload"}
    assert [status(key, **reload) for key in ("read-key-1", "admin-key-1")] == [401, 200]


def test_without_keys_only_loopback(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"host: '0.0.0.0' without keys"):
        Settings(runs=("run",), host="0.0.0.0")
    assert Settings(runs=("run",), host="0.0.0.0", without_keys=True).host == "0.0.0.0"
    assert Settings(runs=("run",), host="::1").host == "::1"
    with pytest.raises(ConfigError, match="two runs are called 'run'"):
        Settings(runs=("a/run", "b/run"))


def test_pages_of_others_are_not_answered(client: Client, saved: dict[str, Path]) -> None:
    service = client(saved["first"])
    assert service.get("/v1/model", headers={"host": "evil.example"}).status_code == 421
    assert service.post("/v1/model/reload", headers={"origin": "http://evil.example"}).status_code == 403
    assert (
        service.post(
            "/v1/model/reload", headers={"host": "localhost:80", "origin": "http://localhost:80"}
        ).status_code
        == 200
    )


def test_too_many_at_a_time_get_503_at_once(client: Client, saved: dict[str, Path]) -> None:
    service = client(saved["first"], max_concurrency=2)
    ranker = service.app._app.state.service.ranker
    entered, leave = threading.Event(), threading.Event()

    def block() -> None:
        entered.set()
        leave.wait(60)

    real = ranker._lists
    ranker._lists = lambda requests: (block(), real(requests))[1]
    answers: list[int] = []
    waiting = [
        threading.Thread(target=lambda: answers.append(service.get("/v1/recommend/user20").status_code))
        for _ in range(2)
    ]
    for thread in waiting:
        thread.start()
    assert entered.wait(60)
    metrics = service.app._metrics
    while metrics.value("in_flight") < 2:  # the second one has come as well
        pass
    refused = service.get("/v1/recommend/user20")
    assert refused.status_code == 503
    assert refused.headers["retry-after"] == "1"
    assert service.get("/livez").status_code == 200
    assert service.get("/readyz").status_code == 200
    assert "talos_in_flight 2" in service.get("/metrics").text
    leave.set()
    for thread in waiting:
        thread.join()
    assert answers == [200, 200]


def test_a_request_is_given_up_at_its_deadline(client: Client, saved: dict[str, Path]) -> None:
    service = client(saved["first"], deadline=0.05)
    ranker = service.app._app.state.service.ranker
    leave, real = threading.Event(), ranker._lists
    ranker._lists = lambda requests: (leave.wait(60), real(requests))[1]
    assert service.get("/v1/recommend/user20").status_code == 504
    leave.set()
    ranker._lists = real


def test_the_access_log_is_json(
    client: Client, saved: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    service = client(saved["first"], access_log=True)
    service.get("/v1/recommend/%0A%22x?k=3")
    line = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert (line["method"], line["path"], line["query"], line["status"]) == (
        "GET",
        '/v1/recommend/\n"x',
        "k=3",
        200,
    )
    assert line["bytes"] > 0


def test_half_sent_requests_and_nonsense(server: Callable[..., Any], saved: dict[str, Path]) -> None:
    service = server(saved["first"], "--deadline", 0.5)
    host, port = service.url.removeprefix("http://").split(":")

    def sent(data: bytes) -> bytes:
        with socket.create_connection((host, int(port)), timeout=60) as link:
            link.sendall(data)
            answer = b""
            while piece := link.recv(65536):
                answer += piece
                if b"\r\n\r\n" in answer and b"connection: close" not in answer.lower():
                    break
            return answer

    head = b"POST /v1/recommend HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    assert b" 408 " in sent(head + b"content-length: 100\r\n\r\n{")
    assert b" 413 " in sent(head + b"content-length: 99999999999\r\n\r\n")
    for nonsense in (
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 no tls here \r\n\r\n",
        head + b"content-length: -5\r\n\r\n",
        head + b"content-length: 5\r\ncontent-length: 6\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET /v1/recommend/%ff%fe HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET /v1/items/\x80 HTTP/1.1\r\nhost: localhost\r\n\r\n",
    ):
        answer = sent(nonsense)
        assert answer == b"" or answer.split()[1].startswith(b"4"), (nonsense[:60], answer[:80])
    assert service.client.get("/v1/recommend/user20").status_code == 200
    assert service.stop() in (0, -signal.SIGTERM)
    assert "Traceback" not in service.text
