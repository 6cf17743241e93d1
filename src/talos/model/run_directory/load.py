"""Reading a run directory: nothing in it is used before it was checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from talos.data.interactions import Interactions, Provenance
from talos.distributed import SINGLE_PROCESS, Group
from talos.errors import DataError
from talos.files import checksum_of
from talos.model.run_directory.files import read_ids, read_items, read_users
from talos.model.run_directory.layout import FILES, FORMAT, Model, file_of

__all__ = ["load_model"]

_LARGEST_JSON = 8 << 20
_MOST_ROWS = 1 << 40


def load_model(folder: Path, *, group: Group = SINGLE_PROCESS) -> Model:
    """Read a run directory, or say in one `DataError` what is wrong with it.

    In a group of several, each process gets the rows of its own users (`Group.share`) and no others.
    """
    facts = _facts(folder)
    try:
        shape = facts["shape"]
        users, items, dim = (int(shape[name]) for name in ("users", "items", "dim"))
        if not (0 < users <= _MOST_ROWS and 0 < items <= _MOST_ROWS):
            raise ValueError("no such number of rows")
        divided = "user_files" in facts
        files = {
            file_of(range(*bounds)): range(*map(int, bounds)) for bounds in facts.get("user_files", [])
        } or {"model.safetensors": range(users)}
        ends = [0, *(rows.stop for rows in files.values())]
        if [rows.start for rows in files.values()] != ends[:-1] or ends[-1] != users:
            raise ValueError("the files do not tile the users")
        checksums = {name: str(facts["checksums"][name]) for name in {*FILES, *files}}
    except (KeyError, TypeError, ValueError):
        raise DataError("lacks shape or checksums", where=str(folder / "model.json")) from None
    wanted = range(users) if group.size == 1 else group.share(users)
    needed = {name: _common(rows, wanted) for name, rows in files.items() if len(_common(rows, wanted))}
    for name in (*FILES, *(name for name in files if name not in FILES)):
        path = folder / name
        if not path.is_file():
            raise DataError("is missing", where=str(path), expected="a complete run directory")
        if (name in FILES or name in needed) and checksum_of(path) != checksums[name]:
            raise DataError(
                "differs from its checksum in model.json", where=str(path), expected="the file as saved"
            )
    item_vectors = read_items(folder / "model.safetensors", items, dim, alone=divided)
    parts = [
        read_users(folder / name, files[name], items, dim, rows, alone=divided)
        for name, rows in needed.items()
    ]
    user_ids, _ = read_ids(folder / "users.parquet", "user_id", users, wanted)
    item_ids, titles = read_ids(folder / "items.parquet", "item_id", items, range(items))
    if any(set(part) != set(parts[0]) for part in parts):
        raise DataError("the files of users hold different things", where=str(folder))
    tensors = {name: _joined(name, [part[name] for part in parts]) for name in parts[0]}
    seen = {
        name: Interactions(
            indptr=tensors[f"{name}.indptr"].numpy(),
            indices=tensors[f"{name}.indices"].numpy(),
            user_ids=user_ids,
            item_ids=item_ids,
            item_titles=titles,
            provenance=Provenance(source=str(folder), format="run directory"),
        )
        for name in ("train", "valid")
        if f"{name}.indptr" in tensors
    }
    return Model(
        user_vectors=tensors["user_vectors"],
        item_vectors=item_vectors,
        thresholds=tensors.get("thresholds"),
        train=seen["train"],
        valid=seen.get("valid"),
        facts=facts,
        users=None if group.size == 1 else wanted,
    )


def _common(rows: range, wanted: range) -> range:
    """The rows that both ranges have."""
    start = max(rows.start, wanted.start)
    return range(start, max(start, min(rows.stop, wanted.stop)))


def _joined(name: str, parts: list[Tensor]) -> Tensor:
    """The rows of several files one after the other; the ends of rows go on where the file before stops."""
    if len(parts) == 1:
        return parts[0]
    if not name.endswith(".indptr"):
        return torch.cat(parts)
    shifts = np.cumsum([0, *(int(part[-1]) for part in parts)])
    return torch.cat(
        [parts[0][:1], *(part[1:] + int(shift) for part, shift in zip(parts, shifts, strict=False))]
    )


def _facts(folder: Path) -> dict[str, Any]:
    path = folder / "model.json"
    if not folder.is_dir():
        raise DataError("no such run directory", where=str(folder))
    if not path.is_file():
        unfinished = (folder / "checkpoint").is_dir()
        hint = "training has not finished: go on with `talos train … --resume`" if unfinished else None
        raise DataError(
            "has no model.json", where=str(folder), expected="the directory of a finished run", hint=hint
        )
    if path.stat().st_size > _LARGEST_JSON:
        raise DataError("is too large", where=str(path), expected=f"at most {_LARGEST_JSON:,} bytes")
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"is not JSON ({error})", where=str(path)) from None
    number = facts.get("format") if isinstance(facts, dict) else None
    if not isinstance(facts, dict) or type(number) is not int or number < 1:
        raise DataError("has no format number", where=str(path), expected="a run directory of this library")
    if number > FORMAT:
        raise DataError(
            f"format {number}",
            where=str(path),
            expected=f"at most {FORMAT}",
            hint="install a newer talos-rec",
        )
    return facts
