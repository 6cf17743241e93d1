"""Loads runs from private copies of their files, which later saves cannot change."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from pathlib import Path

from filelock import FileLock

from talos.errors import DataError, InputError
from talos.model.model import Model
from talos.model.store import copy_model, load_model

__all__ = ["is_current", "load_copied"]


def load_copied(folder: Path, shared: Path | None) -> tuple[Model, str]:
    """A run and its version, twelve digits that change with anything in it.

    Vectors are mapped from a file, so that workers share one copy in memory. Overwriting that file in place, as `cp`
    does, would change the lists or end the process. So the files are copied into the folder that the workers `share`,
    once for each version; without one, the copy is removed as soon as it is mapped.
    """
    if shared is None:
        with tempfile.TemporaryDirectory(prefix="talos-serve-") as temporary:
            return _load_copy(folder, Path(temporary) / "copy")
    copies = shared / "copies" / folder.resolve().name
    copies.mkdir(parents=True, exist_ok=True)
    with FileLock(copies / "lock"):
        version = _version(folder)
        if version and (copies / version).is_dir():
            return load_model(copies / version), version
        fresh = copies / "new"
        shutil.rmtree(fresh, ignore_errors=True)  # of a run that could not be loaded
        model, version = _load_copy(folder, fresh)  # of what is there by now
        for old in copies.iterdir():
            if old.is_dir() and old != fresh:  # a worker that still uses it has it mapped
                shutil.rmtree(old, ignore_errors=True)
        fresh.rename(copies / version)
    return model, version


def is_current(folder: Path, version: str, shared: Path) -> bool:
    """Whether the copy of a run that the workers share is of this version: no worker has loaded another one since."""
    return (shared / "copies" / folder.resolve().name / version).is_dir()


def _load_copy(folder: Path, copy: Path) -> tuple[Model, str]:
    """Copy the files of a run and load them; returns the run and its version. Errors name the run itself."""
    copy_model(folder, copy)
    try:
        return load_model(copy), _version(copy)
    except InputError as error:
        where = (error.where or "").replace(str(copy), str(folder))
        raise DataError(error.what, where=where, expected=error.expected, hint=error.hint) from None


def _version(folder: Path) -> str:
    """A hash of `model.json`, which has the checksums of all other files; empty without one."""
    try:
        return hashlib.sha256((folder / "model.json").read_bytes()).hexdigest()[:12]
    except OSError:
        return ""
