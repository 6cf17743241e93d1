from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from talos.data.interactions import Interactions
from talos.evaluation.popularity import PRIORS, PriorScores, best_prior, popularity_scores
from talos.evaluation.ranking import HistoryScores, top_k


def scores_of(made: PriorScores, vectors: torch.Tensor, events: list[int]) -> torch.Tensor:
    out = torch.empty(len(vectors), len(made._items))
    made.of(vectors, np.array(events)).scores(torch.arange(len(vectors)), out)
    return out


@given(st.integers(0, 2**32 - 1), st.floats(0, 64))
@settings(max_examples=40, deadline=None)
def test_scores_are_those_of_a_naive_loop(seed: int, prior: float) -> None:
    rng = np.random.default_rng(seed)
    users, items = (
        torch.tensor(rng.normal(size=(4, 3))).float(),
        torch.tensor(rng.normal(size=(6, 3))).float(),
    )
    degrees, events = rng.integers(0, 4, 6), rng.integers(0, 3, 4)
    degrees[0] = 3
    longest = float(users.norm(dim=1).max())
    found = scores_of(PriorScores(items, degrees, prior=prior, longest=longest), users, events.tolist())
    for u, n in enumerate(events.tolist()):
        for i, count in enumerate(degrees.tolist()):
            popular = np.log1p(count) / np.log1p(3)
            if n == 0:
                assert found[u, i] == pytest.approx(popular, abs=1e-6)
            elif count:
                expected = float(users[u] @ items[i]) + prior / n * popular
                assert float(found[u, i]) == pytest.approx(expected, rel=1e-4, abs=1e-4)
        if n and prior == 0:
            known = found[u, torch.from_numpy(degrees > 0)]
            assert (found[u, torch.from_numpy(degrees == 0)] < known.min()).all()


def test_without_prior_and_with_events_the_vectors_are_scored_as_they_are() -> None:
    users, items = torch.eye(2), torch.eye(2)
    scorer = PriorScores(items, np.array([1, 2])).of(users, np.array([1, 1]))
    assert scorer.user_vectors is users
    assert scorer.item_vectors is items


def test_items_without_events_are_last_for_everybody() -> None:
    """Also where their random vector is exactly that of the user."""
    vectors = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    for prior in (0.0, 1.0):
        scorer = PriorScores(vectors, np.array([0, 1, 2]), prior=prior).of(vectors[:1], np.array([3]))
        assert top_k(scorer, k=3).items.tolist()[0][-1] == 0


def test_a_baseline_of_weights_falls_back_too() -> None:
    from talos.baselines import ItemWeights

    data = Interactions.from_ids([1, 1, 2, 3], [7, 8, 8, 9])
    histories = data.where(data.rows < 1)
    weights = ItemWeights(torch.tensor([[0.0, -1.0, 0.0], [-2.0, 0.0, 0.0], [0.0, 0.0, 0.0]]))
    scorer = HistoryScores(histories, weights, popularity_scores(np.array([1, 2, 0])))
    assert top_k(scorer, k=3).items.tolist() == [[1, 0, 2], [1, 0, 2], [1, 0, 2]]


def test_the_prior_that_validation_prefers() -> None:
    """Vectors that say nothing: the more popularity, the better; vectors that say all: none of it."""
    rng = np.random.default_rng(0)
    # 200 users with two of five popular items each, and 25 with one of the others
    pairs = [(user, item) for user in range(200) for item in rng.choice(5, 2, replace=False)]
    pairs += [(200 + item, 5 + item) for item in range(25)]
    data = Interactions.from_ids(*map(list, zip(*pairs, strict=True)))
    last = np.zeros(len(data), bool)
    last[data.indptr[1:201] - 1] = True
    train, valid = data.where(~last), data.where(last)
    how: dict[str, Any] = {"item_degrees": train.item_degrees, "k": 3, "metric": "recall"}
    noise = (torch.tensor(rng.normal(size=(count, 8))).float() for count in (225, 30))
    assert best_prior(*noise, train, valid, **how) >= 4
    right = torch.zeros(225, 30)
    right[torch.tensor(valid.rows), torch.tensor(valid.indices)] = 1.0
    assert best_prior(right, torch.eye(30), train, valid, **how) in (PRIORS[0], 0.0)
