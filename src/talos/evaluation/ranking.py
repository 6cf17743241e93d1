"""Top-K lists for many users: score, mask and select, in chunks within a memory budget.

Evaluation and recommendation share this code. Only one chunk of users × items is in memory at a time. Equal scores are
ordered by item position. `talos.kernels.topk` does the selection.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from talos.baselines import ItemWeights
from talos.checks import require
from talos.data.interactions import Interactions, ItemRows
from talos.kernels import topk

__all__ = [
    "DotScores",
    "FixedScores",
    "HistoryScores",
    "Masks",
    "Scorer",
    "TopK",
    "is_masked",
    "iter_top_k",
    "mask_seen",
    "top_k",
]

# Bytes: large enough for efficient matrix products, small enough for the cache; see benchmarks/ranking.py.
DEFAULT_BUDGET = 64 << 20


class Scorer(Protocol):
    """A model that can score all items for a chunk of users."""

    @property
    def num_items(self) -> int:
        """The number of items."""

    @property
    def device(self) -> torch.device:
        """The device of the scores."""

    def scores(self, users: Tensor, out: Tensor) -> None:
        """Write the scores of `users` (B,) for every item into `out` (B, num_items)."""


Masks: TypeAlias = Interactions | ItemRows
"""The items that are masked in each user's list."""


class DotScores:
    """Scores are dot products of user and item vectors (cosine, if the vectors are normalised).

    >>> scorer = DotScores(torch.eye(2), torch.eye(2))
    >>> top_k(scorer, k=1).items.tolist()
    [[0], [1]]
    """

    def __init__(self, user_vectors: Tensor, item_vectors: Tensor) -> None:
        require(
            user_vectors.dim() == item_vectors.dim() == 2 and user_vectors.shape[1] == item_vectors.shape[1],
            f"shapes {tuple(user_vectors.shape)} and {tuple(item_vectors.shape)}",
            where="user_vectors, item_vectors",
            expected="(users, d) and (items, d)",
        )
        self.user_vectors, self.item_vectors = user_vectors, item_vectors
        self.num_users, self.num_items = len(user_vectors), len(item_vectors)
        self.device = item_vectors.device

    def scores(self, users: Tensor, out: Tensor) -> None:
        """Write the scores of `users` into `out`: one matrix product."""
        torch.mm(self.user_vectors[users], self.item_vectors.T, out=out)


class HistoryScores:
    """Scores are sums of weights from the items of a user's history: s_ui = Σ_{h∈H_u} W[h, i].

    With `popularity` (items,), an empty history has these scores, and items of popularity 0 are ranked last.

    >>> histories = Interactions.from_ids([1, 2, 2], [7, 7, 8])
    >>> scorer = HistoryScores(histories, ItemWeights(torch.tensor([[0.0, 2.0], [3.0, 0.0]])))
    >>> top_k(scorer, k=1).scores.tolist()
    [[2.0], [3.0]]
    """

    def __init__(
        self,
        histories: Interactions | ItemRows,
        weights: ItemWeights,
        popularity: Tensor | None = None,
    ) -> None:
        require(
            histories.num_items == weights.num_items,
            f"{histories.num_items} items",
            where="histories",
            expected=f"{weights.num_items}, those of the weights",
        )
        self.histories, self.weights, self.popularity = histories, weights, popularity
        self.num_users, self.num_items = histories.num_users, weights.num_items
        self.device = torch.device("cpu")  # that of the weights

    def scores(self, users: Tensor, out: Tensor) -> None:
        """Write the scores of `users` into `out`: a product of their rows with the weights."""
        codes = users.numpy()
        ends = np.concatenate([[0], np.cumsum(self.histories.user_degrees[codes])])
        items = self.histories.pairs_of(codes)[1].astype(np.int64)
        self.weights.add_up(torch.from_numpy(ends), torch.from_numpy(items), out)
        if self.popularity is not None:
            unknown = self.popularity == 0
            if unknown.any():
                out[:, unknown] = out.amin(1, keepdim=True) - 1
            out[torch.from_numpy(np.diff(ends) == 0)] = self.popularity


class FixedScores:
    """The same item scores for every user, such as popularity.

    >>> top_k(FixedScores(torch.tensor([1.0, 3.0, 3.0])), users=[0], k=2).items.tolist()
    [[1, 2]]
    """

    def __init__(self, item_scores: Tensor) -> None:
        self.item_scores = item_scores.float()
        self.num_items, self.device = len(item_scores), item_scores.device

    def scores(self, users: Tensor, out: Tensor) -> None:
        """Write the item scores into every row of `out`."""
        out.copy_(self.item_scores.expand(len(users), -1))


