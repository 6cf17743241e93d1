"""Checkpoints: everything that a run needs to go on, as safetensors and JSON, all or nothing.

A checkpoint is a folder `NNNNNNNN-NNNNNNNN` (epochs and steps done) that gets its name only when it is complete
and on the disk, so whatever happens, the newest folder with a name like that is whole. The best weights are a
file of their own beside them, named by their epoch and written before the checkpoint that mentions them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from talos.errors import DataError, TalosError

__all__ = ["Checkpoints", "flatten", "replace_file", "unflatten"]

FORMAT = 1
_NAME = re.compile(r"\d{8}-\d{8}")


def replace_file(path: Path, write: Any) -> None:
    """Write a file under another name, make sure that it is on the disk, and put it in place in one go.

    `write` is called with the temporary path; if it fails, the old file stays and the temporary one goes.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
        _open_to_readers(temporary)
        _sync(temporary)
        temporary.replace(path)
        _sync(path.parent)
    except (OSError, SafetensorError) as error:
        raise TalosError(f"{path} could not be written ({error}); what was there before is intact") from error
    finally:
        temporary.unlink(missing_ok=True)


class Checkpoints:
    """The `checkpoint/` folder of a run.

    Args:
        folder: made when first written to.
        keep: how many checkpoints are kept.
    """

    def __init__(self, folder: Path, *, keep: int = 2) -> None:
        self.folder, self.keep = folder, keep

    def save(self, epoch: int, step: int, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> Path:
        """Write one, then remove those beyond `keep`. A full disk leaves the earlier ones as they are."""
        self.folder.mkdir(parents=True, exist_ok=True)
        target = self.folder / f"{epoch:08d}-{step:08d}"
        staging = self.folder / f".{target.name}.{os.getpid()}.tmp"
        shutil.rmtree(staging, ignore_errors=True)
        try:
            staging.mkdir()
            save_file(
                {name: tensor.contiguous() for name, tensor in tensors.items()}, staging / "state.safetensors"
            )
            (staging / "state.json").write_text(json.dumps({"format": FORMAT, **facts}))
            for file in (*staging.iterdir(), staging):
                _sync(file)
            if target.exists():  # the same place in training is the same state
                shutil.rmtree(target)
            staging.rename(target)
            _sync(self.folder)
        except (OSError, SafetensorError) as error:
            raise TalosError(
                f"{target} could not be written ({error}); the checkpoint before it is intact"
            ) from error
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        for old in self._names()[: -self.keep]:
            shutil.rmtree(self.folder / old, ignore_errors=True)
        return target

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
                return load_file(self.folder / name / "state.safetensors"), facts
            except (OSError, ValueError, KeyError, SafetensorError) as error:
                problems.append(f"{name}: {error}")
        if problems:
            raise DataError(f"no checkpoint can be read ({'; '.join(problems)})", where=str(self.folder))
        return None

    def save_best(self, epoch: int, tensors: Mapping[str, Tensor]) -> None:
        """Keep the best weights so far; older ones go when `forget_best_before` is called."""
        self.folder.mkdir(parents=True, exist_ok=True)
        whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
        replace_file(self._best(epoch), lambda path: save_file(whole, path))

    def load_best(self, epoch: int) -> dict[str, Tensor]:
        """The best weights, found at that epoch."""
        return load_file(self._best(epoch))

    def forget_best_before(self, epoch: int) -> None:
        """Remove best weights that no checkpoint mentions any more."""
        for path in self.folder.glob("best-*.safetensors"):
            if path.name < self._best(epoch).name:
                path.unlink(missing_ok=True)

    def _best(self, epoch: int) -> Path:
        return self.folder / f"best-{epoch:08d}.safetensors"

    def _names(self) -> list[str]:
        if not self.folder.is_dir():
            return []
        return sorted(entry.name for entry in self.folder.iterdir() if _NAME.fullmatch(entry.name))


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


def _open_to_readers(path: Path) -> None:
    """The permissions that any new file gets: safetensors makes its files for the owner alone."""
    mask = os.umask(0)
    os.umask(mask)
    path.chmod(0o666 & ~mask)


def _sync(path: Path) -> None:
    """Force a file or folder to the disk; a folder cannot be opened for that on every platform."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
