"""Vectors with their ids: two parquet tables, or one npz of plain arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from talos.errors import DataError
from talos.exports.files import check_place
from talos.exports.folders import new_folder, write_ids
from talos.files import replace_file
from talos.model.run_directory import Model

__all__ = ["write_npz", "write_parquet"]

_LARGEST_IDS = 1 << 30


def write_parquet(model: Model, out: Path, *, overwrite: bool = False) -> dict[str, Any]:
    """A folder with `users.parquet` (user_id, vector, threshold), `items.parquet` (item_id, title, vector)."""
    with new_folder(out, model, kind="parquet", overwrite=overwrite) as (folder, _):
        write_ids(folder, model, user_vectors=True, item_vectors=True)
    return {"files": ["users.parquet", "items.parquet"]}


def write_npz(model: Model, out: Path, *, overwrite: bool = False) -> dict[str, Any]:
    """A file for `numpy.load(…, allow_pickle=False)`: ids, vectors, and the items that each user has, as CSR."""
    check_place(out, overwrite=overwrite)
    seen = model.seen
    arrays: dict[str, NDArray[Any]] = {
        "user_ids": _plain(model.train.user_ids.ids, "user ids"),
        "item_ids": _plain(model.train.item_ids.ids, "item ids"),
        "user_vectors": model.user_vectors.detach().float().cpu().numpy(),
        "item_vectors": model.item_vectors.detach().float().cpu().numpy(),
        "seen_indptr": seen.indptr,
        "seen_indices": seen.indices,
    }
    if model.thresholds is not None:
        arrays["thresholds"] = model.thresholds.detach().float().cpu().numpy()

    def write(path: Path) -> None:
        with path.open("wb") as file:  # by name, numpy would add a suffix
            np.savez(file, **arrays)  # type: ignore[arg-type]  # the stubs take a name for the option allow_pickle

    replace_file(out, write)
    return {"arrays": list(arrays)}


def _plain(ids: pl.Series, what: str) -> NDArray[Any]:
    """Ids as an array without objects: strings in numpy have one width, and end before their last NUL."""
    if ids.dtype != pl.String:
        return ids.to_numpy()
    width = max(1, int(ids.str.len_chars().to_numpy().max(initial=0)))
    if 4 * width * len(ids) > _LARGEST_IDS or bool(ids.str.ends_with("\0").any()):
        raise DataError(
            f"{what} of up to {width:,} characters cannot be a plain array",
            where="npz",
            expected="shorter ids without a NUL at the end",
            hint="the format parquet takes any",
        )
    return np.array(ids.to_list(), dtype=f"<U{width}")
