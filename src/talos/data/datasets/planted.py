"""Generated events of any size whose best possible lists are known: data on which quality is a share of the best.

Every user draws items without replacement from P(item | user) = Σ_z P(z | user) · P(item | z), one after the other. The
last of them are the user's test part, those before them the validation part. So of all lists of K new items, the K with
the highest P(item | user) have the highest expected recall, whatever is known about the user: nothing can do better but
by luck. P is a product of two thin tables, tastes of users and items of topics, and is never stored.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from talos.data.datasets.synthetic import SPAN, START, numbered_ids
from talos.data.interactions import Interactions
from talos.data.splits import Split
from talos.data.vocabulary import Vocabulary
from talos.errors import ArgumentError, ConfigError
from talos.files import locked_folder

__all__ = ["EventFormat", "HeldOut", "PlantedEvents", "PlantedTastes", "write_planted"]

EventFormat: TypeAlias = Literal["parquet", "csv"]
Floats: TypeAlias = NDArray[np.float64]

PARTS = ("train", "valid", "test")
_EVENTS_AT_ONCE = 2_000_000
_ROUNDS = 8
# The share of items that are about equally popular at the head; and how uneven topics and tastes are (less is more).
_HEAD, _TOPIC_SHAPE, _TASTE_SHAPE = 0.01, 0.05, 0.15
# What the random numbers of a generator are for; one generator each, so that none depends on how much another draws.
_ITEMS, _HELD_OUT, _USERS = range(3)


@dataclass(frozen=True)
class PlantedEvents:
    """The events of some users, in the order in which each user made them.

    Attributes:
        users: (E,), numbers of users.
        items: (E,), numbers of items; no pair occurs twice.
        seconds: (E,), Unix times, ascending for each user.
        part: (E,), 0 for train, 1 for validation, 2 for test.
    """

    users: NDArray[np.int64]
    items: NDArray[np.int64]
    seconds: NDArray[np.int64]
    part: NDArray[np.int8]


@dataclass(frozen=True)
class HeldOut:
    """The users with a test part: all their events, and what is needed to compute their best possible lists.

    Attributes:
        split: their events; users are positions in `tastes`, items are numbered as in `topics`.
        tastes: (U, dim) P(z | user).
        topics: (items, dim) P(item | z).
    """

    split: Split
    tastes: NDArray[np.float32]
    topics: NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class PlantedTastes:
    """A world of users with planted tastes, from which events are drawn some users at a time.

    Memory is that of the items' table (items × dim) and of some two million events, however many there are.

    Args:
        users: number of users; each has at least one event.
        items: number of items.
        events: number of events, all of different pairs: users ≤ events ≤ users × items.
        seed: the same settings and seed give the same events.
        dim: number of topics, the rank of the preferences.
        skew: popularity falls with rank to the power -skew from the first hundredth of the items on, which are about
            equally popular; 0 for uniform popularity.
        valid: share of the events of a held-out user that are for validation.
        test: share for test; a held-out user with two events or more has at least one.
        held_out: users with validation and test events, drawn at random; a sample gives figures nearly as exact as
            all users would, and measuring a million users against a million items takes longer than an epoch.

    Raises:
        ArgumentError: an argument is out of range.

    >>> world = PlantedTastes(users=100, items=50, events=1000, seed=1)
    >>> sum(len(events.users) for events in world.blocks())
    1000
    """

    users: int
    items: int
    events: int
    seed: int = 0
    dim: int = 16
    skew: float = 1.0
    valid: float = 0.1
    test: float = 0.2
    held_out: int = 20_000
    events_at_once: int = field(default=_EVENTS_AT_ONCE, repr=False, compare=False)

    def __post_init__(self) -> None:
        cells = self.users * self.items
        for name, value, expected, good in (
            ("users", self.users, "1 to 2^31", 1 <= self.users < 2**31),
            ("items", self.items, "1 to 2^31", 1 <= self.items < 2**31),
            ("events", self.events, f"{self.users:,} users to {cells:,} pairs", self.users <= self.events <= cells),
            ("seed", self.seed, "0 or more", self.seed >= 0),
            ("dim", self.dim, "1 or more", self.dim >= 1),
            ("skew", self.skew, "0 or more", 0 <= self.skew < float("inf")),
            ("valid", self.valid, "a share from 0 to below 1", 0 <= self.valid < 1),
            ("test", self.test, "a share from 0 to below 1", 0 <= self.test < 1),
            ("valid + test", self.valid + self.test, "below 1", self.valid + self.test < 1),
            ("held_out", self.held_out, "0 or more", self.held_out >= 0),
        ):  # fmt: skip
            if not good:
                raise ArgumentError(str(value), where=name, expected=expected)

    @cached_property
    def topics(self) -> Floats:
        """P(item | z), (dim, items): each topic favours a few items of its own, and popular items."""
        rng = self._rng(_ITEMS)
        # without the offset a handful of items would be in everybody's list, and tastes would hardly matter
        popularity = (rng.permutation(self.items) + 1.0 + _HEAD * self.items) ** -self.skew
        weights = rng.standard_gamma(_TOPIC_SHAPE, (self.dim, self.items))
        weights *= popularity
        weights += np.finfo(np.float64).tiny  # a topic without any weight is uniform
        weights /= weights.sum(axis=1, keepdims=True)
        return weights

    @cached_property
    def held_out_users(self) -> NDArray[np.int64]:
        """The users with validation and test events, ascending."""
        count = min(self.held_out, self.users)
        return np.sort(self._rng(_HELD_OUT).choice(self.users, count, replace=False))

    @property
    def num_blocks(self) -> int:
        """How many blocks there are: block b has the users b, b + num_blocks, …, so that each spans all ids."""
        return min(self.users, -(-self.events // self.events_at_once))

    def blocks(self) -> Iterator[PlantedEvents]:
        """All events, those of some users at a time; a user is in one block only."""
        upto = np.cumsum(self.topics, axis=1)
        upto /= upto[:, -1:]
        for number in range(self.num_blocks):
            yield self._block(number, upto)

    def tastes_of(self, block: int) -> Floats:
        """P(z | user) of a block's users, (U, dim)."""
        return self._tastes(self._rng(_USERS, block), len(self.users_of(block)))

    def ids(self, kind: Literal["user", "item"], *, strings: bool) -> pl.Series:
        """The id of each user or item by its number: integers, or strings such as `u0042`."""
        return numbered_ids(kind[0], self.users if kind == "user" else self.items, strings)

    def _rng(self, *purpose: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, *purpose])

    def users_of(self, block: int) -> NDArray[np.int64]:
        """The users whose events are in a block."""
        return np.arange(block, self.users, self.num_blocks)

    def _tastes(self, rng: np.random.Generator, users: int) -> Floats:
        tastes = rng.standard_gamma(_TASTE_SHAPE, (users, self.dim)) + np.finfo(np.float64).tiny
        tastes /= tastes.sum(axis=1, keepdims=True)
        return tastes

    def _block(self, block: int, upto: Floats) -> PlantedEvents:
        rng, users = self._rng(_USERS, block), self.users_of(block)
        tastes = self._tastes(rng, len(users))
        counts = self._counts(rng, block, len(users))
        owner, items = _draw_distinct(rng, tastes, counts, upto, self.topics)
        ends = np.cumsum(counts)
        rank = np.arange(len(owner)) - np.repeat(ends - counts, counts)
        # sorted by user and then by time, which shuffles the times of each user into ascending order
        seconds = START + np.floor(SPAN * (np.sort(owner + rng.random(len(owner))) - owner)).astype(np.int64)
        held = np.isin(users, self.held_out_users, assume_unique=True)
        in_test = np.where(
            held & (counts > 1), np.clip(np.rint(self.test * counts), self.test > 0, counts - 1), 0
        )
        in_valid = np.where(held, np.minimum(np.rint(self.valid * counts), counts - in_test - 1), 0)
        from_end = counts[owner] - 1 - rank
        part = np.where(from_end < in_test[owner], 2, from_end < (in_test + in_valid)[owner]).astype(np.int8)
        return PlantedEvents(users[owner], items, seconds, part)

    def _counts(self, rng: np.random.Generator, block: int, users: int) -> NDArray[np.int64]:
        """The number of events of each user of a block: mildly skewed, at least 1, at most the number of items."""
        before = sum(len(self.users_of(earlier)) for earlier in range(block))
        total = self.events * (before + users) // self.users - self.events * before // self.users
        activity = rng.lognormal(0.0, 0.75, users)
        counts = np.ones(users, np.int64)
        while (missing := total - int(counts.sum())) > 0:
            share = np.where(counts < self.items, activity, 0.0)
            counts += rng.multinomial(missing, share / share.sum())
            np.minimum(counts, self.items, out=counts)
        return counts


