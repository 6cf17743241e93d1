"""Two processes of one thread against one process of two threads, on Gowalla; and the memory of each process.

The same global batches, exact Talos from random vectors, time of whole epochs, the best of three after the first.
Memory is what reading a rank's share and one epoch add to the highest resident size (VmHWM). That data set has many
users and few items, so that users' interactions, rows, moments and thresholds dominate.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from talos.data.datasets import synthetic
from talos.data.shards import write_shards

MEANING = {
    "ranks_over_threads_512": "Gowalla, 512 users a batch: throughput of 2 ranks × 1 thread / 1 rank × 2 threads",
    "ranks_over_threads_1024": "the same, 1,024 users a batch",
    "ranks_over_threads_2048": "the same, 2,048 users a batch",
    "ranks_by_items_over_threads_1024": "the same with the items divided too",
    "memory_of_two_ranks": "user-sharded training: memory a rank of 2 adds / of 1",
    "memory_of_four_ranks": "the same, of 4",
}

_EPOCHS = """
import json, sys
from pathlib import Path
import torch
torch.set_num_threads(int(sys.argv[1]))
from talos import distributed
from talos.config import RunConfig
from talos.training import Records, Trainer
from talos_benchmarks import suite
data = suite.dataset("gowalla", Path(sys.argv[4]) if sys.argv[4] else None)
group, records = distributed.start(), Records()
values = {"training.batch_size": int(sys.argv[2]), "training.parallel": sys.argv[3], "training.epochs": 4,
          "training.init": "random"}
Trainer(RunConfig().with_values(values), data, callbacks=[records], group=group).fit()
if group.rank == 0:
    print(json.dumps(min(line["seconds"] for line in records.lines[1:])))
distributed.stop()
"""

_MEMORY = """
import json, re, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from talos import distributed
from talos.config import RunConfig
from talos.distributed.share import read_share
from talos.training import Trainer
def highest():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text()).group(1)) / 1024
torch.optim.Adam([torch.zeros(1, requires_grad=True)])  # imports many modules
group = distributed.start()
before, share = highest(), read_share(sys.argv[2], group.range_of).train
values = {"training.epochs": 1, "training.init": "random", "negatives": "all", "training.batch_size": 4096}
Trainer(RunConfig().with_values(values), share, group=group).fit()
if group.rank == 0:
    print(json.dumps(highest() - before))
distributed.stop()
"""


def measure(folder: str | None = None) -> dict[str, float]:
    """All figures; takes a few minutes and needs a machine without other work."""
    figures: dict[str, float] = {}
    for batch in (512, 1024, 2048):
        one = _run(1, 2, _EPOCHS, str(batch), "users", folder or "")
        two = _run(2, 1, _EPOCHS, str(batch), "users", folder or "")
        figures |= {f"one_rank_seconds_{batch}": one, f"two_ranks_seconds_{batch}": two}
        figures[f"ranks_over_threads_{batch}"] = one / two
        if batch == 1024:
            by_items = _run(2, 1, _EPOCHS, str(batch), "items", folder or "")
            figures[f"two_ranks_by_items_seconds_{batch}"] = by_items
            figures[f"ranks_by_items_over_threads_{batch}"] = one / by_items
    with tempfile.TemporaryDirectory() as scratch:
        made = synthetic(users=400_000, items=512, interactions=1_200_000, seed=0)
        write_shards(made, Path(scratch, "parts"), shards=4, valid=0.0)
        memory = {ranks: _run(ranks, 1, _MEMORY, str(Path(scratch, "parts"))) for ranks in (1, 2, 4)}
    figures |= {f"added_mb_of_{ranks}": added for ranks, added in memory.items()}
    figures |= {"memory_of_two_ranks": memory[2] / memory[1], "memory_of_four_ranks": memory[4] / memory[1]}
    return figures


def _run(ranks: int, threads: int, code: str, *arguments: str) -> float:
    """The number that rank 0 prints, of `ranks` processes with `threads` threads each."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    environment = {
        **os.environ,
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": str(threads),
    }
    command = [sys.executable, "-c", code, str(threads), *arguments]
    processes = [
        subprocess.Popen(command, env={**environment, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(ranks)
    ]
    output = [process.communicate()[0] for process in processes]
    return float(json.loads(output[0]))
