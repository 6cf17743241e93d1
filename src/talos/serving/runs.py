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
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from filelock import FileLock
from numpy.typing import NDArray
from torch import Tensor

from talos.data.event_weights import event_columns, event_weights, in_seconds
from talos.data.interactions import Interactions
from talos.data.vocabulary import Vocabulary
from talos.errors import DataError, InputError, TalosError
from talos.model.attributes import allowed_items
from talos.model.fold_in import fold_in
from talos.model.recommender import Recommender
from talos.model.run_directory import copy_model
from talos.serving.feedback import FeedbackLog, Id

__all__ = ["RunBook", "ServedRun", "encode", "signature_of"]

_MOST_FILTERS = 64
_MOST_VECTORS = 100_000
_MOST_USERS = 50_000


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
        self.recommender, self.version = _loaded(folder, shared)
        self.loaded_at = time.time()
        model = self.recommender.fitted_model()
        self.model, self.items, self.users = model, model.train.item_ids, model.train.user_ids
        self.loss, self.k = self.recommender._loss(), self.recommender.config.k
        self.seen, self.known = model.seen, model.known
        self.degrees: NDArray[np.int64] = model.train.item_degrees
        self.titles = model.train.item_titles
        self._filters: OrderedDict[str, NDArray[np.int64] | None] = OrderedDict()
        self._log, self._caught_up = log, 0 if log is None else log.last()
        self._weighed_by = event_columns(self.recommender.config.events)
        self._news: OrderedDict[str, dict[int, tuple[float, int]]] = OrderedDict()
        self._vectors: OrderedDict[str, Tensor] = OrderedDict()
        self._counted, self._counting = [0, 0, 0, 0], threading.Lock()
        self.insights: dict[str, Any] = {}

    # ------------------------------------------------------------------- items

    @cached_property
    def item_norms(self) -> Tensor:
        """The length of each item's vector, at least a tiny number."""
        return _lengths(self.model.item_vectors)

    @cached_property
    def user_norms(self) -> Tensor:
        """The length of each user's vector, at least a tiny number."""
        return _lengths(self.model.user_vectors)

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
            allowed = allowed_items(self.model.attributes, self.titles, wanted)
            self._filters[key] = None if allowed.all() else np.flatnonzero(~allowed)
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
                self._vectors.pop(user, None)
            self._caught_up = last

    def _new_items(self, user: Id) -> dict[int, tuple[float, int]]:
        """Newest time and count of each known item of a user's events that the run has not learnt."""
        kind = _as_kind(user, self.users)
        if self._log is None or kind is None:
            return {}  # no user of this run can have that id
        key = str(kind)
        if key not in self._news:
            rows, found = self._log.events_of(key), dict[int, tuple[float, int]]()
            code = int(encode(self.users, [kind])[0]) if rows else -1
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

    def known_items(self, user: Id, code: int) -> NDArray[np.int64]:
        """Positions of all items that a user is known to have: the history, and what the run was held back from."""
        mine = self.known.indices[self.known.indptr[code] : self.known.indptr[code + 1]] if code >= 0 else ()
        return self._with_events(user, np.asarray(mine, np.int64))

    def user_id(self, asked: Id) -> Id:
        """An id as the run spells it; as it was asked for if it cannot be one of the run's."""
        kind = _as_kind(asked, self.users)
        return asked if kind is None else kind

    def has_events(self, user: Id) -> bool:
        """Whether this user had events with known items since the run was trained."""
        return bool(self._new_items(user))

    def history(self, user: Id, code: int) -> NDArray[np.int64]:
        """Positions of a user's items, ascending: what the run has learnt if `code` ≥ 0, and those of new events."""
        return self._with_events(user, np.asarray(self.trained_items(code) if code >= 0 else (), np.int64))

    def _with_events(self, user: Id, mine: NDArray[np.int64]) -> NDArray[np.int64]:
        news = self._new_items(user)
        if not news:
            return mine
        return np.unique(np.concatenate([mine, np.fromiter(news, np.int64, len(news))]))

    def vectors_of(self, users: Sequence[tuple[Id, NDArray[np.int64]]]) -> list[Tensor]:
        """Vectors of users with new events, folded in from their histories; computed once for each event."""
        found = []
        for user, past in users:
            key = str(user)
            if key not in self._vectors:
                self._vectors[key] = self.fold_in(past, self._weights(user, past))
            found.append(self._vectors[key])
        while len(self._vectors) > _MOST_VECTORS:
            self._vectors.popitem(last=False)
        return found

    def _weights(self, user: Id, past: NDArray[np.int64]) -> Tensor | None:
        """How much each item of a user's history counts, by the rule of training; None if all count the same.

        Events of the log have a time and may repeat, but have no ratings: where ratings count, all count the same.
        """
        if not self._weighed_by or "ratings" in self._weighed_by:
            return None
        (code,) = encode(self.users, [user]).tolist()
        mine = slice(0, 0) if code < 0 else slice(*self.seen.indptr[code : code + 2])
        learnt, new = self.trained_items(code) if code >= 0 else (), self._new_items(user)
        times = dict(zip(learnt, () if self._seconds is None else self._seconds[mine], strict=False))
        counts = dict(zip(learnt, () if self.seen.repeats is None else self.seen.repeats[mine], strict=False))
        times |= {item: newest for item, (newest, _) in new.items()}
        counts |= {item: count for item, (_, count) in new.items()}
        history = Interactions.from_codes(
            np.zeros(len(past), np.int32),
            past,
            user_ids=Vocabulary.of(["history"]),
            item_ids=self.items,
            timestamps=np.array([times.get(item, -1.0) for item in past.tolist()]),
            repeats=np.array([counts.get(item, 1) for item in past.tolist()], np.int32),
        )
        weights = event_weights(history, self.recommender.config.events)
        return None if weights is None else torch.from_numpy(weights)

    @cached_property
    def _seconds(self) -> NDArray[np.float64] | None:
        """When each interaction of the history happened, in the unit of the log's events."""
        return None if self.seen.timestamps is None else in_seconds(self.seen.timestamps)

    def fold_in(self, history: NDArray[np.int64], weights: Tensor | None = None) -> Tensor:
        """The vector (d,) of somebody with this history, whose items count as the weights say, or all the same.

        Each is folded in alone: the last digits of a product depend on how many users are in it, and a list after a
        restart is to be that before it, whoever asked at the same time.
        """
        ends, places = torch.tensor([0, len(history)]), torch.from_numpy(history)
        items, mean = self.model.item_vectors, self.model.mean_item
        with torch.no_grad():
            return fold_in(items, ends, places, self.loss, k=self.k, mean=mean, weights=weights)[0]


