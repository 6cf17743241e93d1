"""The four choices put together: backbone × loss × negatives × threshold → the loss of one batch.

Nothing here asks for the name of any of the four. The loss says what it needs, the negatives say what one draw
is for, the threshold says whether it needs full rows.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from talos.backbones import Backbone
from talos.kernels import differentiable_user_batch_loss, exact_user_batch_loss, kth_scores
from talos.kernels.sampled import sampled_scores
from talos.losses import Loss, UserSeparableLoss, reduce_per_positive, reduce_per_user
from talos.negatives import Negatives, TrainIndex, meetings
from talos.thresholds import ExactQuantile, Threshold

__all__ = ["Objective", "PositiveObjective", "UserObjective"]

# Scores held while thresholds follow full rows: a few MB, so that they stay near the cache.
_ROW_BLOCK = 1 << 20


class Objective(nn.Module):
    """The loss of a batch, differentiable; thresholds follow the batch's scores on the way.

    Args:
        backbone: gives vectors.
        loss: turns scores into numbers.
        negatives: where negatives come from.
        threshold: β per user; None for a loss without one.
        index: the train interactions.
        reduction: mean over `positives` or over `users`.
        touched_rows: whether look-ups in a table of parameters give row-sparse gradients.
    """

    def __init__(
        self,
        backbone: Backbone,
        loss: Loss,
        negatives: Negatives,
        threshold: Threshold | None,
        index: TrainIndex,
        *,
        reduction: Literal["positives", "users"] = "positives",
        touched_rows: bool = False,
    ) -> None:
        super().__init__()
        self.backbone, self.loss, self.threshold = backbone, loss, threshold
        self.negatives, self.index = negatives, index
        self.reduction, self.touched_rows = reduction, touched_rows
        self.cosine = loss.needs.scores == "cosine"

    @abstractmethod
    def forward(self, batch: Tensor, generator: torch.Generator, *, frozen: bool = False) -> Tensor:
        """Loss of a batch (a scalar); with `frozen` the vectors are constants, for an adversary's own epoch."""

    def vectors(self) -> tuple[Tensor, Tensor]:
        """User and item vectors as they are scored: final, and normalised where scores are cosines."""
        with torch.no_grad():
            users, items = (table.detach() for table in self.backbone.vectors())
            return self._whole(users), self._whole(items)

    def _tables(self, generator: torch.Generator, frozen: bool) -> tuple[Tensor, Tensor]:
        users, items = self.backbone.vectors(training=not frozen, generator=generator)
        return (users.detach(), items.detach()) if frozen else (users, items)

    def _rows(self, table: Tensor, ids: Tensor) -> Tensor:
        """Vectors of some users or items, as they are scored."""
        rows = F.embedding(ids, table, sparse=self.touched_rows and table.is_leaf and table.requires_grad)
        return F.normalize(rows) if self.cosine else rows

    def _whole(self, table: Tensor) -> Tensor:
        """All vectors of a table, as they are scored."""
        return F.normalize(table) if self.cosine else table

    def _items(self, table: Tensor, *needed: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Vectors of at least the needed items, and the places of the needed ones among them.

        The whole table where most of it is needed anyway; only the distinct needed rows otherwise.
        """
        if sum(map(torch.numel, needed)) >= len(table) // 2:
            return self._whole(table), list(needed)
        distinct, places = torch.unique(torch.cat([ids.flatten() for ids in needed]), return_inverse=True)
        parts = torch.split(places, [ids.numel() for ids in needed])
        return self._rows(table, distinct), [
            part.view(ids.shape) for part, ids in zip(parts, needed, strict=True)
        ]

    def _with_auxiliary(self, value: Tensor, users: Tensor, items: Tensor, frozen: bool) -> Tensor:
        extra = None if frozen else self.backbone.auxiliary_loss(users, items)
        return value if extra is None else value + extra

    @torch.no_grad()
    def _follow_full_rows(self, threshold: Threshold, users: Tensor, vectors: Tensor, items: Tensor) -> None:
        """Let thresholds see all items' scores of distinct users, a few users at a time."""
        block = max(1, _ROW_BLOCK // len(items))
        for start in range(0, len(users), block):
            threshold.update_rows(users[start : start + block], vectors[start : start + block] @ items.T)


class UserObjective(Objective):
    """Batches of users with all their positives: for user-separable losses, over all items or a shared sample."""

    loss: UserSeparableLoss

    def forward(self, batch: Tensor, generator: torch.Generator, *, frozen: bool = False) -> Tensor:
        """Loss of the users `batch` (B,), distinct."""
        user_table, item_table = self._tables(generator, frozen)
        users = self._rows(user_table, batch)
        owner, positives = self.index.pairs_of(batch)
        sample: Tensor | None = None
        if self.negatives.per == "all":
            items, places = item_table, positives  # normalised by the kernel, on its way
        else:
            drawn = self.negatives.draw(self.index, batch, generator)
            items, (places, sample) = self._items(item_table, positives, drawn)
        indptr = F.pad(self.index.degrees[batch].cumsum(0), (1, 0))
        threshold = self.threshold
        if sample is None and isinstance(threshold, ExactQuantile):
            # all scores are made anyway: the kernel finds the K-th best among them on its way
            value, kth = exact_user_batch_loss(
                users,
                items,
                indptr,
                places,
                threshold.k,
                self.loss,
                reduction=self.reduction,
                normalize_items=self.cosine,
            )
            threshold.set(batch, kth)
            return self._with_auxiliary(value, batch, positives, frozen)
        beta = None
        if threshold is not None:
            self._follow(threshold, batch, users, items, owner, places, sample, item_table)
            beta = threshold.value(batch)
        value = differentiable_user_batch_loss(
            users,
            items,
            indptr,
            places,
            beta,
            self.loss,
            reduction=self.reduction,
            item_ids=sample,
            normalize_items=self.cosine and sample is None,
        )
        return self._with_auxiliary(value, batch, positives, frozen)

    @torch.no_grad()
    def _follow(
        self,
        threshold: Threshold,
        batch: Tensor,
        users: Tensor,
        items: Tensor,
        owner: Tensor,
        places: Tensor,
        sample: Tensor | None,
        item_table: Tensor,
    ) -> None:
        if isinstance(threshold, ExactQuantile):
            threshold.set(batch, kth_scores(users, self._whole(item_table), threshold.k))
            return
        if sample is None or threshold.needs_full_row:
            self._follow_full_rows(threshold, batch, users, self._whole(item_table))
            return
        # a drawn item that is a positive of a user says nothing about that user's other items
        rows, hits = meetings(owner, places, sample)
        mask = torch.zeros(len(users), len(sample), dtype=torch.bool, device=users.device)
        mask[rows, hits] = True
        positives = (users[owner] * items[places]).sum(-1)
        threshold.update(batch, positives, users @ items[sample].T, mask=mask, owner=owner)


class PositiveObjective(Objective):
    """Batches of positives, each with negatives of its own: the paper's protocol, for every loss."""

    def forward(self, batch: Tensor, generator: torch.Generator, *, frozen: bool = False) -> Tensor:
        """Loss of the positives at the places `batch` (B,) of the index's edges."""
        user_table, item_table = self._tables(generator, frozen)
        owners = torch.searchsorted(self.index.indptr, batch, right=True) - 1
        positives = self.index.indices[batch]
        drawn = self.negatives.draw(self.index, owners, generator)
        users = self._rows(user_table, owners)
        items, (places, others) = self._items(item_table, positives, drawn)
        pos = (users * items[places]).sum(-1)
        neg = sampled_scores(users, items, others)
        beta = None
        if self.threshold is not None:
            self._follow(self.threshold, owners, users, pos.detach(), neg.detach(), item_table)
            beta = self.threshold.value(owners)
        values = self.loss(
            pos, neg, threshold=beta, users=owners, items=drawn if self.loss.needs.ids else None
        )
        value = (
            reduce_per_positive(values) if self.reduction == "positives" else reduce_per_user(values, owners)
        )
        return self._with_auxiliary(value, owners, positives, frozen)

    @torch.no_grad()
    def _follow(
        self,
        threshold: Threshold,
        owners: Tensor,
        users: Tensor,
        pos: Tensor,
        neg: Tensor,
        item_table: Tensor,
    ) -> None:
        if not threshold.needs_full_row:
            threshold.update(owners, pos, neg)
            return
        # `owners` ascend (see `Batches`): the first row of each user stands for all of them
        first = torch.ones_like(owners, dtype=torch.bool)
        first[1:] = owners[1:] != owners[:-1]
        self._follow_full_rows(threshold, owners[first], users[first], self._whole(item_table))
