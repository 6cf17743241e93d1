"""A whole epoch over all items, thresholds and optimiser included, against a lower bound of its time.

The bound is the time that the three products of an exact epoch (scores and both gradients, 6·users·items·64
operations) would take at the rate of the fastest square product measured in the same run.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from talos import kernels
from talos.config import RunConfig
from talos.data.interactions import Interactions
from talos.kernels import core
from talos.losses import Talos
from talos.training import Trainer

from .training import epoch_seconds

MEANING = {
    "exact_over_bound_beauty": "exact epoch on Beauty / three bare products at the best square rate",
    "exact_over_bound_gowalla": "exact epoch on Gowalla / three bare products at the best square rate",
    "bfloat16_over_bound_beauty": "the same epoch with products of bfloat16 (the default where there are any), Beauty",
    "bfloat16_over_bound_gowalla": "the same with products of bfloat16, Gowalla",
    "torch_over_bound_beauty": "the same without the compiled core, Beauty",
    "torch_over_bound_gowalla": "the same without the compiled core, Gowalla",
    "bpr_over_talos_beauty": "epoch of BPR over all items / Talos in the same arithmetic, Beauty",
    "psl_over_talos_beauty": "epoch of PSL over all items / Talos in the same arithmetic, Beauty",
    "rsk_over_talos_beauty": "epoch of RS@K over all items / Talos in the same arithmetic, Beauty",
    "smoothi_over_talos_beauty": "epoch of SmoothI@K over all items / Talos in the same arithmetic, Beauty",
    "advinfonce_over_talos_beauty": "epoch of AdvInfoNCE over all items / Talos in the same arithmetic, Beauty",
    "bpr_over_talos_gowalla": "epoch of BPR over all items / Talos in the same arithmetic, Gowalla",
    "psl_over_talos_gowalla": "epoch of PSL over all items / Talos in the same arithmetic, Gowalla",
    "rsk_over_talos_gowalla": "epoch of RS@K over all items / Talos in the same arithmetic, Gowalla",
    "smoothi_over_talos_gowalla": "epoch of SmoothI@K over all items / Talos in the same arithmetic, Gowalla",
    "advinfonce_over_talos_gowalla": "epoch of AdvInfoNCE over all items / Talos in the same arithmetic, Gowalla",
    "core_thread_scaling": "compiled step on one thread / on all of them (two at most), 512 users × Gowalla's items",
    "exact_extra_mb": "peak memory of an exact Gowalla epoch beyond data, tables and optimiser, MB",
}
SETTINGS: dict[str, Any] = {"negatives": "all", "threshold.name": "exact", "training.batch_size": 512}
# Losses with more than one sum for each user. SmoothI@K is always computed in float32.
OTHERS: dict[str, dict[str, Any]] = {
    "bpr": {"loss.name": "bpr", "optimizer.lr": 0.01},
    "psl": {"loss.name": "psl", "loss.tau": 0.1},
    "rsk": {"loss.name": "rs@k", "loss.tau1": 0.05, "loss.tau2": 5.0},
    "smoothi": {"loss.name": "smoothi@k", "loss.tau": 0.1, "loss.delta": 0.1},
    "advinfonce": {"loss.name": "advinfonce", "loss.tau": 0.1},
}
DIM = 64


def measure(gowalla_train: Interactions, beauty_train: Interactions) -> dict[str, float]:
    """Ratios to the bound on both data sets, with the core (if it is installed) and without; and the seconds."""
    figures: dict[str, float] = {}
    sets = {"beauty": beauty_train, "gowalla": gowalla_train}
    for name, train in sets.items():
        rate = best_square_rate()
        runs = {"torch": ("torch", "float32", 4), "exact": ("auto", "float32", 4)}
        if core.has_bfloat16():
            runs["bfloat16"] = ("auto", "bfloat16", 4)
        for kind, (choice, arithmetic, epochs) in runs.items():
            settings = {**SETTINGS, "training.arithmetic": arithmetic}
            with kernel(choice):
                figures[f"{kind}_epoch_seconds_{name}"] = epoch_seconds(train, epochs=epochs, **settings)
        rate = max(rate, best_square_rate())
        users = int((train.user_degrees > 0).sum())
        bound = 6.0 * users * train.num_items * DIM / rate
        figures[f"bound_seconds_{name}"] = bound
        if core.levels():
            figures |= other_losses(name, train, figures)
        for kind in runs:
            figures[f"{kind}_over_bound_{name}"] = figures[f"{kind}_epoch_seconds_{name}"] / bound
        figures[f"square_gflops_{name}"] = rate / 1e9
    figures |= steps(gowalla_train.num_items)
    figures["exact_extra_mb"] = extra_megabytes(gowalla_train)
    return figures


def other_losses(
    name: str, train: Interactions, talos: dict[str, float], epochs: int = 2
) -> dict[str, float]:
    """Seconds of an epoch of each of `OTHERS` over all items, and its ratio to Talos in the same arithmetic."""
    figures: dict[str, float] = {}
    fixed = {"negatives": "all", "training.batch_size": SETTINGS["training.batch_size"]}
    for loss, options in OTHERS.items():
        half = loss != "smoothi" and core.has_bfloat16()
        arithmetic, kind = ("bfloat16", "bfloat16") if half else ("float32", "exact")
        settings = {**fixed, **options, "training.arithmetic": arithmetic}
        seconds = epoch_seconds(train, epochs=epochs, **settings)
        figures[f"{loss}_epoch_seconds_{name}"] = seconds
        figures[f"{loss}_over_talos_{name}"] = seconds / talos[f"{kind}_epoch_seconds_{name}"]
    return figures


def best_square_rate(size: int = 2048, repeats: int = 12) -> float:
    """Operations a second of a square float32 product, the quickest of a few."""
    a, b = torch.randn(2, size, size)
    return 2 * size**3 / quickest(lambda: a @ b, repeats)


def steps(items: int, users: int = 512) -> dict[str, float]:
    """Seconds of one batch in the core: with and without thresholds, on one thread and on two; empty without it."""
    if not core.levels():
        return {}
    rng = torch.Generator().manual_seed(0)
    vectors, table = (F.normalize(torch.randn(n, DIM, generator=rng)) for n in (users, items))
    phi, ones = Talos(tau=0.1).phi, torch.full((users,), 1 / users)
    gradients: dict[str, Any] = {
        "user_gradient": torch.empty_like(vectors),
        "item_gradient": torch.empty_like(table),
    }

    def seconds(threads: int, exact: bool) -> float:
        beta = None if exact else torch.full((users,), 0.4)
        options: dict[str, Any] = {"k": 20, "kth_is_threshold": True} if exact else {}
        return quickest(
            lambda: core.sweep(
                vectors,
                table,
                None,
                beta,
                ones,
                kind=phi.kind,
                params=[float(one) for one in phi.params],
                threads=threads,
                **gradients,
                **options,
            ),
            10,
        )

    many = min(2, torch.get_num_threads())
    one, all_of_them = seconds(1, True), seconds(many, True)
    return {
        "core_thread_scaling": one / all_of_them,
        "core_step_seconds_1_thread": one,
        f"core_step_seconds_{many}_threads": all_of_them,
        "core_threshold_share": all_of_them / seconds(many, False) - 1,
    }


def extra_megabytes(train: Interactions) -> float:
    """Peak memory that an epoch adds, without the gradients and moments of the tables.

    Measured in a process of its own, so that nothing else has raised its peak before.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.npz"
        np.savez(
            path, users=np.repeat(np.arange(train.num_users), np.diff(train.indptr)), items=train.indices
        )
        found = subprocess.run(
            [sys.executable, "-m", __name__, str(path)], check=True, capture_output=True, text=True
        )
    return float(found.stdout)


