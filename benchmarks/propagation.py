"""Times of several ways to propagate vectors along the bipartite graph; the fastest is `talos.backbones.propagate`.

`python benchmarks/propagation.py [--edges N] [--threads N] [--json]` on a synthetic graph of Gowalla's shape.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from talos.backbones import BipartiteGraph, LightGCN, XSimGCL, propagate
from talos.data.interactions import Interactions
from talos.data.vocabulary import Vocabulary

USERS, ITEMS, EDGES = 29_858, 40_988, 810_000


def skewed_interactions(
    users: int = USERS, items: int = ITEMS, edges: int = EDGES, seed: int = 0
) -> Interactions:
    """Random interactions with few active users and few popular items; repeated pairs are dropped."""
    rng = np.random.default_rng(seed)
    activity, popularity = rng.lognormal(0, 1, users), rng.permutation(1 / np.arange(1, items + 1) ** 0.6)
    return Interactions.from_codes(
        rng.choice(users, edges, p=activity / activity.sum()),
        rng.choice(items, edges, p=popularity / popularity.sum()),
        user_ids=Vocabulary.of(np.arange(users)),
        item_ids=Vocabulary.of(np.arange(items)),
    )


def milliseconds(function: Callable[[], object], repeats: int = 5) -> float:
    """The quickest of some runs, after one to warm up."""
    function()
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - start)
    return 1e3 * best


def propagation_times(
    train: Interactions | None = None, *, dim: int = 64, repeats: int = 5
) -> dict[str, Any]:
    """Milliseconds of one product with the normalised adjacency in each way, and of whole training passes."""
    import scipy.sparse

    train = skewed_interactions() if train is None else train
    graph = BipartiteGraph.from_interactions(train)
    users, items = torch.randn(train.num_users, dim), torch.randn(train.num_items, dim)
    both = torch.cat([users, items])
    half = scipy.sparse.csr_array(
        (graph.get_buffer("user_weights").numpy(), train.indices, train.indptr),
        shape=(train.num_users, train.num_items),
    )
    transposed = half.T.tocsr()
    whole = scipy.sparse.block_array([[None, half], [transposed, None]], format="csr")

    def csr(matrix: Any, kind: Any) -> Tensor:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta", UserWarning)
            return torch.sparse_csr_tensor(
                torch.from_numpy(matrix.indptr.astype(kind)),
                torch.from_numpy(matrix.indices.astype(kind)),
                torch.from_numpy(matrix.data),
                size=matrix.shape,
                check_invariants=False,
            )

    def halves(product: Callable[[Tensor, Tensor], Tensor], r: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        return product(r, items), product(t, users)

    ways: dict[str, Callable[[], object]] = {}
    for kind, label in ((np.int64, "64-bit"), (np.int32, "32-bit")):
        a, r, t = (csr(matrix, kind) for matrix in (whole, half, transposed))
        ways[f"torch CSR @, whole, {label}"] = partial(torch.matmul, a, both)
        ways[f"torch CSR @, two halves, {label}"] = partial(halves, torch.matmul, r, t)
    ways["torch.sparse.mm, halves, precomputed transpose"] = partial(halves, torch.sparse.mm, r, t)
    ways["torch.sparse.mm reduce='sum', two halves"] = lambda: (
        torch.sparse.mm(r, items, "sum"),
        torch.sparse.mm(t, users, "sum"),
    )
    coo = a.to_sparse_coo().coalesce()  # type: ignore[no-untyped-call]
    ways["torch COO, whole"] = lambda: torch.sparse.mm(coo, both)
    ways["scipy CSR @, two halves (one thread)"] = lambda: (half @ items.numpy(), transposed @ users.numpy())
    ways["propagate: embedding_bag, two halves"] = lambda: propagate(graph, users, items)

    generator = torch.Generator().manual_seed(0)

    def training_pass(model: LightGCN | XSimGCL) -> Callable[[], object]:
        def run() -> None:
            vectors = model.propagated(generator)
            torch.autograd.grad(vectors, list(model.tables()), (users, items))

        return run

    ways["LightGCN, 2 layers, forward + backward"] = training_pass(
        LightGCN(graph, dim=dim, generator=generator)
    )
    ways["XSimGCL, 3 layers, forward + backward"] = training_pass(
        XSimGCL(graph, dim=dim, generator=generator)
    )
    return {
        "users": train.num_users,
        "items": train.num_items,
        "edges": len(train),
        "dim": dim,
        "threads": torch.get_num_threads(),
        "milliseconds": {name: round(milliseconds(way, repeats), 2) for name, way in ways.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--edges", type=int, default=EDGES)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    result = propagation_times(skewed_interactions(edges=options.edges))
    if options.json:
        print(json.dumps(result))
        return
    print(f"{result['users']:,} users × {result['items']:,} items, {result['edges']:,} edges, ", end="")
    print(f"dimension {result['dim']}, {result['threads']} threads")
    for name, taken in result["milliseconds"].items():
        print(f"{name:<50}{taken:>10.1f} ms")


if __name__ == "__main__":
    main()
