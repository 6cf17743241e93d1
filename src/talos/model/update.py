"""Updating a trained model with new interactions, users and items, without training from scratch.

Only final vectors are needed, so this works for every backbone: the vectors become the tables of two short training
runs over the users with new interactions, in which only these users and the items of their new interactions move.
Both runs are short on purpose: longer ones forget what the old interactions have taught, and push new items away from
all users who had no chance to interact with them yet (docs/recommend.md has figures).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from talos.backbones import MF
from talos.config import EventsConfig, RunConfig
from talos.data.event_weights import event_columns, event_weights, in_seconds
from talos.data.interactions import Interactions
from talos.data.vocabulary import Vocabulary
from talos.errors import DataError
from talos.kernels import kth_scores
from talos.losses import Loss
from talos.model.attributes import align_items
from talos.model.fold_in import COSINE_LENGTH, fold_in
from talos.model.model import Model, Vectors
from talos.training.trainer import Trainer

__all__ = ["num_items_after", "update"]

# How often new items and new users are placed, each from the other's current vectors.
_ROUNDS = 2
# Learning rate of the run in which items move, relative to the run in which only users move: an item has many more
# interactions than the few new ones.
_ITEM_RATE = 0.1


def num_items_after(model: Model, new: Interactions) -> int:
    """How many items the model will know after learning from `new`."""
    old, more = model.seen.item_ids.ids, new.item_ids.ids
    if old.dtype != more.dtype:  # `update` refuses it
        return len(old)
    return pl.concat([old.rename("ids"), more.rename("ids")]).n_unique()


def update(
    model: Model,
    new: Interactions,
    loss: Loss,
    config: RunConfig,
    *,
    epochs: int = 1,
    lr: float | None = None,
) -> Model:
    """The model after learning from `new`, over vocabularies that have all old and new ids.

    New items start at the mean vector of the users who have them, new users are folded in. Then the users with new
    interactions are trained over fixed items, and after that together with the items of these interactions at a
    tenth of the learning rate. Thresholds are exact afterwards; validation interactions become training interactions,
    and those of the test part and others that are only known stay so unless they are among the new ones.

    Args:
        model: the model to update; it stays as it is.
        new: interactions with ids of their own, of the model's type.
        loss: the loss of training.
        config: the config of training.
        epochs: passes over the users with new interactions, in each of the two runs.
        lr: learning rate; that of the config if None.
    """
    train = model.seen
    for old_ids, new_ids in ((train.user_ids, new.user_ids), (train.item_ids, new.item_ids)):
        if old_ids.ids.dtype != new_ids.ids.dtype:
            raise DataError("ids of another type than the model's", where=new.provenance.source)
    users, old_users, new_users = _joined(train.user_ids, new.user_ids)
    items, old_items, new_items = _joined(train.item_ids, new.item_ids)
    merged = Interactions.from_codes(
        np.concatenate([old_users[train.rows], new_users[new.rows]]),
        np.concatenate([old_items[train.indices], new_items[new.indices]]),
        **_joined_columns(train, new, config.events),
        user_ids=users,
        item_ids=items,
        item_titles=_joined_titles(train, new, items),
        provenance=train.provenance,
    )
    touched_users = np.unique(new_users[new.rows])
    touched_items = np.unique(new_items[new.indices])

    cosine = loss.needs.scores == "cosine"
    user_table = _spread(model.vectors.users, old_users, len(users))
    item_table = _spread(model.vectors.items, old_items, len(items))
    # without training events, users and items have no vector of their own yet
    placed = old_users[model.train.user_degrees > 0]
    unknown_users = np.setdiff1d(np.flatnonzero(merged.user_degrees), placed)
    learnt = old_items[model.train.item_degrees > 0]
    unknown_items = np.setdiff1d(np.flatnonzero(merged.item_degrees), learnt)
    weights = event_weights(merged, config.events)
    for _ in range(_ROUNDS if len(unknown_items) else 1):
        _place_items(item_table, unknown_items, merged, user_table, placed, cosine)
        if len(unknown_users):
            starts = np.concatenate([[0], np.cumsum(merged.user_degrees[unknown_users])])
            theirs = np.isin(merged.rows, unknown_users)
            folded_in = fold_in(
                item_table,
                torch.from_numpy(starts),
                torch.from_numpy(merged.indices[theirs].astype(np.int64)),
                loss,
                k=config.k,
                weights=None if weights is None else torch.from_numpy(weights[theirs]),
            )
            user_table[torch.from_numpy(unknown_users)] = folded_in
        placed = np.flatnonzero(merged.user_degrees)

    rate = (0.1 if cosine else 0.001) if config.optimizer.lr == "auto" else config.optimizer.lr
    rate = rate if lr is None else lr
    tables = user_table, item_table
    for moving, factor in ((touched_items[:0], 1.0), (touched_items, _ITEM_RATE)):
        changes = {"training.epochs": epochs, "optimizer.lr": rate * factor}
        tables = _trained(*tables, merged, touched_users, moving, config.with_values(changes), cosine)

    def kept(part: Interactions | None) -> Interactions | None:
        """A part over the joined vocabularies, without what has been learnt now."""
        if part is None:
            return None
        return Interactions.from_codes(
            old_users[part.rows],
            old_items[part.indices],
            user_ids=users,
            item_ids=items,
            item_titles=merged.item_titles,
            provenance=part.provenance,
        ).difference(merged)

    trained_on = dict(model.metadata.get("trained_on", {"train": len(model.train)}))
    if model.valid is not None:
        trained_on["valid"] = len(train) - len(model.train)
    trained_on["updates"] = trained_on.get("updates", 0) + len(merged) - len(train)
    thresholds = kth_scores(*tables, min(config.k, len(items))) if loss.needs.threshold else None
    return replace(
        model,
        scored_by=Vectors(*tables, thresholds),
        train=merged,
        valid=None,
        test=kept(model.test),
        later=kept(model.later),
        metadata={
            **model.metadata,
            "trained_on": trained_on,
            "updates": model.metadata.get("updates", 0) + 1,
        },
        attributes=_joined_attributes(model, items),
    )


def _trained(
    user_table: Tensor,
    item_table: Tensor,
    merged: Interactions,
    moving_users: NDArray[np.int64],
    moving_items: NDArray[np.int64],
    config: RunConfig,
    cosine: bool,
) -> tuple[Tensor, Tensor]:
    """Vectors after training on the interactions of `moving_users`; only these users and `moving_items` move."""
    backbone = MF(len(user_table), len(item_table), dim=item_table.shape[1], generator=None)
    scale = COSINE_LENGTH if cosine else 1.0
    with torch.no_grad():
        backbone.user_table.copy_(user_table * scale)
        backbone.item_table.copy_(item_table * scale)
    moving = torch.zeros(len(item_table), 1)
    moving[torch.from_numpy(moving_items)] = 1.0
    backbone.item_table.register_hook(lambda gradient: gradient * moving)  # type: ignore[no-untyped-call]
    # with rows="all" a row without gradients has no momentum here, so it does not move
    # a few epochs are to move the vectors, not to be averaged with what was there
    changes = {
        "backbone.name": "mf",
        "optimizer.weight_decay": 0.0,
        "optimizer.rows": "all",
        "training.averaging": 1.0,
    }
    moved = torch.from_numpy(moving_users)
    trainer = Trainer(config.with_values(changes), merged, backbone=backbone, only_users=moved)
    trainer.fit()
    return trainer.vectors()


def _joined(old: Vocabulary, new: Vocabulary) -> tuple[Vocabulary, NDArray[np.int64], NDArray[np.int64]]:
    """A vocabulary with the ids of both, and the positions of each one's ids in it."""
    both = Vocabulary.of(pl.concat([old.ids.rename("ids"), new.ids.rename("ids")]))
    return both, both.encode(old.ids), both.encode(new.ids)


