"""Lists of 10,000 known users against implicit's batched `recommend` with the same vectors, in one process.

Both return the best 20 unseen items of each user; ours also translates ids into positions and back and builds a data
frame. The lists are compared before anything is timed. The bare product of the vectors is timed as well, as a lower
bound for any method that scores all items.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from talos.data.interactions import Interactions
from talos.evaluation.ranking import DEFAULT_BUDGET, DotScores, top_k
from talos.model.model import Model, Vectors
from talos.model.recommender import Recommender

MEANING = {
    "recommend_over_implicit": "users per second of `recommend`, 10,000 users at K = 20 / implicit's, same vectors",
}


def measure(train: Interactions, *, users: int = 10_000, k: int = 20, repeats: int = 5) -> dict[str, float]:
    """Users per second of both, the best of `repeats` each, taken in turns so that both see the same machine."""
    generator = torch.Generator().manual_seed(0)
    user_vectors = F.normalize(torch.randn(train.num_users, 64, generator=generator))
    item_vectors = F.normalize(torch.randn(train.num_items, 64, generator=generator))
    recommender = Recommender(k=k)
    recommender.model = Model(scored_by=Vectors(user_vectors, item_vectors), train=train)
    rng = np.random.default_rng(0)
    codes = np.sort(rng.choice(train.num_users, min(users, train.num_users), replace=False))
    ids = train.user_ids.decode(codes)
    theirs = given_vectors(user_vectors.numpy(), item_vectors.numpy())
    rows = train.to_scipy().astype(np.float32)
    chosen = legacy_matrix(rows[codes])

    def implicit() -> Any:
        return theirs.recommend(codes, chosen, N=k, filter_already_liked_items=True)

    _compare(recommender, train, codes, implicit()[0], k)
    chunk = DEFAULT_BUDGET // (4 * train.num_items)
    # rows aligned to 128 bytes, as ours are: without that, the product is a third slower
    buffer = torch.empty(chunk, -(-train.num_items // 32) * 32)[:, : train.num_items]
    wanted = user_vectors[codes]

    def product() -> None:
        for low in range(0, len(codes), chunk):
            some = wanted[low : low + chunk]
            torch.mm(some, item_vectors.T, out=buffer[: len(some)])

    calls = (lambda: recommender.recommend(ids, k=k), implicit, product)
    rows_of = list(zip(*([_timed(call) for call in calls] for _ in range(repeats)), strict=True))
    ours, other, bare = (min(clock for clock, _ in row) for row in rows_of)
    our_cpu, other_cpu, bare_cpu = (min(cpu for _, cpu in row) for row in rows_of)
    return {
        "recommend_over_implicit": other / ours,
        "recommend_users_per_second": len(codes) / ours,
        "implicit_users_per_second": len(codes) / other,
        "bare_product_users_per_second": len(codes) / bare,
        # processor time: on a shared machine the clock also measures the work of others
        "recommend_over_implicit_cpu": other_cpu / our_cpu,
        "recommend_cpu_seconds": our_cpu,
        "implicit_cpu_seconds": other_cpu,
        "bare_product_cpu_seconds": bare_cpu,
    }


def _timed(call: Callable[[], Any]) -> tuple[float, float]:
    began, cpu = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - began, time.process_time() - cpu


def given_vectors(user_vectors: np.ndarray[Any, Any], item_vectors: np.ndarray[Any, Any]) -> Any:
    """Implicit's model with our vectors, on as many threads as we use."""
    from implicit.cpu.matrix_factorization_base import MatrixFactorizationBase

    class Given(MatrixFactorizationBase):  # type: ignore[misc]  # implicit has no types
        def fit(self, user_items: Any, show_progress: bool = True) -> None:
            """There is nothing to fit."""

        def save(self, fileobj_or_path: Any) -> None:
            """There is nothing to save."""

    model = Given(num_threads=torch.get_num_threads())
    model.user_factors, model.item_factors = user_vectors, item_vectors
    return model


def legacy_matrix(rows: Any) -> Any:
    """The older sparse matrix class, which implicit expects."""
    import scipy.sparse

    return scipy.sparse.csr_matrix(rows)


def _compare(
    recommender: Recommender, train: Interactions, codes: np.ndarray[Any, Any], theirs: Any, k: int
) -> None:
    model = recommender.model
    assert model is not None
    ours = top_k(DotScores(model.vectors.users, model.vectors.items), codes, k=k, seen=train).items
    same = float((np.sort(ours, 1) == np.sort(theirs, 1)).mean())
    if same < 0.999:  # the last place may go to either of two items whose scores differ by a rounding error
        raise AssertionError(f"implicit's lists agree with ours in {same:.1%} of the places only")
