"""Top-K lists for many users: score, mask and select, in chunks within a memory budget.

Evaluation and recommendation share this code. Only one chunk of users × items is in memory at a time.
The result is deterministic: equal scores are ordered by item position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from talos.baselines import ItemWeights
from talos.data.interactions import Interactions
from talos.errors import ArgumentError, TalosError
from talos.evaluation import tiles

__all__ = [
    "DotScores",
    "FixedScores",
    "HistoryScores",
    "Masks",
    "Scorer",
    "TopK",
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
        ...

    @property
    def device(self) -> torch.device:
        """The device of the scores."""
        ...

    def scores(self, users: Tensor, out: Tensor) -> None:
        """Write the scores of `users` (B,) for every item into `out` (B, num_items)."""
        ...


class Masks(Protocol):
    """The items that are masked in each user's list; `Interactions` are such."""

    @property
    def num_items(self) -> int:
        """The number of items."""
        ...

    def pairs_of(self, codes: NDArray[np.integer[Any]]) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """The masked items of some users: for each, the position of its user in `codes`, and the item."""
        ...


class DotScores:
    """Scores are dot products of user and item vectors (cosine, if the vectors are normalised).

    >>> scorer = DotScores(torch.eye(2), torch.eye(2))
    >>> top_k(scorer, k=1).items.tolist()
    [[0], [1]]
    """

    def __init__(self, user_vectors: Tensor, item_vectors: Tensor) -> None:
        if (
            user_vectors.dim() != 2
            or item_vectors.dim() != 2
            or user_vectors.shape[1] != item_vectors.shape[1]
        ):
            raise ArgumentError(
                f"shapes {tuple(user_vectors.shape)} and {tuple(item_vectors.shape)}",
                where="user_vectors, item_vectors",
                expected="(users, d) and (items, d)",
            )
        self.user_vectors = user_vectors
        self.item_vectors = item_vectors

    @property
    def num_users(self) -> int:
        """The number of users."""
        return len(self.user_vectors)

    @property
    def num_items(self) -> int:
        """The number of items."""
        return len(self.item_vectors)

    @property
    def device(self) -> torch.device:
        """The device of the vectors."""
        return self.item_vectors.device

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
        self, histories: Interactions, weights: ItemWeights, popularity: Tensor | None = None
    ) -> None:
        if histories.num_items != weights.num_items:
            what, expected = f"{histories.num_items} items", f"{weights.num_items}, those of the weights"
            raise ArgumentError(what, where="histories", expected=expected)
        self.histories = histories
        self.weights = weights
        self.popularity = popularity

    @property
    def num_users(self) -> int:
        """The number of histories."""
        return self.histories.num_users

    @property
    def num_items(self) -> int:
        """The number of items."""
        return self.weights.num_items

    @property
    def device(self) -> torch.device:
        """The CPU: weights stay there."""
        return torch.device("cpu")

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

    @property
    def num_items(self) -> int:
        """The number of items."""
        return len(self.item_scores)

    @property
    def device(self) -> torch.device:
        """The device of the scores."""
        return self.item_scores.device

    def scores(self, users: Tensor, out: Tensor) -> None:
        """Write the item scores into every row of `out`."""
        out.copy_(self.item_scores.expand(len(users), -1))


