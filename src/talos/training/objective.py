"""The four choices put together: backbone × loss × negatives × threshold → the loss of one batch.

Nothing here depends on the name of any of the four: the loss states what it needs, the negatives what one draw is for,
the threshold whether it needs the scores of all items.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from talos import backbones
from talos.backbones import Backbone
from talos.data.csr import TrainIndex
from talos.kernels import SampleScores, differentiable_user_batch_loss, exact_user_batch_loss, kth_scores
from talos.kernels.sampled import distinct_rows, sampled_scores
from talos.losses import (
    ListLoss,
    Loss,
    PairwiseLoss,
    UserSeparableLoss,
    reduce_per_positive,
    reduce_per_user,
)
from talos.negatives import Negatives
from talos.thresholds import ExactQuantile, Threshold
from talos.training.batches import Batch, BatchShare, generator_for
from talos.training.contrast import info_nce
from talos.training.memory import GradientBuffers

__all__ = ["Objective", "ObjectiveOptions", "PositiveObjective", "UserObjective"]

# Scores held at a time while thresholds are updated from all items: a few MB, so that they stay in cache.
_ROW_BLOCK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class ObjectiveOptions:
    """How the loss of a batch is computed."""

    reduction: Literal["positives", "users"] = "positives"  # what it is the mean over
    touched_rows: bool = False  # whether look-ups in a table of parameters have row-sparse gradients
    bfloat16: bool = (
        False  # whether kernels may round the factors of products: `talos.kernels.user_batch_loss`
    )


class Objective(nn.Module):
    """The loss of a batch, differentiable. Thresholds are updated from the batch's scores on the way.

    Args:
        backbone: gives vectors.
        loss: turns scores into numbers.
        negatives: where negatives come from.
        threshold: β per user; None for a loss without one.
        options: how the loss is computed.
        index: the train interactions.
        users: the users that the index and the thresholds have; all of the backbone's, if None.
    """

    def __init__(
        self,
        backbone: Backbone,
        loss: Loss,
        negatives: Negatives,
        threshold: Threshold | None,
        options: ObjectiveOptions = ObjectiveOptions(),  # noqa: B008  # frozen
        *,
        index: TrainIndex,
        users: range | None = None,
    ) -> None:
        super().__init__()
        self.users = range(index.num_users) if users is None else users
        # whether the backbone's table has the rows of these users only
        self.own_users_only = backbone.num_users == len(self.users)
        self.backbone, self.loss, self.threshold = backbone, loss, threshold
        loss.products = sampled_scores
        if backbone.contrast is backbones.info_nce:
            backbone.contrast = partial(info_nce, bfloat16=options.bfloat16)
        self.negatives, self.index = negatives, index
        self.reduction, self.touched_rows = options.reduction, options.touched_rows
        self.in_bfloat16 = options.bfloat16
        self.cosine = loss.needs.scores == "cosine"
        self.gradient_buffers = GradientBuffers()

    @abstractmethod
    def forward(self, batch: Batch, generator: torch.Generator, *, frozen: bool = False) -> Tensor:
        """Loss of a batch (a scalar); with `frozen` the vectors are constants, to train an adversary only.

        Where the batch is this process's share of a larger one, the losses of all processes sum to that of the whole.
        Every process draws the same numbers from `generator`, whatever its share.
        """

    def vectors(self) -> tuple[Tensor, Tensor]:
        """User and item vectors as they are scored: after propagation, and normalised where scores are cosines."""
        with torch.no_grad():
            users, items = (table.detach() for table in self.backbone.vectors())
            own = users if self.own_users_only else users[self.users.start : self.users.stop]
            return self._whole(own), self._whole(items)

    def _in_table(self, users: Tensor) -> Tensor:
        """Rows of users in the backbone's table, which may have the users of other processes too."""
        return users if self.own_users_only else users + self.users.start

    def _nothing(self, table: Tensor) -> Tensor:
        """The loss of an empty batch, for a process that has no members in it."""
        if self.threshold is not None:
            self.threshold.rest()
        return table.new_zeros((), requires_grad=True)

    def _tables(self, generator: torch.Generator, frozen: bool) -> tuple[Tensor, Tensor]:
        users, items = self.backbone.vectors(training=not frozen, generator=generator)
        return (users.detach(), items.detach()) if frozen else (users, items)

    def _rows(self, table: Tensor, ids: Tensor, *, distinct: bool = False) -> Tensor:
        """Vectors of some users or items, as they are scored."""
        return self._whole(self._raw_rows(table, ids, distinct=distinct))

    def _raw_rows(self, table: Tensor, ids: Tensor, *, distinct: bool) -> Tensor:
        """Rows of a table; `distinct` says that no row is there twice."""
        parameter = table.is_leaf and table.requires_grad
        if parameter and distinct and not self.touched_rows:
            return self.gradient_buffers.rows(table, ids)
        return F.embedding(ids, table, sparse=self.touched_rows and parameter)

    def _whole(self, table: Tensor) -> Tensor:
        """Rows of a table as vectors that are scored."""
        return F.normalize(table) if self.cosine else table

    def _items(self, table: Tensor, *needed: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Vectors of at least the needed items, and the rows of the needed ones among them.

        The whole table where most of it is needed anyway; only the distinct needed rows otherwise.
        """
        if sum(map(torch.numel, needed)) >= len(table) // 2:
            return self._whole(table), list(needed)
        distinct, places = distinct_rows(torch.cat([ids.flatten() for ids in needed]), len(table))
        parts = torch.split(places, [ids.numel() for ids in needed])
        return self._rows(table, distinct, distinct=True), [
            part.view(ids.shape) for part, ids in zip(parts, needed, strict=True)
        ]

    def _with_auxiliary(
        self, value: Tensor, users: Tensor, items: Tensor, frozen: bool, share: BatchShare | None
    ) -> Tensor:
        extra = None if frozen else self.backbone.auxiliary_loss(self._in_table(users), items)
        if share is not None:
            # the backbone's own loss treats this share as a batch, and is weighted by its number of members
            value = value * share.weight
            extra = None if extra is None else extra * (len(users) / share.total)
        return value if extra is None else value + extra

    @torch.no_grad()
    def _update_from_all_items(
        self, threshold: Threshold, users: Tensor, vectors: Tensor, items: Tensor
    ) -> None:
        """Update the thresholds of distinct users from the scores of all items, a few users at a time."""
        block = max(1, _ROW_BLOCK // len(items))
        for start in range(0, len(users), block):
            threshold.update_rows(users[start : start + block], vectors[start : start + block] @ items.T)


class UserObjective(Objective):
    """Batches of users with all their positives, over all items or shared samples; for losses that kernels compute."""

    loss: UserSeparableLoss | PairwiseLoss | ListLoss

    def forward(self, batch: Batch, generator: torch.Generator, *, frozen: bool = False) -> Tensor:
        """Loss of a batch of distinct users (B,)."""
        members, share = batch.members, batch.share
        user_table, item_table = self._tables(generator, frozen)
        drawn = None
        if self.negatives.per != "all":
            # drawn for the whole batch, so that all processes have the same; draws depend on its length only
            whole = members if share is None else members.new_zeros(share.total)
            drawn = self.negatives.draw(self.index, whole, generator)
        if len(members) == 0:
            return self._nothing(item_table)
        users = self._rows(user_table, self._in_table(members), distinct=True)
        _, positives = self.index.pairs_of(members)
        if drawn is None:
            value = self._over_all(members, users, item_table, positives)
        else:
            value = self._over_samples(batch, users, item_table, positives, drawn)
        return self._with_auxiliary(value, members, positives, frozen, share)

    def _over_all(self, members: Tensor, users: Tensor, item_table: Tensor, positives: Tensor) -> Tensor:
        threshold, ends, options = self.threshold, self._ends(members), self._options(item_table)
        options["positive_weights"] = self.index.weights_of(members)
        if self.loss.needs.ids:
            options["user_ids"] = members + self.users.start
        if isinstance(threshold, ExactQuantile):
            # the kernel computes all scores anyway, and finds the K-th best among them
            value, kth = exact_user_batch_loss(
                users, item_table, ends, positives, threshold.k, self.loss, **options
            )
            threshold.set(members, kth)
            return value
        beta = None
        if threshold is not None:
            self._update_from_all_items(threshold, members, users, self._whole(item_table))
            beta = threshold.value(members)
        return differentiable_user_batch_loss(users, item_table, ends, positives, beta, self.loss, **options)

    def _options(self, item_table: Tensor) -> dict[str, Any]:
        """Options of the kernels that go over all items, with the memory of the step before; they normalise them."""
        reused: dict[str, Tensor] = {}
        if (
            not self.loss.needs.lists
            and item_table.device.type == "cpu"
            and item_table.dtype == torch.float32
            and item_table.is_contiguous()
        ):
            if self.cosine:
                reused["unit_items"] = self.gradient_buffers.unit_rows(item_table)
            if item_table.is_leaf and item_table.requires_grad:  # else the gradient does not come back to us
                reused["item_gradient"] = self.gradient_buffers.take(item_table)
        return {
            "reduction": self.reduction,
            "normalize_items": self.cosine,
            "bfloat16": self.in_bfloat16,
            **reused,
        }

    def _over_samples(
        self, batch: Batch, users: Tensor, item_table: Tensor, positives: Tensor, drawn: Tensor
    ) -> Tensor:
        """Loss of consecutive users who share a sample, one of G samples `drawn` (G, n); the mean over all of them."""
        members, share = batch.members, batch.share
        before, total = (0, len(members)) if share is None else (share.before, share.total)
        size = -(-total // len(drawn))
        # the first sample here may be shared with users of the process before this one
        cuts = [max(0, cut) for cut in range(-(before % size), len(members), size)]
        drawn = drawn[before // size :][: len(cuts)]
        # one look-up of all rows that are needed, so that there is one gradient of the table's size
        needed, places = distinct_rows(torch.cat([positives, drawn.flatten()]), len(item_table))
        own, sampled = places.tensor_split([len(positives)])
        return differentiable_user_batch_loss(
            users,
            self._raw_rows(item_table, needed, distinct=True),
            self._ends(members),
            own,
            self._thresholds(members, users, item_table),
            self.loss,
            reduction=self.reduction,
            item_ids=sampled.view(drawn.shape),
            sample_bounds=torch.tensor([*cuts, len(members)], device=members.device),
            positive_weights=self.index.weights_of(members),
            normalize_items=self.cosine,
            bfloat16=self.in_bfloat16,
        )

    def _ends(self, users: Tensor) -> Tensor:
        """CSR bounds of the users' positives, (B + 1,)."""
        return F.pad(self.index.degrees[users].cumsum(0), (1, 0))

    def _thresholds(
        self, members: Tensor, users: Tensor, item_table: Tensor
    ) -> Tensor | Callable[[SampleScores], Tensor] | None:
        """Thresholds of the members, updated from all items; or a function that updates them from scores of samples."""
        threshold = self.threshold
        if threshold is None:
            return None
        if not threshold.needs_full_row:

            def updated(scores: SampleScores) -> Tensor:
                # a drawn item that is a positive of a user says nothing about that user's other items
                positives = {"owner": scores.owner, "mask": scores.mask}
                threshold.update(members, scores.positives, scores.negatives, **positives)
                return threshold.value(members)

            return updated
        vectors = users.detach()
        if isinstance(threshold, ExactQuantile):
            threshold.set(members, kth_scores(vectors, self._whole(item_table), threshold.k))
        else:
            self._update_from_all_items(threshold, members, vectors, self._whole(item_table))
        return threshold.value(members)


class PositiveObjective(Objective):
    """Batches of positives, each with its own negatives: the paper's protocol, for every loss."""

    def forward(self, batch: Batch, generator: torch.Generator, *, frozen: bool = False) -> Tensor:
        """Loss of the positives at the positions (B,) of the index's edges."""
        members, share = batch.members, batch.share
        user_table, item_table = self._tables(generator, frozen)
        if share is not None:
            # each process draws for its own positives, from a generator of its own
            common = int(torch.randint(2**62, (), generator=generator))
            generator = generator_for(common, share.rank)
        if len(members) == 0:
            return self._nothing(item_table)
        owners = torch.searchsorted(self.index.indptr, members, right=True) - 1
        positives = self.index.indices[members]
        drawn = self.negatives.draw(self.index, owners, generator)
        users = self._rows(user_table, self._in_table(owners))
        items, (rows, others) = self._items(item_table, positives, drawn)
        # not `items[rows]`: with several threads its gradient adds up in an order that changes from run to run
        pos = (users * F.embedding(rows, items)).sum(-1)
        neg = sampled_scores(users, items, others)
        beta = None
        if self.threshold is not None:
            self._update_threshold(self.threshold, owners, users, pos.detach(), neg.detach(), item_table)
            beta = self.threshold.value(owners)
        values = self.loss(
            pos,
            neg,
            threshold=beta,
            users=owners + self.users.start,
            items=drawn if self.loss.needs.ids else None,
        )
        if self.index.weights is not None:
            values = values * self.index.weights[members]
        if self.loss.user_power != 1:
            values = values * self.index.degrees[owners].to(values.dtype) ** (self.loss.user_power - 1)
        value = (
            reduce_per_positive(values) if self.reduction == "positives" else reduce_per_user(values, owners)
        )
        return self._with_auxiliary(value, owners, positives, frozen, share)

    @torch.no_grad()
    def _update_threshold(
        self,
        threshold: Threshold,
        owners: Tensor,
        users: Tensor,
        pos: Tensor,
        neg: Tensor,
        item_table: Tensor,
    ) -> None:
        if threshold.pools_positives:
            row, pooled = self._scores_of_all_positives(owners, users, item_table)
            threshold.update(owners, pooled, neg, owner=row)
            return
        if not threshold.needs_full_row:
            threshold.update(owners, pos, neg)
            return
        # `owners` ascend (see `Batch`), so a user's rows are consecutive; the first one stands for all of them
        first = torch.ones_like(owners, dtype=torch.bool)
        first[1:] = owners[1:] != owners[:-1]
        self._update_from_all_items(threshold, owners[first], users[first], self._whole(item_table))

    def _scores_of_all_positives(
        self, owners: Tensor, users: Tensor, item_table: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The scores of all positives of each row's user, with their rows; (P,) each."""
        distinct, group, times = torch.unique_consecutive(owners, return_inverse=True, return_counts=True)
        place, positives = self.index.pairs_of(distinct)
        items, (rows,) = self._items(item_table, positives)
        vectors = users[times.cumsum(0) - times]  # of the first row of each user
        scores = (vectors[place] * items[rows]).sum(-1)
        degrees = self.index.degrees[distinct]
        count = degrees[group]
        row = torch.arange(len(owners), device=owners.device).repeat_interleave(count)
        within = torch.arange(len(row), device=owners.device) - (count.cumsum(0) - count)[row]
        return row, scores[(degrees.cumsum(0) - degrees)[group[row]] + within]
