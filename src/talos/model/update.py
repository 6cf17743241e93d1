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
from talos.checks import require
from talos.config import EventsConfig, RunConfig
from talos.data.event_weights import event_columns, event_weights, in_seconds
from talos.data.interactions import Interactions
from talos.data.vocabulary import Vocabulary, spelled_as
from talos.errors import DataError
from talos.kernels import kth_scores
from talos.model.attributes import align_items
from talos.model.fold_in import COSINE_LENGTH, fold_in
from talos.model.model import Model, Vectors
from talos.training.trainer import Trainer

__all__ = ["update"]

# How often new items and new users are placed, each from the other's current vectors.
_ROUNDS = 2
# Learning rate of the run in which items move, relative to the run in which only users move: an item has many more
# interactions than the few new ones.
_ITEM_RATE = 0.1


def update(
    model: Model,
    new: Interactions,
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
        new: interactions with ids of their own; those of another type are spelled as the model's.
        config: the config of training.
        epochs: passes over the users with new interactions, in each of the two runs.
        lr: learning rate; that of the config if None.
    """
    train = model.seen
    users, items = (
        _joined_ids(old.ids, more.ids, new.provenance.source)
        for old, more in ((train.user_ids, new.user_ids), (train.item_ids, new.item_ids))
    )
    loss = model.loss(len(items))  # a loss with a table of items has a row for each new one too
    titles, attributes = _joined_items(model, new, items)
    nothing = Interactions.from_codes(
        np.empty(0, np.int32), np.empty(0, np.int32), user_ids=users, item_ids=items, item_titles=titles
    )
    before, added = (
        replace(_with_columns(part, config.events, where).aligned_to(nothing)[0], item_titles=titles)
        for part, where in ((train, "the run"), (new, new.provenance.source))
    )
    merged = before.union(added)
    old_users, old_items = users.encode(train.user_ids.ids), items.encode(train.item_ids.ids)
    touched_users, touched_items = np.flatnonzero(added.user_degrees), np.flatnonzero(added.item_degrees)

    cosine = loss.needs.scores == "cosine"
    user_table = _spread(model.vectors.users, old_users, len(users))
    item_table = _spread(model.vectors.items, old_items, len(items))
    # without training events, users and items have no vector of their own yet
    placed = old_users[model.train.user_degrees > 0]
    unknown_users = np.setdiff1d(np.flatnonzero(merged.user_degrees), placed)
    learnt = old_items[model.train.item_degrees > 0]
    unknown_items = np.setdiff1d(np.flatnonzero(merged.item_degrees), learnt)
    weights, theirs = event_weights(merged, config.events), np.isin(merged.rows, unknown_users)
    for _ in range(_ROUNDS if len(unknown_items) else 1):
        _place_items(item_table, unknown_items, merged, user_table, placed, cosine)
        user_table[unknown_users] = fold_in(
            item_table,
            torch.from_numpy(np.append(0, np.cumsum(merged.user_degrees[unknown_users]))),
            torch.from_numpy(merged.indices[theirs].astype(np.int64)),
            loss,
            k=config.k,
            weights=None if weights is None else torch.from_numpy(weights[theirs]),
        )
        placed = np.flatnonzero(merged.user_degrees)

    usual = (0.1 if cosine else 0.001) if config.optimizer.lr == "auto" else config.optimizer.lr
    tables = user_table, item_table
    for moving, factor in ((touched_items[:0], 1.0), (touched_items, _ITEM_RATE)):
        changes = {"training.epochs": epochs, "optimizer.lr": factor * (usual if lr is None else lr)}
        tables = _trained(*tables, merged, touched_users, moving, config.with_values(changes), cosine)

    trained_on = model.trained_on
    if model.valid is not None:
        trained_on["valid"] = len(train) - len(model.train)
    trained_on["updates"] = trained_on.get("updates", 0) + len(merged) - len(train)
    thresholds = kth_scores(*tables, min(config.k, len(items))) if loss.needs.threshold else None
    return replace(
        model,
        scored_by=Vectors(*tables, thresholds),
        backbone=None,  # its items are no longer those of the vectors
        train=merged,
        valid=None,
        test=None if model.test is None else model.test.aligned_to(merged)[0].difference(merged),
        later=None if model.later is None else model.later.aligned_to(merged)[0].difference(merged),
        metadata={
            **model.metadata,
            "trained_on": trained_on,
            "updates": model.metadata.get("updates", 0) + 1,
        },
        attributes=attributes,
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
    trainer = Trainer(
        config.with_values(changes), merged, backbone=backbone, only_users=torch.from_numpy(moving_users)
    )
    trainer.fit()
    return trainer.vectors()


def _with_columns(part: Interactions, events: EventsConfig, where: str) -> Interactions:
    """Interactions with what the weights of events are computed from and no other columns."""
    kept: dict[str, Any] = dict.fromkeys(("timestamps", "ratings"))
    for column in event_columns(events):
        values = getattr(part, column)
        require(
            values is not None or column == "repeats",  # without repeats every pair occurred once
            f"no {column}",
            where=where,
            expected=f"{column}, by which this run weighs interactions (`events` in its config)",
            error=DataError,
        )
        kept[column] = in_seconds(values) if column == "timestamps" else values
    return replace(part, **kept)


def _joined_ids(old: pl.Series, new: pl.Series, where: str) -> Vocabulary:
    """All ids of both, in the type of the old ones."""
    spelled = spelled_as(new, old.dtype)
    require(
        not spelled.null_count(),
        f"ids such as {new.filter(spelled.is_null()).head(1).to_list()}",
        where=where,
        expected="integers, as the model's ids are",
        error=DataError,
    )
    return Vocabulary.of(pl.concat([old.rename("ids"), spelled.rename("ids")]))


def _joined_items(
    model: Model, new: Interactions, items: Vocabulary
) -> tuple[pl.Series | None, pl.DataFrame | None]:
    """The titles and attributes of all items; an item that both know keeps those of the model."""
    old, more = model.item_table, Model(train=new).item_table
    more = more.select(name for name in more.columns if name in old.columns).cast(
        {"item_id": old["item_id"].dtype}
    )
    table = pl.concat([old, more], how="diagonal").unique("item_id", keep="first", maintain_order=True)
    return align_items(table, items)[:2]


def _spread(vectors: Tensor, places: NDArray[np.int64], count: int) -> Tensor:
    """(count, d) with the vectors at `places` and zeros elsewhere."""
    return vectors.new_zeros(count, vectors.shape[1]).index_copy(0, torch.from_numpy(places), vectors)


def _place_items(
    item_table: Tensor,
    unknown: NDArray[np.int64],
    merged: Interactions,
    user_table: Tensor,
    placed: NDArray[np.int64],
    cosine: bool,
) -> None:
    """Put each unknown item at the mean of its users among the `placed` ones; without any, at the mean known item."""
    theirs = merged.to_scipy()[placed][:, unknown].T  # (unknown items, placed users), ones
    total = torch.from_numpy(theirs @ user_table[torch.from_numpy(placed)].numpy())
    start = total / torch.from_numpy(theirs.sum(1)).clamp(min=1).unsqueeze(1)
    mean = item_table[torch.from_numpy(np.delete(np.arange(len(item_table)), unknown))].mean(0)
    chosen = torch.where(start.abs().sum(1, keepdim=True) > 0, start, mean)
    item_table[torch.from_numpy(unknown)] = F.normalize(chosen) if cosine else chosen
