"""What a loss asks of its arguments, and the errors that say so."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from talos.errors import ArgumentError, nearest

__all__ = ["check_finite", "check_scores", "one_of", "positive_integer", "positive_number"]


def positive_number(name: str, value: object, *, at_most: float = math.inf) -> float:
    """`value` if it is a finite number in (0, at_most], else an error that names it.

    >>> positive_number("tau", 0.1)
    0.1
    >>> positive_number("tau", 0)
    Traceback (most recent call last):
    talos.errors.ArgumentError: tau: got 0; expected a finite number above 0
    """
    limit = "" if at_most == math.inf else f", at most {at_most:g}"
    if (
        not isinstance(value, int | float)
        or isinstance(value, bool)
        or not math.isfinite(value)
        or not 0 < value <= at_most
    ):
        raise ArgumentError(f"got {value!r}", where=name, expected=f"a finite number above 0{limit}")
    return float(value)


def positive_integer(name: str, value: object) -> int:
    """`value` if it is an integer of at least 1, else an error that names it.

    >>> positive_integer("k", 20)
    20
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ArgumentError(f"got {value!r}", where=name, expected="an integer of at least 1")
    return value


def one_of(name: str, value: str, choices: Sequence[str]) -> str:
    """`value` if it is among `choices`, else an error with the nearest of them.

    >>> one_of("form", "ful", ["training", "full"])
    Traceback (most recent call last):
    talos.errors.ArgumentError: form: got 'ful'; expected one of full, training (did you mean 'full'?)
    """
    if value not in choices:
        expected = "one of " + ", ".join(sorted(choices))
        raise ArgumentError(
            f"got {value!r}", where=name, expected=expected, hint=nearest(str(value), choices)
        )
    return value


def check_scores(pos: object, neg: object, threshold: object, mask: object, *, needs_threshold: bool) -> None:
    """Check shapes and types; an error names the argument, what it is and what was expected."""
    if not isinstance(pos, Tensor) or pos.ndim != 1 or not pos.is_floating_point():
        raise ArgumentError(
            describe(pos), where="pos", expected="positive scores of shape (B,), floating point"
        )
    rows = pos.shape[0]
    if not isinstance(neg, Tensor) or neg.ndim != 2 or not neg.is_floating_point():
        raise ArgumentError(describe(neg), where="neg", expected="negative scores (B, N), floating point")
    if neg.shape[0] != rows or neg.shape[1] == 0:
        raise ArgumentError(describe(neg), where="neg", expected=f"shape ({rows}, N) with N of at least 1")
    if needs_threshold and threshold is None:
        raise ArgumentError(
            "is missing", where="threshold", expected=f"one threshold per row, shape ({rows},)"
        )
    if needs_threshold and (not isinstance(threshold, Tensor) or threshold.shape != (rows,)):
        raise ArgumentError(describe(threshold), where="threshold", expected=f"shape ({rows},)")
    if mask is not None and (
        not isinstance(mask, Tensor) or mask.shape != neg.shape or mask.dtype != torch.bool
    ):
        expected = f"booleans of shape {tuple(neg.shape)}, True where a negative is left out"
        raise ArgumentError(describe(mask), where="mask", expected=expected)


def check_finite(
    values: Tensor, *, pos: Tensor, neg: Tensor, threshold: Tensor | None, mask: Tensor | None
) -> None:
    """Raise if `values`, the result, came out NaN or infinite because an argument already was.

    One look at (B,) results stands for a look at (B, N) scores, since neither NaN nor a wrong infinity can
    vanish on the way; only then is the culprit searched for.
    """
    if torch.isfinite(values).all():
        return
    kept = neg if mask is None else neg.masked_fill(mask, 0.0)
    for name, argument in (("pos", pos), ("neg", kept), ("threshold", threshold)):
        if argument is None:
            continue
        bad = ~torch.isfinite(argument)
        if bad.any():
            where = tuple(int(i) for i in bad.nonzero()[0])
            found = f"has {argument[where].item()} at {where}, shape {tuple(argument.shape)}"
            raise ArgumentError(found, where=name, expected="finite scores")


def describe(value: object) -> str:
    """A clause on what an argument is.

    >>> describe(torch.zeros(2, 3)), describe([1])
    ('has shape (2, 3), dtype torch.float32', 'is a list')
    """
    if isinstance(value, Tensor):
        return f"has shape {tuple(value.shape)}, dtype {value.dtype}"
    return f"is a {type(value).__name__}"
