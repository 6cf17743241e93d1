"""Vectors for histories: near the minimum, for every loss, and as good as those that were trained in."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F

from talos import losses, registry
from talos.data.splits import Split
from talos.errors import ArgumentError
from talos.model.explain import pull_of_history
from talos.model.fold_in import _pool, fold_in
from talos.model.recommender import Recommender

ITEMS = F.normalize(torch.randn(120, 8, generator=torch.Generator().manual_seed(0)))
INDPTR = torch.tensor([0, 3, 3, 8])
INDICES = torch.tensor([5, 40, 77, 1, 2, 30, 31, 99])


def mean_loss(loss: losses.Loss, user: torch.Tensor, history: torch.Tensor) -> float:
    """The loss of one user over all items, by the plain call."""
    scores = ITEMS @ user
    beta = scores.topk(10).values[-1].expand(len(history))
    mask = torch.zeros(len(history), len(ITEMS), dtype=torch.bool)
    mask[:, history] = True
    values = loss(scores[history], scores.expand(len(history), -1), threshold=beta, mask=mask)
    return values.mean().item()


@pytest.mark.parametrize("name", [n for n in registry.names("loss") if n not in ("bpr", "advinfonce")])
def test_it_is_better_than_the_start_and_than_small_changes(name: str) -> None:
    loss = registry.make_loss(name, k=10)
    start, found = (fold_in(ITEMS, INDPTR, INDICES, loss, k=10, steps=steps) for steps in (0, 60))
    generator = torch.Generator().manual_seed(1)
    for row in (0, 2):
        history = INDICES[INDPTR[row] : INDPTR[row + 1]]
        best = mean_loss(loss, found[row], history)
        slack = 1e-3 if name == "smoothi@k" else 1e-6  # which has many shallow minima
        assert best <= mean_loss(loss, start[row], history) + slack
        nearby = F.normalize(found[row] + 0.15 * torch.randn(20, 8, generator=generator))
        worse = [mean_loss(loss, other, history) >= best - 1e-3 for other in nearby]
        assert sum(worse) >= 17  # thresholds move with the vector, so not every direction must be up


@pytest.mark.parametrize("name", registry.names("loss"))
def test_every_loss_folds_in_and_explains(name: str) -> None:
    loss = registry.make_loss(name, k=10, num_users=1, num_items=len(ITEMS))
    found = fold_in(ITEMS, INDPTR, INDICES, loss, k=10)
    assert found.shape == (3, 8)
    assert torch.isfinite(found).all()
    scores = found @ ITEMS.T
    for row in (0, 2):
        mine = INDICES[INDPTR[row] : INDPTR[row + 1]]
        assert scores[row, mine].mean() > scores[row].mean() + 0.1
    if loss.needs.scores == "cosine":
        assert found.norm(dim=-1).tolist() == pytest.approx([1, 1, 1], abs=1e-5)
    pulls = pull_of_history(found[0], ITEMS, INDICES[:3], loss, k=10)
    assert pulls.shape == (3, 8)
    assert torch.isfinite(pulls).all()


@pytest.mark.parametrize("name", ["talos", "sl", "bsl", "sl@k", "llpauc", "aatp"])
def test_small_and_large_batches_agree(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loss = registry.make_loss(name, k=10)
    small = fold_in(ITEMS, INDPTR, INDICES, loss, k=10, steps=3)
    monkeypatch.setattr("talos.model.fold_in._SMALL", 0)
    large = fold_in(ITEMS, INDPTR, INDICES, loss, k=10, steps=3)
    assert torch.allclose(small, large, atol=1e-4)


# ---------------------------------------------------------------------- histories whose items differ


@pytest.mark.parametrize("name", registry.names("loss"))
@pytest.mark.parametrize("way", ["small", "large", "pooled"])
def test_equal_weights_are_no_weights(name: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loss = registry.make_loss(name, k=10, num_users=1, num_items=len(ITEMS))
    monkeypatch.setattr("talos.model.fold_in._SMALL", 0 if way == "large" else 1 << 18)
    monkeypatch.setattr("talos.model.fold_in._POOLED_ABOVE", 0 if way == "pooled" else 16_384)
    plain, even = (
        fold_in(ITEMS, INDPTR, INDICES, loss, k=10, steps=3, weights=weights)
        for weights in (None, torch.full((8,), 2.5))
    )
    assert torch.allclose(plain, even, atol=1e-4)


@pytest.mark.parametrize("name", ["talos", "sl", "sl@k", "bpr", "psl"])
def test_a_heavy_item_pulls_the_vector_towards_itself(name: str) -> None:
    loss = registry.make_loss(name, k=10)
    weights = torch.tensor([1, 1, 30.0, 1, 1, 1, 1, 1])
    plain, heavy = (fold_in(ITEMS, INDPTR, INDICES, loss, k=10, weights=one) for one in (None, weights))
    assert heavy[0] @ ITEMS[77] > plain[0] @ ITEMS[77] + 0.05
    assert torch.allclose(heavy[2], plain[2], atol=1e-4)


@pytest.mark.parametrize("options", [{}, {"positive_power": 0.4, "user_power": 0.5, "negative_weight": 1.2}])
def test_weights_agree_in_small_and_large_batches(
    options: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    loss = losses.Talos(tau=0.2, **options)
    weights = torch.rand(8, generator=torch.Generator().manual_seed(3)) + 0.2
    small = fold_in(ITEMS, INDPTR, INDICES, loss, k=10, steps=3, weights=weights)
    monkeypatch.setattr("talos.model.fold_in._SMALL", 0)
    large = fold_in(ITEMS, INDPTR, INDICES, loss, k=10, steps=3, weights=weights)
    assert torch.allclose(small, large, atol=1e-4)


def test_as_many_weights_as_items() -> None:
    with pytest.raises(ArgumentError, match="weights"):
        fold_in(ITEMS, INDPTR, INDICES, losses.Softmax(tau=0.2), k=10, weights=torch.ones(3))


# ----------------------------------------------------------------------------- large catalogues


@pytest.mark.parametrize("name", registry.names("loss"))
def test_a_pool_of_all_items_gives_what_all_items_give(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loss = registry.make_loss(name, k=10, num_users=1, num_items=len(ITEMS))
    whole = fold_in(ITEMS, INDPTR, INDICES, loss, k=10)
    monkeypatch.setattr("talos.model.fold_in._POOLED_ABOVE", 0)
    pooled = fold_in(ITEMS, INDPTR, INDICES, loss, k=10, mean=ITEMS.mean(0))
    assert torch.allclose(whole, pooled, atol=1e-3)


@pytest.mark.parametrize("name", ["talos", "sl", "bsl", "sl@k", "llpauc", "aatp"])
def test_a_pool_stands_for_all_items(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thirty tastes among 6,000 items; lists from a pool of an eighth of them are those from all of them."""
    generator = torch.Generator().manual_seed(0)
    tastes = torch.randn(30, 16, generator=generator)
    items = F.normalize(tastes.repeat(200, 1) + 0.7 * torch.randn(6000, 16, generator=generator))
    histories = [torch.arange(10) * 30 + taste for taste in range(12)]
    ends, places = torch.arange(0, 121, 10), torch.cat(histories)
    loss = registry.make_loss(name, k=20)
    whole = fold_in(items, ends, places, loss, k=20)
    for name, value in (("_POOLED_ABOVE", 5000), ("_NEAREST", 250), ("_OTHERS", 500)):
        monkeypatch.setattr(f"talos.model.fold_in.{name}", value)
    pooled = fold_in(items, ends, places, loss, k=20)
    assert not torch.equal(whole, pooled)
    assert (whole * pooled).sum(1).min() > 0.99
    lists = [(vectors @ items.T).topk(20).indices.tolist() for vectors in (whole, pooled)]
    shared = [len(set(one) & set(other)) for one, other in zip(*lists, strict=True)]
    assert sum(shared) >= 0.9 * 20 * len(shared)
    alone = [fold_in(items, torch.tensor([0, 10]), history, loss, k=20) for history in histories]
    assert torch.allclose(torch.cat(alone), pooled, atol=1e-3)
    again = fold_in(items, torch.tensor([0, 10]), histories[3], loss, k=20)
    assert again.numpy().tobytes() == alone[3].numpy().tobytes()


