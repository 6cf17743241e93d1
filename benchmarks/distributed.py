"""A cost model of training with several processes: its parameters measured, its predictions checked and extrapolated.

`python benchmarks/distributed.py` measures the parameters on this machine (loopback, one thread per rank) and compares
the predicted and measured step of 1 and 2 ranks; with `--modes ITEMS BATCH` it measures one rank, and two that divide
users or items; with `--tables` it prints predictions for large data. See `docs/scale.md`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from typing import Any

USERS, ITEMS, DIM, BATCH, EPOCHS = 4096, 16384, 64, 512, 4
# Cost of the passes over divided items relative to the single pass over whole items: Talos with exact thresholds.
PASSES = 1.7


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The speed of one rank and of its network."""

    score: (
        float  # seconds per score of 64-dimensional vectors, forward and backward, with all cores of the rank
    )
    number: float  # seconds of Adam's step per number
    table: float  # seconds per number of the item table, whatever the batch: norms, clearing, scaling
    bandwidth: float  # bytes per second to another rank
    latency: float  # seconds of a small message to all ranks and back
    exchange: float | None = None  # seconds per number of the item table to sum it in shared memory


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of a step and of an epoch on each rank: seconds and bytes."""

    compute: float
    update: float
    talk: float
    bytes_moved: float
    epoch: float
    memory: float

    @property
    def step(self) -> float:
        """Seconds of a step."""
        return self.compute + self.update + self.talk


def cost(
    machine: Machine,
    *,
    users: float,
    items: float,
    interactions: float,
    ranks: int,
    batch: float,
    dim: int = 64,
    shared: int | None = None,
    by_items: bool = False,
    k: int = 20,
) -> Cost:
    """The cost model: users divided, exact or with `shared` negatives for every 64 users; or items divided as well.

    Per step, B users, N ranks, I items, d numbers a vector, w bytes/s:

        exact    compute  B/N · I · score · d/64
                 update   (I + U)/N·d · number + I·d · table
                 moved    2(N-1)/N · 4·I·d, or nothing on one machine: I·d · exchange instead
        items    compute  PASSES · B/N · I · score · d/64
                 update   (I + U)/N·d · number + I/N·d · table
                 moved    (N-1)/N · 4·B·(2·d + K + 4)
        shared   compute  B/N · n · score · d/64
                 update   rows·d · 10·number
                 moved    (N-1)/N · rows · (4·d + 8)

    where `rows` are the distinct items of a step: its draws and its positives.
    """
    own = users / ranks
    if shared is None:
        rows, per_user = items, items
        # plain Adam moves every row of both tables, on the rank that has it or updates it for all
        update = (items + users) / ranks * dim * machine.number
        update += items * dim * machine.table
        moved = 0.0 if machine.exchange is not None else 2 * (ranks - 1) / ranks * 4 * items * dim
        if by_items:
            per_user = PASSES * items
            update -= (ranks - 1) / ranks * items * dim * machine.table
            moved = (ranks - 1) / ranks * 4 * batch * (2 * dim + k + 4)
    else:
        drawn = batch / 64 * shared + batch * interactions / users
        rows, per_user = min(items, drawn), shared + interactions / users
        update = (rows + batch / ranks) * dim * 10 * machine.number  # rows picked out of a table
        moved = (ranks - 1) * rows / ranks * (4 * dim + 8)
    compute = batch / ranks * per_user * machine.score * dim / 64
    whole = shared is None and not by_items  # gradients of the whole item table
    messages = 6 if whole else 7 if by_items else 3
    talk = moved / machine.bandwidth + messages * machine.latency
    if whole and machine.exchange is not None:
        talk += items * dim * machine.exchange
    # values, a gradient and room for those of others, and two moments of the rows that a rank updates
    tables = (
        3.0 if shared is not None else 4.0 if ranks == 1 else 4.0 / ranks if by_items else 3.0 + 2.0 / ranks
    )
    memory = 4 * dim * (3 * own + tables * items)
    memory += 4 * interactions + 8 * interactions / ranks + (40 if by_items else 16) * users
    talk *= ranks > 1
    steps = users / batch
    return Cost(
        compute=compute,
        update=update,
        talk=talk,
        bytes_moved=moved if ranks > 1 else 0.0,
        epoch=steps * (compute + update + talk),
        memory=memory,
    )


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
counted("all_to_all_single", lambda given: given[1])
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

_CODE = """
import json, os, time, sys
import torch
torch.set_num_threads(1)
from talos.data import datasets
from talos import distributed
from talos.config import RunConfig
from talos.training import Records, Trainer
users, items, dim, batch, epochs = map(int, sys.argv[1:6])
group = distributed.start()
data = datasets.synthetic(users=users, items=items, interactions=20 * users, seed=0)
values = {"backbone.dim": dim, "training.batch_size": batch, "training.epochs": epochs, "training.init": "random",
          "loss.name": "talos", "negatives": "all"}
