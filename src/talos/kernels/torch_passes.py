"""A sweep over the items in plain torch: for every device and precision, and the oracle of the compiled core.

The scores of a few rows with all items are computed, the loss's φ reduces them, and autograd gives the slopes of the
scores. Two products turn these into gradients of the vectors. Nothing of size rows × items is held.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from talos.kernels.core import Swept
from talos.kernels.csr import CSR
from talos.kernels.topk import largest
from talos.kernels.vectors import Samples
from talos.losses import PairPhi, Phi

__all__ = ["sweep"]

# Scores held at a time: 8 MB in float32. Autograd holds a few numbers for each.
_SCORES = 2**21
# Rows at a time, at least and at most: every product reads all items.
_FEWEST, _MOST = 16, 128


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
    samples: Samples | None = None,
    item_weights: Tensor | None = None,
    user_gradient: Tensor | None = None,
    item_gradient: Tensor | None = None,
    users_per_chunk: int | None = None,
) -> Swept:
    """One pass over all items, or over samples; the arguments are those of `talos.kernels.ops.sweep`.

    >>> from talos.losses import Softmax
    >>> sweep(torch.eye(2), torch.zeros(3, 2), None, None, None, phi=Softmax(tau=1.0).phi).sums   # log 3
    tensor([1.0986, 1.0986])
    """
    empty = users.new_empty(0)
    found = [Swept(*[empty] * 7)]  # of no rows
    learns = isinstance(phi, Phi) and phi.learns > 0 and weights is not None
    of_parameters = users.new_zeros(len(phi.params) if phi is not None and learns else 0)
    if item_gradient is not None:
        item_gradient.zero_()
    for here, sample in _chunks(len(users), len(items), samples, users_per_chunk):
        candidates = items if sample is None else items[sample]
        chunk = _Chunk(users[here], candidates, None if excluded is None else excluded.of_rows(here))
        best = largest(chunk.scores, k) if k else empty
        kth = best.amin(dim=-1) if k else empty
        beta = kth if kth_is_threshold else None if thresholds is None else thresholds[here]
        sums = normalizer = slopes = empty
        if isinstance(phi, Phi):
            factors = None if weights is None else weights[here]
            sums, normalizer, gradient = chunk.phi_sums(phi, beta, factors, item_weights, of_parameters)
        elif phi is not None and positives is not None:
            start, scores = positives
            own = slice(int(start[here.start]), int(start[here.stop]))
            pos = chunk.excluded_scores if scores is None else scores[own]
            rows = CSR.of(start[here.start : here.stop + 1] - start[here.start], pos).rows
            factors = None if weights is None else weights[own]
            sums, slopes, gradient = chunk.pair_sums(phi, rows, pos, factors, inner_only)
        if phi is not None and user_gradient is not None and item_gradient is not None:
            torch.mm(gradient, candidates, out=user_gradient[here])
            if sample is None:
                item_gradient.addmm_(gradient.T, users[here])
            else:
                item_gradient.index_add_(0, sample, gradient.T @ users[here])
        best = best if keep_best else empty
        found.append(Swept(sums, normalizer, kth, best, chunk.excluded_scores, slopes, empty))
    joined = map(torch.cat, zip(*found, strict=True))
    return Swept(*joined)._replace(parameter_gradient=of_parameters)


def _chunks(
    rows: int, items: int, samples: Samples | None, size: int | None
) -> Iterator[tuple[slice, Tensor | None]]:
    """Rows whose scores are held together, and their sample; None for all items."""
    slices, drawn = ([slice(0, rows)], [None]) if samples is None else (samples.slices(), samples.items)
    for all_rows, sample in zip(slices, drawn, strict=True):
        first, last = all_rows.start, all_rows.stop
        count = last - first
        about = max(_FEWEST, min(_MOST, _SCORES // max(1, items if sample is None else len(sample))))
        step = size or max(1, -(-count // max(1, round(count / about))))
        for start in range(first, last, step):
            yield slice(start, min(start + step, last)), sample


class _Chunk:
    """The scores of a few rows with all their candidates, and which of these are excluded."""

    def __init__(self, users: Tensor, items: Tensor, excluded: CSR | None) -> None:
        self.scores = users @ items.T
        self.gone = torch.zeros_like(self.scores, dtype=torch.bool)
        self.excluded_scores = users.new_empty(0)
        if excluded is not None:
            self.excluded_scores = self.scores[excluded.rows, excluded.items]
            self.gone[excluded.rows, excluded.items] = True
        self.left = (~self.gone).sum(dim=-1)

    def phi_sums(
        self,
        phi: Phi,
        beta: Tensor | None,
        weights: Tensor | None,
        item_weights: Tensor | None,
        of_parameters: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """R, its normalizer, and the gradient of Σ weight·R in the scores; that in φ's parameters is added up."""
        scores = gradient = self.scores.detach().requires_grad_(weights is not None)
        learnt: list[Tensor] = []
        with torch.enable_grad():
            if len(of_parameters):
                learnt = [scores.new_tensor(float(one)).requires_grad_() for one in phi.params[: phi.learns]]
                phi = Phi.of(phi.kind, [*learnt, *phi.params[phi.learns :]], phi.scale)
            sums = phi.aggregate(
                scores, None if beta is None else beta.unsqueeze(-1), self.gone, item_weights
            )
            if weights is not None:
                total = (weights * sums).sum() + 0 * scores.sum()  # φ may be constant
                gradient, *found = torch.autograd.grad(total, [scores, *learnt], materialize_grads=True)
                if found:
                    of_parameters[: len(found)] += torch.stack(found)
        sums = sums.detach()
        if phi.reduction == "log-sum":
            normalizer = torch.where(self.left > 0, sums / phi.scale, -torch.inf)
        else:
            mass = self.left if item_weights is None else (~self.gone).to(sums) @ item_weights
            normalizer = sums / phi.scale * mass
        return sums, normalizer, gradient

    def pair_sums(
        self, phi: PairPhi, rows: Tensor, pos: Tensor, weights: Tensor | None, inner_only: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """R of every positive, the gradient of Σ weight·h(R) in the positives' scores, and that in all scores."""
        sums, slopes = torch.empty_like(pos), torch.empty_like(pos)
        gradient = torch.zeros_like(self.scores)
        few = max(1, _SCORES // max(1, self.scores.shape[1]))
        for first in range(0, len(pos), few):
            here = slice(first, first + few)
            row, gone = rows[here], self.gone[rows[here]]
            differences = (self.scores[row] - pos[here].unsqueeze(-1)).detach()
            with torch.enable_grad():
                differences.requires_grad_(weights is not None)
                inner = phi.aggregate(differences, gone)
                if weights is not None:
                    outer = inner if inner_only else phi.outer(inner)
                    (of_pairs,) = torch.autograd.grad(
                        (weights[here] * outer).sum(), differences, materialize_grads=True
                    )
                    slopes[here] = -of_pairs.sum(dim=-1)
                    gradient.index_add_(0, row, of_pairs)
            nothing = -torch.inf if phi.reduction == "log-sum" else 0.0
            sums[here] = torch.where(self.left[row] > 0, inner.detach(), nothing)
        return sums, slopes if weights is not None else slopes[:0], gradient
