"""The interface of all threshold estimators, and the table of one value per user that most of them keep."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from talos.checks import check_finite, describe, positive_integer, require
from talos.errors import ArgumentError

__all__ = ["PerUser", "Sample", "Threshold", "mean_by_user"]


@dataclass(frozen=True)
class Sample:
    """Scores of a mini-batch's positives and sampled negatives; see `Threshold.update` for each."""

    users: Tensor
    positives: Tensor
    negatives: Tensor
    mask: Tensor | None
    owner: Tensor | None


class Threshold(nn.Module):
    """One threshold per user, updated from the scores of each training step.

    A subclass implements `value`, `update_sample` and `update_rows`; `talos.registry` says how to describe options.

    Attributes:
        k: K.
        exact: whether it is the K-th best of all scores, which a kernel that goes over all items finds on the way.
        needs_full_row: whether it can only be updated from all items' scores, with `update_rows`.
        pools_positives: whether every row of a sample must come with all positives of its user (`owner`).
        per_user: names of the buffers with one row per user.
    """

    short_name: ClassVar[str] = ""
    context: ClassVar[tuple[str, ...]] = ("num_users", "k", "num_items", "num_positives")
    exact: ClassVar[bool] = False
    needs_full_row: ClassVar[bool] = False
    pools_positives: ClassVar[bool] = False
    per_user: ClassVar[tuple[str, ...]] = ()
    k: int

    @abstractmethod
    def value(self, users: Tensor) -> Tensor:
        """β (B,) of the users with these indices, detached."""

    @torch.no_grad()
    def update(
        self,
        users: Tensor,
        positives: Tensor,
        negatives: Tensor,
        *,
        mask: Tensor | None = None,
        owner: Tensor | None = None,
    ) -> None:
        """Update from the scores of positives and sampled negatives.

        Two layouts. Without `owner` each row is one positive with its own negatives, and a user may occur in
        several rows. With `owner` each row has all positives of its user; only estimators with `pools_positives`
        accept a user in several such rows.

        Args:
            users: (B,) indices.
            positives: scores, (B,) or, with `owner`, flat (P,).
            negatives: scores (B, N), drawn uniformly from the items that are no positive of the user.
            mask: (B, N), True where a negative is really a positive and is left out.
            owner: (P,), the row in `users` that each positive belongs to.

        >>> from talos.thresholds import FixedThreshold
        >>> FixedThreshold().update(torch.tensor([0, 1]), torch.zeros(2), torch.zeros(3, 4))
        Traceback (most recent call last):
        talos.errors.ArgumentError: negatives: has shape (3, 4), dtype torch.float32; expected shape (2, N)
        """
        require(
            users.ndim == 1 and not users.is_floating_point(),
            describe(users),
            where="users",
            expected="indices of shape (B,)",
        )
        wanted = users.shape if owner is None else owner.shape
        require(
            positives.ndim == 1 and positives.shape == wanted,
            describe(positives),
            where="positives",
            expected=f"shape {tuple(wanted)}",
        )
        require(
            negatives.ndim == 2 and len(negatives) == len(users),
            describe(negatives),
            where="negatives",
            expected=f"shape ({len(users)}, N)",
        )
        require(
            mask is None or (mask.shape == negatives.shape and mask.dtype == torch.bool),
            describe(mask),
            where="mask",
            expected=f"booleans of shape {tuple(negatives.shape)}",
        )
        self.update_sample(Sample(users, positives, negatives, mask, owner))

    @abstractmethod
    def update_sample(self, sample: Sample) -> None:
        """Update from a sample whose shapes and types have been checked; called without autograd."""

    @abstractmethod
    def update_rows(self, users: Tensor, scores: Tensor) -> None:
        """Update from the scores (B, |I|) of all items, for users (B,) that occur once each."""

    def set(self, users: Tensor, values: Tensor) -> None:
        """Store values that were computed elsewhere; a threshold that keeps none ignores them."""

    def step_without_users(self) -> None:
        """Take a step without any users of this process; an estimator with momentum moves here too."""

    @torch.no_grad()
    def error_against(self, exact: Tensor | Threshold, users: Tensor | None = None) -> float:
        """Mean over users of |estimate - exact|: the quality of the estimate.

        Args:
            exact: the true K-th scores (B,), or an estimator that holds them.
            users: (B,) indices; all users, in order, where `exact` is a tensor and this is left out.

        >>> from talos.thresholds import FixedThreshold
        >>> FixedThreshold(0.5).error_against(torch.tensor([0.5, 0.75]))
        0.125
        """
        if users is None:
            if isinstance(exact, Threshold):
                raise ArgumentError("is missing", where="users", expected="the users to compare on")
            users = torch.arange(len(exact), device=exact.device)
        truth = exact.value(users) if isinstance(exact, Threshold) else exact
        require(
            truth.shape == users.shape, describe(truth), where="exact", expected=f"shape {tuple(users.shape)}"
        )
        return (self.value(users) - truth).abs().mean().item()


class PerUser(Threshold):
    """A table of one value per user, which starts at `unseen` for all users."""

    table: Tensor
    per_user: ClassVar[tuple[str, ...]] = ("table",)

    def __init__(self, num_users: int, *, k: int, num_items: int | None = None, unseen: float = 0.0) -> None:
        super().__init__()
        self.num_users = positive_integer("num_users", num_users)
        self.num_items = None if num_items is None else positive_integer("num_items", num_items)
        self.k = positive_integer("k", k)
        self.unseen = float(unseen)
        require(
            num_items is None or k <= num_items,
            f"got {k}",
            where="k",
            expected=f"1 to {num_items}, the number of items",
        )
        self.register_buffer("table", torch.full((num_users,), self.unseen))

    def value(self, users: Tensor) -> Tensor:
        """β (B,); `unseen` for a user without an update so far."""
        return self.table[users]

    def extra_repr(self) -> str:
        """Sizes, for `repr`."""
        return f"{self.num_users}, k={self.k}, num_items={self.num_items}"

    @torch.no_grad()
    def set(self, users: Tensor, values: Tensor) -> None:
        """Store values that were computed elsewhere, for distinct users."""
        require(
            values.shape == users.shape,
            describe(values),
            where="values",
            expected=f"shape {tuple(users.shape)}",
        )
        check_finite("values", values)
        self.table[users] = values.to(self.table.dtype)

    def _check_rows(self, users: Tensor, scores: Tensor) -> None:
        require(
            scores.ndim == 2 and len(scores) == len(users) and scores.shape[1] >= self.k,
            describe(scores),
            where="scores",
            expected=f"shape ({users.shape[0]}, |I|) with at least k={self.k} items",
        )
        require(
            self.num_items is None or scores.shape[1] == self.num_items,
            describe(scores),
            where="scores",
            expected=f"shape ({users.shape[0]}, {self.num_items}), all items",
        )


def mean_by_user(users: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct users and the mean of the values of each.

    >>> mean_by_user(torch.tensor([7, 3, 7]), torch.tensor([1.0, 5.0, 2.0]))
    (tensor([3, 7]), tensor([5.0000, 1.5000]))
    """
    distinct, row_of, count = torch.unique(users, return_inverse=True, return_counts=True)
    return distinct, values.new_zeros(len(distinct)).index_add(0, row_of, values) / count
