"""Every metric against a naive loop, and against ranx and scikit-learn where the definitions coincide."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from talos.errors import ArgumentError, ConfigError
from talos.evaluation import metrics

Hits = list[list[bool]]


@st.composite
def cases(draw: st.DrawFn) -> tuple[Hits, list[int], int]:
    """Hits of lists that are consistent with the number of test items, degenerate ones included."""
    length = draw(st.integers(1, 12))
    hits = draw(st.lists(st.lists(st.booleans(), min_size=length, max_size=length), min_size=1, max_size=6))
    relevant = [sum(row) + draw(st.integers(0, 4)) for row in hits]
    return hits, relevant, draw(st.integers(1, length))


def naive(name: str, row: list[bool], relevant: int, k: int) -> float:
    head = row[:k]
    ranks = [rank for rank, hit in enumerate(head, start=1) if hit]
    if name == "precision":
        return len(ranks) / k
    if name == "recall":
        return len(ranks) / relevant if relevant else 0.0
    if name == "hit_rate":
        return float(bool(ranks))
    if name == "mrr":
        return 1 / ranks[0] if ranks else 0.0
    if name == "ndcg":
        ideal = sum(1 / math.log2(r + 1) for r in range(1, min(relevant, k) + 1))
        return sum(1 / math.log2(r + 1) for r in ranks) / ideal if ideal else 0.0
    assert name == "map"
    return sum(sum(head[:r]) / r for r in ranks) / min(relevant, k) if relevant else 0.0


@given(cases())
def test_against_a_naive_loop(case: tuple[Hits, list[int], int]) -> None:
    hits, relevant, k = case
    values = metrics.ranking_metrics(torch.tensor(hits), torch.tensor(relevant), [k])
    for name in metrics.RANKING_METRICS:
        expected = [naive(name, row, n, k) for row, n in zip(hits, relevant, strict=True)]
        assert values[f"{name}@{k}"].tolist() == pytest.approx(expected, abs=1e-12)


@given(cases())
def test_paper_mrr_is_all_hits_over_all_test_interactions(case: tuple[Hits, list[int], int]) -> None:
    hits, relevant, k = case
    total = sum(1 / rank for row in hits for rank, hit in enumerate(row[:k], start=1) if hit)
    value = metrics.ranking_metrics(torch.tensor(hits), torch.tensor(relevant), [k], dialect="paper")
    assert value[f"mrr@{k}"].mean().item() == pytest.approx(total / max(1, sum(relevant)))
    assert torch.equal(value[f"ndcg@{k}"], metrics.ndcg(torch.tensor(hits), torch.tensor(relevant), k))


def test_paper_mrr_by_hand() -> None:
    # user 1: hits at ranks 1 and 3 of 4 test items; user 2: hit at rank 2 of 1: (1 + 1/3 + 1/2) / 5
    hits = torch.tensor([[True, False, True], [False, True, False]])
    value = metrics.mrr_paper(hits, torch.tensor([4, 1]), k=3)
    assert value.mean().item() == pytest.approx((1 + 1 / 3 + 1 / 2) / 5)
    assert metrics.mrr(hits, torch.tensor([4, 1]), k=3).mean().item() == pytest.approx((1 + 1 / 2) / 2)


@pytest.mark.filterwarnings("ignore")  # ranx and numba warn about themselves
def test_against_ranx() -> None:
    ranx = pytest.importorskip("ranx")
    rng = np.random.default_rng(0)
    users, items, length = 40, 50, 20
    order = np.argsort(rng.random((users, items)), axis=1)[:, :length]
    truth = [set(rng.choice(items, rng.integers(1, 30), replace=False).tolist()) for _ in range(users)]
    qrels = ranx.Qrels({f"u{u}": {f"i{i}": 1 for i in truth[u]} for u in range(users)})
    run = ranx.Run(
        {f"u{u}": {f"i{i}": float(length - r) for r, i in enumerate(order[u])} for u in range(users)}
    )
    hits = torch.tensor([[int(i) in truth[u] for i in order[u]] for u in range(users)])
    relevant = torch.tensor([len(t) for t in truth])
    same = {
        "precision": "precision",
        "recall": "recall",
        "ndcg": "ndcg",
        "mrr": "mrr",
        "hit_rate": "hit_rate",
    }
    for k in (1, 5, 20):
        for ours, theirs in same.items():
            expected = ranx.evaluate(qrels, run, f"{theirs}@{k}", make_comparable=True)
            got = metrics.RANKING_METRICS[ours](hits, relevant, k).mean().item()
            assert got == pytest.approx(float(expected), abs=1e-9), (ours, k)


@given(st.integers(0, 10_000))
def test_auc_against_scikit_learn(seed: int) -> None:
    from sklearn.metrics import roc_auc_score

    rng = np.random.default_rng(seed)
    scores = rng.integers(0, 6, 25).astype(float)  # few values: many ties
    labels = np.zeros(25, bool)
    labels[rng.choice(25, rng.integers(1, 24), replace=False)] = True
    positives, negatives = scores[labels], scores[~labels]
    above = torch.tensor([(negatives > p).sum() + (negatives == p).sum() / 2 for p in positives])
    owner = torch.zeros(len(positives), dtype=torch.long)
    value = metrics.auc(above, owner, torch.tensor([len(negatives)]))
    assert value.item() == pytest.approx(roc_auc_score(labels, scores), abs=1e-9)
    whole = metrics.llpauc(above, owner, torch.tensor([len(negatives)]), alpha=1, beta=1)
    assert whole.item() == pytest.approx(value.item(), abs=1e-9)


@given(st.integers(0, 10_000), st.sampled_from([0.1, 0.5, 0.9, 1.0]), st.sampled_from([0.1, 0.5, 1.0]))
def test_llpauc_against_pairs(seed: int, alpha: float, beta: float) -> None:
    rng = np.random.default_rng(seed)
    positives, negatives = rng.random(rng.integers(1, 8)), rng.random(rng.integers(1, 15))  # no ties
    above = torch.tensor([float((negatives > p).sum()) for p in positives])
    best_positives = sorted(positives, reverse=True)[: math.ceil(round(alpha * len(positives), 9))]
    best_negatives = sorted(negatives, reverse=True)[: math.ceil(round(beta * len(negatives), 9))]
    right = sum(p > n for p in best_positives for n in best_negatives)
    arguments = above, torch.zeros(len(positives), dtype=torch.long), torch.tensor([len(negatives)])
    value = metrics.llpauc(*arguments, alpha=alpha, beta=beta)
    assert value.item() == pytest.approx(right / (len(best_positives) * len(best_negatives)))
    raw = metrics.llpauc(*arguments, alpha=alpha, beta=beta, normalise=False)
    assert raw.item() == pytest.approx(right / (len(positives) * len(negatives)))


def test_auc_of_users_without_test_items_or_negatives() -> None:
    above, owner = torch.tensor([0.0]), torch.tensor([1])
    assert metrics.auc(above, owner, torch.tensor([5, 0])).tolist() == [0, 1]
    assert metrics.llpauc(above, owner, torch.tensor([5, 0]), alpha=0.5, beta=0.5).tolist() == [0, 1]


def test_list_metrics_against_loops() -> None:
    rng = np.random.default_rng(1)
    items = rng.integers(-1, 6, (9, 4))
    popularity = np.array([5, 5, 9, 1, 0, 1])
    counts = [int((items == i).sum()) for i in range(6)]
    rank = [
        np.mean([r + 1 for r, p in enumerate(sorted(popularity, reverse=True)) if p == own])
        for own in popularity
    ]
    shown = torch.from_numpy(items)
    assert metrics.coverage(shown, 6) == sum(c > 0 for c in counts) / 6
    mean_rank = np.mean([rank[i] for i in items.ravel() if i >= 0]) / 6
    assert metrics.mean_popularity_rank(shown, torch.from_numpy(popularity)) == pytest.approx(mean_rank)
    difference = sum(abs(a - b) for a in counts for b in counts) / (2 * 6 * sum(counts))
    assert metrics.exposure_gini(shown, 6) == pytest.approx(difference)
    nothing = torch.full((2, 2), -1)
    assert metrics.coverage(nothing, 6) == metrics.exposure_gini(nothing, 6) == 0
    assert metrics.mean_popularity_rank(nothing, torch.from_numpy(popularity)) == 0


def test_bad_arguments() -> None:
    hits, relevant = torch.tensor([[True]]), torch.tensor([1])
    with pytest.raises(ArgumentError, match="k: 2; expected 1 to 1"):
        metrics.precision(hits, relevant, 2)
    with pytest.raises(ArgumentError, match="hits, relevant"):
        metrics.precision(hits, torch.tensor([1, 2]), 1)
    with pytest.raises(ConfigError, match="did you mean 'ndcg'"):
        metrics.ranking_metrics(hits, relevant, [1], names=["ndgc"])
    with pytest.raises(ConfigError, match="dialect"):
        metrics.ranking_metrics(hits, relevant, [1], dialect="papr")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="alpha"):
        metrics.llpauc(torch.tensor([0.0]), torch.tensor([0]), torch.tensor([1]), alpha=0, beta=1)