def test_what_a_pool_has(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("_NEAREST", 30), ("_OTHERS", 50)):
        monkeypatch.setattr(f"talos.model.fold_in.{name}", value)
    generator = torch.Generator().manual_seed(0)
    items, scores = torch.randn(997, 4, generator=generator), torch.randn(997, generator=generator)
    history = torch.tensor([3, 500, 996])
    best = scores.index_fill(0, history, -torch.inf).topk(30).indices
    pool, weights = _pool(scores.clone(), history, items, items.mean(0))
    assert torch.equal(pool[:3], items[history])
    assert {tuple(row) for row in pool[3:33].tolist()} == {tuple(row) for row in items[best].tolist()}
    assert 33 < len(pool) <= 83
    assert weights[:33].tolist() == [1.0] * 33
    assert weights.sum().item() == pytest.approx(997)
    assert torch.allclose((weights.unsqueeze(1) * pool).sum(0), items.sum(0), atol=1e-2)


def test_histories_of_nothing_and_of_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    ends, everything = torch.tensor([0, 0, len(ITEMS)]), torch.arange(len(ITEMS))
    for name, limit in itertools.product(("talos", "sl", "llpauc"), (10_000, 0)):
        monkeypatch.setattr("talos.model.fold_in._POOLED_ABOVE", limit)
        nothing, whole = fold_in(ITEMS, ends, everything, registry.make_loss(name, k=10), k=10)
        assert torch.allclose(nothing, F.normalize(ITEMS.mean(0), dim=0), atol=1e-5)
        assert torch.isfinite(whole).all()


def test_folded_in_users_get_what_was_planted(planted: Split) -> None:
    model = Recommender(k=5, dim=16, epochs=15, batch_size=8).fit(planted.train)
    hits = []
    for user in planted.test.user_ids.ids.to_list():
        lists = model.recommend(history=planted.train.items_of(user), k=5)
        hits.append(len(set(lists["item_id"]) & set(planted.test.items_of(user))) / 2)
    trained_in = model.evaluate(planted.test, k=5).metrics["recall@5"]
    assert sum(hits) / len(hits) > 0.9 * trained_in
