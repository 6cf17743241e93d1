"""The service at length: killed at random moments, its runs swapped under load, and sent anything.

`make test` runs a short version of each; `make torture` the long one (50 kills, 100 swaps, 5,000 hostile requests).
`TALOS_TORTURE_KILLS`, `_SWAPS` and `_HOSTILE` set the numbers, `TALOS_TORTURE_SEED` the moments.
"""

from __future__ import annotations

import json
import random
import re
import socket
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx

from .conftest import HOSTILE, SEED, Forked, copied, item_name, times, until

Fork = Callable[..., Forked]


# ----------------------------------------------------------------------------- killed


class Ledger:
    """What was sent to the service and what it acknowledged, by event id."""

    def __init__(self) -> None:
        self.sent: dict[str, dict[str, Any]] = {}
        self.acknowledged: set[str] = set()
        self._lock = threading.Lock()

    def send(self, url: str, client: httpx.Client, rng: random.Random) -> None:
        """Send a few events of a few users in one request; raises what the client raises."""
        with self._lock:
            names = [f"event{len(self.sent) + n}" for n in range(rng.randint(1, 4))]
            events = [self._event(name, rng) for name in names]
            self.sent |= {event["id"]: event for event in events}
        self.post(client, events)

    def post(self, client: httpx.Client, events: list[dict[str, Any]]) -> dict[str, Any]:
        answer = client.post("/v1/feedback", json={"events": events})
        assert answer.status_code == 200, answer.text
        with self._lock:
            self.acknowledged |= {event["id"] for event in events}
        facts: dict[str, Any] = answer.json()
        assert facts["accepted"] + facts["repeated"] == len(events)
        return facts

    def _event(self, name: str, rng: random.Random) -> dict[str, Any]:
        user = rng.choice(["eve", "adam", "user20", "user21"])
        item = "unheard of" if rng.random() < 0.1 else item_name(rng.randrange(60))
        return {"user": user, "item": item, "id": name, "timestamp": 1.0 * len(self.sent)}

    def check(self, log: Path) -> Counter[str]:
        """Compare with the log: acknowledged events are in it once, others at most once, and nothing else is."""
        kept: Counter[str] = Counter()
        with closing(sqlite3.connect(log)) as link:
            rows = link.execute("SELECT user, item, timestamp, id FROM events").fetchall()
        for user, item, timestamp, name in rows:
            sent = self.sent[name]
            assert (user, item, timestamp) == (sent["user"], sent["item"], sent.get("timestamp", timestamp))
            kept[name] += 1
        assert set(kept) >= self.acknowledged
        assert set(kept.values()) <= {1}
        return kept


def lists_of(client: httpx.Client, users: list[str]) -> list[Any]:
    """What the service answers for each user alone: items, scores and source, to the last digit."""
    return [client.get(f"/v1/recommend/{user}", params={"k": 30}).json()["results"] for user in users]


def test_kill_at_random_moments(fork: Fork, run: Path, tmp_path: Path) -> None:
    """No acknowledged event is lost, none is counted twice, and lists after the restart are those before."""
    log, rng, ledger = tmp_path / "log.db", random.Random(SEED), Ledger()
    before: dict[str, Any] = {}
    torn = 0
    for number in range(times("kills", 3, 50)):
        service = fork(run, feedback=str(log))
        kept = ledger.check(log)
        facts = service.client.get("/v1/model").json()["models"][0]
        assert facts["events"] == sum(kept.values())
        assert facts["unknown_items"] == sum(ledger.sent[one]["item"] == "unheard of" for one in kept)
        assert dict(zip(before, lists_of(service.client, list(before)), strict=True)) == before
        # what nobody answered is sent again, and is counted once whether or not it had arrived
        again = [event for name, event in ledger.sent.items() if name not in ledger.acknowledged]
        if again:
            arrived = sum(event["id"] in kept for event in again)
            assert ledger.post(service.client, again)["repeated"] == arrived
            assert set(ledger.check(log)) == set(ledger.sent)
        # a user of this round alone, folded in step by step with lists in between; one of the run, the same
        mine = [f"quiet{number}", f"user{22 + number % 18}"]
        for count in range(4):
            for user in mine:
                ledger.sent[f"{user}-{number}-{count}"] = event = {
                    "user": user,
                    "item": item_name(rng.randrange(60)),
                    "id": f"{user}-{number}-{count}",
                }
                ledger.post(service.client, [event])
            lists_of(service.client, mine)
        before |= dict(zip(mine, lists_of(service.client, mine), strict=True))
        torn += _load_and_kill(service, ledger, rng)
        assert "Traceback" not in service.text
    ledger.check(log)
    print(f"\nkills: {number + 1}, acknowledged events: {len(ledger.acknowledged)}, requests cut: {torn}")
    assert len(ledger.acknowledged) > 8 * (number + 1)


