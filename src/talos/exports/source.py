"""What is exported: the model behind a recommender, its checksum, its K."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from talos.data.vocabulary import Ids
from talos.errors import ArgumentError
from talos.model.recommender import Recommender
from talos.model.run_directory import Model

__all__ = ["banned_items", "checksum", "list_length", "model_of"]

_DEFAULT_K = 20


def model_of(source: Model | Recommender) -> Model:
    """The model of a fitted recommender, or the model itself."""
    model = source.model if isinstance(source, Recommender) else source
    if model is None:
        raise ArgumentError("not fitted yet", where="Recommender", expected="fit or load before this")
    return model


def list_length(model: Model, k: int | None) -> int:
    """A list length that the model can serve: `k`, or the K that it was trained for."""
    items = model.train.num_items
    if k is None:
        return min(int(model.facts.get("config", {}).get("k", _DEFAULT_K)), items)
    if not 1 <= k <= items:
        raise ArgumentError(f"{k}", where="k", expected=f"1 to {items}, the number of items")
    return k


def banned_items(model: Model, candidates: Ids | None, exclude: Ids | None) -> NDArray[np.int64] | None:
    """Positions of the items that nobody gets; None if there are none."""
    allowed = np.full(model.train.num_items, candidates is None)
    for name, ids, flag in (("candidates", candidates, True), ("exclude", exclude, False)):
        if ids is not None:
            codes = model.train.item_ids.encode(ids)
            if (codes < 0).any():
                unknown = list(ids)[int((codes < 0).argmax())]
                raise ArgumentError(f"no item {unknown!r}", where=name, expected="items that were trained on")
            allowed[codes] = flag
    return None if allowed.all() else np.flatnonzero(~allowed)


def checksum(model: Model) -> str:
    """A hash of everything that lists depend on: vectors, ids, and who has seen what."""
    digest = hashlib.blake2b(digest_size=16)
    for vectors in (model.user_vectors, model.item_vectors):
        digest.update(str(tuple(vectors.shape)).encode())
        digest.update(np.ascontiguousarray(vectors.detach().cpu().numpy()).data)
    for part in (model.train, model.valid):
        digest.update(b"-" if part is None else part.fingerprint().encode())
    return digest.hexdigest()
