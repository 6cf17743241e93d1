"""Counters of the service as Prometheus reads them; the counters of all workers are in one file that they share."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

__all__ = ["Metrics"]

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_ROUTES = (
    "recommend", "rank", "similar", "items", "users", "popular", "feedback", "model", "reload", "insights", "page",
    "health", "other",
)  # fmt: skip
_STATUSES = ("2xx", "3xx", "4xx", "429", "503", "5xx")
_COUNTERS = {
    "feedback_events": "Events that were written to the log.",
    "feedback_repeated": "Events that were in the log already.",
    "unknown_items": "Events about items that the model does not know.",
    "batches": "Batches of requests that were ranked together.",
    "batched_requests": "Requests in these batches.",
    "lists": "Lists that were made.",
    "folded_users": "Vectors that were computed for new events or histories.",
    "reloads": "Runs that were loaded again.",
    "failed_reloads": "Runs that could not be loaded; the old one stayed.",
}
_GAUGES = {"in_flight": "Requests in work."}
_MOST_WORKERS = 64


class Metrics:
    """Numbers by name, added up over all workers when they are shown.

    Args:
        folder: the folder that the workers share; None keeps the numbers in this process.

    >>> metrics = Metrics()
    >>> metrics.count("lists", 3)
    >>> metrics.observe("recommend", 200, 0.004)
    >>> [line for line in metrics.text().splitlines() if line.startswith("talos_lists")]
    ['talos_lists_total 3']
    """

    def __init__(self, folder: Path | None = None) -> None:
        names = [
            *_COUNTERS,
            *_GAUGES,
            *(f"requests:{route}:{status}" for route in _ROUTES for status in _STATUSES),
            *(f"seconds:{route}:{bucket}" for route in _ROUTES for bucket in (*_BUCKETS, "inf", "sum")),
        ]
        self._place = {name: place for place, name in enumerate(names)}
        size = 8 * len(names) * _MOST_WORKERS
        if folder is None:
            memory = mmap.mmap(-1, size)
        else:
            descriptor = os.open(folder / "metrics", os.O_RDWR | os.O_CREAT, 0o600)
            os.ftruncate(descriptor, size)
            memory = mmap.mmap(descriptor, size)
            os.close(descriptor)
        self._numbers = memoryview(memory).cast("d")  # a row of them for each worker
        self._own = 0 if folder is None else _next_row(folder) % _MOST_WORKERS * len(names)
        # a worker that died leaves its counters, which go on counting, but nothing is in flight any more
        self._numbers[self._own + self._place["in_flight"]] = 0.0

    def count(self, name: str, amount: float = 1.0) -> None:
        """Add to a counter or gauge; called by one thread of the event loop and one that ranks, on different names."""
        self._numbers[self._own + self._place[name]] += amount

    def observe(self, route: str, status: int, seconds: float) -> None:
        """Count a request and how long it took."""
        route = route if route in _ROUTES else "other"
        kind = str(status) if str(status) in _STATUSES else f"{status // 100}xx"
        self.count(f"requests:{route}:{kind if kind in _STATUSES else '5xx'}")
        bucket = next((bound for bound in _BUCKETS if seconds <= bound), "inf")
        self.count(f"seconds:{route}:{bucket}")
        self.count(f"seconds:{route}:sum", seconds)

    def value(self, name: str) -> float:
        """The sum of one number over all workers."""
        return float(sum(self._numbers[self._place[name] :: len(self._place)]))

    def text(self, versions: Mapping[str, str] | None = None) -> str:
        """All numbers in the text format of Prometheus, and the version of each run that is served."""
        return "\n".join(self._lines(versions or {})) + "\n"

    def _lines(self, versions: Mapping[str, str]) -> Iterator[str]:
        for name, meaning in _COUNTERS.items():
            yield f"# HELP talos_{name}_total {meaning}"
            yield f"# TYPE talos_{name}_total counter"
            yield f"talos_{name}_total {self.value(name):.15g}"
        for name, meaning in _GAUGES.items():
            yield f"# HELP talos_{name} {meaning}"
            yield f"# TYPE talos_{name} gauge"
            yield f"talos_{name} {self.value(name):.15g}"
        yield "# HELP talos_requests_total Requests by route and status."
        yield "# TYPE talos_requests_total counter"
        for route in _ROUTES:
            for status in _STATUSES:
                if value := self.value(f"requests:{route}:{status}"):
                    yield f'talos_requests_total{{route="{route}",status="{status}"}} {value:.15g}'
        yield "# HELP talos_request_seconds Seconds from a request's first byte to the end of its answer."
        yield "# TYPE talos_request_seconds histogram"
        for route in _ROUTES:
            upto = 0.0
            for bucket in (*_BUCKETS, "inf"):
                upto += self.value(f"seconds:{route}:{bucket}")
                bound = "+Inf" if bucket == "inf" else bucket
                yield f'talos_request_seconds_bucket{{route="{route}",le="{bound}"}} {upto:.15g}'
            yield f'talos_request_seconds_sum{{route="{route}"}} {self.value(f"seconds:{route}:sum"):.15g}'
            yield f'talos_request_seconds_count{{route="{route}"}} {upto:.15g}'
        yield "# HELP talos_model_info The runs that are served."
        yield "# TYPE talos_model_info gauge"
        for model, version in versions.items():
            yield f'talos_model_info{{model="{_escaped(model)}",version="{version}"}} 1'


def _escaped(label: str) -> str:
    """A label's value as the format has it: three characters are escaped, and no others may be."""
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _next_row(folder: Path) -> int:
    """A row of its own for every process that starts: the place at which it appends one byte to a file."""
    descriptor = os.open(folder / "rows", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, b".")
        return os.lseek(descriptor, 0, os.SEEK_CUR) - 1
    finally:
        os.close(descriptor)
