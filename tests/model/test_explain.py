"""Reasons: they share the recommended item's taste, removing one lowers the score, and they are the loss's gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from talos import registry
from talos.data.datasets import PlantedTastes
from talos.data.interactions import Interactions
from talos.errors import ArgumentError
from talos.kernels.csr import CSR
from talos.model.explain import pull_of_history, reasons
from talos.model.fold_in import _gradient, slopes_over_all, slopes_over_sample
from talos.model.recommender import Recommender

TASTES, ITEMS_OF_A_TASTE = 6, 30


def two_tastes_each(seed: int = 0) -> tuple[Interactions, NDArray[np.int64]]:
    """Everybody has two of six tastes, two of five items that everybody likes, and two items by chance.

    So a history has other items than those of a recommended item's taste for the most part (38 % share it).
    """
    rng = np.random.default_rng(seed)
    rows: list[tuple[int, int]] = []
    for user in range(200):
        for taste in rng.permutation(TASTES)[:2]:
            liked = rng.permutation(ITEMS_OF_A_TASTE)[:7] + taste * ITEMS_OF_A_TASTE
            rows += [(user, int(item)) for item in liked]
        everybodys = TASTES * ITEMS_OF_A_TASTE
        rows += [(user, everybodys + int(item)) for item in rng.permutation(5)[:2]]
        rows += [(user, int(item)) for item in rng.integers(0, everybodys, 2)]
    pairs = np.array(rows)
    taste = np.append(np.repeat(np.arange(TASTES), ITEMS_OF_A_TASTE), np.full(5, -1))
    return Interactions.from_ids(pairs[:, 0], pairs[:, 1]), taste


def topics(seed: int = 0) -> tuple[Interactions, NDArray[np.int64]]:
    """Generated interactions, and the topic of each item; -1 where an item belongs to several topics."""
    world = PlantedTastes(users=600, items=400, events=9000, dim=4, skew=0.0, seed=seed)
    chance = world.topics / world.topics.sum(0)
    return world.interactions(), np.where(chance.max(0) > 0.9, chance.argmax(0), -1)


def first_reasons(model: Recommender, taste: NDArray[np.int64]) -> list[tuple[int, int, int]]:
    """(user, best item, strongest reason) of a hundred users, whose best item has a taste."""
    found = []
    for user, item, *_ in model.recommend(k=1).rows():
        if taste[item] >= 0 and len(found) < 100:
            found.append((user, item, model.explain(user, item, k=1)["item_id"][0]))
    assert len(found) == 100
    return found


@pytest.mark.parametrize("options", [{}, {"loss": "sl", "tau": 0.2}, {"backbone": "lightgcn"}], ids=str)
def test_the_strongest_reason_shares_the_taste_and_counts(options: dict[str, Any]) -> None:
    data, taste = two_tastes_each()
    model = Recommender(k=10, dim=16, epochs=15, batch_size=50, **options).fit(data)
    cases = first_reasons(model, taste)
    assert sum(taste[reason] == taste[item] for _, item, reason in cases) >= 95
    whole = data.to_polars().filter(pl.col("user_id").is_in([user for user, _, _ in cases]))
    dropped = pl.DataFrame([(user, reason) for user, _, reason in cases], schema=whole.schema, orient="row")
    before, after = (
        scores_of_histories(model, frame)
        for frame in (whole, whole.join(dropped, on=["user_id", "item_id"], how="anti"))
    )
    assert sum(after[user, item] < before[user, item] for user, item, _ in cases) >= 95


def scores_of_histories(model: Recommender, histories: pl.DataFrame) -> dict[tuple[int, int], float]:
    """(user, item) → score, of users folded in from these histories."""
    people = Interactions.from_ids(histories["user_id"], histories["item_id"])
    items = model.fitted_model().train.num_items
    lists = model.recommend(history=people, k=items, filter_seen=False)
    return {(user, item): score for user, item, score, _ in lists.rows()}


def test_topics_of_generated_data() -> None:
    """Items belong to several topics here, so a reason counts if it is likelier than chance to be of the item's."""
    data, taste = topics()
    model = Recommender(k=10, dim=32, epochs=20).fit(data)
    known = [(item, reason) for _, item, reason in first_reasons(model, taste) if taste[reason] >= 0]
    assert len(known) >= 30
    assert np.mean([taste[item] == taste[reason] for item, reason in known]) >= 0.95


@pytest.mark.parametrize("name", registry.names("loss"))
def test_the_pulls_are_the_gradient_of_the_loss(name: str) -> None:
    items = F.normalize(torch.randn(80, 8, generator=torch.Generator().manual_seed(0)))
    history, user = torch.tensor([3, 17, 40, 41, 70]), F.normalize(torch.ones(8), dim=0)
    loss = registry.make_loss(name, k=10, num_users=1, num_items=80)
    pulls = pull_of_history(user, items, history, loss, k=10)
    leaf = user.clone().requires_grad_()
    scores = items @ leaf
    others = torch.tensor([item for item in range(80) if item not in history.tolist()])
    beta = scores.detach().topk(10).values[-1] if loss.needs.threshold else None
    for place, item in enumerate(history.tolist()):
        pos, neg = scores[item].unsqueeze(0), scores[others].unsqueeze(0)
        more = {"users": torch.zeros(1, dtype=torch.int64), "items": others[None]} if loss.needs.ids else {}
        if loss.needs.negatives == "one":
            pos, neg = pos.expand(len(others)), neg.T
        threshold = None if beta is None else beta.expand(len(pos))
        value = loss(pos, neg, threshold=threshold, **more).sum()
        (slope,) = torch.autograd.grad(value, leaf, retain_graph=True)
        assert torch.allclose(pulls[place], -slope, atol=1e-6 + 1e-4 * float(slope.norm())), place


