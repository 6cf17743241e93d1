"""The runs that are served, by name, and their replacement while requests go on."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from talos.errors import TalosError
from talos.serving.copies import is_current
from talos.serving.feedback import FeedbackLog
from talos.serving.metrics import Metrics
from talos.serving.runs import ServedRun

__all__ = ["RunBook"]

_SECONDS_BETWEEN_LOOKS = 0.5


class RunBook:
    """The runs by name, reloaded when told to or, with `watch`, when they are saved anew.

    Args:
        folders: run directories; the first is the default.
        log: the log of feedback that every run reads.
        metrics: counts reloads.
        watch: look for runs that were saved anew.
        shared: a folder that the workers share; None for a single one.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        log: FeedbackLog | None,
        metrics: Metrics,
        *,
        watch: bool = False,
        shared: Path | None = None,
    ) -> None:
        self._log, self._metrics, self._watch, self._shared = log, metrics, watch, shared
        self._lock, self._closing = threading.Lock(), threading.Event()
        self._signatures = {folder.resolve().name: _signature(folder) for folder in folders}
        self.runs = {run.name: run for run in (ServedRun(folder, log, shared) for folder in folders)}
        self.default = next(iter(self.runs))
        self.errors: dict[str, str] = {}
        self._watcher = threading.Thread(target=self._look, name="watching", daemon=True)
        if watch or shared is not None:
            self._watcher.start()

    @property
    def versions(self) -> dict[str, str]:
        """The version of each run by its name."""
        return {name: run.version for name, run in self.runs.items()}

    def reload(self, name: str | None) -> list[dict[str, str]]:
        """Load one run or all of them anew; the other workers follow within a second. Returns their versions.

        Raises:
            TalosError: it cannot be used; the old one stays, and `errors` says why.
        """
        return [self._replace(one) for one in (self.runs if name is None else [name])]

    def close(self) -> None:
        """Stop looking for runs that were saved anew."""
        self._closing.set()
        if self._watcher.is_alive():
            self._watcher.join()

    def _replace(self, name: str) -> dict[str, str]:
        with self._lock:
            old = self.runs[name]
            self._signatures[name] = _signature(old.folder)
            try:
                new = ServedRun(old.folder, self._log, self._shared)
            except (TalosError, OSError) as error:
                self.errors[name] = str(error)
                self._metrics.count("failed_reloads")
                _log_line(event="reload failed", model=name, version=old.version, error=str(error))
                raise TalosError(str(error)) from error
            self.errors.pop(name, None)
            self.runs = {**self.runs, name: new}
            self._metrics.count("reloads")
            versions = {"model": name, "version": new.version, "before": old.version}
            _log_line(event="reloaded", **versions)
            return versions

    def _look(self) -> None:
        """Reload runs that were saved anew, if told to watch them, and those that another worker has reloaded."""
        while not self._closing.wait(_SECONDS_BETWEEN_LOOKS):
            for name, run in self.runs.items():
                changed = _signature(run.folder) not in (None, self._signatures[name])
                told = self._shared is not None and not is_current(run.folder, run.version, self._shared)
                if changed and (self._watch or told):
                    with suppress(TalosError):  # it is in `errors`
                        self._replace(name)


def _signature(folder: Path) -> tuple[int, int, int] | None:
    """Numbers that change when a run is saved anew; None if there is no run."""
    try:
        found = (folder / "model.json").stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _log_line(**facts: str) -> None:
    print(json.dumps({"time": round(time.time(), 3), **facts}), file=sys.stderr, flush=True)
