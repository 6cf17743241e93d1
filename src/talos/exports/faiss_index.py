"""A Faiss index over the items: the inner product with a user's vector is the user's score."""

from __future__ import annotations

import math
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from talos.errors import ArgumentError, MissingExtraError, nearest
from talos.exports.folders import check_same_lists, export_folder, recall, sample_users, write_ids
from talos.model.model import Model
from talos.model.query import ListQuery, answer

__all__ = ["INDEXES", "load_faiss", "write_faiss"]

INDEXES = ("flat", "hnsw", "ivf")
_SAMPLE = 1000
# HNSW: links per node, and how many candidates are kept while building and while searching.
_LINKS, _BREADTH_BUILT, _BREADTH_SEARCHED = 32, 200, 256
_POINTS_PER_CELL = 39  # the least that Faiss asks for in its k-means


def write_faiss(
    model: Model, out: Path, *, overwrite: bool = False, index: str = "flat", k: int | None = None
) -> dict[str, Any]:
    """Write a folder with `index.faiss`, `items.parquet` (row = position in the index) and `users.parquet` (vectors).

    A flat index must give the exact top K for a sample of users, or nothing is written; for approximate indexes the
    recall@K on the sample is reported. An index does not know which items a user has already.
    """
    if index not in INDEXES:
        raise ArgumentError(f"no index {index!r}", where="index", hint=nearest(index, INDEXES))
    k = model.list_length(k)
    faiss = load_faiss()
    with export_folder(out, model, kind="faiss", overwrite=overwrite) as (folder, record):
        table = model.dot_scores
        vectors = np.ascontiguousarray(table.item_vectors.detach().float().cpu().numpy())
        built, settings = _build(faiss, index, vectors)
        _write_index(faiss, built, folder / "index.faiss")
        write_ids(folder, model, user_vectors=True, item_vectors=False)
        sample = sample_users(model, _SAMPLE)
        expected = answer(model, ListQuery(users=sample, k=k, mask="nothing"))
        asked = np.ascontiguousarray(table.user_vectors[sample].detach().float().cpu().numpy())
        # verify the index as it was stored: read it back from the disk
        scores, items = faiss.read_index(str(folder / "index.faiss")).search(asked, k)
        details = {"index": index, "k": k, **settings, f"recall@{k}": recall(expected, items)}
        details["verified_users"] = len(sample)
        if index == "flat":
            details["identical_lists"] = check_same_lists(
                model, sample, expected, items, scores, what="the flat index"
            )
        record.update(details)
    return {**details, "files": ["index.faiss", "items.parquet", "users.parquet"]}


def _build(faiss: Any, index: str, vectors: np.ndarray[Any, Any]) -> tuple[Any, dict[str, Any]]:
    count, dim = vectors.shape
    settings: dict[str, Any] = {}
    if index == "flat":
        built = faiss.IndexFlatIP(dim)
    elif index == "hnsw":
        built = faiss.IndexHNSWFlat(dim, _LINKS, faiss.METRIC_INNER_PRODUCT)
        built.hnsw.efConstruction, built.hnsw.efSearch = _BREADTH_BUILT, _BREADTH_SEARCHED
        settings = {"links": _LINKS, "breadth": _BREADTH_SEARCHED}
    else:
        cells = max(1, min(round(4 * math.sqrt(count)), count // _POINTS_PER_CELL))
        built = faiss.IndexIVFFlat(faiss.IndexFlatIP(dim), dim, cells, faiss.METRIC_INNER_PRODUCT)
        built.nprobe = max(1, cells // 4)
        built.train(vectors)
        settings = {"cells": cells, "probed": built.nprobe}
    built.add(vectors)
    return built, settings


def _write_index(faiss: Any, index: Any, path: Path) -> None:
    """Write an index through Python's own file.

    Faiss's has errors of no type of its own, and tells of a failure to close it on stderr alone.
    """
    failures: list[OSError] = []
    with path.open("wb") as file:

        def write(block: bytes) -> None:
            # what is raised here would not get through Faiss: it is kept, and the rest is dropped
            if not failures:
                try:
                    file.write(block)
                except OSError as error:
                    failures.append(error)

        faiss.write_index(index, faiss.PyCallbackIOWriter(write))
        if failures:
            raise failures[0]


def load_faiss() -> Any:
    """The module `faiss`, or a `MissingExtraError`."""
    try:
        with warnings.catch_warnings():  # its bindings use deprecated parts of newer Pythons
            warnings.simplefilter("ignore", DeprecationWarning)
            return import_module("faiss")
    except ImportError as error:
        raise MissingExtraError("a Faiss index", extra="faiss") from error
