from __future__ import annotations

import itertools
import json

import numpy as np
import polars as pl
import pytest

from talos.data.datasets import PlantedTastes, synthetic, write_planted
from talos.data.datasets.generated import _draw_distinct
from talos.data.interactions import Interactions
from talos.data.open import open_split
from talos.errors import ArgumentError, ConfigError
from talos.evaluation.best_possible import best_possible


def events_of(world: PlantedTastes) -> pl.DataFrame:
    return pl.concat(world.blocks())


def probabilities(world: PlantedTastes) -> np.ndarray:
    """P(item | user) as a whole matrix."""
    matrix = np.empty((world.users, world.items))
    for block in range(world.num_blocks):
        matrix[world.users_of(block)] = world.tastes_of(block) @ world.topics
    return matrix


@pytest.mark.parametrize(
    ("users", "items", "events"),
    [(1, 1, 1), (7, 30, 7), (1000, 3, 5), (20, 12, 240), (20, 12, 230), (300, 80, 6000)],
)
@pytest.mark.parametrize("events_at_once", [50, 1 << 20])
def test_exactly_what_was_asked_for(users, items, events, events_at_once):
    world = PlantedTastes(
        users=users, items=items, events=events, skew=1.5, held_out=5, events_at_once=events_at_once
    )
    found = events_of(world)
    assert len(found) == events == found.select("user_id", "item_id").n_unique()
    assert found["user_id"].n_unique() == users or events < users
    assert set(found["user_id"]) <= set(range(users))
    assert found["item_id"].min() >= 0
    assert found["item_id"].max() < items
    assert set(found.filter(pl.col("part") > 0)["user_id"]) <= set(world.held_out_users.tolist())
    # each user's parts follow each other in time, and everybody has something to train on
    for _, own in found.group_by("user_id", maintain_order=True):
        assert own["timestamp"].is_sorted()
        assert own["part"].is_sorted()
        assert own["part"][0] == 0


def test_the_same_seed_gives_the_same_events():
    first, again, other = (
        events_of(PlantedTastes(users=40, items=30, events=400, seed=seed)) for seed in (3, 3, 4)
    )
    assert first.equals(again)
    assert not first.equals(other)


def test_draws_follow_the_planted_probabilities():
    """The first item of each of many like users, and the pairs of first and second, occur as often as computed."""
    world = PlantedTastes(users=1, items=4, events=3, dim=2, skew=0.5)
    p = probabilities(world)[0]
    expected, counted = np.zeros((4, 4)), np.zeros((4, 4))
    for i, j in itertools.permutations(range(4), 2):
        expected[i, j] = p[i] * p[j] / (1 - p[i])
    copies = 20_000
    upto = np.cumsum(world.topics, axis=1)
    tastes = np.repeat(world.tastes_of(0), copies, axis=0)[None]
    items = _draw_distinct(
        np.random.default_rng(0), tastes, np.full(copies, 3), upto / upto[:, -1:], world.topics
    )["item"].to_numpy()
    np.add.at(counted, (items[::3], items[1::3]), 1)
    error = np.sqrt(expected * (1 - expected) / copies)
    assert (np.abs(counted / copies - expected) <= 4 * error + 1e-12).all()


def test_the_best_list_is_the_best_of_all_lists():
    """By enumeration: no other list of K items has a higher expected recall."""
    world = PlantedTastes(users=3, items=7, events=9, dim=3, held_out=3, seed=5)
    for p in probabilities(world):
        seen, tested, k = (2, 5), 2, 2
        left = [item for item in range(world.items) if item not in seen]
        chance = dict.fromkeys(left, 0.0)  # that an item is among the tested ones
        for order in itertools.permutations(left, tested):
            likely, rest = 1.0, 1 - sum(p[item] for item in seen)
            for item in order:
                likely, rest = likely * p[item] / rest, rest - p[item]
            for item in order:
                chance[item] += likely
        recall = {
            some: sum(chance[item] for item in some) / tested for some in itertools.combinations(left, k)
        }
        by_probability = tuple(sorted(sorted(left, key=lambda item: -p[item])[:k]))
        assert recall[by_probability] == max(recall.values())


