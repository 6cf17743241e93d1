"""The service on loopback against the library calls that it makes and against other servers, with random vectors.

One process serves, this one asks. The lists are compared before anything is timed; what is compared is timed in turns,
so that both see the same machine. Every part is bounded in count and in time.

The other servers are a plain handler (`plain_server.py`) and, if `TALOS_TRITON_PYTHON` names an interpreter that has
`nvidia-pytriton`, Triton (`triton_server.py`).
"""

from __future__ import annotations

import asyncio
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch
import torch.nn.functional as F

from talos.data.datasets import synthetic
from talos.data.interactions import Interactions
from talos.model.model import Model, Vectors
from talos.model.recommender import Recommender

MEANING = {
    "serve_batch_over_library": "users per second over HTTP, 1,000 a call / `Recommender.recommend`, same users",
    "serve_one_user_over_library": "p50 of one list over HTTP at 100,000 items / that of `Recommender.recommend`",
    "serve_overload_goodput": "lists per second in time at four times the load that it carries / at that load",
    "serve_next_list_p50_ms": "milliseconds of the first list after an event at 100,000 items, folded in anew",
    "serve_batch_over_plain": "users per second, 1,000 a call / those of a FastAPI handler with numpy, same lists",
    "serve_capacity_over_plain": "lists per second of single users, 16 clients / those of that handler",
}
_SECONDS = 15.0
_CLIENTS = 16
_ROUNDS = 3
_K = 20


