"""The four choices put together: backbone × loss × negatives × threshold → the loss of one batch.

Nothing here asks for the name of any of the four. The loss says what it needs, the negatives say what one draw
is for, the threshold says whether it needs full rows.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from talos.backbones import Backbone
from talos.data.csr import TrainIndex, meetings
from talos.distributed import ALONE, Group
from talos.kernels import differentiable_user_batch_loss, exact_user_batch_loss, kth_scores
from talos.kernels.sampled import sampled_scores
from talos.losses import Loss, UserSeparableLoss, reduce_per_positive, reduce_per_user
from talos.negatives import Negatives
from talos.thresholds import ExactQuantile, Threshold
from talos.training.batches import Place, generator_for

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
        bfloat16: whether the kernels may round what they multiply, see `talos.kernels.user_batch_loss`.
        users: which users the index and the thresholds are of; all of the backbone's, if None.
        group: the processes that share a batch.
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
        bfloat16: bool = False,
        users: range | None = None,
        group: Group = ALONE,
    ) -> None:
        super().__init__()
        self.users = range(index.num_users) if users is None else users
        # whether the backbone's table is of these users alone
        self.group, self.divided = group, backbone.num_users == len(self.users)
        self.backbone, self.loss, self.threshold = backbone, loss, threshold
        self.negatives, self.index = negatives, index
        self.reduction, self.touched_rows, self.in_bfloat16 = reduction, touched_rows, bfloat16
        self.cosine = loss.needs.scores == "cosine"

    @abstractmethod
    def forward(
        self,
        batch: Tensor,
        generator: torch.Generator,
        *,
        frozen: bool = False,
        place: Place | None = None,
    ) -> Tensor:
        """Loss of a batch (a scalar); with `frozen` the vectors are constants, for an adversary's own epoch.

        With `place` the batch is this process's part of a larger one, and the sum over processes is its loss.
        Every process draws the same numbers from `generator`, whatever its part.
        """

    def vectors(self) -> tuple[Tensor, Tensor]:
        """User and item vectors as they are scored: final, and normalised where scores are cosines."""
        with torch.no_grad():
            users, items = (table.detach() for table in self.backbone.vectors())
            own = users if self.divided else users[self.users.start : self.users.stop]
            return self._whole(own), self._whole(items)

    def _in_table(self, users: Tensor) -> Tensor:
        """Where users stand in the backbone's table, which may have those of other processes too."""
        return users if self.divided else users + self.users.start

    def _nothing(self, table: Tensor) -> Tensor:
        """The loss of no users: for a process that has none in a batch."""
        if self.threshold is not None:
            self.threshold.rest()
        return table.new_zeros((), requires_grad=True)

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

    def _with_auxiliary(
        self, value: Tensor, users: Tensor, items: Tensor, frozen: bool, place: Place | None
    ) -> Tensor:
        extra = None if frozen else self.backbone.auxiliary_loss(self._in_table(users), items)
        if place is not None:
            # the backbone's own loss is of this part as a batch of its own, weighted by how many it has
            value = value * place.weight
            extra = None if extra is None else extra * (len(users) / place.total)
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

    def forward(
        self,
        batch: Tensor,
        generator: torch.Generator,
        *,
        frozen: bool = False,
        place: Place | None = None,
    ) -> Tensor:
        """Loss of the users `batch` (B,), distinct."""
        user_table, item_table = self._tables(generator, frozen)
        drawn = None
        if self.negatives.per != "all":
            # for the whole batch, so that every process has the same draws; they depend on its length alone
            everybody = batch if place is None else batch.new_zeros(place.total)
            drawn = self.negatives.draw(self.index, everybody, generator)
        if len(batch) == 0:
            return self._nothing(item_table)
        users = self._rows(user_table, self._in_table(batch))
        owner, positives = self.index.pairs_of(batch)
        if drawn is None:
            value = self._over_all(batch, users, item_table, positives)
        else:
            value = self._over_samples(batch, users, item_table, owner, positives, drawn, place)
        return self._with_auxiliary(value, batch, positives, frozen, place)

    def _over_all(self, batch: Tensor, users: Tensor, item_table: Tensor, positives: Tensor) -> Tensor:
        threshold, ends, options = self.threshold, self._ends(batch), self._options()
        if isinstance(threshold, ExactQuantile):
            # all scores are made anyway: the kernel finds the K-th best among them on its way
            value, kth = exact_user_batch_loss(
                users, item_table, ends, positives, threshold.k, self.loss, **options
            )
            threshold.set(batch, kth)
            return value
        beta = None
        if threshold is not None:
            self._follow_full_rows(threshold, batch, users, self._whole(item_table))
            beta = threshold.value(batch)
        return differentiable_user_batch_loss(users, item_table, ends, positives, beta, self.loss, **options)

    def _options(self) -> dict[str, Any]:
        """How a kernel goes over all items; they are normalised on its way."""
        return {
            "reduction": self.reduction,
            "normalize_items": self.cosine,
            "bfloat16": self.in_bfloat16,
        }

    def _over_samples(
        self,
        batch: Tensor,
        users: Tensor,
        item_table: Tensor,
        owner: Tensor,
        positives: Tensor,
        drawn: Tensor,
        place: Place | None,
    ) -> Tensor:
        """Users in groups, each with a sample `drawn` (G, n) of its own, as if it were a batch of its own."""
        before, total = (0, len(batch)) if place is None else (place.before, place.total)
        size = -(-total // len(drawn))
        # the first group may have begun with users of another process
        cuts = [max(0, cut) for cut in range(-(before % size), len(batch), size)]
        lengths = [end - cut for cut, end in zip(cuts, [*cuts[1:], len(batch)], strict=True)]
        counts = torch.bincount((owner + before % size) // size, minlength=len(cuts)).tolist()
        parts = zip(
            cuts,
            torch.split(batch, lengths),
            torch.split(users, lengths),
            torch.split(owner, counts),
            torch.split(positives, counts),
            drawn[before // size :][: len(cuts)],
            strict=True,
        )
        groups = [
            _Group(
                members, vectors, own - cut, *torch.unique(torch.cat([items, sample]), return_inverse=True)
            )
            for cut, members, vectors, own, items, sample in parts
        ]
        # one look-up for all, so that there is one gradient of the table's size
        tables = self._rows(item_table, torch.cat([group.distinct for group in groups]))
        vectors = torch.split(tables, [len(group.distinct) for group in groups])
        threshold, beta = self.threshold, None
        if threshold is not None:
            self._follow(threshold, batch, users, owner, item_table, groups, vectors)
            beta = threshold.value(batch)
        values = [
            differentiable_user_batch_loss(
                group.vectors,
                items,
                self._ends(group.users),
                group.places[: len(group.owner)],
                None if beta is None else beta[cut : cut + len(group.users)],
                self.loss,
                reduction=self.reduction,
                item_ids=group.places[len(group.owner) :],
                bfloat16=self.in_bfloat16,
            )
            for cut, group, items in zip(cuts, groups, vectors, strict=True)
        ]
        # means over positives or users of the groups, put together to that of the batch
        shares = counts if self.reduction == "positives" else [len(group.users) for group in groups]
        return torch.stack(values) @ (users.new_tensor(shares) / sum(shares))

    def _ends(self, users: Tensor) -> Tensor:
        """Where each user's positives begin and end, (B + 1,)."""
        return F.pad(self.index.degrees[users].cumsum(0), (1, 0))

    @torch.no_grad()
    def _follow(
        self,
        threshold: Threshold,
        batch: Tensor,
        users: Tensor,
        owner: Tensor,
        item_table: Tensor,
        groups: Sequence[_Group],
        tables: Sequence[Tensor],
    ) -> None:
        """Let thresholds see what there is to see of this batch's scores."""
        if isinstance(threshold, ExactQuantile):
            threshold.set(batch, kth_scores(users, self._whole(item_table), threshold.k))
            return
        if threshold.needs_full_row:
            self._follow_full_rows(threshold, batch, users, self._whole(item_table))
            return
        pos, neg, masks = [], [], []
        for group, items in zip(groups, tables, strict=True):
            places, sample = group.places.tensor_split([len(group.owner)])
            pos.append((group.vectors[group.owner] * items[places]).sum(-1))
            neg.append(group.vectors @ items[sample].T)
            # a drawn item that is a positive of a user says nothing about that user's other items
            masks.append(torch.zeros_like(neg[-1], dtype=torch.bool))
            masks[-1][meetings(group.owner, places, sample)] = True
        threshold.update(batch, torch.cat(pos), torch.cat(neg), mask=torch.cat(masks), owner=owner)


@dataclass(frozen=True, eq=False)
class _Group:
    """Users who share a sample."""

    users: Tensor  # (m,)
    vectors: Tensor  # (m, d)
    owner: Tensor  # (P,) each positive's place in `users`
    distinct: Tensor  # items needed, each once
    places: Tensor  # (P + n,) where the positives and then the sample are among them


class PositiveObjective(Objective):
    """Batches of positives, each with negatives of its own: the paper's protocol, for every loss."""

    def forward(
        self,
        batch: Tensor,
        generator: torch.Generator,
        *,
        frozen: bool = False,
        place: Place | None = None,
    ) -> Tensor:
        """Loss of the positives at the places `batch` (B,) of the index's edges."""
        user_table, item_table = self._tables(generator, frozen)
        if place is not None:
            # each process draws for its own positives, from numbers that differ between processes
            common = int(torch.randint(2**62, (), generator=generator))
            generator = generator_for(common, self.group.rank)
        if len(batch) == 0:
            return self._nothing(item_table)
        owners = torch.searchsorted(self.index.indptr, batch, right=True) - 1
        positives = self.index.indices[batch]
        drawn = self.negatives.draw(self.index, owners, generator)
        users = self._rows(user_table, self._in_table(owners))
        items, (places, others) = self._items(item_table, positives, drawn)
        pos = (users * items[places]).sum(-1)
        neg = sampled_scores(users, items, others)
        beta = None
        if self.threshold is not None:
            self._follow(self.threshold, owners, users, pos.detach(), neg.detach(), item_table)
            beta = self.threshold.value(owners)
        values = self.loss(
            pos,
            neg,
            threshold=beta,
            users=owners + self.users.start,
            items=drawn if self.loss.needs.ids else None,
        )
        value = (
            reduce_per_positive(values) if self.reduction == "positives" else reduce_per_user(values, owners)
        )
        return self._with_auxiliary(value, owners, positives, frozen, place)

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
