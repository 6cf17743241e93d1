"""Top-K against a full stable sort: any shape, many ties, masks, short lists."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from talos.data.interactions import Interactions
from talos.data.vocabulary import Vocabulary
from talos.errors import ArgumentError, TalosError
from talos.evaluation.ranking import DotScores, FixedScores, TopK, iter_top_k, top_k


class Table:
    """Given scores, as a scorer."""

    device = torch.device("cpu")

    def __init__(self, table: torch.Tensor) -> None:
        self.table = table
        self.num_users, self.num_items = table.shape

    def scores(self, users: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(self.table[users])


def interactions(users: int, items: int, mask: np.ndarray) -> Interactions:
    rows, columns = np.nonzero(mask)
    ids = Vocabulary.of(np.arange(users)), Vocabulary.of(np.arange(items))
    return Interactions.from_codes(rows, columns, user_ids=ids[0], item_ids=ids[1])


def naive(scores: torch.Tensor, mask: np.ndarray, k: int) -> list[list[int]]:
    lists = []
    for row, seen in zip(scores.tolist(), mask, strict=True):
        left = sorted((i for i in range(len(row)) if not seen[i]), key=lambda i: (-row[i], i))[:k]
        lists.append(left + [-1] * (k - len(left)))
    return lists


@given(
    st.integers(0, 10_000),
    st.integers(1, 7),
    st.sampled_from([1, 3, 40, 300]),
    st.sampled_from([1, 2, 5, 40]),
    st.sampled_from([2, 5, 1000]),
)
def test_against_a_naive_sort(seed: int, users: int, items: int, k: int, distinct: int) -> None:
    """`distinct` few: the k-th place is contested nearly everywhere, also across group borders."""
    rng = np.random.default_rng(seed)
    k = min(k, items)
    scores = torch.from_numpy(rng.integers(-distinct, distinct, (users, items)) / 7).float()
    mask = rng.random((users, items)) < rng.choice([0, 0.3, 1])
    got = top_k(Table(scores), k=k, seen=interactions(users, items, mask), budget=4 * items * 2)
    assert got.items.tolist() == naive(scores, mask, k)
    filled = got.items >= 0
    assert np.array_equal(
        got.scores[filled], np.take_along_axis(scores.numpy(), np.maximum(got.items, 0), 1)[filled]
    )
    assert np.isneginf(got.scores[~filled]).all()


def test_signed_zeros_are_equal() -> None:
    assert top_k(Table(torch.tensor([[-0.0, 0.0, -0.0]])), k=2).items.tolist() == [[0, 1]]


def test_the_result_does_not_depend_on_the_budget() -> None:
    generator = torch.Generator().manual_seed(0)
    scorer = DotScores(torch.randn(50, 8, generator=generator), torch.randn(900, 8, generator=generator))
    whole = top_k(scorer, k=10)
    pieces = list(iter_top_k(scorer, k=10, budget=960 * 4 * 7))
    assert len(pieces) == 8
    assert all(isinstance(piece, TopK) for piece in pieces)
    assert np.array_equal(whole.items, np.concatenate([piece.items for piece in pieces]))


def test_no_users_and_chosen_users() -> None:
    scorer = DotScores(torch.eye(3), torch.eye(3))
    assert top_k(scorer, [], k=2).items.shape == (0, 2)
    assert top_k(scorer, [2, 0, 2], k=1).items.tolist() == [[2], [0], [2]]


def test_memory_stays_within_the_budget() -> None:
    """No tensor of users × items: the buffer is a few rows, whatever the number of users."""
    largest = 0

    class Watching(FixedScores):
        def scores(self, users: torch.Tensor, out: torch.Tensor) -> None:
            nonlocal largest
            largest = max(largest, out.untyped_storage().nbytes())
            super().scores(users, out)

    top_k(Watching(torch.arange(1000.0)), list(range(500)), k=5, budget=100_000)
    assert 0 < largest <= 110_000


@pytest.mark.parametrize("k", [0, 4])
def test_k_out_of_range(k: int) -> None:
    with pytest.raises(ArgumentError, match=f"k: {k}; expected 1 to 3"):
        top_k(FixedScores(torch.ones(3)), [0], k=k)


def test_bad_vectors_and_scores() -> None:
    with pytest.raises(ArgumentError, match="user_vectors, item_vectors"):
        DotScores(torch.ones(2, 3), torch.ones(2, 4))
    with pytest.raises(ArgumentError, match="seen: 2 items; expected 3"):
        top_k(FixedScores(torch.ones(3)), [0], k=1, seen=Interactions.from_ids([1, 1], [1, 2]))
    with pytest.raises(TalosError, match="not numbers"):
        top_k(FixedScores(torch.tensor([1.0, torch.nan])), [0], k=1)
