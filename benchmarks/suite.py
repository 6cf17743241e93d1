"""All benchmarks in one run. Each figure is a ratio to a named reference that ran in the same process.

`run` returns the machine, the ratios under stable keys, and the seconds behind them; `MEANING` says in words what each
key compares.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from talos.data import datasets, splits
from talos.data.interactions import Interactions
from talos.data.open import open_split, read
from talos.data.source import Source
from talos.errors import ConfigError, DownloadError, nearest
from talos_paper.datasets import local_copy

from . import (
    engine,
    large,
    losses,
    quality,
    ranking,
    ranks,
    reading,
    recommending,
    scale,
    serving,
    training,
    updating,
)

MEANING: dict[str, str] = {}
for _part in (
    ranking,
    reading,
    losses,
    training,
    engine,
    quality,
    recommending,
    scale,
    large,
    updating,
    ranks,
    serving,
):
    MEANING |= _part.MEANING
# These take many minutes: run only by name.
LONG = ("scale", "large", "updating", "ranks", "serving")
# Users, items and interactions of the real data sets; synthetic ones of the same shape replace those that are absent.
SHAPES = {"gowalla": (29_858, 40_988, 1_027_464), "beauty": (15_603, 8_693, 139_554)}


def run(
    *,
    data: Path | None = None,
    only: Sequence[str] | None = None,
    rows: int = 20_000_000,
    events: int = 1_000_000,
) -> dict[str, Any]:
    """Run the chosen benchmarks (all but the long ones by default) and collect their figures."""
    available: dict[str, Callable[[], dict[str, float]]] = {
        "ranking": lambda: ranking.measure(dataset("gowalla", data)),
        "reading": lambda: reading.measure(rows),
        "losses": losses.measure,
        "training": lambda: training.measure(dataset("beauty", data)),
        "engine": lambda: engine.measure(dataset("gowalla", data), dataset("beauty", data)),
        "quality": lambda: (
            quality.measure("beauty", *both("beauty", data), epochs=60)
            | quality.measure("gowalla", *both("gowalla", data), epochs=60)
        ),
        "recommending": lambda: recommending.measure(dataset("gowalla", data)),
        "scale": scale.measure,
        "large": lambda: large.measure(events),
        "updating": lambda: updating.measure(whole("beauty", data), movielens()),
        "serving": serving.measure,
        "ranks": lambda: ranks.measure(None if data is None else str(data)),
    }
    for name in only or ():
        if name not in available:
            raise ConfigError(f"no benchmark {name!r}", where="--only", hint=nearest(name, available))
    figures: dict[str, float] = {}
    for name in only or [name for name in available if name not in LONG]:
        figures |= available[name]()
    return {
        "machine": machine(),
        "data": {name: source(name, data) for name in SHAPES},
        "ratios": {key: value for key, value in figures.items() if key in MEANING},
        "details": {key: value for key, value in figures.items() if key not in MEANING},
    }


def machine() -> dict[str, Any]:
    """The processor, memory and versions that the figures were measured with."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    return {
        "processor": _processor(),
        "threads": torch.get_num_threads(),
        "memory_gb": round(memory / 2**30, 1),
        "vector_instructions": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "measured_at": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    }


def dataset(name: str, folder: Path | None) -> Interactions:
    """The train part of a real data set in `folder` (or TALOS_DATA), or a synthetic one of the same shape."""
    path = _find(name, folder)
    return _synthetic(name) if path is None else open_split(path).train


def both(name: str, folder: Path | None) -> tuple[Interactions, Interactions]:
    """Train and test of a real data set, or of a synthetic one of the same shape."""
    path = _find(name, folder)
    if path is not None:
        parts = open_split(path)
        return parts.train, parts.test
    split = _synthetic(name).split(test=0.2, valid=0.0, seed=0)
    return split.train, split.test


def whole(name: str, folder: Path | None) -> Interactions:
    """A real data set before it is split, with timestamps; synthetic if only its parts are there."""
    path = _find(name, folder)
    if path is not None and (path / "interactions.tsv").is_file():
        return read(path / "interactions.tsv")
    return _synthetic(name)


def movielens() -> Interactions:
    """MovieLens-100K with the clean-up of its catalogue entry, or a synthetic one of its size without network."""
    info = datasets.info("movielens-100k")
    try:
        data = datasets.load(info)
    except DownloadError:
        return datasets.synthetic(users=939, items=1016, interactions=80_393, seed=0)
    data = data if info.min_rating is None else splits.min_rating(data, info.min_rating)
    return data if info.k_core is None else splits.k_core(data, info.k_core)


def source(name: str, folder: Path | None) -> str:
    """Whether a data set is the real one, in words."""
    return "real" if _find(name, folder) is not None else "synthetic, of the same shape"


def _find(name: str, folder: Path | None) -> Path | None:
    path = local_copy(name, folder)
    return path if path is not None and Source.of(path).kind == "parts" else None


def _synthetic(name: str) -> Interactions:
    users, items, interactions = SHAPES[name]
    return datasets.synthetic(users=users, items=items, interactions=interactions, seed=0)


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next(
        (line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor()
    )
