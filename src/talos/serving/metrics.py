"""Counters of the service in the format of Prometheus; those of several workers are added up.

With `PROMETHEUS_MULTIPROC_DIR` set before this module is imported, as the server does for several workers, the numbers
of each process are in files of that folder.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from functools import cache

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector

__all__ = ["Metrics", "log_line"]

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
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
prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """Numbers by name.

    Attributes:
        in_flight: the requests in work.
        versions: the labels of `talos_model_info`: the version of each run, by its name.

    >>> metrics = Metrics()
    >>> metrics.count(lists=3)
    >>> metrics.observe("recommend", 200, 0.004)
    >>> [line for line in metrics.text().splitlines() if line.startswith("talos_lists")]
    ['talos_lists_total 3.0']
    """

    def __init__(self) -> None:
        self.versions: dict[str, str] = {}
        self._own = own = CollectorRegistry()
        self._counters = {
            name: Counter(f"talos_{name}", meaning, registry=own) for name, meaning in _COUNTERS.items()
        }
        self.in_flight = Gauge(
            "talos_in_flight", "Requests in work.", registry=own, multiprocess_mode="livesum"
        )
        self._requests = Counter(
            "talos_requests", "Requests by route and status.", ["route", "status"], registry=own
        )
        meaning = "Seconds from a request's first byte to the end of its answer."
        self._seconds = Histogram("talos_request_seconds", meaning, ["route"], registry=own, buckets=_BUCKETS)
        # finding these by their labels takes most of the time that a refusal takes; there are few
        self._of_route = cache(lambda route: self._seconds.labels(route))
        self._of_answer = cache(lambda route, kind: self._requests.labels(route, kind))

    def count(self, **amounts: float) -> None:
        """Add to counters, by name."""
        for name, amount in amounts.items():
            self._counters[name].inc(amount)

    def observe(self, route: str, status: int, seconds: float) -> None:
        """Count a request and how long it took."""
        kind = "503" if status == 503 else f"{status // 100}xx"  # being too busy is no fault
        self._of_answer(route, kind).inc()
        self._of_route(route).observe(seconds)

    def collect(self) -> Iterator[Metric]:
        """The numbers of all workers, and the versions of this one."""
        several = "PROMETHEUS_MULTIPROC_DIR" in os.environ
        yield from (MultiProcessCollector(None) if several else self._own).collect()  # type: ignore[no-untyped-call]
        info = GaugeMetricFamily("talos_model_info", "The runs that are served.", labels=["model", "version"])
        for label in [*self.versions.items()]:
            info.add_metric(label, 1)
        yield info

    def text(self) -> str:
        """All numbers in Prometheus' text format."""
        return prometheus_client.generate_latest(self).decode()


def log_line(**facts: object) -> None:
    """Write one line of JSON to standard error, with the time."""
    print(json.dumps({"time": round(time.time(), 3), **facts}), file=sys.stderr, flush=True)
