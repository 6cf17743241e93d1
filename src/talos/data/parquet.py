"""Scan parquet files. Every path is that path: polars by itself would take `runs[1]` for a pattern and read `runs1`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl

__all__ = ["scan_file"]


def scan_file(path: Path | Sequence[Path]) -> pl.LazyFrame:
    """A scan of one parquet file, or of several that are one table; neither names nor folders mean anything.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("a1", "a[1]"):
    ...         pl.DataFrame({"name": [name]}).write_parquet(Path(folder, name))
    ...     scan_file(Path(folder, "a[1]")).collect().item()
    'a[1]'
    """
    return pl.scan_parquet(path, glob=False, hive_partitioning=False)  # type: ignore[arg-type]  # a list will do
