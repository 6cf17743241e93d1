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

import torch
import torch.nn.functional as F
from torch import Tensor

from talos.checks import require
from talos.kernels import kth_scores
from talos.kernels.batch import batch_loss, positive_terms
from talos.kernels.csr import CSR, meetings
from talos.kernels.vectors import ItemVectors
from talos.losses import Loss, UserSeparableLoss

__all__ = [
    "COSINE_LENGTH",
    "fold_in",
    "gradients_of_positives",
    "sample_of_items",
    "slopes_over_all",
    "slopes_over_sample",
]

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
# Scores (users × items, or positives × sampled items) that are computed at a time.
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
        mean: (d,), the mean item, if it is known already: computing it takes as long as scoring all items once.
        weights: (P,), above 0, how much each item of `indices` counts within its history; all the same if None.

    >>> from talos.losses import Softmax
    >>> items = F.normalize(torch.randn(50, 8, generator=torch.Generator().manual_seed(0)))
    >>> user = fold_in(items, torch.tensor([0, 2]), torch.tensor([3, 7]), Softmax(tau=0.2), k=5)
    >>> user.shape, 7 in (user @ items.T).topk(5).indices[0].tolist()
    (torch.Size([1, 8]), True)
    """
    require(
        len(indptr) > 0 and int(indptr[-1]) == len(indices),
        f"{len(indices)} items",
        where="indices",
        expected="as many as indptr says",
    )
    require(
        weights is None or weights.shape == indices.shape,
        f"{0 if weights is None else len(weights)} weights",
        where="weights",
        expected="one for each of the indices",
    )
    histories = CSR.of(indptr, indices)
    rows, counts = histories.rows, histories.counts
    # what all items have in common does not rank them: left in, most of the steps would go into removing it
    mean = item_vectors.mean(0) if mean is None else mean
    own = item_vectors.new_ones(len(indices)) if weights is None else weights.to(item_vectors)
    past = (item_vectors[indices] - mean) * own.unsqueeze(-1)
    start = torch.zeros_like(mean).expand(len(counts), -1).index_add(0, rows, past)
    start = F.normalize(torch.where(counts.unsqueeze(-1) > 0, start, mean))
    # the weights of one history add up to 1
    own = own / torch.zeros_like(start[:, 0]).index_add(0, rows, own)[rows]
    pooled, sample = len(item_vectors) > _POOLED_ABOVE, sample_of_items(item_vectors, loss)
    at_once = 1 if pooled else max(1, len(start))
    if sample is not None and not pooled:  # computed for every positive with every sampled item
        at_once = max(1, _SCORES // (len(sample) * max([1, *counts.tolist()])))
    found, chunk = torch.empty_like(start), max(1, _SCORES // len(item_vectors))
    ranked, times = item_vectors, None
    for low in range(0, len(start), at_once):
        block = slice(low, min(low + at_once, len(start)))
        part = histories.of_rows(block)
        if pooled:
            if low % chunk == 0:
                scores = start[low : low + chunk] @ item_vectors.T
            ranked, times = _pool(scores[low % chunk], part.items, item_vectors, mean)
        weighed = own[histories.entries(block)]
        gradient = _gradient(item_vectors, ranked, part, loss, weighed, k=k, sample=sample, times=times)
        found[block] = _descend(start[block], gradient, cosine=loss.needs.scores == "cosine", steps=steps)
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
        lengths = vectors.norm(dim=-1, keepdim=True).clamp(min=1e-12) if cosine else 1.0
        users = vectors / lengths
        slope = gradient(users)
        if cosine:
            # only the part of the gradient that is perpendicular to a vector turns it
            slope = (slope - (slope * users).sum(-1, keepdim=True) * users) / lengths
        first.lerp_(slope, 0.1)
        second.lerp_(slope.square(), 0.01)
        rate = _RATE * (1 - (step - 1) / steps) / (1 - 0.9**step)
        vectors = vectors.addcdiv(first, (second / (1 - 0.99**step)).sqrt().add_(1e-12), value=-rate)
    return F.normalize(vectors) if cosine else vectors


def sample_of_items(items: Tensor, loss: Loss) -> Tensor | None:
    """Positions of the same random items as negatives; None for all items, if the loss is separable by user."""
    if isinstance(loss, UserSeparableLoss) and loss.needs.user_separable:
        return None
    order = torch.randperm(len(items), generator=torch.Generator().manual_seed(0))
    return order[:_SAMPLE].to(items.device)


def _gradient(
    items: Tensor,
    ranked: Tensor,
    histories: CSR,
    loss: Loss,
    weights: Tensor,
    *,
    k: int,
    sample: Tensor | None,
    times: Tensor | None,
) -> Callable[[Tensor], Tensor]:
    """∂/∂users (B, d) of each user's weighted mean loss, as a function of the users.

    For the arguments see `gradients_of_positives`.
    """
    scores = (len(histories.start) - 1) * len(items)
    if isinstance(loss, UserSeparableLoss) and sample is None and times is None and scores > _SMALL:
        # thresholds are found in the same pass over the items
        swept = ItemVectors(items), histories, histories, None, loss, weights
        needed = min(k, len(items)) if loss.needs.threshold else None
        return lambda users: batch_loss(users, *swept, k=needed).user_gradient

    def of_users(users: Tensor) -> Tensor:
        # for a few users plain products take a fraction of the time that setting up tiles and threads takes
        each = gradients_of_positives(
            users, items, ranked, histories, loss, weights, k=k, sample=sample, times=times
        )
        return torch.zeros_like(users).index_add_(0, histories.rows, each)

    return of_users


def gradients_of_positives(
    users: Tensor,
    items: Tensor,
    ranked: Tensor,
    histories: CSR,
    loss: Loss,
    weights: Tensor,
    *,
    k: int,
    sample: Tensor | None,
    times: Tensor | None = None,
) -> Tensor:
    """∂/∂users of the weighted loss of each item of the users' histories, (P, d).

    Args:
        users: (B, d).
        items: (I, d).
        ranked: the items that thresholds are taken over: all of them, or the pool of a single history, in which the
            history comes first.
        histories: the items of each user.
        loss: the loss.
        weights: (P,), of the items of the histories.
        k: list length, for thresholds.
        sample: positions of the items that serve as negatives; None for all.
        times: how many items each of `ranked` stands for, if they are a pool.
    """
    rows, mine, needed = histories.rows, items[histories.items], min(k, len(ranked))
    if sample is not None:
        beta = kth_scores(users, ranked, needed) if loss.needs.threshold else None
        scores = (users[rows] * mine).sum(-1), users @ items[sample].T
        pull, push = slopes_over_sample(*scores, histories, loss, weights, beta, sample)
        return pull.unsqueeze(-1) * mine + push @ items[sample]
    assert isinstance(loss, UserSeparableLoss)
    places = histories.items if times is None else torch.arange(len(rows), device=rows.device)
    among = users @ ranked.T
    gone = torch.zeros_like(among, dtype=torch.bool)
    gone[rows, places] = True
    place = needed if loss.needs.threshold else None
    pull, factors, slopes = slopes_over_all(among, rows, places, gone, loss, weights, place, times)
    # the negatives' part is the same for each positive of a user, but for the factor
    return pull.unsqueeze(-1) * mine + (weights * factors).unsqueeze(-1) * (slopes @ ranked)[rows]


def slopes_over_all(
    scores: Tensor,
    rows: Tensor,
    places: Tensor,
    gone: Tensor,
    loss: UserSeparableLoss,
    weights: Tensor,
    k: int | None,
    times: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Derivatives of the loss of positives, of which each has a row and a place in `scores` (B, I), over all items.

    Args:
        scores: of all items; not used afterwards.
        rows: (P,).
        places: (P,).
        gone: (B, I), where the positives are.
        loss: the loss.
        weights: (P,), of the positives.
        k: threshold place; None for a loss without thresholds.
        times: (I,), how many items each column stands for; one each if None.

    Returns:
        the derivative (P,) in the positive's own score, times its weight; the factor (P,) of the negatives' part, which
        the positives of a row share; and the derivative (B, I) of that part in the scores.
    """
    beta = None if k is None else scores.topk(k, sorted=False).values.amin(-1, keepdim=True)
    own, pos = None if beta is None else beta[rows, 0], scores[rows, places].requires_grad_()
    scores.requires_grad_()
    with torch.enable_grad():
        values, factors = positive_terms(loss, pos, own, rows, len(scores), weights)
        negative = loss.phi.aggregate(scores, beta, gone, times)
        total = (weights * (values + factors * negative.detach()[rows])).sum() + negative.sum()
        pull, slopes = torch.autograd.grad(total, (pos, scores), allow_unused=True, materialize_grads=True)
    return pull, factors.detach(), slopes


