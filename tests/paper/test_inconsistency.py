"""The inconsistency study against loops over lists, against what can be worked out by hand, and on real data."""

from __future__ import annotations

import itertools
import math
import time
from pathlib import Path

import numpy as np
import pytest

from talos.data.interactions import Interactions
from talos.data.splits import Split
from talos.errors import ArgumentError
from talos_paper import datasets, published
from talos_paper.inconsistency import (
    DEFAULT_READING,
    READINGS,
    SOURCES,
    contradictions,
    distance_to_paper,
    inconsistency,
    positives_per_user,
    random_lists,
)

DATA = Path(__file__).parents[3] / "shared" / "data"
METRICS = ("auc", "llpauc", "ndcg", "ndcg@20")


def naive_metrics(places: list[int], length: int, k: int, alpha: float, beta: float) -> dict[str, float]:
    """By the definitions, one pair of items at a time; places count from 1."""
    negatives = [place for place in range(1, length + 1) if place not in places]
    right = [(i, j) for i in places for j in negatives if i < j]
    best_positives = places[: math.ceil(alpha * len(places) - 1e-9)]
    best_negatives = negatives[: math.ceil(beta * len(negatives) - 1e-9)]
    corner = [(i, j) for i in best_positives for j in best_negatives if i < j]

    def ndcg(cut: int) -> float:
        gain = sum(1 / math.log2(place + 1) for place in places if place <= cut)
        return gain / sum(1 / math.log2(rank + 1) for rank in range(1, min(cut, len(places)) + 1))

    return {
        "auc": len(right) / (len(places) * len(negatives)),
        "llpauc": len(corner) / (len(best_positives) * len(best_negatives)),
        "ndcg": ndcg(length),
        f"ndcg@{k}": ndcg(k),
        f"precision@{k}": sum(place <= k for place in places) / k,
    }


def naive_share(values: list[tuple[float, float, float, float]], ties: str) -> float:
    counted, total = 0.0, 0
    for metric_a, metric_b, accuracy_a, accuracy_b in values:
        metric_ties = math.isclose(metric_a, metric_b, abs_tol=1e-9)
        accuracy_ties = math.isclose(accuracy_a, accuracy_b, abs_tol=1e-9)
        if metric_ties or accuracy_ties:
            total += ties != "left-out"
            counted += {
                "strict": 0,
                "half": 0.5,
                "left-out": 0,
                "full": float(accuracy_ties and not metric_ties),
                "booleans": float(
                    (metric_a > metric_b and not metric_ties)
                    != (accuracy_a > accuracy_b and not accuracy_ties)
                ),
            }[ties]
        else:
            total += 1
            counted += (metric_a > metric_b) != (accuracy_a > accuracy_b)
    return counted / total


@pytest.mark.parametrize("reading", READINGS)
def test_agrees_with_loops(reading):
    """The same draws, every metric by its definition, every pair counted by hand."""
    positives, length, k, alpha, beta = np.array([1, 2, 5, 9]), 30, 6, 0.4, 0.2
    shares = inconsistency(
        positives, reading=reading, pairs=150, positions=length, k=k, alpha=alpha, beta=beta, seed=3
    )
    rng = np.random.default_rng(3)
    draw, _, ties = reading.partition("-")
    weights = positives / positives.sum() if draw == "interactions" else None
    drawn = rng.choice(positives, size=150, p=weights)
    first, second = (
        [
            naive_metrics((np.flatnonzero(row) + 1).tolist(), length, k, alpha, beta)
            for row in random_lists(drawn, length, rng)
        ]
        for _ in range(2)
    )
    for metric in ("auc", "llpauc", "ndcg", f"ndcg@{k}"):
        values = [
            (a[metric], b[metric], a[f"precision@{k}"], b[f"precision@{k}"])
            for a, b in zip(first, second, strict=True)
        ]
        want = naive_share(values, ties)
        assert shares[metric] == pytest.approx({f"precision@{k}": want, f"recall@{k}": want}, abs=1e-12)


def test_a_single_positive_is_never_inconsistent():
    """With one positive a better rank is better by everything; what remains are the ties."""
    shares = inconsistency(np.array([1]), reading="users-strict", pairs=3000)
    assert {share for row in shares.values() for share in row.values()} == {0.0}
    # Both in the top 20 or both below, 0.1² + 0.9² = 0.82, half of which counts.
    half = inconsistency(np.array([1]), reading="users-half", pairs=20_000)
    assert half["auc"]["precision@20"] == pytest.approx(0.41, abs=0.01)


def test_two_positives_against_every_possible_pair_of_lists():
    """All lists of two positives among eight, all pairs of them: the share that sampling has to approach."""
    length, k = 8, 2
    lists = [naive_metrics(list(p), length, k, 0.5, 0.5) for p in itertools.combinations(range(1, 9), 2)]
    for metric in ("auc", "ndcg", "ndcg@2", "llpauc"):
        values = [(a[metric], b[metric], a["precision@2"], b["precision@2"]) for a in lists for b in lists]
        got = inconsistency(
            np.array([2]), reading="users-strict", pairs=40_000, positions=length, k=k, alpha=0.5, beta=0.5
        )
        assert got[metric]["precision@2"] == pytest.approx(naive_share(values, "strict"), abs=0.006)


