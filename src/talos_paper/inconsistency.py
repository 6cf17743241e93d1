"""How often a list that is better by AUC, LLPAUC or NDCG is worse by Precision@K: the study of Table 1.

Two random lists of a user's items have the user's positives at random positions among the first 200. The study
counts how often a metric prefers one of the two lists and top-K accuracy the other. The paper does not say how many
positives a list has, how ties are counted, and which α and β LLPAUC has; `SOURCES` and `READINGS` name the
possibilities. The defaults are those that come closest to the printed table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import product
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from talos.checks import one_of, require
from talos.data.splits import Split
from talos.evaluation import metrics
from talos_paper import published

__all__ = [
    "DEFAULT_READING",
    "DEFAULT_SOURCE",
    "READINGS",
    "SOURCES",
    "contradictions",
    "distance_to_paper",
    "inconsistency",
    "measure",
    "positives_per_user",
    "random_lists",
]


SOURCES: Mapping[str, str] = MappingProxyType(
    {
        "test": "a user's test items",
        "train": "a user's train items, those of validation left out",
        "all": "all interactions of a user",
    }
)
"""Name → what the positives of a list are."""

DEFAULT_SOURCE = "train"

READINGS = tuple(
    f"{draw}-{ties}"
    for draw in ("users", "interactions")
    for ties in ("strict", "half", "booleans", "full", "left-out")
)
"""Ways to read the paper's description, each named by how users are drawn, a dash, and how ties count.

How the user of a pair of lists is drawn: `users`, each user equally likely; `interactions`, the user of a random
interaction, so that users with many positives are drawn more often (as in training).

How a pair counts where the metric or top-K accuracy, or both, are equal for the two lists:

