from __future__ import annotations

import numpy as np
import pytest
import torch

from talos.data.interactions import Interactions
from talos.errors import TalosError
from talos.evaluation import tiles
from talos.evaluation.ranking import DotScores, top_k


@pytest.fixture
def small_tiles(monkeypatch):
    """Tiles of 64 items in groups of 16, from the smallest catalogue on."""
    monkeypatch.setattr(tiles, "_TILE", 64)
    monkeypatch.setattr(tiles, "_STRIDE", 4)
    monkeypatch.setattr(tiles, "TILED_FROM", 1)


def vectors(users: int, items: int, *, whole: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(users * items)
    drawn = torch.randn(users, 6, generator=rng), torch.randn(items, 6, generator=rng)
    return tuple(part.round() for part in drawn) if whole else drawn  # whole numbers: many ties


def naive(users, items, k, seen=None, banned=()) -> list[list[int]]:
    """Sort all scores of each user, ties by position."""
    scores = users @ items.T
    found = []
    for row, values in enumerate(scores.tolist()):
        left = set(range(len(items))) - set(banned) - (seen[row] if seen else set())
        best = sorted(left, key=lambda item: (-values[item], item))[:k]
        found.append(best + [-1] * (k - len(best)))
    return found


@pytest.mark.parametrize("items", [256, 300, 513])
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_lists_are_those_of_a_sort(small_tiles, items, whole, masked):
    users = 37
    scorer = DotScores(*vectors(users, items, whole=whole))
    rng = np.random.default_rng(items)
    pairs = np.unique(rng.integers(0, users * items, 3000))
    seen = Interactions.from_codes(
        pairs // items, pairs % items,
        user_ids=Interactions.from_ids(range(users), range(users)).user_ids,
        item_ids=Interactions.from_ids(range(items), range(items)).item_ids,
    )  # fmt: skip
    owned = [set(seen.indices[seen.indptr[u] : seen.indptr[u + 1]].tolist()) for u in range(users)]
    banned = rng.choice(items, 40)
    how = {"seen": seen, "banned": banned} if masked else {}
    expected = naive(
        scorer.user_vectors, scorer.item_vectors, 3, owned if masked else None, banned if masked else ()
    )
    for budget in (1, 5000, 1 << 20):
        found = top_k(scorer, k=3, budget=budget, **how)
        assert found.items.tolist() == expected
    some = np.array([5, 2, 30])
    assert top_k(scorer, some, k=3, **how).items.tolist() == [expected[user] for user in some]


def test_who_has_nearly_everything_gets_a_short_list(small_tiles):
    scorer = DotScores(*vectors(2, 256))
    owned = [item for item in range(256) if item not in (7, 200)]
    seen = Interactions.from_codes(
        np.zeros(len(owned), np.int32), np.array(owned, np.int32),
        user_ids=Interactions.from_ids([0, 1], [0, 1]).user_ids,
        item_ids=Interactions.from_ids(range(256), range(256)).item_ids,
    )  # fmt: skip
    found = top_k(scorer, k=3, seen=seen)
    assert set(found.items[0].tolist()) == {7, 200, -1}
    assert found.scores[0, 2] == -np.inf


def test_scores_that_are_no_numbers_are_an_error(small_tiles):
    users, items = vectors(3, 256)
    users[1] = torch.nan
    with pytest.raises(TalosError, match="NaN"):
        top_k(DotScores(users, items), k=3)
