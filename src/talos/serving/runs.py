"""A run that is served: items and users by id, and the histories of users with new events."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from filelock import FileLock
from numpy.typing import NDArray

from talos.data.event_weights import in_seconds
from talos.data.interactions import Interactions, ItemRows
from talos.data.vocabulary import Vocabulary
from talos.errors import DataError, InputError
from talos.model.model import Model
from talos.model.query import banned_items, codes_of
from talos.model.store import copy_model, load_model
from talos.serving.feedback import FeedbackLog
from talos.serving.schemas import IdField

__all__ = ["ServedRun", "encode", "version_of"]

_MOST_FILTERS = 64
_UNKNOWN_TIME = -1.0


class ServedRun:
    """A loaded run, and the log with the events since it was trained.

    It does not change. A reload makes a new one beside it; requests that have begun keep the old one.

    Args:
        folder: the run directory.
        log: the log of feedback.
        shared: a folder that the workers share; None for a single worker, whose copy is removed once it is mapped.

    Attributes:
        name: the name of its directory.
        version: twelve digits that change with anything in the run.
        copy: the copy of its files that is mapped; it is gone when another worker has loaded another version.
        model: the loaded model.
        loaded_at: seconds since 1970.
        banned: positions of the items that a filter, as JSON, does not let through; the last few are remembered.
        insights: figures about the run as a whole, by name; they go when the run goes.
    """

    def __init__(self, folder: Path, log: FeedbackLog | None = None, shared: Path | None = None) -> None:
        self.folder, self.name = folder, folder.resolve().name
        with tempfile.TemporaryDirectory(prefix="talos-serve-") as temporary:
            self.model, self.copy = _load_copied(folder, shared or Path(temporary))
        self.version = self.copy.name
        self.loaded_at = time.time()
        self.model.check_imported()
        train, self.seen, self.k = self.model.train, self.model.seen, self.model.config.k
        self.items, self.users, self.titles = train.item_ids, train.user_ids, train.item_titles
        self.degrees: NDArray[np.int64] = train.item_degrees
        self.banned = lru_cache(_MOST_FILTERS)(partial(_banned, self.model))
        self.insights: dict[str, Future[Any]] = {}
        self._log = log
        self._counted, self._counts, self._counting = 0, Counter[str](), threading.Lock()

    @cached_property
    def metrics(self) -> dict[str, float]:
        """The finite numbers among the metrics that were stored with the run."""
        stored = self.model.metadata.get("metrics", {}).items()
        return {
            name: float(one) for name, one in stored if isinstance(one, int | float) and math.isfinite(one)
        }

    def describe(self, codes: Sequence[int] | NDArray[np.integer[Any]]) -> list[dict[str, Any]]:
        """`item` and `title` of some items."""
        places = np.asarray(codes, np.int64)
        titles = [None] * len(places) if self.titles is None else self.titles[places].to_list()
        return [
            {"item": item, "title": title}
            for item, title in zip(self.items.decode(places).to_list(), titles, strict=True)
        ]

    # ------------------------------------------------------------------- users

    def find_users(self, asked: Sequence[IdField | None]) -> tuple[list[IdField | None], NDArray[np.int64]]:
        """Ids as the run spells them, or as they were asked for if it does not have them; and their positions or -1."""
        codes = np.full(len(asked), -1, np.int64)
        codes[[one is not None for one in asked]] = encode(
            self.users, [one for one in asked if one is not None]
        )
        known = iter(self.users.decode(codes[codes >= 0]).to_list())
        return [
            next(known) if code >= 0 else one for one, code in zip(asked, codes.tolist(), strict=True)
        ], codes

    def histories(
        self, users: Sequence[IdField | None], codes: NDArray[np.int64], visits: ItemRows | None = None
    ) -> Interactions | None:
        """The items of each row that is ranked by a history, with times and counts; None if there is no such row.

        A user with events that the run has not learnt has the learnt items and those of the events. A row that the run
        has learnt nothing about has the items of its visit.

        Args:
            users: the user of each row; None for a visitor.
            codes: their positions; -1 for those that the run does not know.
            visits: the items of each row's visit.
        """
        events = [] if self._log is None else self._log.events_of(users)
        if not events and (visits is None or not len(visits)):
            return None
        rows, every = np.array([row for row, _, _ in events], np.int64), np.arange(len(codes))
        items = encode(self.items, [item for _, item, _ in events])
        times = np.array([seconds for _, _, seconds in events], np.float64)
        # what was learnt about the users with events: rows, and positions in `seen`
        known = np.intersect1d(rows, np.flatnonzero(codes >= 0))
        places = [np.arange(*self.seen.indptr[code : code + 2]) for code in codes[known]]
        past_rows, past = np.repeat(known, list(map(len, places))), np.concatenate([every[:0], *places])
        # the events that are news, and the rows that have some
        learnt = past_rows * len(self.items) + self.seen.indices[past]
        new = (items >= 0) & ~np.isin(rows * len(self.items) + items, learnt)
        by_events = np.isin(every, rows[new])
        past_rows, past = past_rows[by_events[past_rows]], past[by_events[past_rows]]
        # the visits of rows that have neither
        visitors = np.flatnonzero(~by_events & ((codes < 0) | (self.model.train.user_degrees[codes] == 0)))
        visit, visited = (every[:0], every[:0]) if visits is None else visits.pairs_of(visitors)
        rows = np.concatenate([past_rows, rows[new], visitors[visit]])
        if not len(rows):
            return None
        seconds, counts = self._times_and_counts
        return Interactions.from_codes(
            rows,
            np.concatenate([self.seen.indices[past], items[new], visited]),
            user_ids=Vocabulary(pl.int_range(len(codes), eager=True)),
            item_ids=self.items,
            timestamps=np.concatenate([seconds[past], times[new], np.full(len(visited), _UNKNOWN_TIME)]),
            repeats=np.concatenate([counts[past], np.ones(len(rows) - len(past), np.int32)]),
        )

    @cached_property
    def _times_and_counts(self) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
        """The time of each interaction in `seen`, in the unit of the log's events; and how often it occurred."""
        stamps, repeats, count = self.seen.timestamps, self.seen.repeats, len(self.seen)
        seconds = np.broadcast_to(_UNKNOWN_TIME, count) if stamps is None else in_seconds(stamps)
        return seconds, np.broadcast_to(np.int32(1), count) if repeats is None else repeats

    def event_counts(self) -> dict[str, int]:
        """How many events and users the log has, and how many events about items that the run does not know.

        Only what is newer than the last call is read, in blocks. The first call reads the whole log.
        """
        with self._counting:
            while self._log is not None and (rows := self._log.newer(self._counted)):
                numbers, items, first = zip(*rows, strict=True)
                self._counts.update(
                    events=len(rows),
                    users_with_events=sum(first),
                    unknown_items=int((encode(self.items, items) < 0).sum()),
                )
                self._counted = numbers[-1]
            return {name: self._counts[name] for name in ("events", "users_with_events", "unknown_items")}


