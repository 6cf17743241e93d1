"""Checkpoints: everything that a run needs to resume, as safetensors and JSON, written completely or not at all.

A checkpoint is a folder `NNNNNNNN-NNNNNNNN` (epochs and steps done). It gets this name only when it is complete and on
the disk, so the newest folder with such a name is always complete. The best weights are a file beside these folders,
named by their epoch and written before the checkpoint that refers to them. `state.json` has the checksums of all these
files and a digest of itself: a checkpoint of which one bit has changed is not used.

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
from talos.files import checksum_of, remove_leftovers, replace_file, sealed_text, sync, unseal
from talos.training.objective import Objective

__all__ = [
    "Checkpoints",
    "Position",
    "ShardedTensors",
    "best_weights",
    "check_same_run",
    "checkpoint_names",
    "flatten",
    "load_best_weights",
    "unflatten",
]

FORMAT = 2  # 1 had no checksums
_LARGEST_JSON = 8 << 20
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
    highest: float = -math.inf  # of the validation metric
    # the metric, and its epoch, from which patience counts: the highest, but for `min_gain`
    peak: float = -math.inf
    peak_epoch: int = 0
    best: float = -math.inf  # that of the weights that are kept
    best_epoch: int = 0
    best_metrics: dict[str, float] = field(default_factory=dict)
    last_metrics: dict[str, float] = field(default_factory=dict)  # of the newest validation
    finished: bool = False

    def __post_init__(self) -> None:
        """A checkpoint of an earlier version has no highest metric beside the peak."""
        self.highest = max(self.highest, self.peak)


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
        self.best_checksums: dict[
            str, str
        ] = {}  # of the files of the best weights; on rank 0, and after resuming
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
            for left in self.folder.glob(
                ".*.tmp"
            ):  # of processes that were killed: this one has the run's lock
                shutil.rmtree(left, ignore_errors=True)
            staging.mkdir(parents=True)  # fails if somebody has put a link there

        def publish() -> None:
            record = {"format": FORMAT, **facts, "checksums": checksums, "best": self.best_checksums}
            (staging / "state.json").write_text(sealed_text(record), encoding="utf-8")
            for file in (*staging.iterdir(), staging):
                sync(file)
            if target.exists():  # the same position in training is the same state, or one that is damaged
                shutil.rmtree(target)
            staging.rename(target)
            sync(self.folder)

        what = f"{target} could not be written; earlier checkpoints are intact"
        try:
            all_or_none(self.group, begin if first else None, what)
            checksums = self._write(staging / "state.safetensors", tensors, what)
            all_or_none(self.group, publish if first else None, what)
        finally:
            if first:
                shutil.rmtree(staging, ignore_errors=True)
        for old in self._names()[: -self.keep] if first else ():
            shutil.rmtree(self.folder / old, ignore_errors=True)
        return target

    def _write(self, path: Path, tensors: Mapping[str, Tensor], what: str) -> dict[str, str]:
        """Every rank writes its own rows; when all have, rank 0 writes the other tensors and lists the rows' files.

        Returns the checksums of all files by name, on rank 0.
        """

        def write_rows() -> list[str]:
            path.parent.mkdir(parents=True, exist_ok=True)
            found = []
            for part in self.sharded:
                rows = {name: tensor for name, tensor in tensors.items() if name in part.names}
                found.append(_save(_file_of_rows(path, part.of, part.rows), rows))
            return found

        def write_rest() -> str:
            listed = {}
            for of, ranges in self.ranges.items():
                for rank, rows in enumerate(ranges):
                    if not _file_of_rows(path, of, rows).is_file():
                        raise OSError(f"rank {rank} wrote to another folder: do all processes see this one?")
                listed[of] = " ".join(f"{rows.start}-{rows.stop}" for rows in ranges)
            names = {name for part in self.sharded for name in part.names}
            rest = {name: tensor for name, tensor in tensors.items() if name not in names}
            return _save(path, rest, listed or None)

        own, checksums = all_or_none(self.group, write_rows, what) or [], {}
        for part, checksum in zip(self.sharded, own, strict=True):
            # processes exchange numbers only: a checksum is sent byte by byte
            digests = self.group.all_gather_numbers([*map(float, bytes.fromhex(checksum.partition(":")[2]))])
            for rows, digest in zip(self.ranges[part.of], digests, strict=True):
                name = _file_of_rows(path, part.of, rows).name
                checksums[name] = f"sha256:{bytes(map(int, digest)).hex()}"
        rest = all_or_none(self.group, write_rest if self.group.rank == 0 else None, what)
        return checksums if rest is None else {path.name: rest, **checksums}

    def latest(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Tensors and facts of the newest checkpoint that can be read; None if there is none. Skips damaged ones.

        A checkpoint that one rank cannot read is skipped by all.
        """
        names, problems = self._names(), []
        self.group.check_same(checkpoints=lambda: " ".join(names))
        for name in reversed(names):
            found = None
            try:
                found = self._read_checkpoint(self.folder / name)
            except (OSError, ValueError, KeyError, TypeError, SafetensorError, RecursionError) as error:
                problems.append(f"{name}: {error}")
            if not self.group.any(found is None):
                return found
        if names:
            where, found_what = str(self.folder), "; ".join(problems) or "another rank cannot read its part"
            raise DataError(f"no checkpoint can be read ({found_what})", where=where)
        return None

    def _read_checkpoint(self, folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
        path = folder / "state.json"
        if path.stat().st_size > _LARGEST_JSON:
            raise ValueError("state.json is too large")
        facts = json.loads(path.read_text(encoding="utf-8"))
        number = facts["format"]
        if type(number) is not int or not 1 <= number <= FORMAT:
            raise DataError(f"format {number}", where=str(folder), expected=f"format {FORMAT}")
        checksums = None
        if number > 1 or "sha256" in facts:
            try:
                facts = unseal(facts)
            except ValueError:
                raise ValueError("state.json differs from its own checksum") from None
            checksums = dict(facts["checksums"])
        tensors = self._read(folder / "state.safetensors", checksums)
        if checksums is None:
            stem = self._best(int(facts["position"]["best_epoch"])).stem
            files = [path for path in self._best_files() if path.name.split(".")[0] == stem]
            self.best_checksums = {path.name: checksum_of(path) for path in files}
        else:
            self.best_checksums = {Path(name).name: str(checksum) for name, checksum in facts["best"].items()}
            for name, checksum in self.best_checksums.items() if self.group.rank == 0 else ():
                _check(self.folder / name, checksum)
        return tensors, facts

    def save_best(self, epoch: int, tensors: Mapping[str, Tensor]) -> None:
        """Write the best weights so far; `forget_old_best` removes earlier ones."""
        path = self._best(epoch)
        what = f"{path} could not be written; earlier weights are intact"
        checksums = self._write(path, tensors, what)
        self.best_checksums = checksums if self.group.rank == 0 else {}

    def load_best(self, epoch: int) -> dict[str, Tensor]:
        """The best weights, which were those after that epoch."""
        try:
            return self._read(self._best(epoch), self.best_checksums or None)
        except (OSError, ValueError, SafetensorError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(f"cannot be read ({error})", where=str(self._best(epoch))) from None

    def _read(self, path: Path, checksums: Mapping[str, str] | None) -> dict[str, Tensor]:
        """The tensors of a file; of sharded ones, the rows of this process. Files are compared with their checksums."""

        def checked(file: Path) -> Path:
            if checksums is not None:
                _check(file, checksums.get(file.name))
            return file

        own = {name: part.rows for part in self.sharded for name in part.names}
        tensors: dict[str, Tensor] = {}
        with safe_open(checked(path), framework="pt") as file:
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
                with safe_open(checked(_file_of_rows(path, of, range(start, stop))), framework="pt") as file:
                    for name in file.keys():  # noqa: SIM118
                        wanted = own.get(name, range(start, stop))
                        low, high = max(start, wanted.start), min(stop, wanted.stop)
                        if low < high:
                            rows = file.get_slice(name)[low - start : high - start]
                            pieces.setdefault(name, []).append(rows)
        return tensors | {name: torch.cat(rows) for name, rows in pieces.items()}

    def forget_old_best(self) -> None:
        """Remove best weights that no checkpoint refers to any more."""
        if self.group.rank != 0:
            return
        used = set(self.best_checksums)
        for name in self._names():
            try:
                facts = json.loads((self.folder / name / "state.json").read_text(encoding="utf-8"))
                used |= set(facts["best"])
            except (OSError, ValueError, KeyError, TypeError, RecursionError):
                continue  # damaged, or of a version without checksums
        newest = max(used, default="")
        for path in self._best_files():
            if path.name not in used and path.name < newest:
                path.unlink(missing_ok=True)
                remove_leftovers(path)

    def _best(self, epoch: int) -> Path:
        return self.folder / f"best-{epoch:08d}.safetensors"

    def _best_files(self) -> list[Path]:
        return list(self.folder.glob("best-*.safetensors"))

    def _names(self) -> list[str]:
        return checkpoint_names(self.folder)


def checkpoint_names(folder: Path) -> list[str]:
    """The checkpoints in a folder, oldest first; none if there is no such folder.

    >>> checkpoint_names(Path("nowhere"))
    []
    """
    if not folder.is_dir():
        return []
    return sorted(entry.name for entry in folder.iterdir() if _NAME.fullmatch(entry.name))


def _check(file: Path, checksum: str | None) -> None:
    if checksum_of(file) != checksum:
        raise DataError(
            "differs from its checksum in state.json", where=str(file), expected="the file as written"
        )


def _file_of_rows(path: Path, of: str, rows: range) -> Path:
    return path.with_name(f"{path.stem}.{of}-{rows.start}-{rows.stop}.safetensors")


def _save(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> str:
    """Write tensors to a file; returns its checksum."""
    whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
    replace_file(path, lambda temporary: save_file(whole, temporary, metadata))
    return checksum_of(path)


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
    # by way of the config: a checkpoint of an earlier version lacks newer options, which have their defaults then
    ours, theirs = config.as_dict(), RunConfig.from_dict(facts["config"]).as_dict()
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
