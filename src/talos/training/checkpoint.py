"""Checkpoints: the state of a run as safetensors and JSON, written completely or not at all.

A checkpoint is a folder `NNNNNNNN-NNNNNNNN` (epochs and steps done). It gets this name only when it is complete and on
the disk, so the newest folder with such a name is always complete. The best weights are such a folder too,
`best-NNNNNNNN` by their epoch, written before the checkpoint that refers to them. `state.json` has the checksums of the
other files of its folder and a digest of itself: a folder with one flipped bit is not used.

`state.safetensors` has the tensors. With several processes it has those that all processes have,
`state.users-A-B.safetensors` the rows of users A to B-1, and `state.items-A-B.safetensors` the rows of items A to B-1.
Any number of processes can read the files of any other number, however the rows were divided: each reads the rows that
it needs. All processes must see the same folder.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from talos.checks import require
from talos.config import RunConfig
from talos.distributed import SINGLE_PROCESS, Group, all_or_none
from talos.errors import ConfigError, DataError
from talos.files import read_record, read_sealed, sync, write_record
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

FORMAT = 3
_HINT = "Talos 0.2 reads checkpoints of format 2"
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError)


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


@dataclass(frozen=True, kw_only=True)
class ShardedTensors:
    """Tensors of which every process has a range of rows: tables, and an optimizer's state of their size."""

    of: str  # what a row belongs to, `users` or `items`
    rows: range  # the rows that this process has
    tables: Sequence[str]  # with the name of their module, such as `backbone.user_table`

    def has(self, name: str, dims: int) -> bool:
        """Whether the tensor of this name is one of these; a scalar, such as a number of steps, is not."""
        return dims > 0 and any(f".{table}." in f".{name}." for table in self.tables)