@dataclass(frozen=True)
class TopK:
    """The best items of some users, best first; shorter lists are padded with item -1, score -inf."""

    users: NDArray[np.int64]  # (B,)
    items: NDArray[np.int64]  # (B, k)
    scores: NDArray[np.float32]  # (B, k)


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
    parts = list(iter_top_k(scorer, users, k=k, seen=seen, banned=banned, budget=budget))
    return TopK(
        np.concatenate([part.users for part in parts]) if parts else np.empty(0, np.int64),
        np.concatenate([part.items for part in parts]) if parts else np.empty((0, k), np.int64),
        np.concatenate([part.scores for part in parts]) if parts else np.empty((0, k), np.float32),
    )


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
    if not 1 <= k <= scorer.num_items:
        raise ArgumentError(f"{k}", where="k", expected=f"1 to {scorer.num_items}, the number of items")
    if seen is not None and seen.num_items != scorer.num_items:
        expected = f"{scorer.num_items}, the number of items of the scorer"
        raise ArgumentError(f"{seen.num_items} items", where="seen", expected=expected)
    if users is None:
        users = np.arange(getattr(scorer, "num_users", 0))
    wanted = np.asarray(users, np.int64)
    selector = _Selector(scorer.num_items, k)
    if isinstance(scorer, DotScores) and selector.by_tiles(scorer):
        yield from _by_tiles(scorer, wanted, selector, seen, banned, budget)
        return
    chunk = max(1, min(len(wanted), budget // (4 * selector.width)))
    buffer = torch.full((chunk, selector.width), -torch.inf, device=scorer.device)
    for start in range(0, len(wanted), chunk):
        block = wanted[start : start + chunk]
        padded = buffer[: len(block)]
        scores = padded[:, : scorer.num_items]
        scorer.scores(torch.from_numpy(block).to(scorer.device), scores)
        if seen is not None:
            mask_seen(padded, seen, block)
        if banned is not None:
            padded[:, torch.from_numpy(np.asarray(banned, np.int64)).to(padded.device)] = -torch.inf
        best, places = selector.select(padded)
        yield TopK(block, places.cpu().numpy(), best.cpu().numpy())


def _by_tiles(
    scorer: DotScores,
    wanted: NDArray[np.int64],
    selector: _Selector,
    seen: Masks | None,
    banned: NDArray[np.integer[Any]] | None,
    budget: int,
) -> Iterator[TopK]:
    """`iter_top_k` for a large catalogue, see `talos.evaluation.tiles`."""
    masked = None if banned is None else torch.from_numpy(np.unique(np.asarray(banned, np.int64)))
    vectors, items = scorer.user_vectors.detach(), scorer.item_vectors.detach()
    for start in range(0, len(wanted), size := tiles.users_in_a_block(scorer.num_items, budget)):
        block = wanted[start : start + size]
        pairs = (
            None if seen is None else tiles.Seen(*(part.astype(np.int64) for part in seen.pairs_of(block)))
        )
        found = tiles.best_by_tiles(vectors[block], items, selector.k + 1, pairs, masked)

        def rows(tied: Tensor, block: NDArray[np.int64] = block) -> Tensor:
            """All scores of some users of the block."""
            users = block[tied.numpy()]
            scores = torch.full((len(users), selector.width), -torch.inf)
            scorer.scores(torch.from_numpy(users), scores[:, : scorer.num_items])
            if seen is not None:
                mask_seen(scores, seen, users)
            if masked is not None:
                scores[:, masked] = -torch.inf
            return scores

        best, places = selector.order(*found, rows, at_once=max(1, budget // (16 * scorer.num_items)))
        yield TopK(block, places.numpy(), best.numpy())


def mask_seen(scores: Tensor, seen: Masks, users: NDArray[np.int64]) -> None:
    """Set the scores (B, ≥ items) of the items that each of `users` (B,) has in `seen` to -inf."""
    owner, items = seen.pairs_of(users)
    flat = torch.from_numpy(owner * scores.shape[1] + items).to(scores.device)
    scores.view(-1).index_fill_(0, flat, -torch.inf)


class _Selector:
    """Selects the top K of each row, ties by position, reading each score about once.

    A row is divided into groups. The best k+1 items lie in the k+1 groups with the highest maxima, so only those
    groups are searched. The item at rank k+1 shows whether the one at rank k is tied; only such rows need the slower
    exact order.
    """

    def __init__(self, num_items: int, k: int) -> None:
        self.num_items, self.k = num_items, k
        # items in a group; with 1 the whole row is searched
        self.depth = next((depth for depth in (64, 32) if num_items >= depth * (k + 1)), 1)
        self.groups = -(-num_items // self.depth)
        self.width = self.groups * self.depth

    def by_tiles(self, scorer: DotScores) -> bool:
        """Whether the catalogue is so large that it is to be scored in tiles."""
        vectors = scorer.item_vectors
        plain = vectors.device.type == "cpu" and vectors.dtype == torch.float32
        return plain and self.num_items >= max(tiles.TILED_FROM, 64 * (self.k + 1))

    def select(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Best scores and their positions (B, k) of scores (B, width), padding at the end."""
        wanted = min(self.k + 1, self.num_items)
        if self.depth == 1:
            best, places = scores.topk(wanted, sorted=False)
        else:
            grouped = scores.view(len(scores), self.groups, self.depth)
            group = grouped.amax(2).topk(wanted, sorted=False).indices
            # gathering whole groups takes half the time of gathering single members
            members = grouped[torch.arange(len(scores), device=scores.device).unsqueeze(1), group]
            best, within = members.flatten(1).topk(wanted, sorted=False)
            places = group.gather(1, within // self.depth) * self.depth + within % self.depth
        # a few at a time: keys are twice as wide as scores
        return self.order(best, places, scores.__getitem__, at_once=64)

    def order(
        self, best: Tensor, places: Tensor, rows: Callable[[Tensor], Tensor], *, at_once: int
    ) -> tuple[Tensor, Tensor]:
        """The k best of a few more (B, ≤ k + 1) in order, ties by position.

        `rows` gives all scores (n, width) of some rows: those whose k-th score is tied, `at_once` of them at a time.
        """
        wanted = best.shape[1]
        places, by_place = places.sort(dim=1)
        best, by_score = best.gather(1, by_place).sort(dim=1, descending=True, stable=True)
        places = places.gather(1, by_score)
        if torch.isnan(best[:, 0]).any():  # NaN sorts before everything
            raise TalosError(
                "the model gives scores that are not numbers (NaN): was it trained to divergence?"
            )
        if wanted > self.k:
            contested = (best[:, self.k - 1] == best[:, self.k]) & (best[:, self.k] > -torch.inf)
            best, places = best[:, : self.k], places[:, : self.k]
            if contested.any():
                best, places = best.clone(), places.clone()
                for row in torch.split(contested.nonzero().flatten(), at_once):
                    scores = rows(row)
                    places[row] = self._exact(scores)
                    best[row] = scores.gather(1, places[row])
        return best, places.masked_fill(best == -torch.inf, -1)

    def _exact(self, scores: Tensor) -> Tensor:
        """Positions of the best k, ties by position: score and position are combined into one integer key."""
        bits = (scores[:, : self.num_items] + 0.0).view(torch.int32)  # + 0.0 turns -0.0 into 0.0
        ascending = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()
        position = torch.arange(self.num_items - 1, -1, -1, device=scores.device)
        return self.num_items - 1 - ((ascending << 32) + position).topk(self.k).values.bitwise_and(0xFFFFFFFF)
