"""The runs, the log of feedback, the ranking thread, limits and counters, which the endpoints of a worker share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from starlette.exceptions import HTTPException

from talos.serving.book import RunBook
from talos.serving.feedback import FeedbackLog
from talos.serving.metrics import Metrics
from talos.serving.ranking import Ranker
from talos.serving.runs import ServedRun
from talos.serving.schemas import Choice, RankBody, RecommendBody
from talos.serving.settings import Settings

__all__ = ["RequestError", "Service"]

_Result = TypeVar("_Result")
# Fields of a request, and the settings that limit their value or length.
_LIMITS = {
    "k": "max_k", "users": "max_users", "history": "max_items", "candidates": "max_items", "exclude": "max_items",
    "items": "max_items",
}  # fmt: skip


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
        shared = None if settings.control is None else Path(settings.control)
        folders = [Path(run) for run in settings.runs]
        self.book = RunBook(folders, self.log, self.metrics, watch=settings.watch, shared=shared)
        self.ranker = Ranker(self.metrics, max_rows=settings.max_rows)
        self._insight_thread = ThreadPoolExecutor(1, "insights")

    def run(self, name: str | None) -> ServedRun:
        """The run of this name, the default one without a name; 404 if there is none."""
        found = self.book.runs.get(self.book.default if name is None else name)
        if found is None:
            raise RequestError(404, f"no model {name!r}; there are {', '.join(self.book.runs)}", "model")
        return found

    def chosen(self, wanted: Choice | RankBody) -> tuple[ServedRun, int]:
        """The run that a request names and the length of its lists; 422 if the request exceeds a limit."""
        run = self.run(wanted.model)
        for field, setting in _LIMITS.items():
            self._check(field, getattr(wanted, field, None), setting)
        if isinstance(wanted, RecommendBody) and wanted.explain:
            self._check("users", wanted.users, "max_explained")
        return run, getattr(wanted, "k", None) or min(run.k, self.settings.max_k)

    def _check(self, field: str, value: object, setting: str) -> None:
        count, most = len(value) if isinstance(value, list) else value or 0, getattr(self.settings, setting)
        if count > most:
            what = f"{count:,} of them" if isinstance(value, list) else f"{count:,}"
            raise RequestError(422, f"{what}; expected at most {most:,} (the service's {setting})", field)

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

    def close(self) -> None:
        """Finish what was begun."""
        self.book.close()
        self.ranker.close()
        self._insight_thread.shutdown(cancel_futures=True)
        if self.log is not None:
            self.log.close()
