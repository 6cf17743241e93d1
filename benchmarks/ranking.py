"""Top 100 of every user over the whole catalogue, seen items masked, against a bare product and top-K."""

from __future__ import annotations

import time

import torch
import torch.nn.functional as F

from talos.data.interactions import Interactions
from talos.evaluation.ranking import DEFAULT_BUDGET, DotScores, iter_top_k

MEANING = {
    "ranking_over_bare": "top-100 of all users with masking / matmul + topk loop of the same chunking",
    "ranking_buffer_over_budget": "largest chunk of scores held / memory budget",
}


def measure(train: Interactions, *, k: int = 100, repeats: int = 3) -> dict[str, float]:
    """Seconds of both, the best of `repeats` each, taken in turns so that both see the same machine."""
    generator = torch.Generator().manual_seed(0)
    users = F.normalize(torch.randn(train.num_users, 64, generator=generator))
    items = F.normalize(torch.randn(train.num_items, 64, generator=generator))
    chunk = DEFAULT_BUDGET // (4 * train.num_items)
    bare, ours = [], []
    for _ in range(repeats):
        start = time.perf_counter()
        for low in range(0, len(users), chunk):
            torch.topk(users[low : low + chunk] @ items.T, k)
        bare.append(time.perf_counter() - start)
        start = time.perf_counter()
        for _ in iter_top_k(DotScores(users, items), k=k, seen=train):
            pass
        ours.append(time.perf_counter() - start)
    return {
        "ranking_over_bare": min(ours) / min(bare),
        "ranking_buffer_over_budget": chunk * 4 * train.num_items / DEFAULT_BUDGET,
        "ranking_seconds": min(ours),
        "bare_product_and_topk_seconds": min(bare),
    }