def _loaded(folder: Path, shared: Path | None) -> tuple[Recommender, str]:
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
            return Recommender.load(copy), version
        fresh = copies / "new"
        shutil.rmtree(fresh, ignore_errors=True)
        try:
            recommender, version = _load_copy(folder, fresh)  # of what is there by now
        except TalosError:
            shutil.rmtree(fresh, ignore_errors=True)
            raise
        for old in copies.iterdir():
            if old.is_dir() and old != fresh:  # whoever still uses it has it mapped
                shutil.rmtree(old, ignore_errors=True)
        fresh.rename(copies / version)
    return recommender, version


def _load_copy(folder: Path, copy: Path) -> tuple[Recommender, str]:
    """Copy the files of a run and load them; returns the run and its version. Errors name the run itself."""
    copy_model(folder, copy)
    try:
        return Recommender.load(copy), _version(copy)
    except InputError as error:
        where = (error.where or "").replace(str(copy), str(folder))
        raise DataError(error.what, where=where, expected=error.expected, hint=error.hint) from None


def _version(folder: Path) -> str:
    """Twelve digits that change with `model.json`, which has the checksums of all other files; empty without one."""
    try:
        return hashlib.sha256((folder / "model.json").read_bytes()).hexdigest()[:12]
    except OSError:
        return ""


def _lengths(vectors: Tensor) -> Tensor:
    return vectors.square().sum(1).sqrt().clamp(min=1e-12)


def encode(ids: Vocabulary, wanted: Iterable[Id]) -> NDArray[np.int64]:
    """Positions of ids as they come in requests, -1 for unknown ones: text of digits is a number if the ids are.

    >>> encode(Vocabulary.of([5, 7]), ["7", 5, "x", 2**80]).tolist()
    [1, 0, -1, -1]
    >>> encode(Vocabulary.of(["5", "x"]), [5, "x"]).tolist()
    [0, 1]
    """
    kinds = [_as_kind(one, ids) for one in wanted]
    known = np.array([one is not None for one in kinds], bool)
    codes = np.full(len(kinds), -1, np.int64)
    if known.any():
        values = [one for one in kinds if one is not None]
        codes[known] = ids.encode(pl.Series(values, dtype=ids.ids.dtype))
    return codes


def _as_kind(one: Id, ids: Vocabulary) -> Id | None:
    """An id in the type of a vocabulary; None if it has no such form."""
    if ids.ids.dtype == pl.String:
        return str(one)
    try:
        number = int(one)
    except ValueError:
        return None
    return number if -(2**63) <= number < 2**63 and (isinstance(one, int) or str(number) == one) else None


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
