"""Results on disk: one small JSON file per run, with a checksum of itself, under one folder.

    runs/DATASET/KEY-seedN.json        one fit: settings, split, versions, metrics, learning curve
    searches/DATASET/KEY.json          the candidates of a search and the validation metric of each
    measurements/NAME.json             results without a fit: inconsistency, theory, time, significance

Reading a file that was changed after it was written is an error.
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
from talos.studies.folder import FORMAT
from talos_paper.recipes import Recipe
from talos_paper.search import Searched

__all__ = ["ResultStore", "StoredRun", "measurement_name", "versions"]

_HINT = "delete it and run `talos reproduce` again"


@dataclass(frozen=True, kw_only=True)
class StoredRun:
    """The stored result of one fit.

    Attributes:
        dataset: name of the data set.
        scenario: how it was split.
        fidelity: `fast` or `paper`.
        seed: seed of the training.
        settings: values that the recipe sets, by dotted name of the config.
        config: the whole config of the run.
        deviations: what differs from the paper, in words.
        notes: what differs between this split and the paper's, in words.
        split: sizes and fingerprints of the parts.
        dialect: definition of the metrics, `paper` or `standard`.
        versions: versions of the software.
        threads: number of threads of torch.
        cpu_seconds: processor time of the fit.
        epochs: number of epochs that were trained.
        best_epoch: the epoch whose weights were kept.
        stopped: `patience` after early stopping, `epochs` otherwise.
        users: number of users with test items.
        valid: validation metrics at the best epoch.
        metrics: test metrics.
        stderr: standard errors of the metrics over users.
        threshold_error: mean absolute difference from the exact thresholds; None without thresholds.
        fresh_threshold_error: the same after one more epoch in which only thresholds are updated, so that none is
            older than the vectors; None without thresholds and for runs that did not measure it.
        curve: epoch, loss and validation metric at each evaluation.
        scores: mean positive score, mean score and mean threshold after each epoch, if the recipe has `probe`.
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
    fresh_threshold_error: float | None = None
    curve: list[list[float | None]] = field(repr=False)
    scores: list[list[float]] = field(repr=False, default_factory=list)


class ResultStore:
    """A folder of results.

    >>> import tempfile
    >>> store = ResultStore(Path(tempfile.mkdtemp()))
    >>> store.save_measurement("demo", {"value": 1})
    >>> store.measurement("demo")["value"]
    1
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    # ------------------------------------------------------------------ runs

    def run_path(self, recipe: Recipe, seed: int) -> Path:
        """The file of the result of a recipe and a seed."""
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
        """The results of seeds 0 to `seeds` - 1, as far as they exist."""
        found = (self.run(recipe, seed) for seed in range(seeds))
        return [run for run in found if run is not None]

    def save_run(self, recipe: Recipe, run: StoredRun) -> None:
        """Save a result."""
        self._write(self.run_path(recipe, run.seed), asdict(run))

    # -------------------------------------------------------------- searches

    def search(self, recipe: Recipe) -> dict[str, Any] | None:
        """A search's candidates, trials and the index of the best; None if it is not done."""
        return self._read(self.search_path(recipe))

    def save_search(self, recipe: Recipe, found: Searched) -> None:
        """Save what a search tried, in this order."""
        facts = {
            "dataset": recipe.dataset,
            "scenario": recipe.scenario,
            "settings": dict(recipe.settings),
            "candidates": found.candidates,
            "decided_by": f"validation {recipe.watched}, seed 0",
            "trials": found.trials,
            "best": found.best,
        }
        self._write(self.search_path(recipe), facts)

    def resolved(self, recipe: Recipe) -> Recipe | None:
        """The recipe with the settings that its search chose; None while the search is not done."""
        if not recipe.searched:
            return recipe
        found = self.search(recipe)
        return None if found is None else recipe.with_settings(found["candidates"][found["best"]])

    def search_path(self, recipe: Recipe) -> Path:
        """The file of what the search of a recipe tried."""
        return self.root / "searches" / recipe.dataset / f"{recipe.key}.json"

    # ---------------------------------------------------------- measurements

    def measurement(self, name: str) -> dict[str, Any] | None:
        """A measurement by name; None if there is none."""
        return self._read(self.root / "measurements" / f"{name}.json")

    def save_measurement(self, name: str, values: Mapping[str, Any]) -> None:
        """Save a measurement."""
        self._write(self.root / "measurements" / f"{name}.json", dict(values))

    # ----------------------------------------------------------------- files

    def files(self) -> Iterator[Path]:
        """Every file of results, in a fixed order."""
        for part in ("runs", "searches", "measurements"):
            yield from sorted((self.root / part).rglob("*.json"))

    def check(self) -> int:
        """Read every file and return how many there are; a file that was changed is an error."""
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
        # through JSON and back, so that the checksum is of what will be read: no tuples, no numpy numbers
        plain = json.loads(json.dumps(values, allow_nan=False))
        write_sealed(path, {"format": FORMAT, **plain})


def measurement_name(experiment: str, dataset: str) -> str:
    """The name under which a measurement is stored.

    >>> measurement_name("inconsistency", "beauty")
    'inconsistency-beauty'
    """
    return f"{experiment}-{dataset}"


def versions() -> dict[str, str]:
    """Versions of the software, stored with each result.

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
