"""Who has what: which users and items this process trains, and how the parts of all come together.

A `Division` is made once; whoever trains asks it for the backbone, the batches and the objective of this process, and
later for metrics and results of everybody. Here users are divided, or nobody is (the group of one has all users);
`talos.training.parallel.item_division` divides the items too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from talos import registry
from talos.backbones import Backbone
from talos.config import RunConfig
from talos.data.csr import TrainIndex
from talos.data.interactions import Interactions
from talos.data.shards import Share
from talos.distributed import Group, OwnedRows
from talos.evaluation.evaluate import DEFAULT_METRICS, evaluate
from talos.evaluation.ranking import DotScores
from talos.kernels import kth_scores
from talos.losses import Loss
from talos.negatives import Negatives
from talos.thresholds import Threshold
from talos.training.batches import Batches
from talos.training.checkpoint import Part
from talos.training.objective import Objective, PositiveObjective, UserObjective
from talos.training.parallel.replicas import Replicas
from talos.training.warm_start import start_from

__all__ = ["Division"]


class Division:
    """Users divided among the processes of a group; each has all items.

    Args:
        train: the interactions of everybody, or this process's share of them.
        valid: likewise.
        group: the processes.
        device: where the tensors go.

    Attributes:
        users: the users that this process has.
        items: the items that it has.
        index: the interactions that its steps need.

    >>> from talos.distributed import ALONE
    >>> division = Division(Interactions.from_ids([1, 1, 2], [7, 8, 9]), None, ALONE, torch.device("cpu"))
    >>> division.users, division.items, division.user_degrees
    (range(0, 2), range(0, 3), tensor([2, 1]))
    """

    def __init__(
        self,
        train: Interactions | Share,
        valid: Interactions | Share | None,
        group: Group,
        device: torch.device,
    ) -> None:
        self.whole, self.group = train, group
        self.users, self.items = group.share(train.num_users), range(train.num_items)
        self.train = train.user_range(self.users)
        self.valid = None if valid is None else valid.user_range(self.users)
        self.index = self._index(device)

    def _index(self, device: torch.device) -> TrainIndex:
        return TrainIndex.from_interactions(self.train, device)

    @property
    def user_degrees(self) -> Tensor:
        """Interactions of each user that this process has."""
        return self.index.degrees

    # ------------------------------------------------------------ what is trained

    def backbone(self, config: RunConfig, generator: torch.Generator, *, cosine: bool) -> Backbone:
        """This process's rows, as they are in the backbone of everybody."""
        rows: dict[str, Any] = {**self._rows()} if self.group.size > 1 else {}
        made = registry.make_backbone(config.backbone, self.whole, generator=generator, **rows)
        known = self.train if isinstance(self.whole, Share) else self.whole
        index = self.index if self.group.size == 1 else TrainIndex.from_interactions(known)
        options: dict[str, Any] = {**rows, "group": self.group} if made.divisible else {}
        start_from(config.training.init, made, index, generator, cosine=cosine, **options)
        return made

    def _rows(self) -> dict[str, range]:
        """Rows of the tables that are this process's alone, by what they are of."""
        return {"users": self.users}

    def batches(
        self,
        kind: Literal["users", "positives"],
        *,
        size: int,
        only_users: Tensor | None,
        reduction: Literal["positives", "users"],
    ) -> Batches:
        """What its steps are made of."""
        return Batches(
            self.index.degrees,
            kind=kind,
            size=size,
            only_users=only_users,
            group=self.group,
            reduction=reduction,
        )

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
        """The loss of this process's part of a batch of users or positives; the rest is as `Objective` has it."""
        return self._objective(kind)(
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
        )

    def _objective(self, kind: Literal["users", "positives"]) -> type[Objective]:
        return UserObjective if kind == "users" else PositiveObjective

    def own_parameters(self, backbone: Backbone) -> dict[str, Tensor]:
        """The parameters that are this process's alone, by what their rows are of."""
        return {of: getattr(backbone, of) for of in self._rows()} if backbone.divisible else {}

    def replicas(self, objective: Objective) -> Replicas:
        """What keeps the other parameters the same everywhere."""
        own = list(self.own_parameters(objective.backbone).values())
        divided = list(self._divided(objective).values())
        return Replicas(self.group, list(objective.parameters()), own, divided)

    def _divided(self, objective: Objective) -> dict[str, Tensor]:
        """Tables that all processes have, of which each updates a range of rows; by what their rows are of.

        Those with row-sparse gradients are updated by everybody: it is quicker than to bring their rows together.
        """
        if self.group.size == 1 or objective.touched_rows:
            return {}
        own, backbone = self.own_parameters(objective.backbone), objective.backbone
        tables: dict[str, Tensor] = {"users": backbone.users, "items": backbone.items}
        return {of: table for of, table in tables.items() if of not in own and len(table) >= self.group.size}

    def parts(self, objective: Objective) -> list[Part]:
        """Which tensors of a checkpoint have rows of this process alone."""
        if self.group.size == 1:
            return []
        own, divided = self.own_parameters(objective.backbone), self._divided(objective)
        rows = self._rows() | {of: self.group.share(len(table), of) for of, table in divided.items()}
        names: dict[str, list[str]] = {of: [] for of in rows}
        if objective.threshold is not None:
            names["users"] += [f"threshold.{name}" for name in objective.threshold.per_user]
        for of in own:
            names[of].append(f"backbone.{of}")
        found = {of: [f"{top}.{name}" for top in ("objective", "best") for name in names[of]] for of in names}
        # the optimiser has one number for each parameter of the backbone, in order
        for number, parameter in enumerate(objective.backbone.parameters()):
            for of, table in (own | divided).items():
                if parameter is table:
                    found[of] += [f"optimizer.model.{number}.{slot}" for slot in ("exp_avg", "exp_avg_sq")]
        return [Part(of=of, rows=rows[of], names=frozenset(found[of])) for of in rows]

    # ------------------------------------------------------------------ what came out

    def metrics(self, users: Tensor, items: Tensor, k: int) -> dict[str, float]:
        """Metrics on the validation set, of all users; from the vectors that this process has."""
        names = [f"{name}@{k}" for name in DEFAULT_METRICS]
        if self.group.size == 1 and self.valid is not None:
            return evaluate(DotScores(users, items), self.valid, seen=self.train, ks=[k]).metrics
        sums = self._metric_sums(users, items, k)
        own = [float(sums.get(name, 0.0)) for name in (*names, "users")]
        *totals, count = (sum(column) for column in zip(*self.group.exchange(own), strict=True))
        return {name: total / count for name, total in zip(names, totals, strict=True)}

    def _metric_sums(self, users: Tensor, items: Tensor, k: int) -> Mapping[str, float]:
        """The sum of each metric over this process's users, and how many they are."""
        if self.valid is None or len(self.valid) == 0:
            return {}
        report = evaluate(DotScores(users, items), self.valid, seen=self.train, ks=[k])
        return {name: float(values.sum()) for name, values in report.per_user.items()} | {
            "users": report.num_users
        }

    def kth_scores(self, users: Tensor, items: Tensor, k: int) -> Tensor:
        """The exact K-th best scores over all items, of some of this process's users."""
        return kth_scores(users, items, k)

    def bring_together(
        self, users: Tensor, items: Tensor, thresholds: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None] | None:
        """The same of everybody on rank 0, None elsewhere; of shares, that of this process's users on each."""
        if isinstance(self.whole, Share):
            return users, items, thresholds
        everybody = self.group.bring_together(users, self.whole.num_users)
        beta = thresholds
        if thresholds is not None:
            beta = self.group.bring_together(thresholds, self.whole.num_users)
        return None if everybody is None else (everybody, items, beta)

    def blocks(self, count: int, size: int) -> Iterator[tuple[slice, OwnedRows]]:
        """`count` rows of this process, some at a time together with those of the others, until all are done.

        >>> from talos.distributed import ALONE
        >>> division = Division(Interactions.from_ids([1, 2], [7, 8]), None, ALONE, torch.device("cpu"))
        >>> [(here, rows.counts) for here, rows in division.blocks(5, 3)]
        [(slice(0, 3, None), [3]), (slice(3, 5, None), [2])]
        """
        counts = [int(theirs) for (theirs,) in self.group.exchange([count])]
        for start in range(0, max(counts), size):
            here = slice(min(start, count), min(start + size, count))
            yield here, OwnedRows(self.group, [min(size, max(0, theirs - start)) for theirs in counts])
