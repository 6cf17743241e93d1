"""Synthetic interactions of any size, with a structure that a model can learn."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from talos.data.interactions import Interactions, Provenance
from talos.data.vocabulary import Vocabulary
from talos.errors import ArgumentError

__all__ = ["SPAN", "START", "numbered_ids", "synthetic"]

START, SPAN = 1_600_000_000, 365 * 86_400  # a year from September 2020
_SCRAMBLE = 0x9E3779B1  # odd, so that multiplying by it modulo a power of two can be undone
_ROUNDS = 30
_MOST_CELLS = 1 << 47  # leaves 16 bits for the time of a pair: steps of eight minutes
_ROWS_AT_ONCE = 1 << 20


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
    """Interactions drawn from low-rank preferences, with popularity skew and drift over time.

    Each user has a distribution over `dim` topics, and each topic a distribution over items that favours a few items
    of its own and popular items. So P(item | user) = Σ_z P(z | user) · P(item | z), a matrix of rank `dim` that is
    never stored. Time t goes from 0 to 1 over a year: with probability `drift`·t an interaction is drawn from a second
    set of user and topic distributions instead.

    Args:
        users: number of users, with ids 0 … users-1 and mildly skewed activity. Each has at least one interaction if
            `interactions` is at least `users`.
        items: number of items, with ids 0 … items-1; all are in the vocabulary, even without interactions.
        interactions: number of distinct pairs.
        seed: the same seed gives the same interactions.
        dim: number of topics, the rank of the preferences.
        skew: popularity is proportional to rank to the power -skew; 0 for uniform popularity.
        drift: from 0 (none) to 1 (at the end of the year all interactions are of the second set).
        strings: ids such as "u0042" and "i0007" instead of integers.

    Raises:
        ArgumentError: an argument is out of range, or `interactions` exceeds users × items.

    >>> data = synthetic(users=100, items=50, interactions=1000, seed=1)
    >>> data
    Interactions(100 users × 50 items, 1,000 pairs, with timestamps)
    """
    _check(users, items, interactions, dim, skew, drift)
    rng = np.random.default_rng(seed)
    world = _World(rng, users, items, dim, skew, drift)
    # A pair and its time are packed into one integer, so that one sort finds pairs drawn twice. The time is scrambled:
    # otherwise the earliest draw of a pair would always be kept, and popular items would seem to fade over time.
    time_bits = min(24, 63 - (users * items - 1).bit_length())
    mask, unscramble = (1 << time_bits) - 1, pow(_SCRAMBLE, -1, 1 << time_bits)
    packed = np.empty(0, np.int64)
    share = 0.8  # of the draws that are new pairs, as estimated so far
    for _ in range(_ROUNDS):
        missing = interactions - len(packed)
        if missing <= 0:
            break
        everybody = len(packed) == 0 and interactions >= users
        count = min(max(int(1.1 * missing / share), users if everybody else 0) + 16, 2 * interactions + 16)
        pairs, times = world.draw(rng, count, everybody=everybody)
        pairs <<= time_bits
        pairs |= (times * (1 << time_bits)).astype(np.int64) * _SCRAMBLE & mask
        distinct = _distinct(np.concatenate([packed, pairs]), time_bits)
        share = max((len(distinct) - len(packed)) / count, 0.01)
        packed = distinct
    pairs = packed >> time_bits
    seconds = ((packed & mask) * unscramble & mask) * SPAN >> time_bits
    if len(pairs) > interactions:
        kept = _all_but(rng, pairs // items, len(pairs) - interactions, everybody=interactions >= users)
        pairs, seconds = pairs[kept], seconds[kept]
    elif len(pairs) < interactions:  # the likely pairs are used up: draw the rest uniformly
        rest = _other_pairs(rng, pairs, users * items, interactions - len(pairs))
        pairs = np.concatenate([pairs, rest])
        seconds = np.concatenate([seconds, rng.integers(0, SPAN, len(rest))])
    return Interactions.from_codes(
        (pairs // items).astype(np.int32),
        (pairs % items).astype(np.int32),
        user_ids=Vocabulary(numbered_ids("u", users, strings)),
        item_ids=Vocabulary(numbered_ids("i", items, strings)),
        timestamps=START + seconds,
        provenance=Provenance(source=f"synthetic, seed {seed}", format="synthetic", rows=interactions),
    )


class _World:
    """The distributions to draw from: activity of users, topics of users, items of topics."""

    def __init__(
        self, rng: np.random.Generator, users: int, items: int, dim: int, skew: float, drift: float
    ) -> None:
        self.users, self.items, self.dim, self.drift = users, items, dim, drift
        activity = rng.lognormal(0.0, 0.75, users)
        self.activity = activity / activity.sum()
        home = rng.standard_gamma(0.2, (dim, items))
        ages = 2 if drift else 1  # the second set is for drift
        self.tastes = [
            _cumulative(rng.standard_gamma(0.3, (users, dim))).astype(np.float32) for _ in range(ages)
        ]
        self.topics = [
            _cumulative(home * (rng.permutation(items) + 1.0) ** -skew) for _ in range(ages)
        ]  # each (dim, items)

    def draw(
        self, rng: np.random.Generator, count: int, *, everybody: bool
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Pairs, as user · items + item, and times in [0, 1); every user at least once if `everybody`."""
        drawn = np.repeat(np.arange(self.users, dtype=np.int32), rng.multinomial(count, self.activity))
        rng.shuffle(drawn)
        if everybody:
            drawn[: self.users] = rng.permutation(self.users)
        times = rng.random(count)
        pairs = drawn * np.int64(self.items)
        for start in range(0, count, _ROWS_AT_ONCE):
            here = slice(start, start + _ROWS_AT_ONCE)
            pairs[here] += self._items_for(rng, drawn[here], times[here])
        return pairs, times

    def _items_for(
        self, rng: np.random.Generator, users: NDArray[np.int32], times: NDArray[np.float64]
    ) -> NDArray[np.int64]:
        age = (rng.random(len(users)) < self.drift * times).astype(np.int8)
        chance = rng.random(len(users), dtype=np.float32)
        topic = np.empty(len(users), np.int64)
        for which, tastes in enumerate(self.tastes):
            rows = np.flatnonzero(age == which)
            topic[rows] = (chance[rows, None] > tastes[users[rows]]).sum(axis=1)
        np.minimum(topic, self.dim - 1, out=topic)
        chosen = np.empty(len(users), np.int64)
        for which, topics in enumerate(self.topics):
            for z, upto in enumerate(topics):
                rows = np.flatnonzero((age == which) & (topic == z))
                # sorted look-ups are several times faster, and the rows are in random order anyway
                chosen[rows] = np.searchsorted(upto, np.sort(rng.random(len(rows))), side="right")
        return np.minimum(chosen, self.items - 1)


