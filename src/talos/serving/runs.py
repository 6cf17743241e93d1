"""The runs that are served: loaded, with the users who had events since, and replaced while requests go on.

A `ServedRun` does not change, but for what it remembers of users with new events, which only the ranking thread
touches. A reload makes a new one beside it and replaces the reference; requests that have begun keep the old one.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from filelock import FileLock
from numpy.typing import NDArray

from talos.data.event_weights import event_columns, in_seconds
from talos.data.interactions import Interactions
from talos.data.vocabulary import Vocabulary
from talos.errors import DataError, InputError, TalosError
from talos.evaluation.ranking import ItemRows
from talos.model.model import Model
from talos.model.query import banned_items, codes_of
from talos.model.store import copy_model, load_model
from talos.serving.feedback import FeedbackLog, Id

__all__ = ["Past", "RunBook", "ServedRun", "encode", "signature_of"]

_MOST_FILTERS = 64
_MOST_USERS = 50_000
_UNKNOWN_TIME = -1.0


@dataclass(frozen=True)
class Past:
    """The items that a list is made from, ascending, with the newest time and the number of events of each."""

    items: NDArray[np.int64]
    times: NDArray[np.float64]
    counts: NDArray[np.int32]

    @classmethod
    def of(cls, items: NDArray[np.int64]) -> Past:
        """Distinct items that were met once, at an unknown time."""
        return cls(items, np.full(len(items), _UNKNOWN_TIME), np.ones(len(items), np.int32))


class ServedRun:
    """A loaded run, and the users who had events since it was trained.

    Attributes:
        name: the name of its directory.
        version: twelve digits that change with anything in the run.
        recommender: the loaded model.
        loaded_at: seconds since 1970.
        insights: figures about the run as a whole that were computed so far, by name; they go when the run goes.
    """

    def __init__(self, folder: Path, log: FeedbackLog | None = None, shared: Path | None = None) -> None:
        self.folder, self.name = folder, folder.resolve().name
        self.model, self.version = _loaded(folder, shared)
        self.loaded_at = time.time()
        self.model.check_imported()
        model, self.k = self.model, self.model.config.k
        self.items, self.users = model.train.item_ids, model.train.user_ids
        self.seen, self.known = model.seen, model.known
        self.degrees: NDArray[np.int64] = model.train.item_degrees
        self.titles = model.train.item_titles
        self._filters: OrderedDict[str, NDArray[np.int64] | None] = OrderedDict()
        self._log, self._caught_up = log, 0 if log is None else log.last()
        # events of the log have a time and may repeat, but have no ratings: where ratings count, all count the same
        columns = event_columns(model.config.events)
        self._weighs_events = bool(columns) and "ratings" not in columns
        self._news: OrderedDict[str, dict[int, tuple[float, int]]] = OrderedDict()
        self._counted, self._counting = [0, 0, 0, 0], threading.Lock()
        self.insights: dict[str, Any] = {}

    # ------------------------------------------------------------------- items

    @cached_property
    def search_text(self) -> pl.Series:
        """What a search looks at: id and title of each item, in lower case."""
        ids = self.items.ids.cast(pl.String)
        text = ids if self.titles is None else ids + "\n" + self.titles.fill_null("")
        return text.str.to_lowercase()

    @cached_property
    def user_text(self) -> pl.Series:
        """What a search for users looks at: their ids in lower case."""
        return self.users.ids.cast(pl.String).str.to_lowercase()

    def describe(self, codes: Sequence[int] | NDArray[np.integer[Any]]) -> list[dict[str, Any]]:
        """`item` and `title` of some items."""
        ids = self.items.decode(codes).to_list()
        titles = (
            [None] * len(ids) if self.titles is None else self.titles[np.asarray(codes, np.int64)].to_list()
        )
        return [{"item": item, "title": title} for item, title in zip(ids, titles, strict=True)]

    def attributes_of(self, code: int) -> dict[str, Any]:
        """The attributes of one item."""
        return {} if self.model.attributes is None else self.model.attributes.row(code, named=True)

    def banned(self, wanted: dict[str, Any] | None) -> NDArray[np.int64] | None:
        """Positions of the items that a filter does not let through; the last few filters are remembered."""
        if not wanted:
            return None
        key = json.dumps(wanted, sort_keys=True)
        if key not in self._filters:
            self._filters[key] = banned_items(self.model, filter=wanted)
            while len(self._filters) > _MOST_FILTERS:
                self._filters.popitem(last=False)
        return self._filters[key]

    # ------------------------------------------------------------------- users

    def catch_up(self) -> None:
        """Forget what is remembered of users who had events since the last call, in any worker."""
        last = 0 if self._log is None else self._log.last()
        if self._log is not None and last != self._caught_up:
            for user in self._log.users_between(self._caught_up, last):
                self._news.pop(user, None)
            self._caught_up = last

    def _new_items(self, user: Id) -> dict[int, tuple[float, int]]:
        """Newest time and count of each known item of a user's events that the run has not learnt."""
        if self._log is None:
            return {}
        key = str(user)
        if key not in self._news:
            rows, found = self._log.events_of(key), dict[int, tuple[float, int]]()
            code = int(encode(self.users, [user])[0]) if rows else -1
            learnt = set(self.trained_items(code).tolist()) if code >= 0 else set()
            items = encode(self.items, [item for item, _ in rows]).tolist()
            for item, (_, time_) in zip(items, rows, strict=True):
                if item >= 0 and item not in learnt:
                    newest, count = found.get(item, (-1.0, 0))
                    found[item] = max(newest, time_), count + 1
            self._news[key] = found
            while len(self._news) > _MOST_USERS:
                self._news.popitem(last=False)
        return self._news[key]

    def event_counts(self) -> dict[str, int]:
        """How many events and users the log has, and how many events about items that the run does not know.

        Only what is newer than the last call is read, in blocks. The first call reads the whole log.
        """
        with self._counting:
            while self._log is not None and (rows := self._log.newer(self._counted[0])):
                numbers, items, first = zip(*rows, strict=True)
                unknown = int((encode(self.items, items) < 0).sum())
                added = (len(rows), sum(first), unknown)
                self._counted = [numbers[-1], *map(sum, zip(self._counted[1:], added, strict=True))]
            names = ("events", "users_with_events", "unknown_items")
            return dict(zip(names, self._counted[1:], strict=True))

    def trained_items(self, code: int) -> NDArray[Any]:
        """Positions of the items of a user that the run has learnt, ascending."""
        return self.seen.indices[self.seen.indptr[code] : self.seen.indptr[code + 1]]

    def user_id(self, asked: Id) -> Id:
        """An id as the run spells it; as it was asked for if the run does not have it."""
        (code,) = encode(self.users, [asked]).tolist()
        if code >= 0:
            found: Id = self.users.ids[code]
            return found
        return str(asked) if self.users.ids.dtype == pl.String else asked

    def has_events(self, user: Id) -> bool:
        """Whether this user had events with known items since the run was trained."""
        return bool(self._new_items(user))

    def history(self, user: Id, code: int) -> Past:
        """A user's items: what the run has learnt if `code` ≥ 0, and those of new events."""
        learnt, news = self.trained_items(code) if code >= 0 else np.empty(0, np.int64), self._new_items(user)
        past = Past.of(np.union1d(learnt, np.fromiter(news, np.int64, len(news))).astype(np.int64))
        if code >= 0:
            places, mine = np.searchsorted(past.items, learnt), slice(*self.seen.indptr[code : code + 2])
            if self._seconds is not None:
                past.times[places] = self._seconds[mine]
            if self.seen.repeats is not None:
                past.counts[places] = self.seen.repeats[mine]
        for item, (newest, count) in news.items():
            place = int(np.searchsorted(past.items, item))
            past.times[place], past.counts[place] = newest, count
        return past

    def histories(self, pasts: Sequence[Past | None]) -> Interactions | ItemRows | None:
        """The rows of a question: the items of each past, with their times where training weighs events by age."""
        counts = [0 if past is None else len(past.items) for past in pasts]
        if not sum(counts):
            return None
        found = [past for past in pasts if past is not None]
        owner, items = (
            np.repeat(np.arange(len(pasts)), counts),
            np.concatenate([past.items for past in found]),
        )
        if not self._weighs_events:
            return ItemRows.of(owner, items, num_rows=len(pasts), num_items=len(self.items))
        return Interactions.from_codes(
            owner,
            items,
            user_ids=Vocabulary(pl.int_range(len(pasts), eager=True)),
            item_ids=self.items,
            timestamps=np.concatenate([past.times for past in found]),
            repeats=np.concatenate([past.counts for past in found]),
        )

    @cached_property
    def _seconds(self) -> NDArray[np.float64] | None:
        """When each interaction of the history happened, in the unit of the log's events."""
        return None if self.seen.timestamps is None else in_seconds(self.seen.timestamps)


