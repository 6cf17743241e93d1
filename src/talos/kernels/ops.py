"""`talos::sweep`: one pass over all items for a batch of rows, as an operator of torch.

The compiled core runs it on the CPU for the kinds of φ that it has, torch everywhere else. A kernel for another device
is registered with `torch.library.impl("talos::sweep", "CUDA")`.

A pass gives, for every row u with its negatives j (all items but the excluded ones),

    R_u = scale · log Σ_j φ(s_uj, β_u)    or    scale · mean_j φ(s_uj, β_u)

and, where memory for them is given, the gradients of Σ_u weight_u · R_u in both tables. Of a pairwise φ, every positive
i has a sum of its own, R_i over g(s_uj - s_ui), and the gradients are those of Σ_i weight_i · h(R_i).
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from talos.kernels import core, torch_passes
from talos.kernels.core import Swept
from talos.kernels.csr import CSR
from talos.kernels.vectors import Samples
from talos.losses import PairPhi, Phi

__all__ = ["sweep"]

_Results = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def _in_torch(
    users: Tensor,
    items: Tensor,
    excluded_start: Tensor | None,
    excluded: Tensor | None,
    thresholds: Tensor | None,
    weights: Tensor | None,
    positive_start: Tensor | None,
    positive_scores: Tensor | None,
    samples: Tensor | None,
    sample_bounds: Tensor | None,
    item_weights: Tensor | None,
    user_gradient: Tensor | None,
    item_gradient: Tensor | None,
    kind: str,
    params: Sequence[float],
    scale: float,
    k: int,
    kth_is_threshold: bool,
    keep_best: bool,
    inner_only: bool,
    bfloat16: bool,
    users_per_chunk: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The operator as torch computes it; `sweep` explains the arguments."""
    make = partial(Phi.of, scale=scale) if positive_start is None else PairPhi.of
    # a `TorchDispatchMode`, such as a profiler's, calls operators below autograd
    with torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.AutogradFunctionality, False):
        return torch_passes.sweep(
            users,
            items,
            None if excluded_start is None or excluded is None else CSR.of(excluded_start, excluded),
            thresholds,
            weights,
            phi=make(kind, params) if kind else None,
            positives=None if positive_start is None else (positive_start, positive_scores),
            k=k,
            kth_is_threshold=kth_is_threshold,
            keep_best=keep_best,
            inner_only=inner_only,
            samples=None if samples is None or sample_bounds is None else Samples(samples, sample_bounds),
            item_weights=item_weights,
            user_gradient=user_gradient,
            item_gradient=item_gradient,
            users_per_chunk=users_per_chunk or None,
        )


_ARGUMENTS = tuple(inspect.signature(_in_torch).parameters)
_SCHEMA = torch.library.infer_schema(_in_torch, mutates_args=("user_gradient", "item_gradient"))
# not by `torch.library.custom_op`, in whose kernels autograd is off: φ gets its derivatives from autograd
torch.library.define("talos::sweep", _SCHEMA)
torch.library.impl("talos::sweep", "CompositeExplicitAutograd", _in_torch)


def _on_cpu(*arguments: Any) -> _Results:
    names = dict(zip(_ARGUMENTS, arguments, strict=True))
    users, items, item_weights = names["users"], names["items"], names.pop("item_weights")
    supported = core.supports(names["kind"], names["params"], users, items, names["thresholds"])
    if item_weights is not None or not supported:
        return _in_torch(*arguments)
    gone_start, gone = names.pop("excluded_start"), names.pop("excluded")
    start, scores = names.pop("positive_start"), names.pop("positive_scores")
    samples, bounds = names.pop("samples"), names.pop("sample_bounds")
    return core.sweep(
        excluded=None if gone_start is None else (gone_start, gone),
        positives=None if start is None else (start, scores),
        samples=None if samples is None else (samples, bounds),
        users_per_block=names.pop("users_per_chunk") or None,
        **names,
    )


torch.library.impl("talos::sweep", "CPU", _on_cpu)


def _shapes(*arguments: Any) -> _Results:
    of = dict(zip(_ARGUMENTS, arguments, strict=True))
    users, pairs, gradients = of["users"], of["positive_start"] is not None, of["weights"] is not None
    rows, gone = len(users), 0 if of["excluded"] is None else len(of["excluded"])
    sums = normalizer = rows if of["kind"] else 0
    if pairs:
        sums, normalizer = gone if of["positive_scores"] is None else len(of["positive_scores"]), 0
    learns = of["kind"] and not pairs and gradients and Phi.of(of["kind"], of["params"]).learns
    sizes = (
        sums,
        normalizer,
        rows if of["k"] else 0,
        (rows, of["k"]) if of["keep_best"] else 0,
        gone,
        sums if pairs and gradients else 0,
        len(of["params"]) if learns else 0,
    )
    return Swept(*(users.new_empty(size) for size in sizes))


torch.library.register_fake("talos::sweep", _shapes)


@torch.no_grad()
def sweep(
    users: Tensor,
    items: Tensor,
    excluded: CSR | None,
    thresholds: Tensor | None,
    weights: Tensor | None,
    *,
    phi: Phi | PairPhi | None,
    positives: tuple[Tensor, Tensor | None] | None = None,
    k: int = 0,
    kth_is_threshold: bool = False,
    keep_best: bool = False,
    inner_only: bool = False,
    bfloat16: bool = False,
    samples: Samples | None = None,
    item_weights: Tensor | None = None,
    user_gradient: Tensor | None = None,
    item_gradient: Tensor | None = None,
    users_per_chunk: int | None = None,
) -> Swept:
    """One pass over all items for the rows of a batch.

    Args:
        users: (R, d), the vectors of the rows.
        items: (I, d).
        excluded: the items that are no negatives of each row, ascending; with `samples`, positions in its sample.
        thresholds: β (R,), or None for 0.
        weights: (R,), or (P,) for a pairwise φ, the factors in the sum whose gradients are computed.
        phi: what is summed; None for the K best scores alone.
        positives: for a pairwise φ, offsets (R + 1,) and scores (P,) of the positives; the scores are None if the
            excluded items are the positives.
        k: find the K-th best score of every row, if above 0.
        kth_is_threshold: use it as β.
        keep_best: return the K best scores.
        inner_only: for a pairwise φ, the gradients of Σ weight · R in place of h(R).
        bfloat16: let the core round the factors of its products to bfloat16.
        samples: the candidates of each row, in place of all items.
        item_weights: (I,) or (n,), how many items each candidate stands for.
        user_gradient: (R, d), memory that the users' gradient is written to; None for no gradients.
        item_gradient: (I, d), likewise.
        users_per_chunk: rows at a time; chosen by cache size if None.

    >>> from talos.losses import Softmax
    >>> sweep(torch.eye(2), torch.zeros(3, 2), None, None, None, phi=Softmax(tau=1.0).phi).sums   # log 3
    tensor([1.0986, 1.0986])
    """
    start, gone, _ = (None, None, None) if excluded is None else excluded
    positive_start, positive_scores = (None, None) if positives is None else positives
    drawn, bounds = (None, None) if samples is None else samples
    kind, params = ("", ()) if phi is None else (phi.kind, phi.params)
    found = torch.ops.talos.sweep(
        users, items, start, gone, thresholds, weights, positive_start, positive_scores, drawn, bounds, item_weights,
        user_gradient, item_gradient, kind, list(map(float, params)), phi.scale if isinstance(phi, Phi) else 1.0,
        k, kth_is_threshold, keep_best, inner_only, bfloat16, users_per_chunk or 0,
    )  # fmt: skip
    return Swept(*found)