@dataclass
class Checkpoints:
    """The `checkpoint/` folder of a run, created by the first write.

    The processes of `group` write a checkpoint together. The rows of the `sharded` tensors are divided among them;
    every process has all of the others. The newest `keep` checkpoints are kept.
    """

    folder: Path
    keep: int = 2
    group: Group = SINGLE_PROCESS
    sharded: Sequence[ShardedTensors] = ()

    def save(self, epoch: int, step: int, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Write a checkpoint, then remove those beyond `keep` and best weights that no checkpoint refers to.

        `facts` are JSON values; `facts["position"]` is that of the run. A failed write leaves the earlier checkpoints
        as they are.
        """
        self._write(f"{epoch:08d}-{step:08d}", tensors, facts)
        if self.group.rank != 0:
            return
        names, used = checkpoint_names(self.folder), set()
        for name in names[-self.keep :]:
            with suppress(DataError):  # damaged
                kept = read_sealed(self.folder / name / "state.json", hint=_HINT, format=FORMAT)
                used.add(_best(kept["position"]["best_epoch"]))
        unused = [path.name for path in self.folder.glob("best-*") if path.name not in used]
        for name in (*names[: -self.keep], *unused):
            shutil.rmtree(self.folder / name, ignore_errors=True)

    def save_best(self, epoch: int, tensors: Mapping[str, Tensor]) -> None:
        """Write the best weights so far, those after `epoch`; `save` removes earlier ones."""
        self._write(_best(epoch), tensors, {})

    def _write(self, name: str, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Every rank writes its own rows to a folder, rank 0 the other tensors and `state.json`."""
        target, staging, first = self.folder / name, self.folder / f".{name}.tmp", self.group.rank == 0

        def begin() -> None:
            for left in self.folder.glob(".*.tmp"):  # of killed processes: this one has the run's lock
                shutil.rmtree(left, ignore_errors=True)
            staging.mkdir(parents=True)  # fails if the name is a link

        def write() -> None:
            others = dict(tensors)
            for one in self.sharded:
                rows = {key: others.pop(key) for key, value in tensors.items() if one.has(key, value.ndim)}
                _save(staging / f"state.{one.of}-{one.rows.start}-{one.rows.stop}.safetensors", rows)
            if first:
                _save(staging / "state.safetensors", others)

        def publish() -> None:
            names = [file.name for file in staging.iterdir()]
            write_record(staging / "state.json", facts, names, format=FORMAT)
            # the same position in training is the same state, or a damaged one
            shutil.rmtree(target, ignore_errors=True)
            staging.rename(target)
            sync(self.folder)

        what = f"{target} could not be written; earlier checkpoints are intact"
        try:
            for act in (begin if first else None, write, publish if first else None):
                all_or_none(self.group, act, what)
        finally:
            if first:
                shutil.rmtree(staging, ignore_errors=True)

    def latest(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Tensors and facts of the newest checkpoint that can be read; None if there is none. Skips damaged ones.

        A checkpoint that one rank cannot read is skipped by all.
        """
        names, problems = checkpoint_names(self.folder), []
        self.group.check_same(checkpoints=lambda: " ".join(names))
        for name in reversed(names):
            found = None
            try:
                tensors, facts = self._read(name)
                best = facts["position"]["best_epoch"]
                if best and self.group.rank == 0:
                    _verified(self.folder / _best(best))
                found = tensors, facts
            except _UNREADABLE as error:
                problems.append(f"{name}: {error}")
            if not self.group.any(found is None):
                return found
        if names:
            problems = problems or ["another rank cannot read its rows"]
            raise DataError(f"no checkpoint can be read ({'; '.join(problems)})", where=str(self.folder))
        return None

    def load_best(self, epoch: int) -> dict[str, Tensor]:
        """The best weights, those after `epoch`."""
        try:
            return self._read(_best(epoch))[0]
        except _UNREADABLE as error:
            raise DataError(f"cannot be read ({error})", where=str(self.folder / _best(epoch))) from None

    def _read(self, name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The tensors of a folder, of sharded ones the rows of this process; and its facts."""
        facts, pieces = _verified(self.folder / name), dict[str, list[Tensor]]()
        first_rows = {path: int(path.split("-")[1]) if "-" in path else 0 for path in facts["checksums"]}
        for path, start in sorted(first_rows.items(), key=itemgetter(1)):
            with safe_open(self.folder / name / path, framework="pt") as file:
                for key in file.keys():  # noqa: SIM118  # not a mapping
                    tensor = file.get_slice(key)
                    shape = tensor.get_shape()
                    own = next((one.rows for one in self.sharded if one.has(key, len(shape))), None)
                    if own is None:
                        pieces.setdefault(key, []).append(file.get_tensor(key))
                    elif (low := max(start, own.start)) < (high := min(start + shape[0], own.stop)):
                        pieces.setdefault(key, []).append(tensor[low - start : high - start])
        return {key: torch.cat(rows) if len(rows) > 1 else rows[0] for key, rows in pieces.items()}, facts


def checkpoint_names(folder: Path) -> list[str]:
    """The checkpoints in a folder, oldest first; none if there is no such folder.

    >>> checkpoint_names(Path("nowhere"))
    []
    """
    return sorted(entry.name for entry in folder.glob("-".join(2 * [8 * "[0-9]"])))


def _verified(folder: Path) -> dict[str, Any]:
    """The content of `state.json` of a folder whose files are as they were written."""
    return read_record(folder / "state.json", hint=_HINT, format=FORMAT)


def _best(epoch: int) -> str:
    return f"best-{epoch:08d}"


def _save(path: Path, tensors: Mapping[str, Tensor]) -> None:
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    path.chmod(path.parent.stat().st_mode & 0o666)  # safetensors creates files that only this user can read
    sync(path)


def flatten(prefix: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a state dict on the CPU, with a prefix and a dot before their names."""
    return {f"{prefix}.{name}": tensor.detach().cpu() for name, tensor in state.items()}


def unflatten(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with a prefix and a dot, by the rest of the name."""
    return {
        name.removeprefix(f"{prefix}."): tensor
        for name, tensor in tensors.items()
        if name.startswith(f"{prefix}.")
    }


def best_weights(objective: Objective) -> dict[str, Tensor]:
    """The tensors that are kept of the best epoch: those of the backbone and the thresholds."""
    state = objective.state_dict()
    return flatten(
        "best", {name: state[name] for name in state if name.startswith(("backbone.", "threshold."))}
    )


def load_best_weights(objective: Objective, weights: Mapping[str, Tensor]) -> None:
    """Set the backbone and the thresholds to the result of `best_weights`."""
    objective.load_state_dict(objective.state_dict() | unflatten("best", weights))


def check_same_run(facts: Mapping[str, Any], config: RunConfig, data: Mapping[str, Any]) -> None:
    """Raise an error if a checkpoint was written with other data or another config."""
    require(
        facts["data"] == data,
        "the data differ from those of the checkpoint",
        where="resume",
        expected="the data it began with",
        error=DataError,
    )
    # a run may resume with its rows divided in another way, and on another processor
    free = {name: getattr(config.training, name) for name in ("parallel", "arithmetic")}
    theirs = facts["config"] | {"training": facts["config"]["training"] | free}
    different = [name for name, value in config.as_dict().items() if theirs.get(name) != value]
    require(
        not different,
        f"{', '.join(different)} differ from those of the checkpoint",
        where="resume",
        expected="the settings it began with",
        error=ConfigError,
    )
