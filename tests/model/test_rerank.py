"""Diversity and popularity against naive loops; filters, candidates and exclusions together with them."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest
import torch
import torch.nn.functional as F

from talos.data.interactions import Interactions
from talos.errors import ArgumentError
from talos.evaluation.ranking import DotScores, TopK, top_k
from talos.model import query
from talos.model.model import Model, Vectors
from talos.model.recommender import Recommender

USERS, ITEMS, DIM = 12, 150, 6


@pytest.fixture(scope="module", params=["unit", "any"])
def model(request: pytest.FixtureRequest) -> Recommender:
    """Random vectors, of length one and of any length."""
    generator = torch.Generator().manual_seed(3)
    users, items = torch.randn(USERS, DIM, generator=generator), torch.randn(ITEMS, DIM, generator=generator)
    if request.param == "unit":
        users, items = F.normalize(users), F.normalize(items)
    rng = np.random.default_rng(0)
    pairs = np.argwhere(rng.random((USERS, ITEMS)) < rng.random(ITEMS) * 0.4)
    pairs = np.concatenate([pairs, np.stack([np.arange(ITEMS) % USERS, np.arange(ITEMS)], 1)])
    train = Interactions.from_ids(pairs[:, 0], pairs[:, 1])
    recommender = Recommender(k=7)
    recommender.model = Model(
        scored_by=Vectors(users, items), train=train,
        attributes=pl.DataFrame({"color": ["red", "green", "blue"] * (ITEMS // 3), "size": range(ITEMS)}),
    )  # fmt: skip
    return recommender


def naive(
    model: Recommender, user: int, k: int, *, diversity: float, popularity: float, banned: set[int]
) -> list[int]:
    """The list of a user, item by item in plain Python."""
    held = model.fitted_model()
    seen = set(held.train.items_of(user).to_list())
    vectors = held.vectors.items.double().tolist()
    me = held.vectors.users[user].double().tolist()
    scores = [math.fsum(a * b for a, b in zip(me, v, strict=True)) for v in vectors]
    if popularity:
        low, high = min(scores), max(scores)
        counts = [math.log1p(int(n)) for n in held.train.item_degrees]
        scores = [
            (1 - popularity) * (s - low) / (high - low) + popularity * n / max(counts)
            for s, n in zip(scores, counts, strict=True)
        ]
    left = [item for item in range(ITEMS) if item not in seen and item not in banned]
    left.sort(key=lambda item: (-scores[item], item))
    if not diversity:
        return left[:k]
    pool = left[: max(5 * k, 100)]
    if not pool:
        return []
    high, low = scores[pool[0]], scores[pool[-1]]

    def cosine(a: int, b: int) -> float:
        product = math.fsum(x * y for x, y in zip(vectors[a], vectors[b], strict=True))
        return product / math.hypot(*vectors[a]) / math.hypot(*vectors[b])

    chosen: list[int] = [pool.pop(0)]
    while pool and len(chosen) < k:
        best = max(
            pool,
            key=lambda item: (
                (1 - diversity) * (scores[item] - low) / max(high - low, 1e-12)
                - diversity * max(cosine(item, other) for other in chosen)
            ),
        )
        pool.remove(best)
        chosen.append(best)
    return chosen


@pytest.mark.parametrize("diversity", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("popularity", [0.0, 0.4])
def test_lists_are_those_of_a_plain_loop(model: Recommender, diversity: float, popularity: float) -> None:
    banned = {3, 4, 50}
    lists = model.recommend(k=7, diversity=diversity, popularity=popularity, exclude=sorted(banned))
    for user in range(USERS):
        mine = lists.filter(pl.col("user_id") == user)["item_id"].to_list()
        assert mine == naive(model, user, 7, diversity=diversity, popularity=popularity, banned=banned)


def test_the_ends_of_the_scales(model: Recommender) -> None:
    held = model.fitted_model()
    plain = model.recommend(k=5)
    assert model.recommend(k=5, diversity=0.0, popularity=0.0).equals(plain)
    popular = model.recommend([0], k=ITEMS, popularity=1.0, filter_seen=False)["item_id"].to_list()
    degrees = held.train.item_degrees
    assert popular == sorted(range(ITEMS), key=lambda item: (-degrees[item], item))
    spread = model.recommend(k=5, diversity=1.0)
    assert spread.filter(pl.col("rank") == 1).equals(plain.filter(pl.col("rank") == 1))


def test_diversity_lowers_the_similarity_of_a_list(model: Recommender) -> None:
    vectors = F.normalize(model.fitted_model().vectors.items)

    def similarity(diversity: float) -> float:
        lists = model.recommend(k=8, diversity=diversity)["item_id"].to_torch().reshape(USERS, 8)
        products = [vectors[row] @ vectors[row].T for row in lists]
        return float(torch.stack([p.sum() - p.trace() for p in products]).mean()) / 56

    values = [similarity(share) for share in (0.0, 0.3, 0.7)]
    assert values == sorted(values, reverse=True)
    assert values[0] - values[-1] > 0.1


def test_filters_work_with_everything_else(model: Recommender) -> None:
    wanted = {
        "must": {"color": ["red", "blue"], "size": {"gte": 30, "lt": 120}},
        "must_not": {"color": "blue"},
    }
    right = {item for item in range(30, 120) if item % 3 == 0}
    lists = model.recommend(k=10, filter=wanted, diversity=0.5, popularity=0.2)
    assert set(lists["item_id"]) <= right
    banned = set(range(ITEMS)) - right
    for user in range(USERS):
        mine = lists.filter(pl.col("user_id") == user)["item_id"].to_list()
        assert mine == naive(model, user, 10, diversity=0.5, popularity=0.2, banned=banned)
    visitor = model.recommend(history=[33, 36], k=5, filter=wanted, diversity=0.5)
    assert set(visitor["item_id"]) <= right - {33, 36}
    few = model.recommend([1], k=10, candidates=[33, 34], filter=wanted, filter_seen=False, diversity=1.0)
    assert few["item_id"].to_list() == [33]
    assert len(model.recommend([1], k=10, filter={"must": {"color": "pink"}})) == 0


def test_short_pools_and_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = torch.eye(4)
    pool = TopK(
        np.array([0, 1]),
        np.array([[0, 1, 2], [3, -1, -1]]),
        np.array([[3.0, 2.0, 1.0], [1.0, -np.inf, -np.inf]], np.float32),
    )
    whole = query.diversify(pool, vectors, k=3, diversity=0.5)
    assert whole.items.tolist() == [[0, 1, 2], [3, -1, -1]]
    assert whole.scores[1, 1] == -np.inf
    scorer = DotScores(torch.randn(9, 4, generator=torch.Generator().manual_seed(0)), vectors)
    wide = top_k(scorer, k=4)
    at_once = query.diversify(wide, vectors, k=3, diversity=0.5)
    monkeypatch.setattr(query, "DEFAULT_BUDGET", 1)
    assert np.array_equal(query.diversify(wide, vectors, k=3, diversity=0.5).items, at_once.items)


@pytest.mark.parametrize("name", ["diversity", "popularity"])
@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan, "1", True])
def test_shares_are_checked(model: Recommender, name: str, value: object) -> None:
    with pytest.raises(ArgumentError, match=f"{name}: .* expected a number from 0 to 1"):
        model.recommend([0], **{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (
            {"must": {"colour": "red"}},
            r"filter.must.colour: the items have no such attribute \(did you mean 'color'",
        ),
        ({"may": {"color": "red"}}, "filter: 'may'"),
        ({"must": ["red"]}, "filter.must: .*column and condition pairs"),
        ({"must": {"size": "red"}}, "filter.must.size: 'red'; expected a number"),
        ({"must": {"size": {"over": 3}}}, "filter.must.size: .* expected some of gt, gte, lt, lte"),
        ({"must": {"color": {"gt": 3}}}, "filter.must.color: a range of text"),
        ({"must": {"color": [["red"]]}}, "filter.must.color: .* expected text"),
        (["red"], "filter: "),
    ],
)
def test_bad_filters_name_their_place(model: Recommender, wanted: object, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        model.recommend([0], filter=wanted)  # type: ignore[arg-type]
