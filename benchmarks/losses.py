"""Time per call of every loss, forward and backward, against the softmax loss on the same tensors.

    python benchmarks/losses.py [--rows 1024] [--columns 1024] [--repeats 7] [--json]

`talos + threshold` is a whole step of the loss: look up the thresholds, loss, backward, update the thresholds.
`sl` is `talos.losses.Softmax`; `sl (plain)` is the bare expression -s/τ + logsumexp(s/τ).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from talos import losses, registry, thresholds

MEANING = {
    "talos_with_threshold_over_sl": "Talos with its threshold look-up and update / SL, B = N = 1,024, with backward"
}


def measure() -> dict[str, float]:
    """The figures for the suite."""
    found = loss_times()
    ratio = {"talos_with_threshold_over_sl": found["talos_with_threshold_over_sl"]}
    return ratio | {f"loss_over_sl.{name}": value for name, value in found["over_sl"].items()}


def loss_times(rows: int = 1024, columns: int = 1024, repeats: int = 7, seed: int = 0) -> dict[str, Any]:
    """Seconds per call by loss, and the ratio to SL.

    The losses take turns, a few calls at a time, so that a busy moment of the machine slows all of them; the first
    call of a turn is not counted, because it also pays for memory that the loss before has used.
    """
    rng = torch.Generator().manual_seed(seed)
    num_users, num_items = 10 * rows, 10 * columns
    pos = (torch.rand(rows, generator=rng) * 2 - 1).requires_grad_()
    neg = (torch.rand(rows, columns, generator=rng) * 2 - 1).requires_grad_()
    users = torch.randint(0, num_users, (rows,), generator=rng)
    items = torch.randint(0, num_items, (rows, columns), generator=rng)
    beta = torch.rand(rows, generator=rng) / 2
    regression = thresholds.QuantileRegression(num_users, k=20, num_items=num_items)

    def step_of(loss: losses.Loss) -> Callable[[], None]:
        extra: dict[str, Tensor] = {"threshold": beta} if loss.needs.threshold else {}
        if loss.needs.ids:
            extra |= {"users": users, "items": items}
        one = loss.needs.negatives == "one"

        def step() -> None:
            pos.grad = neg.grad = None
            loss(pos, neg[:, :1] if one else neg, **extra).mean().backward()

        return step

    def talos_with_threshold() -> None:
        pos.grad = neg.grad = None
        talos(pos, neg, threshold=regression.value(users)).mean().backward()
        regression.update(users, pos.detach(), neg.detach())

    def plain() -> None:
        pos.grad = neg.grad = None
        (-pos / 0.1 + torch.logsumexp(neg / 0.1, dim=1)).mean().backward()  # type: ignore[no-untyped-call]

    talos = losses.Talos(tau=0.1)
    steps: dict[str, Callable[[], None]] = {"sl (plain)": plain}
    for name in registry.names("loss"):
        steps[name] = step_of(registry.make_loss(name, k=20, num_users=num_users, num_items=num_items))
    steps["talos + threshold"] = talos_with_threshold

    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(repeats):
        for name, step in steps.items():
            for call in range(4):
                start = time.perf_counter()
                step()
                if call:
                    times[name].append(time.perf_counter() - start)
    seconds = {name: statistics.median(taken) for name, taken in times.items()}
    return {
        "rows": rows,
        "columns": columns,
        "threads": torch.get_num_threads(),
        "seconds": seconds,
        "over_sl": {name: value / seconds["sl"] for name, value in seconds.items()},
        "talos_with_threshold_over_sl": seconds["talos + threshold"] / seconds["sl"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Time per call of every loss against SL.")
    parser.add_argument("--rows", type=int, default=1024)
    parser.add_argument("--columns", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    found = loss_times(args.rows, args.columns, args.repeats)
    if args.json:
        print(json.dumps(found))
        return
    print(f"B={found['rows']} N={found['columns']} float32, {found['threads']} threads")
    print(f"{'loss':<20}{'ms':>9}{'× SL':>8}")
    for name, seconds in sorted(found["seconds"].items(), key=lambda pair: pair[1]):
        print(f"{name:<20}{seconds * 1e3:>9.2f}{found['over_sl'][name]:>8.2f}")


if __name__ == "__main__":
    main()
