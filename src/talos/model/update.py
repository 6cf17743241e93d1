"""New interactions, users and items for a trained model, without starting over.

Only final vectors are needed, so it works for every backbone: they become the tables of two short training runs
over the users with something new, in which only these users and the items of their new interactions move.
Little is moved on purpose: what is trained for longer forgets what the old interactions have taught, and pushes new
items away from everybody who had no chance to meet them yet (docs/recommend.md has figures).
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
from talos.data.interactions import Interactions
from talos.data.vocabulary import Vocabulary
from talos.errors import DataError
from talos.kernels import kth_scores
from talos.losses import Loss
from talos.model.fold_in import FREE_LENGTH, fold_in
from talos.training.trainer import Trainer

__all__ = ["Updated", "update"]

# Times that new items and new users are placed by each other in turn.
_ROUNDS = 2
# Rate of the epochs in which items move, as a share of that in which users alone do: an item has many more
# interactions than the few new ones.
_ITEM_SHARE = 0.1


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
    epochs: int = 1,
    lr: float | None = None,
) -> Updated:
    """Take `new` into a model that was trained on `train`.

    New items start at the mean of the users who have them, new users are folded in. Then the users with new
    interactions are trained over fixed items, and after that together with the items of those interactions at a
    tenth of the rate. Thresholds are exact afterwards.

    Args:
        user_vectors: (users of train, d), as scored.
        item_vectors: (items of train, d), as scored.
        train: what the model knows.
        new: what has come since, with ids of its own.
        loss: what the model was trained with.
        config: its config.
        epochs: passes over the users with something new, in each of the two runs.
        lr: rate; that of the config if None.
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
    user_table = _placed(user_vectors, old_users, len(users))
    item_table = _placed(item_vectors, old_items, len(items))
    strangers = np.setdiff1d(np.arange(len(users)), old_users)
    fresh = np.setdiff1d(np.arange(len(items)), old_items)
    placed = old_users
    for _ in range(_ROUNDS if len(fresh) else 1):
        _start_items(item_table, fresh, merged, user_table, placed, cosine)
        _start_users(user_table, strangers, merged, item_table, loss, config.k)
        placed = np.arange(len(users))

    rate = (0.1 if cosine else 0.001) if config.optimizer.lr == "auto" else config.optimizer.lr
    rate = rate if lr is None else lr
    tables = user_table, item_table
    for moving, factor in ((touched_items[:0], 1.0), (touched_items, _ITEM_SHARE)):
        changes = {"training.epochs": epochs, "optimizer.lr": rate * factor}
        tables = _trained(*tables, merged, touched_users, moving, config.with_values(changes), cosine)
    final_users, final_items = tables
    beta = kth_scores(final_users, final_items, min(config.k, len(items))) if loss.needs.threshold else None
    return Updated(final_users, final_items, beta, merged)


def _trained(
    user_table: Tensor,
    item_table: Tensor,
    merged: Interactions,
    moving_users: NDArray[np.int64],
    moving_items: NDArray[np.int64],
    config: RunConfig,
    cosine: bool,
) -> tuple[Tensor, Tensor]:
    """Vectors after some epochs over some users, in which nobody else and only some items move."""
    backbone = MF(len(user_table), len(item_table), dim=item_table.shape[1], generator=None)
    scale = FREE_LENGTH if cosine else 1.0
    with torch.no_grad():
        backbone.users.copy_(user_table * scale)
        backbone.items.copy_(item_table * scale)
    moving = torch.zeros(len(item_table), 1)
    moving[torch.from_numpy(moving_items)] = 1.0
    backbone.items.register_hook(lambda gradient: gradient * moving)  # type: ignore[no-untyped-call]
    changes = {
        "backbone.name": "mf",
        "optimizer.weight_decay": 0.0,
        "optimizer.rows": "all",  # rows without a gradient have no momentum here and stay where they are
    }
    trainer = Trainer(
        config.with_values(changes), merged, backbone=backbone, only_users=torch.from_numpy(moving_users)
    )
    trainer.fit()
    return trainer.vectors()


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


def _start_users(
    user_table: Tensor,
    strangers: NDArray[np.int64],
    merged: Interactions,
    item_table: Tensor,
    loss: Loss,
    k: int,
) -> None:
    """New users are folded in."""
    if len(strangers) == 0:
        return
    _, theirs = merged.pairs_of(strangers)
    ends = torch.from_numpy(np.concatenate([[0], np.cumsum(merged.user_degrees[strangers])]))
    items = torch.from_numpy(theirs.astype(np.int64))
    user_table[torch.from_numpy(strangers)] = fold_in(item_table, ends, items, loss, k=k)


def _start_items(
    item_table: Tensor,
    fresh: NDArray[np.int64],
    merged: Interactions,
    user_table: Tensor,
    placed: NDArray[np.int64],
    cosine: bool,
) -> None:
    """New items start at the mean of those who have them and have a place; at the mean item where nobody has."""
    if len(fresh) == 0:
        return
    known = np.zeros(merged.num_users, bool)
    known[placed] = True
    keep = known[merged.rows] & np.isin(merged.indices, fresh)
    rows = torch.tensor(merged.rows[keep], dtype=torch.int64)
    places = torch.tensor(merged.indices[keep], dtype=torch.int64)
    start = torch.zeros_like(item_table).index_add_(0, places, user_table[rows])
    start = start / torch.bincount(places, minlength=len(item_table)).clamp(min=1).unsqueeze(-1)
    new = torch.from_numpy(fresh)
    others = torch.ones(len(item_table), dtype=torch.bool)
    others[new] = False
    mean = item_table[others].mean(0)
    chosen = torch.where(start[new].abs().sum(-1, keepdim=True) > 0, start[new], mean)
    item_table[new] = F.normalize(chosen) if cosine else chosen
