"""New interactions, users and items for a trained model, without starting over.

Only final vectors are needed, so it works for every backbone: they become the tables of a small training run
over the users with something new, in which only these users and the items of their new interactions move.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from talos.backbones import MF
from talos.config import RunConfig
from talos.errors import DataError
from talos.interactions import Interactions, Vocabulary
from talos.kernels import kth_scores
from talos.losses import Loss
from talos.training.fold_in import FREE_LENGTH, fold_in
from talos.training.trainer import Trainer

__all__ = ["Updated", "update"]


@dataclass(frozen=True)
class Updated:
    """Vectors, thresholds and train interactions over vocabularies that have everything old and new."""

    user_vectors: Tensor
    item_vectors: Tensor
    thresholds: Tensor | None
    train: Interactions


def update(
    user_vectors: Tensor,
    item_vectors: Tensor,
    train: Interactions,
    new: Interactions,
    loss: Loss,
    config: RunConfig,
    *,
    epochs: int = 5,
    lr: float = 0.03,
) -> Updated:
    """Take `new` into a model that was trained on `train`.

    New items start at the mean of the users who have them, new users are folded in, and then the users with
    new interactions and the items in those are trained for a few epochs. Thresholds are exact afterwards.

    Args:
        user_vectors: (users of train, d), as scored.
        item_vectors: (items of train, d), as scored.
        train: what the model knows.
        new: what has come since, with ids of its own.
        loss: what the model was trained with.
        config: its config.
        epochs: passes over the users with something new.
        lr: rate of these passes.
    """
    if (
        train.user_ids.ids.dtype != new.user_ids.ids.dtype
        or train.item_ids.ids.dtype != new.item_ids.ids.dtype
    ):
        raise DataError("ids of another type than the model's", where=new.provenance.source)
    users, old_users, new_users = _joined(train.user_ids, new.user_ids)
    items, old_items, new_items = _joined(train.item_ids, new.item_ids)
    merged = _merged(train, new, users, items, (old_users, old_items), (new_users, new_items))
    touched_users = np.unique(new_users[new.rows])
    touched_items = np.unique(new_items[new.indices])

    cosine = loss.needs.scores == "cosine"
    item_table = _placed(item_vectors, old_items, len(items))
    user_table = _placed(user_vectors, old_users, len(users))
    _start_items(
        item_table, np.setdiff1d(np.arange(len(items)), old_items), merged, user_table, old_users, cosine
    )
    strangers = np.setdiff1d(np.arange(len(users)), old_users)
    if len(strangers):
        _, theirs = merged.pairs_of(strangers)
        ends = torch.from_numpy(np.concatenate([[0], np.cumsum(merged.user_degrees[strangers])]))
        found = fold_in(item_table, ends, torch.from_numpy(theirs.astype(np.int64)), loss, k=config.k)
        user_table[torch.from_numpy(strangers)] = found

    backbone = MF(len(users), len(items), dim=item_table.shape[1], generator=None)
    scale = FREE_LENGTH if cosine else 1.0
    with torch.no_grad():
        backbone.users.copy_(user_table * scale)
        backbone.items.copy_(item_table * scale)
    moving = torch.zeros(len(items), 1)
    moving[torch.from_numpy(touched_items)] = 1.0
    backbone.items.register_hook(lambda gradient: gradient * moving)  # type: ignore[no-untyped-call]
    changes = {
        "backbone.name": "mf",
        "training.epochs": epochs,
        "optimizer.lr": lr,
        "optimizer.weight_decay": 0.0,
        "optimizer.rows": "all",  # rows without a gradient have no momentum here and stay where they are
    }
    small = config.with_values(changes)
    trainer = Trainer(small, merged, backbone=backbone, only_users=torch.from_numpy(touched_users))
    trainer.fit()
    final_users, final_items = trainer.vectors()
    beta = kth_scores(final_users, final_items, min(config.k, len(items))) if loss.needs.threshold else None
    return Updated(final_users, final_items, beta, merged)


def _joined(old: Vocabulary, new: Vocabulary) -> tuple[Vocabulary, NDArray[np.int64], NDArray[np.int64]]:
    """A vocabulary of both, and where the ids of each are in it."""
    both = Vocabulary.of(pl.concat([old.ids.rename("ids"), new.ids.rename("ids")]))
    return both, both.encode(old.ids), both.encode(new.ids)


def _merged(
    train: Interactions,
    new: Interactions,
    users: Vocabulary,
    items: Vocabulary,
    old_places: tuple[NDArray[np.int64], NDArray[np.int64]],
    new_places: tuple[NDArray[np.int64], NDArray[np.int64]],
) -> Interactions:
    titles = None
    if train.item_titles is not None:
        named = dict(zip(train.item_ids.ids.to_list(), train.item_titles.to_list(), strict=True))
        if new.item_titles is not None:
            named = dict(zip(new.item_ids.ids.to_list(), new.item_titles.to_list(), strict=True)) | named
        titles = pl.Series("title", [named.get(item) for item in items.ids.to_list()], dtype=pl.String)
    return Interactions.from_codes(
        np.concatenate([old_places[0][train.rows], new_places[0][new.rows]]),
        np.concatenate([old_places[1][train.indices], new_places[1][new.indices]]),
        user_ids=users,
        item_ids=items,
        item_titles=titles,
        provenance=train.provenance,
    )


def _placed(vectors: Tensor, places: NDArray[np.int64], count: int) -> Tensor:
    table = vectors.new_zeros(count, vectors.shape[1])
    table[torch.from_numpy(places)] = vectors
    return table


def _start_items(
    item_table: Tensor,
    fresh: NDArray[np.int64],
    merged: Interactions,
    user_table: Tensor,
    old_users: NDArray[np.int64],
    cosine: bool,
) -> None:
    """New items start at the mean of the known users who have them; at the mean item where nobody known has."""
    if len(fresh) == 0:
        return
    known = np.zeros(merged.num_users, bool)
    known[old_users] = True
    keep = known[merged.rows] & np.isin(merged.indices, fresh)
    rows = torch.tensor(merged.rows[keep], dtype=torch.int64)
    places = torch.tensor(merged.indices[keep], dtype=torch.int64)
    start = torch.zeros_like(item_table).index_add_(0, places, user_table[rows])
    start = start / torch.bincount(places, minlength=len(item_table)).clamp(min=1).unsqueeze(-1)
    new = torch.from_numpy(fresh)
    mean = item_table.sum(0) / max(1, len(item_table) - len(fresh))
    chosen = torch.where(start[new].abs().sum(-1, keepdim=True) > 0, start[new], mean)
    item_table[new] = F.normalize(chosen) if cosine else chosen
