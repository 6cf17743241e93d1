"""Small data sets of awkward shapes, and what the default makes of them beside popularity and EASE.

`python -m talos_benchmarks.shapes` prints the table of docs/cold-start.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from talos.data.interactions import Interactions
from talos.data.options import SplitBy
from talos.data.splits import split
from talos.evaluation.evaluate import Report, popularity_report
from talos.model.recommender import Recommender

Rng = np.random.Generator
Pairs = Iterable[tuple[int, int]]


def _zipf(items: int, power: float = 1.0) -> NDArray[np.float64]:
    chance = 1 / np.arange(1, items + 1) ** power
    found: NDArray[np.float64] = chance / chance.sum()
    return found


def few_events(rng: Rng) -> Pairs:
    """Half of the customers buy once; ten tastes."""
    return shop(rng, rng.geometric(0.5, 4000), 200, tastes=10)


def one_item_mostly(rng: Rng) -> Pairs:
    """Everybody has one item; the others are rare."""
    for user in range(1000):
        yield user, 0
        for item in rng.choice(np.arange(1, 300), rng.integers(1, 8), p=_zipf(299, 0.7)):
            yield user, int(item)


def ties(rng: Rng) -> Pairs:
    """Forty groups of ten items; users have seven of their group's. Every right list is equally right."""
    for user in range(800):
        for item in rng.choice(10, 7, replace=False):
            yield user, 10 * (user % 40) + int(item)


def bots(rng: Rng) -> Pairs:
    """A shop with five users who have nine tenths of the catalogue."""
    yield from shop(rng, rng.integers(3, 15, 1500), 300, tastes=6)
    for bot in range(5):
        for item in rng.choice(300, 270, replace=False):
            yield 1500 + bot, int(item)


def bundles(rng: Rng) -> Pairs:
    """Items come in packs of five, of which a customer buys four."""
    for user in range(1500):
        for pack in rng.choice(60, rng.integers(1, 4), replace=False, p=_zipf(60)):
            for item in rng.choice(5, 4, replace=False):
                yield user, 5 * int(pack) + int(item)


def long_tail(rng: Rng) -> Pairs:
    """More items than users: two thousand, most of them with a handful of events."""
    return shop(rng, rng.integers(5, 25, 1200), 2000, tastes=20, power=0.6, boost=30.0)


def noise(rng: Rng) -> Pairs:
    """Nothing to learn: uniform."""
    for user in range(1000):
        for item in rng.choice(200, 10, replace=False):
            yield user, int(item)


def popularity_alone(rng: Rng) -> Pairs:
    """Nothing to learn but popularity."""
    return shop(rng, rng.integers(2, 20, 1500), 300, tastes=1)


def repeat_buys(rng: Rng) -> Pairs:
    """Customers buy the same few things again and again."""
    for user in range(1000):
        mine = rng.choice(150, 6, replace=False, p=_zipf(150))
        for item in rng.choice(mine, 30):
            yield user, int(item)


def two_worlds(rng: Rng) -> Pairs:
    """Two halves that have nothing in common, one ten times as large."""
    yield from shop(rng, rng.integers(5, 15, 1500), 150, tastes=3)
    for user, item in shop(rng, rng.integers(5, 15, 150), 150, tastes=3):
        yield 1500 + user, 150 + item


def clones(rng: Rng) -> Pairs:
    """Twenty customers, each of whom occurs fifty times with one item missing."""
    for kind in range(20):
        mine = rng.choice(120, 12, replace=False)
        for copy in range(50):
            for item in np.delete(mine, copy % 12):
                yield 50 * kind + copy, int(item)


def dense(rng: Rng) -> Pairs:
    """Everybody has most of a small catalogue."""
    liked = rng.random((300, 60)) < np.clip(_zipf(60, 0.3) * 30 + 0.2 * rng.random((300, 1)), 0, 0.9)
    return ((int(user), int(item)) for user, item in np.argwhere(liked))


def tiny(rng: Rng) -> Pairs:
    """Thirty users and twelve items, fewer than the list is long."""
    for user in range(30):
        for item in rng.choice(6, 4, replace=False):
            yield user, 6 * (user % 2) + int(item)


SHAPES: dict[str, Callable[[Rng], Pairs]] = {
    shape.__name__.replace("_", " "): shape
    for shape in (
        few_events, one_item_mostly, ties, bots, bundles, long_tail, noise, popularity_alone, repeat_buys, two_worlds,
        clones, dense, tiny,
    )
}  # fmt: skip


def make(shape: str, seed: int = 0) -> Interactions:
    """The interactions of a shape; times are in random order, repeats are kept as such."""
    rng = np.random.default_rng(seed)
    users, items = zip(*SHAPES[shape](rng), strict=True)
    stamps = rng.integers(1_600_000_000, 1_630_000_000, len(users))
    return Interactions.from_ids(
        [f"u{user}" for user in users], [f"i{item}" for item in items], timestamps=stamps
    )


def measure(shape: str, by: SplitBy = "user") -> tuple[Recommender, dict[str, Report]]:
    """The default fitted to a shape, and reports of it, of popularity and of EASE on the test part."""
    parts = split(make(shape), by=by)
    model = Recommender().fit(parts.train, parts.valid, known=parts.test)
    k = model.config.k
    ease = Recommender(k=k, baseline="ease").fit(parts.train, parts.valid)
    return model, {
        "default": model.evaluate(parts.test, k=[k]),
        "popularity": popularity_report(parts.train, parts.test, seen=model.fitted_model().seen, ks=[k]),
        "ease": ease.evaluate(parts.test, k=[k]),
    }


def main() -> None:
    """Print a row for each shape: recall of the three by user and by time, and the default's share of the better."""
    print(
        "| shape | by user: default | popularity | EASE | share | by time: default | popularity | EASE | share |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for shape in SHAPES:
        cells = [shape]
        for by in ("user", "time"):
            model, reports = measure(shape, by)
            found = [report.metrics[f"recall@{model.config.k}"] for report in reports.values()]
            cells += [f"{value:.3f}".lstrip("0") for value in found] + [f"{found[0] / max(found[1:]):.2f}"]
        print(f"| {' | '.join(cells)} |", flush=True)


def shop(
    rng: Rng, bought: NDArray[np.int64], items: int, *, tastes: int, power: float = 1.0, boost: float = 4.0
) -> Iterator[tuple[int, int]]:
    """Zipf's popularity; items of a customer's taste are more likely by a factor."""
    popular, kind = _zipf(items, power), rng.integers(0, tastes, items)
    for user, count in enumerate(bought):
        chance = popular * np.where(kind == user % tastes, boost, 1.0)
        for item in rng.choice(items, count, p=chance / chance.sum()):
            yield user, int(item)


if __name__ == "__main__":
    main()
