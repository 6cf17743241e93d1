"""Accuracy and time of an updated model against one that is trained from scratch.

Fold-in: a tenth of the users are left out of training, get vectors from 80 % of their items, and are tested on the
rest, against the same users in a model that was trained with them. `partial_fit`: a model of the first 80 % of all
interactions is updated with the next 10 % and tested on the last 10 %, against a model that is fitted to the first
90 %; in the order of time, and in random order.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from talos.data.interactions import Interactions
from talos.evaluation.evaluate import evaluate
from talos.evaluation.ranking import DotScores
from talos.losses import Talos
from talos.model.fold_in import fold_in
from talos.model.recommender import Recommender

MEANING = {
    "fold_in_over_trained_beauty": "R@20 of users folded in / of the same users trained in, Beauty",
    "fold_in_over_trained_ml100k": "the same on MovieLens-100K",
    "fold_in_one_ms": "milliseconds for one new user's vector, Beauty's catalogue",
    "fold_in_10000_seconds": "seconds for 10,000 new users' vectors at once, Beauty's catalogue",
    "partial_fit_recall_over_refit": "R@20 on the next tenth of Beauty by time after partial_fit / after a refit",
    "partial_fit_time_over_refit": "seconds of partial_fit / of the refit",
    "partial_fit_recall_over_refit_random": "the same R@20 ratio where the tenths are drawn at random",
    "partial_fit_time_over_refit_random": "its seconds / those of the refit",
}
K = 20
EPOCHS = 60


def measure(beauty: Interactions, movielens: Interactions, *, epochs: int = EPOCHS) -> dict[str, float]:
    """All figures; `beauty` must have timestamps."""
    figures = {**measure_fold_in(movielens, "ml100k", epochs=epochs, tau=0.2)}
    figures |= measure_fold_in(beauty, "beauty", epochs=epochs, tau=0.1)
    return figures | measure_partial_fit(beauty, epochs=epochs, tau=0.1)


def measure_fold_in(
    data: Interactions, name: str, *, tau: float, seed: int = 0, **settings: Any
) -> dict[str, float]:
    """Recall of folded-in users against the same users trained in; on Beauty also the time of fold-in."""
    rng = np.random.default_rng(seed)
    strangers = rng.permutation(data.num_users)[: data.num_users // 10]
    held = np.zeros(data.num_users, bool)
    held[strangers] = True
    parts = data.where(held[data.rows]).split(test=0.2, valid=0.0, seed=seed)
    others = data.where(~held[data.rows])
    settings |= {"k": K, "seed": seed, "loss": "talos", "tau": tau}
    trained = Recommender(**settings).fit(others.union(parts.train))
    known = _recall(trained, parts.test)
    model = Recommender(**settings).fit(others)
    vectors = _vectors(model)
    ends, items = torch.tensor(parts.train.indptr), torch.tensor(parts.train.indices, dtype=torch.int64)
    users = fold_in(vectors, ends, items, Talos(tau=tau), k=K)
    report = evaluate(DotScores(users, vectors), parts.test, seen=parts.train, ks=[K])
    folded = report.metrics[f"recall@{K}"]
    figures = {
        f"fold_in_over_trained_{name}": folded / known,
        f"fold_in_recall_{name}": folded,
        f"trained_in_recall_{name}": known,
        f"fold_in_users_{name}": float(report.num_users),
    }
    return figures | (_fold_in_seconds(model, data, Talos(tau=tau)) if name == "beauty" else {})


def _fold_in_seconds(
    model: Recommender, data: Interactions, loss: Talos, *, repeats: int = 50
) -> dict[str, float]:
    """Seconds for one user with a history of median length, and for 10,000 at once; the quickest of some calls."""
    vectors = _vectors(model)
    user = int(np.argsort(data.user_degrees, kind="stable")[data.num_users // 2])
    mine = data.indices[data.indptr[user] : data.indptr[user + 1]]
    places, end = torch.tensor(mine, dtype=torch.int64), torch.tensor([0, len(mine)])
    one, one_cpu = _quickest(lambda: fold_in(vectors, end, places, loss, k=K), repeats)
    ids = data.item_ids.decode(mine)
    whole_call, _ = _quickest(lambda: model.recommend(history=ids, k=K), repeats)
    many = min(10_000, data.num_users)
    ends = torch.tensor(data.indptr[: many + 1])
    items = torch.tensor(data.indices[: data.indptr[many]], dtype=torch.int64)
    batch, batch_cpu = _quickest(lambda: fold_in(vectors, ends, items, loss, k=K), 2)
    return {
        "fold_in_one_ms": 1000 * one,
        "fold_in_one_cpu_ms": 1000 * one_cpu,
        "recommend_history_ms": 1000 * whole_call,
        "fold_in_10000_seconds": batch * 10_000 / many,
        "fold_in_10000_cpu_seconds": batch_cpu * 10_000 / many,
    }


def _quickest(call: Callable[[], Any], repeats: int) -> tuple[float, float]:
    """Seconds of the clock and of the processor; on a shared machine only the latter exclude the work of others."""
    seconds, busy = [], []
    for _ in range(repeats):
        began, cpu = time.perf_counter(), time.process_time()
        call()
        seconds.append(time.perf_counter() - began)
        busy.append(time.process_time() - cpu)
    return min(seconds), min(busy)


def measure_partial_fit(data: Interactions, *, seed: int = 0, **settings: Any) -> dict[str, float]:
    """Update with one tenth and test on the next: the last two tenths by time, and two random ones."""
    assert data.timestamps is not None
    figures: dict[str, float] = {}
    by_time = np.argsort(data.timestamps, kind="stable")
    for ending, order in (("", by_time), ("_random", np.random.default_rng(seed).permutation(len(data)))):
        place = np.empty(len(data), np.int64)
        place[order] = np.arange(len(data))
        tenth = place * 10 // len(data)
        before, new, test = (data.where(rows) for rows in (tenth < 8, tenth == 8, tenth == 9))
        figures |= _partial_fit(before, new, test, ending, k=K, seed=seed, **settings)
    return figures


def _partial_fit(
    before: Interactions, new: Interactions, test: Interactions, ending: str, **settings: Any
) -> dict[str, float]:
    began = time.perf_counter()
    refit = Recommender(**settings).fit(before.union(new).compact())
    refit_seconds = time.perf_counter() - began
    model = Recommender(**settings).fit(before.compact())
    began = time.perf_counter()
    model.partial_fit(new.compact())
    seconds = time.perf_counter() - began
    reached, wanted = _recall(model, test), _recall(refit, test)
    return {
        f"partial_fit_recall_over_refit{ending}": reached / wanted,
        f"partial_fit_time_over_refit{ending}": seconds / refit_seconds,
        f"partial_fit_recall{ending}": reached,
        f"refit_recall{ending}": wanted,
        f"partial_fit_seconds{ending}": seconds,
        f"refit_seconds{ending}": refit_seconds,
    }


def _vectors(model: Recommender) -> torch.Tensor:
    assert model.model is not None
    return model.model.vectors.items


def _recall(model: Recommender, test: Interactions) -> float:
    return model.evaluate(test, k=K).metrics[f"recall@{K}"]
