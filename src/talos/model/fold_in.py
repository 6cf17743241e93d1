"""Vectors for users the model never saw: the model's own loss, minimised over frozen item vectors.

Works for every backbone, because only the final item vectors are needed, and for every loss. A batch of
histories is solved together; no users × items matrix is held.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from talos.data.csr import meetings
from talos.errors import ArgumentError
from talos.kernels import kth_scores, user_batch_loss
from talos.kernels.protocols import LogSumPart, MeanPart
from talos.losses import Loss, UserSeparableLoss

__all__ = ["FREE_LENGTH", "fold_in", "pull_of_history"]

# Items that a loss which pairs each positive with its negatives is shown in place of the whole catalogue.
_SAMPLE = 1024
# Scores up to which a step is one plain product.
_SMALL = 1 << 18
# Steps at a falling rate; more change neither the vectors nor the lists by much (docs/recommend.md).
_STEPS = 12
_RATE = 0.3
# Length of vectors of which only the direction counts, while they move: about that of N(0, 1) entries, so that a
# step of Adam turns them as much as it does in training.
FREE_LENGTH = 8.0


def fold_in(
    item_vectors: Tensor,
    indptr: Tensor,
    indices: Tensor,
    loss: Loss,
    *,
    k: int,
    steps: int = _STEPS,
    seed: int = 0,
) -> Tensor:
    """User vectors (B, d) that minimise the loss of B histories, as scores are made from them.

    Starts at what the history's vectors have that items do not have on average, Σ_h (v_h - v̄), and takes
    `steps` steps of Adam at a falling rate; thresholds are exact throughout. A user without history gets the
    mean direction of all items.

    Args:
        item_vectors: (I, d), as they are scored: normalised where scores are cosines.
        indptr: (B + 1,), `indices[indptr[u]:indptr[u + 1]]` is the history of the u-th user.
        indices: rows of `item_vectors`, ascending and distinct within a user.
        loss: what the model was trained with.
        k: list length, for thresholds.
        steps: more are more exact and slower.
        seed: of the sample of negatives, for losses that need one.

    >>> from talos.losses import Softmax
    >>> items = F.normalize(torch.randn(50, 8, generator=torch.Generator().manual_seed(0)))
    >>> user = fold_in(items, torch.tensor([0, 2]), torch.tensor([3, 7]), Softmax(tau=0.2), k=5)
    >>> user.shape, 7 in (user @ items.T).topk(5).indices[0].tolist()
    (torch.Size([1, 8]), True)
    """
    if len(indptr) < 1 or int(indptr[-1]) != len(indices):
        raise ArgumentError(f"{len(indices)} items", where="indices", expected="as many as indptr says")
    cosine = loss.needs.scores == "cosine"
    counts = indptr.diff()
    owner = torch.arange(len(counts), device=counts.device).repeat_interleave(counts)
    # what all items share ranks none of them: left in, it would take most of the steps to get rid of
    mean = item_vectors.mean(0)
    start = torch.zeros_like(mean).expand(len(counts), -1).index_add(0, owner, item_vectors[indices] - mean)
    start = torch.where(counts.unsqueeze(-1) > 0, start, mean)
    sought = F.normalize(start) * (FREE_LENGTH if cosine else 1.0)
    first, second = torch.zeros_like(sought), torch.zeros_like(sought)
    generator = torch.Generator().manual_seed(seed)
    sample = torch.randperm(len(item_vectors), generator=generator)[:_SAMPLE].to(item_vectors.device)
    for step in range(1, steps + 1):
        users = F.normalize(sought) if cosine else sought
        if isinstance(loss, UserSeparableLoss) and loss.needs.user_separable:
            slope = _separable(users, item_vectors, indptr, indices, loss, k)
        else:
            slope = _paired(users, item_vectors, indices, owner, loss, k, sample)
        if cosine:
            # only the part across the direction moves it
            slope = (slope - (slope * users).sum(-1, keepdim=True) * users) / sought.norm(
                dim=-1, keepdim=True
            )
        first.lerp_(slope, 0.1)
        second.lerp_(slope.square(), 0.01)
        rate = _RATE * (1 - (step - 1) / steps) / (1 - 0.9**step)
        sought = sought.addcdiv(first, (second / (1 - 0.99**step)).sqrt().add_(1e-12), value=-rate)
    return F.normalize(sought) if cosine else sought


def pull_of_history(
    user: Tensor, items: Tensor, history: Tensor, loss: Loss, *, k: int, seed: int = 0
) -> Tensor:
    """How each item of a history pulls on a folded-in user's vector: (H, d), in units of that vector.

    At the vector û that minimises the loss, -∂L/∂û = Σ_h a_h v_h - Σ_j w_j v_j points along û; the rows are
    a_h v_h, scaled alike so that together they reach as far along û as û itself.

    >>> from talos.losses import Softmax
    >>> items = F.normalize(torch.randn(20, 4, generator=torch.Generator().manual_seed(0)))
    >>> history = torch.tensor([2, 5])
    >>> user = fold_in(items, torch.tensor([0, 2]), history, Softmax(tau=0.5), k=3)[0]
    >>> round(float(pull_of_history(user, items, history, Softmax(tau=0.5), k=3).sum(0) @ user), 4)
    1.0
    """
    if len(history) == 0:
        return items[:0]
    generator = torch.Generator().manual_seed(seed)
    sample = torch.randperm(len(items), generator=generator)[:_SAMPLE].to(items.device)
    owner = torch.zeros_like(history)
    beta = _thresholds(user.unsqueeze(0), items, loss, k)
    scores = (items[history] @ user).detach().requires_grad_()
    neg = (items[sample] @ user).detach().expand(len(history), -1)
    mask = torch.isin(sample, history).expand(len(history), -1)
    pos = scores
    if loss.needs.negatives == "one":
        pos, neg, mask = pos.repeat_interleave(len(sample)), neg.reshape(-1, 1), mask.reshape(-1, 1)
        owner = owner.repeat_interleave(len(sample))
    extra = {"users": owner, "items": sample.expand(len(owner), -1)} if loss.needs.ids else {}
    values = loss(pos, neg, threshold=None if beta is None else beta[owner], mask=mask, **extra)
    (slopes,) = torch.autograd.grad(values.sum(), scores)
    pulls = -slopes.unsqueeze(-1) * items[history]
    along = pulls.sum(0) @ user
    # a history that does not point the user's way at all explains nothing
    return pulls * (user.square().sum() / along if along > 0 else 0.0)


def _thresholds(users: Tensor, items: Tensor, loss: Loss, k: int) -> Tensor | None:
    return kth_scores(users, items, min(k, len(items))) if loss.needs.threshold else None


@torch.no_grad()
def _separable(
    users: Tensor, items: Tensor, indptr: Tensor, indices: Tensor, loss: UserSeparableLoss, k: int
) -> Tensor:
    """Gradient of each user's mean loss, over all items."""
    share = 1 / indptr.diff().clamp(min=1)
    k = min(k, len(items))
    if len(users) * len(items) > _SMALL:
        # thresholds come from the same pass over the items
        needed = k if loss.needs.threshold else None
        batch = user_batch_loss(users, items, indptr, indices, None, loss, k=needed, reduction="sum")
        return batch.user_gradient * share.unsqueeze(-1)
    # a few users: plain products take a fraction of the time that looking after tiles and threads takes
    owner = torch.arange(len(users), device=users.device).repeat_interleave(indptr.diff())
    scores = users @ items.T
    beta = scores.topk(k, sorted=False).values.amin(-1) if loss.needs.threshold else None
    pos, pos_beta = scores[owner, indices], None if beta is None else beta[owner]
    _, c = loss.positive_part(pos, pos_beta)
    coefficients = users.new_zeros(len(users)).index_add_(0, owner, c)
    slopes = _negative_slopes(scores, beta, owner, indices, loss).mul_(coefficients.unsqueeze(-1))
    slopes[owner, indices] = loss.da(pos, pos_beta)
    return (slopes @ items).mul_(share.unsqueeze(-1))