records = Records()
trainer = Trainer(RunConfig().with_values(values), data, callbacks=[records], group=group)
busy = time.process_time()
trainer.fit()
steps = len(trainer.batches)
busy = (time.process_time() - busy) / (steps * epochs)
step = min(line["seconds"] for line in records.lines) / steps if group.rank == 0 else 0.0
def timed(act, times, clock=time.process_time):
    act(); found = []
    for _ in range(times):
        began = clock(); act(); found.append(clock() - began)
    return min(found)
table = torch.randn(items, dim, requires_grad=True); table.grad = torch.randn(items, dim)
from talos.training.optimizer import RowAdam
from talos.training.parallel.gradient_sync import GradientSync
adam, gradient = RowAdam([table]), table.grad
def exchange_of(memory):
    os.environ["TALOS_SHARED_MEMORY"] = memory
    sync = GradientSync(group, [table], sharded=[table])
    def act():
        table.grad = gradient
        sync.sum_gradients_(0.0)
        sync.gather_parameters_()
    return timed(act, 30, time.perf_counter)
messages, memory = exchange_of("no"), exchange_of("auto")
table.grad = gradient
small = timed(lambda: group.all_gather_numbers([1.0]), 50, time.perf_counter)
update = timed(adam.step, 10)
from talos.kernels import exact_user_batch_loss
from talos.losses import Talos
vectors = torch.nn.functional.normalize(torch.randn(batch, dim)); ends = torch.arange(batch + 1) * 20
places = torch.stack([torch.randperm(items)[:20].sort().values for _ in range(batch)]).flatten()
def sweep_of(count):
    def act():
        value, _ = exact_user_batch_loss(vectors[:count], table, ends[:count + 1], places[:20 * count], 20,
                                         Talos(tau=0.1), normalize_items=True,
                                         bfloat16=trainer.objective.in_bfloat16)
        table.grad = None
        (0.5 * value).backward()
    return timed(act, 5)
