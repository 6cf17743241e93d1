"""Error of each threshold estimator against the exact K-th score, on fixed random scores.

    python benchmarks/thresholds.py [--users 200] [--items 5000] [--k 20] [--json]

Every user has 10 positives that score higher than the rest on average; each step draws n negatives per user.
The error is the mean over users of |estimate - exact|.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import torch
from torch import Tensor

from talos import registry, thresholds

POSITIVES = 10


def planted_scores(users: int, items: int, seed: int = 0) -> Tensor:
    """Scores like those of a trained model: cosines around 0, the first ten of each row (the positives) higher."""
    rng = torch.Generator().manual_seed(seed)
    scores = torch.randn(users, items, generator=rng) * 0.15
    scores[:, :POSITIVES] += 0.45
    return scores.clamp_(-1, 1)


def run(
    estimator: thresholds.Threshold, scores: Tensor, *, samples: int, steps: int, seed: int = 1
) -> dict[str, float]:
    """Update the estimator `steps` times; returns the seconds that took."""
    users, items = scores.shape
    rng = torch.Generator().manual_seed(seed)
    everyone, owner = torch.arange(users), torch.arange(users).repeat_interleave(POSITIVES)
    start = time.perf_counter()
    for _ in range(steps):
        drawn = torch.randint(POSITIVES, items, (users, samples), generator=rng)
        estimator.update(everyone, scores[:, :POSITIVES].flatten(), scores.gather(1, drawn), owner=owner)
    return {"seconds": time.perf_counter() - start}


def threshold_errors(
    users: int = 200,
    items: int = 5000,
    k: int = 20,
    samples: tuple[int, ...] = (100, 1000),
    steps: tuple[int, ...] = (250, 1000, 3000),
) -> list[dict[str, Any]]:
    """One row per estimator, number of negatives and number of steps."""
    scores = planted_scores(users, items)
    exact = scores.topk(k).values[:, -1]
    everyone = torch.arange(users)
    counts = torch.full((users,), POSITIVES)
    rows: list[dict[str, Any]] = []
    for n in samples:
        for name, lr, count in (
            *(("regression", lr, count) for lr in (1e-3, 1e-2) for count in steps),
            ("monte-carlo", None, 1),
        ):
            options = {} if lr is None else {"lr": lr}
            estimator = registry.make_threshold(
                name, num_users=users, k=k, num_items=items, num_positives=counts, **options
            )
            taken = run(estimator, scores, samples=n, steps=count)
            rows.append(
                {
                    "threshold": name,
                    "lr": lr,
                    "negatives": n,
                    "steps": count,
                    "error": estimator.error_against(exact),
                    "bias": (estimator.value(everyone) - exact).mean().item(),
                    **taken,
                }
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="Threshold estimators against the exact K-th score.")
    parser.add_argument("--users", type=int, default=200)
    parser.add_argument("--items", type=int, default=5000)
    parser.add_argument("--k", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = threshold_errors(args.users, args.items, args.k)
    if args.json:
        print(json.dumps(rows))
        return
    print("| threshold | lr | negatives | steps | mean error | mean signed error |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        lr = "" if row["lr"] is None else f"{row['lr']:g}"
        print(
            f"| {row['threshold']} | {lr} | {row['negatives']} | {row['steps']}"
            f" | {row['error']:.3f} | {row['bias']:+.3f} |"
        )


if __name__ == "__main__":
    main()
