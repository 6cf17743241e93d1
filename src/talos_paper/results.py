"""Results on disk: three files of one JSON object a line, each line with a checksum of itself.

    runs.jsonl           one fit a line: settings, split, versions, metrics, learning curve
    searches.jsonl       the candidates of a search and the validation metric of each
    measurements.jsonl   results without a fit: inconsistency, theory, time, significance

A line is found by its `name`, which has the data set and a digest of the settings. A line that was changed after it was
written is an error.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from talos.errors import DataError
from talos.files import digest_of, locked, replace_text, unseal
from talos_paper.recipes import Recipe, Searched

__all__ = ["ResultStore", "StoredRun", "run_name", "versions"]

Kind: TypeAlias = Literal["runs", "searches", "measurements"]


@dataclass(frozen=True, kw_only=True)
class StoredRun:
    """The stored result of one fit.

    Attributes:
        made_with: the data set with the sizes and fingerprints of its parts, the settings that the recipe sets, the
            whole config, what differs from the paper in words, the definition of the metrics, versions, and threads.
        notes: what differs between this split and the paper's, in words.
        seed: seed of the training.
        cpu_seconds: processor time of the fit.
        epochs: number of epochs that were trained.
        best_epoch: the epoch whose weights were kept.
        stopped: `patience` after early stopping, `epochs` otherwise.
        users: number of users with test items.
        valid: validation metrics at the best epoch.
        metrics: test metrics; with thresholds also `error`, their mean absolute difference from the exact ones, and
            `fresh error`, the same after one more epoch in which only thresholds are updated.
        stderr: standard errors of the metrics over users.
        curve: epoch, loss and validation metric at each evaluation.
        scores: mean positive score, mean score and mean threshold after each epoch, if the recipe has `probe`.
    """

    made_with: dict[str, Any] = field(repr=False)
    notes: list[str]
    seed: int
    cpu_seconds: float
    epochs: int
    best_epoch: int
    stopped: str
    users: int
    valid: dict[str, float]
    metrics: dict[str, float]
    stderr: dict[str, float]
    curve: list[list[float | None]] = field(repr=False)
    scores: list[list[float]] = field(repr=False, default_factory=list)


def run_name(recipe: Recipe, seed: int) -> str:
    """The name under which the result of a recipe and a seed is stored."""
    return f"{recipe.dataset}/{recipe.key}-seed{seed}"


class ResultStore:
    """A folder of results; several processes may write to it.

    >>> import tempfile
    >>> store = ResultStore(Path(tempfile.mkdtemp()))
    >>> store.save_measurement("demo", {"value": 1})
    >>> store.measurement("demo"), store.names("measurements")
    ({'value': 1}, ['demo'])
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._known: dict[Kind, tuple[object, dict[str, str]]] = {}  # what was read, and of which file

    def run(self, recipe: Recipe, seed: int) -> StoredRun | None:
        """The result of a recipe and a seed; None if there is none."""
        found = self._values("runs", run_name(recipe, seed))
        return None if found is None else StoredRun(**found)

    def runs(self, recipe: Recipe, seeds: int) -> list[StoredRun]:
        """The results of seeds 0 to `seeds` - 1, as far as they exist, with the settings that the search chose."""
        chosen = self.resolved(recipe)
        found = [] if chosen is None else [self.run(chosen, seed) for seed in range(seeds)]
        return [run for run in found if run is not None]

    def save_run(self, recipe: Recipe, run: StoredRun) -> None:
        """Save a result."""
        self._save("runs", run_name(recipe, run.seed), asdict(run))

    def search(self, recipe: Recipe) -> dict[str, Any] | None:
        """A search's candidates, trials and the index of the best; None if it is not done."""
        return self._values("searches", f"{recipe.dataset}/{recipe.key}")

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
        self._save("searches", f"{recipe.dataset}/{recipe.key}", facts)

    def resolved(self, recipe: Recipe) -> Recipe | None:
        """The recipe with the settings that its search chose; None while the search is not done."""
        if not recipe.searched:
            return recipe
        found = self.search(recipe)
        return None if found is None else recipe.with_settings(found["candidates"][found["best"]])

    def measurement(self, name: str) -> dict[str, Any] | None:
        """A measurement by name; None if there is none."""
        return self._values("measurements", name)

    def save_measurement(self, name: str, values: Mapping[str, Any]) -> None:
        """Save a measurement."""
        self._save("measurements", name, values)

    def path(self, kind: Kind) -> Path:
        """The file of the results of a kind."""
        return self.root / f"{kind}.jsonl"

    def names(self, kind: Kind) -> list[str]:
        """The names of the stored results of a kind; every line is checked."""
        return list(self._read(kind))

    def _values(self, kind: Kind, name: str) -> dict[str, Any] | None:
        line = self._read(kind).get(name)
        if line is None:
            return None
        # parsed anew at each call, so that a caller may change what it gets
        return {key: value for key, value in json.loads(line).items() if key not in ("name", "sha256")}

    def _read(self, kind: Kind) -> dict[str, str]:
        """Name → line; the file is read again when it was replaced."""
        path = self.path(kind)
        if not path.exists():
            return {}
        stat = path.stat()
        now = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        if kind not in self._known or self._known[kind][0] != now:
            lines: dict[str, str] = {}
            for number, line in enumerate(path.read_text(encoding="utf-8").rstrip("\n").split("\n"), start=1):
                try:
                    lines[unseal(json.loads(line))["name"]] = line
                except (ValueError, KeyError) as error:
                    hint = "delete the line and run `talos reproduce` again"
                    raise DataError(f"is damaged: {error}", where=f"{path}:{number}", hint=hint) from None
            self._known[kind] = (now, lines)
        return self._known[kind][1]

    def _save(self, kind: Kind, name: str, values: Mapping[str, Any]) -> None:
        # through JSON and back, so that the checksum is of what will be read: no tuples, no numpy numbers
        plain = json.loads(json.dumps({"name": name, **values}, allow_nan=False))
        line = json.dumps({**plain, "sha256": digest_of(plain)}, ensure_ascii=False)
        path = self.path(kind)
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.with_name(f".{path.name}.lock"), guards=path, purpose="saving", wait=lambda _: None):
            lines = {**self._read(kind), name: line}
            replace_text(path, "".join(f"{lines[one]}\n" for one in sorted(lines)))


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