@dataclass(frozen=True)
class TopK:
    """The best items of some users, best first; shorter lists are padded with item -1, score -inf."""

    users: NDArray[np.int64]  # (B,)
    items: NDArray[np.int64]  # (B, k)
    scores: NDArray[np.float32]  # (B, k)

    @classmethod
    def joined(cls, parts: Iterable[TopK], k: int) -> TopK:
        """The lists of all parts, each of length `k`.

        >>> TopK.joined([], 3).items.shape
        (0, 3)
        """
        nothing = cls(np.empty(0, np.int64), np.empty((0, k), np.int64), np.empty((0, k), np.float32))
        columns = zip(*((one.users, one.items, one.scores) for one in (nothing, *parts)), strict=True)
        return cls(*map(np.concatenate, columns))


def top_k(
    scorer: Scorer,
    users: NDArray[np.integer[Any]] | Sequence[int] | None = None,
    *,
    k: int,
    seen: Masks | None = None,
    banned: NDArray[np.integer[Any]] | None = None,
    budget: int = DEFAULT_BUDGET,
) -> TopK:
    """The best `k` items of each user, in one piece; for the arguments see `iter_top_k`."""
    return TopK.joined(iter_top_k(scorer, users, k=k, seen=seen, banned=banned, budget=budget), k)


def iter_top_k(
    scorer: Scorer,
    users: NDArray[np.integer[Any]] | Sequence[int] | None = None,
    *,
    k: int,
    seen: Masks | None = None,
    banned: NDArray[np.integer[Any]] | None = None,
    budget: int = DEFAULT_BUDGET,
) -> Iterator[TopK]:
    """The best `k` items of each user, a chunk of users at a time.

    Args:
        scorer: the model's scores.
        users: positions of the users; default: all users of `scorer`.
        k: length of the lists, 1 to the number of items.
        seen: interactions whose items are masked in their users' lists.
        banned: items that are masked in every list.
        budget: bytes that a chunk of scores may take.
    """
    require(
        1 <= k <= scorer.num_items,
        f"{k}",
        where="k",
        expected=f"1 to {scorer.num_items}, the number of items",
    )
    require(
        seen is None or seen.num_items == scorer.num_items,
        f"{None if seen is None else seen.num_items} items",
        where="seen",
        expected=f"{scorer.num_items}, the number of items of the scorer",
    )
    if users is None:
        users = np.arange(getattr(scorer, "num_users", 0))
    wanted, num_items = np.asarray(users, np.int64), scorer.num_items
    barred = torch.from_numpy(np.asarray([] if banned is None else banned, np.int64)).to(scorer.device)
    # a class derived from `DotScores` may have scores of its own
    tiled = scorer if type(scorer) is DotScores and topk.uses_tiles(scorer.item_vectors, k) else None
    width = -(-num_items // 64) * 64  # aligned rows are faster
    chunk = budget // (4 * width) if tiled is None else topk.users_at_once(num_items, budget)
    chunk = max(1, min(len(wanted), chunk))
    buffer = torch.full((0 if tiled else chunk, width), -torch.inf, device=scorer.device)

    def masked_scores(block: NDArray[np.int64], out: Tensor) -> Tensor:
        scorer.scores(torch.from_numpy(block).to(scorer.device), out[:, :num_items])
        if seen is not None:
            mask_seen(out, seen, block)
        return out.index_fill_(1, barred, -torch.inf)

    def best(block: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        if tiled is None:
            return topk.best_of_rows(masked_scores(block, buffer[: len(block)]), k)
        return topk.best_of_products(
            tiled.user_vectors.detach()[block],
            tiled.item_vectors.detach(),
            k,
            masked=torch.empty(0, dtype=torch.int64) if seen is None else _flat(seen, block, num_items),
            banned=barred,
            rows=lambda tied: masked_scores(block[tied.numpy()], torch.empty(len(tied), num_items)),
        )

    for start in range(0, len(wanted), chunk):
        block = wanted[start : start + chunk]
        scores, items = best(block)
        yield TopK(block, items.cpu().numpy(), scores.cpu().numpy())


def is_masked(seen: Masks, users: NDArray[np.integer[Any]], items: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each item (B, n) is masked for its user (B,); missing ones, -1, are not.

    >>> seen = ItemRows.of(np.array([0, 1]), np.array([3, 4]), num_rows=2, num_items=5)
    >>> is_masked(seen, np.array([0, 1]), np.array([[3, 4], [3, -1]])).tolist()
    [[True, False], [False, False]]
    """
    rows, masked = seen.pairs_of(users)
    asked = np.arange(len(users))[:, None] * np.int64(seen.num_items) + items
    return np.isin(asked, rows * np.int64(seen.num_items) + masked) & (items >= 0)


def mask_seen(scores: Tensor, seen: Masks, users: NDArray[np.int64]) -> None:
    """Set the scores (B, ≥ items) of the items that each of `users` (B,) has in `seen` to -inf."""
    flat = _flat(seen, users, scores.shape[1]).to(scores.device)
    scores.view(-1).index_fill_(0, flat, -torch.inf)


def _flat(seen: Masks, users: NDArray[np.int64], width: int) -> Tensor:
    """The positions of the masked pairs of `users` (B,) in a flattened matrix (B, width)."""
    rows, items = seen.pairs_of(users)
    return torch.from_numpy(rows * width + items)
