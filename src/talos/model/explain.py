"""Why an item is recommended: which items of a history speak for it.

At a user's vector û the loss of each item h of the history pulls û towards that item and away from the items that
compete with it: the pull is -∂L_h/∂û = a_h (v_h - m_h), where m_h is the mean competing item as the loss weights them.
The pulls of a history add up to the number of its items times the gradient that trains û, with the loss's own weights
of positives and negatives (`positive_power`, `negative_weight`).
An item h speaks for an item v by p_h = a_h (v_h - m_h)·v: it is more like v than the competing items are. What an item
adds is given as its share of all that speaks for v, p_h / Σ max(p, 0), so shares add up to 1 for every loss and scale
of scores.
"""

from __future__ import annotations

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from talos.baselines import ItemWeights
from talos.data.vocabulary import Ids
from talos.kernels.csr import CSR
from talos.losses import Loss
from talos.model.fold_in import gradients_of_positives, sample_of_items
from talos.model.model import Model
from talos.model.query import ListQuery, codes_of, histories_of, row_vectors

__all__ = ["contributions", "pull_of_history", "reasons", "shares_of"]


def contributions(
    model: Model, user: str | int | None, item: str | int, *, history: Ids | None, k: int | None
) -> pl.DataFrame:
    """What each item of a user's history, or of a history of ids, adds to an item; see `Recommender.explain`."""
    ids = model.train.item_ids
    (target,) = codes_of(ids, item, kind="item", where="item")
    if user is not None:
        own = codes_of(model.train.user_ids, user, kind="user", where="user")
        # no item speaks for the list of a user without training events: it is ranked by popularity
        past = model.seen.pairs_of(own[model.train.user_degrees[own] > 0])[1]
        query = ListQuery(users=own, k=1)
    else:
        assert history is not None
        known = histories_of(model, history)
        past = known.indices
        query = ListQuery(users=np.array([-1]), k=1, histories=known.where(known.indices != target))
    codes = past[past != target].astype(np.int64)
    parts = shares_of(model, query, codes, np.array([target]))[:, 0].double().numpy()
    order = np.argsort(-parts, kind="stable")
    order = order[parts[order] > 0][:k]
    return pl.DataFrame({"item_id": ids.decode(codes[order]), "contribution": parts[order]})


def shares_of(model: Model, query: ListQuery, past: NDArray[np.int64], targets: NDArray[np.int64]) -> Tensor:
    """The share (H, T) of each item of a history in what speaks for each target, for the one row of a question.

    In a model of weights between items these are the shares of the weights.
    """
    if isinstance(model.scored_by, ItemWeights):
        columns = [model.scored_by.column(int(target)) for target in targets]
        weights = torch.stack(columns, 1)[torch.from_numpy(past)].double().clamp(min=0)
        return weights / weights.sum(0).clamp(min=1e-12)
    vector, items = row_vectors(model, query)[0][0], model.vectors.items.detach()
    return reasons(
        vector, items, torch.from_numpy(past), torch.from_numpy(targets), model.loss(), k=model.config.k
    )


def reasons(user: Tensor, items: Tensor, history: Tensor, targets: Tensor, loss: Loss, *, k: int) -> Tensor:
    """The share of each item of a history in what speaks for each target: (H, T), 0 where it speaks against it.

    A target that is in the history itself does not count. A column is all zeros if nothing speaks for its target.

    Args:
        user: (d,), the user's vector, trained or folded in from this history.
        items: (I, d), as they are scored.
        history: (H,), positions of the history's items, distinct.
        targets: (T,), positions of the items to explain.
        loss: the loss of training.
        k: list length, for thresholds.

    >>> import torch.nn.functional as F
    >>> from talos.losses import Softmax
    >>> items = F.normalize(torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]]))
    >>> user = F.normalize(torch.tensor([1.0, 1.0]), dim=0)
    >>> reasons(user, items, torch.tensor([0, 2]), torch.tensor([1, 3]), Softmax(tau=0.5), k=2)
    tensor([[1., 0.],
            [0., 1.]])
    """
    parts = pull_of_history(user, items, history, loss, k=k) @ items[targets].T
    parts = parts.clamp(min=0.0).masked_fill(history.unsqueeze(1) == targets, 0.0)
    return parts / parts.sum(0).clamp(min=torch.finfo(parts.dtype).tiny)


def pull_of_history(user: Tensor, items: Tensor, history: Tensor, loss: Loss, *, k: int) -> Tensor:
    """How each item of a history pulls on the vector `user`: -∂L_h/∂user, (H, d); arguments as in `reasons`."""
    users, items = user.detach().unsqueeze(0), items.detach()
    past = CSR.by_row(torch.zeros_like(history), history, 1)
    sample, ones = sample_of_items(items, loss), torch.ones_like(items[history, 0])
    return -gradients_of_positives(users, items, items, past, loss, ones, k=k, sample=sample)