def encode(ids: Vocabulary, wanted: Sequence[IdField]) -> NDArray[np.int64]:
    """Positions of ids as they come in requests, -1 for unknown ones."""
    return codes_of(ids, wanted, kind="id", where="id", on_unknown="skip")


def _banned(model: Model, wanted: str) -> NDArray[np.int64] | None:
    return banned_items(model, filter=json.loads(wanted) or None)


# ------------------------------------------------------------------- files


def version_of(folder: Path) -> str:
    """A hash of `model.json`, which has the checksums of all other files; empty without one."""
    try:
        return hashlib.sha256((folder / "model.json").read_bytes()).hexdigest()[:12]
    except OSError:
        return ""


def _load_copied(folder: Path, shared: Path) -> tuple[Model, Path]:
    """A run, and the copy that it was loaded from, whose name is the run's version.

    Vectors are mapped from a file, so that workers share one copy in memory. Overwriting that file in place, as `cp`
    does, would change the lists or end the process. So the files are copied into a folder that the workers share, once
    for each version. Errors name the run itself.
    """
    copies = shared / "copies" / folder.resolve().name
    copies.mkdir(parents=True, exist_ok=True)
    with FileLock(copies / "lock"):
        version, fresh = version_of(folder), copies / "new"
        if version and (copies / version).is_dir():
            return load_model(copies / version), copies / version
        shutil.rmtree(fresh, ignore_errors=True)  # of a run that could not be loaded
        copy_model(folder, fresh)
        try:
            model = load_model(fresh)
        except InputError as error:
            raise DataError(
                error.what,
                where=(error.where or "").replace(str(fresh), str(folder)),
                expected=error.expected,
                hint=error.hint,
            ) from None
        for old in copies.iterdir():
            if old.is_dir() and old != fresh:  # a worker that still uses it has it mapped
                shutil.rmtree(old, ignore_errors=True)
        return model, fresh.rename(copies / version_of(fresh))  # of what is there by now
