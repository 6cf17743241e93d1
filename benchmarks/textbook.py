"""The reference: a training step as it is commonly written, and parts of Talos beside it.

For every positive 1,024 uniform negatives, `item_table[negatives]` gathered to (B, n, d), normalised,
multiplied by `bmm`, the loss in plain torch, `backward` and `torch.optim.Adam` on whole tables. It is not made slower
than usual: negatives are not checked against the user's positives, and there is no dense users × items mask.

`python benchmarks/textbook.py [PATH of interactions] [--steps N] [--threads N] [--json]`
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from talos.data.interactions import Interactions
from talos.data.open import read
from talos.data.vocabulary import Vocabulary
from talos.kernels.csr import TrainIndex
from talos.kernels.sampled import Way, sampled_scores
from talos.negatives import UniformNegatives


def textbook_step(
    train: Interactions, *, batch: int = 1024, n: int = 1024, dim: int = 64, tau: float = 0.1, seed: int = 0
) -> Callable[[], Tensor]:
    """A function that makes one training step with the sampled Talos loss and fixed thresholds."""
    generator = torch.Generator().manual_seed(seed)
    user_table = torch.nn.Embedding(train.num_users, dim)
    item_table = torch.nn.Embedding(train.num_items, dim)
    optimizer = torch.optim.Adam([*user_table.parameters(), *item_table.parameters()], lr=0.1)
    beta = torch.full((train.num_users,), 0.3)
    rows, columns = torch.tensor(train.rows).long(), torch.tensor(train.indices).long()

    def step() -> Tensor:
        chosen = torch.randint(len(rows), (batch,), generator=generator)
        users, positives = rows[chosen], columns[chosen]
        negatives = torch.randint(train.num_items, (batch, n), generator=generator)
        user = F.normalize(user_table(users), dim=-1)
        positive = F.normalize(item_table(positives), dim=-1)
        negative = F.normalize(item_table(negatives), dim=-1)  # (B, n, d)
        threshold = beta[users].unsqueeze(-1)
        of_positive = (user * positive).sum(-1, keepdim=True)
        of_negatives = torch.bmm(negative, user.unsqueeze(-1)).squeeze(-1)
        weighed = F.logsigmoid(of_negatives - threshold) / tau
        loss = (
            torch.logsumexp(weighed, -1) - (F.logsigmoid(of_positive - threshold) / tau).squeeze(-1)
        ).mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.detach()

    return step


def textbook_epoch_seconds(
    train: Interactions, *, batch: int = 1024, n: int = 1024, dim: int = 64, steps: int | None = None
) -> float:
    """Seconds of an epoch of the textbook step over all positives of train.

    Times `steps` steps (3 if None, at most an epoch of them) after one to warm up, and extrapolates.
    """
    in_epoch = math.ceil(len(train) / batch)
    timed = min(in_epoch, 3 if steps is None else max(1, steps))
    step = textbook_step(train, batch=batch, n=n, dim=dim)
    step()
    start = time.perf_counter()
    for _ in range(timed):
        step()
    return (time.perf_counter() - start) / timed * in_epoch


def sampled_scores_times(
    *, batch: int = 1024, n: int = 1024, num_items: int = 8_693, dim: int = 64, repeats: int = 3
) -> dict[str, Any]:
    """Milliseconds, forward and backward, of the scores alone: gather + bmm, and `sampled_scores` both ways."""
    generator = torch.Generator().manual_seed(0)
    users = torch.randn(batch, dim, generator=generator, requires_grad=True)
    table = torch.randn(num_items, dim, generator=generator, requires_grad=True)
    items = torch.randint(num_items, (batch, n), generator=generator)
    slope = torch.randn(batch, n, generator=generator)

    def textbook() -> Tensor:
        return torch.bmm(F.embedding(items, table), users.unsqueeze(-1)).squeeze(-1)

    def ours(way: Way | None) -> Callable[[], Tensor]:
        return lambda: sampled_scores(users, table, items, way=way)

    def timed(scores: Callable[[], Tensor]) -> float:
        taken = []
        for _ in range(repeats + 1):
            start = time.perf_counter()
            torch.autograd.grad(scores(), (users, table), slope)
            taken.append(time.perf_counter() - start)
        return round(1e3 * min(taken[1:]), 2)

    return {
        "batch": batch,
        "n": n,
        "items": num_items,
        "dim": dim,
        "milliseconds": {
            "textbook gather + bmm": timed(textbook),
            "sampled_scores, sparse": timed(ours("sparse")),
            "sampled_scores, dense": timed(ours("dense")),
            "sampled_scores, chosen": timed(ours(None)),
        },
    }


def draw_times(train: Interactions, *, batch: int = 1024, n: int = 1024, repeats: int = 3) -> float:
    """Milliseconds to draw (batch, n) negatives from outside the users' positives."""
    index, generator = TrainIndex.from_interactions(train), torch.Generator().manual_seed(0)
    users = torch.randint(train.num_users, (batch,), generator=generator)
    taken = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        UniformNegatives(n).draw(index, users, generator)
        taken.append(time.perf_counter() - start)
    return round(1e3 * min(taken[1:]), 2)


def random_interactions(users: int, items: int, pairs: int, seed: int = 0) -> Interactions:
    """Uniform random pairs, for when there is no file at hand."""
    rng = np.random.default_rng(seed)
    return Interactions.from_codes(
        rng.integers(users, size=pairs),
        rng.integers(items, size=pairs),
        user_ids=Vocabulary.of(np.arange(users)),
        item_ids=Vocabulary.of(np.arange(items)),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", nargs="?")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    train = read(options.path) if options.path else random_interactions(13_600, 8_693, 150_000)
    result: dict[str, Any] = {
        "train": repr(train),
        "threads": torch.get_num_threads(),
        "textbook_epoch_seconds": round(textbook_epoch_seconds(train, steps=options.steps), 2),
        "draw_milliseconds": draw_times(train),
        "scores": [sampled_scores_times(num_items=items) for items in (3_000, 8_693, 40_988)],
    }
    if options.json:
        print(json.dumps(result))
        return
    print(f"{train!r}, {result['threads']} threads")
    print(f"{'textbook epoch':<32}{result['textbook_epoch_seconds']:>10.1f} s")
    print(f"{'UniformNegatives(1024), a batch':<32}{result['draw_milliseconds']:>10.1f} ms")
    for scores in result["scores"]:
        print(f"scores of {scores['batch']} × {scores['n']} out of {scores['items']:,} items")
        for name, taken in scores["milliseconds"].items():
            print(f"  {name:<30}{taken:>10.1f} ms")


if __name__ == "__main__":
    main()
