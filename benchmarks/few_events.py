"""Recall by number of training events: own vectors, folded-in vectors, the prior, and popularity.

`python -m talos_benchmarks.few_events PATH …` prints a table for each PATH, see docs/cold-start.md. Most users of a
PATH are cut down to 1 to 10 random training events, so that every number of events occurs. `shop` is made up: 20,000
customers, half of whom buy once; it is not cut, and `shop-by-time` is split by time.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from talos.data.interactions import Interactions
from talos.data.open import open_split
from talos.data.splits import Split, split
from talos.evaluation.evaluate import Report, evaluate, popularity_report
from talos.evaluation.popularity import PriorScores
from talos.evaluation.ranking import DotScores
from talos.model.query import ListQuery, row_vectors
from talos.model.recommender import Recommender

from .shapes import shop

K = 20
# Numbers of events that users are cut down to, and how many users to each; the rest keep all.
CUTS = {1: 0.15, 2: 0.12, 3: 0.08, 4: 0.08, 5: 0.08, 6: 0.08, 8: 0.08, 10: 0.08}
GROUPS = {"0": (0, 0), "1": (1, 1), "2": (2, 2), "3–5": (3, 5), "6–10": (6, 10), "more": (11, 10**9)}


def cut(parts: Split, seed: int = 0) -> Split:
    """The split with most users cut down to a few random training events."""
    rng, train = np.random.default_rng(seed), parts.train
    most = [*CUTS, len(train)]
    kept = rng.choice(most, train.num_users, p=[*CUTS.values(), 1 - sum(CUTS.values())])
    order = np.lexsort((rng.random(len(train)), train.rows))
    rank = np.empty(len(train), np.int64)
    rank[order] = np.arange(len(train)) - np.repeat(train.indptr[:-1], train.user_degrees)
    return replace(parts, train=train.where(rank < kept[train.rows]))


def measure(parts: Split) -> tuple[Recommender, dict[str, Report]]:
    """The default fitted to a split, and reports by four kinds of scores."""
    fitted = Recommender(k=K).fit(parts.train, parts.valid, known=parts.test)
    model, train = fitted.fitted_model(), parts.train
    plain = PriorScores(model.vectors.items, model.item_degrees)
    people = ListQuery(users=np.full(train.num_users, -1), histories=train, k=K)
    folded = DotScores(row_vectors(model, people)[0], model.vectors.items)
    return fitted, {
        "own vector": evaluate(
            plain.of(model.vectors.users, train.user_degrees), parts.test, seen=model.seen, ks=[K]
        ),
        "folded in": evaluate(folded, parts.test, seen=model.seen, ks=[K]),
        "with the prior": fitted.evaluate(parts.test, k=[K]),
        "popularity": popularity_report(train, parts.test, seen=model.seen, ks=[K]),
    }


def by_events(parts: Split, reports: dict[str, Report]) -> Iterator[list[str]]:
    """A row for each group of users: its size, the recall of each report, and how far the prior is ahead."""
    values = {name: report.per_user[f"recall@{K}"] for name, report in reports.items()}
    events = parts.train.user_degrees[parts.test.user_degrees > 0]
    ahead: NDArray[np.float64] = values["with the prior"] - values["popularity"]
    for name, (low, high) in GROUPS.items():
        who = (events >= low) & (events <= high)
        if who.any():
            interval = 1.96 * ahead[who].std() / who.sum() ** 0.5
            cells = [f"{one[who].mean():.4f}".lstrip("0") for one in values.values()]
            yield [name, f"{who.sum():,}", *cells, f"{ahead[who].mean():+.4f} ± {interval:.4f}"]


def shop_of(seed: int = 0) -> Interactions:
    """20,000 customers, half of whom buy once; a thousand items by Zipf's law, ten tastes."""
    rng = np.random.default_rng(seed)
    users, items = zip(*shop(rng, rng.geometric(0.5, 20_000), 1000, tastes=10), strict=True)
    stamps = rng.integers(1_600_000_000, 1_630_000_000, len(users))
    return Interactions.from_ids(np.array(users), np.array(items), timestamps=stamps)


def main(paths: list[str]) -> None:
    """Print a table for each PATH."""
    for path in paths:
        if path.startswith("shop"):
            parts = split(shop_of(), by="time" if path.endswith("time") else "user")
        else:
            parts = cut(open_split(path))
        fitted, reports = measure(parts)
        print(f"\n{path}: prior {fitted.config.training.prior:g}\n")
        print(f"| training events | users | {' | '.join(reports)} | prior − popularity |")
        print("|---" * (len(reports) + 3) + "|")
        for row in by_events(parts, reports):
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