def slopes_over_sample(
    pos: Tensor,
    scores: Tensor,
    histories: CSR,
    loss: Loss,
    weights: Tensor,
    beta: Tensor | None,
    sample: Tensor,
) -> tuple[Tensor, Tensor]:
    """Derivatives of the weighted loss of positives in their scores (P,) and in those of sampled items (P, N).

    `scores` (B, N) are those of the sampled items, `beta` (B,) thresholds. A loss that takes one negative per positive
    gets every positive with every negative, one pair in a row, and counts by the sum of these.
    """
    rows = histories.rows
    mask = torch.zeros(scores.shape, dtype=torch.bool, device=scores.device)
    mask[meetings(rows, histories.items, sample)] = True
    pos, neg, mask = pos.detach().requires_grad_(), scores.detach()[rows].requires_grad_(), mask[rows]
    with torch.enable_grad():
        one, many, pairs = pos, neg, 1
        if loss.needs.negatives == "one":
            pairs = len(sample)
            one, many, mask = pos.repeat_interleave(pairs), neg.reshape(-1, 1), mask.reshape(-1, 1)
            rows = rows.repeat_interleave(pairs)
        # the loss that was made for recommending has one user
        ids = {"users": torch.zeros_like(rows), "items": sample.expand(len(rows), -1)}
        extra = ids if loss.needs.ids else {}
        values = loss(one, many, threshold=None if beta is None else beta[rows], mask=mask, **extra)
        total = (values.reshape(len(pos), pairs) * weights.unsqueeze(-1)).sum()
        of_pos, of_neg = torch.autograd.grad(total, (pos, neg))
    return of_pos, of_neg
