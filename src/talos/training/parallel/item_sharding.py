"""Items divided among the processes as well as users: no process has the whole catalogue.

A rank has a range of items (their rows, optimizer state, and the interactions of all users with them) and a range of
users. All ranks work on the same whole batch, each on its own items: see `talos.kernels.batch`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from talos.data.csr import TrainIndex
from talos.data.interactions import Interactions
from talos.data.shards import ShardColumns, Share
from talos.data.vocabulary import Vocabulary
from talos.distributed import Group, OwnedRows
from talos.errors import ConfigError
from talos.evaluation.evaluate import DEFAULT_METRICS, measure_lists
from talos.evaluation.ranking import DotScores, top_k
from talos.kernels import differentiable_divided_loss, divided_kth_scores
from talos.losses import UserSeparableLoss
from talos.thresholds import ExactQuantile
from talos.training.batches import Batch, Batches, BatchOptions
from talos.training.objective import Objective
from talos.training.parallel.sharding import UserSharding

__all__ = ["ItemObjective", "ItemSharding"]

# Users ranked at a time, over all processes.
_BLOCK = 4096


class ItemSharding(UserSharding):
    """Users and items divided among the processes of a group."""

    def __init__(
        self,
        train: Interactions | Share,
        valid: Interactions | Share | None,
        group: Group,
        device: torch.device,
    ) -> None:
        super().__init__(train, valid, group, device)
        # of all users, over all items
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
        """Number of interactions of each user that this process has."""
        return self.degrees[self.users.start : self.users.stop]

    def _rows(self) -> dict[str, range]:
        return {"users": self.users, "items": self.items}

    def batches(self, options: BatchOptions) -> Batches:
        """Whole batches: every process works on all users of a batch."""
        return Batches(self.degrees, options)

    def objective(self, kind: Literal["users", "positives"], *choices: Any) -> Objective:
        """The loss of a whole batch of users over this process's items."""
        return ItemObjective(
            *choices,
            index=self.index,
            users=self.users,
            group=self.group,
            degrees=self.degrees,
            num_items=self.whole.num_items,
        )

    def _metric_sums(self, users: Tensor, items: Tensor, k: int) -> Mapping[str, float]:
        sums = dict.fromkeys((f"{name}@{k}" for name in DEFAULT_METRICS), 0.0)
        measured = np.empty(0, np.int64) if self.valid is None else np.flatnonzero(self.valid.user_degrees)
        for here, rows in self._blocks(len(measured), max(1, _BLOCK // self.group.size)):
            some = measured[here]
            lists = self._lists(users, items, torch.from_numpy(some), rows, k)
            if self.valid is None or len(some) == 0:
                continue
            found = measure_lists(lists.numpy(), some, self.valid, [k], DEFAULT_METRICS, "standard")
            for name, values in found.items():
                sums[name] += float(values.sum())
        return sums | {"users": float(len(measured))}

    def _lists(self, users: Tensor, items: Tensor, some: Tensor, rows: OwnedRows, k: int) -> Tensor:
        """The K best items of some of this process's users, merged from every rank's K best of its own items."""
        codes = rows.spread(some + self.users.start)
        vectors = rows.spread(users[some.to(users.device)])
        best = top_k(_Unseen(vectors, items, self.index, codes), k=min(k, len(items)))
        # a rank with fewer than K items fills its list up with items that have no score
        short = (0, k - best.items.shape[1])
        scores = rows.collect(F.pad(torch.from_numpy(best.scores), short, value=-torch.inf))
        places = rows.collect(F.pad(torch.from_numpy(best.items) + self.items.start, short, value=-1))
        # ties go to the first position: a stable sort keeps ranks, and each rank's list, in ascending order
        order = scores.movedim(0, 1).flatten(1).sort(dim=1, descending=True, stable=True)
        merged = places.movedim(0, 1).flatten(1).gather(1, order.indices)[:, :k]
        return merged.masked_fill(order.values[:, :k] == -torch.inf, -1)

    def kth_scores(self, users: Tensor, items: Tensor, k: int) -> Tensor:
        """The exact K-th best scores over all items, of some of this process's users."""
        found = users.new_empty(len(users))
        for here, rows in self._blocks(len(users), max(1, _BLOCK // self.group.size)):
            found[here] = divided_kth_scores(users[here], items, k, rows)
        return found

    def gather(
        self, users: Tensor, items: Tensor, thresholds: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None] | None:
        """As `UserSharding.gather`; with a `Share` of the data, each rank gets all items."""
        if isinstance(self.whole, Share):
            counts = [len(share) for share in self.group.shares(self.whole.num_items, of="items")]
            return users, self.group.all_gather_rows(items, counts), thresholds
        found = super().gather(users, items, thresholds)
        catalogue = self.group.gather_rows(items, self.whole.num_items)
        return None if found is None or catalogue is None else (found[0], catalogue, found[2])

    def _blocks(self, count: int, size: int) -> Iterator[tuple[slice, OwnedRows]]:
        """Blocks of at most `size` of this rank's `count` rows, with the rows of all ranks' blocks.

        A rank whose rows are done takes part with empty blocks until those of all ranks are.
        """
        counts = [int(theirs) for (theirs,) in self.group.all_gather_numbers([count])]
        for start in range(0, max(counts), size):
            here = slice(min(start, count), min(start + size, count))
            yield here, OwnedRows(self.group, [min(size, max(0, theirs - start)) for theirs in counts])


class ItemObjective(Objective):
    """Batches of users with all their positives, over this process's part of all items.

    The backbone has this process's users and items, the threshold (exact, fixed or none) its users, the index the
    interactions of all users with its items. `degrees` and `num_items` are those of all items.
    """

    loss: UserSeparableLoss

    def __init__(self, *choices: Any, group: Group, degrees: Tensor, num_items: int, **options: Any) -> None:
        super().__init__(*choices, **options)
        self.group, self.degrees, self.num_items = group, degrees, num_items
        shares = group.shares(self.index.num_users)
        self.bounds = torch.tensor([0, *(share.stop for share in shares)], device=degrees.device)

    def forward(self, batch: Batch, generator: torch.Generator, *, frozen: bool = False) -> Tensor:
        """This process's part of the loss of a whole batch of distinct users (B,)."""
        members = batch.members
        user_table, item_table = self._tables(generator, frozen)
        rows = OwnedRows(self.group, torch.searchsorted(members, self.bounds).diff().tolist())
        own = members[rows.own] - self.users.start
        threshold = self.threshold
        exact = threshold if isinstance(threshold, ExactQuantile) else None
        value, beta = differentiable_divided_loss(
            self._rows(user_table, own, distinct=True),
            item_table,
            F.pad(self.index.degrees[members].cumsum(0), (1, 0)),
            self.index.pairs_of(members)[1],
            None if threshold is None or exact is not None else threshold.value(own),
            self.loss,
            rows,
            degrees=self.degrees[members],
            num_items=self.num_items,
            k=None if exact is None else exact.k,
            reduction=self.reduction,
            normalize_items=self.cosine,
            bfloat16=self.in_bfloat16,
        )
        if exact is not None:
            exact.set(own, beta)
        return value


class _Unseen(DotScores):
    """Scores of some users (B, d) on this process's items; items that a user has score -inf."""

    def __init__(self, users: Tensor, items: Tensor, index: TrainIndex, codes: Tensor) -> None:
        super().__init__(users, items)
        self.index, self.codes = index, codes.to(index.device)

    def scores(self, users: Tensor, out: Tensor) -> None:
        """Dot products, with -inf for the items that the user has."""
        super().scores(users, out)
        out[self.index.pairs_of(self.codes[users])] = -torch.inf


def _columns(share: Share) -> ShardColumns:
    if share.columns is None:
        raise ConfigError(
            "'items' with interactions of some users alone",
            where="parallel",
            expected="a folder of shards, or 'users'",
        )
    return share.columns


def _of_items(train: Interactions, items: range) -> Interactions:
    """The interactions with a range of items, whose codes start at 0."""
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
