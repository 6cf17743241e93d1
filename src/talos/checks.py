"""Checks of arguments that several packages share; each error names the argument, what it was and what was expected.

Tensors are looked at through their own methods, so that nothing here imports torch.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any

from talos.errors import ArgumentError, ConfigError, InputError, Option, nearest

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "check_finite",
    "check_result",
    "describe",
    "is_integer",
    "number_from",
    "of_type",
    "one_of",
    "positive_integer",
    "positive_number",
    "require",
    "require_memory",
]


def require(
    fits: bool,
    found: str,
    *,
    where: str,
    expected: str | None = None,
    hint: str | None = None,
    option: Option | Iterable[Option] = (),
    error: type[InputError] = ArgumentError,
) -> None:
    """Raise an `error` that says what was found, where, what was expected and what helps, unless the argument fits.

    >>> require(-1 >= 0, "got -1", where="layers", expected="0 or more")
    Traceback (most recent call last):
    talos.errors.ArgumentError: layers: got -1; expected 0 or more
    """
    if not fits:
        raise error(found, where=where, expected=expected, hint=hint, option=option)


def require_memory(needed: float, what: str, *, where: str, hint: str) -> None:
    """Refuse what takes more bytes than the machine has memory, where the system says how much that is.

    >>> require_memory(1e18, "training", where="backbone.dim", hint="a smaller dim takes less")
    Traceback (most recent call last):
    talos.errors.ConfigError: backbone.dim: training would take 1,000,000,000.0 GB; expected at most ... GB, ...
    """
    if hasattr(os, "sysconf"):
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        require(
            needed <= there,
            f"{what} would take {needed / 1e9:,.1f} GB",
            where=where,
            expected=f"at most {there / 1e9:,.1f} GB, the memory of this machine",
            hint=hint,
            error=ConfigError,
        )


def positive_number(name: str, value: object, *, at_most: float = math.inf) -> float:
    """Return `value` as a float if it is a finite number in (0, at_most].

    >>> positive_number("tau", 0.1)
    0.1
    >>> positive_number("tau", 0)
    Traceback (most recent call last):
    talos.errors.ArgumentError: tau: got 0; expected a finite number above 0
    """
    limit = "" if at_most == math.inf else f", at most {at_most:g}"
    number = isinstance(value, int | float) and not isinstance(value, bool)
    fits = number and math.isfinite(value) and 0 < value <= at_most  # type: ignore[arg-type,operator]
    require(fits, f"got {value!r}", where=name, expected=f"a finite number above 0{limit}")
    return float(value)  # type: ignore[arg-type]


def number_from(name: str, value: object, at_least: float | None = None) -> float:
    """Return `value` as a float if it is a finite number, of at least `at_least` if that is given.

    >>> number_from("user_power", -1, 0.0)
    Traceback (most recent call last):
    talos.errors.ArgumentError: user_power: got -1; expected a finite number of at least 0
    """
    number = isinstance(value, int | float) and not isinstance(value, bool)
    fits = number and math.isfinite(value)  # type: ignore[arg-type]
    expected = "a finite number"
    if at_least is not None:
        fits, expected = fits and value >= at_least, f"{expected} of at least {at_least:g}"  # type: ignore[operator]
    require(fits, f"got {value!r}", where=name, expected=expected)
    return float(value)  # type: ignore[arg-type]


def positive_integer(name: str, value: object) -> int:
    """Return `value` if it is an integer of at least 1.

    >>> positive_integer("k", 0)
    Traceback (most recent call last):
    talos.errors.ArgumentError: k: got 0; expected an integer of at least 1
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ArgumentError(f"got {value!r}", where=name, expected="an integer of at least 1")
    return value


def is_integer(value: object) -> bool:
    """Whether a value is an integer, of Python or numpy; True and False are none.

    >>> is_integer(5), is_integer(5.0), is_integer(True)
    (True, False, False)
    """
    return isinstance(value, Integral) and not isinstance(value, bool)


def one_of(name: str, value: str, choices: Sequence[str]) -> str:
    """Return `value` if it is among `choices`; the error suggests the nearest of them.

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


def of_type(name: str, value: Any, kind: Any) -> Any:
    """Return `value` if it is of a type, such as `int | None` or a `Literal`; strict: True is no 1, and "1" neither.

    >>> of_type("k", 5, int | None)
    5
    >>> of_type("test", "0.2", float)
    Traceback (most recent call last):
    talos.errors.ArgumentError: test: '0.2'; expected a valid number
    """
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(kind).validate_python(value, strict=True)
    except ValidationError as error:
        messages = [one["msg"].removeprefix("Input should be ") for one in error.errors(include_url=False)]
        choices = [str(one) for one in getattr(kind, "__args__", ()) if isinstance(one, str)]
        near = nearest(str(value), choices) if choices else ""
        raise ArgumentError(
            repr(value),
            where=name,
            expected=" or ".join(dict.fromkeys(messages)),
            hint=near if near.startswith("did") else None,
        ) from None


def describe(value: object) -> str:
    """Say what an argument is, as a clause for an error: shape and dtype of a tensor, else the type.

    >>> import torch
    >>> describe(torch.zeros(2, 3)), describe([1])
    ('has shape (2, 3), dtype torch.float32', 'is a list')
    """
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"has shape {tuple(value.shape)}, dtype {value.dtype}"
    return f"is a {type(value).__name__}"


def check_finite(name: str, values: Tensor, mask: Tensor | None = None) -> None:
    """Raise if a number is NaN or infinite, unless `mask` is True there.

    A sum is not finite if one of its terms is not; it is the cheapest way to look at all of them.

    >>> import torch
    >>> check_finite("scores", torch.tensor([0.5, float("nan")]))
    Traceback (most recent call last):
    talos.errors.ArgumentError: scores: has nan at (1,), shape (2,); expected finite numbers
    """
    if values.sum().isfinite():
        return
    bad = ~values.isfinite() if mask is None else ~values.isfinite() & ~mask
    if bad.any():
        place = tuple(int(i) for i in bad.nonzero()[0])
        found = f"has {values[place].item()} at {place}, shape {tuple(values.shape)}"
        raise ArgumentError(found, where=name, expected="finite numbers")


def check_result(result: Tensor, mask: Tensor | None = None, **arguments: Tensor | None) -> None:
    """Raise if `result` is NaN or infinite because one of the arguments already was.

    A result is smaller than the arguments it was computed from, and neither NaN nor a wrong infinity can vanish
    on the way: the arguments are only looked at when the result is not finite. `mask` is that of the arguments
    of its own shape.

    >>> import torch
    >>> check_result(torch.tensor([float("inf")]), pos=torch.ones(1), neg=torch.tensor([[float("inf")]]))
    Traceback (most recent call last):
    talos.errors.ArgumentError: neg: has inf at (0, 0), shape (1, 1); expected finite numbers
    """
    if result.isfinite().all():
        return
    for name, argument in arguments.items():
        if argument is not None:
            same = mask is not None and mask.shape == argument.shape
            check_finite(name, argument, mask if same else None)
