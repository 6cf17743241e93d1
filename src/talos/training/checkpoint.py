"""Checkpoints: everything that a run needs to resume, as safetensors and JSON, written completely or not at all.

A checkpoint is a folder `NNNNNNNN-NNNNNNNN` (epochs and steps done). It gets this name only when it is complete and on
the disk, so the newest folder with such a name is always complete. The best weights are a file beside these folders,
named by their epoch and written before the checkpoint that refers to them.

With several processes, `X.safetensors` has the tensors that all processes have, `X.users-A-B.safetensors` the rows of
users A to B-1, and `X.items-A-B.safetensors` the rows of items A to B-1. Rank 0 writes the first of these last, with a
list of the others. Any number of processes can read what any other number wrote, however the rows were divided: each
reads the rows that it needs. All processes must see the same folder.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from talos.config import RunConfig
from talos.distributed import SINGLE_PROCESS, Group, all_or_none
from talos.errors import ConfigError, DataError
from talos.files import replace_file, sync
from talos.training.objective import Objective

__all__ = [
    "Checkpoints",
    "Position",
    "ShardedTensors",
    "best_weights",
    "check_same_run",
    "flatten",
    "load_best_weights",
    "unflatten",
]

FORMAT = 1
_NAME = re.compile(r"\d{8}-\d{8}")


@dataclass
class Position:
    """How far a run has come: epochs done, the pass within the epoch, steps done in that pass, the best so far.

    Stored in every checkpoint under these names.
    """

    epoch: int = 0
    pass_number: int = 0  # 0 trains the model, later ones adversaries
    step: int = 0
    loss_sum: float = 0.0
    seconds: float = 0.0
    best: float = -math.inf
    best_epoch: int = 0
    best_metrics: dict[str, float] = field(default_factory=dict)
    last_metrics: dict[str, float] = field(default_factory=dict)  # of the newest validation
    finished: bool = False


@dataclass(frozen=True, kw_only=True)
class ShardedTensors:
    """Tensors of which every process has a range of rows."""

    of: str  # what a row belongs to, `users` or `items`
    rows: range  # the rows that this process has
    names: frozenset[str]


class Checkpoints:
    """The `checkpoint/` folder of a run, created by the first write.

    The processes of `group` write a checkpoint together. The rows of the `sharded` tensors are divided among them;
    every process has all of the others. `keep` checkpoints are kept.
    """

    def __init__(
        self,
        folder: Path,
        *,
        keep: int = 2,
        group: Group = SINGLE_PROCESS,
        sharded: Sequence[ShardedTensors] = (),
    ) -> None:
        self.folder, self.keep, self.group, self.sharded = folder, keep, group, tuple(sharded)
        self.ranges: dict[str, list[range]] = {}  # the rows of every rank
        for part in sharded:
            bounds = group.all_gather_numbers([part.rows.start, part.rows.stop])
            self.ranges[part.of] = [range(int(start), int(stop)) for start, stop in bounds]

    def elsewhere(self, folder: Path) -> Checkpoints:
        """Checkpoints of the same tensors in another folder."""
        return Checkpoints(folder, keep=self.keep, group=self.group, sharded=self.sharded)

    def save(self, epoch: int, step: int, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> Path:
        """Write a checkpoint, then remove those beyond `keep`. A failed write leaves the earlier ones as they are."""
        target = self.folder / f"{epoch:08d}-{step:08d}"
        writer = int(self.group.all_gather_numbers([os.getpid()])[0][0])
        staging = self.folder / f".{target.name}.{writer}.tmp"
        first = self.group.rank == 0

        def begin() -> None:
            shutil.rmtree(staging, ignore_errors=True)
            staging.mkdir(parents=True)

        def publish() -> None:
            (staging / "state.json").write_text(json.dumps({"format": FORMAT, **facts}))
            for file in (*staging.iterdir(), staging):
                sync(file)
            if target.exists():  # the same position in training is the same state
                shutil.rmtree(target)
            staging.rename(target)
            sync(self.folder)

        what = f"{target} could not be written; earlier checkpoints are intact"
        try:
            all_or_none(self.group, begin if first else None, what)
            self._write(staging / "state.safetensors", tensors, what)
            all_or_none(self.group, publish if first else None, what)
        finally:
            if first:
                shutil.rmtree(staging, ignore_errors=True)
        for old in self._names()[: -self.keep] if first else ():
            shutil.rmtree(self.folder / old, ignore_errors=True)
        return target

    def _write(self, path: Path, tensors: Mapping[str, Tensor], what: str) -> None:
        """Every rank writes its own rows; when all have, rank 0 writes the other tensors and lists the rows' files."""

        def write_rows() -> None:
            path.parent.mkdir(parents=True, exist_ok=True)
            for part in self.sharded:
                rows = {name: tensor for name, tensor in tensors.items() if name in part.names}
                _save(_file_of_rows(path, part.of, part.rows), rows)

        def write_rest() -> None:
            listed = {}
            for of, ranges in self.ranges.items():
                for rank, rows in enumerate(ranges):
                    if not _file_of_rows(path, of, rows).is_file():
                        raise OSError(f"rank {rank} wrote to another folder: do all processes see this one?")
                listed[of] = " ".join(f"{rows.start}-{rows.stop}" for rows in ranges)
            names = {name for part in self.sharded for name in part.names}
            rest = {name: tensor for name, tensor in tensors.items() if name not in names}
            _save(path, rest, listed or None)

        all_or_none(self.group, write_rows, what)
        all_or_none(self.group, write_rest if self.group.rank == 0 else None, what)

    def latest(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Tensors and facts of the newest checkpoint that can be read; None if there is none. Skips damaged ones."""
        problems = []
        for name in reversed(self._names()):
            try:
                facts = json.loads((self.folder / name / "state.json").read_text())
                if facts["format"] != FORMAT:
                    found, where = f"format {facts['format']}", str(self.folder / name)
                    raise DataError(found, where=where, expected=f"format {FORMAT}")
                return self._read(self.folder / name / "state.safetensors"), facts
            except (OSError, ValueError, KeyError, SafetensorError) as error:
                problems.append(f"{name}: {error}")
        if problems:
            raise DataError(f"no checkpoint can be read ({'; '.join(problems)})", where=str(self.folder))
        return None

    def save_best(self, epoch: int, tensors: Mapping[str, Tensor]) -> None:
        """Write the best weights so far; `forget_best_before` removes earlier ones."""
        path = self._best(epoch)
        self._write(path, tensors, f"{path} could not be written; earlier weights are intact")

    def load_best(self, epoch: int) -> dict[str, Tensor]:
        """The best weights, which were those after that epoch."""
        return self._read(self._best(epoch))

    def _read(self, path: Path) -> dict[str, Tensor]:
        """The tensors of a file; of sharded ones, the rows of this process."""
        own = {name: part.rows for part in self.sharded for name in part.names}
        tensors: dict[str, Tensor] = {}
        with safe_open(path, framework="pt") as file:
            listed = file.metadata() or {}
            for name in file.keys():  # noqa: SIM118  # not a mapping
                if name in own:
                    tensors[name] = file.get_slice(name)[own[name].start : own[name].stop]
                else:
                    tensors[name] = file.get_tensor(name)
        pieces: dict[str, list[Tensor]] = {}
        for of in ("users", "items"):
            for bounds in listed.get(of, "").split():
                start, stop = map(int, bounds.split("-"))
                with safe_open(_file_of_rows(path, of, range(start, stop)), framework="pt") as file:
                    for name in file.keys():  # noqa: SIM118
                        wanted = own.get(name, range(start, stop))
                        low, high = max(start, wanted.start), min(stop, wanted.stop)
                        if low < high:
                            rows = file.get_slice(name)[low - start : high - start]
                            pieces.setdefault(name, []).append(rows)
        return tensors | {name: torch.cat(rows) for name, rows in pieces.items()}

    def forget_best_before(self, epoch: int) -> None:
        """Remove best weights that no checkpoint refers to any more."""
        if self.group.rank != 0:
            return
        for path in self.folder.glob("best-*.safetensors"):
            if path.name.split(".")[0] < self._best(epoch).stem:
                path.unlink(missing_ok=True)

    def _best(self, epoch: int) -> Path:
        return self.folder / f"best-{epoch:08d}.safetensors"

    def _names(self) -> list[str]:
        if not self.folder.is_dir():
            return []
        return sorted(entry.name for entry in self.folder.iterdir() if _NAME.fullmatch(entry.name))


def _file_of_rows(path: Path, of: str, rows: range) -> Path:
    return path.with_name(f"{path.stem}.{of}-{rows.start}-{rows.stop}.safetensors")


def _save(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
    replace_file(path, lambda temporary: save_file(whole, temporary, metadata))


def flatten(prefix: str, state: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of a nested state dict by dotted name, on the CPU; other values are left out."""
    tensors: dict[str, Tensor] = {}
    for key, value in state.items():
        if isinstance(value, Tensor):
            tensors[f"{prefix}.{key}"] = value.detach().cpu()
        elif isinstance(value, Mapping):
            tensors |= flatten(f"{prefix}.{key}", value)
    return tensors


def unflatten(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with a prefix, by the rest of the name."""
    start = f"{prefix}."
    return {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}


def best_weights(objective: Objective) -> dict[str, Tensor]:
    """What is kept of the best epoch: the backbone and the thresholds."""
    parts = {"backbone": objective.backbone, "threshold": objective.threshold}
    return flatten("best", {name: part.state_dict() for name, part in parts.items() if part is not None})


def load_best_weights(objective: Objective, weights: Mapping[str, Tensor]) -> None:
    """Set the backbone and the thresholds to what `best_weights` returned."""
    objective.backbone.load_state_dict(unflatten("best.backbone", weights))
    if objective.threshold is not None:
        objective.threshold.load_state_dict(unflatten("best.threshold", weights))


def check_same_run(facts: Mapping[str, Any], config: RunConfig, data: Mapping[str, Any]) -> None:
    """Raise an error if a checkpoint was written with other data or another config."""
    if facts["data"] != data:
        raise DataError(
            "the data differ from those of the checkpoint", where="resume", expected="the data it began with"
        )
    ours, theirs = config.as_dict(), dict(facts["config"])
    # a run may resume with its rows divided in another way, and on another processor
    free = {name: getattr(config.training, name) for name in ("parallel", "arithmetic")}
    theirs["training"] = {**theirs["training"], **free}
    different = [name for name, value in ours.items() if theirs.get(name) != value]
    if different:
        raise ConfigError(
            f"{', '.join(different)} differ from those of the checkpoint",
            where="resume",
            expected="the settings it began with",
        )
