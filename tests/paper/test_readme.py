"""The section of the README that lists the searches: every one, with every setting that was tried."""

from __future__ import annotations

import pytest

from talos_paper.experiments import EXPERIMENTS
from talos_paper.readme import searched
from talos_paper.recipes import recipe
from talos_paper.results import ResultStore
from talos_paper.search import Searched


def test_settings_that_lost_are_listed_beside_the_one_that_was_chosen(store: ResultStore) -> None:
    rsk = recipe("beauty", "mf", "rs@k")
    assert rsk.search == ({}, {"loss.tau1": 0.05, "loss.tau2": 5.0})
    trials = [{"precision@20": 0.00123}, {"precision@20": 0.00456}]
    store.save_search(rsk, Searched([dict(one) for one in rsk.search], trials, 1))
    entries = [line for line in searched(store) if line.startswith("- ")]
    assert entries == [
        "- overall, Beauty, MF, RS@K: 2 settings: τ1 0.01, τ2 1 (1.23); **τ1 0.05, τ2 5 (4.56)**."
    ]


def test_the_same_search_on_two_data_sets_is_two(store: ResultStore) -> None:
    for dataset in ("beauty", "movielens-100k"):
        rows = EXPERIMENTS["slatk"].rows(dataset)
        row = next(row for row in rows if (row.group, row.method) == ("8 negatives", "sl@k"))
        tried = [dict(one) for one in row.recipe.search]
        store.save_search(row.recipe, Searched(tried, [{"precision@20": 0.1} for _ in tried], 1))
    assert len([line for line in searched(store) if line.startswith("- slatk")]) == 2


@pytest.mark.parametrize("backbone", ["lightgcn", "xsimgcl"])
@pytest.mark.parametrize("loss", ["bpr", "llpauc"])
def test_on_graphs_validation_may_also_prefer_what_is_not_searched(backbone: str, loss: str) -> None:
    candidates = recipe("beauty", backbone, loss).candidates()
    assert len(candidates) > 1
    begun = recipe("beauty", backbone, loss, search=())
    assert begun in candidates
    assert len({candidate.key for candidate in candidates}) == len(candidates)
