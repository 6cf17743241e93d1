"""The section of the README that lists the searches: every one, with every setting that was tried."""

from __future__ import annotations

import pytest

from talos.paper.recipes import recipe
from talos.paper.results import Store
from talos.paper.searched import lines_of


def test_settings_that_lost_are_listed_beside_the_one_that_was_chosen(store: Store) -> None:
    searched = recipe("beauty", "mf", "rs@k")
    assert searched.search == ({}, {"loss.tau1": 0.05, "loss.tau2": 5.0})
    store.save_search(searched, [{"precision@20": 0.00123}, {"precision@20": 0.00456}], 1)
    entries = [line for line in lines_of(store) if line.startswith("- ")]
    assert entries == [
        "- overall, Beauty, MF, RS@K: 2 settings: as the recipe begins (1.23); **τ1 0.05, τ2 5 (4.56)**."
    ]


@pytest.mark.parametrize("backbone", ["lightgcn", "xsimgcl"])
@pytest.mark.parametrize("loss", ["bpr", "llpauc"])
def test_on_graphs_validation_may_also_prefer_what_is_not_searched(backbone: str, loss: str) -> None:
    candidates = recipe("beauty", backbone, loss).candidates()
    assert len(candidates) > 1
    begun = recipe("beauty", backbone, loss, search=())
    assert begun in candidates
    assert len({candidate.key for candidate in candidates}) == len(candidates)
