"""A large csv into Interactions, against polars parsing the same file."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import polars as pl

MEANING = {
    "reading_over_polars": "csv to Interactions (ids encoded, sorted, duplicates collapsed) / polars.read_csv of it",
    "reading_peak_gb": "peak memory of that, in GB (2^30 bytes)",
}

_POLARS = "import polars as pl; pl.read_csv(path)"
_TALOS = "from talos.data.open import read; read(path)"


def measure(rows: int = 20_000_000, *, repeats: int = 3) -> dict[str, float]:
    """Both readers in turn, each time in a process of its own; the best of `repeats`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.csv"
        write_events(path, rows)
        polars, talos, peak = [], [], 0.0
        for _ in range(repeats):
            polars.append(_in_a_process(_POLARS, path)[0])
            seconds, memory = _in_a_process(_TALOS, path)
            talos.append(seconds)
            peak = max(peak, memory)
    return {
        "reading_over_polars": min(talos) / min(polars),
        "reading_peak_gb": peak,
        "reading_seconds": min(talos),
        "polars_seconds": min(polars),
    }


def write_events(path: Path, rows: int) -> None:
    """Random events: a user for every 20 rows, skewed items, in no order."""
    rng = np.random.default_rng(0)
    pl.DataFrame(
        {
            "user_id": rng.integers(0, max(1, rows // 20), rows),
            "item_id": (rng.pareto(1.2, rows) * 100).astype(np.int64) % max(1, rows // 100),
            "timestamp": rng.integers(1_300_000_000, 1_600_000_000, rows),
        }
    ).write_csv(path)


def _in_a_process(statement: str, path: Path) -> tuple[float, float]:
    """Seconds that `statement` takes, imports apart, and its process's peak memory in GB."""
    imports, action = statement.split("; ")
    unit = 1 if sys.platform == "darwin" else 1024  # bytes or kilobytes
    code = (
        f"import resource, time; {imports}; path = {str(path)!r}\n"
        f"start = time.perf_counter(); {action}; seconds = time.perf_counter() - start\n"
        f"print(seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * {unit} / 2**30)"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout.split()
    return float(out[0]), float(out[1])
