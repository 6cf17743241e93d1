"""What the endpoints of a worker share: the runs and their replacement, the log, the ranking thread, and counters."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from talos.errors import TalosError
from talos.serving.batcher import Batcher
from talos.serving.feedback import FeedbackLog
from talos.serving.guard import RequestError
from talos.serving.metrics import Metrics, log_line
from talos.serving.runs import ServedRun, version_of
from talos.serving.schemas import Choice, RankBody
from talos.serving.settings import Settings

__all__ = ["Service"]

_Result = TypeVar("_Result")
_SECONDS_BETWEEN_LOOKS = 0.5
# Fields of a request, and the settings that limit their value or length.
_LIMITS = {
    "k": "max_k", "users": "max_users", "history": "max_items", "candidates": "max_items", "exclude": "max_items",
    "items": "max_items",
}  # fmt: skip


class Service:
    """The runs by name, and what makes their lists.

    Attributes:
        runs: the runs that are served; the first is the default.
        errors: why a run could not be reloaded, by its name.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings, self.metrics = settings, Metrics()
        self.log = None if settings.feedback is None else FeedbackLog(Path(settings.feedback))
        self.batcher = Batcher(self.metrics, max_rows=settings.max_rows)
        self._insights = ThreadPoolExecutor(1, "insights")
        self._shared = None if settings.control is None else Path(settings.control)
        self._reloading = threading.Lock()
        loaded = [ServedRun(Path(run), self.log, self._shared) for run in settings.runs]
        self.runs, self.errors = {run.name: run for run in loaded}, dict[str, str]()
        self.metrics.versions = {run.name: run.version for run in loaded}
        self._tried = dict(
            self.metrics.versions
        )  # also those that could not be used, which are not tried again

    # ------------------------------------------------------------------- runs

    def run(self, name: str | None) -> ServedRun:
        """The run of this name, the default one without a name; 404 if there is none."""
        found = self.runs.get(next(iter(self.runs)) if name is None else name)
        if found is None:
            raise RequestError(404, f"no model {name!r}; there are {', '.join(self.runs)}", "model")
        return found

    def reload(self, name: str) -> dict[str, str]:
        """Load a run anew; the other workers follow within a second. Returns its versions.

        Raises:
            TalosError: it cannot be used; the old one stays, and `errors` says why.
        """
        with self._reloading:
            old = self.runs[name]
            self._tried[name] = version_of(old.folder)
            try:
                new = ServedRun(old.folder, self.log, self._shared)
            except (TalosError, OSError) as error:
                self.errors[name] = str(error)
                self.metrics.count(failed_reloads=1)
                log_line(event="reload failed", model=name, version=old.version, error=str(error))
                raise TalosError(str(error)) from error
            self.errors.pop(name, None)
            self.runs = {**self.runs, name: new}
            self.metrics.versions[name] = new.version
            self.metrics.count(reloads=1)
            versions = {"model": name, "version": new.version, "before": old.version}
            log_line(event="reloaded", **versions)
            return versions

    async def follow(self) -> None:
        """Reload runs that were saved anew, if told to watch them, and those that another worker has reloaded."""
        while self.settings.watch or self._shared is not None:
            await asyncio.sleep(_SECONDS_BETWEEN_LOOKS)
            await asyncio.to_thread(self._look)

    def _look(self) -> None:
        for run in self.runs.values():
            told = self.settings.watch or not run.copy.is_dir()
            if told and version_of(run.folder) not in ("", self._tried[run.name]):
                with suppress(TalosError):  # it is in `errors`
                    self.reload(run.name)

    # ------------------------------------------------------------------- answers

    def chosen(self, wanted: Choice | RankBody) -> tuple[ServedRun, int]:
        """The run that a request names and the length of its lists; 422 if the request exceeds a limit."""
        run = self.run(wanted.model)
        more = [("users", "max_explained")] if getattr(wanted, "explain", False) else []
        for field, setting in [*_LIMITS.items(), *more]:
            value, most = getattr(wanted, field, None) or 0, getattr(self.settings, setting)
            count = len(value) if isinstance(value, list) else value
            if count > most:
                what = f"{count:,} of them" if isinstance(value, list) else f"{count:,}"
                raise RequestError(422, f"{what}; expected at most {most:,} (the service's {setting})", field)
        return run, getattr(wanted, "k", None) or min(run.k, self.settings.max_k)

    async def insight(self, run: ServedRun, compute: Callable[[ServedRun], _Result]) -> _Result:
        """A figure about a run as a whole; one request computes it, and others that ask meanwhile wait.

        It is finished even if the request is given up, so that the next one finds it.
        """
        known = run.insights.get(compute.__name__)
        if known is None or (known.done() and known.exception()):
            known = run.insights[compute.__name__] = self._insights.submit(compute, run)
        return await asyncio.shield(asyncio.wrap_future(known))

    def close(self) -> None:
        """Finish what was begun."""
        self.batcher.thread.shutdown()
        self._insights.shutdown(cancel_futures=True)
        if self.log is not None:
            self.log.close()
