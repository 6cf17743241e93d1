"""One rank of a test: trains what a JSON file lists, one job after the other, and leaves vectors and facts."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from talos import distributed
from talos.config import RunConfig
from talos.data.interactions import Interactions
from talos.training import Callback, Trainer

# a backbone that reads histories
sys.path.append(str(Path(__file__).parents[1] / "training" / "modules"))
BASE = {
    "k": 5,
    "training.arithmetic": "float32",  # roundings to bfloat16 would tell apart what float32 hardly does
    "backbone.dim": 8,
    "training.epochs": 3,
    "training.parallel": "users",
    "training.batch_size": 7,  # now and then a rank has nobody in a batch
    "training.evaluate_every": 1,
    "training.metric": "ndcg",  # hardly ever equal in two epochs, so that rounding does not decide
}


def data() -> tuple[Interactions, Interactions]:
    """53 users (no number of ranks divides them) who like one of four groups of items, some without any."""
    rng = np.random.default_rng(0)
    pairs = np.array(
        [(user, item) for user in range(53) for item in range(31)
         if rng.random() < (0.6 if item % 4 == user % 4 else 0.1)]
    )  # fmt: skip
    times = np.random.default_rng(1).integers(0, 1000, len(pairs))
    whole = Interactions.from_ids(pairs[:, 0], pairs[:, 1], timestamps=times)
    valid = rng.random(len(whole)) < 0.2
    quiet = np.isin(whole.rows, [3, 20, 21])  # users whose interactions are all in validation
    return whole.where(~valid & ~quiet), whole.where(valid | quiet)


class Losses(Callback):
    """Keeps the loss of every epoch; what watches is told on rank 0 alone."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def on_epoch(self, record: dict[str, Any]) -> None:
        self.values.append(record["loss"])


class Stop(Callback):
    """Asks rank 0 to stop after some steps, as a signal would."""

    def __init__(self, steps: int) -> None:
        self.left, self.trainer = steps, None

    def on_step(self, epoch: int, step: int, loss: float) -> None:
        self.left -= 1
        if self.left == 0:
            self.trainer.stop_requested = True  # type: ignore[attr-defined]


def run(job: dict[str, Any], out: Path, group: distributed.Group) -> None:
    os.environ["TALOS_KERNEL"] = job.get("kernel", "auto")
    train, valid = data()
    values = dict(job.get("values", {}))
    if job.get("differ") == group.rank:
        values["training.epochs"] = 4
    if job.get("other_data") == group.rank:
        train = train.where(np.arange(len(train)) > 0)
    stop, watch = Stop(job["stop"]) if "stop" in job else None, Losses()
    error = None
    try:
        trainer = Trainer(
            RunConfig().with_values(BASE | values),
            train,
            valid if job.get("valid", True) else None,
            folder=out / job["folder"] if "folder" in job else None,
            callbacks=[stop, watch] if stop else [watch],
            group=group,
        )
        if stop:
            stop.trainer = trainer  # type: ignore[assignment]
        resumed = trainer.resume() if job.get("resume") else False
        trainer.fit()
    except Exception as problem:
        error = f"{type(problem).__name__}: {problem}"
        facts = {"error": error}
    else:
        users, items = trainer.vectors()
        numbers = {"own": users.clone(), "own_items": items.clone()}
        whole = trainer.results()
        if whole is not None:
            numbers |= {"users": whole[0].contiguous(), "items": whole[1].contiguous()}
            if whole[2] is not None:
                numbers["thresholds"] = whole[2].contiguous()
        save_file(numbers, out / f"{job['name']}.{group.rank}.safetensors")
        tables = sum(p.numel() for p in trainer.objective.backbone.parameters())
        facts = {
            "position": asdict(trainer.position),
            "resumed": resumed,
            "threshold_error": trainer.threshold_error(),
            "numbers": tables,
            "losses": watch.values,
        }
    (out / f"{job['name']}.{group.rank}.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    torch.set_num_threads(1)
    plan = json.loads(Path(sys.argv[1]).read_text())
    group = distributed.start()
    for job in plan["jobs"]:
        run(job, Path(plan["out"]), group)
    distributed.stop()
