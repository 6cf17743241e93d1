"""One function for every form in which a model leaves."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from talos.errors import ArgumentError, nearest
from talos.exports import faiss_index, onnx_graph, vectors
from talos.exports.source import model_of
from talos.model.recommender import Recommender
from talos.model.run_directory import Model

__all__ = ["FORMATS", "export"]

_WRITERS: dict[str, Callable[..., dict[str, Any]]] = {
    "parquet": vectors.write_parquet,
    "npz": vectors.write_npz,
    "faiss": faiss_index.write_faiss,
    "onnx": onnx_graph.write_onnx,
}
FORMATS = tuple(_WRITERS)


def export(
    source: Model | Recommender,
    format: str,  # noqa: A002
    out: str | Path,
    *,
    overwrite: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Write a model for other programs; returns what was written and how it was verified.

    Args:
        source: a fitted recommender, or its model.
        format: `parquet` (a folder: `users.parquet`, `items.parquet`), `npz` (a file of plain arrays), `faiss` (a
            folder with an index over the items; extra `faiss`), `onnx` (a folder with a graph from users to lists;
            extra `onnx`).
        out: the file or folder; it gets this name when it is whole and verified.
        overwrite: replace a file, or a folder that `export` has made.
        options: `k` of faiss and onnx, `index` (`flat`, `hnsw`, `ivf`) of faiss, `own_ids` of onnx.

    >>> import tempfile, torch
    >>> from talos.data.interactions import Interactions
    >>> data = Interactions.from_ids(["ann", "bob"], ["tea", "jam"])
    >>> eye = torch.eye(2)
    >>> model = Model(user_vectors=eye, item_vectors=eye, thresholds=None, train=data, valid=None)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     export(model, "npz", f"{folder}/vectors.npz")["users"]
    2
    """
    began = time.perf_counter()
    if format not in _WRITERS:
        raise ArgumentError(f"no format {format!r}", where="format", hint=nearest(format, FORMATS))
    write = _WRITERS[format]
    known = [
        name for name in inspect.signature(write).parameters if name not in ("model", "out", "overwrite")
    ]
    for name in options:
        if name not in known:
            hint = nearest(name, known) if known else None
            raise ArgumentError(f"no option {name!r} of {format}", where="options", hint=hint)
    model = model_of(source)
    place = Path(out).expanduser()
    found = write(model, place, overwrite=overwrite, **options)
    facts = {
        "out": str(place),
        "format": format,
        "users": model.train.num_users,
        "items": model.train.num_items,
        "dim": int(model.item_vectors.shape[1]),
    }
    return {**facts, **found, "seconds": round(time.perf_counter() - began, 3)}