def test_lists_are_uniform():
    """Every position as often as every other, and the count as asked for, for short and full lists."""
    counts = np.repeat([1, 3, 10], 4000)
    lists = random_lists(counts, 10, np.random.default_rng(0))
    assert (lists.sum(axis=1) == counts).all()
    assert lists[:8000].mean(axis=0) == pytest.approx(np.full(10, 0.2), abs=0.015)


def test_users_are_met_as_often_as_the_reading_says():
    """One user with 1, one with 20 positives: by interactions the second is met twenty times out of 21."""
    alone = {n: inconsistency(np.array([n]), reading="users-strict")["auc"]["recall@20"] for n in (1, 20)}
    both = np.array([1, 20])
    by_user = inconsistency(both, reading="users-strict")["auc"]["recall@20"]
    by_interaction = inconsistency(both, reading="interactions-strict")["auc"]["recall@20"]
    assert by_user == pytest.approx((alone[1] + alone[20]) / 2, abs=0.02)
    assert by_interaction == pytest.approx((alone[1] + 20 * alone[20]) / 21, abs=0.02)


def test_too_many_positives_fill_the_list_and_tie():
    shares = inconsistency(np.array([500]), reading="users-half", pairs=100)
    assert {share for row in shares.values() for share in row.values()} == {0.5}
    assert inconsistency(np.array([500]), reading="users-left-out", pairs=100)["auc"]["recall@20"] == 0.0


def test_seeds():
    positives = np.array([3, 8])
    assert inconsistency(positives, pairs=500) == inconsistency(positives, pairs=500, seed=0)
    assert inconsistency(positives, pairs=500) != inconsistency(positives, pairs=500, seed=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"reading": "users-halff"}, "reading: got 'users-halff'.*did you mean 'users-half'"),
        ({"positives": np.array([0, 0])}, "positives: no user has any"),
        ({"k": 201}, "k: 201; expected 1 to 200"),
        ({"pairs": 0}, "pairs: 0"),
        ({"alpha": 0.0}, "alpha"),
    ],
)
def test_bad_arguments(arguments, message):
    positives = arguments.pop("positives", np.array([3]))
    with pytest.raises(ArgumentError, match=message):
        inconsistency(positives, **arguments)


def test_other_bad_names():
    data = Interactions.from_ids([1], [1])
    with pytest.raises(ArgumentError, match=r"source: got 'trian'.*'train'"):
        positives_per_user(Split(train=data, valid=None, test=data), "trian")
    with pytest.raises(ArgumentError, match="did you mean 'half'"):
        contradictions(np.zeros(1), np.zeros(1), ties="halve")
    with pytest.raises(ArgumentError, match="dataset: got 'movielens'"):
        distance_to_paper({}, "movielens")


def test_sources_add_up():
    data = Interactions.from_ids([1, 1, 1, 2, 2, 3], [1, 2, 3, 1, 2, 3])
    keep = np.array([True, False, True, True, True, False])
    split = Split(train=data.where(keep), valid=None, test=data.where(~keep))
    assert positives_per_user(split, "train").tolist() == [2, 2, 0]
    assert positives_per_user(split, "test").tolist() == [1, 0, 1]
    assert positives_per_user(split, "all").tolist() == [3, 2, 1]
    assert set(SOURCES) == {"test", "train", "all"}


def test_distance_is_zero_at_the_printed_numbers():
    shares = {
        metric: {
            accuracy: published.value(table="inconsistency", dataset="games", method=metric, metric=accuracy)
            for accuracy in ("precision@20", "recall@20")
        }
        for metric in METRICS
    }
    assert distance_to_paper(shares, "games") == 0.0
    assert distance_to_paper(shares, "gowalla") > 0.01


@pytest.mark.parametrize("dataset", ["beauty", "gowalla", "games"])
def test_on_real_data_the_order_is_the_papers(dataset):
    if not (DATA / dataset).is_dir():
        pytest.skip("the data are not here")
    split = datasets.load(dataset, folder=DATA)
    start = time.process_time()
    shares = inconsistency(positives_per_user(split))
    assert time.process_time() - start < 5
    auc, llpauc, ndcg, ndcg_at_k = (shares[metric]["precision@20"] for metric in METRICS)
    assert auc > ndcg > max(llpauc, ndcg_at_k)
    assert distance_to_paper(shares, dataset) < 0.025
    # The default is the closest of the readings, or within sampling error (0.005) of it.
    others = {
        reading: distance_to_paper(inconsistency(positives_per_user(split), reading=reading), dataset)
        for reading in READINGS
    }
    assert others[DEFAULT_READING] < min(others.values()) + 0.005
