"""The run directory on disk: a trained model that loads without its training data.

`model.safetensors` (vectors, thresholds, seen items as CSR), `model.json` (config, metrics, versions, checksums,
format number), `users.parquet`, `items.parquet` (ids, titles). Each file is written under a temporary name and
renamed; `model.json` comes last, so a directory that has it is whole. Loading checks sizes, types and checksums
before anything is used, and nothing in it can run code.
"""

from __future__ import annotations

import hashlib
import json
import platform
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

from talos.errors import DataError
from talos.interactions import Interactions, Provenance, Vocabulary
from talos.training.checkpoint import replace_file

__all__ = ["FORMAT", "Model", "load_model", "save_model"]

FORMAT = 1
_LARGEST_JSON = 8 << 20
_LARGEST_HEADER = 1 << 20
_FILES = ("model.safetensors", "users.parquet", "items.parquet")


@dataclass(frozen=True, kw_only=True)
class Model:
    """What a run leaves behind: vectors as they are scored, thresholds, who has seen what, and the facts.

    `train` and `valid` share one vocabulary; `valid` is None where there was none.
    """

    user_vectors: Tensor
    item_vectors: Tensor
    thresholds: Tensor | None
    train: Interactions
    valid: Interactions | None
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def seen(self) -> Interactions:
        """Everything a user is known to have, from train and validation."""
        return self.train if self.valid is None else self.train.union(self.valid)


def save_model(model: Model, folder: Path) -> None:
    """Write a run directory; other files in the folder are left alone."""
    folder.mkdir(parents=True, exist_ok=True)
    train = model.train
    tensors = {
        "user_vectors": model.user_vectors.detach().float().cpu().contiguous(),
        "item_vectors": model.item_vectors.detach().float().cpu().contiguous(),
    }
    if model.thresholds is not None:
        tensors["thresholds"] = model.thresholds.detach().float().cpu().contiguous()
    for name, part in (("train", train), ("valid", model.valid)):
        if part is not None:
            tensors[f"{name}.indptr"] = torch.tensor(part.indptr)
            tensors[f"{name}.indices"] = torch.tensor(part.indices)
    items = pl.DataFrame({"item_id": train.item_ids.ids})
    if train.item_titles is not None:
        items = items.with_columns(title=train.item_titles)
    replace_file(folder / "users.parquet", pl.DataFrame({"user_id": train.user_ids.ids}).write_parquet)
    replace_file(folder / "items.parquet", items.write_parquet)
    replace_file(folder / "model.safetensors", lambda path: save_file(tensors, path))
    facts = {
        "format": FORMAT,
        **model.facts,
        "shape": {
            "users": train.num_users,
            "items": train.num_items,
            "dim": tensors["user_vectors"].shape[1],
        },
        "versions": {
            "talos": version("talos-rec"),
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "checksums": {name: _checksum(folder / name) for name in _FILES},
    }
    text = json.dumps(facts, indent=2, ensure_ascii=False) + "\n"
    replace_file(folder / "model.json", lambda path: path.write_text(text, encoding="utf-8"))


def load_model(folder: Path) -> Model:
    """Read a run directory, or say in one `DataError` what is wrong with it."""
    facts = _read_facts(folder)
    try:
        shape = facts["shape"]
        users, items, dim = (int(shape[name]) for name in ("users", "items", "dim"))
        checksums = {name: str(facts["checksums"][name]) for name in _FILES}
    except (KeyError, TypeError, ValueError):
        raise DataError("lacks shape or checksums", where=str(folder / "model.json")) from None
    for name in _FILES:
        path = folder / name
        if not path.is_file():
            raise DataError("is missing", where=str(path), expected="a complete run directory")
        if _checksum(path) != checksums[name]:
            raise DataError(
                "differs from its checksum in model.json", where=str(path), expected="the file as saved"
            )
    tensors = _read_tensors(folder / "model.safetensors", users, items, dim)
    user_ids, _ = _read_ids(folder / "users.parquet", "user_id", users)
    item_ids, titles = _read_ids(folder / "items.parquet", "item_id", items)
    parts = {
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
        item_vectors=tensors["item_vectors"],
        thresholds=tensors.get("thresholds"),
        train=parts["train"],
        valid=parts.get("valid"),
        facts=facts,
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


def _read_tensors(path: Path, users: int, items: int, dim: int) -> dict[str, Tensor]:
    """The tensors, after their names, types and shapes were compared with what there must be."""
    with path.open("rb") as file:
        header = int.from_bytes(file.read(8), "little")
    if header > _LARGEST_HEADER:
        raise DataError(
            f"claims a header of {header:,} bytes", where=str(path), expected="a model of this library"
        )
    wanted: dict[str, tuple[str, list[int] | None]] = {
        "user_vectors": ("F32", [users, dim]),
        "item_vectors": ("F32", [items, dim]),
        "thresholds": ("F32", [users]),
        **{f"{part}.indptr": ("I64", [users + 1]) for part in ("train", "valid")},
        **{f"{part}.indices": ("I32", None) for part in ("train", "valid")},
    }
    try:
        with safe_open(path, framework="pt") as file:
            names = set(file.keys())
            for name in names:
                part = file.get_slice(name)
                kind, size = wanted.get(name, (None, None))
                if part.get_dtype() != kind or (size is not None and part.get_shape() != size):
                    found = f"{name} is {part.get_dtype()} of shape {part.get_shape()}"
                    raise DataError(
                        found, where=str(path), expected=f"{kind} of shape {size}" if kind else "no such"
                    )
            tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in names}
    except (SafetensorError, OSError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"cannot be read ({error})", where=str(path)) from None
    for name in ("user_vectors", "item_vectors", "train.indptr", "train.indices"):
        if name not in tensors:
            raise DataError(f"has no {name}", where=str(path))
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise DataError(f"{name} has numbers that are not finite", where=str(path))
    for part in ("train", "valid"):
        if f"{part}.indptr" in tensors:
            _check_csr(
                tensors[f"{part}.indptr"].numpy(), tensors.get(f"{part}.indices"), items, f"{path}: {part}"
            )
    return tensors


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


def _read_ids(path: Path, column: str, count: int) -> tuple[Vocabulary, pl.Series | None]:
    try:
        rows = pl.scan_parquet(path).select(pl.len()).collect().item()
        if rows != count:
            raise DataError(f"{rows:,} rows", where=str(path), expected=f"{count:,}, as model.json says")
        frame = pl.read_parquet(path)
        if len(frame) != count:  # a file whose parts do not say the same
            raise DataError(f"{len(frame):,} rows", where=str(path), expected=f"{count:,}")
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
