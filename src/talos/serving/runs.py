"""A run that is served: items and users by id, and the histories of users with new events.

A `ServedRun` does not change. A reload makes a new one beside it; requests that have begun keep the old one.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Sequence
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from talos.data.event_weights import in_seconds
from talos.data.interactions import Interactions
from talos.data.vocabulary import Vocabulary
from talos.model.model import Model
from talos.model.query import banned_items, codes_of
from talos.serving.copies import load_copied
from talos.serving.feedback import FeedbackLog, Id

__all__ = ["ServedRun", "encode"]

_MOST_FILTERS = 64
_UNKNOWN_TIME = -1.0


class ServedRun:
    """A loaded run, and the log with the events since it was trained.

    Attributes:
        name: the name of its directory.
        version: twelve digits that change with anything in the run.
        model: the loaded model.
        loaded_at: seconds since 1970.
        banned: positions of the items that a filter, as JSON, does not let through; the last few are remembered.
        insights: figures about the run as a whole that were computed so far, by name; they go when the run goes.
    """

    def __init__(self, folder: Path, log: FeedbackLog | None = None, shared: Path | None = None) -> None:
        self.folder, self.name = folder, folder.resolve().name
        self.model, self.version = load_copied(folder, shared)
        self.loaded_at = time.time()
        self.model.check_imported()
        train, self.seen, self.k = self.model.train, self.model.seen, self.model.config.k
        self.items, self.users, self.titles = train.item_ids, train.user_ids, train.item_titles
        self.degrees: NDArray[np.int64] = train.item_degrees
        self.banned = lru_cache(_MOST_FILTERS)(partial(_banned, self.model))
        self._log = log
        self._counted, self._counting = [0, 0, 0, 0], threading.Lock()
        self.insights: dict[str, Any] = {}

    @cached_property
    def item_texts(self) -> pl.Series:
        """The text of each item that a search looks at: id and title in lower case."""
        ids = self.items.ids.cast(pl.String)
        text = ids if self.titles is None else ids + "\n" + self.titles.fill_null("")
        return text.str.to_lowercase()

    @cached_property
    def user_texts(self) -> pl.Series:
        """The text of each user that a search looks at: the id in lower case."""
        return self.users.ids.cast(pl.String).str.to_lowercase()

    @cached_property
    def metrics(self) -> dict[str, float]:
        """The finite numbers among the metrics that were stored with the run."""
        stored = self.model.metadata.get("metrics", {}).items()
        numbers = {name: value for name, value in stored if isinstance(value, int | float)}
        return {name: float(value) for name, value in numbers.items() if math.isfinite(value)}

    def describe(self, codes: Sequence[int] | NDArray[np.integer[Any]]) -> list[dict[str, Any]]:
        """`item` and `title` of some items."""
        ids = self.items.decode(codes).to_list()
        titles = (
            [None] * len(ids) if self.titles is None else self.titles[np.asarray(codes, np.int64)].to_list()
        )
        return [{"item": item, "title": title} for item, title in zip(ids, titles, strict=True)]

    # ------------------------------------------------------------------- users

    def find_users(self, asked: Sequence[Id | None]) -> tuple[list[Id | None], NDArray[np.int64]]:
        """Ids as the run spells them, or as they were asked for if it does not have them; and their positions or -1."""
        codes = np.full(len(asked), -1, np.int64)
        codes[[one is not None for one in asked]] = encode(
            self.users, [one for one in asked if one is not None]
        )
        spelled: type = str if self.users.ids.dtype == pl.String else int
        ours = (codes >= 0) | (spelled is str)
        pairs = zip(asked, ours.tolist(), strict=True)
        return [spelled(one) if one is not None and mine else one for one, mine in pairs], codes

    def histories(
        self,
        users: Sequence[Id | None],
        codes: NDArray[np.int64],
        visits: Sequence[NDArray[np.int64]] | None = None,
    ) -> Interactions | None:
        """The items of each row that is ranked by a history, with times and counts; None if there is no such row.

        A user with events that the run has not learnt has the learnt items and those of the events. A row that the run
        has learnt nothing about has the items of its visit.

        Args:
            users: the user of each row; None for a visitor.
            codes: their positions; -1 for those that the run does not know.
            visits: positions of the distinct items of each row's visit.
        """
        new_rows, new_items, new_times = self._new_events(users, codes)
        learnt_rows, places = self._learnt(np.unique(new_rows), codes)
        by_visit = (codes < 0) | (self.model.train.user_degrees[codes] == 0)
        by_visit[new_rows] = False
        visited = [] if visits is None else [(row, visits[row]) for row in np.flatnonzero(by_visit).tolist()]
        visit_rows = np.repeat([row for row, _ in visited], [len(items) for _, items in visited]).astype(
            np.int64
        )
        rows = np.concatenate([learnt_rows, new_rows, visit_rows])
        if not len(rows):
            return None
        times, counts = np.full(len(rows), _UNKNOWN_TIME), np.ones(len(rows), np.int32)
        if self._seconds is not None:
            times[: len(places)] = self._seconds[places]
        if self.seen.repeats is not None:
            counts[: len(places)] = self.seen.repeats[places]
        times[len(places) :][: len(new_rows)] = new_times
        items = np.concatenate([self.seen.indices[places], new_items, *(items for _, items in visited)])
        # distinct pairs, which `Interactions.from_codes` takes milliseconds for where there are many items
        pairs, which = np.unique(rows * len(self.items) + items, return_inverse=True)
        newest = np.full(len(pairs), _UNKNOWN_TIME)
        np.maximum.at(newest, which, times)
        owner, items = np.divmod(pairs, len(self.items))
        return Interactions(
            indptr=np.searchsorted(owner, np.arange(len(codes) + 1)),
            indices=items.astype(np.int32),
            user_ids=Vocabulary(pl.int_range(len(codes), eager=True)),
            item_ids=self.items,
            timestamps=newest,
            repeats=np.bincount(which, counts).astype(np.int32),
        )

    def _new_events(
        self, users: Sequence[Id | None], codes: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        """Row, item and time of each event about an item that the run knows, but not as one of this user."""
        found = [] if self._log is None else self._log.events_of(users)
        rows = np.array([row for row, _, _ in found], np.int64)
        items = encode(self.items, [item for _, item, _ in found])
        learnt_rows, places = self._learnt(np.unique(rows), codes)
        learnt = learnt_rows * len(self.items) + self.seen.indices[places]
        new = (items >= 0) & ~np.isin(rows * len(self.items) + items, learnt)
        return rows[new], items[new], np.array([time_ for _, _, time_ in found], np.float64)[new]

    def _learnt(
        self, rows: NDArray[np.int64], codes: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The interactions that the run has learnt of some rows: of each the row, and its position in `seen`."""
        rows = rows[codes[rows] >= 0]
        places = [np.arange(*self.seen.indptr[code : code + 2]) for code in codes[rows]]
        return np.repeat(rows, list(map(len, places))), np.concatenate([np.empty(0, np.int64), *places])

    @cached_property
    def _seconds(self) -> NDArray[np.float64] | None:
        """The time of each interaction in `seen`, in the unit of the log's events."""
        return None if self.seen.timestamps is None else in_seconds(self.seen.timestamps)

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


def encode(ids: Vocabulary, wanted: Sequence[Id]) -> NDArray[np.int64]:
    """Positions of ids as they come in requests, -1 for unknown ones."""
    return codes_of(ids, wanted, kind="id", where="id", on_unknown="skip")


def _banned(model: Model, wanted: str) -> NDArray[np.int64] | None:
    return banned_items(model, filter=json.loads(wanted) or None)
