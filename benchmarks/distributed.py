"""Steps of training in one process, and in two that divide users, or users and items.

`python benchmarks/distributed.py ITEMS BATCH` prints processor time, time on the clock, messages, bytes sent and memory
of each: 4,096 users, vectors of 64, one thread a process, loopback.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys

USERS, DIM, EPOCHS = 4096, 64, 4

_STEPS = """
import json, resource, sys, time
import torch, torch.distributed as dist
torch.set_num_threads(1)
from talos.data import datasets
from talos import distributed
from talos.config import RunConfig
from talos.training import Records, Trainer
users, items, dim, batch, epochs = map(int, sys.argv[1:6])
group, sent = distributed.start(), [0, 0]
def counted(name, tensor_of):
    plain = getattr(dist, name)
    def call(*arguments, **options):
        sent[0] += 1; sent[1] += tensor_of(arguments).nbytes
        return plain(*arguments, **options)
    setattr(dist, name, call)
counted("all_reduce", lambda given: given[0])
counted("all_gather", lambda given: given[1])
counted("broadcast", lambda given: given[0])
data = datasets.synthetic(users=users, items=items, interactions=20 * users, seed=0)
values = {"backbone.dim": dim, "training.batch_size": batch, "training.epochs": epochs, "training.init": "random",
          "loss.name": "talos", "negatives": "all", "training.parallel": sys.argv[6], "optimizer.rows": "all"}
records = Records()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
trainer = Trainer(RunConfig().with_values(values), data, callbacks=[records], group=group)
sent[:], busy = [0, 0], time.process_time()
trainer.fit()
steps = len(trainer.batches) * epochs
busy = (time.process_time() - busy) / steps
if group.rank == 0:
    print(json.dumps({"own_ms": 1e3 * busy, "step_ms": 1e3 * sum(line["seconds"] for line in records.lines) / steps,
                      "messages": sent[0] / steps, "mb_given": sent[1] / steps / 1e6,
                      "memory_mb": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024}))
distributed.stop()
"""


def run(ranks: int, divided: str, *, items: int, batch: int) -> dict[str, float]:
    """What rank 0 measures in `ranks` processes with one thread each that divide users, or users and items."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    sizes = map(str, (USERS, items, DIM, batch, EPOCHS))
    command = [sys.executable, "-c", _STEPS, *sizes, divided]
    environment = {**os.environ, "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1",
                   "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}  # fmt: skip
    processes = [
        subprocess.Popen(command, env={**environment, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(ranks)
    ]
    output = [process.communicate()[0] for process in processes]
    found: dict[str, float] = json.loads(output[0])
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("items", type=int)
    parser.add_argument("batch", type=int)
    asked = parser.parse_args()
    for ranks, divided in ((1, "users"), (2, "users"), (2, "items")):
        print(ranks, divided, run(ranks, divided, items=asked.items, batch=asked.batch))
