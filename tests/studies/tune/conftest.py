"""A study small enough to run in a second."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from talos.config import RunConfig
from talos.data.interactions import Interactions
from talos.data.splits import Split
from talos.studies.tune import FitParts, Space, TuneSettings, fit_parts
from talos.studies.tune.study import quiet

MakeSettings = Callable[..., TuneSettings]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with quiet():
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def split() -> Split:
    """Two tastes, which a model learns within a few epochs."""
    rng = np.random.default_rng(0)
    liked = [rng.permutation(24)[:14] + 24 * (user % 2) for user in range(60)]
    users = np.repeat(np.arange(60), 14)
    return Interactions.from_ids(users, np.concatenate(liked)).split()


@pytest.fixture(scope="session")
def parts(split: Split) -> FitParts:
    return fit_parts(split.train, split.valid)


@pytest.fixture
def settings(parts: FitParts) -> MakeSettings:
    def make(space: dict[str, Any] | None = None, **changes: Any) -> TuneSettings:
        how = {name: changes.pop(name) for name in ("sampler", "pruner", "seed") if name in changes}
        small = {"k": 5, "backbone.dim": 4, "training.epochs": 4, "training.evaluate_every": 1}
        return TuneSettings(
            config=RunConfig().with_values({**small, **changes}),
            space=Space.from_dict(space or {"loss": {"tau": {"low": 0.05, "high": 0.4}}}),
            data=parts.fingerprints(),
            **{"sampler": "auto", "pruner": "none", "seed": 0, **how},
        )

    return make