def _load_and_kill(service: Forked, ledger: Ledger, rng: random.Random) -> int:
    """Three clients send until the service is gone, which is killed some answers and a moment later."""
    enough, cut, wanted = threading.Event(), [0], rng.randrange(1, 12)
    answered = threading.Semaphore(0)

    def send(seed: int) -> None:
        mine = random.Random(seed)
        with httpx.Client(base_url=service.url, timeout=60) as client:
            while True:
                try:
                    ledger.send(service.url, client, mine)
                except httpx.HTTPError:
                    cut[0] += 1
                    return
                answered.release()

    def kill() -> None:
        for _ in range(wanted):
            assert answered.acquire(timeout=60)
        enough.wait(rng.uniform(0.0, 0.02))  # within the next requests, wherever they are by then
        service.kill()

    threads = [threading.Thread(target=send, args=(rng.randrange(2**32),)) for _ in range(3)]
    killer = threading.Thread(target=kill)
    for thread in (*threads, killer):
        thread.start()
    for thread in (*threads, killer):
        thread.join()
    return cut[0]


# ----------------------------------------------------------------------------- swapped


def test_swaps_under_load(fork: Fork, saved: dict[str, Path], run: Path, tmp_path: Path) -> None:
    """No request fails, every list is one of the version that it names, and neither memory nor files grow."""
    users = ["user20", "user21", "eve"]
    service = fork(run, feedback=str(tmp_path / "log"))
    events = [{"user": "eve", "item": item_name(item)} for item in (30, 31, 33)]
    service.client.post("/v1/feedback", json={"events": events}).raise_for_status()
    right: dict[str, Any] = {}
    for name in ("second", "first"):
        _swap(service.client, saved[name], run)
        answer = service.client.post("/v1/recommend", json={"users": users, "k": 5}).json()
        right[answer["version"]] = _lists(answer)
    assert len(right) == 2
    stop, faults, asked = threading.Event(), list[str](), [0] * 4

    def ask(number: int) -> None:
        with httpx.Client(base_url=service.url, timeout=60) as client:
            while not stop.is_set():
                answer = client.post("/v1/recommend", json={"users": users, "k": 5})
                if answer.status_code != 200 or _lists(answer.json()) != right.get(answer.json()["version"]):
                    faults.append(answer.text)
                asked[number] += 1

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    swaps = times("swaps", 8, 100)
    sizes: list[tuple[int, int]] = []
    try:
        for swap in range(swaps):
            _swap(service.client, saved["second" if swap % 2 == 0 else "first"], run)
            sizes.append((service.resident(), service.open_files()))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert faults == []
    assert min(asked) > 0
    _swap(service.client, saved["first"], run)  # and a request, so that nobody holds the one before
    service.client.get("/v1/recommend/user20")
    assert service.mapped() <= 2
    print(
        f"\nswaps: {swaps}, requests meanwhile: {sum(asked)}, private memory in KB: {sizes[0][0]} … {sizes[-1][0]}"
    )
    early, late = sizes[swaps // 4 : swaps // 2], sizes[-max(1, swaps // 4) :]
    # a run that stayed would take 1 MB and two files a swap
    assert min(size for size, _ in late) <= max(size for size, _ in early) + 8 * 1024
    assert min(files for _, files in late) <= max(files for _, files in early) + 4
    assert "Traceback" not in service.text


def _swap(client: httpx.Client, source: Path, run: Path) -> None:
    copied(source, run)
    answer = client.post("/v1/model/reload")
    assert answer.status_code == 200, answer.text


def _lists(answer: dict[str, Any]) -> list[list[Any]]:
    return [[item["item"] for item in one["items"]] for one in answer["results"]]


# ----------------------------------------------------------------------------- hostile


def _hostile(rng: random.Random) -> bytes:
    """The bytes of a request in which something is wrong, or merely strange."""
    ids = [*HOSTILE, "a" * 5000, "%ff%fe", "%00", "..%2f..%2fetc%2fpasswd", "\u202e", "💥", "1" * 400]
    one = rng.choice(ids).encode("utf-8", "replace")
    quoted = b"".join(b"%%%02x" % byte for byte in one) if rng.random() < 0.7 else one.replace(b" ", b"%20")
    paths = [
        b"/v1/recommend/" + quoted,
        b"/v1/items/" + quoted,
        b"/v1/items/" + quoted + b"/similar",
        b"/v1/users/" + quoted,
        b"/v1/items?q=" + quoted + b"&cursor=" + rng.choice([b"x", b"-1", b"9" * 30, b"\xff", b""]),
        b"/v1/popular?k=" + rng.choice([b"-1", b"1e9", b"NaN", b"9" * 50, b"", b"5&k=6"]),
        b"/v1/recommend",
        b"/v1/rank",
        b"/v1/feedback",
        b"/v1/model/reload",
        b"/" + rng.randbytes(rng.randrange(20)),
    ]
    methods = [
        b"GET",
        b"POST",
        b"PUT",
        b"DELETE",
        b"HEAD",
        b"OPTIONS",
        b"CONNECT",
        b"get",
        b"\x00",
        b"A" * 300,
    ]
    path = rng.choice(paths)
    likely = b"POST" if path in (b"/v1/recommend", b"/v1/rank", b"/v1/feedback") else b"GET"
    method = likely if rng.random() < 0.7 else rng.choice(methods)
    body = _hostile_body(rng)
    headers = [b"host: localhost", b"content-type: application/json"]
    if body:
        length = len(body) if rng.random() < 0.8 else rng.choice([len(body) // 2, len(body) + 10, -1, 10**18])
        headers.append(b"content-length: %d" % length)
    odd = [
        b"transfer-encoding: chunked",
        b"content-length: 7",
        b"content-length: 1e3",
        b"content-type: text/html",
        b"content-type: application/json; charset=utf-16",
        b"content-encoding: gzip",
        b"expect: 100-continue",
        b"authorization: Bearer " + b"x" * 3000,
        b"x-api-key: \xff\xfe",
        b"origin: null",
        b"host: [::1",
        b"host: evil.example",
        b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-key: x",
        b"no colon here",
        b": empty",
        b"a" * 70_000 + b": b",
        b"x: " + rng.randbytes(8).replace(b"\n", b""),
        *[b"x%d: y" % n for n in range(3)],
    ]
    while rng.random() < 0.3:
        headers.insert(rng.randrange(len(headers) + 1), rng.choice(odd))
    version = b"HTTP/1.1" if rng.random() < 0.95 else rng.choice([b"HTTP/9.9", b"HTTP/1.0", b"", b"SPDY"])
    data = b"\r\n".join([b" ".join([method, path, version]), *headers, b"", body])
    if rng.random() < 0.1:  # not HTTP at all in places
        place = rng.randrange(len(data))
        data = data[:place] + rng.randbytes(rng.randrange(1, 9)) + data[place:]
    return data


def _hostile_body(rng: random.Random) -> bytes:
    """A body that is JSON, nearly JSON, or nothing of the kind."""
    values: list[Any] = [
        None, True, 0, -1, 1.5, 10**30, "", "x", "\ud800", "\x00", [], {}, [[]], ["a"] * 1200, {"a": {"b": []}},
    ]  # fmt: skip
    fields = [
        "users",
        "history",
        "k",
        "exclude",
        "candidates",
        "filter",
        "diversity",
        "popularity",
        "explain",
    ]
    fields += ["offset", "model", "items", "user", "events", "filter_seen", "unheard of"]
    kind = rng.randrange(6)
    if kind == 0:
        return b""
    if kind == 1:
        return rng.randbytes(rng.randrange(200))
    if kind == 2:
        return rng.choice(
            [b"[" * 5000, b'{"a":' * 3000, b"{", b'{"users": [1e999]}', b"\xff\xfe{\x00}\x00", b"null"]
        )
    chosen = {name: rng.choice(values) for name in rng.sample(fields, rng.randrange(1, 5))}
    if rng.random() < 0.4:
        chosen["filter"] = {
            "must": {rng.choice(["category", "x"]): rng.choice(values)},
            "must_not": rng.choice(values),
        }
    if rng.random() < 0.5:
        chosen["users"] = [rng.choice([*HOSTILE, 7, "user20"])]
    if rng.random() < 0.3:
        chosen["events"] = [
            {"user": rng.choice(values), "item": rng.choice(values), "id": rng.choice(values)}
        ]
    data = json.dumps(chosen).encode()
    return data if kind != 3 else data[: rng.randrange(len(data))]


def _statuses(answer: bytes) -> list[str]:
    """The statuses of the answers in some bytes; `100 Continue` is none, but the promise of one."""
    found = re.findall(rb"HTTP/1\.1 (\d{3}) ", answer)
    return [status.decode() for status in found if status != b"100"]


def _answers(url: str, data: bytes, rng: random.Random) -> bytes:
    """Everything that comes back for some bytes, which may be sent in pieces; the sender says when it is done."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as link:
        try:
            if rng.random() < 0.2:
                place = rng.randrange(len(data))
                link.sendall(data[:place])
                link.sendall(data[place:])
            else:
                link.sendall(data)
            if rng.random() < 0.1:
                return b""  # gone without waiting
            link.shutdown(socket.SHUT_WR)
            answer = b""
            while piece := link.recv(65536):
                answer += piece
        except OSError:  # closed while it was sent to
            return b""
        return answer


def test_hostile_requests(fork: Fork, saved: dict[str, Path], tmp_path: Path) -> None:
    """Every request is answered by something other than 5xx, or closed; no traceback; memory and files stay."""
    rng = random.Random(SEED)
    log = str(tmp_path / "log")
    service = fork(saved["first"], saved["numbers"], feedback=log, max_body=20_000)
    statuses: Counter[str] = Counter()
    count, sizes = times("hostile", 250, 5000), []
    for number in range(count):
        data = _hostile(rng)
        answer = _answers(service.url, data, rng)
        found = _statuses(answer) or ["closed"]  # several if the bytes were, by chance, several requests
        statuses.update(found)
        assert all(status == "closed" or status[0] in "24" for status in found), (data[:2000], answer[:500])
        if number % 50 == 0:
            assert service.client.get("/v1/recommend/user20").status_code == 200
            sizes.append(service.resident())
    assert service.client.get("/v1/recommend/user20").status_code == 200
    print(
        f"\nhostile requests: {count}, statuses: {dict(statuses)}, private memory in KB: {sizes[0]} … {sizes[-1]}"
    )
    half = len(sizes) // 2
    assert min(sizes[-max(1, half // 2) :]) <= max(sizes[: half + 1]) + 8 * 1024
    assert "Traceback" not in service.text, service.text[-5000:]
    assert {"200", "400", "404", "422", "closed"} <= set(statuses)


def test_half_sent_requests_are_closed(fork: Fork, saved: dict[str, Path]) -> None:
    """A head or a body without its end, alone or after a whole request, and a reader who does not read."""
    service = fork(saved["first"], deadline=1.0, max_concurrency=1000)  # more than are sent here at a time
    host, port = service.url.removeprefix("http://").split(":")
    head = b"POST /v1/recommend HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    whole = b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n"
    service.client.get("/livez")
    files = service.open_files()
    links = []
    for data in (
        b"",
        b"GET /livez HT",
        head,
        head + b"content-length: 50\r\n\r\n{",
        head + b"transfer-encoding: chunked\r\n\r\n",
    ):
        for before in (b"", whole) if data else (b"",):  # after a whole request, silence is a client's right
            for _ in range(times("half", 1, 25)):
                link = socket.create_connection((host, int(port)), timeout=60)
                link.sendall(before + data)
                links.append((link, before, data))
    assert service.client.get("/livez").status_code == 200  # others are answered meanwhile
    for link, before, data in links:
        with link:
            answer = b""
            while piece := link.recv(65536):  # ends when the service closes
                answer += piece
            wanted = ["200"] if before else []
            assert _statuses(answer) in (wanted, [*wanted, "408"]), (before, data, answer)
    assert service.client.get("/livez").status_code == 200
    until(lambda: service.open_files() <= files)
    assert "Traceback" not in service.text


def test_a_reader_who_does_not_read_is_cut_off(fork: Fork, saved: dict[str, Path]) -> None:
    service = fork(saved["first"], deadline=1.0)
    host, port = service.url.removeprefix("http://").split(":")
    service.client.get("/livez")
    files = service.open_files()
    body = json.dumps({"users": ["user20"] * 1000, "k": 50}).encode()
    request = b"POST /v1/recommend HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    with socket.socket() as link:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        link.connect((host, int(port)))
        link.sendall(request + b"content-length: %d\r\n\r\n" % len(body) + body)
        until(lambda: service.open_files() > files)  # it is connected
        until(lambda: service.open_files() <= files)  # it is cut off
    assert service.client.get("/v1/recommend/user20").status_code == 200
    assert "Traceback" not in service.text
