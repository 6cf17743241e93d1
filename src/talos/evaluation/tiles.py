"""Top-K lists out of large catalogues: the items are scored tile by tile, and no row of scores is ever whole.

Of each tile only the maximum of every group of sixteen items is kept. The best K items of a user lie in the K groups
with the highest maxima, whose items are then scored once more. So a block of users reads the items once, where whole
rows of scores within the same memory would be those of a handful of users, each of which reads all items.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["TILED_FROM", "Seen", "best_by_tiles", "users_in_a_block"]

# Items from which tiles are used: with fewer, rows of enough users fit into the budget.
TILED_FROM = 1 << 17
_GROUP = 16
_TILE = 1 << 13
# The items of a group are this far apart: the maxima of a tile are then those of whole rows, many at a time.
_STRIDE = _TILE // _GROUP
# Users that share a pass over the items: enough that reading these costs little.
_USERS = 512


@dataclass(frozen=True)
class Seen:
    """Masked pairs: for each, the position of its user in the block, and the item."""

    owner: NDArray[np.int64]
    items: NDArray[np.int64]


def users_in_a_block(num_items: int, budget: int) -> int:
    """How many users share a pass over the items: as many as have their maxima in half of `budget`, up to 512.

    >>> users_in_a_block(1_000_000, 64 << 20), users_in_a_block(10**8, 64 << 20)
    (133, 1)
    """
    return max(1, min(_USERS, budget // 2 // (4 * -(-num_items // _TILE) * _STRIDE)))


def best_by_tiles(
    users: Tensor, items: Tensor, wanted: int, seen: Seen | None, banned: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The best `wanted` scores of each user and the items that have them, in any order; (B, wanted) both.

    Args:
        users: (B, d).
        items: (I, d), with I at least 16 times `wanted`.
        wanted: how many.
        seen: pairs that are masked; their score is -inf.
        banned: items that are masked for everybody, ascending.
    """
    tiles = -(-len(items) // _TILE)
    maxima = users.new_empty(len(users), tiles * _STRIDE)
    scores = users.new_empty(len(users), _TILE)
    by_item = None if seen is None else _sorted_by_item(seen)
    for tile in range(tiles):
        start, stop = tile * _TILE, min((tile + 1) * _TILE, len(items))
        if stop - start == _TILE:
            torch.mm(users, items[start:stop].T, out=scores)
        else:
            scores.fill_(-torch.inf)[:, : stop - start] = users @ items[start:stop].T
        if by_item is not None:
            low, high = np.searchsorted(by_item.items, (start, stop))
            places = by_item.owner[low:high] * _TILE + (by_item.items[low:high] - start)
            scores.view(-1).index_fill_(0, torch.from_numpy(places), -torch.inf)
        if banned is not None:
            low, high = torch.searchsorted(banned, torch.tensor([start, stop])).tolist()
            scores[:, banned[low:high] - start] = -torch.inf
        maxima[:, tile * _STRIDE : (tile + 1) * _STRIDE] = scores.view(-1, _GROUP, _STRIDE).amax(1)
    chosen = maxima.topk(wanted, sorted=False).indices
    return _best_within(users, items, chosen, wanted, seen, banned)


def _sorted_by_item(seen: Seen) -> Seen:
    order = np.argsort(seen.items, kind="stable")
    return Seen(seen.owner[order], seen.items[order])


def _best_within(
    users: Tensor, items: Tensor, groups: Tensor, wanted: int, seen: Seen | None, banned: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The best items of each user within the user's own groups (B, wanted)."""
    first = groups // _STRIDE * _TILE + groups % _STRIDE
    members = (first.unsqueeze(-1) + _STRIDE * torch.arange(_GROUP)).flatten(1)  # (B, wanted · 16)
    outside = members >= len(items)
    members = members.clamp_(max=len(items) - 1)
    scores = users.new_empty(members.shape)
    # the vectors of a few users' candidates at a time
    for here in _slices(len(users), max(1, (1 << 22) // (members.shape[1] * users.shape[1]))):
        torch.bmm(items[members[here]], users[here].unsqueeze(-1), out=scores[here].unsqueeze(-1))
    scores[outside] = -torch.inf
    if seen is not None and len(seen.owner):
        owner = torch.arange(len(users)).unsqueeze(-1)
        scores[
            _contains(torch.from_numpy(seen.owner * len(items) + seen.items), owner * len(items) + members)
        ] = -torch.inf
    if banned is not None and len(banned):
        scores[_contains(banned, members)] = -torch.inf
    best, within = scores.topk(wanted, sorted=False)
    return best, members.gather(1, within)


def _contains(keys: Tensor, asked: Tensor) -> Tensor:
    """For each of `asked`, whether it is among the ascending `keys`."""
    places = torch.searchsorted(keys, asked).clamp_(max=len(keys) - 1)
    return keys[places] == asked


def _slices(count: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, count)) for start in range(0, count, size))
