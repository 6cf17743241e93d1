"""Checks of the kernels' arguments and results; the errors name the argument at fault."""

from __future__ import annotations

import torch
from torch import Tensor

from talos.errors import ArgumentError
from talos.kernels.protocols import BatchLoss

__all__ = [
    "check_arguments",
    "check_finite",
    "check_k",
    "check_positive_weights",
    "check_positives",
    "check_vectors",
    "checked_indices",
]

_INDEX_TYPES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def check_finite(**arguments: Tensor | None) -> None:
    """Raise an error that names the argument at fault unless all numbers are finite; costs a sum of each if they are.

    The loss would not show it: of infinite scores it can be finite.
    """
    given = {name: argument for name, argument in arguments.items() if argument is not None}
    if torch.isfinite(torch.stack([argument.sum() for argument in given.values()]).sum()):
        return
    for name, argument in given.items():  # there may be none at fault: a sum of large numbers can overflow
        if not torch.isfinite(argument).all():
            row = int((~torch.isfinite(argument)).nonzero()[0, 0])
            raise ArgumentError(f"is not finite in row {row}", where=name, expected="finite numbers")


def check_k(k: int, num_items: int) -> None:
    """Raise an error unless there are K items."""
    if not 1 <= k <= num_items:
        raise ArgumentError(f"got {k}", where="k", expected=f"1 to {num_items}, the number of items")


def check_vectors(user_vectors: Tensor, item_vectors: Tensor) -> None:
    """Raise an error unless both are dense matrices of real numbers, of one dimension and on one device."""
    _check_dense("user_vectors", user_vectors, item_vectors.device)
    _check_dense("item_vectors", item_vectors, item_vectors.device)
    if user_vectors.ndim != 2 or user_vectors.shape[1] < 1:
        raise _wrong_shape("user_vectors", user_vectors, "(B, d)")
    if item_vectors.ndim != 2 or item_vectors.shape[1] != user_vectors.shape[1]:
        raise _wrong_shape("item_vectors", item_vectors, f"(I, {user_vectors.shape[1]})")


def check_arguments(
    user_vectors: Tensor,
    item_vectors: Tensor,
    thresholds: Tensor | None,
    loss: BatchLoss,
    *,
    k: int | None = None,
    weights: Tensor | None = None,
    num_candidates: int | None = None,
) -> None:
    """Raise an error that names the first argument that does not fit the others; positives have their own check.

    `num_candidates` is the size of the sample that replaces the items as negatives, if there is one.
    """
    check_vectors(user_vectors, item_vectors)
    users = len(user_vectors)
    if thresholds is not None:
        _check_dense("thresholds", thresholds, item_vectors.device)
        if thresholds.shape != (users,):
            raise _wrong_shape("thresholds", thresholds, f"({users},)")
    if weights is not None:
        _check_dense("weights", weights, item_vectors.device)
        candidates = len(item_vectors) if num_candidates is None else num_candidates
        if weights.shape != (candidates,):
            raise _wrong_shape("weights", weights, f"({candidates},)")
    if not (loss.needs.user_separable or loss.needs.pairwise or loss.needs.lists):
        expected = "a loss whose `needs.user_separable`, `needs.pairwise` or `needs.lists` holds"
        raise ArgumentError(f"{loss!r} pairs positives with negatives", where="loss", expected=expected)
    if loss.needs.threshold and thresholds is None and k is None:
        raise ArgumentError("is missing", where="thresholds", expected=f"shape ({users},)")


def check_positives(
    indptr: Tensor, indices: Tensor, num_users: int, num_items: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Positives in CSR form, (num_users + 1,) and (P,), as int64; an error unless each item is there once per user."""
    indptr = checked_indices("indptr", indptr, None, device)
    if indptr.shape != (num_users + 1,):
        raise _wrong_shape("indptr", indptr, f"({num_users + 1},)")
    if int(indptr[0]) != 0 or bool((indptr.diff() < 0).any()):
        raise ArgumentError("does not ascend from 0", where="indptr", expected="offsets of a CSR matrix")
    if indices.ndim != 1 or len(indices) != int(indptr[-1]):
        raise _wrong_shape("indices", indices, f"({int(indptr[-1])},), the last entry of indptr")
    indices = checked_indices("indices", indices, num_items, device)
    starts = indptr[1:-1]  # of all users but the first: there, indices need not ascend
    ascends = indices.diff() > 0
    ascends[starts[(starts > 0) & (starts < len(indices))] - 1] = True
    if not bool(ascends.all()):
        owner = torch.arange(num_users, device=device).repeat_interleave(indptr.diff())
        pairs = (owner * num_items + indices).sort().values
        twice = pairs[1:][pairs.diff() == 0]
        if len(twice):
            user, item = divmod(int(twice[0]), num_items)
            raise ArgumentError(
                f"item {item} occurs twice for the user in row {user}",
                where="indices",
                expected="each item at most once per user",
            )
    return indptr, indices


def check_positive_weights(
    weights: Tensor, indptr: Tensor, indices: Tensor, num_items: int
) -> tuple[Tensor, Tensor]:
    """The positives and their weights (P,), ascending by item within each user; an error unless all are above 0."""
    _check_dense("positive_weights", weights, indices.device)
    if weights.shape != indices.shape:
        raise _wrong_shape("positive_weights", weights, f"({len(indices)},), one per positive")
    if len(weights) and not (bool((weights > 0).all()) and bool(weights.isfinite().all())):
        raise ArgumentError(
            f"{float(weights.min())} to {float(weights.max())}",
            where="positive_weights",
            expected="finite numbers above 0",
        )
    owner = torch.arange(len(indptr) - 1, device=indices.device).repeat_interleave(indptr.diff())
    order = torch.argsort(owner * num_items + indices)
    return indices[order], weights.detach()[order]


def checked_indices(name: str, values: Tensor, bound: int | None, device: torch.device) -> Tensor:
    """A contiguous vector of indices as int64; an error unless they are integers on this device below `bound`."""
    if values.layout != torch.strided or values.dtype not in _INDEX_TYPES or values.ndim != 1:
        found = f"has shape {tuple(values.shape)} and type {values.dtype}"
        raise ArgumentError(found, where=name, expected="a dense vector of integers")
    if values.device != device:
        raise ArgumentError(f"is on {values.device}", where=name, expected=f"{device}, as the vectors")
    if bound is not None and values.numel():
        low, high = (int(edge) for edge in torch.aminmax(values))
        if low < 0 or high >= bound:
            raise ArgumentError(f"{low} to {high}", where=name, expected=f"0 to {bound - 1}")
    return values.to(torch.int64).contiguous()


def _check_dense(name: str, values: Tensor, device: torch.device) -> None:
    if values.layout != torch.strided or not values.dtype.is_floating_point:
        raise ArgumentError(
            f"is {values.layout} of {values.dtype}",
            where=name,
            expected="a dense tensor of floating-point numbers",
        )
    if values.device != device:
        raise ArgumentError(f"is on {values.device}", where=name, expected=f"{device}, as item_vectors")


def _wrong_shape(name: str, value: Tensor, expected: str) -> ArgumentError:
    return ArgumentError(f"has shape {tuple(value.shape)}", where=name, expected=expected)
