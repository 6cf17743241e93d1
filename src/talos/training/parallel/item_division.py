"""Items divided among the processes as well as users: no process ever has the whole catalogue.

A rank has a range of items (their rows, optimiser state and the interactions that fall on them, of all users) and, as
ever, a range of users. All ranks work on the same whole batch, each on its own items: see `talos.kernels.batch`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from talos.backbones import Backbone
from talos.data.csr import TrainIndex
from talos.data.interactions import Interactions
from talos.data.shards import Columns, Share
from talos.data.vocabulary import Vocabulary
from talos.distributed import Group, OwnedRows
from talos.errors import ConfigError
from talos.evaluation.evaluate import DEFAULT_METRICS, measure_lists
from talos.evaluation.ranking import DotScores, top_k
from talos.kernels import differentiable_divided_loss, divided_kth_scores
from talos.losses import Loss, UserSeparableLoss
from talos.negatives import Negatives
from talos.thresholds import ExactQuantile, Threshold
from talos.training.batches import Batches, Place
from talos.training.objective import Objective
from talos.training.parallel.division import Division

__all__ = ["ItemDivision", "ItemObjective"]

# Users ranked at a time, of all processes together.
_BLOCK = 4096


class ItemDivision(Division):
    """Users and items divided among the processes of a group.

    >>> from talos.distributed import ALONE
    >>> division = ItemDivision(Interactions.from_ids([1, 1, 2], [7, 8, 9]), None, ALONE, torch.device("cpu"))
    >>> division.items, division.user_degrees
    (range(0, 3), tensor([2, 1]))
    """

    def __init__(
        self,
        train: Interactions | Share,
        valid: Interactions | Share | None,
        group: Group,
        device: torch.device,
    ) -> None:
        super().__init__(train, valid, group, device)
        # of everybody, over all items
        degrees = _columns(train).user_degrees() if isinstance(train, Share) else train.user_degrees
        self.degrees = torch.from_numpy(degrees).to(device)

    def _index(self, device: torch.device) -> TrainIndex:
        self.items = self.group.share(self.whole.num_items, of="items")
        if not isinstance(self.whole, Share):
            return TrainIndex.from_interactions(_of_items(self.whole, self.items), device)
        indptr, indices = _columns(self.whole).of_items(self.items)
        return TrainIndex(
            indptr=torch.from_numpy(indptr).to(device),
            indices=torch.from_numpy(indices).to(device, torch.int64),
            num_users=self.whole.num_users,
            num_items=len(self.items),
        )

    @property
    def user_degrees(self) -> Tensor:
        """Interactions of each user that this process has."""
        return self.degrees[self.users.start : self.users.stop]

    def _rows(self) -> dict[str, range]:
        return {"users": self.users, "items": self.items}

    def batches(
        self,
        kind: Literal["users", "positives"],
        *,
        size: int,
        only_users: Tensor | None,
        reduction: Literal["positives", "users"],
    ) -> Batches:
        """The whole batches: every process has a part in each user."""
        return Batches(self.degrees, kind=kind, size=size, only_users=only_users, reduction=reduction)

    def objective(
        self,
        kind: Literal["users", "positives"],
        backbone: Backbone,
        loss: Loss,
        negatives: Negatives,
        threshold: Threshold | None,
        *,
        reduction: Literal["positives", "users"],
        touched_rows: bool,
        bfloat16: bool,
    ) -> Objective:
        """The loss of this process's items for all users of a batch."""
        return ItemObjective(
            backbone,
            loss,
            negatives,
            threshold,
            self.index,
            reduction=reduction,
            touched_rows=touched_rows,
            bfloat16=bfloat16,
            users=self.users,
            group=self.group,
            degrees=self.degrees,
            num_items=self.whole.num_items,
        )

    def _metric_sums(self, users: Tensor, items: Tensor, k: int) -> Mapping[str, float]:
        sums = dict.fromkeys((f"{name}@{k}" for name in DEFAULT_METRICS), 0.0)
        measured = np.empty(0, np.int64) if self.valid is None else np.flatnonzero(self.valid.user_degrees)
        for here, rows in self.blocks(len(measured), max(1, _BLOCK // self.group.size)):
            some = measured[here]
            lists = self._lists(users, items, torch.from_numpy(some), rows, k)
            if self.valid is None or len(some) == 0:
                continue
            found = measure_lists(lists.numpy(), some, self.valid, [k], DEFAULT_METRICS, "standard")
            for name, values in found.items():
                sums[name] += float(values.sum())
        return sums | {"users": float(len(measured))}

    def _lists(self, users: Tensor, items: Tensor, some: Tensor, rows: OwnedRows, k: int) -> Tensor:
        """The K best items of some of this process's users, from each rank's K best of its own items."""
        codes = rows.spread(some + self.users.start)
        vectors = rows.spread(users[some.to(users.device)])
        best = top_k(_Unseen(vectors, items, self.index, codes), k=min(k, len(items)))
        # fewer than K items on a rank: places without a score
        short = (0, k - best.items.shape[1])
        scores = rows.collect(F.pad(torch.from_numpy(best.scores), short, value=-torch.inf))
        places = rows.collect(F.pad(torch.from_numpy(best.items) + self.items.start, short, value=-1))
        # equal scores by position: ranks ascend, and so do places within each rank's list
        order = scores.movedim(0, 1).flatten(1).sort(dim=1, descending=True, stable=True)
        merged = places.movedim(0, 1).flatten(1).gather(1, order.indices)[:, :k]
        return merged.masked_fill(order.values[:, :k] == -torch.inf, -1)

    def kth_scores(self, users: Tensor, items: Tensor, k: int) -> Tensor:
        """The exact K-th best scores over all items, of some of this process's users."""
        found = users.new_empty(len(users))
        for here, rows in self.blocks(len(users), max(1, _BLOCK // self.group.size)):
            found[here] = divided_kth_scores(users[here], items, k, rows)
        return found

    def bring_together(
        self, users: Tensor, items: Tensor, thresholds: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None] | None:
        """The same of everybody on rank 0, None elsewhere; of shares, own users and all items on each."""
        if isinstance(self.whole, Share):
            counts = [len(share) for share in self.group.shares(self.whole.num_items, of="items")]
            return users, self.group.spread_rows(items, counts), thresholds
        found = super().bring_together(users, items, thresholds)
        catalogue = self.group.bring_together(items, self.whole.num_items)
        return None if found is None or catalogue is None else (found[0], catalogue, found[2])


class ItemObjective(Objective):
    """Batches of users with all their positives, over this process's part of all items.

    Args:
        backbone: rows of this process's users and items.
        loss: a user-separable one.
        negatives: all items.
        threshold: exact or fixed, of this process's users; None for a loss without one.
        index: interactions of all users with this process's items.
        degrees: interactions of all users, over all items.
        num_items: of all processes.
        options: as for `Objective`.
    """

    loss: UserSeparableLoss

    def __init__(
        self,
        backbone: Backbone,
        loss: Loss,
        negatives: Negatives,
        threshold: Threshold | None,
        index: TrainIndex,
        *,
        degrees: Tensor,
        num_items: int,
        **options: Any,
    ) -> None:
        super().__init__(backbone, loss, negatives, threshold, index, **options)
        self.degrees, self.num_items = degrees, num_items
        shares = self.group.shares(self.index.num_users)
        self.bounds = torch.tensor([0, *(share.stop for share in shares)], device=degrees.device)

    def forward(
        self,
        batch: Tensor,
        generator: torch.Generator,
        *,
        frozen: bool = False,
        place: Place | None = None,
    ) -> Tensor:
        """This process's part of the loss of the users `batch` (B,), distinct and ascending, of everybody."""
        user_table, item_table = self._tables(generator, frozen)
        rows = OwnedRows(self.group, torch.searchsorted(batch, self.bounds).diff().tolist())
        own = batch[rows.own] - self.users.start
        threshold = self.threshold
        exact = isinstance(threshold, ExactQuantile)
        value, beta = differentiable_divided_loss(
            self._rows(user_table, own),
            item_table,
            F.pad(self.index.degrees[batch].cumsum(0), (1, 0)),
            self.index.pairs_of(batch)[1],
            None if threshold is None or exact else threshold.value(own),
            self.loss,
            rows,
            degrees=self.degrees[batch],
            num_items=self.num_items,
            k=threshold.k if isinstance(threshold, ExactQuantile) else None,
            reduction=self.reduction,
            normalize_items=self.cosine,
            bfloat16=self.in_bfloat16,
        )
        if isinstance(threshold, ExactQuantile):
            threshold.set(own, beta)
        return value


class _Unseen(DotScores):
    """Scores of some users (B, d) on this process's items, without the items that they have."""

    def __init__(self, users: Tensor, items: Tensor, index: TrainIndex, codes: Tensor) -> None:
        super().__init__(users, items)
        self.index, self.codes = index, codes.to(index.device)

    def scores(self, users: Tensor, out: Tensor) -> None:
        """A product, and nothing in the places of what is seen."""
        super().scores(users, out)
        out[self.index.pairs_of(self.codes[users])] = -torch.inf


def _columns(share: Share) -> Columns:
    if share.columns is None:
        raise ConfigError(
            "'items' with interactions of some users alone",
            where="parallel",
            expected="a folder of shards, or 'users'",
        )
    return share.columns


def _of_items(train: Interactions, items: range) -> Interactions:
    """The interactions that fall on consecutive items, with codes that begin at 0 with the first of them."""
    kept = (train.indices >= items.start) & (train.indices < items.stop)
    counts, active = np.zeros(train.num_users + 1, np.int64), np.flatnonzero(train.user_degrees)
    if len(active):
        counts[active + 1] = np.add.reduceat(kept, train.indptr[active], dtype=np.int64)
    return replace(
        train,
        indptr=np.cumsum(counts),
        indices=(train.indices[kept] - items.start).astype(train.indices.dtype),
        item_ids=Vocabulary(train.item_ids.ids[items.start : items.stop]),
        timestamps=None,
        ratings=None,
        item_titles=None,
    )
