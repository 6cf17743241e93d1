"""The service on loopback against the library calls that it makes, with vectors drawn at random.

One process serves, this one asks. The lists are compared before anything is timed. Every part is bounded in count and
in time.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from talos.data.datasets import synthetic
from talos.model.recommender import Recommender
from talos.model.run_directory import Model

MEANING = {
    "serve_batch_over_library": "users per second over HTTP, 1,000 a call / `Recommender.recommend`, same users",
    "serve_one_user_over_library": "p50 of one list over HTTP at 100,000 items / that of `Recommender.recommend`",
    "serve_overload_goodput": "answers per second with four times the clients that fit / with as many as fit",
}
_SECONDS = 20.0


def measure(*, users: int = 2000, items: int = 100_000, calls: int = 100) -> dict[str, float]:
    """Ratios of the service to the library, and what happens beyond its capacity."""
    import httpx

    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "run")
        model = _model(users, items)
        model.save(run)
        model = Recommender.load(run)
        ids = model.fitted_model().train.user_ids.ids.to_list()
        with _served(run, "--max-concurrency", "8") as url, httpx.Client(base_url=url, timeout=60) as client:
            some = ids[:1000]
            lists = client.post("/v1/recommend", json={"users": some, "k": 20}).json()["results"]
            wanted = model.recommend(some, k=20)["item_id"].to_list()
            if [item["item"] for one in lists for item in one["items"]] != wanted:
                raise AssertionError("the service's lists are not those of the library")

            def library_batch() -> None:
                model.recommend(some, k=20)

            def service_batch() -> None:
                client.post("/v1/recommend", json={"users": some, "k": 20}).raise_for_status()

            batch = [_times(call, max(3, calls // 20)) for call in (library_batch, service_batch)]
            rng = np.random.default_rng(0)
            chosen = iter(rng.choice(ids, 4 * calls + 8).tolist())

            def library_one() -> None:
                model.recommend([next(chosen)], k=20)

            def service_one() -> None:
                client.get(f"/v1/recommend/{next(chosen)}", params={"k": 20}).raise_for_status()

            one = [_times(call, calls) for call in (library_one, service_one)]
            fits, over = (_load(url, ids, clients, calls) for clients in (8, 32))
    return {
        "serve_batch_over_library": min(batch[0]) / min(batch[1]),
        "serve_one_user_over_library": statistics.median(one[1]) / statistics.median(one[0]),
        "serve_overload_goodput": over["answers_per_second"] / fits["answers_per_second"],
        "serve_batch_users_per_second": 1000 / min(batch[1]),
        "serve_one_user_p50_ms": 1000 * statistics.median(one[1]),
        "serve_one_user_p99_ms": 1000 * sorted(one[1])[int(0.99 * (len(one[1]) - 1))],
        "serve_overload_refused_share": over["refused_share"],
        "serve_overload_refusal_p50_ms": over["refusal_p50_ms"],
        "serve_answers_per_second": fits["answers_per_second"],
        "serve_answer_p99_ms": fits["answer_p99_ms"],
        "serve_overload_answer_p99_ms": over["answer_p99_ms"],
    }


def _model(users: int, items: int) -> Recommender:
    data = synthetic(users=users, items=items, interactions=20 * users, seed=0)
    generator = torch.Generator().manual_seed(0)
    recommender = Recommender(k=20)
    recommender.model = Model(
        user_vectors=F.normalize(torch.randn(users, 64, generator=generator)),
        item_vectors=F.normalize(torch.randn(items, 64, generator=generator)),
        thresholds=None,
        train=data,
        valid=None,
        metadata={"config": recommender.config.as_dict()},
    )
    return recommender


@contextmanager
def _served(run: Path, *flags: str) -> Iterator[str]:
    """`talos serve` on a free port, as long as the block lasts."""
    line = [sys.executable, "-m", "talos", "serve", str(run), "--port", "0", *flags]
    threads = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    with subprocess.Popen(line, stderr=subprocess.PIPE, env=threads, text=True) as process:
        assert process.stderr is not None
        try:
            said = process.stderr.readline()
            found = re.search(r"at (http://\S+)", said)
            if found is None:
                raise AssertionError(said + process.stderr.read())
            yield found[1]
        finally:
            process.terminate()


def _times(call: Callable[[], None], count: int) -> list[float]:
    """Seconds of each of `count` calls, of fewer if they take too long."""
    call()
    found: list[float] = []
    end = time.perf_counter() + _SECONDS
    while len(found) < count and time.perf_counter() < end:
        began = time.perf_counter()
        call()
        found.append(time.perf_counter() - began)
    return found


def _load(url: str, ids: list[Any], clients: int, calls: int) -> dict[str, float]:
    """So many clients, each asking again as soon as it is answered, for a few seconds."""
    import httpx

    answered: list[float] = []
    refused: list[float] = []
    end = time.perf_counter() + min(5.0, _SECONDS)

    def ask(number: int) -> None:
        with httpx.Client(base_url=url, timeout=60) as client:
            for count in range(100 * calls):
                began = time.perf_counter()
                if began > end:
                    break
                answer = client.get(f"/v1/recommend/{ids[(number + 7 * count) % len(ids)]}", params={"k": 20})
                (answered if answer.status_code == 200 else refused).append(time.perf_counter() - began)
                if answer.status_code != 200:
                    time.sleep(0.02)  # a client that is refused waits a little

    began = time.perf_counter()
    threads = [threading.Thread(target=ask, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - began
    slowest = sorted(answered)[int(0.99 * (len(answered) - 1))] if answered else float("nan")
    return {
        "answers_per_second": len(answered) / seconds,
        "answer_p99_ms": 1000 * slowest,
        "refused_share": len(refused) / max(1, len(answered) + len(refused)),
        "refusal_p50_ms": 1000 * statistics.median(refused) if refused else 0.0,
    }
