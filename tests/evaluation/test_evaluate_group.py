"""Users divided among processes: the metrics are those of all users together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from talos.data.datasets import synthetic
from talos.distributed import Group
from talos.errors import DataError
from talos.evaluation.evaluate import evaluate
from talos.evaluation.ranking import DotScores

InThreads = Callable[[int, Callable[[Group], Any]], list[Any]]


@pytest.mark.parametrize("dialect", ["standard", "paper"])
@pytest.mark.parametrize("size", [2, 3])
def test_means_and_list_metrics_of_all_users(in_threads: InThreads, size: int, dialect: str) -> None:
    parts = synthetic(users=50, items=40, interactions=700, seed=0).split(seed=0)
    rng = torch.Generator().manual_seed(0)
    users, items = torch.randn(50, 4, generator=rng), torch.randn(40, 4, generator=rng)
    options: dict[str, Any] = {
        "ks": [3, 10],
        "metrics": ("precision", "recall", "ndcg", "mrr", "auc", "llpauc"),
        "popularity": parts.train.item_degrees,
        "dialect": dialect,
    }
    # the last users have no test items: a process without anybody to rank for
    test = parts.test.where(parts.test.rows < 50 // size)
    whole = evaluate(DotScores(users, items), test, seen=parts.train, **options)

    def work(group: Group) -> Any:
        own = group.range_of(50)
        scores = DotScores(users[own.start : own.stop], items)
        seen = parts.train.user_range(own)
        return evaluate(scores, test.user_range(own), group=group, seen=seen, **options)

    for report in in_threads(size, work):
        assert report.metrics == pytest.approx(whole.metrics, rel=1e-12)
        assert list(report.metrics) == list(whole.metrics)
        assert report.num_users == whole.num_users

    def nobody(group: Group) -> str:
        own = group.range_of(50)
        with pytest.raises(DataError, match="no user has a test item") as caught:
            evaluate(
                DotScores(users[own.start : own.stop], items),
                test.where(test.rows < 0).user_range(own),
                group=group,
                ks=[3],
            )
        return str(caught.value)

    in_threads(2, nobody)


def test_paper_mrr_of_users_with_unequal_numbers_of_test_items(in_threads: InThreads) -> None:
    """The paper divides by all test interactions, so a process cannot scale its users' values on its own."""
    parts = synthetic(users=50, items=40, interactions=700, seed=3).split(seed=0)
    rng = torch.Generator().manual_seed(0)
    users, items = torch.randn(50, 4, generator=rng), torch.randn(40, 4, generator=rng)
    test = parts.test.where((parts.test.rows < 25) | (parts.test.indices % 3 == 0))
    whole = evaluate(DotScores(users, items), test, ks=[5], metrics=["mrr"], dialect="paper")

    def work(group: Group) -> Any:
        own = group.range_of(50)
        scores = DotScores(users[own.start : own.stop], items)
        return evaluate(scores, test.user_range(own), group=group, ks=[5], metrics=["mrr"], dialect="paper")

    reports = in_threads(2, work)
    for report in reports:
        assert report.metrics["mrr@5"] == pytest.approx(whole.metrics["mrr@5"], rel=1e-12)
    values = np.concatenate([report.per_user["mrr@5"] for report in reports])
    np.testing.assert_allclose(values, whole.per_user["mrr@5"], rtol=1e-12)
