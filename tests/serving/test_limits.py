"""Limits and keys: what is refused, with which status, and what is answered all the same."""

from __future__ import annotations

import json
import re
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from talos.errors import ConfigError
from talos.serving.settings import Settings

from .conftest import until

Client = Callable[..., Any]


def received(link: socket.socket) -> bytes:
    """The next bytes of a connection; an error if it was closed."""
    piece = link.recv(65536)
    assert piece, "the service closed the connection"
    return piece


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
        assert answer.json()["field"] in ("body", "k", "users.0.int", "users.0"), bad


def test_settings_limit_k_and_users(client: Client, saved: dict[str, Path]) -> None:
    service = client(saved["first"], max_k=7, max_users=2, max_items=3, max_explained=1)
    for body, field, setting in (
        ({"users": ["a"], "k": 8}, "k", "at most 7 (the service's max_k)"),
        ({"users": ["a"], "k": 99_999}, "k", "at most 7 (the service's max_k)"),
        ({"users": ["a"] * 20_000}, "users", "at most 2 (the service's max_users)"),
        ({"users": ["a", "b"], "explain": True}, "users", "at most 1 (the service's max_explained)"),
        ({"history": ["a"] * 4}, "history", "at most 3 (the service's max_items)"),
        ({"users": ["a"], "exclude": ["a"] * 4}, "exclude", "at most 3 (the service's max_items)"),
    ):
        answer = service.post("/v1/recommend", json=body)
        assert (answer.status_code, answer.json()["field"]) == (422, field)
        assert setting in answer.json()["error"]
    for path in ("recommend/a", "popular", "items/item33/similar", "users/user20/similar"):
        answer = service.get(f"/v1/{path}", params={"k": 99_999})
        assert (answer.status_code, answer.json()["field"]) == (422, "k")
        assert "99,999; expected at most 7 (the service's max_k)" in answer.json()["error"]
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


@pytest.mark.parametrize("access_log", [False, True])  # refused by its bytes; refused when it is parsed
def test_a_busy_service_refuses_and_goes_on(
    fork: Callable[..., Any], saved: dict[str, Path], access_log: bool
) -> None:
    """On a connection that stays open; health is answered all the same."""
    service = fork(saved["first"], max_concurrency=1, deadline=60.0, access_log=access_log)
    host, port = service.url.removeprefix("http://").split(":")

    def get(path: bytes, *more: bytes) -> bytes:
        return b"\r\n".join([b"GET " + path + b" HTTP/1.1", b"Host: localhost", *more, b"", b""])

    def post(body: bytes) -> bytes:
        kind = b"Host: localhost\r\ncontent-type: application/json"
        return b"POST /v1/recommend HTTP/1.1\r\n%b\r\nContent-Length: %d\r\n\r\n%b" % (kind, len(body), body)

    def statuses(link: socket.socket, *requests: bytes) -> list[bytes]:
        found = []
        for data in requests:
            link.sendall(data)
            answer = b""
            while b"\r\n\r\n" not in answer:
                answer += received(link)
            head, _, body = answer.partition(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            while len(body) < length:
                body += received(link)
            assert len(body) == length
            found.append(head.split()[1])
            if found[-1] == b"503":
                assert b"retry-after: 1" in head.lower()
                assert json.loads(body) == {"error": "too many requests at a time", "field": None}
        return found

    whole = post(b'{"users": ["user20"], "k": 3}')
    with (
        socket.create_connection((host, int(port)), timeout=60) as slow,
        socket.create_connection((host, int(port)), timeout=60) as link,
    ):
        slow.sendall(whole[:-5])
        until(lambda: "talos_in_flight 1" in service.client.get("/metrics").text)
        one = get(b"/v1/recommend/user20?k=3")
        odd = get(b"/v1/recommend/user20", b"content-length: 5") + b"hello"
        asked = (one, whole, one, get(b"/livez"), odd, one, get(b"/v1/popular", b"X: y"), get(b"/readyz"))
        refused, fine = b"503", b"200"
        wanted = [refused, refused, refused, fine, refused, refused, refused, fine]
        assert statuses(link, *asked) == wanted
        text = service.client.get("/metrics").text
        assert 'talos_requests_total{route="recommend",status="503"} 5' in text
        assert 'talos_requests_total{route="popular",status="503"} 1' in text
        assert statuses(slow, whole[-5:]) == [fine]
        until(lambda: "talos_in_flight 0" in service.client.get("/metrics").text)
        assert statuses(link, one, whole) == [fine, fine]


def test_a_busy_service_reads_requests_as_an_idle_one_does(
    fork: Callable[..., Any], saved: dict[str, Path]
) -> None:
    """What is not plainly one whole request is parsed: it is refused as such, and the connection stays in step."""
    service = fork(saved["first"], max_concurrency=1, deadline=60.0)
    host, port = service.url.removeprefix("http://").split(":")
    kind = b"content-type: application/json\r\nhost: localhost\r\n"
    plain = b"POST /v1/rank HTTP/1.1\r\n%bcontent-length: 2\r\n\r\n{}" % kind
    health = b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n"
    asked: list[tuple[bytes, list[bytes], bool]] = [  # statuses, and whether the service closes
        (plain + health, [b"503", b"200"], False),
        (plain[:-1] + b"}" + plain, [b"503", b"503"], False),
        (health + plain, [b"200", b"503"], False),
        (plain.replace(b"POST", b"GET"), [b"503"], False),
        (plain.replace(b"POST", b"PUT"), [b"503"], False),
        (plain.replace(b"/v1/rank", b"/livez"), [b"405"], False),
        (plain.replace(b"-length: 2", b"-length: 2\r\nContent-Length: 3"), [b"400"], True),
        (plain.replace(b"-length: 2", b"-length: 2x"), [b"400"], True),
        (plain.replace(b"host: localhost", b"x: localhost"), [b"400"], True),
        (plain.replace(b"host:", b"Connection: close\r\nhost:"), [b"503"], True),
        (plain.replace(b"HTTP/1.1", b"HTTP/1.0"), [b"503"], True),
    ]
    with socket.create_connection((host, int(port)), timeout=60) as slow:
        slow.sendall(b"POST /v1/recommend HTTP/1.1\r\n%bcontent-length: 9\r\n\r\n{" % kind)
        until(lambda: "talos_in_flight 1" in service.client.get("/metrics").text)
        for data, statuses, closes in asked:
            with socket.create_connection((host, int(port)), timeout=60) as link:
                link.sendall(data)
                answer = b""
                while len(found := re.findall(rb"HTTP/1.1 (\d+) ", answer)) < len(statuses) or closes:
                    piece = link.recv(65536)
                    answer += piece
                    if not piece:
                        break
                assert found == statuses, (data, answer)
                if not closes:  # it is in step: a further request has its own answer
                    link.settimeout(60)
                    time.sleep(0.01)
                    link.sendall(health)
                    answer = b""
                    while b"\r\n\r\n" not in answer:  # head and body may arrive together
                        answer += received(link)
                    assert b"200 OK" in answer, data


def test_a_request_is_given_up_at_its_deadline(client: Client, saved: dict[str, Path]) -> None:
    service = client(saved["first"], deadline=1e-4)  # less than reading the request takes
    answer = service.get("/v1/recommend/user20")
    assert (answer.status_code, answer.json()["error"]) == (504, "not done within 0.0001 s")
    assert service.get("/livez").status_code == 200


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
