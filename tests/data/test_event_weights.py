"""Weights of interactions, by rating and by age."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from talos.config import EventsConfig, RunConfig
from talos.data.event_weights import event_weights
from talos.data.interactions import Interactions
from talos.errors import ConfigError, DataError
from talos.training import Trainer

DAY = 86_400


def events(stamps=None, ratings=None) -> Interactions:
    count = len(stamps if stamps is not None else ratings)
    return Interactions.from_ids(list(range(count)), [0] * count, timestamps=stamps, ratings=ratings)


@given(st.lists(st.integers(0, 4 * 365 * DAY), min_size=1, max_size=20), st.integers(1, 400))
def test_an_event_one_half_life_older_counts_half(stamps: list[int], days: int) -> None:
    weights = event_weights(events(np.array(stamps)), EventsConfig(half_life=f"{days}d"))
    assert weights is not None
    assert weights.mean() == pytest.approx(1, rel=1e-5)
    for one, other, w, v in zip(stamps, stamps[1:], weights, weights[1:], strict=False):
        if abs(one - other) < 10 * days * DAY and min(w, v) > 1e-3 * weights.max():
            assert w / v == pytest.approx(2 ** ((one - other) / (days * DAY)), rel=1e-4)


@pytest.mark.parametrize("unit", [1, 10**3, 10**6, 10**9])
def test_any_unit_of_time(unit: int) -> None:
    stamps = 1_600_000_000 * unit + np.array([0, 30 * DAY * unit])
    old, new = event_weights(events(stamps), EventsConfig(half_life="30d"))
    assert new / old == pytest.approx(2, rel=1e-4)


def test_dates_and_unknown_times() -> None:
    dates = np.array(["2024-01-01", "2024-01-31"], dtype="datetime64[D]")
    old, new = event_weights(events(dates), EventsConfig(half_life="30d"))
    assert new / old == pytest.approx(2)
    unknown, *known = event_weights(events(np.array([-1, 0, 30 * DAY])), EventsConfig(half_life="30d"))
    assert unknown == pytest.approx(np.mean(known))


def test_ratings_and_both() -> None:
    ratings = [1.0, 3.0]
    assert event_weights(events(ratings=ratings), EventsConfig(weights="rating")).tolist() == [0.5, 1.5]
    both = Interactions.from_ids([0, 1], [0, 0], ratings=ratings, timestamps=[0, 30 * DAY])
    low, high = event_weights(both, EventsConfig(weights="rating", half_life="30d"))
    assert high / low == pytest.approx(6)
    assert event_weights(both, EventsConfig()) is None


def test_what_the_data_do_not_have_is_an_error() -> None:
    with pytest.raises(DataError, match=r"events.half_life: the data have no timestamps"):
        event_weights(events(ratings=[1.0]), EventsConfig(half_life="30d"))
    with pytest.raises(DataError, match=r"events.weights: the data have no ratings"):
        event_weights(events(np.array([1])), EventsConfig(weights="rating"))
    with pytest.raises(DataError, match=r"a rating of 0"):
        event_weights(events(ratings=[0.0, 2.0]), EventsConfig(weights="rating"))
    for text in ("30", "d", "-1d", "0d", "30 days"):
        with pytest.raises(ConfigError, match=r"events.half_life: .* a time such as"):
            RunConfig.from_dict({"events": {"half_life": text}})


def test_repeats_count_by_their_logarithm() -> None:
    rows = [("u", "seldom"), ("u", "often"), ("v", "seldom")] + [("u", "often")] * 7
    data = Interactions.from_ids(*map(list, zip(*rows, strict=True)))
    assert data.to_polars()["item_id"].to_list() == ["often", "seldom", "seldom"]
    often, seldom, _ = event_weights(data, EventsConfig(weights="repeats"))
    assert often / seldom == pytest.approx(1 + np.log(8))
    once = data.where(np.array([False, True, True])).compact()
    assert event_weights(once, EventsConfig(weights="repeats")).tolist() == [1, 1]
    with pytest.raises(DataError, match=r"events.weights: no pair of user and item occurs twice"):
        event_weights(Interactions.from_ids(["u"], ["i"]), EventsConfig(weights="repeats"))


@pytest.mark.parametrize("negatives", ["all", "shared:8/4", "8"])
def test_training_follows_the_weights(negatives: str) -> None:
    """Two tastes, one long ago: with a short half-life the vectors follow the newer one."""
    users, items, stamps = [], [], []
    for user in range(40):
        for item in range(6):
            users.append(user)
            items.append(item + 6 * (user % 2))  # what they liked a year ago
            stamps.append(0)
        for item in range(3):
            users.append(user)
            items.append(item + 6 * (1 - user % 2))  # what they like now
            stamps.append(365 * DAY)
    data = Interactions.from_ids(users, items, timestamps=stamps)
    values = {"k": 3, "backbone.dim": 4, "training.epochs": 30, "negatives": negatives, "loss.tau": 0.2}
    values["training.batch_size"] = 16 if negatives != "8" else 64

    def share_of_new(half_life: str | None) -> float:
        trainer = Trainer(RunConfig().with_values(values | {"events.half_life": half_life}), data)
        trainer.fit()
        user_vectors, item_vectors = trainer.vectors()
        best = (user_vectors @ item_vectors.T).topk(3).indices
        return float(((best >= 6).float().mean(1) == 1 - np.arange(40) % 2).float().mean())

    assert share_of_new("30d") > share_of_new(None) + 0.3


def test_a_few_dates_in_the_future_change_nothing_for_the_others() -> None:
    stamps = 1_700_000_000 + np.arange(1000) * DAY // 10
    stamps[-1] = 4_100_000_000  # the year 2100: a typing mistake
    wrong = event_weights(events(stamps), EventsConfig(half_life="30d"))
    right = event_weights(events(stamps[:-1]), EventsConfig(half_life="30d"))
    assert wrong is not None
    assert right is not None
    assert wrong[:-1] == pytest.approx(right, rel=0.02)
    assert wrong[-1] == pytest.approx(right.max(), rel=0.02)


def test_seconds_among_milliseconds_are_refused() -> None:
    stamps = np.array([1_700_000_000_000, 1_700_000_100_000, 1_700_000_000])
    with pytest.raises(DataError, match=r"1 of 3 are in another unit .* such as 1700000000"):
        event_weights(events(stamps), EventsConfig(half_life="30d"))
