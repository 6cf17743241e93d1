"""The run directory on disk: a trained model that loads without its training data.

`model.safetensors` (vectors, thresholds, seen items as CSR), `model.json` (config, metrics, versions, checksums,
format number), `users.parquet`, `items.parquet` (ids, titles). Each file is written under a temporary name and
renamed; `model.json` comes last, so a directory that has it is whole. Loading checks sizes, types and checksums
before anything is used, and nothing in it can run code.

Where several processes trained, and none of them has all users, what belongs to users A to B-1 is in a file
`users-A-B.safetensors` that the process which has them wrote; `model.json` lists these files (format 2).
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from talos.distributed import ALONE, Group
from talos.errors import DataError
from talos.interactions import Interactions, Provenance, Vocabulary
from talos.training.checkpoint import replace_file
from talos.training.in_step import in_step

__all__ = ["FORMAT", "Model", "load_model", "save_model"]

FORMAT = 2
_LARGEST_JSON = 8 << 20
_LARGEST_HEADER = 1 << 20
_MOST_ROWS = 1 << 40
_FILES = ("model.safetensors", "users.parquet", "items.parquet")


@dataclass(frozen=True, kw_only=True)
class Model:
    """What a run leaves behind: vectors as they are scored, thresholds, who has seen what, and the facts.

    `train` and `valid` share one vocabulary; `valid` is None where there was none. With `users`, the rows of users
    (and `train`, `valid` and their vocabulary) are those of consecutive users, which are a part of all.
    """

    user_vectors: Tensor
    item_vectors: Tensor
    thresholds: Tensor | None
    train: Interactions
    valid: Interactions | None
    facts: dict[str, Any] = field(default_factory=dict)
    users: range | None = None

    @property
    def seen(self) -> Interactions:
        """Everything a user is known to have, from train and validation."""
        return self.train if self.valid is None else self.train.union(self.valid)


def save_model(model: Model, folder: Path, *, group: Group = ALONE) -> None:
    """Write a run directory; other files in the folder are left alone.

    A model of some users is written by all processes of the `group`, each its own users; they must see one folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if model.users is not None:
        _save_together(model, folder, group)
        return
    replace_file(folder / "users.parquet", _ids_of(model).write_parquet)
    tensors = {**_of_items(model), **_of_users(model)}
    replace_file(folder / "model.safetensors", lambda path: save_file(tensors, path))
    checksums = {"users.parquet": _checksum(folder / "users.parquet")}
    checksums["model.safetensors"] = _checksum(folder / "model.safetensors")
    _publish(model, folder, model.train.num_users, checksums, {"format": 1})


def _save_together(model: Model, folder: Path, group: Group) -> None:
    """Each process writes what belongs to its users, rank 0 what belongs to all, and `model.json` at the end."""
    assert model.users is not None
    own, what = _file_of(model.users), f"{folder} could not be written"

    def write_own() -> str:
        tensors = _of_users(model)
        replace_file(folder / own, lambda path: save_file(tensors, path))
        replace_file((folder / own).with_suffix(".parquet"), _ids_of(model).write_parquet)
        return _checksum(folder / own)

    checksum = in_step(group, write_own, what)
    assert checksum is not None
    bounds = [float(model.users.start), float(model.users.stop)]
    # a message is made of numbers: the bytes of the checksum, behind the bounds
    told = group.exchange([*bounds, *map(float, bytes.fromhex(checksum.removeprefix("sha256:")))])
    files = {
        range(int(start), int(stop)): f"sha256:{bytes(map(int, digits)).hex()}"
        for start, stop, *digits in told
    }

    def write_rest() -> None:
        pieces = [(folder / _file_of(users)).with_suffix(".parquet") for users in files]
        for piece in pieces:
            if not piece.is_file():
                raise OSError(f"{piece.name} is not here: do all processes see this folder?")
        replace_file(folder / "users.parquet", lambda path: pl.scan_parquet(pieces).sink_parquet(path))
        items = _of_items(model)
        replace_file(folder / "model.safetensors", lambda path: save_file(items, path))
        checksums = {_file_of(users): checksum for users, checksum in files.items()}
        for name in ("users.parquet", "model.safetensors"):
            checksums[name] = _checksum(folder / name)
        listed = [[users.start, users.stop] for users in files]
        total = max(users.stop for users in files)
        _publish(model, folder, total, checksums, {"format": 2, "user_files": listed})
        for piece in pieces:
            piece.unlink()

    in_step(group, write_rest if group.rank == 0 else None, what)


