"""What the endpoints of one worker share: the runs, the log of feedback, the ranking thread, limits, counters."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from starlette.exceptions import HTTPException

from talos.serving.feedback import FeedbackLog
from talos.serving.metrics import Metrics
from talos.serving.ranking import Ranker
from talos.serving.runs import RunBook, ServedRun
from talos.serving.settings import Settings

__all__ = ["RequestError", "Service"]

_SECONDS_BETWEEN_LOOKS = 0.5

_Result = TypeVar("_Result")


class RequestError(HTTPException):
    """A request that cannot be answered: the status, what is wrong, and with which field."""

    def __init__(self, status: int, error: str, field: str | None = None) -> None:
        super().__init__(status, error)
        self.field = field


class Service:
    """Everything that the endpoints of one worker share."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.log = None if settings.feedback is None else FeedbackLog(Path(settings.feedback))
        control = None if settings.control is None else Path(settings.control)
        self.book = RunBook([Path(run) for run in settings.runs], self.log, self._note, control)
        self.ranker = Ranker(self.metrics, max_rows=settings.max_rows)
        self._insight_thread = ThreadPoolExecutor(1, "insights")
        # a byte for each reload that a worker was told to do; the others reload what has changed
        self._reloads = None if control is None else control / "reloads"
        self._closing = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="watching", daemon=True)
        if settings.watch or control is not None:
            self._watcher.start()

    def run(self, name: str | None) -> ServedRun:
        """The run of this name; 404 if there is none."""
        found = self.book.get(name)
        if found is None:
            raise RequestError(404, f"no model {name!r}; there are {', '.join(self.book.runs)}", "model")
        return found

    async def insight(self, run: ServedRun, compute: Callable[[ServedRun], _Result]) -> _Result:
        """A figure about a run as a whole; one request computes it, and others that ask meanwhile wait.

        It is finished even if the request is given up, so that the next one finds it.
        """
        name = compute.__name__

        def work() -> None:
            if name not in run.insights:
                run.insights[name] = compute(run)

        if name not in run.insights:
            await asyncio.get_running_loop().run_in_executor(self._insight_thread, work)
        found: _Result = run.insights[name]
        return found

    def length(self, run: ServedRun, k: int | None) -> int:
        """A list length within the limits."""
        k = min(run.k, self.settings.max_k) if k is None else k
        if k > self.settings.max_k:
            raise RequestError(422, f"{k}; expected at most {self.settings.max_k}", "k")
        return k

    def check_count(self, field: str, values: Any, most: int) -> None:
        """Refuse a list that is too long."""
        if values is not None and len(values) > most:
            raise RequestError(422, f"{len(values)} of them; expected at most {most}", field)

    def reload(self, name: str | None) -> list[dict[str, str]]:
        """Load one run or all of them anew, here and in the other workers."""
        done = []
        for one in list(self.book.runs) if name is None else [name]:
            old, new = self.book.reload(one)
            done.append({"model": one, "version": new.version, "before": old.version})
        if self._reloads is not None:
            with self._reloads.open("ab") as file:
                file.write(b".")
        return done

    def close(self) -> None:
        """Finish what was begun."""
        self._closing.set()
        if self._watcher.is_alive():
            self._watcher.join()
        self.ranker.close()
        self._insight_thread.shutdown(cancel_futures=True)
        if self.log is not None:
            self.log.close()

    def _watch(self) -> None:
        """Reload runs that were saved anew, if told to watch them or if any worker was told to reload."""
        seen = asked = self._asked()
        while not self._closing.wait(_SECONDS_BETWEEN_LOOKS):
            asked = self._asked()
            if self.settings.watch or asked > seen:
                self.book.reload_changed()
            seen = asked

    def _asked(self) -> int:
        return 0 if self._reloads is None else self._reloads.stat().st_size

    def _note(self, facts: dict[str, Any]) -> None:
        self.metrics.count("failed_reloads" if "error" in facts else "reloads")
        print(json.dumps({"time": round(time.time(), 3), **facts}), file=sys.stderr, flush=True)
