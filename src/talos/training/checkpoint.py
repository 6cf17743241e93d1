"""Checkpoints: everything that a run needs to go on, as safetensors and JSON, all or nothing.

A checkpoint is a folder `NNNNNNNN-NNNNNNNN` (epochs and steps done) that gets its name only when it is complete
and on the disk, so whatever happens, the newest folder with a name like that is whole. The best weights are a
file of their own beside them, named by their epoch and written before the checkpoint that mentions them.

Where several processes have a range of users each, a file `X.safetensors` has what they all have, and
`X.users-A-B.safetensors` the rows of users A to B-1; the former is written last, by rank 0, and lists the latter.
Where they have a range of items as well, there are `X.items-A-B.safetensors` besides. Any number of processes can
read what any other number wrote, however that was divided: each takes the rows that it needs. All of them must see
the same folder.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from talos.distributed import ALONE, Group
from talos.errors import DataError, TalosError
from talos.files import replace_file, sync

__all__ = ["Checkpoints", "Part", "flatten", "unflatten"]

FORMAT = 1
_NAME = re.compile(r"\d{8}-\d{8}")


@dataclass(frozen=True, kw_only=True)
class Part:
    """Tensors of which this process has some rows and other processes have the others.

    Attributes:
        of: what the rows are of, `users` or `items`.
        rows: which of them this process has.
        names: the tensors.
    """

    of: str
    rows: range
    names: frozenset[str]


class Checkpoints:
    """The `checkpoint/` folder of a run.

    Args:
        folder: made when first written to.
        keep: how many checkpoints are kept.
        group: the processes that write one together.
        parts: the tensors that are divided among these processes; all have all of the others.
    """

    def __init__(
        self,
        folder: Path,
        *,
        keep: int = 2,
        group: Group = ALONE,
        parts: Sequence[Part] = (),
    ) -> None:
        self.folder, self.keep, self.group, self.parts = folder, keep, group, tuple(parts)
        self.shares: dict[str, list[range]] = {}  # of every rank
        for part in parts:
            bounds = group.exchange([part.rows.start, part.rows.stop])
            self.shares[part.of] = [range(int(start), int(stop)) for start, stop in bounds]

    def save(self, epoch: int, step: int, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> Path:
        """Write one, then remove those beyond `keep`. A full disk leaves the earlier ones as they are."""
        target = self.folder / f"{epoch:08d}-{step:08d}"
        writer = int(self.group.exchange([os.getpid()])[0][0])
        staging = self.folder / f".{target.name}.{writer}.tmp"
        state, first = staging / "state.safetensors", self.group.rank == 0

        def begin() -> None:
            shutil.rmtree(staging, ignore_errors=True)
            staging.mkdir(parents=True)

        def publish() -> None:
            (staging / "state.json").write_text(json.dumps({"format": FORMAT, **facts}))
            for file in (*staging.iterdir(), staging):
                sync(file)
            if target.exists():  # the same place in training is the same state
                shutil.rmtree(target)
            staging.rename(target)
            sync(self.folder)

        try:
            self._together(target, begin if first else None)
            self._together(target, lambda: self._write_own(state, tensors))
            self._together(target, (lambda: self._write_common(state, tensors, publish)) if first else None)
        finally:
            if first:
                shutil.rmtree(staging, ignore_errors=True)
        for old in self._names()[: -self.keep] if first else ():
            shutil.rmtree(self.folder / old, ignore_errors=True)
        return target

    def _together(self, target: Path, act: Callable[[], None] | None) -> None:
        """Do something, and go on when every process has done its part; if one of them cannot, none goes on."""
        problem: Exception | None = None
        try:
            if act is not None:
                act()
        except (OSError, SafetensorError, TalosError) as error:
            problem = error
        failed = [rank for rank, (bad,) in enumerate(self.group.exchange([problem is not None])) if bad]
        if failed:
            what = problem or f"rank {failed[0]} could not write its part"
            raise TalosError(
                f"{target} could not be written ({what}); what was there before it is intact"
            ) from problem

    def _write_own(self, path: Path, tensors: Mapping[str, Tensor]) -> None:
        """This process's rows, where they are not everybody's."""
        path.parent.mkdir(parents=True, exist_ok=True)
        for part in self.parts:
            rows = {name: tensor for name, tensor in tensors.items() if name in part.names}
            _save(_shard(path, part.of, part.rows), rows)

    def _write_common(
        self, path: Path, tensors: Mapping[str, Tensor], publish: Callable[[], None] | None = None
    ) -> None:
        """What all processes have, and the names of the other files; these must be there."""
        listed = {}
        for of, shares in self.shares.items():
            for rank, share in enumerate(shares):
                if not _shard(path, of, share).is_file():
                    raise OSError(f"the part of rank {rank} is not here: do all processes see this folder?")
            listed[of] = " ".join(f"{share.start}-{share.stop}" for share in shares)
        divided = {name for part in self.parts for name in part.names}
        common = {name: tensor for name, tensor in tensors.items() if name not in divided}
        _save(path, common, listed or None)
        if publish is not None:
            publish()

    def latest(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The newest one that can be read, or None if there is none; a damaged one is passed over."""
        problems = []
        for name in reversed(self._names()):
            try:
                facts = json.loads((self.folder / name / "state.json").read_text())
                if facts["format"] != FORMAT:
                    raise DataError(
                        f"format {facts['format']}",
                        where=str(self.folder / name),
                        expected=f"format {FORMAT}",
                    )
                return self._read(self.folder / name / "state.safetensors"), facts
            except (OSError, ValueError, KeyError, SafetensorError) as error:
                problems.append(f"{name}: {error}")
        if problems:
            raise DataError(f"no checkpoint can be read ({'; '.join(problems)})", where=str(self.folder))
        return None

    def save_best(self, epoch: int, tensors: Mapping[str, Tensor]) -> None:
        """Keep the best weights so far; older ones go when `forget_best_before` is called."""
        path = self._best(epoch)
        self._together(path, lambda: self._write_own(path, tensors))
        self._together(path, (lambda: self._write_common(path, tensors)) if self.group.rank == 0 else None)

    def load_best(self, epoch: int) -> dict[str, Tensor]:
        """The best weights, found at that epoch."""
        return self._read(self._best(epoch))

    def _read(self, path: Path) -> dict[str, Tensor]:
        """The tensors of a file, and of those that are divided the rows of this process."""
        own = {name: part.rows for part in self.parts for name in part.names}
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
            for share in listed.get(of, "").split():
                start, stop = map(int, share.split("-"))
                with safe_open(_shard(path, of, range(start, stop)), framework="pt") as file:
                    for name in file.keys():  # noqa: SIM118
                        wanted = own.get(name, range(start, stop))
                        low, high = max(start, wanted.start), min(stop, wanted.stop)
                        if low < high:
                            rows = file.get_slice(name)[low - start : high - start]
                            pieces.setdefault(name, []).append(rows)
        return tensors | {name: torch.cat(rows) for name, rows in pieces.items()}

    def forget_best_before(self, epoch: int) -> None:
        """Remove best weights that no checkpoint mentions any more."""
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


