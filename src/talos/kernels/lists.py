"""Losses of users' whole lists: the scores of a few users with all items at a time, what these cost, and two products.

For losses of which neither the user's negatives nor a positive's pairs can be summed on their own. The loss itself says
what lists cost (`ListLoss.of_lists`) and autograd how that changes with the scores. Scores and slopes of a chunk of
users are all that is held. Of two kinds the core computes both:

- "smooth-places", list by list;
- "weighted-softmax", by the sweeps of a softmax: s_j/τ + a_u·b_j is the product of (u/τ, a_u) and (v_j, b_j).
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from typing import Final, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from talos.kernels import library
from talos.kernels.core_passes import CorePasses
from talos.kernels.library import Lists
from talos.kernels.protocols import ListLoss, PositiveSweep
from talos.kernels.torch_passes import TorchPasses, largest

__all__ = ["core_smooth_places_", "list_sweep"]

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
    bfloat16: bool = False,
) -> PositiveSweep:
    """The values of all positives, and the gradients of Σ_i coefficient_i · value_i.

    `ids` (B,) are the users' ids, for a loss that needs them. With `k` the K-th best scores are found as well.
    `bfloat16` lets the sweeps of a softmax round the factors of their products.

    >>> from talos.losses import SmoothI
    >>> passes = TorchPasses(torch.tensor([[1.0], [0.5], [0.0]]), torch.tensor([0, 1]), torch.tensor([1]))
    >>> loss = SmoothI(k=2, tau=0.01, delta=0.1)
    >>> list_sweep(passes, torch.ones(1, 1), loss, torch.ones(1)).values   # the second of two places
    tensor([0.5000])
    """
    kind, params = loss.list_kernel or ("", ())
    by_core = (
        passes.table.dtype == torch.float32 and passes.table.device.type == "cpu" and library.available()
    )
    if by_core and kind == "weighted-softmax" and ids is not None:
        found = _weighted_softmax(passes, users, loss, coefficients, ids, k, params, bfloat16)
        if found is not None:
            return found
    return _by_chunks(
        passes, users, loss, coefficients, ids, k, params if by_core and kind == "smooth-places" else None
    )


def _by_chunks(
    passes: TorchPasses,
    users: Tensor,
    loss: ListLoss,
    coefficients: Tensor,
    ids: Tensor | None,
    k: int | None,
    places: tuple[float, ...] | None,
) -> PositiveSweep:
    """`list_sweep`, a few users at a time; `places` are the parameters of "smooth-places" in the core."""
    table, start = passes.table, passes.indptr
    learnt = _learnt(loss)
    values = torch.empty_like(coefficients)
    user_gradient, item_gradient = torch.zeros_like(users), torch.zeros_like(table)
    by_parameter = {name: torch.zeros_like(value) for name, value in learnt.items()}
    kth = None if k is None else users.new_empty(len(users))
    # without items there are no positives either, and nothing to do
    chunk = max(1, (_CHUNK if places is None else _CORE_CHUNK) // max(1, len(table)))
    for some in passes.chunks(slice(0, len(users) if len(table) else 0), chunk):
        scores = users[some] @ table.T
        if kth is not None and k is not None:
            kth[some] = largest(scores, k).amin(dim=-1)
        here = slice(int(start[some.start]), int(start[some.stop]))
        rows, columns = passes.owner[here] - some.start, passes.indices[here]
        if places is not None:
            ends = start[some.start : some.stop + 1] - here.start
            values[here] = core_smooth_places_(scores, ends, columns, coefficients[here], places)
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


def _learnt(loss: ListLoss) -> dict[str, Tensor]:
    return {name: value for name, value in loss.named_parameters() if value.requires_grad}


@dataclass(frozen=True)
class _Exp:
    """φ = e^s, as a `NegativePart`."""

    kind: str = "exp"
    reduction: Literal["log-sum"] = "log-sum"
    params: tuple[float, ...] = (1.0,)
    scale: float = 1.0


_EXP: Final = _Exp()


def _weighted_softmax(
    passes: TorchPasses,
    users: Tensor,
    loss: ListLoss,
    coefficients: Tensor,
    ids: Tensor,
    k: int | None,
    params: tuple[float, ...],
    bfloat16: bool,
) -> PositiveSweep | None:
    """`list_sweep` by the core, of softplus(x_i).

        x_i = log(ω n) + log Σ_j e^{s_j/τ + a·b_j} - log Σ_j e^{a·b_j} - s_i/τ

    The first sum is over products of vectors that are longer by those of the tables. None where the items are too many
    for one pass, or tables do not fit the batch, which the loss itself then says.
    """
    inverse_tau, weight = params
    of_users, of_items = (table.detach().to(users.dtype) for _, table in loss.named_parameters())
    if len(of_items) != len(passes.table) or (len(ids) > 0 and int(ids.max()) >= len(of_users)):
        return None
    hardness = of_users[ids]
    dim, owner, positives = users.shape[1], passes.owner, (passes.indptr, passes.indices)
    joined = torch.cat([inverse_tau * users, hardness], dim=1)
    both = CorePasses(torch.cat([passes.table, of_items], dim=1), *positives, bfloat16=bfloat16)
    alone = CorePasses(of_items, *positives, bfloat16=bfloat16)
    if len(both.parts(len(users))) > 1:
        return None
    left = both.num_negatives()
    ahead = (
        both.sweep(joined, None, _EXP, None).normalizer - alone.sweep(hardness, None, _EXP, None).normalizer
    )
    ahead = ahead + (weight * left.clamp(min=1)).log()
    x = ahead[owner] - inverse_tau * passes.positive_scores(users)
    x = x.masked_fill(left[owner] == 0, -math.inf)  # without negatives the value is 0
    pulls = coefficients * torch.sigmoid(x)
    by_user = users.new_zeros(len(users)).index_add_(0, owner, pulls)
    found = both.sweep(joined, None, _EXP, by_user)
    by_parameter = {}
    if learnt := _learnt(loss):
        norm = alone.sweep(hardness, None, _EXP, by_user)
        gradients = (
            torch.zeros_like(of_users).index_add_(0, ids, found.user_gradient[:, dim:] - norm.user_gradient),
            found.item_gradient[:, dim:] - norm.item_gradient,
        )
        by_table = zip(loss.named_parameters(), gradients, strict=True)
        by_parameter = {name: one.to(table.dtype) for (name, table), one in by_table if name in learnt}
    user_gradient = inverse_tau * found.user_gradient[:, :dim]
    item_gradient = found.item_gradient[:, :dim].contiguous()
    slopes = (-inverse_tau * pulls).unsqueeze(-1)
    user_gradient.index_add_(0, owner, slopes * passes.table[passes.indices])
    item_gradient.index_add_(0, passes.indices, slopes * users[owner])
    kth = None if k is None else passes.kth(users, k)
    return PositiveSweep(F.softplus(x, threshold=40.0), user_gradient, item_gradient, by_parameter, kth)


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

    Slopes are those of Σ_i coefficient_i · value_i; `params` are K, 1/τ and δ. An item is at most once among a
    user's positives.

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
