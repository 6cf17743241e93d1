"""Small sources in several shapes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest


def events(rows: int = 3000, seed: int = 0, *, strings: bool = True) -> pl.DataFrame:
    """Repeated pairs, equal times, users with one interaction, users with a hundred."""
    rng = np.random.default_rng(seed)
    users = (rng.pareto(1.0, rows) * 5).astype(np.int64) % 97
    items = rng.integers(0, 60, rows) ** 2 % 61
    frame = pl.DataFrame(
        {
            "user_id": users,
            "item_id": items,
            "timestamp": rng.integers(1000, 1400, rows),
            "rating": rng.integers(1, 6, rows).astype(np.float64),
        }
    )
    if strings:
        frame = frame.with_columns(
            user_id=pl.format("u{}", "user_id"), title=pl.format("title {} {}", "item_id", "timestamp")
        )
    return frame


@pytest.fixture
def parquet_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "events"
    folder.mkdir()
    for number, part in enumerate(events().iter_slices(700)):
        part.write_parquet(folder / f"part-{number}.parquet")
    return folder


@pytest.fixture
def make_events() -> Callable[..., pl.DataFrame]:
    return events
