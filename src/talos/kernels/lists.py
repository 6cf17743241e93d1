"""Losses of users' whole lists: the scores of a few users with all items at a time, what these cost, and two products.

For losses of which neither the user's negatives nor a positive's pairs can be summed on their own. The loss itself says
what lists cost (`ListLoss.of_lists`) and autograd how that changes with the scores; for the kinds of `_KINDS` the core
computes both in one go. Scores and slopes of a chunk of users are all that is held.
"""

from __future__ import annotations

import ctypes
from typing import Final

import torch
from torch import Tensor

from talos.kernels import library
from talos.kernels.library import Lists
from talos.kernels.protocols import ListLoss, PositiveSweep
from talos.kernels.torch_passes import TorchPasses, largest

__all__ = ["core_smooth_places_", "list_sweep"]

_KINDS: Final = ("smooth-places",)
# Scores held at a time. Autograd holds several numbers for each, the core one and a few rows.
_CHUNK, _CORE_CHUNK = 1 << 20, 1 << 21


def list_sweep(
    passes: TorchPasses,
    users: Tensor,
    loss: ListLoss,
    coefficients: Tensor,
    *,
    ids: Tensor | None = None,
    k: int | None = None,
) -> PositiveSweep:
    """The values of all positives, and the gradients of Σ_i coefficient_i · value_i.

    `ids` (B,) are the users' ids, for a loss that needs them. With `k` the K-th best scores are found as well.

    >>> from talos.losses import SmoothI
    >>> passes = TorchPasses(torch.tensor([[1.0], [0.5], [0.0]]), torch.tensor([0, 1]), torch.tensor([1]))
    >>> loss = SmoothI(k=2, tau=0.01, delta=0.1)
    >>> list_sweep(passes, torch.ones(1, 1), loss, torch.ones(1)).values   # the second of two places
    tensor([0.5000])
    """
    table, start = passes.table, passes.indptr
    compiled = _core_params(loss, table)
    learnt = {name: value for name, value in loss.named_parameters() if value.requires_grad}
    values = torch.empty_like(coefficients)
    user_gradient, item_gradient = torch.zeros_like(users), torch.zeros_like(table)
    by_parameter = {name: torch.zeros_like(value) for name, value in learnt.items()}
    kth = None if k is None else users.new_empty(len(users))
    # without items there are no positives either, and nothing to do
    chunk = max(1, (_CHUNK if compiled is None else _CORE_CHUNK) // max(1, len(table)))
    for some in passes.chunks(slice(0, len(users) if len(table) else 0), chunk):
        scores = users[some] @ table.T
        if kth is not None and k is not None:
            kth[some] = largest(scores, k).amin(dim=-1)
        here = slice(int(start[some.start]), int(start[some.stop]))
        rows, columns = passes.owner[here] - some.start, passes.indices[here]
        if compiled is not None:
            ends = start[some.start : some.stop + 1] - here.start
            values[here] = core_smooth_places_(scores, ends, columns, coefficients[here], compiled)
            slopes = scores
        else:
            with torch.enable_grad():
                scores.requires_grad_()
                of_chunk = loss.of_lists(scores, rows, columns, None if ids is None else ids[some])
                inputs = [scores, *learnt.values()]
                total = (coefficients[here] * of_chunk).sum()
                slopes, *found = torch.autograd.grad(total, inputs, materialize_grads=True)
            values[here] = of_chunk.detach()
            for name, gradient in zip(learnt, found, strict=True):
                by_parameter[name] += gradient
        torch.mm(slopes, table, out=user_gradient[some])
        item_gradient.addmm_(slopes.T, users[some])
    return PositiveSweep(values, user_gradient, item_gradient, by_parameter, kth)


def _core_params(loss: ListLoss, table: Tensor) -> tuple[float, ...] | None:
    """The parameters of the core's version of a loss; None where there is none, or it does not apply to the table."""
    kind, params = loss.list_kernel or ("", ())
    fits = table.dtype == torch.float32 and table.device.type == "cpu"
    return params if fits and kind in _KINDS and library.available() else None


def core_smooth_places_(
    scores: Tensor,
    indptr: Tensor,
    indices: Tensor,
    coefficients: Tensor,
    params: tuple[float, ...],
    *,
    level: str | None = None,
    threads: int | None = None,
) -> Tensor:
    """SmoothI@K of lists (B, I): the values (P,) of the positives, given as CSR; the scores become the slopes.

    Slopes are those of Σ_i coefficient_i · value_i; `params` are K, 1/τ and δ.

    >>> lists, first = torch.tensor([[1.0, 0.5, 0.0]]), (torch.tensor([0, 1]), torch.tensor([0]))
    >>> core_smooth_places_(lists, *first, torch.ones(1), (1.0, 100.0, 0.1)) if library.available() else torch.zeros(1)
    tensor([0.])
    """
    core, at = library.level_of(level)
    num_users, num_items = scores.shape
    lists = library.output("scores", scores, num_users, num_items)
    start, items_of = library.offsets_and_indices(indptr, indices, num_users, num_items)
    factors = library.floats("coefficients", coefficients, len(items_of))
    values = lists.new_zeros(len(items_of))
    if num_items == 0:
        return values
    k, inverse_tau, delta = params
    task = Lists(
        users=num_users,
        items=num_items,
        k=int(k),
        threads=threads or torch.get_num_threads(),
        team=library.team(),
        start=start.data_ptr(),
        items_of=items_of.data_ptr(),
        coefficients=factors.data_ptr(),
        inverse_tau=inverse_tau,
        delta=delta,
        scores=lists.data_ptr(),
        values=values.data_ptr(),
    )
    workspace = library.scratch.take(core.talos_core_smooth_places_workspace_bytes(at, ctypes.byref(task)))
    task.workspace = workspace.data_ptr()
    core.talos_core_smooth_places(at, ctypes.byref(task))
    return values
