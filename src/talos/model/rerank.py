"""Re-ranking: popularity blended into the scores, and similar items kept apart (MMR). `talos.model.query` uses both."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from talos.baselines import ItemWeights
from talos.checks import require
from talos.evaluation.popularity import popularity_scores
from talos.evaluation.ranking import DEFAULT_BUDGET, Scorer, TopK

__all__ = ["BlendedScores", "check_share", "diversify", "pool_size"]

# Diversity chooses among the best this many times K items, and among no fewer than the second number.
_POOL_PER_PLACE = 5
_SMALLEST_POOL = 100


def check_share(name: str, value: object) -> float:
    """Return `value` as a float if it is a number from 0 to 1.

    >>> check_share("diversity", 1.5)
    Traceback (most recent call last):
    talos.errors.ArgumentError: diversity: 1.5; expected a number from 0 to 1
    """
    number = isinstance(value, int | float | np.floating) and not isinstance(value, bool)
    fits = number and 0 <= value <= 1  # type: ignore[operator]
    require(fits, f"{value!r}", where=name, expected="a number from 0 to 1")
    return float(value)  # type: ignore[arg-type]


def pool_size(k: int, num_items: int) -> int:
    """How many of the best items diversity chooses `k` from.

    >>> pool_size(10, 1000), pool_size(50, 1000), pool_size(50, 120)
    (100, 250, 120)
    """
    return min(num_items, max(_POOL_PER_PLACE * k, _SMALLEST_POOL))


class BlendedScores:
    """Scores with popularity blended in: (1 - w)·(s - min)/(max - min) + w·log(1 + n)/log(1 + max n).

    s are the scores of one user for all items, n the interactions of each item; both are scaled to 0 … 1, so that w
    means the same for every model. With w = 1 only popularity counts. The scale is taken over all items, masked or
    not: a filter does not change the blend of the items that it leaves.

    >>> from talos.evaluation.ranking import DotScores, top_k
    >>> scorer = DotScores(torch.tensor([[1.0]]), torch.tensor([[0.0], [0.9], [1.0]]))
    >>> top_k(BlendedScores(scorer, np.array([9, 5, 0]), 0.5), [0], k=3).items.tolist()
    [[1, 0, 2]]
    """

    def __init__(self, scorer: Scorer, item_degrees: NDArray[np.integer[Any]], weight: float) -> None:
        self.scorer, self.weight = scorer, weight
        self.num_items, self.device = scorer.num_items, scorer.device
        self.popularity = popularity_scores(item_degrees).to(scorer.device)

    def scores(self, users: Tensor, out: Tensor) -> None:
        """Write the blended scores of `users` (B,) for every item into `out` (B, num_items)."""
        self.scorer.scores(users, out)
        low, high = out.aminmax(dim=1, keepdim=True)
        out.sub_(low).mul_((1 - self.weight) / (high - low).clamp(min=1e-12)).add_(
            self.popularity, alpha=self.weight
        )


def diversify(lists: TopK, item_vectors: Tensor | ItemWeights, *, k: int, diversity: float) -> TopK:
    """Choose `k` items of each list so that they differ: maximal marginal relevance (MMR).

    The first item stays the best one. Each next one has the largest (1 - λ)·r - λ·max_j cos(v, v_j), where λ is
    `diversity`, r the score scaled to 0 … 1 over the list, and j runs over the items chosen so far. Scores stay those
    of the lists, so they need not descend. With λ = 0 the lists are cut at `k` and nothing else.

    Args:
        lists: the pool to choose from, best first; padded with item -1, score -inf.
        item_vectors: (items, d), of any length; or weights between items, whose rows are their vectors.
        k: length of the result.
        diversity: λ, from 0 to 1.

    >>> pool = TopK(np.array([0]), np.array([[0, 1, 2]]), np.array([[1.0, 0.9, 0.5]], np.float32))
    >>> vectors = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]])
    >>> diversify(pool, vectors, k=2, diversity=0.5).items.tolist()
    [[0, 2]]
    """
    if diversity == 0.0:
        return TopK(lists.users, lists.items[:, :k], lists.scores[:, :k])
    width = lists.items.shape[1]
    dim = item_vectors.num_items if isinstance(item_vectors, ItemWeights) else item_vectors.shape[1]
    chunk = max(1, DEFAULT_BUDGET // (4 * max(1, width * dim)))
    cuts = range(chunk, len(lists.items), chunk)
    parts = zip(*(np.split(column, cuts) for column in (lists.users, lists.items, lists.scores)), strict=True)
    return TopK.joined((_diversify(TopK(*part), item_vectors, k, diversity) for part in parts), min(k, width))


def _diversify(lists: TopK, vectors: Tensor | ItemWeights, k: int, diversity: float) -> TopK:
    """The chosen items of lists that are in memory at a time."""
    items, scores = lists.items, lists.scores
    device = vectors.device if isinstance(vectors, Tensor) else torch.device("cpu")
    pool = F.normalize(vectors[torch.from_numpy(np.maximum(items, 0)).to(device)], dim=-1)  # (B, P, d)
    held = torch.from_numpy(items >= 0).to(device)
    values = torch.from_numpy(scores).to(device).double()
    high = values[:, :1]  # lists are best first
    low = torch.where(held, values, torch.inf).amin(1, keepdim=True)
    relevance = (1 - diversity) * (values - low) / (high - low).clamp(min=1e-12)
    gain = torch.where(held, relevance, -torch.inf)
    nearest = torch.full_like(gain, -torch.inf)
    rows, places = torch.arange(len(items), device=device), []
    for _ in range(min(k, items.shape[1])):
        best = gain.argmax(1)
        places.append(torch.where(gain[rows, best] > -torch.inf, best, -1))
        similar = torch.bmm(pool, pool[rows, best].unsqueeze(-1)).squeeze(-1).double()
        nearest = torch.maximum(nearest, similar)
        held[rows, best] = False
        gain = torch.where(held, relevance - diversity * nearest, -torch.inf)
    chosen = torch.stack(places, 1).cpu().numpy()  # -1 where a list has no more
    found, chosen = chosen >= 0, np.maximum(chosen, 0)
    items = np.where(found, np.take_along_axis(items, chosen, 1), -1)
    scores = np.where(found, np.take_along_axis(scores, chosen, 1), np.float32(-np.inf))
    return TopK(lists.users, items, scores)
