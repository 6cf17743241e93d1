"""Memory of `talos data split --shards`, and of the processes that read the shards.

`python benchmarks/shards.py --rows 20000000` makes a folder of parquet files, divides it into shards, and reads them
as a single process and as one of several. Each step is a process of its own, whose highest resident memory (`VmHWM` of
`/proc/self/status`) is printed with its time. With `--train` one epoch of training is measured, on few items, in one
process and in two. Linux only. See `docs/scale.md`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl

ROWS_A_FILE = 2_500_000


def make(folder: Path, rows: int, items: int) -> None:
    """Random events: a user for every 20 rows, items of very different popularity, some pairs repeated."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    for number, start in enumerate(range(0, rows, ROWS_A_FILE)):
        count = min(ROWS_A_FILE, rows - start)
        frame = pl.DataFrame(
            {
                "user_id": rng.integers(0, max(1, rows // 20), count),
                "item_id": rng.zipf(1.3, count) % items,
                "timestamp": rng.integers(0, 10**9, count),
            }
        )
        frame.with_columns(pl.format("user-{}", "user_id").alias("user_id")).write_parquet(
            folder / f"part-{number:03d}.parquet"
        )


def train(folder: Path, source: str) -> None:
    """One epoch in this process, or in the group that it belongs to."""
    from talos.cli import app

    options = "--k 10 --dim 16 --negatives shared:64 --init als --epochs 1 --batch-size 512 --parallel users"
    out = folder / f"run-{source}-{os.environ.get('WORLD_SIZE', '1')}"
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
        app(["train", str(folder / source), *options.split(), "--out", str(out)], standalone_mode=False)


def step(name: str, folder: Path, ranks: int) -> None:
    """Run one of the measured steps."""
    from talos import read
    from talos.data import splits
    from talos.data.shards import read_shards, write_shards
    from talos.distributed.share import read_share

    if name.startswith("train on"):
        train(folder, name.removeprefix("train on "))
    elif name == "divide":
        write_shards(folder / "events", folder / "shards", shards=8)
    elif name == "divide by time":
        write_shards(folder / "events", folder / "shards-by-time", shards=8, by="time")
    elif name == "split in memory":
        splits.split(read(folder / "events"))
    elif ranks == 1:
        read_shards(folder / "shards")
    else:
        read_share(folder / "shards", lambda num_users: range(num_users // ranks))


def peak() -> float:
    """The highest resident memory of this process so far, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def main() -> None:
    """Measure everything, or the one step that is asked for."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rows", type=int, default=20_000_000)
    options.add_argument("--step", nargs=3, metavar=("NAME", "FOLDER", "RANKS"))
    options.add_argument("--train", action="store_true")
    given = options.parse_args()
    if given.step:
        name, folder, ranks = given.step
        began = time.perf_counter()
        step(name, Path(folder), int(ranks))
        # a single write, because several processes write to the same pipe
        os.write(1, f"{peak():.0f} MB, {time.perf_counter() - began:.1f} s\n".encode())
        return
    steps = [
        ("divide", 1),
        ("divide by time", 1),
        ("split in memory", 1),
        ("read as one", 1),
        ("read as one of 2", 2),
        ("read as one of 8", 8),
    ]
    if given.train:
        steps = [("divide", 1), ("train on shards", 1), ("train on shards", 2), ("train on events", 2)]
    with tempfile.TemporaryDirectory() as scratch:
        make(Path(scratch) / "events", given.rows, 5_000 if given.train else 200_000)
        for name, ranks in steps:
            several = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
            start = several if name.startswith("train") and ranks > 1 else []
            command = [sys.executable, *start, __file__, "--step", name, scratch, str(ranks)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(done.stderr)
            found = " and ".join(done.stdout.split("\n")).removesuffix(" and ")
            print(f"{given.rows:,} rows, {name}, {ranks}: {found}", flush=True)


if __name__ == "__main__":
    main()
