"""Vectors for users whom the model does not know: its own loss, minimised over fixed item vectors.

This works for every loss, and for every backbone, because only the final item vectors are needed. No matrix of users ×
items is held.

In a small catalogue every step looks at all items, and many histories are solved in one batch. In a large one that
would take two passes over the items a step. There each history has a pool of its own: its items, those that its start
scores highest, and an even sample of all others, each of which stands for as many as were left out and which are moved
so that their mean is that of all that were left out. One pass over the items finds the pool; the steps cost the same
however many items there are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from talos.data.csr import CSR, meetings
from talos.errors import ArgumentError
from talos.kernels import kth_scores
from talos.kernels.batch import batch_loss, positive_terms
from talos.kernels.vectors import ItemVectors
from talos.losses import Loss, UserSeparableLoss

__all__ = ["COSINE_LENGTH", "fold_in", "loss_of_sample", "sample_of_items"]

# A loss that is not separable by user is computed against this many sampled items instead of all of them.
_SAMPLE = 1024
# Batches with at most this many scores (users × items) are computed with plain matrix products.
_SMALL = 1 << 18
# A catalogue with more items is replaced by a pool for each history: of the best so many items, and of so many others.
# Chosen by recall and lists on Gowalla and Beauty, see docs/recommend.md.
_POOLED_ABOVE = 16_384
_NEAREST = 1024
_OTHERS = 2048
_GOLDEN = (5**0.5 - 1) / 2
# Scores (users × items) that are computed at a time to find pools.
_SCORES = 1 << 23
# Steps of Adam, with a linearly falling learning rate; more of them change neither vectors nor lists by much
# (docs/recommend.md).
_STEPS = 12
_RATE = 0.3
# Length of the vectors while they are optimised, where scores are cosines: about the length of a vector of N(0, 1)
# entries, so that a step of Adam turns them by as much as it does in training.
COSINE_LENGTH = 8.0


def fold_in(
    item_vectors: Tensor,
    indptr: Tensor,
    indices: Tensor,
    loss: Loss,
    *,
    k: int,
    steps: int = _STEPS,
    seed: int = 0,
    mean: Tensor | None = None,
    weights: Tensor | None = None,
) -> Tensor:
    """User vectors (B, d) that minimise the loss of B histories; normalised if scores are cosines.

    Each starts at the sum of its history's item vectors minus the mean item, Σ_h w_h (v_h - v̄), and takes `steps`
    steps of Adam with a falling learning rate; thresholds follow in every step. An empty history starts at the mean
    item. The same call gives the same vectors; their last digits depend on the other histories of the call.

    Args:
        item_vectors: (I, d), as they are scored: normalised if scores are cosines.
        indptr: (B + 1,); `indices[indptr[u]:indptr[u + 1]]` is the history of the u-th user.
        indices: positions of items, ascending and distinct within a user.
        loss: the loss of training.
        k: list length, for thresholds.
        steps: more are more exact and slower.
        seed: seed of the sample of negatives, for losses that need one.
        mean: (d,), the mean item, if it is known already: computing it takes as long as scoring all items once.
        weights: (P,), above 0, how much each item of `indices` counts within its history; all the same if None.

    >>> from talos.losses import Softmax
    >>> items = F.normalize(torch.randn(50, 8, generator=torch.Generator().manual_seed(0)))
    >>> user = fold_in(items, torch.tensor([0, 2]), torch.tensor([3, 7]), Softmax(tau=0.2), k=5)
    >>> user.shape, 7 in (user @ items.T).topk(5).indices[0].tolist()
    (torch.Size([1, 8]), True)
    """
    if len(indptr) < 1 or int(indptr[-1]) != len(indices):
        raise ArgumentError(f"{len(indices)} items", where="indices", expected="as many as indptr says")
    if weights is not None and weights.shape != indices.shape:
        raise ArgumentError(
            f"{len(weights)} weights", where="weights", expected="one for each of the indices"
        )
    cosine = loss.needs.scores == "cosine"
    counts = indptr.diff()
    owner = torch.arange(len(counts), device=counts.device).repeat_interleave(counts)
    # what all items have in common does not rank them: left in, most of the steps would go into removing it
    mean = item_vectors.mean(0) if mean is None else mean
    past = item_vectors[indices] - mean
    past = past if weights is None else past * weights.unsqueeze(-1)
    start = torch.zeros_like(mean).expand(len(counts), -1).index_add(0, owner, past)
    start = F.normalize(torch.where(counts.unsqueeze(-1) > 0, start, mean))
    # a loss that is not separable by user is computed against a sample of the items
    whole = loss if isinstance(loss, UserSeparableLoss) and loss.needs.user_separable else None
    sample = sample_of_items(item_vectors, seed) if whole is None else indices[:0]

    def over_sample(
        users: Tensor, ranked: Tensor, mine: Tensor, owner: Tensor, positive_weights: Tensor | None
    ) -> Tensor:
        tables = item_vectors, ranked, mine, owner
        return _gradient_over_sample(users, *tables, loss, k, sample, positive_weights)

    gradient: Callable[[Tensor], Tensor]
    if len(item_vectors) <= _POOLED_ABOVE:
        if whole is None:
            tables = {"ranked": item_vectors, "mine": indices, "owner": owner}
            gradient = partial(over_sample, **tables, positive_weights=weights)
        else:
            histories = CSR.of(indptr, indices)
            how = _over_all if len(counts) * len(item_vectors) > _SMALL else _plain
            gradient = how(item_vectors, histories, whole, k, weights)
        return _descend(start, gradient, cosine=cosine, steps=steps)
    found = torch.empty_like(start)
    chunk = max(1, _SCORES // len(item_vectors))
    for low in range(0, len(start), chunk):
        scores = start[low : low + chunk] @ item_vectors.T
        for user, row in enumerate(scores, low):
            here = slice(int(indptr[user]), int(indptr[user + 1]))
            mine, own = indices[here], None if weights is None else weights[here]
            pool, times = _pool(row, mine, item_vectors, mean)
            if whole is None:
                tables = {"ranked": pool, "mine": mine, "owner": torch.zeros_like(mine)}
                gradient = partial(over_sample, **tables, positive_weights=own)
            else:
                first = torch.arange(len(mine), device=mine.device)
                history = CSR.by_row(torch.zeros_like(mine), first, 1)
                gradient = _plain(pool, history, whole, k, own, times)
            found[user] = _descend(start[user : user + 1], gradient, cosine=cosine, steps=steps)[0]
    return found


def _pool(scores: Tensor, history: Tensor, items: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
    """The vectors (P, d) that stand for all items in the steps of one history, and how many items each stands for.

    The history comes first, then the items with the best of the `scores` (I,), which are changed, then others that lie
    evenly over all positions: which ones depends on nothing, so that a history has the same pool whenever it is asked.
    """
    count, device = len(items), items.device
    scores[history] = -torch.inf
    best = scores.topk(min(_NEAREST, count - len(history)), sorted=False).indices
    left = torch.ones(count, dtype=torch.bool, device=device)
    left[history] = left[best] = False
    # multiples of the golden ratio lie evenly and, unlike equal steps, follow no order that the items may be in
    shares = torch.arange(_OTHERS, dtype=torch.float64, device=device) * _GOLDEN % 1.0
    chosen = torch.zeros_like(left)
    chosen[(shares * count).long()] = True
    others = (chosen & left).nonzero().flatten()
    pool = items[torch.cat([history, best, others])]
    weights = torch.ones(len(pool), dtype=scores.dtype, device=device)
    if len(others):
        inner, outside = len(history) + len(best), count - len(history) - len(best)
        weights[inner:] = outside / len(others)
        # the mean of those outside is known; without its error in the sample, lists differ half as much from the exact
        pool[inner:] += (count * mean - pool[:inner].sum(0)) / outside - pool[inner:].mean(0)
    return pool, weights


def _descend(start: Tensor, gradient: Callable[[Tensor], Tensor], *, cosine: bool, steps: int) -> Tensor:
    """Steps of Adam from unit vectors `start` (B, d); of vectors that are unit all along if scores are cosines."""
    vectors = start * (COSINE_LENGTH if cosine else 1.0)
    first, second = torch.zeros_like(vectors), torch.zeros_like(vectors)
    for step in range(1, steps + 1):
        users = F.normalize(vectors) if cosine else vectors
        slope = gradient(users)
        if cosine:
            # only the part of the gradient that is perpendicular to a vector turns it
            slope = slope - (slope * users).sum(-1, keepdim=True) * users
            slope = slope / vectors.norm(dim=-1, keepdim=True)
        first.lerp_(slope, 0.1)
        second.lerp_(slope.square(), 0.01)
        rate = _RATE * (1 - (step - 1) / steps) / (1 - 0.9**step)
        vectors = vectors.addcdiv(first, (second / (1 - 0.99**step)).sqrt().add_(1e-12), value=-rate)
    return F.normalize(vectors) if cosine else vectors


def sample_of_items(items: Tensor, seed: int) -> Tensor:
    """Positions of the items that serve as negatives for losses that are not separable by user."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(len(items), generator=generator)[:_SAMPLE].to(items.device)


