"""The K largest scores of each row, found by the maxima of buckets of items.

The K best items of a row lie in at most K buckets, and these have the K largest maxima. So a selection reads each score
once, for the maxima, and then looks at the items of K buckets alone. Scores come from one of two sources:

- rows of scores that are in memory: `largest` (values in any order) and `best_of_rows` (in order, with positions);
- products of user and item vectors: `best_of_products`, tile by tile of a large catalogue. No row of scores is whole.

Orders are deterministic: equal scores are ordered by position.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from talos.errors import TalosError

__all__ = ["best_of_products", "best_of_rows", "largest", "users_at_once", "uses_tiles"]

# Numbers that a step may hold: 16 MB in float32.
_KEPT = 1 << 22
# Items from which tiles are used. With fewer items, whole rows of many users fit into memory.
TILED_FROM = 1 << 17
# Items in a tile, and in a bucket of a tile.
_TILE, _BUCKET = 1 << 13, 16
# Users that share a pass over the tiles: enough that reading the items costs little.
_MOST_USERS = 512


def largest(scores: Tensor, k: int) -> Tensor:
    """The K largest of each row (B, n) in any order, (B, K).

    >>> largest(torch.arange(100.0).unsqueeze(0), 1)
    tensor([[99.]])
    """
    return _select_from_rows(scores, k)[0]


def best_of_rows(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The K best scores of each row (B, n) and their positions, best first, ties by position; (B, K) both.

    A score of -inf means that the item is masked: its position is given as -1. K is at most n. NaN is an error.

    >>> best_of_rows(torch.tensor([[1.0, 3.0, 3.0, -torch.inf]]), 2)[1]
    tensor([[1, 2]])
    """
    num_items = scores.shape[1]
    found = _select_from_rows(scores, min(k + 1, num_items))
    return _in_order(*found, k, num_items, scores.__getitem__)


def uses_tiles(item_vectors: Tensor, k: int) -> bool:
    """Whether these items (I, d) are so many that `best_of_products` is the faster way to the K best."""
    plain = item_vectors.device.type == "cpu" and item_vectors.dtype == torch.float32
    return plain and len(item_vectors) >= max(TILED_FROM, 4 * _BUCKET * (k + 1))


