"""What several test files share: real data where it is at hand, small random data everywhere."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from talos.interactions import Interactions

settings.register_profile(
    "talos", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
settings.load_profile("talos")


@pytest.fixture(scope="session")
def shared_data() -> Callable[[str], Path]:
    """Path of a real dataset's folder, or skip: only the project's own test data is always there."""

    def find(name: str) -> Path:
        root = Path(os.environ.get("TALOS_SHARED_DATA", Path(__file__).parents[2] / "shared" / "data"))
        if not (root / name).is_dir():
            pytest.skip(f"real dataset {name!r} is not at hand (TALOS_SHARED_DATA names its parent folder)")
        return root / name

    return find


@pytest.fixture
def random_data() -> Callable[..., Interactions]:
    """Random interactions; every pair distinct."""

    def make(
        users: int = 30, items: int = 20, density: float = 0.3, seed: int = 0, stamps: bool = False
    ) -> Interactions:
        rng = np.random.default_rng(seed)
        pairs = np.argwhere(rng.random((users, items)) < density)
        return Interactions.from_ids(
            pairs[:, 0], pairs[:, 1], timestamps=rng.integers(0, 1000, len(pairs)) if stamps else None
        )

    return make
