"""Every baseline against plain loops over users and items."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from talos.baselines import ALS, EASE, ItemKNN, Popularity, RP3beta, neighbours
from talos.data.interactions import Interactions
from talos.errors import ArgumentError, DataError
from talos.evaluation.ranking import HistoryScores, top_k

Data = Callable[..., Interactions]


@st.composite
def interactions(draw: st.DrawFn) -> Interactions:
    """Up to 7 users and 6 items; some may have nothing."""
    pairs = draw(st.sets(st.tuples(st.integers(0, 6), st.integers(0, 5)), min_size=1, max_size=25))
    users, items = zip(*sorted(pairs), strict=True)
    full = Interactions.from_ids(list(range(7)) + [0] * 6, [0] * 7 + list(range(6)))
    return Interactions.from_codes(
        np.array(users), np.array(items), user_ids=full.user_ids, item_ids=full.item_ids
    )


def users_of(data: Interactions) -> list[set[int]]:
    """The users of each item."""
    found: list[set[int]] = [set() for _ in range(data.num_items)]
    for user, item in zip(data.rows.tolist(), data.indices.tolist(), strict=True):
        found[item].add(user)
    return found


def largest(values: list[float], count: int) -> list[float]:
    """The values with all but the `count` largest set to 0; of equal ones the first stay."""
    order = sorted(range(len(values)), key=lambda place: (-values[place], place))[:count]
    return [value if place in order else 0.0 for place, value in enumerate(values)]


def naive_knn(data: Interactions, count: int, shrinkage: float) -> torch.Tensor:
    owners = users_of(data)
    found = torch.zeros(data.num_items, data.num_items)
    for item, mine in enumerate(owners):
        row = [
            len(mine & theirs) / (np.sqrt(len(mine) * len(theirs)) + shrinkage)
            if other != item and mine & theirs
            else 0.0
            for other, theirs in enumerate(owners)
        ]
        for other, value in enumerate(largest(row, count)):
            found[other, item] = value
    return found


def naive_walk(data: Interactions, alpha: float, beta: float) -> torch.Tensor:
    owners, sizes = users_of(data), data.user_degrees.tolist()
    found = torch.zeros(data.num_items, data.num_items, dtype=torch.float64)
    for start, mine in enumerate(owners):
        for end, theirs in enumerate(owners):
            for user in mine & theirs if start != end else ():
                step = (1 / len(mine)) ** alpha * (1 / sizes[user]) ** alpha
                found[start, end] += step / len(theirs) ** beta
    return found


def naive_ease(data: Interactions, regularization: float) -> torch.Tensor:
    """Each column by its own regression on the other items."""
    x = torch.from_numpy(data.to_scipy().toarray()).double()
    found = torch.zeros(data.num_items, data.num_items, dtype=torch.float64)
    for item in range(data.num_items):
        others = [other for other in range(data.num_items) if other != item]
        a = x[:, others].T @ x[:, others] + regularization * torch.eye(len(others), dtype=torch.float64)
        found[others, item] = torch.linalg.solve(a, x[:, others].T @ x[:, item])
    return found


@given(interactions(), st.integers(1, 6), st.sampled_from([0.0, 0.5, 10.0]))
def test_itemknn_is_the_cosine_of_the_nearest(data: Interactions, count: int, shrinkage: float) -> None:
    found = ItemKNN(neighbours=count, shrinkage=shrinkage).fit(data).dense()
    torch.testing.assert_close(found, naive_knn(data, count, shrinkage))


@given(interactions(), st.sampled_from([0.0, 0.5, 1.3]), st.sampled_from([0.0, 0.7]))
def test_rp3beta_is_a_walk(data: Interactions, alpha: float, beta: float) -> None:
    full = naive_walk(data, alpha, beta)
    found = RP3beta(alpha=alpha, beta=beta, neighbours=6).fit(data).dense()
    torch.testing.assert_close(found, full.float())
    for count in (1, 2):
        kept = RP3beta(alpha=alpha, beta=beta, neighbours=count).fit(data).dense()
        assert ((kept == 0) | (kept == found)).all()
        # which of two equal weights stays is a matter of rounding: their sizes are not
        best = full.float().topk(count, dim=1).values
        torch.testing.assert_close(kept.topk(count, dim=1).values, best)


@given(interactions(), st.sampled_from([0.5, 20.0]))
def test_ease_is_a_regression_on_all_other_items(data: Interactions, regularization: float) -> None:
    found = EASE(regularization=regularization).fit(data).dense()
    torch.testing.assert_close(found, naive_ease(data, regularization).float(), atol=1e-5, rtol=1e-4)


@given(interactions())
def test_scores_are_sums_over_the_history(data: Interactions) -> None:
    for baseline in (ItemKNN(shrinkage=1), EASE(regularization=2)):
        weights = baseline.fit(data)
        scores = torch.empty(data.num_users, data.num_items)
        HistoryScores(data, weights).scores(torch.arange(data.num_users), scores)
        expected = torch.from_numpy(data.to_scipy().toarray()) @ weights.dense()
        torch.testing.assert_close(scores, expected)


def test_blocks_do_not_change_the_result(random_data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    data = random_data(users=60, items=40, density=0.2)
    for baseline in (ItemKNN(neighbours=5, shrinkage=3), RP3beta(neighbours=7)):
        whole = baseline.fit(data).dense()
        monkeypatch.setattr(neighbours, "_BLOCK", 50)  # fewer terms than most single rows have
        assert torch.equal(baseline.fit(data).dense(), whole)
        monkeypatch.undo()


def test_ease_over_several_blocks_of_rows(random_data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    data = random_data(users=50, items=37, density=0.3)
    whole = EASE(regularization=5).fit(data).dense()
    monkeypatch.setattr("talos.baselines.linear._ROWS", 8)
    assert torch.equal(EASE(regularization=5).fit(data).dense(), whole)
    torch.testing.assert_close(whole, naive_ease(data, 5).float(), atol=1e-5, rtol=1e-4)


def test_als_solves_its_normal_equations(random_data: Data) -> None:
    data = random_data(users=25, items=15)
    als = ALS(dim=4, regularization=2.0, weight=5.0, sweeps=30)
    users, items = als.fit(data, torch.Generator().manual_seed(0))
    folded = als.fold_in(items, torch.tensor(data.indptr), torch.tensor(data.indices, dtype=torch.int64))
    for user in range(data.num_users):
        theirs = items[data.indices[data.indptr[user] : data.indptr[user + 1]].astype(np.int64)]
        a = items.T @ items + 2.0 * torch.eye(4) + 5.0 * theirs.T @ theirs
        torch.testing.assert_close(
            folded[user], torch.linalg.solve(a, 6.0 * theirs.sum(0)), atol=1e-4, rtol=1e-4
        )
    # after many sweeps the users of the fit are at the minimum as well
    torch.testing.assert_close(users, folded, atol=2e-2, rtol=2e-2)


def test_popularity_counts(random_data: Data) -> None:
    data = random_data()
    users, items = Popularity().fit(data)
    best = (users @ items.T)[0].sort(descending=True, stable=True).indices
    assert best.tolist() == np.argsort(-data.item_degrees, kind="stable").tolist()


def test_ease_refuses_what_does_not_fit(random_data: Data) -> None:
    data = random_data(items=20)
    with pytest.raises(DataError, match=r"20 items need a matrix of 0\.0 GB; expected at most 1e-06 GB"):
        EASE(memory_gb=1e-6).fit(data)


@pytest.mark.parametrize(
    ("make", "where"),
    [
        (lambda: ItemKNN(neighbours=0), "neighbours"),
        (lambda: ItemKNN(shrinkage=-1), "shrinkage"),
        (lambda: RP3beta(alpha=float("nan")), "alpha"),
        (lambda: RP3beta(beta="much"), "beta"),  # type: ignore[arg-type]
        (lambda: EASE(regularization=0), "regularization"),
        (lambda: ALS(dim=0), "dim"),
    ],
)
def test_options_are_checked(make: Callable[[], object], where: str) -> None:
    with pytest.raises(ArgumentError, match=where):
        make()


def test_an_empty_history_scores_nothing(random_data: Data) -> None:
    data = random_data()
    nobody = data.where(data.rows != 0)
    for baseline in (ItemKNN(), RP3beta(), EASE()):
        lists = top_k(HistoryScores(nobody, baseline.fit(data)), [0], k=3)
        assert lists.items.tolist() == [[0, 1, 2]]
        assert not lists.scores.any()


@pytest.mark.parametrize("kind", [ItemKNN, RP3beta])
def test_neighbours_refuse_a_user_with_too_many_items(kind: type[ItemKNN] | type[RP3beta]) -> None:
    """A bot makes the product quadratic: 80,000 events took two minutes."""
    data = Interactions.from_ids(["bot"] * 50 + ["ann", "bob"], [*range(50), 3, 4])
    with pytest.raises(
        DataError, match=r"user 'bot' alone, with 50 events, has 2.5e\+03.*at most 2e\+03 pairs"
    ):
        kind(max_pairs=2000).fit(data)
    kind(max_pairs=2503).fit(data)
    with pytest.raises(ArgumentError, match="max_pairs"):
        kind(max_pairs=0)