@pytest.mark.parametrize("name", ["talos", "sl", "bsl", "sl@k"])
@pytest.mark.parametrize("balance", [{"negative_weight": 2.0}, {"positive_power": 0.7}], ids=str)
def test_the_pulls_add_up_to_the_gradient_of_a_folded_in_user(
    name: str, balance: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the loss weights negatives, or positives by how they score."""
    if "positive_power" in balance and name == "sl@k":
        pytest.skip("SL@K weights positives itself")
    items = F.normalize(torch.randn(80, 8, generator=torch.Generator().manual_seed(0)))
    history, user = torch.tensor([3, 17, 40, 41, 70]), F.normalize(torch.ones(8), dim=0)
    plain, loss = (
        registry.make_loss(name, k=10, num_users=1, num_items=80, **options) for options in ({}, balance)
    )
    pulls = pull_of_history(user, items, history, loss, k=10)
    tables = items, items, CSR.of(torch.tensor([0, 5]), history)
    monkeypatch.setattr("talos.model.fold_in._SMALL", 0)
    gradient = _gradient(*tables, loss, torch.full((5,), 0.2), k=10, sample=None, times=None)(user[None])
    assert torch.allclose(pulls.sum(0) / len(history), -gradient[0], atol=1e-5)
    assert not torch.allclose(pulls, pull_of_history(user, items, history, plain, k=10), atol=1e-3)


def test_shares_add_up_to_one() -> None:
    items = F.normalize(torch.randn(80, 8, generator=torch.Generator().manual_seed(0)))
    history, user = torch.tensor([3, 17, 40, 41, 70]), F.normalize(torch.ones(8), dim=0)
    loss = registry.make_loss("talos", k=10)
    shares = reasons(user, items, history, torch.arange(80), loss, k=10)
    total = shares.sum(0)
    assert torch.allclose(total[total > 0], torch.ones(1), atol=1e-5)
    assert (total > 0).float().mean() > 0.9
    assert shares[0, 3] == 0


def test_both_ways_to_the_parts_agree() -> None:
    """The closed form over all items, and autograd over a sample that has all of them."""
    items = F.normalize(torch.randn(60, 8, generator=torch.Generator().manual_seed(1)))
    history, user = torch.tensor([3, 17, 40]), F.normalize(torch.ones(8), dim=0)
    scores, rows, ones = (items @ user)[None], torch.zeros(3, dtype=torch.int64), torch.ones(3)
    through = {"detach_weight": False, "offset": -1.0}
    for name, options in (
        ("talos", {}),
        ("sl", {}),
        ("bsl", {}),
        ("sl@k", {}),
        ("sl@k", through),
        ("llpauc", {}),
    ):
        loss = registry.make_loss(name, k=10, num_users=1, num_items=60, **options)  # type: ignore[arg-type]
        k, beta = (10, scores.topk(10).values[:, -1]) if loss.needs.threshold else (None, None)
        given = CSR.by_row(rows, history, 1), loss, ones, beta, torch.arange(60)
        pull, push = slopes_over_sample(scores[0, history], scores, *given)
        gone = torch.zeros(1, 60, dtype=torch.bool).index_fill(1, history, True)
        own, factors, slopes = slopes_over_all(scores.clone(), rows, history, gone, loss, ones, k)  # type: ignore[arg-type]
        assert torch.allclose(own, pull, atol=1e-4), name
        assert torch.allclose(factors[:, None] * slopes, push, atol=1e-4), name


def test_arguments_and_edges() -> None:
    data, _ = two_tastes_each()
    model = Recommender(k=10, dim=16, epochs=10).fit(data)
    mine = data.items_of(0).to_list()
    table = model.explain(0, mine[0])
    assert table.columns == ["item_id", "contribution"]
    assert mine[0] not in table["item_id"].to_list()  # an item is no reason for itself
    assert table["contribution"].is_sorted(descending=True)
    assert (table["contribution"] > 0).all()
    best = model.recommend([0], k=1)["item_id"][0]
    assert len(model.explain(0, best, k=2)) == 2
    visitor = model.explain(None, best, history=mine)
    assert len(visitor)
    assert set(visitor["item_id"]) <= set(mine)
    assert len(model.explain(None, 5, history=[5])) == 0
    assert len(model.explain(None, 5, history=[])) == 0
    with pytest.raises(ArgumentError, match="no user 999999"):
        model.explain(999999, 5)
    with pytest.raises(ArgumentError, match="no item 999999"):
        model.explain(0, 999999)
    with pytest.raises(ArgumentError, match="user, history: both or neither given"):
        model.explain(0, 5, history=mine)
