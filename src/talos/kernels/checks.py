"""Checks of the kernels' arguments and results; the errors name the argument at fault."""

from __future__ import annotations

import torch
from torch import Tensor

from talos.errors import ArgumentError
from talos.kernels.protocols import LossParts

__all__ = ["check_arguments", "check_finite", "check_k"]


def check_finite(values: Tensor, **arguments: Tensor | None) -> None:
    """Raise an error that names the argument at fault if the result is not finite; cheap if it is."""
    if torch.isfinite(values).all():
        return
    for name, argument in arguments.items():
        if argument is not None and not torch.isfinite(argument).all():
            row = int((~torch.isfinite(argument)).nonzero()[0, 0])
            raise ArgumentError(f"is not finite in row {row}", where=name, expected="finite numbers")


def check_k(k: int, num_items: int) -> None:
    """Raise an error unless there are K items."""
    if not 1 <= k <= num_items:
        raise ArgumentError(f"got {k}", where="k", expected=f"1 to {num_items}, the number of items")


def check_arguments(
    user_vectors: Tensor,
    item_vectors: Tensor,
    indptr: Tensor,
    indices: Tensor,
    thresholds: Tensor | None,
    loss: LossParts,
    *,
    k: int | None = None,
    item_ids: Tensor | None = None,
    weights: Tensor | None = None,
    num_users: int | None = None,
) -> None:
    """Raise an error that names the first argument that does not fit the others.

    `num_users` is the size of the batch where `user_vectors` and `thresholds` are of some of its users only.
    """

    def wrong(name: str, value: Tensor, expected: str) -> ArgumentError:
        return ArgumentError(f"has shape {tuple(value.shape)}", where=name, expected=expected)

    if user_vectors.ndim != 2:
        raise wrong("user_vectors", user_vectors, "(B, d)")
    own, dim = user_vectors.shape
    users = own if num_users is None else num_users
    if item_vectors.ndim != 2 or item_vectors.shape[1] != dim:
        raise wrong("item_vectors", item_vectors, f"(I, {dim})")
    if indptr.shape != (users + 1,):
        raise wrong("indptr", indptr, f"({users + 1},)")
    if indices.ndim != 1 or len(indices) != int(indptr[-1]):
        raise wrong("indices", indices, f"({int(indptr[-1])},), the last entry of indptr")
    if thresholds is not None and thresholds.shape != (own,):
        raise wrong("thresholds", thresholds, f"({own},)")
    candidates = len(item_vectors) if item_ids is None else len(item_ids)
    if weights is not None and weights.shape != (candidates,):
        raise wrong("weights", weights, f"({candidates},)")
    if not loss.needs.user_separable:
        expected = "a loss whose `needs.user_separable` holds"
        raise ArgumentError(f"{loss!r} pairs positives with negatives", where="loss", expected=expected)
    if loss.needs.threshold and thresholds is None and k is None:
        raise ArgumentError("is missing", where="thresholds", expected=f"shape ({own},)")