def users_at_once(num_items: int, budget: int) -> int:
    """How many users `best_of_products` should get: their maxima take half of `budget` bytes, up to 512 users.

    >>> users_at_once(1_000_000, 64 << 20), users_at_once(10**8, 64 << 20)
    (133, 1)
    """
    maxima = -(-num_items // _TILE) * (_TILE // _BUCKET)
    return max(1, min(_MOST_USERS, budget // 2 // (4 * maxima)))


def best_of_products(
    users: Tensor,
    items: Tensor,
    k: int,
    *,
    masked: Tensor,
    banned: Tensor,
    rows: Callable[[Tensor], Tensor],
) -> tuple[Tensor, Tensor]:
    """`best_of_rows` of `users @ items.T` without whole rows: a tile of items is scored, and its maxima are kept.

    All users share one pass over the items. The items of the best buckets are then scored once more.

    Args:
        users: (B, d), float32.
        items: (I, d), with I at least 16 (K + 1).
        k: K.
        masked: pairs that are masked, each as (row of the user) · I + item.
        banned: items that are masked for all users.
        rows: all scores (n, I), masked, of some rows (n,) of `users`; called where the K-th score is tied.
    """
    num_items, stride = len(items), _TILE // _BUCKET
    tiles = -(-num_items // _TILE)
    masked = masked.sort().values
    row, item = masked // num_items, masked % num_items
    tile_of = item // _TILE
    pairs = torch.split(tile_of.argsort(), tile_of.bincount(minlength=tiles).tolist())
    barred = torch.zeros(num_items, dtype=torch.bool).index_fill_(0, banned, True)
    maxima = users.new_empty(len(users), tiles, stride)
    scores = users.new_empty(len(users), _TILE)
    for tile, some in enumerate(pairs):
        here = slice(tile * _TILE, min((tile + 1) * _TILE, num_items))
        if here.stop == num_items:  # the last tile may be shorter
            scores.fill_(-torch.inf)
        inside = scores[:, : here.stop - here.start]
        torch.mm(users, items[here].T, out=inside)
        if len(some):
            inside[row[some], item[some] - here.start] = -torch.inf
        if len(banned):
            inside.index_fill_(1, barred[here].nonzero().flatten(), -torch.inf)
        torch.amax(scores.view(-1, _BUCKET, stride), 1, out=maxima[:, tile])
    known = F.pad(masked, (0, 1), value=len(users) * num_items)  # the last is above every key below

    def score(members: Tensor) -> Tensor:
        existing = members.clamp(max=num_items - 1)
        # gather the vectors of a few users' items at a time
        few = max(1, _KEPT // (members.shape[1] * users.shape[1]))
        found = users.new_empty(members.shape)
        for start in range(0, len(users), few):
            some = slice(start, start + few)
            torch.bmm(items[existing[some]], users[some].unsqueeze(-1), out=found[some].unsqueeze(-1))
        keys = torch.arange(len(users)).unsqueeze(-1) * num_items + existing
        hidden = (known[torch.searchsorted(known, keys)] == keys) | barred[existing] | (members >= num_items)
        return found.masked_fill_(hidden, -torch.inf)

    none = torch.empty(0, dtype=torch.int64)
    found = _select(maxima.flatten(1), _BUCKET, stride, none, k + 1, score)
    return _in_order(*found, k, num_items, rows)


def _select_from_rows(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest of each row (B, n) and their positions, in any order."""
    num_items = scores.shape[1]
    if num_items < 32 * count:  # the buckets would be most of the row
        return scores.topk(count, sorted=False)
    # `torch.topk` is faster if it selects at most one of 64, so prefer the largest buckets that leave enough maxima
    size = next((size for size in (16, 8, 4) if num_items >= 64 * size * count), 8)
    stride = num_items // size
    rest = torch.arange(stride * size, num_items, device=scores.device)
    maxima = scores[:, : stride * size].view(len(scores), size, stride).amax(1)
    return _select(maxima, size, stride, rest, count, partial(scores.gather, 1))


def _select(
    maxima: Tensor, size: int, stride: int, rest: Tensor, count: int, score: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """The `count` largest of each row and their positions, in any order.

    Args:
        maxima: (B, buckets), tile by tile.
        size: items in a bucket. They are `stride` apart, so that the maxima of a tile are those of `size` long rows,
            which vectorises.
        stride: buckets in a tile.
        rest: positions that are in no bucket.
        count: how many to select.
        score: the scores of positions (B, n).
    """
    buckets = maxima.topk(count, sorted=False).indices
    first = buckets // stride * (stride * size) + buckets % stride
    members = first.unsqueeze(-1) + stride * torch.arange(size, device=first.device)
    members = torch.cat([members.flatten(1), rest.expand(len(first), -1)], 1)
    best, within = score(members).topk(count, sorted=False)
    return best, members.gather(1, within)


def _in_order(
    best: Tensor, positions: Tensor, k: int, num_items: int, rows: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """The K best of K + 1 scores (of K, if there are no more items) in order, ties by position.

    The score at rank K + 1 shows whether the one at rank K is tied. Then other items may have the same score, and all
    scores of that row are needed: `rows` gives them.
    """
    positions, by_position = positions.sort(dim=1)
    best, by_score = best.gather(1, by_position).sort(dim=1, descending=True, stable=True)
    positions = positions.gather(1, by_score)
    if torch.isnan(best[:, 0]).any():  # NaN sorts before everything
        raise TalosError("the model gives scores that are not numbers (NaN): was it trained to divergence?")
    tied = (best[:, k - 1] == best[:, -1]) & (best[:, -1] > -torch.inf) & (best.shape[1] > k)
    best, positions = best[:, :k].contiguous(), positions[:, :k].contiguous()
    if tied.any():
        for some in torch.split(tied.nonzero().flatten(), max(1, min(64, _KEPT // num_items))):
            scores = rows(some)
            positions[some] = _exact_order(scores, k)
            best[some] = scores.gather(1, positions[some])
    return best, positions.masked_fill(best == -torch.inf, -1)


def _exact_order(scores: Tensor, k: int) -> Tensor:
    """Positions of the K best (B, K), ties by position: score and position are combined into one integer key."""
    bits = (scores + 0.0).view(torch.int32)  # + 0.0 turns -0.0 into 0.0
    ascending = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()
    last = scores.shape[1] - 1
    from_the_end = torch.arange(last, -1, -1, device=scores.device)
    return last - ((ascending << 32) + from_the_end).topk(k).values.bitwise_and(0xFFFFFFFF)
