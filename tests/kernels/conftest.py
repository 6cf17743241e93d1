"""The compiled core at a chosen instruction set and number of threads."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest

from talos.kernels import core

# Functions of the core that take `level` and `threads`.
CHOOSING = (
    "adam_rows_",
    "add_positives_",
    "pair_scores",
    "smooth_places_",
    "solve_rows_",
    "sweep",
    "unit_rows",
    "workspace_bytes",
)


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Set the instruction set and the number of threads of every call to the core; None for the default."""
    functions = {name: getattr(core, name) for name in CHOOSING}

    def choose(level: str | None = None, threads: int | None = None) -> None:
        for name, function in functions.items():
            monkeypatch.setattr(core, name, functools.partial(function, level=level, threads=threads))

    return choose