def measure(
    *, users: int = 2000, items: int = 100_000, calls: int = 100, seconds: float = 5.0
) -> dict[str, float]:
    """Ratios of the service to the library and to a plain handler, and what happens beyond its capacity."""
    import httpx

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = _model(users, items)
        model.save(folder / "run")
        model = Recommender.load(folder / "run")
        _save_plain(model, folder)
        ids = model.fitted_model().train.user_ids.ids.to_list()
        plain = [sys.executable, str(Path(__file__).with_name("plain_server.py")), str(folder)]
        limits = ("--max-concurrency", str(_CLIENTS), "--deadline", "2")
        with (
            _served(*_talos(folder / "run", "--feedback", str(folder / "log"))) as url,
            _served(*plain) as plain_url,
            httpx.Client(base_url=url, timeout=60) as client,
            httpx.Client(base_url=plain_url, timeout=60) as other,
        ):
            some = ids[: min(1000, len(ids))]
            _check_lists(model, client, other, some)
            figures = _batches(model, client, other, some, max(3, calls // 20))
            figures |= _single(model, client, other, ids, calls)
            figures |= _next_lists(model, client, ids, min(calls, 50))
            asked = _requests(len(ids))
            ours, plain_load = _loads_in_turns([(url, asked), (plain_url, asked)], seconds)
            figures |= _against_triton(model, folder, client, url, ids, calls, seconds)
        with _served(*_talos(folder / "run", *limits)) as url:
            asyncio.run(_closed(url, asked, _CLIENTS, min(1.0, seconds)))  # warm
            fits, over = _Load(), _Load()
            for _ in range(_ROUNDS):
                fits.add(asyncio.run(_closed(url, asked, _CLIENTS, seconds / _ROUNDS)))
                over.add(asyncio.run(_open(url, asked, 4 * fits.per_second, seconds / _ROUNDS)))
    return figures | {
        "serve_overload_goodput": over.per_second / fits.per_second,
        "serve_capacity_over_plain": ours.per_second / plain_load.per_second,
        "serve_lists_per_second": fits.per_second,
        "serve_plain_lists_per_second": plain_load.per_second,
        "serve_list_p50_ms_at_capacity": fits.percentile(0.5),
        "serve_list_p99_ms_at_capacity": fits.percentile(0.99),
        "serve_overload_offered_over_capacity": over.offered_per_second / fits.per_second,
        "serve_overload_list_p50_ms": over.percentile(0.5),
        "serve_overload_list_p99_ms": over.percentile(0.99),
        "serve_overload_refused_share": len(over.refused) / max(1, over.count),
        "serve_overload_refusal_p50_ms": over.percentile(0.5, over.refused),
        "serve_overload_refusal_p99_ms": over.percentile(0.99, over.refused),
        "serve_overload_late": float(over.failed),
    }


def _model(users: int, items: int) -> Recommender:
    drawn = synthetic(users=users, items=items, interactions=20 * users, seed=0)
    # ids are positions, so that the plain handler needs no table of them
    data = Interactions.from_codes(
        drawn.rows, drawn.indices, user_ids=_numbers(drawn.num_users), item_ids=_numbers(items)
    )
    generator = torch.Generator().manual_seed(0)
    recommender = Recommender(k=_K)
    recommender.model = Model(
        scored_by=Vectors(
            F.normalize(torch.randn(data.num_users, 64, generator=generator)),
            F.normalize(torch.randn(data.num_items, 64, generator=generator)),
        ),
        train=data,
        metadata={"config": recommender.config.as_dict()},
    )
    return recommender


def _numbers(count: int) -> Any:
    from talos.data.vocabulary import Vocabulary

    return Vocabulary.of(list(range(count)))


def _save_plain(model: Recommender, folder: Path) -> None:
    """The vectors and the masked items as `plain_server.py` reads them."""
    held = model.fitted_model()
    scored = held.dot_scores  # with columns for popularity
    np.save(folder / "users.npy", scored.user_vectors.numpy())
    np.save(folder / "items.npy", scored.item_vectors.numpy())
    np.save(folder / "indptr.npy", held.known.indptr)
    np.save(folder / "indices.npy", held.known.indices)


def _against_triton(
    model: Recommender, folder: Path, client: Any, url: str, ids: Sequence[int], calls: int, seconds: float
) -> dict[str, float]:
    """What Triton needs for the same lists; nothing if it is not there."""
    import httpx

    python = os.environ.get("TALOS_TRITON_PYTHON")
    if not python:
        return {}
    line = [python, str(Path(__file__).with_name("triton_server.py")), str(folder)]
    # its model runs in a stub that would take the system's libpython instead of the interpreter's own
    found = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_config_var('LIBDIR'))"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    with (
        _served(*line, LD_LIBRARY_PATH=found.stdout.strip(), PYTHONPATH="") as triton_url,
        httpx.Client(base_url=triton_url, timeout=60) as triton,
    ):

        def theirs(users: Sequence[int]) -> Any:
            answer = triton.post("/v2/models/lists/infer", json=_triton_body(users)).raise_for_status()
            return answer.json()["outputs"]

        some = list(ids[: min(1000, len(ids))])
        wanted = model.recommend(some, k=_K)
        if not np.allclose(theirs(some)[1]["data"], wanted["score"].to_numpy(), atol=1e-5):
            raise AssertionError("the scores are not those of the library")
        body = {"users": some, "k": _K}
        batches = _in_turns(
            [lambda: client.post("/v1/recommend", json=body).raise_for_status(), lambda: theirs(some)],
            max(3, calls // 20),
        )
        chosen = iter(np.random.default_rng(0).choice(ids, 2 * calls + 2).tolist())
        single = _in_turns(
            [
                lambda: client.get(f"/v1/recommend/{next(chosen)}", params={"k": _K}).raise_for_status(),
                lambda: theirs([next(chosen)]),
            ],
            calls,
        )
        bodies = [orjson.dumps(_triton_body([one])) for one in _users(len(ids))]
        head = (
            b"POST /v2/models/lists/infer HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        )
        asked = [head + b"Content-Length: %d\r\n\r\n%b" % (len(one), one) for one in bodies]
        ours, of_triton = _loads_in_turns([(url, _requests(len(ids))), (triton_url, asked)], seconds)
    return {
        "serve_batch_over_triton": min(batches[1]) / min(batches[0]),
        "serve_one_user_over_triton": statistics.median(single[0]) / statistics.median(single[1]),
        "serve_capacity_over_triton": ours.per_second / of_triton.per_second,
        "serve_triton_lists_per_second": of_triton.per_second,
    }


def _triton_body(users: Sequence[int]) -> dict[str, Any]:
    return {"inputs": [{"name": "user", "shape": [len(users), 1], "datatype": "INT64", "data": list(users)}]}


def _talos(run: Path, *flags: str) -> list[str]:
    return [sys.executable, "-m", "talos", "serve", str(run), "--port", "0", *flags]


@contextmanager
def _served(*line: str, **environment: str) -> Iterator[str]:
    """A service as a process of its own, as long as the block lasts; yields its address."""
    threads = str(torch.get_num_threads())
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads, **environment}
    with subprocess.Popen(line, stderr=subprocess.PIPE, env=environment, text=True) as process:
        assert process.stderr is not None
        try:
            said = ""
            while (found := re.search(r"at (http://\S+)\n", said)) is None:
                new = process.stderr.readline()
                if not new:
                    raise AssertionError(said)
                said += new
            yield found[1]
        finally:
            process.terminate()


def _check_lists(model: Recommender, client: Any, other: Any, some: Sequence[int]) -> None:
    """The three must give the same lists; neighbours within the last digits of a score may change places."""
    wanted = model.recommend(list(some), k=_K)
    for asked in (client, other):
        results = asked.post("/v1/recommend", json={"users": list(some), "k": _K}).json()["results"]
        found = [item["item"] for one in results for item in one["items"]]
        scores = [item["score"] for one in results for item in one["items"]]
        if not np.allclose(scores, wanted["score"].to_numpy(), atol=1e-5):
            raise AssertionError("the scores are not those of the library")
        if (np.array(found) != wanted["item_id"].to_numpy()).mean() > 1e-3:
            raise AssertionError("the lists are not those of the library")


def _batches(
    model: Recommender, client: Any, other: Any, some: Sequence[int], repeats: int
) -> dict[str, float]:
    users = list(some)

    def ask(one: Any) -> Callable[[], None]:
        return lambda: one.post("/v1/recommend", json={"users": users, "k": _K}).raise_for_status()

    library, service, plain = _in_turns(
        [lambda: model.recommend(users, k=_K), ask(client), ask(other)], repeats
    )
    return {
        "serve_batch_over_library": min(library) / min(service),
        "serve_batch_over_plain": min(plain) / min(service),
        "serve_batch_users_per_second": len(users) / min(service),
    }


def _single(model: Recommender, client: Any, other: Any, ids: Sequence[int], calls: int) -> dict[str, float]:
    chosen = iter(np.random.default_rng(0).choice(ids, 3 * calls + 3).tolist())

    def ask(one: Any) -> Callable[[], None]:
        return lambda: one.get(f"/v1/recommend/{next(chosen)}", params={"k": _K}).raise_for_status()

    calls_of = [lambda: model.recommend([next(chosen)], k=_K), ask(client), ask(other)]
    library, service, plain = _in_turns(calls_of, calls)
    return {
        "serve_one_user_over_library": statistics.median(service) / statistics.median(library),
        "serve_one_user_over_plain": statistics.median(service) / statistics.median(plain),
        "serve_one_user_p50_ms": 1000 * statistics.median(service),
        "serve_one_user_p99_ms": 1000 * _percentile(service, 0.99),
        "serve_library_one_user_p50_ms": 1000 * statistics.median(library),
    }


def _next_lists(model: Recommender, client: Any, ids: Sequence[int], count: int) -> dict[str, float]:
    """An event, its answer, and then the list that knows it: one user after the other."""
    events, lists = [], []
    end = time.perf_counter() + _SECONDS
    items = model.fitted_model().train.num_items
    for number in range(count):
        user = ids[number % len(ids)]
        body = {"events": [{"user": user, "item": (7919 * number) % items}]}
        began = time.perf_counter()
        client.post("/v1/feedback", json=body).raise_for_status()
        answered = time.perf_counter()
        answer = client.get(f"/v1/recommend/{user}", params={"k": _K})
        lists.append(time.perf_counter() - answered)
        events.append(answered - began)
        if answer.json()["results"][0]["source"] != "folded":
            raise AssertionError("the list does not know the event")
        if answered > end:
            break
    return {
        "serve_next_list_p50_ms": 1000 * statistics.median(lists),
        "serve_next_list_p99_ms": 1000 * _percentile(lists, 0.99),
        "serve_feedback_p50_ms": 1000 * statistics.median(events),
    }


def _in_turns(calls: Sequence[Callable[[], Any]], count: int) -> list[list[float]]:
    """Seconds of each of `count` rounds of calls, of fewer if they take too long; the first round does not count."""
    found: list[list[float]] = [[] for _ in calls]
    end = time.perf_counter() + _SECONDS
    for turn in range(count + 1):
        for call, times in zip(calls, found, strict=True):
            began = time.perf_counter()
            call()
            if turn:
                times.append(time.perf_counter() - began)
        if turn > 2 and time.perf_counter() > end:
            break
    return found


def _percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[int(share * (len(values) - 1))] if values else float("nan")


# ----------------------------------------------------------------------------- many clients


@dataclass
class _Load:
    """What came back in `seconds`: how long lists and refusals took, and how many were neither."""

    answered: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)
    failed: int = 0
    seconds: float = 0.0

    def add(self, other: _Load) -> None:
        """Take in what came back at another time."""
        self.answered += other.answered
        self.refused += other.refused
        self.failed += other.failed
        self.seconds += other.seconds

    @property
    def count(self) -> int:
        return len(self.answered) + len(self.refused) + self.failed

    @property
    def per_second(self) -> float:
        return len(self.answered) / self.seconds

    @property
    def offered_per_second(self) -> float:
        return self.count / self.seconds

    def percentile(self, share: float, values: list[float] | None = None) -> float:
        return 1000 * _percentile(self.answered if values is None else values, share)

    async def ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes) -> None:
        """Send one request and read the answer. A client that parses more would need the cores of the service."""
        began = time.perf_counter()
        writer.write(data)
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", head)
        assert length is not None
        await reader.readexactly(int(length[1]))
        took = time.perf_counter() - began
        if head.startswith(b"HTTP/1.1 200"):
            self.answered.append(took)
        elif head.startswith(b"HTTP/1.1 503"):
            self.refused.append(took)
        else:
            self.failed += 1


