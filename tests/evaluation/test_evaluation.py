from __future__ import annotations

from collections.abc import Callable

import numpy as np
import polars as pl
import pytest
import torch

from talos.data.interactions import Interactions
from talos.data.splits import Split, split
from talos.errors import ConfigError, DataError
from talos.evaluation.evaluate import evaluate, evaluate_lists
from talos.evaluation.ranking import DotScores, FixedScores, top_k

Make = Callable[..., Interactions]


@pytest.fixture
def parts(random_data: Make) -> Split:
    return split(random_data(users=40, items=30, density=0.4, seed=5), seed=2)


def model(parts: Split, seed: int = 0) -> DotScores:
    generator = torch.Generator().manual_seed(seed)
    return DotScores(
        torch.randn(parts.train.num_users, 4, generator=generator),
        torch.randn(parts.train.num_items, 4, generator=generator),
    )


def test_report_against_a_naive_loop(parts: Split) -> None:
    scorer = model(parts)
    report = evaluate(scorer, parts.test, seen=parts.train, ks=[3, 7])
    scores = scorer.user_vectors @ scorer.item_vectors.T
    truth, seen = ([set(row) for row in _rows(part)] for part in (parts.test, parts.train))
    users = [u for u in range(len(truth)) if truth[u]]
    assert report.user_ids.to_list() == [parts.test.user_ids.ids[u] for u in users]
    for k in (3, 7):
        hits = []
        for u in users:
            order = sorted(
                (i for i in range(scores.shape[1]) if i not in seen[u]), key=lambda i: (-scores[u, i], i)
            )
            hits.append(len(set(order[:k]) & truth[u]))
        assert report.metrics[f"precision@{k}"] == pytest.approx(np.mean(hits) / k)
        recall = np.mean([h / len(truth[u]) for h, u in zip(hits, users, strict=True)])
        assert report.metrics[f"recall@{k}"] == pytest.approx(recall)
        assert report.per_user[f"recall@{k}"].mean() == pytest.approx(recall)


def _rows(data: Interactions) -> list[list[int]]:
    return [data.indices[data.indptr[u] : data.indptr[u + 1]].tolist() for u in range(data.num_users)]


def test_auc_against_scikit_learn(parts: Split) -> None:
    from sklearn.metrics import roc_auc_score

    scorer = model(parts)
    report = evaluate(
        scorer, parts.test, seen=parts.train, ks=[3], metrics=["auc", "llpauc"], budget=30 * 4 * 3
    )
    scores = (scorer.user_vectors @ scorer.item_vectors.T).numpy()
    test, train = _rows(parts.test), _rows(parts.train)
    expected = []
    for u in (u for u in range(len(test)) if test[u]):
        left = np.setdiff1d(np.arange(scores.shape[1]), train[u])
        expected.append(roc_auc_score(np.isin(left, test[u]), scores[u, left]))
    assert report.per_user["auc"].tolist() == pytest.approx(expected)
    assert 0 <= report.metrics["llpauc"] <= 1


def test_lists_and_model_give_the_same_report(parts: Split) -> None:
    scorer = model(parts)
    lists = top_k(scorer, k=10, seen=parts.train)
    users = np.repeat(lists.users, 10)
    frame = pl.DataFrame(
        {
            "user_id": parts.test.user_ids.decode(users),
            "item_id": parts.test.item_ids.decode(lists.items.ravel()),
            "rank": np.tile(np.arange(1, 11), len(lists.users)),
        }
    )
    for dialect in ("standard", "paper"):
        direct = evaluate(scorer, parts.test, seen=parts.train, ks=[5, 10], dialect=dialect)
        measured = evaluate_lists(
            frame.sample(fraction=1, shuffle=True, seed=1), parts.test, ks=[5, 10], dialect=dialect
        )
        assert measured.metrics == pytest.approx(direct.metrics)


def test_missing_lists_count_as_zero_and_are_said() -> None:
    test = Interactions.from_ids(["a", "b", "c"], ["x", "y", "z"])
    lists = pl.DataFrame({"user_id": ["a", "q"], "item_id": ["x", "new"], "rank": [1, 1]})
    report = evaluate_lists(lists, test, ks=[1])
    assert report.metrics["recall@1"] == pytest.approx(1 / 3)
    assert report.users_without_list == 2
    assert "2 of 3 users with test items have no list" in report.notes[0]


def test_an_integer_and_its_text_are_one_id() -> None:
    test = Interactions.from_ids([1, 1, 2], ["5", "7", "x"])
    lists = pl.DataFrame({"user_id": ["1", "1", "2"], "item_id": [7, 5, 5], "rank": [1, 2, 1]})
    assert evaluate_lists(lists, test, ks=[2]).metrics["recall@2"] == pytest.approx(1 / 2)


def test_ids_of_another_type_are_refused() -> None:
    lists = pl.DataFrame({"user_id": [1], "item_id": ["x"], "rank": [1]})
    with pytest.raises(DataError, match="column user_id"):
        evaluate_lists(lists, Interactions.from_ids(["a"], ["x"]))
    with pytest.raises(DataError, match="no list is of a user"):
        evaluate_lists(lists.with_columns(user_id=pl.lit("z")), Interactions.from_ids(["a"], ["x"]))


def test_popularity_figures_and_the_printed_table(parts: Split) -> None:
    popular = FixedScores(torch.from_numpy(parts.train.item_degrees))
    report = evaluate(popular, parts.test, seen=parts.train, ks=[5], popularity=parts.train.item_degrees)
    assert 0 < report.metrics["coverage@5"] <= 1
    assert report.metrics["popularity_rank@5"] < 0.5
    text = str(report)
    assert text.splitlines()[0].split() == ["metric", "@5"]
    assert f"({report.num_users:,} users, standard dialect)" in text
    assert set(report.as_dict()) == {"metrics", "users", "users_without_list", "dialect", "notes"}


def test_bad_arguments(parts: Split) -> None:
    scorer = model(parts)
    with pytest.raises(ConfigError, match="k: 0"):
        evaluate(scorer, parts.test, ks=[0])
    with pytest.raises(ConfigError, match="k: 31; expected 1 to 30, the number of items"):
        evaluate(scorer, parts.test, ks=[31])
    with pytest.raises(ConfigError, match="at least one list length"):
        evaluate(scorer, parts.test, ks=[])
    with pytest.raises(ConfigError, match="did you mean 'recall'"):
        evaluate(scorer, parts.test, ks=[3], metrics=["recal"])
    with pytest.raises(DataError, match="no user has a test item"):
        evaluate(scorer, parts.test.where(np.zeros(len(parts.test), bool)), ks=[3])
