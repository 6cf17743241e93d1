"""What every estimator is to a trainer, and the table of one value per user that most of them keep."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

from talos.errors import ArgumentError
from talos.thresholds.checks import at_least_one, check_finite, describe

__all__ = ["PerUser", "Threshold"]


class Threshold(nn.Module):
    """One threshold per user, and how it follows the scores.

    Attributes:
        needs_full_row: whether only `update_rows` (all items' scores) will do.
    """

    short_name: ClassVar[str] = ""
    needs_full_row: ClassVar[bool] = False
    per_user: ClassVar[tuple[str, ...]] = ()  # names of the buffers with one row per user

    @abstractmethod
    def value(self, users: Tensor) -> Tensor:
        """β (B,) of the users with these indices, detached."""

    @abstractmethod
    def update(
        self,
        users: Tensor,
        positives: Tensor,
        negatives: Tensor,
        *,
        mask: Tensor | None = None,
        owner: Tensor | None = None,
    ) -> None:
        """Follow the scores of positives and sampled negatives.

        Two layouts. Without `owner` each row is one positive with its own negatives, and a user may come in
        several rows. With `owner` each row is one user, once, and brings all positives that the user has.

        Args:
            users: (B,) indices.
            positives: scores, (B,) or, with `owner`, flat (P,).
            negatives: scores (B, N), drawn uniformly from what is no positive of the user.
            mask: (B, N), True where a negative is really a positive and is left out.
            owner: (P,), the row in `users` that each positive belongs to.
        """

    @abstractmethod
    def update_rows(self, users: Tensor, scores: Tensor) -> None:
        """Follow the scores (B, |I|) of all items, for users (B,) that occur once each."""

    def rest(self) -> None:
        """A step in which none of these users took part; those who follow by momentum move on."""
        return

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
        if truth.shape != users.shape:
            raise ArgumentError(describe(truth), where="exact", expected=f"shape {tuple(users.shape)}")
        return (self.value(users) - truth).abs().mean().item()


class PerUser(Threshold):
    """What the estimators with a table of one value per user share."""

    table: Tensor
    per_user: ClassVar[tuple[str, ...]] = ("table",)

    def __init__(self, num_users: int, *, k: int, num_items: int | None, start: float) -> None:
        super().__init__()
        self.num_users = at_least_one("num_users", num_users)
        self.num_items = None if num_items is None else at_least_one("num_items", num_items)
        self.k = at_least_one("k", k)
        if num_items is not None and k > num_items:
            raise ArgumentError(f"got {k}", where="k", expected=f"1 to {num_items}, the number of items")
        self.register_buffer("table", torch.full((num_users,), float(start)))

    def value(self, users: Tensor) -> Tensor:
        """β (B,); a user never seen has the value that the table starts with."""
        return self.table[users]

    def extra_repr(self) -> str:
        """What was asked for, for `repr`."""
        return f"{self.num_users}, k={self.k}, num_items={self.num_items}"

    @torch.no_grad()
    def set(self, users: Tensor, values: Tensor) -> None:
        """Store values found elsewhere, such as by a kernel that sweeps over all items."""
        if values.shape != users.shape:
            raise ArgumentError(describe(values), where="values", expected=f"shape {tuple(users.shape)}")
        check_finite("values", values)
        self.table[users] = values.to(self.table.dtype)

    def _check_rows(self, users: Tensor, scores: Tensor) -> None:
        if scores.ndim != 2 or scores.shape[0] != users.shape[0] or scores.shape[1] < self.k:
            expected = f"shape ({users.shape[0]}, |I|) with at least k={self.k} items"
            raise ArgumentError(describe(scores), where="scores", expected=expected)
        if self.num_items is not None and scores.shape[1] != self.num_items:
            expected = f"shape ({users.shape[0]}, {self.num_items}), all items"
            raise ArgumentError(describe(scores), where="scores", expected=expected)