def _loaded(folder: Path, shared: Path | None) -> tuple[Model, str]:
    """A run and its version, from a copy of its files that nobody else writes to.

    Vectors are mapped from a file, so that workers share one copy in memory. Whoever overwrites that file in place,
    as `cp` does, would change the lists or end the process. So the files are copied into the folder that the workers
    `share`, once for each version; without one, the copy goes as soon as it is mapped.
    """
    if shared is None:
        with tempfile.TemporaryDirectory(prefix="talos-serve-") as temporary:
            return _load_copy(folder, Path(temporary) / "copy")
    copies = shared / "copies" / folder.resolve().name
    copies.mkdir(parents=True, exist_ok=True)
    with FileLock(copies / "lock"):
        version = _version(folder)
        copy = copies / version
        if version and copy.is_dir():
            return load_model(copy), version
        fresh = copies / "new"
        shutil.rmtree(fresh, ignore_errors=True)
        try:
            model, version = _load_copy(folder, fresh)  # of what is there by now
        except TalosError:
            shutil.rmtree(fresh, ignore_errors=True)
            raise
        for old in copies.iterdir():
            if old.is_dir() and old != fresh:  # whoever still uses it has it mapped
                shutil.rmtree(old, ignore_errors=True)
        fresh.rename(copies / version)
    return model, version


