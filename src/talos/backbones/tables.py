"""Tables of parameters: starting values, look-ups, and memory for their gradients that is kept from step to step.

A step makes tables of the size of the model: gradients and unit vectors. Allocators return blocks of that size to the
system when they are freed, so that the next step gets new pages, which the system must find and clear: about a fifth of
the processor time of an epoch on Beauty.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["gaussian", "keep_gradients_", "look_up", "memory_for_gradient"]

# Rows drawn at a time where only some are kept; a multiple of 16.
_DRAWN = 1 << 14


def gaussian(
    rows: int, dim: int, generator: torch.Generator | None, *, only: range | None = None
) -> nn.Parameter:
    """A table of N(0, 1) numbers; with `only`, just these rows of it, without holding the rest."""
    if only is None:
        return nn.Parameter(torch.randn(rows, dim, generator=generator))
    # Torch fills a tensor from the front in groups of 16 numbers and does the last 16 again if some are left
    # over: blocks of a multiple of 16, with no short one at the end, are the numbers of the whole.
    table = torch.empty(len(only), dim)
    starts = [*range(0, max(1, rows - _DRAWN + 1), _DRAWN), rows]
    for start, end in itertools.pairwise(starts):
        block = torch.randn(end - start, dim, generator=generator)
        first, last = max(start, only.start), min(end, only.stop)
        if first < last:
            table[first - only.start : last - only.start] = block[first - start : last - start]
    return nn.Parameter(table)


def memory_for_gradient(parameter: Tensor) -> Tensor:
    """Memory like the parameter, with any values: that of an earlier gradient, if `keep_gradients_` kept one.

    Autograd keeps a gradient as `parameter.grad` without a copy only if nobody else holds it, so the memory is
    forgotten here until it is kept again.
    """
    kept: Tensor | None = vars(parameter).pop("kept_gradient", None)
    return torch.empty_like(parameter.detach()) if kept is None else kept


def keep_gradients_(parameters: Iterable[Tensor]) -> None:
    """Clear the gradients of parameters, and keep the memory of dense ones for the next step.

    >>> table = nn.Parameter(torch.ones(3, 2))
    >>> look_up(table, torch.tensor([2]), distinct=True).sum().backward()
    >>> table.grad.tolist(), keep_gradients_([table]), table.grad
    ([[0.0, 0.0], [0.0, 0.0], [1.0, 1.0]], None, None)
    """
    for parameter in parameters:
        gradient, parameter.grad = parameter.grad, None
        if gradient is not None and gradient.layout == torch.strided and gradient.is_contiguous():
            vars(parameter)["kept_gradient"] = gradient


def look_up(table: Tensor, rows: Tensor, *, distinct: bool = False) -> Tensor:
    """Rows (m,) of a table, (m, d); `distinct` says that no row is asked for twice.

    A parameter with a true attribute `row_sparse` gets a row-sparse gradient.
    """
    parameter = table.is_leaf and table.requires_grad
    sparse = parameter and getattr(table, "row_sparse", False)
    if parameter and distinct and not sparse:
        return cast(Tensor, _Rows.apply(table, rows))  # type: ignore[no-untyped-call]
    return F.embedding(rows, table, sparse=sparse)


class _Rows(torch.autograd.Function):
    """Look-up of distinct rows whose backward pass allocates nothing of the table's size."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, rows: Tensor) -> Tensor:
        ctx.table, ctx.rows = table, rows
        return table.index_select(0, rows)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return memory_for_gradient(ctx.table).zero_().index_copy_(0, ctx.rows, gradient), None