def _negative_slopes(
    scores: Tensor, beta: Tensor | None, owner: Tensor, indices: Tensor, loss: UserSeparableLoss
) -> Tensor:
    """∂R_u/∂s of all items (B, I); what stands at the positives is of no meaning."""
    part, column = loss.negative_part, None if beta is None else beta.unsqueeze(-1)
    if part.reduction == "constant":
        return torch.zeros_like(scores)
    if part.reduction == "mean":
        others = scores.shape[1] - torch.bincount(owner, minlength=len(scores))
        return cast(MeanPart, part).dphi(scores, column) * (part.scale / others.clamp(min=1)).unsqueeze(-1)
    log_phi, slope = cast(LogSumPart, part).log_phi_and_slope(scores, column)
    log_phi[owner, indices] = -torch.inf
    # nobody is left to push where a history has every item
    return log_phi.softmax(-1).nan_to_num_(0.0).mul_(slope).mul_(part.scale)


def _paired(
    users: Tensor, items: Tensor, indices: Tensor, owner: Tensor, loss: Loss, k: int, sample: Tensor
) -> Tensor:
    """The same for any loss, by autograd, against a sample of items that all users share."""
    beta = _thresholds(users, items, loss, k)
    leaf = users.detach().requires_grad_()
    pos = (leaf[owner] * items[indices]).sum(-1)
    scores = leaf @ items[sample].T
    mask = torch.zeros(scores.shape, dtype=torch.bool, device=users.device)
    mask[meetings(owner, indices, sample)] = True
    neg, hidden = scores[owner], mask[owner]
    if loss.needs.negatives == "one":
        # every positive with every negative, one pair a row
        pos, neg, hidden = pos.repeat_interleave(len(sample)), neg.reshape(-1, 1), hidden.reshape(-1, 1)
        owner = owner.repeat_interleave(len(sample))
    extra = {}
    if loss.needs.ids:
        extra = {"users": torch.zeros_like(owner), "items": sample.expand(len(owner), -1)}
    values = loss(pos, neg, threshold=None if beta is None else beta[owner], mask=hidden, **extra)
    weight = 1 / torch.bincount(owner, minlength=len(users)).clamp(min=1)
    (gradient,) = torch.autograd.grad((values * weight[owner]).sum(), leaf)
    return gradient
