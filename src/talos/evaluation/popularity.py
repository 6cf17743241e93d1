"""Popularity as a prior: the scores of users with few training events, and of items with none.

A user with n training events has the scores

    s_ui + (c / n) · p_i,    p_i = log(1 + n_i) / log(1 + max n)

where n_i counts the training events of item i and c is the prior. A user without training events has no trained
vector: the scores are p_i. An item without training events has no trained vector either: it is ranked last.

These scores are dot products. Vectors get a column for popularity and a column that ranks items without events last,
so lists, indexes and exported graphs take dot products as usual.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from talos.data.interactions import Interactions
from talos.distributed import SINGLE_PROCESS, Group
from talos.evaluation.evaluate import evaluate
from talos.evaluation.ranking import DotScores

__all__ = ["PRIORS", "PriorScores", "best_prior", "longest_of", "popularity_scores"]

# The candidates of `best_prior`. The first is the default: another must be better by more than chance explains.
PRIORS: Final = (1.0, 0.0, 0.25, 0.5, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
# Users whose lists `best_prior` measures; more would not change the choice.
_MOST_USERS: Final = 8192
# Items without events score this many times the lowest possible dot product.
_BELOW: Final = 1.01


def popularity_scores(item_degrees: NDArray[np.integer[Any]]) -> Tensor:
    """Popularity on a log scale, 0 (no events) to 1 (the most events): log(1 + n) / log(1 + max n).

    >>> popularity_scores(np.array([0, 1, 3])).tolist()
    [0.0, 0.5, 1.0]
    """
    scores = torch.tensor(np.asarray(item_degrees), dtype=torch.float64).log1p()
    return (scores / scores.max().clamp(min=1e-9)).float()


class PriorScores:
    """Scores with a popularity prior, for users with a given number of training events; see this module.

    Args:
        item_vectors: (I, d).
        item_degrees: (I,), training events of each item.
        prior: c, from 0.
        longest: the length of the longest user vector.

    >>> made = PriorScores(torch.eye(2), np.array([3, 1]), prior=0.5)
    >>> scorer = made.of(torch.tensor([[0.0, 1.0], [0.0, 1.0]]), np.array([1, 0]))
    >>> out = torch.empty(2, 2)
    >>> scorer.scores(torch.arange(2), out)
    >>> out.tolist()
    [[0.5, 1.25], [1.0, 0.5]]
    """

    def __init__(
        self,
        item_vectors: Tensor,
        item_degrees: NDArray[np.integer[Any]],
        *,
        prior: float = 0.0,
        longest: float = 1.0,
    ) -> None:
        self.prior = prior
        self._popularity = popularity_scores(item_degrees).to(item_vectors)
        cold = torch.from_numpy(np.asarray(item_degrees) == 0).to(item_vectors.device)
        self._ranks_last = bool(cold.any()) and not bool(cold.all())
        if self._ranks_last:
            lowest = -_BELOW * max(longest * longest_of(item_vectors), 1e-6)
            item_vectors = item_vectors.masked_fill(cold.unsqueeze(1), 0.0)
            item_vectors = torch.cat([item_vectors, (lowest * cold.to(item_vectors)).unsqueeze(1)], 1)
        self._items = item_vectors
        self._with_popularity: Tensor | None = None

    def of(self, vectors: Tensor, events: NDArray[np.integer[Any]]) -> DotScores:
        """The scores of users with vectors (B, d) and numbers of training events (B,)."""
        count = torch.from_numpy(np.asarray(events, np.int64)).to(vectors.device).unsqueeze(1)
        cold = count == 0
        rows = F.pad(vectors, (0, 1), value=1.0) if self._ranks_last else vectors
        if self.prior == 0 and not cold.any():
            return DotScores(rows, self._items)
        if self._with_popularity is None:
            self._with_popularity = torch.cat([self._items, self._popularity.unsqueeze(1)], 1)
        # users without events do not need the column that ranks items last: the popularity of such items is 0
        weights = torch.where(cold, 1.0, self.prior / count.clamp(min=1).to(vectors))
        return DotScores(torch.cat([rows.masked_fill(cold, 0.0), weights], 1), self._with_popularity)


def best_prior(
    user_vectors: Tensor,
    item_vectors: Tensor,
    train: Interactions,
    valid: Interactions,
    *,
    item_degrees: NDArray[np.integer[Any]],
    k: int,
    metric: str,
    group: Group = SINGLE_PROCESS,
) -> float:
    """The prior with the best validation metric over users with training events, each weighted by 1/n.

    The weights are those of the prior in the scores. The best prior is chosen if it beats the default, 1, by more than
    a standard error of the difference. The model was chosen by the same validation users, which favours low priors.

    Args:
        user_vectors: (U, d), of the users of `train`.
        item_vectors: (I, d).
        train: the interactions of training.
        valid: those of validation, over the same vocabularies.
        item_degrees: (I,), training events of each item, of all processes.
        k: length of the lists.
        metric: such as `precision`.
        group: the processes that choose together, each with its own users.
    """
    rows = np.flatnonzero((valid.user_degrees > 0) & (train.user_degrees > 0))
    most = -(-_MOST_USERS // group.size)
    if len(rows) > most:
        rows = np.sort(np.random.default_rng(0).choice(rows, most, replace=False))
    measured = valid.where(np.isin(valid.rows, rows))
    longest = longest_of(user_vectors)

    def weighted(prior: float) -> NDArray[np.float64]:
        if not len(rows):
            return np.zeros(0)
        scores = PriorScores(item_vectors, item_degrees, prior=prior, longest=longest)
        scorer = scores.of(user_vectors, train.user_degrees)
        report = evaluate(scorer, measured, seen=train, ks=[k], metrics=[metric])
        return 1 / train.user_degrees[rows] * report.per_user[f"{metric}@{k}"]

    default = weighted(PRIORS[0])
    chosen, best = PRIORS[0], 0.0
    for prior in PRIORS[1:]:
        gain = weighted(prior) - default
        sums = group.all_gather_numbers([float(gain.sum()), float(gain @ gain), float(len(gain))])
        total, squares, count = (sum(column) for column in zip(*sums, strict=True))
        error = max(squares - total**2 / max(count, 1), 0.0) ** 0.5
        if total > max(best, error):
            chosen, best = prior, total
    return chosen


def longest_of(vectors: Tensor) -> float:
    """The length of the longest vector; 1 if there are none."""
    return float(vectors.detach().square().sum(1).max().sqrt()) if len(vectors) else 1.0