@pytest.mark.parametrize("kind", ["parquet", "csv"])
@pytest.mark.parametrize("strings", [True, False])
def test_a_written_folder_is_a_split(tmp_path, kind, strings):
    world = PlantedTastes(users=60, items=40, events=900, held_out=25, events_at_once=200)
    seen = []

    def naive_recall(parts, tastes, topics) -> dict[str, float]:
        """Recall@5 of the most probable new items, from the whole matrix."""
        found = []
        assert np.allclose(tastes @ topics.T, probabilities(world)[world.held_out_users])
        for row, p in enumerate(probabilities(world)[world.held_out_users]):
            train, valid, test = (
                set(part.indices[part.indptr[row] : part.indptr[row + 1]]) for part in parts
            )
            best = [i for i in np.argsort(-p) if i not in train | valid][:5]
            found.append(len(set(best) & test) / len(test))
        assert np.isclose(best_possible(parts, tastes, topics, (5, 100)).metrics["recall@5"], np.mean(found))
        return {"recall@5": float(np.mean(found))}

    record = write_planted(
        world, tmp_path / "planted", format=kind, strings=strings, report=naive_recall,
        progress=lambda *done: seen.append(done),
    )  # fmt: skip
    assert json.loads((tmp_path / "planted" / "planted.json").read_text()) == record
    assert 0 < record["best"]["recall@5"] < 1
    assert seen[-1] == (900, 900)
    parts = open_split(tmp_path / "planted")
    assert {name: len(part) for name, part in parts.parts.items()} == record["events"]
    assert (parts.train.user_ids.ids.dtype == pl.String) == strings
    expected = events_of(world)
    for code, part in enumerate(parts):
        rows = expected.filter(pl.col("part") == code)
        columns = part.to_polars().with_columns(
            pl.col("user_id", "item_id").cast(pl.String).str.strip_chars_start("ui").cast(pl.Int64)
        )
        assert set(columns.rows()) == set(rows.select("user_id", "item_id", "timestamp").rows())
    with pytest.raises(ConfigError, match="not empty"):
        write_planted(world, tmp_path / "planted")


@pytest.mark.parametrize(
    "wrong",
    [{"users": 0}, {"items": 0}, {"events": 0}, {"events": 101}, {"dim": 0}, {"skew": float("nan")},
     {"test": 1.0}, {"valid": -0.1}, {"valid": 0.5, "test": 0.5}, {"held_out": -1}, {"drift": 1.5}, {"seed": -1}],
)  # fmt: skip
def test_arguments_are_checked(wrong):
    with pytest.raises(ArgumentError):
        PlantedTastes(**{"users": 10, "items": 10, "events": 50, **wrong})


def test_memory_does_not_grow_with_events(monkeypatch):
    """No array that is made while drawing is larger for ten times the events, if as many are drawn at once."""
    largest = []
    for events in (2_000, 20_000):
        world = PlantedTastes(users=events // 20, items=100, events=events, events_at_once=500)
        largest.append(max(block.height for block in world.blocks()))
    assert largest[1] <= 1.5 * largest[0] <= 1.5 * 1.5 * 500


# ----------------------------------------------------------------------- in memory


def test_the_same_seed_gives_the_same_interactions():
    first, again, other = (synthetic(users=80, items=60, interactions=900, seed=s) for s in (3, 3, 4))
    assert first.to_polars().equals(again.to_polars())
    assert not first.to_polars().equals(other.to_polars())


@pytest.mark.parametrize(
    ("users", "items", "interactions"),
    [(1, 1, 1), (3, 1000, 2900), (1000, 3, 5), (50, 40, 2000), (50, 40, 1999), (300, 200, 6000)],
)
def test_exactly_as_many_interactions_as_asked_for(users, items, interactions):
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
        synthetic(interactions=10_000, skew=skew).describe()["popularity_gini"] for skew in (0.0, 1.5)
    )
    assert steep > even + 0.05


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
        data = synthetic(users=2000, items=500, interactions=20_000, skew=1.0, drift=drift, seed=5)
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
        {"dim": 0},
        {"skew": -1.0},
        {"skew": float("nan")},
        {"drift": 1.5},
    ],
)
def test_arguments_of_synthetic_are_checked(wrong):
    with pytest.raises(ArgumentError):
        synthetic(**wrong)
