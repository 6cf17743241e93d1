"""Approximate lists for everybody: a Faiss index that looks through a part of the items, as large as a recall needs."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from talos.errors import ArgumentError
from talos.evaluation.ranking import TopK, is_masked
from talos.exports.faiss_index import load_faiss
from talos.exports.folders import recall, sample_users
from talos.model.model import Model
from talos.model.query import ListQuery, answer

__all__ = ["ApproximateLists"]

# Users to find out with how many cells have to be looked through, and as many others to measure the recall on.
_SAMPLE = 500
_POINTS_PER_CELL = 64  # that k-means uses
_USERS_AT_ONCE = 256
# Users with more known items than this get exact lists: as many more would have to be asked for, and left out.
_MOST_KNOWN = 2000


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
        if not model.has_vectors:
            what, expected = "a model without vectors of users and items", "one that has them, or exact lists"
            raise ArgumentError(what, where="approximate", expected=expected)
        if not 0 < wanted < 1:
            raise ArgumentError(f"{wanted}", where="approximate", expected="a recall above 0 and below 1")
        self._model, self._query, self._k = model, query, query.k
        self._seen = None if query.mask == "nothing" else model.known if query.mask == "known" else model.seen
        vectors = (model.dot_scores.user_vectors, model.dot_scores.item_vectors)
        self._users, items = (part.detach().float().cpu().contiguous() for part in vectors)
        allowed = np.ones(len(items), bool)
        allowed[[] if query.banned is None else query.banned] = False
        self._positions = np.flatnonzero(allowed)  # of the items in the index
        faiss = load_faiss()
        faiss.omp_set_num_threads(torch.get_num_threads())
        self._index, cells = _build(faiss, items.numpy()[self._positions])
        sample = sample_users(model, 2 * _SAMPLE)
        chosen, others = sample[::2], sample[1::2]
        probed = self._fewest_probes(chosen, cells, wanted)
        measured = others if len(others) else chosen
        share = recall(self._exact(measured), self._found(measured).items)
        self.facts: dict[str, Any] = {
            "wanted": wanted,
            f"recall@{self._k}": share,
            "cells": cells,
            "probed": probed,
        }

    def _fewest_probes(self, users: NDArray[np.int64], cells: int, wanted: float) -> int:
        expected = self._exact(users)
        for probed in (1 << n for n in range(cells.bit_length() + 1)):
            self._index.nprobe = min(probed, cells)
            if probed >= cells or recall(expected, self._found(users).items) >= wanted:
                break
        return int(self._index.nprobe)

    def _exact(self, users: NDArray[np.int64]) -> TopK:
        return answer(self._model, replace(self._query, users=users))

    def answer(self, query: ListQuery) -> TopK:
        """The lists of some users; those of users for whom too few items are found are exact."""
        return self._found(query.users)

    def _found(self, users: NDArray[np.int64]) -> TopK:
        items = np.full((len(users), self._k), -1, np.int64)
        scores = np.full((len(users), self._k), -np.inf, np.float32)
        known = np.zeros(len(users), np.int64) if self._seen is None else self._seen.user_degrees[users]
        order = np.argsort(known, kind="stable")  # users who know about as many items are asked for together
        short: list[int] = []
        for start in range(0, len(users), _USERS_AT_ONCE):
            rows = order[start : start + _USERS_AT_ONCE]
            asked = min(self._k + int(known[rows].max()), len(self._positions))
            if known[rows].max() > _MOST_KNOWN:
                short += rows.tolist()
                continue
            found_scores, found = self._index.search(self._users[users[rows]].numpy(), asked)
            fine = found >= 0
            found = np.where(fine, self._positions[np.maximum(found, 0)], -1)
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


def _build(faiss: Any, vectors: NDArray[np.float32]) -> tuple[Any, int]:
    """An index of cells, two for each square root of the items, and how many there are."""
    count, dim = vectors.shape
    cells = max(1, min(round(2 * math.sqrt(count)), count // _POINTS_PER_CELL))
    index = faiss.IndexIVFFlat(faiss.IndexFlatIP(dim), dim, cells, faiss.METRIC_INNER_PRODUCT)
    index.cp.min_points_per_centroid, index.cp.max_points_per_centroid = 1, _POINTS_PER_CELL
    index.train(vectors)
    index.add(vectors)
    return index, cells
