from __future__ import annotations

import numpy as np
import pytest

from talos.data.datasets import synthetic
from talos.data.interactions import Interactions
from talos.errors import ArgumentError


def test_the_same_seed_gives_the_same_data():
    first, again, other = (synthetic(users=80, items=60, interactions=900, seed=s) for s in (3, 3, 4))
    assert first.to_polars().equals(again.to_polars())
    assert not first.to_polars().equals(other.to_polars())


@pytest.mark.parametrize(
    ("users", "items", "interactions"),
    [(1, 1, 1), (3, 1000, 2900), (1000, 3, 5), (50, 40, 2000), (50, 40, 1999), (300, 200, 6000)],
)
def test_exactly_what_was_asked_for(users, items, interactions):
    data = synthetic(users=users, items=items, interactions=interactions, skew=1.5, drift=0.5)
    assert (data.num_users, data.num_items, len(data)) == (users, items, interactions)
    assert data.provenance.duplicates == 0
    assert interactions < users or data.user_degrees.min() >= 1
    assert data.timestamps.dtype == np.int64
    assert np.ptp(data.timestamps) < 365 * 86_400


def test_string_ids_stand_in_order():
    data = synthetic(users=120, items=11, interactions=300, strings=True)
    assert data.user_ids.ids[:2].to_list() == ["u000", "u001"]
    assert data.item_ids.ids[-1] == "i10"
    assert data.user_ids.ids.is_sorted()


def test_skew_makes_popularity_uneven():
    even, steep = (
        synthetic(interactions=10_000, skew=skew).describe().popularity_gini for skew in (0.0, 1.5)
    )
    assert steep > even + 0.1


def test_planted_preferences_are_of_low_rank():
    def energy(data) -> float:
        """Share of the spread in 4 dimensions, once popularity and activity are taken out."""
        dense = data.to_scipy().toarray()
        expected = np.outer(data.user_degrees, data.item_degrees) / len(data)
        spectrum = np.linalg.svd((dense - expected) / np.sqrt(expected + 1), compute_uv=False) ** 2
        return float(spectrum[:4].sum() / spectrum.sum())

    planted = synthetic(users=300, items=200, interactions=6000, dim=4, skew=0.0)
    rng = np.random.default_rng(0)
    shuffled = planted.to_polars().with_columns(item_id=rng.permutation(planted.indices))
    noise = Interactions.from_ids(shuffled["user_id"], shuffled["item_id"])
    assert energy(planted) > 2 * energy(noise)


def test_drift_changes_what_is_popular():
    def shift(drift: float) -> float:
        data = synthetic(users=500, items=200, interactions=20_000, skew=1.0, drift=drift, seed=5)
        late = data.timestamps > np.median(data.timestamps)
        counts = [np.bincount(data.indices[part], minlength=200) / part.sum() for part in (late, ~late)]
        return float(np.abs(counts[0] - counts[1]).sum())

    assert shift(1.0) > 2 * shift(0.0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"users": 0},
        {"items": -1},
        {"interactions": 0},
        {"users": 3, "items": 3, "interactions": 10},
        {"users": 2**30, "items": 2**30},
        {"dim": 0},
        {"skew": -1.0},
        {"skew": float("nan")},
        {"drift": 1.5},
    ],
)
def test_arguments_are_checked(wrong):
    with pytest.raises(ArgumentError):
        synthetic(**wrong)
