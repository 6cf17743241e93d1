"""Memory of `talos data split --shards`, and of the processes that read the shards.

`python benchmarks/shards.py --rows 20000000` makes a folder of parquet files, divides it, and reads it as one process
and as one of several would. Each step is a process of its own, whose highest resident memory (`VmHWM` of
`/proc/self/status`) is printed with its time. Linux only. See `docs/scale.md`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl

ROWS_A_FILE = 2_500_000


def make(folder: Path, rows: int) -> None:
    """Events of one user for every 20 rows, on items of very different popularity, with repeated pairs."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    for number, start in enumerate(range(0, rows, ROWS_A_FILE)):
        count = min(ROWS_A_FILE, rows - start)
        frame = pl.DataFrame(
            {
                "user_id": rng.integers(0, max(1, rows // 20), count),
                "item_id": rng.zipf(1.3, count) % 200_000,
                "timestamp": rng.integers(0, 10**9, count),
            }
        )
        frame.with_columns(pl.format("user-{}", "user_id").alias("user_id")).write_parquet(
            folder / f"part-{number:03d}.parquet"
        )


def step(name: str, folder: Path, ranks: int) -> None:
    """One of the things that are measured."""
    from talos import read, splits
    from talos.shards import ShardIndex, read_shards, read_share, write_shards

    if name == "divide":
        write_shards(folder / "events", folder / "shards", shards=8)
    elif name == "divide by time":
        write_shards(folder / "events", folder / "shards-by-time", shards=8, by="time")
    elif name == "split in memory":
        splits.split(read(folder / "events"))
    elif ranks == 1:
        read_shards(folder / "shards")
    else:
        index = ShardIndex.read(folder / "shards")
        read_share(index, range(index.num_users // ranks))


def peak() -> float:
    """The highest resident memory of this process so far, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def main() -> None:
    """Measure everything, or the one step that is asked for."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rows", type=int, default=20_000_000)
    options.add_argument("--step", nargs=3, metavar=("NAME", "FOLDER", "RANKS"))
    given = options.parse_args()
    if given.step:
        name, folder, ranks = given.step
        began = time.perf_counter()
        step(name, Path(folder), int(ranks))
        print(f"{peak():.0f} MB, {time.perf_counter() - began:.1f} s")
        return
    with tempfile.TemporaryDirectory() as scratch:
        make(Path(scratch) / "events", given.rows)
        for name, ranks in [
            ("divide", 1),
            ("divide by time", 1),
            ("split in memory", 1),
            ("read as one", 1),
            ("read as one of 2", 2),
            ("read as one of 8", 8),
        ]:
            command = [sys.executable, __file__, "--step", name, scratch, str(ranks)]
            found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
            print(f"{given.rows:,} rows, {name}: {found}", flush=True)


if __name__ == "__main__":
    main()