def _draw_distinct(
    rng: np.random.Generator, tastes: Floats, counts: NDArray[np.int64], upto: Floats, topics: Floats
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Items drawn one after the other without replacement, `counts[u]` from P(· | u): users (ascending) and items.

    Draws with replacement, of which each item's first is kept, are draws without. Where that needs too many because
    few likely items are left, the rest is drawn from all probabilities of the user.
    """
    num_items = upto.shape[1]
    steps = np.cumsum(tastes, axis=1)
    owner = items = np.empty(0, np.int64)
    more, missing = 1.3, counts
    for _ in range(_ROUNDS):
        drawn = np.repeat(np.arange(len(counts)), np.ceil(more * missing).astype(np.int64))
        # every user's new draws come after the ones before: a stable sort by user keeps the order of the draws
        owner = np.concatenate([owner, drawn])
        items = np.concatenate([items, _draw(rng, steps, drawn, upto)])
        order = np.argsort(owner, kind="stable")
        owner, items = owner[order], items[order]
        first = pl.Series(owner * num_items + items).is_first_distinct().to_numpy()
        owner, items = owner[first], items[first]
        found = np.bincount(owner, minlength=len(counts))
        rank = np.arange(len(owner)) - np.repeat(np.cumsum(found) - found, found)
        wanted = rank < counts[owner]
        owner, items = owner[wanted], items[wanted]
        missing = np.maximum(counts - found, 0)
        if not missing.any():
            return owner, items
        more *= 2
    rest_of, rest = [], []
    for user in np.flatnonzero(missing):
        # the order of log p + Gumbel noise is that of draws without replacement
        keys = np.log(tastes[user] @ topics) + rng.gumbel(size=num_items)
        keys[items[owner == user]] = -np.inf
        best = np.argpartition(-keys, missing[user] - 1)[: missing[user]]
        rest.append(best[np.argsort(-keys[best])])
        rest_of.append(np.full(missing[user], user))
    owner, items = np.concatenate([owner, *rest_of]), np.concatenate([items, *rest])
    order = np.argsort(owner, kind="stable")
    return owner[order], items[order]


def _draw(
    rng: np.random.Generator, steps: Floats, owner: NDArray[np.int64], upto: Floats
) -> NDArray[np.int64]:
    """One item for each of `owner` (n,): a topic by the user's distribution, then an item by the topic's."""
    chance = rng.random(len(owner))
    topic = np.zeros(len(owner), np.int32)
    for z in range(steps.shape[1] - 1):
        np.add(topic, chance > steps[owner, z], out=topic)
    items = np.empty(len(owner), np.int64)
    for z, steps_of_items in enumerate(upto):
        rows = np.flatnonzero(topic == z)
        drawn = rng.random(len(rows))
        # look-ups in ascending order are several times faster; the draws then go back to their places
        order = np.argsort(drawn)
        items[rows[order]] = np.searchsorted(steps_of_items, drawn[order], side="right")
    np.minimum(items, upto.shape[1] - 1, out=items)
    return items


def write_planted(
    world: PlantedTastes,
    out: Path,
    *,
    format: EventFormat = "parquet",  # noqa: A002  # the word users know
    strings: bool = True,
    report: Callable[[HeldOut], dict[str, Any]] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Write events as folders `train`, `valid` and `test` with one file for each block, and `planted.json`.

    The folder appears under its name only when it is complete; an existing folder must be empty.

    Args:
        world: what to draw from.
        out: the folder.
        format: of the files, whose columns are `user_id`, `item_id` and `timestamp`.
        strings: ids such as `u0042` instead of integers.
        report: called with the held-out users; what it returns becomes `best` in `planted.json`.
        progress: called with the number of events written and of all.

    Returns:
        The content of `planted.json`: `settings`, `events` of each part, and `best`.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError("exists and is not empty", where=str(out), expected="a new or empty folder")
    show = progress or (lambda done, total: None)
    user_ids, item_ids = (world.ids(kind, strings=strings) for kind in ("user", "item"))
    counts = dict.fromkeys(PARTS, 0)
    kept: list[PlantedEvents] = []
    tastes: list[NDArray[np.float32]] = []
    with locked_folder(out, purpose="writing events") as staging:
        for number, events in enumerate(world.blocks()):
            frame = pl.DataFrame(
                {"user_id": user_ids.gather(events.users), "item_id": item_ids.gather(events.items),
                 "timestamp": events.seconds}
            )  # fmt: skip
            # in the order of time, as a log is
            by_time = np.argsort(events.seconds, kind="stable")
            for code, name in enumerate(PARTS):
                rows = by_time[events.part[by_time] == code]
                if len(rows):
                    (staging / name).mkdir(exist_ok=True)
                    _write(frame[rows], staging / name / f"part-{number:06d}.{format}", format)
                    counts[name] += len(rows)
            held, own = _of_held_out(world, number, events)
            kept.append(held)
            tastes.append(own)
            show(sum(counts.values()), world.events)
        settings = {name: value for name, value in asdict(world).items() if name != "events_at_once"}
        record: dict[str, Any] = {
            "settings": {**settings, "format": format, "strings": strings},
            "events": {name: count for name, count in counts.items() if count},
        }
        if report is not None and counts["test"]:
            record["best"] = report(_held_out(world, kept, tastes))
        (staging / "planted.json").write_text(json.dumps(record, indent=2) + "\n")
    return record


def _write(frame: pl.DataFrame, path: Path, format: EventFormat) -> None:  # noqa: A002
    frame.write_parquet(path) if format == "parquet" else frame.write_csv(path)


def _of_held_out(
    world: PlantedTastes, block: int, events: PlantedEvents
) -> tuple[PlantedEvents, NDArray[np.float32]]:
    """The events of a block's held-out users, and their tastes in the order of their numbers."""
    users = world.users_of(block)
    held = np.isin(users, world.held_out_users, assume_unique=True)
    rows = np.isin(events.users, users[held])
    kept = PlantedEvents(events.users[rows], events.items[rows], events.seconds[rows], events.part[rows])
    return kept, world.tastes_of(block)[held].astype(np.float32)


def _held_out(
    world: PlantedTastes, kept: Sequence[PlantedEvents], tastes: Sequence[NDArray[np.float32]]
) -> HeldOut:
    users, items, seconds, part = (
        np.concatenate([getattr(events, name) for events in kept])
        for name in ("users", "items", "seconds", "part")
    )
    numbers = world.held_out_users
    of_block = np.argsort(numbers % world.num_blocks, kind="stable")  # the order in which `tastes` came
    ordered = np.empty((len(numbers), world.dim), np.float32)
    ordered[of_block] = np.concatenate(tastes)
    user_ids, item_ids = Vocabulary(pl.Series(numbers)), Vocabulary(world.ids("item", strings=False))
    parts = [
        Interactions.from_codes(
            np.searchsorted(numbers, users[rows]),
            items[rows],
            user_ids=user_ids,
            item_ids=item_ids,
            timestamps=seconds[rows],
        )
        for rows in (part == code for code in range(len(PARTS)))
    ]
    split = Split(train=parts[0], valid=parts[1], test=parts[2], how={"by": "planted"})
    return HeldOut(split, ordered, np.ascontiguousarray(world.topics.T, np.float32))
