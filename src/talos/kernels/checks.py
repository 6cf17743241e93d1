"""Checks of the kernels' arguments; the errors name the argument at fault."""

from __future__ import annotations

import torch
from torch import Tensor

from talos.checks import require
from talos.errors import ArgumentError
from talos.kernels.core import checked_indices
from talos.kernels.csr import CSR
from talos.kernels.vectors import Samples
from talos.losses import Loss, UserSeparableLoss

__all__ = ["check_arguments", "check_ids", "check_k", "check_positives", "check_samples", "check_vectors"]


def check_k(k: int, num_items: int) -> None:
    """Raise an error unless there are K items."""
    require(1 <= k <= num_items, f"got {k}", where="k", expected=f"1 to {num_items}, the number of items")


def check_vectors(users: Tensor, items: Tensor) -> None:
    """Raise an error unless both are dense matrices of real numbers, of one dimension and on one device."""
    _check_floats("user_vectors", users, items.device, users.ndim == 2 and users.shape[1] >= 1, "(B, d)")
    dim = users.shape[1]
    _check_floats(
        "item_vectors", items, items.device, items.ndim == 2 and items.shape[1] == dim, f"(I, {dim})"
    )


def check_arguments(
    user_vectors: Tensor,
    item_vectors: Tensor,
    thresholds: Tensor | None,
    loss: Loss,
    *,
    k: int | None = None,
    weights: Tensor | None = None,
    num_candidates: int,
) -> None:
    """Raise an error that names the first argument that does not fit the others; positives have their own check.

    `num_candidates` is the number of items, or the size of the sample that replaces them as negatives.
    """
    if k is not None:
        require(
            thresholds is None, "are given together with k", where="thresholds", expected="one of the two"
        )
        check_k(k, len(item_vectors))
    check_vectors(user_vectors, item_vectors)
    shape, needs, device = (len(user_vectors),), loss.needs, item_vectors.device
    if not (needs.user_separable or needs.pairwise or needs.lists):
        expected = "a loss whose `needs.user_separable`, `needs.pairwise` or `needs.lists` holds"
        raise ArgumentError(f"{loss!r} pairs positives with negatives", where="loss", expected=expected)
    if thresholds is not None:
        _check_floats("thresholds", thresholds, device, thresholds.shape == shape, f"{shape}")
    if weights is not None:
        fits = weights.shape == (num_candidates,)
        _check_floats("weights", weights, device, fits, f"({num_candidates},)")
        require(
            isinstance(loss, UserSeparableLoss),
            "is given",
            where="weights",
            expected=f"nothing: {loss!r} is not user-separable",
        )
    require(
        thresholds is not None or k is not None or not needs.threshold,
        "is missing",
        where="thresholds",
        expected=f"shape {shape}",
    )


def check_positives(
    indptr: Tensor,
    indices: Tensor,
    num_rows: int,
    num_items: int,
    device: torch.device,
    weights: Tensor | None,
    *,
    name: str = "indices",
) -> tuple[CSR, Tensor | None]:
    """Items of each row as int64, ascending, and their weights (P,) in the same order.

    An error that names the argument at fault unless each item is there once per row and weights are above 0.
    """
    start = checked_indices("indptr", indptr, None, device)
    _check_shape("indptr", start, start.shape == (num_rows + 1,), f"({num_rows + 1},)")
    require(
        int(start[0]) == 0 and bool((start.diff() >= 0).all()),
        "does not ascend from 0",
        where="indptr",
        expected="offsets of a CSR matrix",
    )
    count = int(start[-1])
    _check_shape(name, indices, indices.shape == (count,), f"({count},), the last entry of indptr")
    found = CSR.of(start, checked_indices(name, indices, num_items, device))
    if weights is not None:
        fits = weights.shape == (count,)
        _check_floats("positive_weights", weights, device, fits, f"({count},), one per positive")
        low, high = map(float, torch.aminmax(weights)) if count else (1.0, 1.0)
        require(
            low > 0 and high < torch.inf,
            f"{low} to {high}",
            where="positive_weights",
            expected="finite numbers above 0",
        )
    keys = found.rows * num_items + found.items
    if bool((keys.diff() > 0).all()):
        return found, weights
    keys, order = keys.sort()
    twice = keys[1:][keys.diff() == 0]
    if len(twice):
        row, item = divmod(int(twice[0]), num_items)
        raise ArgumentError(
            f"item {item} occurs twice for the user in row {row}",
            where=name,
            expected="each item at most once per user",
        )
    return found._replace(items=found.items[order]), None if weights is None else weights[order]


def check_samples(
    item_ids: Tensor, bounds: Tensor | None, num_rows: int, num_items: int, device: torch.device
) -> Samples:
    """Samples (G, n) and the bounds (G + 1,) of the rows that share each; an error unless every row has one."""
    enough = item_ids.ndim == 1 or (item_ids.ndim == 2 and (len(item_ids) > 0 or num_rows == 0))
    _check_shape("item_ids", item_ids, enough, "shape (n,), or (G, n) with a sample for every user")
    items = checked_indices("item_ids", item_ids.flatten(), num_items, device)
    items = items.view(item_ids.shape if item_ids.ndim == 2 else (1, -1))
    if bounds is None:
        size = -(-num_rows // max(1, len(items)))
        bounds = (torch.arange(len(items) + 1, device=device) * size).clamp_(max=num_rows)
    bounds = checked_indices("sample_bounds", bounds, num_rows + 1, device)
    ascending = bounds.shape == (len(items) + 1,) and bool((bounds.diff() >= 0).all())
    require(
        ascending and int(bounds[0]) == 0 and int(bounds[-1]) == num_rows,
        f"got {bounds.tolist()}",
        where="sample_bounds",
        expected=f"{len(items) + 1} ascending bounds from 0 to {num_rows}",
    )
    return Samples(items, bounds)


def check_ids(user_ids: Tensor | None, num_rows: int, device: torch.device) -> Tensor:
    """The ids of the rows' users (R,), as a loss asks for them."""
    if user_ids is None or user_ids.shape != (num_rows,):
        found = "is missing" if user_ids is None else f"has {user_ids.numel()} ids"
        raise ArgumentError(found, where="user_ids", expected=f"an id for each of {num_rows} users")
    ids = checked_indices("user_ids", user_ids, None, device)
    lowest = int(ids.min()) if num_rows else 0
    require(lowest >= 0, f"has {lowest}", where="user_ids", expected="0 or more")
    return ids


def _check_floats(name: str, values: Tensor, device: torch.device, fits: bool, shape: str) -> None:
    """Raise an error unless a tensor is dense, of floating-point numbers, on this device and of the right shape."""
    require(
        values.layout == torch.strided and values.dtype.is_floating_point,
        f"is {values.layout} of {values.dtype}",
        where=name,
        expected="a dense tensor of floating-point numbers",
    )
    require(
        values.device == device, f"is on {values.device}", where=name, expected=f"{device}, as item_vectors"
    )
    _check_shape(name, values, fits, shape)


def _check_shape(name: str, values: Tensor, fits: bool, expected: str) -> None:
    require(fits, f"has shape {tuple(values.shape)}", where=name, expected=expected)