def _publish(
    model: Model, folder: Path, num_users: int, checksums: dict[str, str], more: dict[str, Any]
) -> None:
    """Write `items.parquet` and then `model.json`, with which the directory is whole."""
    items = pl.DataFrame({"item_id": model.train.item_ids.ids})
    if model.train.item_titles is not None:
        items = items.with_columns(title=model.train.item_titles)
    replace_file(folder / "items.parquet", items.write_parquet)
    own = {name: value for name, value in model.facts.items() if name != "user_files"}
    facts = {
        **own,
        **more,
        "shape": {
            "users": num_users,
            "items": model.train.num_items,
            "dim": model.user_vectors.shape[1],
        },
        "versions": {
            "talos": version("talos-rec"),
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "checksums": {**checksums, "items.parquet": _checksum(folder / "items.parquet")},
    }
    text = json.dumps({"format": more["format"], **facts}, indent=2, ensure_ascii=False) + "\n"
    replace_file(folder / "model.json", lambda path: path.write_text(text, encoding="utf-8"))


def _of_items(model: Model) -> dict[str, Tensor]:
    return {"item_vectors": model.item_vectors.detach().float().cpu().contiguous()}


def _of_users(model: Model) -> dict[str, Tensor]:
    tensors = {"user_vectors": model.user_vectors.detach().float().cpu().contiguous()}
    if model.thresholds is not None:
        tensors["thresholds"] = model.thresholds.detach().float().cpu().contiguous()
    for name, part in (("train", model.train), ("valid", model.valid)):
        if part is not None:
            tensors[f"{name}.indptr"] = torch.tensor(part.indptr)
            tensors[f"{name}.indices"] = torch.tensor(part.indices)
    return tensors


def _ids_of(model: Model) -> pl.DataFrame:
    return pl.DataFrame({"user_id": model.train.user_ids.ids})


def _file_of(users: range) -> str:
    return f"users-{users.start}-{users.stop}.safetensors"


def load_model(folder: Path, *, group: Group = ALONE) -> Model:
    """Read a run directory, or say in one `DataError` what is wrong with it.

    In a group of several, each process gets the rows of its own users (`Group.share`) and no others.
    """
    facts = _read_facts(folder)
    try:
        shape = facts["shape"]
        users, items, dim = (int(shape[name]) for name in ("users", "items", "dim"))
        if not (0 < users <= _MOST_ROWS and 0 < items <= _MOST_ROWS):
            raise ValueError("no such number of rows")
        divided = "user_files" in facts
        files = {
            _file_of(range(*bounds)): range(*map(int, bounds)) for bounds in facts.get("user_files", [])
        } or {"model.safetensors": range(users)}
        ends = [0, *(rows.stop for rows in files.values())]
        if [rows.start for rows in files.values()] != ends[:-1] or ends[-1] != users:
            raise ValueError("the files do not tile the users")
        checksums = {name: str(facts["checksums"][name]) for name in {*_FILES, *files}}
    except (KeyError, TypeError, ValueError):
        raise DataError("lacks shape or checksums", where=str(folder / "model.json")) from None
    wanted = range(users) if group.size == 1 else group.share(users)
    needed = {name: _common(rows, wanted) for name, rows in files.items() if len(_common(rows, wanted))}
    for name in (*_FILES, *(name for name in files if name not in _FILES)):
        path = folder / name
        if not path.is_file():
            raise DataError("is missing", where=str(path), expected="a complete run directory")
        if (name in _FILES or name in needed) and _checksum(path) != checksums[name]:
            raise DataError(
                "differs from its checksum in model.json", where=str(path), expected="the file as saved"
            )
    item_vectors = _read_items(folder / "model.safetensors", items, dim, alone=divided)
    parts = [
        _read_users(folder / name, files[name], items, dim, rows, alone=divided)
        for name, rows in needed.items()
    ]
    user_ids, _ = _read_ids(folder / "users.parquet", "user_id", users, wanted)
    item_ids, titles = _read_ids(folder / "items.parquet", "item_id", items, range(items))
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


def _read_facts(folder: Path) -> dict[str, Any]:
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


def _read_items(path: Path, items: int, dim: int, *, alone: bool) -> Tensor:
    """The vectors of items; `alone` if there must be nothing else in the file."""
    with _opened(path, {"item_vectors": ("F32", [items, dim])}, ["item_vectors"], alone=alone) as file:
        vectors: Tensor = file.get_tensor("item_vectors")
    if not torch.isfinite(vectors).all():
        raise DataError("item_vectors has numbers that are not finite", where=str(path))
    return vectors


def _read_users(
    path: Path, stored: range, items: int, dim: int, rows: range, *, alone: bool
) -> dict[str, Tensor]:
    """What belongs to some users of a file that has the users `stored`, after types and shapes were compared."""
    count, first, last = len(stored), rows.start - stored.start, rows.stop - stored.start
    wanted: dict[str, tuple[str, list[int] | None]] = {
        "user_vectors": ("F32", [count, dim]),
        "thresholds": ("F32", [count]),
        **{f"{part}.indptr": ("I64", [count + 1]) for part in ("train", "valid")},
        **{f"{part}.indices": ("I32", None) for part in ("train", "valid")},
    }
    tensors: dict[str, Tensor] = {}
    if not alone:
        wanted["item_vectors"] = ("F32", [items, dim])
    with _opened(path, wanted, ["user_vectors", "train.indptr", "train.indices"], alone=True) as file:
        names = set(file.keys())
        for name in ("user_vectors", "thresholds"):
            if name in names:
                tensors[name] = file.get_slice(name)[first:last]
        for part in ("train", "valid"):
            if f"{part}.indptr" not in names:
                continue
            if f"{part}.indices" not in names:
                raise DataError("the rows of interactions do not fit together", where=f"{path}: {part}")
            ends = file.get_slice(f"{part}.indptr")[first : last + 1]
            entries = file.get_slice(f"{part}.indices")
            length = entries.get_shape()[0]
            whole = first == 0 and last == count
            if not 0 <= int(ends[0]) <= int(ends[-1]) <= length or (
                whole and (int(ends[0]) != 0 or int(ends[-1]) != length)
            ):
                raise DataError("the rows of interactions do not fit together", where=f"{path}: {part}")
            tensors[f"{part}.indptr"] = ends - ends[0]
            tensors[f"{part}.indices"] = entries[int(ends[0]) : int(ends[-1])]
            _check_csr(
                tensors[f"{part}.indptr"].numpy(), tensors[f"{part}.indices"], items, f"{path}: {part}"
            )
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise DataError(f"{name} has numbers that are not finite", where=str(path))
    return tensors


@contextmanager
def _opened(
    path: Path, wanted: Mapping[str, tuple[str, list[int] | None]], required: Sequence[str], *, alone: bool
) -> Iterator[Any]:
    """An open file, after the names, types and shapes in it were compared with what there must be.

    Args:
        path: a safetensors file.
        wanted: type and shape of each tensor that is known here.
        required: which of them must be there.
        alone: whether there may be no others.
    """
    with path.open("rb") as head:
        header = int.from_bytes(head.read(8), "little")
    if header > _LARGEST_HEADER:
        raise DataError(
            f"claims a header of {header:,} bytes", where=str(path), expected="a model of this library"
        )
    try:
        with safe_open(path, framework="pt") as file:
            names = set(file.keys())
            for name in sorted(names):
                kind, size = wanted.get(name, (None, None))
                if kind is None and not alone:
                    continue
                part = file.get_slice(name)
                if part.get_dtype() != kind or (size is not None and part.get_shape() != size):
                    found = f"{name} is {part.get_dtype()} of shape {part.get_shape()}"
                    raise DataError(
                        found, where=str(path), expected=f"{kind} of shape {size}" if kind else "no such"
                    )
            for name in required:
                if name not in names:
                    raise DataError(f"has no {name}", where=str(path))
            yield file
    except (SafetensorError, OSError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"cannot be read ({error})", where=str(path)) from None


def _check_csr(indptr: np.ndarray[Any, Any], indices: Tensor | None, items: int, where: str) -> None:
    steps = np.diff(indptr)
    whole = indices is not None and indptr[0] == 0 and indptr[-1] == len(indices) and (steps >= 0).all()
    if not whole or indices is None:
        raise DataError("the rows of interactions do not fit together", where=where)
    if len(indices) and (int(indices.min()) < 0 or int(indices.max()) >= items):
        raise DataError(
            "an interaction with an item that does not exist", where=where, expected=f"below {items:,}"
        )
    same_row = np.repeat(np.arange(len(steps)), steps)
    if len(indices) and ((np.diff(indices.numpy()) <= 0) & (np.diff(same_row) == 0)).any():
        raise DataError("items of a user are not ascending", where=where)


def _read_ids(path: Path, column: str, count: int, wanted: range) -> tuple[Vocabulary, pl.Series | None]:
    try:
        rows = pl.scan_parquet(path).select(pl.len()).collect().item()
        if rows != count:
            raise DataError(f"{rows:,} rows", where=str(path), expected=f"{count:,}, as model.json says")
        frame = pl.scan_parquet(path).slice(wanted.start, len(wanted)).collect()
        if len(frame) != len(wanted):  # a file whose parts do not say the same
            raise DataError(f"{len(frame):,} rows", where=str(path), expected=f"{len(wanted):,}")
        ids = frame[column]
    except DataError:
        raise
    except BaseException as error:  # polars panics on damaged files with an exception of its own
        if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
            raise
        raise DataError(f"cannot be read ({str(error).splitlines()[0]})", where=str(path)) from None
    if ids.dtype not in (pl.String, pl.Int64) or ids.null_count() or not bool((ids[1:] > ids[:-1]).all()):
        raise DataError(f"{column} is not a list of distinct ascending ids", where=str(path))
    titles = frame["title"] if "title" in frame.columns and frame["title"].dtype == pl.String else None
    return Vocabulary(ids), titles


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
