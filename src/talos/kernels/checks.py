"""What the kernels refuse: arguments that do not fit each other, and results that are no numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from talos.errors import ArgumentError
from talos.kernels.parts import LossParts

__all__ = ["check_arguments", "check_finite"]


def check_finite(values: Tensor, **arguments: Tensor | None) -> None:
    """An error that names the argument at fault if the result is not finite; cheap if it is."""
    if torch.isfinite(values).all():
        return
    for name, argument in arguments.items():
        if argument is not None and not torch.isfinite(argument).all():
            row = int((~torch.isfinite(argument)).nonzero()[0, 0])
            raise ArgumentError(f"is not finite in row {row}", where=name, expected="finite numbers")


def check_arguments(
    user_vectors: Tensor,
    item_vectors: Tensor,
    indptr: Tensor,
    indices: Tensor,
    thresholds: Tensor | None,
    item_ids: Tensor | None,
    weights: Tensor | None,
    loss: LossParts,
) -> None:
    """An error that names the first argument that does not fit the others."""

    def wrong(name: str, value: Tensor, expected: str) -> ArgumentError:
        return ArgumentError(f"has shape {tuple(value.shape)}", where=name, expected=expected)

    if user_vectors.ndim != 2:
        raise wrong("user_vectors", user_vectors, "(B, d)")
    users, dim = user_vectors.shape
    if item_vectors.ndim != 2 or item_vectors.shape[1] != dim:
        raise wrong("item_vectors", item_vectors, f"(I, {dim})")
    if indptr.shape != (users + 1,):
        raise wrong("indptr", indptr, f"({users + 1},)")
    if indices.ndim != 1 or len(indices) != int(indptr[-1]):
        raise wrong("indices", indices, f"({int(indptr[-1])},), the last entry of indptr")
    if thresholds is not None and thresholds.shape != (users,):
        raise wrong("thresholds", thresholds, f"({users},)")
    candidates = len(item_vectors) if item_ids is None else len(item_ids)
    if weights is not None and weights.shape != (candidates,):
        raise wrong("weights", weights, f"({candidates},)")
    if not loss.needs.user_separable:
        expected = "a loss whose `needs.user_separable` holds"
        raise ArgumentError(f"{loss!r} pairs positives with negatives", where="loss", expected=expected)
    if loss.needs.threshold and thresholds is None:
        raise ArgumentError("is missing", where="thresholds", expected=f"shape ({users},)")
