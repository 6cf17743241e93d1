"""Time and peak memory of an epoch with shared negatives for growing data: no tensor of users × items is made.

`python benchmarks/scale.py [--json]` runs each size in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from typing import Any

SIZES = ((10_000, 10_000, 200_000), (100_000, 100_000, 2_000_000), (1_000_000, 1_000_000, 20_000_000))
MEANING = {
    "scale_peak_gb_1m": "peak memory (2^30 bytes) of an epoch on 1M users × 1M items × 20M interactions",
    "scale_epoch_seconds_1m": "seconds of that epoch",
    "scale_torch_over_core_100k": "epoch of 100k × 100k × 2M with shared negatives in torch / in the compiled core",
    "scale_user_seconds_1m_over_100k": "seconds a user with 1M items / with 100k items, in the compiled core",
}

_CODE = """
import json, resource, sys, time
from talos.data import datasets
from talos.config import RunConfig
from talos.training import Trainer
from talos.training.plan import SHARED_NEGATIVES
users, items, interactions = map(int, sys.argv[1:4])
data = datasets.synthetic(users=users, items=items, interactions=interactions, seed=0)
made = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
values = {"negatives": f"shared:{SHARED_NEGATIVES}", "training.epochs": 1, "training.batch_size": 2048}
trainer = Trainer(RunConfig().with_values(values), data)
began = time.perf_counter()
trainer.fit()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"users": users, "items": items, "interactions": len(data),
                  "epoch_seconds": time.perf_counter() - began, "data_peak_gb": made / 2**20, "peak_gb": peak / 2**20}))
"""


def epoch(users: int, items: int, interactions: int, *, kernel: str = "auto") -> dict[str, Any]:
    """One size in a fresh process, with the compiled core (if it is installed) or in torch."""
    command = [sys.executable, "-c", _CODE, *map(str, (users, items, interactions))]
    environment = {**os.environ, "TALOS_KERNEL": kernel}
    result: dict[str, Any] = json.loads(
        subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
    )
    return result


def measure() -> dict[str, float]:
    """Time and memory for each size."""
    figures: dict[str, float] = {}
    for (users, items, interactions), name in zip(SIZES, ("10k", "100k", "1m"), strict=True):
        found = epoch(users, items, interactions)
        figures[f"scale_epoch_seconds_{name}"] = found["epoch_seconds"]
        figures[f"scale_peak_gb_{name}"] = found["peak_gb"]
    in_torch = epoch(*SIZES[1], kernel="torch")["epoch_seconds"]
    figures["scale_torch_epoch_seconds_100k"] = in_torch
    figures["scale_torch_over_core_100k"] = in_torch / figures["scale_epoch_seconds_100k"]
    each = {
        name: figures[f"scale_epoch_seconds_{name}"] / size[0]
        for size, name in zip(SIZES[1:], ("100k", "1m"), strict=True)
    }
    figures["scale_user_seconds_1m_over_100k"] = each["1m"] / each["100k"]
    return figures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    if parser.parse_args().json:
        print(json.dumps(measure()))
    else:
        for size in SIZES:
            print(epoch(*size))