def _cumulative(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Cumulative distribution along the last axis; uniform if all weights are zero."""
    upto = np.cumsum(weights + np.finfo(np.float64).tiny, axis=-1)
    return upto / upto[..., -1:]


def _distinct(packed: NDArray[np.int64], time_bits: int) -> NDArray[np.int64]:
    """Sorted, with only the first of each pair kept."""
    packed = pl.Series(packed).sort().to_numpy()
    pairs = packed >> time_bits
    first = np.ones(len(pairs), bool)
    np.not_equal(pairs[1:], pairs[:-1], out=first[1:])
    return packed[first]


def _all_but(
    rng: np.random.Generator, users: NDArray[np.int64], count: int, *, everybody: bool
) -> NDArray[np.bool_]:
    """Flags that drop `count` rows at random; with `everybody`, never a user's first (`users` is sorted)."""
    candidates = np.ones(len(users), bool)
    if everybody:
        np.equal(users[1:], users[:-1], out=candidates[1:])
        candidates[0] = False
    kept = np.ones(len(users), bool)
    kept[rng.choice(np.flatnonzero(candidates), count, replace=False)] = False
    return kept


def _other_pairs(
    rng: np.random.Generator, used: NDArray[np.int64], cells: int, count: int
) -> NDArray[np.int64]:
    """Pairs that are not in `used`, drawn uniformly."""
    if cells <= 4 * (len(used) + count):
        return rng.choice(np.setdiff1d(np.arange(cells), used, assume_unique=True), count, replace=False)
    found = np.empty(0, np.int64)
    while len(found) < count:
        more = np.setdiff1d(rng.integers(0, cells, 2 * count), used)
        found = np.union1d(found, more)
    return rng.choice(found, count, replace=False)


def numbered_ids(letter: str, count: int, strings: bool) -> pl.Series:
    """Ids 0 … count - 1, or with `strings` the numbers after a letter, padded so that they sort like numbers."""
    numbers = pl.Series(np.arange(count, dtype=np.int64))
    if not strings:
        return numbers
    return letter + numbers.cast(pl.String).str.zfill(len(str(count - 1)))


def _check(users: int, items: int, interactions: int, dim: int, skew: float, drift: float) -> None:
    cells = users * items
    for name, value, expected, good in (
        ("users", users, "at least 1", 1 <= users < 2**31),
        ("items", items, "at least 1", 1 <= items < 2**31),
        ("interactions", interactions, f"1 … users × items = {cells:,}", 1 <= interactions <= cells),
        ("users × items", cells, f"at most {_MOST_CELLS:,}", cells <= _MOST_CELLS),
        ("dim", dim, "at least 1", dim >= 1),
        ("skew", skew, "0 or more", 0 <= skew < float("inf")),
        ("drift", drift, "between 0 and 1", 0 <= drift <= 1),
    ):
        if not good:
            raise ArgumentError(str(value), where=name, expected=expected)