def _over_all(
    items: Tensor, histories: CSR, loss: UserSeparableLoss, k: int, positive_weights: Tensor | None
) -> Callable[[Tensor], Tensor]:
    """∂/∂users (B, d) of each user's mean loss over all items, for losses that are separable by user."""
    table, weights = ItemVectors(items), _weights(histories, items.dtype, positive_weights)
    # thresholds are found in the same pass over the items
    needed = min(k, len(items)) if loss.needs.threshold else None
    given = table, histories, histories, None, loss, weights
    return lambda users: batch_loss(users, *given, k=needed).user_gradient


def _weights(histories: CSR, dtype: torch.dtype, weights: Tensor | None) -> Tensor:
    """The weights (P,) of histories' items; those of one history add up to 1."""
    rows = histories.rows
    own = torch.ones_like(rows, dtype=dtype) if weights is None else weights.to(dtype)
    mass = torch.zeros(len(histories.start) - 1, dtype=dtype, device=rows.device).index_add_(0, rows, own)
    return own / mass[rows]


def _plain(
    items: Tensor,
    histories: CSR,
    loss: UserSeparableLoss,
    k: int,
    positive_weights: Tensor | None,
    times: Tensor | None = None,
) -> Callable[[Tensor], Tensor]:
    """The same with two plain products; each item counts so many `times` (I,) as a negative.

    For a few users this takes a fraction of the time that setting up tiles and threads takes.
    """
    weights, rows = _weights(histories, items.dtype, positive_weights), histories.rows
    entries, count = (rows, histories.items), len(histories.start) - 1
    gone = torch.zeros(count, len(items), dtype=torch.bool, device=items.device)
    gone[entries] = True

    def gradient(users: Tensor) -> Tensor:
        scores, beta, own = users @ items.T, None, None
        if loss.needs.threshold:
            beta = scores.topk(min(k, len(items)), sorted=False).values.amin(-1, keepdim=True)
            own = beta[rows, 0]
        pos = scores[entries].requires_grad_()
        scores.requires_grad_()
        with torch.enable_grad():
            values, push = positive_terms(loss, pos, own, rows, count, weights)
            negative = loss.phi.aggregate(scores, beta, gone, times)
            factors = torch.zeros_like(negative).index_add(0, rows, weights * push)
            total = (weights * values).sum() + (factors * negative).sum()
            slopes, pull = torch.autograd.grad(
                total, (scores, pos), allow_unused=True, materialize_grads=True
            )
        slopes[entries] = pull
        return slopes @ items

    return gradient


