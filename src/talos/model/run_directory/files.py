"""The single files of a run directory, read after names, types, shapes and values were checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from talos.data.vocabulary import Vocabulary
from talos.errors import DataError

__all__ = ["read_ids", "read_items", "read_users"]

_LARGEST_HEADER = 1 << 20


def read_items(path: Path, items: int, dim: int, *, alone: bool) -> Tensor:
    """The vectors of items; `alone` if there must be nothing else in the file."""
    with _opened(path, {"item_vectors": ("F32", [items, dim])}, ["item_vectors"], alone=alone) as file:
        vectors: Tensor = file.get_tensor("item_vectors")
    if not torch.isfinite(vectors).all():
        raise DataError("item_vectors has numbers that are not finite", where=str(path))
    return vectors


def read_users(
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


def read_ids(path: Path, column: str, count: int, wanted: range) -> tuple[Vocabulary, pl.Series | None]:
    """The ids in the `wanted` rows of a file of `count` rows, and the titles if it has some."""
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
