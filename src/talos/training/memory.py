"""The tables that every training step needs, allocated once.

A step makes tables of the size of the model: gradients and unit vectors. Allocators return blocks of that size to the
system when they are freed, so that the next step gets new pages, which the system must find and clear: about a fifth of
the processor time of an epoch on Beauty.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

__all__ = ["GradientBuffers"]


class GradientBuffers:
    """One buffer for the gradient of each parameter, handed out for a backward pass and taken back after the step.

    Autograd keeps a gradient as `parameter.grad` without a copy only if nobody else holds it, so a buffer that is
    handed out is forgotten here until `reclaim_` finds it in `parameter.grad`.

    >>> buffers, table = GradientBuffers(), torch.nn.Parameter(torch.ones(3, 2))
    >>> buffers.rows(table, torch.tensor([2])).sum().backward()
    >>> table.grad.tolist(), buffers.reclaim_([table])
    ([[0.0, 0.0], [0.0, 0.0], [1.0, 1.0]], None)
    >>> table.grad is None
    True
    """

    def __init__(self) -> None:
        self._free: dict[Tensor, Tensor] = {}
        self._unit: Tensor | None = None

    def unit_rows(self, table: Tensor) -> Tensor:
        """Memory for a normalised copy of the table, the same in every step."""
        if self._unit is None or self._unit.shape != table.shape:
            self._unit = torch.empty_like(table.detach())
        return self._unit

    def take(self, parameter: Tensor) -> Tensor:
        """A tensor like the parameter, with any values."""
        buffer = self._free.pop(parameter, None)
        return torch.empty_like(parameter.detach()) if buffer is None else buffer

    def reclaim_(self, parameters: Iterable[Tensor]) -> None:
        """Clear the gradients of parameters, and keep the memory of dense ones for the next step."""
        for parameter in parameters:
            gradient, parameter.grad = parameter.grad, None
            if gradient is not None and gradient.layout == torch.strided and gradient.is_contiguous():
                self._free[parameter] = gradient

    def rows(self, table: Tensor, rows: Tensor) -> Tensor:
        """Distinct rows (m,) of a parameter, (m, d); the gradient of the whole table is written to its buffer."""
        found: Tensor = _Rows.apply(table, rows, self)  # type: ignore[no-untyped-call]
        return found


class _Rows(torch.autograd.Function):
    """Look-up of distinct rows whose backward pass allocates nothing of the table's size."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, rows: Tensor, buffers: GradientBuffers) -> Tensor:
        ctx.table, ctx.rows, ctx.buffers = table, rows, buffers
        return table.index_select(0, rows)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.buffers.take(ctx.table).zero_().index_copy_(0, ctx.rows, gradient), None, None