sweep, half = sweep_of(batch), sweep_of(batch // 2)
if group.rank == 0:
    print(json.dumps({"step": step, "busy": busy, "messages": messages, "memory": memory, "small": small,
                      "update": update, "sweep": sweep, "half": half}))
distributed.stop()
"""


def run(
    ranks: int, code: str = _CODE, *, items: int = ITEMS, batch: int = BATCH, more: str = ""
) -> dict[str, float]:
    """What rank 0 prints, of `ranks` processes with one thread each."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    sizes = map(str, (USERS, items, DIM, batch, EPOCHS))
    command = [sys.executable, "-c", code, *sizes, more]
    environment = {**os.environ, "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1",
                   "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}  # fmt: skip
    processes = [
        subprocess.Popen(command, env={**environment, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(ranks)
    ]
    output = [process.communicate()[0] for process in processes]
    found: dict[str, float] = json.loads(output[0])
    return found


def measure() -> dict[str, Any]:
    """Parameters from one rank (compute) and two (messages), and the measured steps beside the predicted ones."""
    alone, pair = run(1), run(2)
    machine = Machine(
        score=(alone["sweep"] - alone["half"]) / (BATCH / 2 * ITEMS),
        number=alone["update"] / (ITEMS * DIM),
        table=max(0.0, 2 * alone["half"] - alone["sweep"]) / (ITEMS * DIM),
        bandwidth=4 * ITEMS * DIM / pair["messages"],
        latency=pair["small"],
        exchange=pair["memory"] / (ITEMS * DIM),
    )
    data: dict[str, Any] = {
        "users": USERS,
        "items": ITEMS,
        "interactions": 20 * USERS,
        "batch": BATCH,
        "dim": DIM,
    }
    said = [cost(machine, ranks=ranks, **data) for ranks in (1, 2)]
    return {
        "score_ns": 1e9 * machine.score,
        "number_ns": 1e9 * machine.number,
        "table_ns": 1e9 * machine.table,
        "bandwidth_gb_s": machine.bandwidth / 1e9,
        "latency_us": 1e6 * machine.latency,
        "exchange_ns": 1e9 * pair["memory"] / (ITEMS * DIM),
        "step_ms_1": 1e3 * alone["step"],
        "step_ms_2": 1e3 * pair["step"],
        "model_ms_1": 1e3 * said[0].step,
        "model_ms_2": 1e3 * said[1].step,
        # processor time of the rank itself, without messages and waiting: also meaningful on a busy machine
        "own_ms_1": 1e3 * alone["busy"],
        "own_ms_2": 1e3 * pair["busy"],
        "model_own_ms_1": 1e3 * (said[0].compute + said[0].update),
        "model_own_ms_2": 1e3 * (said[1].compute + said[1].update),
    }


def passes(items: int, batch: int) -> dict[str, list[float]]:
    """Processor time of a batch in ms, in one pass and in the passes over divided items; one process, one thread."""
    import time

    import torch
    import torch.nn.functional as F

    from talos import losses
    from talos.distributed import SINGLE_PROCESS, OwnedRows
    from talos.kernels import divided_batch_loss, user_batch_loss

    torch.set_num_threads(1)
    rng = torch.Generator().manual_seed(0)
    users = F.normalize(torch.randn(batch, DIM, generator=rng))
    table = torch.randn(items, DIM, generator=rng)
    belongs = torch.rand(batch, items, generator=rng) < 20 / items
    degrees, places = belongs.sum(1), belongs.nonzero()[:, 1]
    given = (users, table, F.pad(degrees.cumsum(0), (1, 0)), places, None)
    found = {}
    for name, loss in {"talos": losses.Talos(), "sl": losses.Softmax(), "aatp": losses.AATP()}.items():
        k = 20 if loss.needs.threshold else None
        rows, times = OwnedRows(SINGLE_PROCESS, [batch]), []
        for act in (
            partial(user_batch_loss, *given, loss, k=k, normalize_items=True),
            partial(
                divided_batch_loss,
                *given,
                loss,
                rows,
                degrees=degrees,
                num_items=items,
                k=k,
                normalize_items=True,
            ),
        ):
            act()
            ends = [time.process_time()]
            for _ in range(7):
                act()
                ends.append(time.process_time())
            times.append(1e3 * min(after - before for before, after in itertools.pairwise(ends)))
        found[name] = times
    return found


# A machine with 64 cores, each as fast as the one measured, and a network of 25 Gbit/s.
RENTED = {"cores": 64, "bandwidth": 3.1e9, "latency": 5e-5}
MODES: dict[str, dict[str, Any]] = {
    "all": {},
    "all, items divided": {"by_items": True},
    "shared:1024": {"shared": 1024},
}
SIZES = ((1e7, 1e6, 1e9), (1e8, 1e7, 1e10), (1e9, 1e8, 1e11))


def tables(score: float, number: float, table: float) -> list[list[str]]:
    """Rows of predictions: size, negatives, ranks, batch, epoch, share of communication, GB per rank."""
    machine = Machine(
        score=score / RENTED["cores"],
        number=number / 8,  # limited by eight memory channels, not by 64 cores
        table=table / 8,
        bandwidth=RENTED["bandwidth"],
        latency=RENTED["latency"],
    )
    rows = []
    for users, items, interactions in SIZES:
        for name, options in MODES.items():
            for ranks in (1, 8, 64):
                if ranks == 1 and "by_items" in options:
                    continue
                batch = 4096.0 * ranks
                found = cost(machine, users=users, items=items, interactions=interactions, ranks=ranks,
                             batch=batch, **options)  # fmt: skip
                rows.append([f"{users:.0e} × {items:.0e}", name, str(ranks), f"{batch:,.0f}", _span(found.epoch),
                             f"{100 * found.talk / found.step:.0f} %", f"{found.memory / 2**30:,.0f}"])  # fmt: skip
    return rows


def _span(seconds: float) -> str:
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:.1f} s"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", nargs=3, type=float, metavar=("SCORE_NS", "NUMBER_NS", "TABLE_NS"))
    parser.add_argument("--modes", nargs=2, type=int, metavar=("ITEMS", "BATCH"))
    asked = parser.parse_args()
    given = asked.tables
    if given:
        for row in tables(*(1e-9 * nanoseconds for nanoseconds in given)):
            print("| " + " | ".join(row) + " |")
    elif asked.modes:
        print("one pass, divided (ms)", passes(*asked.modes))
        for ranks, mode in ((1, "users"), (2, "users"), (2, "items")):
            print(ranks, mode, run(ranks, _STEPS, items=asked.modes[0], batch=asked.modes[1], more=mode))
    else:
        print(json.dumps(measure(), indent=2))
