"""What is exported: the model behind a recommender, its checksum, its K."""

from __future__ import annotations

import hashlib

import numpy as np

from talos.artifact import Model
from talos.errors import ArgumentError
from talos.recommender import Recommender

__all__ = ["checksum", "list_length", "model_of"]

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


def checksum(model: Model) -> str:
    """A hash of everything that lists depend on: vectors, ids, and who has seen what."""
    digest = hashlib.blake2b(digest_size=16)
    for vectors in (model.user_vectors, model.item_vectors):
        digest.update(str(tuple(vectors.shape)).encode())
        digest.update(np.ascontiguousarray(vectors.detach().cpu().numpy()).data)
    for part in (model.train, model.valid):
        digest.update(b"-" if part is None else part.fingerprint().encode())
    return digest.hexdigest()
