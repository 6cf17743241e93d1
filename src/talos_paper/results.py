"""Results on disk: one small JSON file a run, sealed with a hash of itself, under one folder.

    runs/DATASET/KEY-seedN.json        one fit: settings, split, versions, metrics, learning curve
    searches/DATASET/KEY.json          the candidates that were tried and what validation said about each
    measurements/NAME.json             studies without a fit: inconsistency, theory, time, significance

A file that was changed after it was written is refused wherever it is read.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from talos.errors import DataError
from talos.files import read_sealed, write_sealed
from talos.studies.compare.stored import FORMAT
from talos_paper.recipes import Recipe

__all__ = ["Store", "StoredRun", "versions"]

_HINT = "delete it and run `talos reproduce` again"


@dataclass(frozen=True, kw_only=True)
class StoredRun:
    """What one fit left behind.

    Attributes:
        dataset: name of the data set.
        scenario: how it was split.
        fidelity: `fast` or `paper`.
        seed: of the training.
        settings: what the recipe set, by dotted name.
        config: the whole config as trained.
        deviations: what differs from the paper, in words.
        notes: what to know about the data.
        split: sizes and fingerprints of the parts.
        dialect: what the metrics' names mean.
        versions: of the software.
        threads: of torch.
        cpu_seconds: processor time of the fit.
        epochs: done.
        best_epoch: whose weights were kept.
        stopped: what ended the fit.
        users: with test items.
        valid: metrics on validation, at the best epoch.
        metrics: on test.
        stderr: standard errors of the metrics over users.
        threshold_error: mean distance of thresholds from the exact ones; None without thresholds.
        curve: epoch, loss and validation metric at each look.
        scores: mean positive and negative score and threshold at each epoch, where asked for.
    """

    dataset: str
    scenario: str
    fidelity: str
    seed: int
    settings: dict[str, Any]
    config: dict[str, Any]
    deviations: list[str]
    notes: list[str]
    split: dict[str, Any]
    dialect: str
    versions: dict[str, str]
    threads: int
    cpu_seconds: float
    epochs: int
    best_epoch: int
    stopped: str
    users: int
    valid: dict[str, float]
    metrics: dict[str, float]
    stderr: dict[str, float]
    threshold_error: float | None
    curve: list[list[float | None]] = field(repr=False)
    scores: list[list[float]] = field(repr=False, default_factory=list)


class Store:
    """The results below a folder.

    >>> import tempfile
    >>> store = Store(Path(tempfile.mkdtemp()))
    >>> store.save_measurement("demo", {"value": 1})
    >>> store.measurement("demo")["value"]
    1
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    # ------------------------------------------------------------------ runs

    def run_path(self, recipe: Recipe, seed: int) -> Path:
        """Where the result of a recipe and a seed is kept."""
        return self.root / "runs" / recipe.dataset / f"{recipe.key}-seed{seed}.json"

    def run(self, recipe: Recipe, seed: int) -> StoredRun | None:
        """The result of a recipe and a seed; None if there is none."""
        found = self._read(self.run_path(recipe, seed))
        if found is None:
            return None
        try:
            return StoredRun(**found)
        except TypeError as error:
            raise DataError(f"is damaged: {error}", where=str(self.run_path(recipe, seed))) from None

    def runs(self, recipe: Recipe, seeds: int) -> list[StoredRun]:
        """The results of the seeds 0 … n-1 that are there."""
        found = (self.run(recipe, seed) for seed in range(seeds))
        return [run for run in found if run is not None]

    def save_run(self, recipe: Recipe, run: StoredRun) -> None:
        """Keep a result."""
        self._write(self.run_path(recipe, run.seed), asdict(run))

    # -------------------------------------------------------------- searches

    def search(self, recipe: Recipe) -> dict[str, Any] | None:
        """What a search found: its trials, and the place of the best among the candidates."""
        return self._read(self._search_path(recipe))

    def save_search(self, recipe: Recipe, trials: list[dict[str, Any]], best: int) -> None:
        """Keep the trials of a search, in the order of the candidates."""
        facts = {
            "dataset": recipe.dataset,
            "scenario": recipe.scenario,
            "settings": dict(recipe.settings),
            "candidates": [dict(one) for one in recipe.search],
            "decided_by": f"validation {recipe.watched}, seed 0",
            "trials": trials,
            "best": best,
        }
        self._write(self._search_path(recipe), facts)

    def resolved(self, recipe: Recipe) -> Recipe | None:
        """The recipe as it is run: with what its search chose. None while the search is not done."""
        if not recipe.search:
            return recipe
        found = self.search(recipe)
        return None if found is None else recipe.candidates()[found["best"]]

    def _search_path(self, recipe: Recipe) -> Path:
        return self.root / "searches" / recipe.dataset / f"{recipe.key}.json"

    # ---------------------------------------------------------- measurements

    def measurement(self, name: str) -> dict[str, Any] | None:
        """A study that is no fit; None if there is none of this name."""
        return self._read(self.root / "measurements" / f"{name}.json")

    def save_measurement(self, name: str, values: Mapping[str, Any]) -> None:
        """Keep a study."""
        self._write(self.root / "measurements" / f"{name}.json", dict(values))

    # ----------------------------------------------------------------- files

    def files(self) -> Iterator[Path]:
        """Every results file."""
        for part in ("runs", "searches", "measurements"):
            yield from sorted((self.root / part).rglob("*.json"))

    def check(self) -> int:
        """Read every file, refusing any that was changed; returns how many there are."""
        count = 0
        for path in self.files():
            self._read(path)
            count += 1
        return count

    def _read(self, path: Path) -> dict[str, Any] | None:
        if not path.exists():
            return None
        values = read_sealed(path, hint=_HINT)
        del values["format"]
        return values

    def _write(self, path: Path, values: dict[str, Any]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        # through JSON and back, so that what is hashed is what will be read: no tuples, no numpy numbers
        plain = json.loads(json.dumps(values, allow_nan=False))
        write_sealed(path, {"format": FORMAT, **plain})


def versions() -> dict[str, str]:
    """The software that made a result.

    >>> sorted(versions())
    ['numpy', 'python', 'talos', 'torch']
    """
    import numpy as np
    import torch

    from talos import __version__

    return {
        "talos": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }
