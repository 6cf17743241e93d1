"""Which users and items this process trains, and how the parts of all processes are combined.

The trainer makes one sharding and asks it for this process's backbone, batches and objective, and later for the metrics
and results of all processes. In this module users are divided among the processes and every process has all items; a
single process has all users. `item_sharding` divides the items too, `balanced_users` the work of each batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from talos import registry
from talos.backbones import Backbone
from talos.config import RunConfig
from talos.data.csr import TrainIndex
from talos.data.interactions import Interactions
from talos.data.shards import Share
from talos.distributed import Group
from talos.evaluation.evaluate import DEFAULT_METRICS, evaluate
from talos.evaluation.ranking import DotScores
from talos.kernels import kth_scores, user_exponent
from talos.training.batches import Batch, Batches, BatchOptions, BatchShare, EpochOrder
from talos.training.checkpoint import ShardedTensors
from talos.training.objective import Objective, PositiveObjective, UserObjective
from talos.training.parallel.gradient_sync import GradientSync
from talos.training.warm_start import start_from

__all__ = ["ShardedBatches", "UserSharding"]


class UserSharding:
    """Users divided among the processes of a group; every process has all items.

    `train` and `valid` are the interactions of all users, or this process's share of them; `weights`, for a single
    process, those of the train interactions. `users` and `items` are those that this process has, `index` the
    interactions that its steps need.

    >>> from talos.distributed import SINGLE_PROCESS
    >>> data = Interactions.from_ids([1, 1, 2], [7, 8, 9])
    >>> sharding = UserSharding(data, None, SINGLE_PROCESS, torch.device("cpu"))
    >>> sharding.users, sharding.items, sharding.user_degrees
    (range(0, 2), range(0, 3), tensor([2, 1]))
    """

    def __init__(
        self,
        train: Interactions | Share,
        valid: Interactions | Share | None,
        group: Group,
        device: torch.device,
        weights: NDArray[np.float32] | None = None,
    ) -> None:
        self.whole, self.group, self.weights = train, group, weights
        self.users, self.items = group.share(train.num_users), range(train.num_items)
        self.train = train.user_range(self.users)
        # users without training events have no vector to judge
        self.valid = None if valid is None else valid.user_range(self.users).of_users_in(self.train)
        self.index = self._index(device)

    def _index(self, device: torch.device) -> TrainIndex:
        return TrainIndex.from_interactions(self.train, device, weights=self.weights)

    @property
    def user_degrees(self) -> Tensor:
        """Number of interactions of each user that this process has."""
        return self.index.degrees

    # -------------------------------------------------------------------- training

    def backbone(self, config: RunConfig, generator: torch.Generator, *, cosine: bool) -> Backbone:
        """The backbone with this process's rows; they have the values that a single process would give them."""
        rows: dict[str, Any] = {**self._rows()} if self.group.size > 1 else {}
        made = registry.make_backbone(config.backbone, self.whole, generator=generator, **rows)
        known = self.train if isinstance(self.whole, Share) else self.whole
        index = self.index if self.group.size == 1 else TrainIndex.from_interactions(known)
        options: dict[str, Any] = {**rows, "group": self.group} if made.divisible else {}
        start_from(config.training.init, made, index, generator, cosine=cosine, **options)
        return made

    def _rows(self) -> dict[str, range]:
        """The ranges of rows that only this process has, by table."""
        return {"users": self.users}

    def batches(self, options: BatchOptions) -> Batches:
        """The batches of this process's steps."""
        if self.group.size == 1:
            return Batches(self.index.degrees, options)
        return ShardedBatches(self.index.degrees, options, self.group)

    def objective(self, kind: Literal["users", "positives"], *choices: Any) -> Objective:
        """The loss of this process's share of a batch, from the first four arguments of `Objective` and its options."""
        made = UserObjective if kind == "users" else PositiveObjective
        return made(*choices, index=self.index, users=self.users)

    def _own_tables(self, backbone: Backbone) -> dict[str, Tensor]:
        """The tables of which this process has only its own rows, by name."""
        return {of: getattr(backbone, of) for of in self._rows()} if backbone.divisible else {}

    def gradient_sync(self, objective: Objective) -> GradientSync:
        """What keeps the parameters that all processes have equal."""
        own = list(self._own_tables(objective.backbone).values())
        sharded = list(self._updated_by_rows(objective).values())
        return GradientSync(self.group, list(objective.parameters()), own, sharded)

    def _updated_by_rows(self, objective: Objective) -> dict[str, Tensor]:
        """Tables that all processes have and of which each updates a range of rows, by name.

        Tables with row-sparse gradients are updated whole by every process: that is faster than an all-gather.
        """
        if self.group.size == 1 or objective.touched_rows:
            return {}
        own, backbone = self._own_tables(objective.backbone), objective.backbone
        tables: dict[str, Tensor] = {"users": backbone.users, "items": backbone.items}
        return {of: table for of, table in tables.items() if of not in own and len(table) >= self.group.size}

    def sharded_tensors(self, objective: Objective) -> list[ShardedTensors]:
        """The tensors of a checkpoint of which this process has only its own rows."""
        if self.group.size == 1:
            return []
        own, updated = self._own_tables(objective.backbone), self._updated_by_rows(objective)
        rows = self._rows() | {of: self.group.share(len(table), of) for of, table in updated.items()}
        names: dict[str, list[str]] = {of: [] for of in rows}
        if objective.threshold is not None:
            names["users"] += [f"threshold.{name}" for name in objective.threshold.per_user]
        for of in own:
            names[of].append(f"backbone.{of}")
        found = {
            of: [f"{top}.{name}" for top in ("objective", "best", "average") for name in names[of]]
            for of in names
        }
        # the optimizer numbers the parameters of the backbone in order
        for number, parameter in enumerate(objective.backbone.parameters()):
            for of, table in (own | updated).items():
                if parameter is table:
                    slots = ("exp_avg", "exp_avg_sq", "visits")
                    found[of] += [f"optimizer.model.{number}.{slot}" for slot in slots]
        return [ShardedTensors(of=of, rows=rows[of], names=frozenset(found[of])) for of in rows]

    # --------------------------------------------------------------------- results

    def metrics(self, users: Tensor, items: Tensor, k: int) -> dict[str, float]:
        """Metrics on the validation set over all users, from the vectors that this process has."""
        names = [f"{name}@{k}" for name in DEFAULT_METRICS]
        if self.group.size == 1 and self.valid is not None:
            return evaluate(DotScores(users, items), self.valid, seen=self.train, ks=[k]).metrics
        sums = self._metric_sums(users, items, k)
        own = [float(sums.get(name, 0.0)) for name in (*names, "users")]
        *totals, count = (sum(column) for column in zip(*self.group.all_gather_numbers(own), strict=True))
        return {name: total / count for name, total in zip(names, totals, strict=True)}

    def _metric_sums(self, users: Tensor, items: Tensor, k: int) -> Mapping[str, float]:
        """The sum of each metric over this process's users, and the number of these users."""
        if self.valid is None or len(self.valid) == 0:
            return {}
        report = evaluate(DotScores(users, items), self.valid, seen=self.train, ks=[k])
        return {name: float(values.sum()) for name, values in report.per_user.items()} | {
            "users": report.num_users
        }

    def kth_scores(self, users: Tensor, items: Tensor, k: int) -> Tensor:
        """The exact K-th best scores over all items, of some of this process's users."""
        return kth_scores(users, items, k)

    def gather(
        self, users: Tensor, items: Tensor, thresholds: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None] | None:
        """The rows of all processes on rank 0, None elsewhere; with a `Share` of the data, each keeps its own users."""
        if isinstance(self.whole, Share):
            return users, items, thresholds
        all_users = self.group.gather_rows(users, self.whole.num_users)
        beta = thresholds
        if thresholds is not None:
            beta = self.group.gather_rows(thresholds, self.whole.num_users)
        return None if all_users is None else (all_users, items, beta)