def _load_copy(folder: Path, copy: Path) -> tuple[Model, str]:
    """Copy the files of a run and load them; returns the run and its version. Errors name the run itself."""
    copy_model(folder, copy)
    try:
        return load_model(copy), _version(copy)
    except InputError as error:
        where = (error.where or "").replace(str(copy), str(folder))
        raise DataError(error.what, where=where, expected=error.expected, hint=error.hint) from None


def _version(folder: Path) -> str:
    """Twelve digits that change with `model.json`, which has the checksums of all other files; empty without one."""
    try:
        return hashlib.sha256((folder / "model.json").read_bytes()).hexdigest()[:12]
    except OSError:
        return ""


def encode(ids: Vocabulary, wanted: Sequence[Id]) -> NDArray[np.int64]:
    """Positions of ids as they come in requests, -1 for unknown ones."""
    return codes_of(ids, wanted, kind="id", where="id", on_unknown="skip")


def signature_of(folder: Path) -> tuple[int, int, int] | None:
    """What changes when a run is saved anew; None if there is no run."""
    try:
        found = (folder / "model.json").stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


class RunBook:
    """The runs by name, and their replacement.

    Args:
        folders: run directories; the first is the default.
        log: the log of feedback that every run reads.
        notify: called with the facts of every reload.
        shared: a folder that the workers share; None for a single one.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        log: FeedbackLog | None,
        notify: Callable[[dict[str, Any]], None],
        shared: Path | None = None,
    ) -> None:
        self._log, self._notify, self._lock, self._shared = log, notify, threading.Lock(), shared
        self._signatures = {folder.resolve().name: signature_of(folder) for folder in folders}
        self.runs = {run.name: run for run in (ServedRun(folder, log, shared) for folder in folders)}
        self.default = next(iter(self.runs))
        self.errors: dict[str, str] = {}

    @property
    def versions(self) -> dict[str, str]:
        """The version of each run by its name."""
        return {name: run.version for name, run in self.runs.items()}

    def get(self, name: str | None) -> ServedRun | None:
        """The run of this name, the default one without a name; None if there is none."""
        return self.runs.get(self.default if name is None else name)

    def reload(self, name: str) -> tuple[ServedRun, ServedRun]:
        """Load a run anew, check it and put it into its place; returns the old and the new one.

        Raises:
            TalosError: it cannot be used; the old one stays, and `errors` says why.
        """
        with self._lock:
            old = self.runs[name]
            self._signatures[name] = signature_of(old.folder)
            try:
                new = ServedRun(old.folder, self._log, self._shared)
            except (TalosError, OSError) as error:
                self.errors[name] = str(error)
                self._notify(
                    {"event": "reload failed", "model": name, "version": old.version, "error": str(error)}
                )
                raise TalosError(str(error)) from error
            self.errors.pop(name, None)
            self.runs = {**self.runs, name: new}
            self._notify({"event": "reloaded", "model": name, "version": new.version, "before": old.version})
            return old, new

    def reload_changed(self) -> None:
        """Reload every run whose `model.json` has changed since it was looked at; failures are kept in `errors`."""
        for name, run in list(self.runs.items()):
            now = signature_of(run.folder)
            if now is not None and now != self._signatures[name]:
                try:
                    self.reload(name)
                except TalosError:
                    continue
