"""The four choices put together: backbone × loss × negatives × threshold → the loss of one batch of rows.

Nothing here depends on the name of any of the four: the loss states what it needs, the negatives what one draw is for,
the threshold what it is updated from.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from talos.backbones import Backbone
from talos.backbones.tables import look_up, memory_for_gradient
from talos.distributed import SINGLE_PROCESS
from talos.kernels import kth_scores
from talos.kernels.batch import batch_loss, in_autograd
from talos.kernels.csr import CSR, Batch, TrainIndex
from talos.kernels.sampled import sampled_scores
from talos.kernels.vectors import (
    ItemVectors,
    Samples,
    distinct_rows,
    drawn_positives,
    pair_scores,
    sample_scores,
)
from talos.losses import ListLoss, Loss, PairwiseLoss, UserSeparableLoss
from talos.negatives import Negatives
from talos.thresholds import Threshold
from talos.training.batches import generator_for
from talos.training.division import Division

__all__ = ["Objective"]

# Scores held at a time while thresholds are updated from all items: a few MB, so that they stay in cache.
_ROW_BLOCK = 1 << 20


class Objective(nn.Module):
    """The loss of a batch, differentiable. Thresholds are updated from the batch's scores on the way.

    Args:
        backbone: gives vectors.
        loss: turns scores into numbers.
        negatives: where negatives come from.
        threshold: β per user; None for a loss without one.
        index: the train interactions.
        division: what this process trains; all users and items if None.
        bfloat16: let kernels round the factors of products: `talos.kernels.user_batch_loss`.
    """

    def __init__(
        self,
        backbone: Backbone,
        loss: Loss,
        negatives: Negatives,
        threshold: Threshold | None,
        *,
        index: TrainIndex,
        division: Division | None = None,
        bfloat16: bool = False,
    ) -> None:
        super().__init__()
        self.backbone, self.loss, self.threshold = backbone, loss, threshold
        self.negatives, self.index, self.in_bfloat16 = negatives, index, bfloat16
        self.division = division or Division(range(index.num_users), range(index.num_items))
        # with items divided, a process has the thresholds of its users and every row of a batch
        self.first_user = self.division.users.start if self.division.by_items else 0
        self.items_group = self.division.group if self.division.by_items else SINGLE_PROCESS
        self.cosine = loss.needs.scores == "cosine"
        self._unit_items: Tensor | None = None

    def forward(self, batch: Batch, generator: torch.Generator, *, frozen: bool = False) -> Tensor:
        """Loss of a batch (a scalar); with `frozen` the vectors are constants, to train an adversary only.

        With several processes, their losses sum to that of the whole batch. Every process draws the same numbers from
        `generator`, whatever its rows.
        """
        self.backbone.train(not frozen)
        items = self.backbone.items(generator=generator)
        by_positive = self.negatives.per == "positive"
        drawn = None
        if self.negatives.per == "batch":  # for all rows, so that all processes have the same samples
            drawn = self.negatives.draw(self.index, batch.users.new_zeros(batch.total), generator)
        elif by_positive and self.division.group.size > 1:  # each process draws for its own rows
            generator = generator_for(
                int(torch.randint(2**62, (), generator=generator)), self.division.group.rank
            )
        if len(batch.users) == 0:
            if self.threshold is not None:
                self.threshold.step_without_users()
            return items.new_zeros((), requires_grad=True)
        if self.division.by_items:
            users = self.division.batch_users(self.backbone, batch, items, generator)
        else:
            users = self.backbone.users(batch, items, generator=generator)
        if frozen:
            users, items = users.detach(), items.detach()
        users = F.normalize(users) if self.cosine else users
        if by_positive:
            value = self._per_positive(batch, users, items, generator)
        elif drawn is not None:
            value = self._over_samples(batch, users, items, drawn)
        else:
            value = self._over_all(batch, users, items)
        if frozen or not self.backbone.has_auxiliary_loss:
            return value
        # the backbone's own loss treats these rows as a batch, and is weighted by their number
        extra = self.backbone.auxiliary_loss(batch, bfloat16=self.in_bfloat16)
        return value + extra * (len(batch.users) / batch.total)

    @torch.no_grad()
    def vectors(self, batches: Iterable[Batch]) -> tuple[Tensor, Tensor]:
        """The vectors of all rows of some batches and of all items as they are scored."""
        self.backbone.eval()
        items = self.backbone.items().detach()
        users = torch.cat([self.backbone.users(batch, items).detach() for batch in batches])
        return self._scored(users), self._scored(items)

    def _over_all(self, batch: Batch, users: Tensor, items: Tensor) -> Tensor:
        """The loss over all items."""
        assert isinstance(self.loss, UserSeparableLoss | PairwiseLoss | ListLoss)
        table = ItemVectors(items, normalize=self.cosine, memory=self._memory_for_units(items))
        threshold, beta = self.threshold, None
        exact = threshold is not None and threshold.exact
        if threshold is not None and not exact:
            self._update_from_all_items(threshold, batch.users, users.detach(), table.scored)
            beta = threshold.value(batch.users - self.first_user)
        excluded = batch.positives if batch.excluded is None else batch.excluded
        leaf = items.is_leaf and items.requires_grad and items.dtype == table.scored.dtype
        compute = partial(
            batch_loss,
            users.detach(),
            table,
            batch.positives,
            excluded,
            beta,
            self.loss,
            batch.weights,
            k=threshold.k if threshold is not None and exact else None,
            bfloat16=self.in_bfloat16,
            item_gradient=memory_for_gradient(items) if leaf else None,
            user_ids=batch.users + self.division.users.start if self.loss.needs.ids else None,
            group=self.items_group,
        )
        return in_autograd(users, items, self.loss, compute)

    def _memory_for_units(self, items: Tensor) -> Tensor | None:
        """Memory for the normalised items, the same in every step."""
        if not self.cosine or items.device.type != "cpu" or items.dtype != torch.float32:
            return None
        if self._unit_items is None or self._unit_items.shape != items.shape:
            self._unit_items = torch.empty_like(items.detach(), memory_format=torch.contiguous_format)
        return self._unit_items

    def _over_samples(self, batch: Batch, users: Tensor, items: Tensor, drawn: Tensor) -> Tensor:
        """The loss over samples: row g of `drawn` (G, n) is shared by the g-th of G equal parts of the batch."""
        assert isinstance(self.loss, UserSeparableLoss | PairwiseLoss)
        size = -(-batch.total // len(drawn))
        # the first sample here may be shared with rows of the process before this one
        cuts = [max(0, cut) for cut in range(-(batch.first % size), len(batch.users), size)]
        drawn = drawn[batch.first // size :][: len(cuts)]
        # one look-up of all rows that are needed, so that there is one gradient of the table's size
        own = batch.positives.items
        needed, index = distinct_rows(torch.cat([own, drawn.flatten()]), len(items))
        rows = look_up(items, needed, distinct=True)
        positives = batch.positives._replace(items=index[: len(own)])
        bounds = torch.tensor([*cuts, len(batch.users)], device=own.device)
        samples = Samples(index[len(own) :].view(drawn.shape), bounds)
        table = ItemVectors(rows, normalize=self.cosine, in_place=True)
        excluded = drawn_positives(positives, samples, len(rows))
        beta = self._threshold_of_samples(batch, users.detach(), items, table, positives, samples, excluded)
        compute = partial(
            batch_loss,
            users.detach(),
            table,
            positives,
            excluded,
            beta,
            self.loss,
            batch.weights,
            samples=samples,
            bfloat16=self.in_bfloat16,
        )
        return in_autograd(users, rows, self.loss, compute)

    @torch.no_grad()
    def _threshold_of_samples(
        self,
        batch: Batch,
        users: Tensor,
        items: Tensor,
        table: ItemVectors,
        positives: CSR,
        samples: Samples,
        excluded: CSR,
    ) -> Tensor | None:
        """Thresholds of the rows, updated from the scores of their samples or of all items."""
        threshold = self.threshold
        if threshold is None:
            return None
        if threshold.needs_full_row:
            self._update_from_all_items(threshold, batch.users, users, self._scored(items))
        else:
            negatives = sample_scores(users, table.scored, samples)
            # a drawn item that is a positive of a row says nothing about its other items
            mask = torch.zeros_like(negatives, dtype=torch.bool)
            mask[excluded.rows, excluded.items] = True
            scores = pair_scores(users, table.scored, positives)
            threshold.update(batch.users, scores, negatives, mask=mask, owner=positives.rows)
        return threshold.value(batch.users)

    def _per_positive(self, batch: Batch, users: Tensor, items: Tensor, generator: torch.Generator) -> Tensor:
        """The loss of single positives, each with its own negatives: the paper's protocol, for every loss."""
        drawn = self.negatives.draw(self.index, batch.users, generator)
        table, (own, others) = self._needed(items, batch.positives.items, drawn)
        # not `table[own]`: with several threads its gradient adds up in an order that changes from run to run
        pos = (users * F.embedding(own, table)).sum(-1)
        neg = sampled_scores(users, table, others)
        beta = None
        if self.threshold is not None:
            self._update_threshold(self.threshold, batch, users.detach(), pos.detach(), neg.detach(), items)
            beta = self.threshold.value(batch.users)
        values: Tensor = self.loss(
            pos,
            neg,
            threshold=beta,
            users=batch.users + self.division.users.start,
            items=drawn if self.loss.needs.ids else None,
        )
        return (values * batch.weights).sum()

    @torch.no_grad()
    def _update_threshold(
        self, threshold: Threshold, batch: Batch, users: Tensor, pos: Tensor, neg: Tensor, items: Tensor
    ) -> None:
        """Update thresholds from the scores of single positives with negatives of their own."""
        if threshold.needs_full_row:
            # a user's rows are consecutive, because the rows of a batch ascend; the first one stands for all of them
            distinct, times = torch.unique_consecutive(batch.users, return_counts=True)
            first = times.cumsum(0) - times
            self._update_from_all_items(threshold, distinct, users[first], self._scored(items))
        elif threshold.pools_positives:
            positives, _ = self.index.csr_of(batch.users)
            table, (needed,) = self._needed(items, positives.items)
            scores = pair_scores(users, table.contiguous(), positives._replace(items=needed))
            threshold.update(batch.users, scores, neg, owner=positives.rows)
        else:
            threshold.update(batch.users, pos, neg)

    def _needed(self, items: Tensor, *needed: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Scored vectors of at least the needed items, and the rows of the needed ones among them.

        The whole table where most of it is needed anyway; only the distinct needed rows otherwise.
        """
        if sum(map(torch.numel, needed)) >= len(items) // 2:
            return self._scored(items), list(needed)
        distinct, index = distinct_rows(torch.cat([ids.flatten() for ids in needed]), len(items))
        pieces = torch.split(index, [ids.numel() for ids in needed])
        table = self._scored(look_up(items, distinct, distinct=True))
        return table, [piece.view(ids.shape) for piece, ids in zip(pieces, needed, strict=True)]

    def _scored(self, vectors: Tensor) -> Tensor:
        return F.normalize(vectors) if self.cosine else vectors

    @torch.no_grad()
    def _update_from_all_items(
        self, threshold: Threshold, users: Tensor, vectors: Tensor, items: Tensor
    ) -> None:
        """Update the thresholds of distinct users from the scores of all items."""
        if threshold.exact:
            threshold.set(users, kth_scores(vectors, items, threshold.k))
            return
        block = max(1, _ROW_BLOCK // len(items))
        for start in range(0, len(users), block):
            threshold.update_rows(users[start : start + block], vectors[start : start + block] @ items.T)