@dataclass(frozen=True, eq=False)
class _SharedOrder(EpochOrder):
    """An epoch's order over the members of all processes."""

    weights: Tensor  # (steps,), of this process's share in each step


class ShardedBatches(Batches):
    """Batches whose members belong to several processes; each takes its own.

    The order is drawn over the members of all processes, so the batches are those of a single process with all users.
    Members of a batch ascend, and so do the users of the ranks, so a process's members are consecutive. `degrees` are
    those of this process's users.
    """

    def __init__(self, degrees: Tensor, options: BatchOptions, group: Group) -> None:
        super().__init__(degrees, options)
        counts = [int(count) for (count,) in group.all_gather_numbers([len(self.population)])]
        self.group, self.total, self.first = group, sum(counts), sum(counts[: group.rank])

    def order(self, generator: torch.Generator) -> EpochOrder:
        """Draw the order of one epoch."""
        positions = torch.randperm(self.total, generator=generator)
        mine = self._is_own(positions).nonzero().flatten()
        members = self.population.cpu()[positions[mine] - self.first]
        counts = torch.zeros(len(self), dtype=torch.float64)
        counts.index_add_(0, mine // self.size, self._weights(members, mine // self.size))
        return _SharedOrder(positions, counts / self.group.all_reduce_(counts.clone()))

    def _is_own(self, positions: Tensor) -> Tensor:
        return (positions >= self.first) & (positions < self.first + len(self.population))

    def _weights(self, members: Tensor, steps: Tensor) -> Tensor:
        """The weight of each member in the mean of its step."""
        ones = torch.ones(len(members), dtype=torch.float64)
        if self.options.kind == "users":
            exponent = user_exponent(self.options.user_power, self.options.reduction)
            return self.degrees.cpu()[members].double().pow(exponent)
        if self.options.reduction == "positives":
            return ones
        # a user counts once a step, however many positives of theirs it has
        users = torch.searchsorted(self.degrees.cpu().cumsum(0), members, right=True)
        _, which, times = torch.unique(
            steps * len(self.degrees) + users, return_inverse=True, return_counts=True
        )
        weights: Tensor = ones / times[which]
        return weights

    def batch(self, order: EpochOrder, step: int) -> Batch:
        """This process's members of one step, and their share in it."""
        assert isinstance(order, _SharedOrder)
        positions = self._positions(order, step)
        before = int((positions < self.first).sum())
        own = positions[self._is_own(positions)] - self.first
        members = self.population[own.to(self.population.device)]
        share = BatchShare(
            rank=self.group.rank, before=before, total=len(positions), weight=float(order.weights[step])
        )
        return Batch(members, share)