def _measure_memory(path: Path) -> float:
    arrays = np.load(path)
    train = Interactions.from_ids(arrays["users"], arrays["items"])
    trainer = Trainer(RunConfig().with_values({**SETTINGS, "training.epochs": 1}), train)
    torch.randn(512, 512) @ torch.randn(512, 512)  # libraries allocate memory of their own at the first call
    before = _resident()
    trainer.fit()
    after = _peak()
    own = sum(p.numel() * p.element_size() for p in trainer.objective.backbone.parameters())
    return float(after - before - 2 * own) / 2**20  # Adam's two moments


def _peak() -> int:
    """Highest resident memory of this process; getrusage would include its parent's at the time of the fork."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmHWM"))) * 1024


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def quickest(work: Callable[[], Any], repeats: int) -> float:
    """Seconds of the quickest of a few runs."""
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


@contextmanager
def kernel(choice: str) -> Iterator[None]:
    """Set TALOS_KERNEL for the duration of the block."""
    before = os.environ.get("TALOS_KERNEL")
    os.environ["TALOS_KERNEL"] = choice
    try:
        yield
    finally:
        if before is None:
            del os.environ["TALOS_KERNEL"]
        else:
            os.environ["TALOS_KERNEL"] = before


if __name__ == "__main__":
    if len(sys.argv) == 2:
        print(_measure_memory(Path(sys.argv[1])))
    else:
        print(kernels.status())