def _joined_columns(train: Interactions, new: Interactions, events: EventsConfig) -> dict[str, Any]:
    """What the weights of events are computed from, of both; an error if either does not have it."""
    joined = {}
    for column in event_columns(events):
        parts = []
        for part, where in ((train, "the run"), (new, new.provenance.source)):
            values = getattr(part, column)
            if column == "repeats" and values is None:
                values = np.ones(len(part), np.int32)
            if values is None:
                expected = f"{column}, by which this run weighs interactions (`events` in its config)"
                raise DataError(f"no {column}", where=where, expected=expected)
            parts.append(in_seconds(values) if column == "timestamps" else values)
        joined[column] = np.concatenate(parts)
    return joined


def _joined_titles(train: Interactions, new: Interactions, items: Vocabulary) -> pl.Series | None:
    """The titles of all items; an item that both know keeps its old title."""
    if train.item_titles is None:
        return None
    titles: dict[str | int, str | None] = {}
    for part in (new, train):
        if part.item_titles is not None:
            titles.update(zip(part.item_ids.ids.to_list(), part.item_titles.to_list(), strict=True))
    return pl.Series("title", [titles.get(item) for item in items.ids.to_list()], dtype=pl.String)


def _joined_attributes(model: Model, items: Vocabulary) -> pl.DataFrame | None:
    """The attributes of all items; new items have none."""
    if model.attributes is None:
        return None
    table = model.attributes.with_columns(item_id=model.train.item_ids.ids)
    return align_items(table, items)[1]


def _spread(vectors: Tensor, places: NDArray[np.int64], count: int) -> Tensor:
    """(count, d) with the vectors at `places` and zeros elsewhere."""
    table = vectors.new_zeros(count, vectors.shape[1])
    table[torch.from_numpy(places)] = vectors
    return table


def _place_items(
    item_table: Tensor,
    unknown: NDArray[np.int64],
    merged: Interactions,
    user_table: Tensor,
    placed: NDArray[np.int64],
    cosine: bool,
) -> None:
    """Put each unknown item at the mean of its users among the `placed` ones; without any, at the mean known item."""
    if len(unknown) == 0:
        return
    has_vector = np.zeros(merged.num_users, bool)
    has_vector[placed] = True
    keep = has_vector[merged.rows] & np.isin(merged.indices, unknown)
    rows = torch.tensor(merged.rows[keep], dtype=torch.int64)
    places = torch.tensor(merged.indices[keep], dtype=torch.int64)
    start = torch.zeros_like(item_table).index_add_(0, places, user_table[rows])
    start = start / torch.bincount(places, minlength=len(item_table)).clamp(min=1).unsqueeze(-1)
    new = torch.from_numpy(unknown)
    others = torch.ones(len(item_table), dtype=torch.bool)
    others[new] = False
    mean = item_table[others].mean(0)
    chosen = torch.where(start[new].abs().sum(-1, keepdim=True) > 0, start[new], mean)
    item_table[new] = F.normalize(chosen) if cosine else chosen