def _users(users: int) -> list[int]:
    """Users drawn at random."""
    chosen: list[int] = np.random.default_rng(1).integers(0, users, 997).tolist()
    return chosen


def _requests(users: int) -> list[bytes]:
    """Requests for lists of users drawn at random."""
    line = b"GET /v1/recommend/%d?k=%d HTTP/1.1\r\nHost: localhost\r\n\r\n"
    return [line % (user, _K) for user in _users(users)]


async def _connect(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = url.removeprefix("http://").split(":")
    return await asyncio.open_connection(host, int(port))


async def _closed(url: str, asked: list[bytes], clients: int, seconds: float) -> _Load:
    """So many clients, each asking again as soon as it is answered: what the service carries."""
    load, links = _Load(), [await _connect(url) for _ in range(clients)]
    began = time.perf_counter()

    async def one(number: int) -> None:
        reader, writer = links[number]
        count = number * 61
        while time.perf_counter() - began < seconds:
            await load.ask(reader, writer, asked[count % len(asked)])
            count += 1
        writer.close()

    await asyncio.gather(*(one(number) for number in range(clients)))
    load.seconds = time.perf_counter() - began
    return load


def _loads_in_turns(services: Sequence[tuple[str, list[bytes]]], seconds: float) -> list[_Load]:
    """What each of some services carries, asked in turns so that all see the same machine."""
    loads = [_Load() for _ in services]
    for _ in range(_ROUNDS):
        for (url, asked), load in zip(services, loads, strict=True):
            load.add(asyncio.run(_closed(url, asked, _CLIENTS, seconds / _ROUNDS)))
    return loads


async def _open(url: str, asked: list[bytes], rate: float, seconds: float) -> _Load:
    """`rate` requests a second whatever comes back, over connections that each wait for their own answer."""
    load, clients = _Load(), 8 * _CLIENTS
    pause = clients / rate
    links = [await _connect(url) for _ in range(clients)]
    began = time.perf_counter()

    async def one(number: int) -> None:
        due = began + pause * number / clients
        reader, writer = links[number]
        count = number * 61
        while due - began < seconds:
            # a client that has fallen behind asks at once, and does not make up for what it missed
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            try:
                await load.ask(reader, writer, asked[count % len(asked)])
            except (asyncio.IncompleteReadError, ConnectionError):  # closed unanswered
                load.failed += 1
                reader, writer = await _connect(url)
            due = max(due + pause, time.perf_counter() - pause)
            count += 1
        writer.close()

    await asyncio.gather(*(one(number) for number in range(clients)))
    load.seconds = time.perf_counter() - began
    return load
