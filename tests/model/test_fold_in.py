"""Vectors for histories: near the minimum, for every loss, and as good as those that were trained in."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from talos import losses, registry
from talos.data.splits import Split
from talos.model.explain import pull_of_history
from talos.model.fold_in import fold_in
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


def test_histories_of_nothing_and_of_everything() -> None:
    ends, everything = torch.tensor([0, 0, len(ITEMS)]), torch.arange(len(ITEMS))
    for name in ("talos", "sl", "llpauc"):
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
