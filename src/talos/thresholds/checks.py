"""What an estimator asks of its arguments, and the errors that say so."""

from __future__ import annotations

import torch
from torch import Tensor

from talos.errors import ArgumentError

__all__ = ["at_least_one", "check_batch", "check_finite", "describe"]


def at_least_one(name: str, value: object) -> int:
    """`value` if it is an integer of at least 1, else an error that names it.

    >>> at_least_one("k", 0)
    Traceback (most recent call last):
    talos.errors.ArgumentError: k: got 0; expected an integer of at least 1
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ArgumentError(f"got {value!r}", where=name, expected="an integer of at least 1")
    return value


def describe(value: Tensor) -> str:
    """A clause on what a tensor is.

    >>> describe(torch.zeros(2, 3))
    'has shape (2, 3), dtype torch.float32'
    """
    return f"has shape {tuple(value.shape)}, dtype {value.dtype}"


def check_finite(name: str, values: Tensor, mask: Tensor | None = None) -> None:
    """An error for NaN and infinity. A sum is not finite if a term is not, and is the cheapest look at all.

    >>> check_finite("scores", torch.tensor([0.5, float("nan")]))
    Traceback (most recent call last):
    talos.errors.ArgumentError: scores: has nan, shape (2,); expected finite numbers
    """
    if torch.isfinite(values.sum()):
        return
    bad = ~torch.isfinite(values) if mask is None else ~torch.isfinite(values) & ~mask
    if bad.any():
        found = f"has {values[bad][0].item()}, shape {tuple(values.shape)}"
        raise ArgumentError(found, where=name, expected="finite numbers")


def check_batch(
    users: Tensor, positives: Tensor, negatives: Tensor, mask: Tensor | None, owner: Tensor | None
) -> None:
    """Check shapes and types of what `Threshold.update` is given.

    >>> check_batch(torch.tensor([0, 1]), torch.zeros(2), torch.zeros(3, 4), None, None)
    Traceback (most recent call last):
    talos.errors.ArgumentError: negatives: has shape (3, 4), dtype torch.float32; expected shape (2, N)
    """
    if users.ndim != 1 or users.is_floating_point():
        raise ArgumentError(describe(users), where="users", expected="indices of shape (B,)")
    rows = len(users)
    wanted = users.shape if owner is None else owner.shape
    if positives.ndim != 1 or positives.shape != wanted:
        raise ArgumentError(describe(positives), where="positives", expected=f"shape {tuple(wanted)}")
    if negatives.ndim != 2 or negatives.shape[0] != rows:
        raise ArgumentError(describe(negatives), where="negatives", expected=f"shape ({rows}, N)")
    if mask is not None and (mask.shape != negatives.shape or mask.dtype != torch.bool):
        expected = f"booleans of shape {tuple(negatives.shape)}"
        raise ArgumentError(describe(mask), where="mask", expected=expected)