- `strict`: 0, since neither list is better;
- `half`: 1/2, as if a coin broke the tie;
- `booleans`: `(a > b) != (c > d)`, which is 1/2 on average where only top-K accuracy ties and 0 where both tie;
- `full`: 1 where top-K accuracy ties and the metric does not, 0 otherwise;
- `left-out`: the pair is counted neither as a contradiction nor in the total.
"""

DEFAULT_READING = "interactions-half"


def positives_per_user(split: Split, source: str = DEFAULT_SOURCE) -> NDArray[np.int64]:
    """Number of positives of each user, counted as one of `SOURCES` says.

    >>> from talos.data.interactions import Interactions
    >>> data = Interactions.from_ids([1, 1, 2], [7, 8, 8])
    >>> positives_per_user(Split(train=data, valid=None, test=data), "all").tolist()
    [4, 2]
    """
    one_of("source", source, tuple(SOURCES))
    wanted = {"test": ("test",), "train": ("train",), "all": ("train", "valid", "test")}[source]
    parts = [part.user_degrees for name, part in split.parts.items() if name in wanted]
    return np.asarray(np.sum(parts, axis=0), np.int64)


def inconsistency(
    positives: NDArray[np.integer],
    *,
    reading: str = DEFAULT_READING,
    pairs: int = 10_000,
    positions: int = 200,
    k: int = 20,
    alpha: float = 0.5,
    beta: float = 0.1,
    seed: int = 0,
) -> dict[str, dict[str, float]]:
    """The share of pairs of random lists for which a metric and top-K accuracy prefer different lists.

    Args:
        positives: (users,) number of positives of each user; users with none are left out, and numbers above
            `positions` are cut to it.
        reading: one of `READINGS`.
        pairs: number of pairs of lists.
        positions: length of a list; all but the positives are negatives.
        k: list length of top-K accuracy.
        alpha: the share of positives that LLPAUC counts.
        beta: the share of negatives that LLPAUC counts.
        seed: seed of the random lists.

    Returns:
        metric (`auc`, `llpauc`, `ndcg`, `ndcg@K`) → accuracy (`precision@K`, `recall@K`) → share. Both accuracies
        prefer the same list, since the two lists are of one user, so their shares are equal.

    >>> shares = inconsistency(np.array([3, 5, 8]), pairs=2000)
    >>> shares["auc"]["precision@20"] > shares["ndcg"]["precision@20"] > shares["ndcg@20"]["precision@20"]
    True
    """
    one_of("reading", reading, READINGS)
    require(pairs >= 1, f"{pairs}", where="pairs", expected="1 or more")
    require(1 <= k <= positions, f"{k}", where="k", expected=f"1 to {positions}, the number of positions")
    draw, _, ties = reading.partition("-")
    counts = np.asarray(positives, dtype=np.int64)
    counts = counts[counts > 0]
    require(len(counts) > 0, "no user has any", where="positives", expected="at least one positive")
    rng = np.random.default_rng(seed)
    weights = counts / counts.sum() if draw == "interactions" else None
    drawn = np.minimum(rng.choice(counts, size=pairs, p=weights), positions)
    first, second = (_measured(random_lists(drawn, positions, rng), k, alpha, beta) for _ in range(2))
    accuracies = (f"precision@{k}", f"recall@{k}")
    return {
        metric: {
            accuracy: contradictions(
                first[metric] - second[metric], first[accuracy] - second[accuracy], ties=ties
            )
            for accuracy in accuracies
        }
        for metric in ("auc", "llpauc", "ndcg", f"ndcg@{k}")
    }


def random_lists(counts: NDArray[np.integer], positions: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """(rows, positions), True at the positives: row r has `counts[r]` of them at positions chosen uniformly.

    >>> random_lists(np.array([1, 3, 4]), 4, np.random.default_rng(0)).sum(axis=1).tolist()
    [1, 3, 4]
    """
    keys = rng.random((len(counts), positions))
    last = np.take_along_axis(np.sort(keys, axis=1), np.asarray(counts)[:, None] - 1, axis=1)
    return keys <= last


def contradictions(metric: NDArray[np.float64], accuracy: NDArray[np.float64], *, ties: str) -> float:
    """The share of pairs in which two differences (first list less second) have opposite signs.

    Differences below 1e-9 are ties; `READINGS` says how they count.

    >>> metric, accuracy = np.array([0.1, 0.1, 0.0, -0.1]), np.array([-0.05, 0.0, 0.0, -0.05])
    >>> [contradictions(metric, accuracy, ties=ties) for ties in ("strict", "half", "full")]
    [0.25, 0.5, 0.5]
    """
    one, other = (np.sign(np.where(np.abs(x) < 1e-9, 0.0, x)) for x in (metric, accuracy))
    opposite = one * other < 0
    tie = one * other == 0
    counted = {
        "strict": opposite.mean(),
        "half": opposite.mean() + tie.mean() / 2,
        "booleans": ((one > 0) != (other > 0)).mean(),
        "full": (opposite | ((one != 0) & (other == 0))).mean(),
        "left-out": opposite.sum() / max(1, (~tie).sum()),
    }
    one_of("ties", ties, tuple(counted))
    return float(counted[ties])


def distance_to_paper(shares: dict[str, dict[str, float]], dataset: str) -> float:
    """Root mean square difference between the eight shares of a data set and those of Table 1.

    >>> everywhere = {"precision@20": 0.3, "recall@20": 0.3}
    >>> shares = {metric: everywhere for metric in ("auc", "llpauc", "ndcg", "ndcg@20")}
    >>> round(distance_to_paper(shares, "beauty"), 3)
    0.057
    """
    entries = published.numbers(table="inconsistency", dataset=dataset)
    one_of("dataset", dataset, [entry.dataset for entry in published.numbers(table="inconsistency")])
    squares = [(shares[entry.method][entry.metric] - entry.value) ** 2 for entry in entries]
    return math.sqrt(sum(squares) / len(squares))


def _measured(lists: NDArray[np.bool_], k: int, alpha: float, beta: float) -> dict[str, NDArray[np.float64]]:
    """Metric → its value for every list, computed by `talos.evaluation.metrics`."""
    hits = torch.from_numpy(lists)
    relevant = hits.sum(1)
    negatives = lists.shape[1] - relevant
    owner, place = hits.nonzero(as_tuple=True)
    # `nonzero` returns the positives of a list in order of position, so this counts the positives before each.
    before = torch.arange(len(owner)) - (relevant.cumsum(0) - relevant)[owner]
    above = place - before
    values = {
        "auc": metrics.auc(above, owner, negatives),
        "llpauc": metrics.llpauc(above, owner, negatives, alpha=alpha, beta=beta),
        "ndcg": metrics.ndcg(hits, relevant, lists.shape[1]),
        f"ndcg@{k}": metrics.ndcg(hits, relevant, k),
        f"precision@{k}": metrics.precision(hits, relevant, k),
        f"recall@{k}": metrics.recall(hits, relevant, k),
    }
    return {name: value.numpy() for name, value in values.items()}


def measure(split: Split, dataset: str, *, pairs: int = 10_000, seed: int = 0) -> dict[str, Any]:
    """Table 1 on a data set: the shares by every reading, with the distance from the paper's; `used` is the default."""
    tried = []
    for source, reading in product(SOURCES, READINGS):
        shares = inconsistency(positives_per_user(split, source), reading=reading, pairs=pairs, seed=seed)
        facts = {
            "source": source,
            "reading": reading,
            "shares": {name: round(found["precision@20"], 4) for name, found in shares.items()},
            "distance": round(distance_to_paper(shares, dataset), 4),
        }
        tried.append(facts)
    used = next(one for one in tried if (one["source"], one["reading"]) == (DEFAULT_SOURCE, DEFAULT_READING))
    return {"pairs": pairs, "seed": seed, "used": used, "tried": tried}
