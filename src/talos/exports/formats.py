"""`export`: a trained model for other programs. Vectors are written here, as parquet tables or npz arrays."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from talos.checks import require
from talos.errors import DataError, nearest
from talos.exports.faiss_index import write_faiss
from talos.exports.folders import export_folder, prepare_out, score_arrays, write_ids
from talos.exports.onnx_graph import write_onnx
from talos.files import expanded, replace_file
from talos.model.model import Model
from talos.model.recommender import Recommender

__all__ = ["FORMATS", "export"]

_LARGEST_IDS = 1 << 30


def export(
    source: Model | Recommender,
    format: str,  # noqa: A002
    out: str | Path,
    *,
    overwrite: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Write a model for other programs; returns a summary of what was written and how it was verified.

    Args:
        source: a fitted recommender, or its model.
        format: `parquet` (a folder with `users.parquet` and `items.parquet`), `npz` (a file of plain arrays), `faiss`
            (a folder with an index over the items; extra `faiss`), `onnx` (a folder with a graph from users to lists;
            extra `onnx`).
        out: the file or folder; it appears under this name when it is complete and verified.
        overwrite: replace a file, or a folder that `export` has made.
        options: `k` for faiss and onnx, `index` (`flat`, `hnsw`, `ivf`) for faiss, `own_ids` for onnx.

    >>> import tempfile, torch
    >>> from talos.data.interactions import Interactions
    >>> data = Interactions.from_ids(["ann", "bob"], ["tea", "jam"])
    >>> from talos.model.model import Vectors
    >>> model = Model(scored_by=Vectors(torch.eye(2), torch.eye(2)), train=data)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     export(model, "npz", f"{folder}/vectors.npz")["users"]
    2
    """
    began = time.perf_counter()
    require(format in _WRITERS, f"no format {format!r}", where="format", hint=nearest(format, FORMATS))
    write = _WRITERS[format]
    known = [name for name in inspect.signature(write).parameters if name not in ("model", "path")]
    for name in options:
        require(
            name in known,
            f"no option {name!r} of {format}",
            where="options",
            hint=nearest(name, known) if known else None,
        )
    model = source if isinstance(source, Model) else source.fitted_model()
    path = expanded(out)
    details: dict[str, Any] = {}
    if format == "npz":
        prepare_out(path, overwrite=overwrite)
        replace_file(path, lambda place: details.update(write(model, place)))
    else:
        details = export_folder(
            path, model, partial(write, model, **options), kind=format, overwrite=overwrite
        )
    return {
        "out": str(path),
        "format": format,
        "users": model.train.num_users,
        "items": model.train.num_items,
        **({"dim": int(model.dot_scores.item_vectors.shape[1])} if model.has_vectors else {}),
        **details,
        "seconds": round(time.perf_counter() - began, 3),
    }


def write_parquet(model: Model, path: Path) -> dict[str, Any]:
    """Write `users.parquet` (user_id, vector, threshold) and `items.parquet` (item_id, title, vector).

    A model of weights between items has `weights` in place of vectors, with the positions of the `others` if sparse.
    """
    arrays = score_arrays(model)
    if "item_weights.indptr" in arrays:
        ends = arrays.pop("item_weights.indptr")[1:-1]
        arrays = {name: [row.tolist() for row in np.split(array, ends)] for name, array in arrays.items()}
    write_ids(path, model, arrays)
    return {}


def write_npz(model: Model, path: Path) -> dict[str, Any]:
    """Write a file for `numpy.load(…, allow_pickle=False)`: ids, vectors, and each user's known items as CSR."""
    arrays: dict[str, Any] = {
        "user_ids": _id_array(model.train.user_ids.ids, "user ids"),
        "item_ids": _id_array(model.train.item_ids.ids, "item ids"),
        **{name.replace(".", "_"): array for name, array in score_arrays(model).items()},
        "seen_indptr": model.known.indptr,
        "seen_indices": model.known.indices,
    }
    with path.open("wb") as file:  # given a name, numpy would add a suffix
        np.savez(file, **arrays)
    return {"arrays": list(arrays)}


def _id_array(ids: pl.Series, what: str) -> NDArray[Any]:
    """Ids as an array without objects. Strings in numpy have one width and lose NUL characters at the end."""
    if ids.dtype != pl.String:
        return ids.to_numpy()
    width = max(1, int(ids.str.len_chars().to_numpy().max(initial=0)))
    require(
        4 * width * len(ids) <= _LARGEST_IDS and not ids.str.ends_with("\0").any(),
        f"{what} of up to {width:,} characters cannot be a plain array",
        where="npz",
        expected="shorter ids without a NUL at the end",
        hint="the format parquet takes any",
        error=DataError,
    )
    return np.array(ids.to_list(), dtype=f"<U{width}")


_WRITERS: dict[str, Callable[..., dict[str, Any]]] = {
    "parquet": write_parquet,
    "npz": write_npz,
    "faiss": write_faiss,
    "onnx": write_onnx,
}
FORMATS = tuple(_WRITERS)