def _gradient_over_sample(
    users: Tensor,
    items: Tensor,
    ranked: Tensor,
    indices: Tensor,
    owner: Tensor,
    loss: Loss,
    k: int,
    sample: Tensor,
    positive_weights: Tensor | None = None,
) -> Tensor:
    """∂/∂users (B, d) of each user's mean loss over sampled items, by autograd, for any loss.

    Thresholds are taken over the items `ranked`.
    """
    beta = kth_scores(users, ranked, min(k, len(ranked))) if loss.needs.threshold else None
    leaf = users.detach().requires_grad_()
    pos = (leaf[owner] * items[indices]).sum(-1)
    scores = leaf @ items[sample].T
    mask = torch.zeros(scores.shape, dtype=torch.bool, device=users.device)
    mask[meetings(owner, indices, sample)] = True
    own = torch.ones_like(pos) if positive_weights is None else positive_weights.to(pos.dtype)
    values, owner = loss_of_sample(pos, scores[owner], mask[owner], owner, beta, loss, sample)
    own = own.detach().repeat_interleave(len(values) // max(1, len(own)))
    weights = _weights(CSR.by_row(owner, owner, len(users)), users.dtype, own)
    (gradient,) = torch.autograd.grad((values * weights).sum(), leaf)
    return gradient


def loss_of_sample(
    pos: Tensor, neg: Tensor, mask: Tensor, owner: Tensor, beta: Tensor | None, loss: Loss, sample: Tensor
) -> tuple[Tensor, Tensor]:
    """The loss of positives (P,) against sampled negatives (P, N), and the user that each value belongs to.

    A loss that takes one negative per positive gets every positive with every negative, one pair in a row.
    """
    if loss.needs.negatives == "one":
        pos, neg, mask = pos.repeat_interleave(len(sample)), neg.reshape(-1, 1), mask.reshape(-1, 1)
        owner = owner.repeat_interleave(len(sample))
    extra = {}
    if loss.needs.ids:  # the one user of the loss that was made for recommending
        extra = {"users": torch.zeros_like(owner), "items": sample.expand(len(owner), -1)}
    values = loss(pos, neg, threshold=None if beta is None else beta[owner], mask=mask, **extra)
    return values, owner
