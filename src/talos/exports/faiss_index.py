"""Faiss indexes over the items: the inner product with a user's vector is the user's score.

`write_faiss` exports one. `ApproximateLists` makes the lists of all users with one, and looks through as many of the
items as the wanted recall needs.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from talos.errors import ArgumentError, MissingExtraError, nearest
from talos.evaluation.ranking import TopK, is_masked
from talos.exports.folders import (
    check_same_lists,
    plain_array,
    recall,
    sample_users,
    score_arrays,
    write_ids,
)
from talos.model.model import Model
from talos.model.query import ListQuery, answer

__all__ = ["INDEXES", "ApproximateLists", "build_index", "load_faiss", "write_faiss"]

INDEXES = ("flat", "hnsw", "ivf")
_SAMPLE = 1000
# Users to find out with how many cells have to be looked through, and as many others to measure the recall on.
_PROBED_SAMPLE = 500
_POINTS_PER_CELL = 64  # of an index for the lists of all users: large enough that k-means is quick
_USERS_AT_ONCE = 256
# Users with more known items than this get exact lists: as many more would have to be asked for, and left out.
_MOST_KNOWN = 2000
# HNSW: links per node, and how many candidates are kept while building and while searching.
_LINKS, _BREADTH_BUILT, _BREADTH_SEARCHED = 32, 200, 256


def write_faiss(model: Model, path: Path, *, index: str = "flat", k: int | None = None) -> dict[str, Any]:
    """Write `index.faiss`, `items.parquet` (row = position in the index) and `users.parquet` (vectors).

    A flat index must give the exact top K for a sample of users, or nothing is written; for approximate indexes the
    recall@K on the sample is reported. An index does not know which items a user has already.
    """
    if index not in INDEXES:
        raise ArgumentError(f"no index {index!r}", where="index", hint=nearest(index, INDEXES))
    k, faiss = model.list_length(k), load_faiss()
    built, settings = build_index(index, plain_array(model.dot_scores.item_vectors))
    arrays = {name: array for name, array in score_arrays(model).items() if name != "item_vectors"}
    # by Python's own file: Faiss's tells of a failure to close it on stderr alone
    (path / "index.faiss").write_bytes(faiss.serialize_index(built).data)
    write_ids(path, model, arrays)
    sample = sample_users(model, _SAMPLE)
    expected = answer(model, ListQuery(users=sample, k=k, mask="nothing"))
    # verify the index as it was stored: read it back from the disk
    scores, items = faiss.read_index(str(path / "index.faiss")).search(arrays["user_vectors"][sample], k)
    found = {f"recall@{k}": recall(expected, items), "verified_users": len(sample)}
    if index == "flat":
        found["identical_lists"] = check_same_lists(
            model, sample, expected, items, scores, what="the flat index"
        )
    return {"index": index, "k": k, **settings, **found}


def build_index(
    kind: str, vectors: NDArray[np.float32], *, density: int = 4, fewest: int = 39, most: int = 256
) -> tuple[Any, dict[str, Any]]:
    """A Faiss index of vectors (n, dim) by inner product, and the settings that a reader of figures needs.

    Args:
        kind: one of `INDEXES`.
        vectors: in the order of their positions.
        density: cells of ivf for each square root of n.
        fewest: vectors for each cell, or there are fewer cells; the default is what Faiss asks for in its k-means.
        most: vectors for each cell that k-means looks at.
    """
    cells = max(1, min(round(density * math.sqrt(len(vectors))), len(vectors) // fewest))
    factory = {"flat": "Flat", "hnsw": f"HNSW{_LINKS},Flat", "ivf": f"IVF{cells},Flat"}
    faiss, settings = load_faiss(), dict[str, Any]()
    index = faiss.index_factory(vectors.shape[1], factory[kind], faiss.METRIC_INNER_PRODUCT)
    if kind == "hnsw":
        index.hnsw.efConstruction, index.hnsw.efSearch = _BREADTH_BUILT, _BREADTH_SEARCHED
        settings = {"links": _LINKS, "breadth": _BREADTH_SEARCHED}
    if kind == "ivf":
        index.cp.min_points_per_centroid, index.cp.max_points_per_centroid = 1, most
        index.nprobe = max(1, cells // 4)
        settings = {"cells": cells, "probed": index.nprobe}
    index.train(vectors)
    index.add(vectors)
    return index, settings


class ApproximateLists:
    """Lists by an index of cells (IVF), of which those nearest to a user are looked through.

    How many that are is found out on a sample of users: the fewest, doubling, with which the lists have at least the
    wanted share of the exact ones' items. `facts` has the share that was measured on other users.

    Args:
        model: with vectors of users and items.
        query: the question about all users.
        wanted: the share of the exact lists to be found, above 0 and below 1.
    """

    def __init__(self, model: Model, query: ListQuery, *, wanted: float) -> None:
        if not 0 < wanted < 1:
            raise ArgumentError(f"{wanted}", where="approximate", expected="a recall above 0 and below 1")
        self._model, self._query, self._k = model, query, query.k
        self._seen = model.masked(query.mask)
        self._users = plain_array(model.dot_scores.user_vectors)
        items = plain_array(model.dot_scores.item_vectors)
        # of the items in the index
        self._positions = np.setdiff1d(np.arange(len(items)), [] if query.banned is None else query.banned)
        load_faiss().omp_set_num_threads(torch.get_num_threads())
        self._index, settings = build_index(
            "ivf", items[self._positions], density=2, fewest=_POINTS_PER_CELL, most=_POINTS_PER_CELL
        )
        cells, sample = settings["cells"], sample_users(model, 2 * _PROBED_SAMPLE)
        expected = self._exact(sample[::2])
        self._index.nprobe = 1
        while self._index.nprobe < cells and recall(expected, self._found(sample[::2]).items) < wanted:
            self._index.nprobe = min(2 * self._index.nprobe, cells)
        others = sample[1::2] if len(sample) > 1 else sample
        self.facts: dict[str, Any] = {
            "wanted": wanted,
            f"recall@{self._k}": recall(self._exact(others), self._found(others).items),
            "cells": cells,
            "probed": self._index.nprobe,
        }

    def iter_answers(self, query: ListQuery) -> Iterator[TopK]:
        """The lists of some users, in one piece; those of users for whom too few items are found are exact."""
        yield self._found(query.users)

    def _exact(self, users: NDArray[np.int64]) -> TopK:
        return answer(self._model, replace(self._query, users=users))

    def _found(self, users: NDArray[np.int64]) -> TopK:
        items = np.full((len(users), self._k), -1, np.int64)
        scores = np.full((len(users), self._k), -np.inf, np.float32)
        known = np.zeros(len(users), np.int64) if self._seen is None else self._seen.user_degrees[users]
        order = np.argsort(known, kind="stable")  # users with similar numbers of known items share a search
        few = int((known <= _MOST_KNOWN).sum())
        short = order[few:].tolist()
        for start in range(0, few, _USERS_AT_ONCE):
            rows = order[start : min(start + _USERS_AT_ONCE, few)]
            asked = min(self._k + int(known[rows].max()), len(self._positions))
            found_scores, found = self._index.search(self._users[users[rows]], asked)
            fine = found >= 0
            found = np.where(fine, self._positions[found], -1)
            if self._seen is not None:
                fine &= ~is_masked(self._seen, users[rows], found)
            # the first k that may be recommended, in their order
            place = np.cumsum(fine, axis=1)
            row, column = np.nonzero(fine & (place <= self._k))
            items[rows[row], place[row, column] - 1] = found[row, column]
            scores[rows[row], place[row, column] - 1] = found_scores[row, column]
            short += rows[place[:, -1] < min(self._k, len(self._positions))].tolist()
        if short:
            exact = self._exact(users[short])
            items[short], scores[short] = exact.items, exact.scores
        return TopK(np.arange(len(users)), items, scores)


def load_faiss() -> Any:
    """The module `faiss`, or a `MissingExtraError`."""
    try:
        # its bindings use deprecated parts of newer Pythons
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
            return import_module("faiss")
    except ImportError as error:
        raise MissingExtraError("a Faiss index", extra="faiss") from error