def _shard(path: Path, of: str, rows: range) -> Path:
    return path.with_name(f"{path.stem}.{of}-{rows.start}-{rows.stop}.safetensors")


def _save(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
    replace_file(path, lambda temporary: save_file(whole, temporary, metadata))


def flatten(prefix: str, state: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """A nested state dict as tensors by dotted name, and everything else by dotted name.

    >>> import torch
    >>> tensors, rest = flatten("a", {"b": {0: torch.ones(1)}, "c": 3})
    >>> list(tensors), rest
    (['a.b.0'], {'a.c': 3})
    """
    tensors: dict[str, Tensor] = {}
    rest: dict[str, Any] = {}
    for key, value in state.items():
        name = f"{prefix}.{key}"
        if isinstance(value, Tensor):
            tensors[name] = value.detach().cpu()
        elif isinstance(value, Mapping):
            inner_tensors, inner_rest = flatten(name, value)
            tensors |= inner_tensors
            rest |= inner_rest
        else:
            rest[name] = value
    return tensors, rest


def unflatten(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors below a prefix, with the prefix taken off.

    >>> import torch
    >>> list(unflatten("a", {"a.b": torch.ones(1), "c.d": torch.ones(1)}))
    ['b']
    """
    return {
        name[len(prefix) + 1 :]: tensor for name, tensor in tensors.items() if name.startswith(f"{prefix}.")
    }
