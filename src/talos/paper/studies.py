"""Results that are no fits: inconsistency, theory, time an epoch, statistics, and tests between methods."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from talos.errors import DataError
from talos.paper.results import Store
from talos.paper.runs import Runner

if TYPE_CHECKING:
    from talos.paper.reproduce import Asked

__all__ = ["keep_significance", "key", "measure"]


def key(experiment: str, dataset: str) -> str:
    """The name under which a study is kept.

    >>> key("inconsistency", "beauty")
    'inconsistency-beauty'
    """
    return f"{experiment}-{dataset}"


def measure(experiment: str, dataset: str, *, folder: Path | None, store: Store) -> dict[str, Any]:
    """Make a study; plain values."""
    raise DataError("not there yet", where=experiment)


def keep_significance(
    asked: Asked, store: Store, runner: Runner, notify: Callable[[str], None] = lambda line: None
) -> None:
    """Paired tests of Talos against each rival, wherever the per-user values of both are at hand."""
