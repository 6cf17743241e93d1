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

from talos.checks import require
from talos.data.interactions import Interactions, Provenance
from talos.data.splits import Split
from talos.data.vocabulary import Vocabulary
from talos.files import locked_folder

__all__ = ["EventFormat", "PlantedTastes", "synthetic", "write_planted"]

EventFormat: TypeAlias = Literal["parquet", "csv"]
Floats: TypeAlias = NDArray[np.float64]
Numbers: TypeAlias = NDArray[np.int64]

_PARTS = ("train", "valid", "test")
_START, _SPAN = 1_600_000_000, 365 * 86_400  # a year from September 2020
_EVENTS_AT_ONCE = 2_000_000
_ROUNDS = 8
# The share of items that are about equally popular at the head; and how uneven topics and tastes are (less is more).
_HEAD, _TOPIC_SHAPE, _TASTE_SHAPE = 0.01, 0.05, 0.15
# What the random numbers of a generator are for; one generator each, so that none depends on how much another draws.
_ITEMS, _HELD_OUT, _USERS = range(3)


@dataclass(frozen=True, kw_only=True)
class PlantedTastes:
    """A world of users with planted tastes, from which events are drawn some users at a time.

    Memory is that of the items' table (items × dim) and of some two million events, however many there are.

    Args:
        users: number of users, of mildly skewed activity; each has at least one event if there are as many.
        items: number of items.
        events: number of events, all of different pairs: at most users × items.
        seed: the same settings and seed give the same events.
        dim: number of topics, the rank of the preferences.
        skew: popularity falls with rank to the power -skew from the first hundredth of the items on, which are about
            equally popular; 0 for uniform popularity.
        drift: the chance that a user's last event is drawn from a second set of tastes and topics, 0 to 1. The chance
            rises from 0 at the user's first event.
        valid: share of the events of a held-out user that are for validation.
        test: share for test; a held-out user with two events or more has at least one.
        held_out: users with validation and test events, drawn at random; a sample gives figures nearly as exact as
            all users would, and measuring a million users against a million items takes longer than an epoch.

    Raises:
        ArgumentError: an argument is out of range.

    >>> world = PlantedTastes(users=100, items=50, events=1000, seed=1)
    >>> sum(block.height for block in world.blocks())
    1000
    """

    users: int
    items: int
    events: int
    seed: int = 0
    dim: int = 16
    skew: float = 1.0
    drift: float = 0.0
    valid: float = 0.1
    test: float = 0.2
    held_out: int = 20_000
    events_at_once: int = field(default=_EVENTS_AT_ONCE, repr=False, compare=False)

    def __post_init__(self) -> None:
        cells = self.users * self.items
        for name, value, expected, good in (
            ("users", self.users, "1 to 2^31", 1 <= self.users < 2**31),
            ("items", self.items, "1 to 2^31", 1 <= self.items < 2**31),
            ("events", self.events, f"1 to {cells:,} pairs of users and items", 1 <= self.events <= cells),
            ("seed", self.seed, "0 or more", self.seed >= 0),
            ("dim", self.dim, "1 or more", self.dim >= 1),
            ("skew", self.skew, "0 or more", 0 <= self.skew < float("inf")),
            ("drift", self.drift, "0 to 1", 0 <= self.drift <= 1),
            ("valid", self.valid, "a share from 0 to below 1", 0 <= self.valid < 1),
            ("test", self.test, "a share from 0 to below 1", 0 <= self.test < 1),
            ("valid + test", self.valid + self.test, "below 1", self.valid + self.test < 1),
            ("held_out", self.held_out, "0 or more", self.held_out >= 0),
        ):  # fmt: skip
            require(good, str(value), where=name, expected=expected)

    @cached_property
    def topics(self) -> Floats:
        """P(item | z), (dim, items): each topic favours a few items of its own, and popular items.

        With drift the topics of the second set follow: (2 dim, items).
        """
        rng, sets = self._rng(_ITEMS), []
        for _ in range(self._sets):
            # without the offset a handful of items would be in everybody's list, and tastes would hardly matter
            popularity = (rng.permutation(self.items) + 1.0 + _HEAD * self.items) ** -self.skew
            weights = rng.standard_gamma(_TOPIC_SHAPE, (self.dim, self.items))
            weights *= popularity
            sets.append(_distributions(weights))
        return np.concatenate(sets)

    @cached_property
    def held_out_users(self) -> Numbers:
        """The users with validation and test events, ascending."""
        count = min(self.held_out, self.users)
        return np.sort(self._rng(_HELD_OUT).choice(self.users, count, replace=False))

    @property
    def num_blocks(self) -> int:
        """How many blocks there are: block b has the users b, b + num_blocks, …, so that each spans all ids."""
        return min(self.users, -(-self.events // self.events_at_once))

    def blocks(self) -> Iterator[pl.DataFrame]:
        """All events, those of some users at a time; a user is in one block only.

        The columns are `user_id` and `item_id`, which are numbers, `timestamp` in Unix seconds, and `part`: 0 for
        train, 1 for validation, 2 for test. Each user's events follow each other in time.
        """
        upto = np.cumsum(self.topics, axis=1)
        upto /= upto[:, -1:]
        for number in range(self.num_blocks):
            yield self._block(number, upto)

    def interactions(self, *, strings: bool = False) -> Interactions:
        """All events in memory, without parts; all users and items are in the vocabularies.

        Args:
            strings: ids such as `u0042` and `i0007` instead of integers.
        """
        origin = Provenance(source=f"synthetic, seed {self.seed}", format="synthetic", rows=self.events)
        user_ids, item_ids = (Vocabulary(ids) for ids in self._ids(strings))
        events = pl.concat(self.blocks())
        return _interactions(events, user_ids=user_ids, item_ids=item_ids, provenance=origin)

    def users_of(self, block: int) -> Numbers:
        """The users whose events are in a block."""
        return np.arange(block, self.users, self.num_blocks)

    def tastes_of(self, block: int) -> Floats:
        """P(z | user) of a block's users, (U, dim), before any drift."""
        first: Floats = self._tastes(self._rng(_USERS, block), len(self.users_of(block)))[0]
        return first

    @property
    def _sets(self) -> int:
        return 2 if self.drift else 1

    def _rng(self, *purpose: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, *purpose])

    def _ids(self, strings: bool) -> list[pl.Series]:
        """The id of each user, and of each item, by its number; strings are padded so that they sort like numbers."""
        numbers = [pl.Series(np.arange(count, dtype=np.int64)) for count in (self.users, self.items)]
        if not strings:
            return numbers
        return [
            letter + column.cast(pl.String).str.zfill(len(str(len(column) - 1)))
            for letter, column in zip("ui", numbers, strict=True)
        ]

    def _tastes(self, rng: np.random.Generator, users: int) -> Floats:
        """P(z | user) of each set, (sets, users, dim)."""
        return _distributions(rng.standard_gamma(_TASTE_SHAPE, (self._sets, users, self.dim)))

    def _block(self, block: int, upto: Floats) -> pl.DataFrame:
        rng, users = self._rng(_USERS, block), self.users_of(block)
        tastes = self._tastes(rng, len(users))
        counts = self._counts(rng, block, len(users))
        draws = _draw_distinct(rng, tastes, counts, upto, self.topics, self.drift)
        owner = draws["user"].to_numpy()
        # sorted by user and then by time, which shuffles the times of each user into ascending order
        seconds = _START + np.floor(_SPAN * (np.sort(owner + rng.random(len(owner))) - owner)).astype(
            np.int64
        )
        held = np.isin(users, self.held_out_users, assume_unique=True)
        in_test = np.where(
            held & (counts > 1), np.clip(np.rint(self.test * counts), self.test > 0, counts - 1), 0
        )
        in_valid = np.where(held, np.minimum(np.rint(self.valid * counts), counts - in_test - 1), 0)
        from_end = counts[owner] - 1 - _ranks(counts)
        part = np.where(from_end < in_test[owner], 2, from_end < (in_test + in_valid)[owner]).astype(np.int8)
        return pl.DataFrame(
            {"user_id": users[owner], "item_id": draws["item"], "timestamp": seconds, "part": part}
        )

    def _counts(self, rng: np.random.Generator, block: int, users: int) -> Numbers:
        """The number of events of each user of a block: mildly skewed, at most the number of items."""
        before = sum(len(self.users_of(earlier)) for earlier in range(block))
        total = self.events * (before + users) // self.users - self.events * before // self.users
        activity = rng.lognormal(0.0, 0.75, users)
        counts = np.full(users, int(self.events >= self.users))
        while (missing := total - int(counts.sum())) > 0:
            share = np.where(counts < self.items, activity, 0.0)
            counts += rng.multinomial(missing, share / share.sum())
            np.minimum(counts, self.items, out=counts)
        return counts


def synthetic(
    *,
    users: int = 1000,
    items: int = 500,
    interactions: int = 20_000,
    seed: int = 0,
    dim: int = 8,
    skew: float = 1.0,
    drift: float = 0.0,
    strings: bool = False,
) -> Interactions:
    """Interactions drawn from planted tastes, in memory; the arguments are those of `PlantedTastes`.

    Args:
        users: number of users; all are in the vocabulary, even without interactions.
        items: number of items; all are in the vocabulary.
        interactions: number of distinct pairs.
        seed: the same seed gives the same interactions.
        dim: number of topics, the rank of the preferences.
        skew: popularity falls with rank to the power -skew; 0 for uniform popularity.
        drift: from 0 (none) to 1 (each user's last interaction is of other tastes than the first).
        strings: ids such as "u0042" and "i0007" instead of integers.

    Raises:
        ArgumentError: an argument is out of range, or `interactions` exceeds users × items.

    >>> data = synthetic(users=100, items=50, interactions=1000, seed=1)
    >>> data
    Interactions(100 users × 50 items, 1,000 pairs, with timestamps)
    """
    world = PlantedTastes(
        users=users, items=items, events=interactions, seed=seed, dim=dim, skew=skew, drift=drift
    )
    return world.interactions(strings=strings)


def _distributions(weights: Floats) -> Floats:
    """Weights as probabilities along the last axis, in place; uniform where there is no weight."""
    weights += np.finfo(np.float64).tiny
    weights /= weights.sum(axis=-1, keepdims=True)
    return weights


def _ranks(counts: Numbers) -> Numbers:
    """The number of each event among those of its user: 0 to counts[0] - 1, then 0 to counts[1] - 1, and so on."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


def _draw_distinct(
    rng: np.random.Generator,
    tastes: Floats,
    counts: Numbers,
    upto: Floats,
    topics: Floats,
    drift: float = 0.0,
) -> pl.DataFrame:
    """`user` (ascending) and `item`: `counts[u]` items drawn one after the other without replacement from P(· | u).

    Draws with replacement, of which each item's first is kept, are draws without. Where that needs too many because
    few likely items are left, the rest is drawn from all probabilities of the user.
    """
    num_items, dim = upto.shape[1], tastes.shape[2]
    steps = np.cumsum(tastes, axis=2)
    draws = pl.DataFrame(schema={"user": pl.Int64, "item": pl.Int64})
    more, missing = 1.3, counts
    for _ in range(_ROUNDS):
        tried = np.ceil(more * missing).astype(np.int64)
        users = np.repeat(np.arange(len(counts)), tried)
        second: Any = 0  # whether a draw is from the second set
        if drift:
            place = np.minimum((counts - missing)[users] + _ranks(tried), counts[users]) / counts[users]
            second = (rng.random(len(users)) < drift * place).astype(np.int64)
        new = pl.DataFrame({"user": users, "item": _draw(rng, steps, users, upto, second)})
        # every user's new draws come after the ones before
        draws = draws.vstack(new).sort("user", maintain_order=True)
        draws = draws.filter((pl.col("user") * num_items + pl.col("item")).is_first_distinct())
        found = np.bincount(draws["user"].to_numpy(), minlength=len(counts))
        draws = draws.filter(_ranks(found) < counts[draws["user"]])
        missing = np.maximum(counts - found, 0)
        if not missing.any():
            return draws
        more *= 2
    rest = []
    for user in np.flatnonzero(missing):
        # the order of log p + Gumbel noise is that of draws without replacement
        keys = np.log(tastes[-1, user] @ topics[-dim:]) + rng.gumbel(size=num_items)
        keys[draws["item"][slice(*np.searchsorted(draws["user"], (user, user + 1)))]] = -np.inf
        best = np.argpartition(-keys, missing[user] - 1)[: missing[user]]
        rest.append(pl.DataFrame({"user": user, "item": best[np.argsort(-keys[best])]}))
    return pl.concat([draws, *rest]).sort("user", maintain_order=True)


def _draw(rng: np.random.Generator, steps: Floats, owner: Numbers, upto: Floats, second: Any) -> Numbers:
    """One item for each of `owner` (n,): a topic by the user's distribution, then an item by the topic's."""
    chance, dim = rng.random(len(owner)), steps.shape[2]
    topic = np.zeros(len(owner), np.int32)
    for z in range(dim - 1):
        np.add(topic, chance > steps[second, owner, z], out=topic)
    topic += dim * second
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
    report: Callable[[Split, NDArray[np.float32], NDArray[np.float32]], dict[str, Any]] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Write events as folders `train`, `valid` and `test` with one file for each block, and `planted.json`.

    The folder appears under its name only when it is complete; an existing folder must be empty.

    Args:
        world: what to draw from.
        out: the folder.
        format: of the files, whose columns are `user_id`, `item_id` and `timestamp`.
        strings: ids such as `u0042` instead of integers.
        report: called with all events of the held-out users, their tastes P(z | user) (U, dim), and the topics
            P(item | z) (items, dim); what it returns becomes `best` in `planted.json`. Not with drift, with which the
            best lists are others at each moment.
        progress: called with the number of events written and of all.

    Returns:
        The content of `planted.json`: `settings`, `events` of each part, and `best`.
    """
    user_ids, item_ids = world._ids(strings)
    counts = dict.fromkeys(_PARTS, 0)
    held: list[pl.DataFrame] = []
    with locked_folder(out, purpose="writing events", new=True) as staging:
        for number, events in enumerate(world.blocks()):
            log = events.with_columns(
                user_id=user_ids.gather(events["user_id"]), item_id=item_ids.gather(events["item_id"])
            ).sort("timestamp", maintain_order=True)
            for (code,), rows in log.partition_by("part", as_dict=True, include_key=False).items():
                file = staging / _PARTS[code] / f"part-{number:06d}.{format}"
                file.parent.mkdir(exist_ok=True)
                rows.write_parquet(file) if format == "parquet" else rows.write_csv(file)
                counts[_PARTS[code]] += rows.height
            held.append(events.filter(pl.col("user_id").is_in(world.held_out_users)))
            if progress is not None:
                progress(sum(counts.values()), world.events)
        settings = {name: value for name, value in asdict(world).items() if name != "events_at_once"}
        record: dict[str, Any] = {
            "settings": {**settings, "format": format, "strings": strings},
            "events": {name: count for name, count in counts.items() if count},
        }
        if report is not None and counts["test"] and not world.drift:
            record["best"] = report(*_held_out(world, held))
        (staging / "planted.json").write_text(json.dumps(record, indent=2) + "\n")
    return record


def _held_out(
    world: PlantedTastes, held: Sequence[pl.DataFrame]
) -> tuple[Split, NDArray[np.float32], NDArray[np.float32]]:
    """The events, tastes and topics of held-out users, who are numbered anew; items keep their numbers."""
    numbers = world.held_out_users
    tastes = np.empty((len(numbers), world.dim), np.float32)
    for block in range(world.num_blocks):
        users = world.users_of(block)
        chosen = np.isin(users, numbers, assume_unique=True)
        tastes[np.searchsorted(numbers, users[chosen])] = world.tastes_of(block)[chosen]
    user_ids, item_ids = Vocabulary(pl.Series(numbers)), Vocabulary(world._ids(False)[1])
    events = pl.concat(held)
    events = events.with_columns(user_id=np.searchsorted(numbers, events["user_id"].to_numpy()))
    train, valid, test = (
        _interactions(events.filter(pl.col("part") == code), user_ids=user_ids, item_ids=item_ids)
        for code in range(len(_PARTS))
    )
    split = Split(train=train, valid=valid, test=test, how={"by": "planted"})
    return split, tastes, np.ascontiguousarray(world.topics.T, np.float32)


def _interactions(events: pl.DataFrame, **vocabularies: Any) -> Interactions:
    users, items, seconds = (events[name].to_numpy() for name in ("user_id", "item_id", "timestamp"))
    return Interactions.from_codes(users, items, timestamps=seconds, **vocabularies)
