"""Whether lists made elsewhere are the model's lists."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from talos.errors import TalosError
from talos.evaluation.ranking import TopK
from talos.model.run_directory import Model

__all__ = ["check_same_lists", "recall", "sample_users"]

# Other programs add up a product in another order: scores that differ by less than this are the same score.
_TOLERANCE = 1e-5


def sample_users(model: Model, size: int) -> NDArray[np.int64]:
    """Users to verify with: evenly spread, and those with the fewest and the most items."""
    degrees = model.seen.user_degrees
    spread = np.linspace(0, len(degrees) - 1, min(size, len(degrees))).astype(np.int64)
    return np.unique([*spread, int(degrees.argmin()), int(degrees.argmax())])


def check_same_lists(
    model: Model, expected: TopK, items: NDArray[Any], scores: NDArray[Any], *, what: str
) -> float:
    """Raise unless `items` and `scores` (B, k) are the lists expected, up to the order of equal scores.

    Returns the share of users whose lists are the same to the letter.
    """
    users = model.user_vectors[torch.from_numpy(expected.users)].detach().double().cpu().numpy()
    there = expected.items >= 0
    margin = _TOLERANCE * max(1.0, float(np.abs(expected.scores[there]).max(initial=0.0)))
    worst = None
    for row in range(len(users)):
        size = int(there[row].sum())
        mine = np.ascontiguousarray(items[row, :size])
        in_range = (items[row] >= 0) & (items[row] < model.train.num_items)
        if in_range.sum() != size or len(set(mine.tolist())) != size:
            worst = "items are missing or repeated"
            break
        exact = model.item_vectors[torch.from_numpy(mine)].detach().double().cpu().numpy() @ users[row]
        if (np.abs(exact - scores[row, :size]) > margin).any():
            worst = "scores are not the items' scores"
            break
        if (np.abs(scores[row, :size] - expected.scores[row, :size]) > margin).any():
            worst = "better items are left out, or items that are masked are in"
            break
    if worst is not None:
        user = model.train.user_ids.ids[int(expected.users[row])]
        raise TalosError(f"{what} differs from the model for user {user!r}: {worst}; nothing was written")
    return float((items == expected.items).all(1).mean())


def recall(expected: TopK, items: NDArray[Any]) -> float:
    """The mean share of the exact top K that was found."""
    shares = [
        len(np.intersect1d(mine, theirs)) / len(theirs)
        for mine, theirs in zip(items, expected.items, strict=True)
    ]
    return float(np.mean(shares))
