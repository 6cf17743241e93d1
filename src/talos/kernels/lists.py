"""Losses of users' whole lists: the scores of a few rows with all items at a time, what these cost, and two products.

For losses of which neither a row's negatives nor a positive's pairs can be summed on their own. The loss itself says
what lists cost (`ListLoss.of_lists`) and autograd how that changes with the scores. Scores and slopes of a chunk of
rows are all that is held. The core computes two kinds:

- "smooth-places", list by list;
- "weighted-softmax", by the sweeps of a softmax: s_j/τ + a_u·b_j is the product of (u/τ, a_u) and (v_j, b_j).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from talos.kernels import core
from talos.kernels.csr import CSR
from talos.kernels.ops import sweep
from talos.kernels.topk import largest
from talos.kernels.vectors import pair_scores
from talos.losses import ListLoss, Phi

__all__ = ["list_sweep"]

# Scores held at a time. Autograd holds several numbers for each, the core one and a few rows.
_CHUNK, _CORE_CHUNK = 1 << 20, 1 << 21


def list_sweep(
    users: Tensor,
    items: Tensor,
    positives: CSR,
    loss: ListLoss,
    weights: Tensor,
    *,
    user_gradient: Tensor,
    item_gradient: Tensor,
    learnt: Mapping[str, Tensor],
    ids: Tensor | None = None,
    k: int | None = None,
    bfloat16: bool = False,
) -> tuple[Tensor, dict[str, Tensor], Tensor | None]:
    """Values and gradients of all positives; the gradients are those of Σ_i weight_i · value_i.

    Args:
        users: (R, d).
        items: (I, d).
        positives: of each row.
        loss: what whole lists cost.
        weights: (P,).
        user_gradient: (R, d), memory that the users' gradient is written to.
        item_gradient: (I, d), likewise.
        learnt: the parameters of the loss that get gradients, by name.
        ids: (R,), the ids of the rows' users, for a loss that needs them.
        k: find the K-th best scores as well.
        bfloat16: let the sweeps of a softmax round the factors of their products.

    Returns:
        The values (P,), the gradients in the learnt parameters, and the K-th best scores (R,).

    >>> from talos.losses import SmoothI
    >>> positives, memory = CSR.of(torch.tensor([0, 1]), torch.tensor([1])), torch.empty(1, 1)
    >>> items = torch.tensor([[1.0], [0.5], [0.0]])
    >>> list_sweep(
    ...     torch.ones(1, 1), items, positives, SmoothI(k=2, tau=0.01, delta=0.1), torch.ones(1),
    ...     user_gradient=memory, item_gradient=torch.empty(3, 1), learnt={})[0]   # the second of two places
    tensor([0.5000])
    """
    kind, params = loss.list_kernel or ("", ())
    by_core = core.supports("", (), users, items)
    if by_core and kind == "weighted-softmax" and ids is not None:
        found = _weighted_softmax(
            users,
            items,
            positives,
            loss,
            weights,
            learnt,
            ids,
            params,
            bfloat16,
            user_gradient,
            item_gradient,
        )
        if found is not None:
            return *found, None if k is None else sweep(users, items, None, None, None, phi=None, k=k).kth
    values = torch.empty_like(weights)
    by_parameter = {name: torch.zeros_like(one) for name, one in learnt.items()}
    kths = []
    item_gradient.zero_()
    of_places = by_core and kind == "smooth-places"
    chunk = max(1, (_CORE_CHUNK if of_places else _CHUNK) // max(1, len(items)))
    for first in range(0, len(users), chunk):
        some = slice(first, min(first + chunk, len(users)))
        scores = users[some] @ items.T
        if k is not None:
            kths.append(largest(scores, k).amin(dim=-1))
        here, own = positives.entries(some), positives.of_rows(some)
        if len(own.items) == 0:  # there may be no items at all
            user_gradient[some] = 0.0
            continue
        if of_places:
            values[here] = core.smooth_places_(scores, own.start, own.items, weights[here], params)
            slopes = scores
        else:
            with torch.enable_grad():
                scores.requires_grad_()
                of_chunk = loss.of_lists(scores, own.rows, own.items, None if ids is None else ids[some])
                inputs = [scores, *learnt.values()]
                total = (weights[here] * of_chunk).sum()
                slopes, *of_learnt = torch.autograd.grad(total, inputs, materialize_grads=True)
            values[here] = of_chunk.detach()
            for name, gradient in zip(learnt, of_learnt, strict=True):
                by_parameter[name] += gradient
        torch.mm(slopes, items, out=user_gradient[some])
        item_gradient.addmm_(slopes.T, users[some])
    return values, by_parameter, None if k is None else torch.cat([users.new_empty(0), *kths])


def _weighted_softmax(
    users: Tensor,
    items: Tensor,
    positives: CSR,
    loss: ListLoss,
    weights: Tensor,
    learnt: Mapping[str, Tensor],
    ids: Tensor,
    params: tuple[float, ...],
    bfloat16: bool,
    user_gradient: Tensor,
    item_gradient: Tensor,
) -> tuple[Tensor, dict[str, Tensor]] | None:
    """`list_sweep` by the core, of softplus(x_i).

        x_i = log(ω n) + log Σ_j e^{s_j/τ + a·b_j} - log Σ_j e^{a·b_j} - s_i/τ

    The first sum is over products of vectors that are longer by those of the tables. None if the tables do not fit the
    batch, which the loss itself then says.
    """
    inverse_tau, weight = params
    of_users, of_items = (table.detach().to(users.dtype) for _, table in loss.named_parameters())
    if len(of_items) != len(items) or (len(ids) > 0 and int(ids.max()) >= len(of_users)):
        return None
    dim, rows, hardness = users.shape[1], positives.rows, of_users[ids]
    both = torch.cat([inverse_tau * users, hardness], dim=1), torch.cat([items, of_items], dim=1)
    alone = hardness, of_items
    phi = Phi.of("exp", (1.0,), 1.0)
    left = len(items) - positives.counts
    total, norm = (
        sweep(*tables, positives, None, None, phi=phi, bfloat16=bfloat16).normalizer
        for tables in (both, alone)
    )
    ahead = total - norm + (weight * left.clamp(min=1)).log()
    x = ahead[rows] - inverse_tau * pair_scores(users, items, positives)
    x = x.masked_fill(left[rows] == 0, -math.inf)  # without negatives the value is 0
    pulls = weights * torch.sigmoid(x)
    by_row = users.new_zeros(len(users)).index_add_(0, rows, pulls)

    def gradients(tables: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        found = torch.empty_like(tables[0]), torch.empty_like(tables[1])
        given = *tables, positives, None, by_row
        sweep(*given, phi=phi, bfloat16=bfloat16, user_gradient=found[0], item_gradient=found[1])
        return found

    of_rows, of_columns = gradients(both)
    by_parameter = {}
    if learnt:
        of_norm = gradients(alone)
        of_tables = (
            torch.zeros_like(of_users).index_add_(0, ids, of_rows[:, dim:] - of_norm[0]),
            of_columns[:, dim:] - of_norm[1],
        )
        named = zip(loss.named_parameters(), of_tables, strict=True)
        by_parameter = {name: one.to(table.dtype) for (name, table), one in named if name in learnt}
    slopes = (-inverse_tau * pulls).unsqueeze(-1)
    user_gradient.copy_(inverse_tau * of_rows[:, :dim]).index_add_(0, rows, slopes * items[positives.items])
    item_gradient.copy_(of_columns[:, :dim]).index_add_(0, positives.items, slopes * users[rows])
    return F.softplus(x, threshold=40.0), by_parameter
