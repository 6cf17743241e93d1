"""What every loss has in common: one call, and a description of itself that a trainer reads."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from talos.losses.adversary import Adversary
from talos.losses.checks import check_finite, check_scores
from talos.losses.parts import NegativePart

__all__ = ["Loss", "Needs", "UserSeparableLoss"]


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What a loss asks of whoever trains with it.

    Args:
        threshold: whether `threshold` must be given.
        default_threshold: how the method as published estimates it; None where there is none.
        negatives: `one` per positive, or `many`.
        scores: `cosine` (of normalised vectors, in [-1, 1]) or `dot` (raw products).
        user_separable: whether the negatives' part depends on the user alone, so that all positives of a
            user can share it (see `UserSeparableLoss`).
        ids: whether `users` and `items` must be given.
        adversary: whether `adversaries()` names parameters to be stepped.
        chosen: hyperparameters that were left open and what they became, to be written down with the run.

    >>> Needs(threshold=True, default_threshold="regression").scores
    'cosine'
    """

    threshold: bool = False
    default_threshold: Literal["regression", "monte-carlo"] | None = None
    negatives: Literal["one", "many"] = "many"
    scores: Literal["cosine", "dot"] = "cosine"
    user_separable: bool = False
    ids: bool = False
    adversary: bool = False
    chosen: tuple[tuple[str, float], ...] = ()


class Loss(nn.Module):
    """A loss over positives and their negatives that returns one value per positive, unreduced.

    A subclass says what it `needs`, carries a `short_name` for configurations, and computes. Constructor
    arguments that follow from the data or the run and not from a search (`k`, `num_users`, `num_items`) are
    listed in `context`; `by_name` fills them in.

    Scores in half precision are computed with in float32 and give float32 values, as losses under autocast
    do; gradients come back in the scores' own type. An empty batch gives an empty result.

    >>> class Hinge(Loss):
    ...     def compute(self, pos, neg, threshold, mask, users, items):
    ...         return (1 + neg - pos.unsqueeze(-1)).relu().mean(dim=-1)
    >>> Hinge()(torch.tensor([0.5]), torch.tensor([[0.0, 1.0]]))
    tensor([1.])
    """

    short_name: ClassVar[str] = ""
    context: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        # `nn.Module` would take any arguments at all; a loss without hyperparameters takes none.
        super().__init__()

    @property
    def needs(self) -> Needs:
        """What this loss asks of a trainer."""
        return Needs()

    def adversaries(self) -> list[Adversary]:
        """How the loss's own parameters are to be stepped; empty where it has none."""
        return []

    def set_progress(self, progress: float) -> None:
        """Told the share of training done, in [0, 1]; for schedules."""

    def forward(
        self,
        pos: Tensor,
        neg: Tensor,
        *,
        threshold: Tensor | None = None,
        mask: Tensor | None = None,
        users: Tensor | None = None,
        items: Tensor | None = None,
    ) -> Tensor:
        """The loss of every positive.

        Args:
            pos: scores of positives (B,).
            neg: scores of each positive's negatives (B, N).
            threshold: β_u of each row (B,), where needed; a constant for the gradient.
            mask: (B, N), True where a negative is really a positive of that user and is left out. Where all
                of a row are, its negatives' part is 0.
            users: (B,), ids of the rows' users, for the losses that ask for them.
            items: (B, N), ids of the negatives, likewise.

        Returns:
            (B,) values.

        Raises:
            ArgumentError: a shape, a type or a score (NaN, infinite) that cannot be used, by name.
        """
        needs = self.needs
        check_scores(pos, neg, threshold, mask, needs_threshold=needs.threshold)
        threshold = threshold.detach() if needs.threshold and threshold is not None else None
        dtype = torch.promote_types(torch.promote_types(pos.dtype, neg.dtype), torch.float32)
        beta = None if threshold is None else threshold.to(dtype)
        values = self.compute(pos.to(dtype), neg.to(dtype), beta, mask, users, items)
        check_finite(values, pos=pos, neg=neg, threshold=threshold, mask=mask)
        return values

    @abstractmethod
    def compute(
        self,
        pos: Tensor,
        neg: Tensor,
        threshold: Tensor | None,
        mask: Tensor | None,
        users: Tensor | None,
        items: Tensor | None,
    ) -> Tensor:
        """The values (B,), of arguments that are known to be in order."""


class UserSeparableLoss(Loss):
    """A loss of the form a(s_ui, β_u) + c(s_ui, β_u)·R_u, where R_u knows nothing of the positive.

    c is a constant for the gradient. All positives of a user share R_u, so a batch of users with all their
    positives costs users × items scores where drawing negatives per positive costs positives × n: this is
    what `talos.kernels` builds on. It asks for closed forms, since it sweeps over items without autograd.

    >>> from talos.losses import Softmax
    >>> Softmax(tau=0.5).positive_part(torch.tensor([1.0]), None)
    (tensor([-2.]), tensor([1.]))
    """

    @property
    @abstractmethod
    def negative_part(self) -> NegativePart:
        """R as an object: φ, its derivative and how the sum is used, at the parameters of the moment."""

    @abstractmethod
    def positive_part(self, pos: Tensor, threshold: Tensor | None) -> tuple[Tensor, Tensor]:
        """The pair a, c of positive scores and their thresholds, all of one shape."""

    @abstractmethod
    def da(self, pos: Tensor, threshold: Tensor | None) -> Tensor:
        """∂a/∂s."""

    def da_dparameters(self, pos: Tensor, threshold: Tensor | None) -> Mapping[str, Tensor]:
        """∂a/∂p for every learnt parameter p that a depends on, by name."""
        return {}

    def compute(
        self,
        pos: Tensor,
        neg: Tensor,
        threshold: Tensor | None,
        mask: Tensor | None,
        users: Tensor | None,
        items: Tensor | None,
    ) -> Tensor:
        """The sum a + c·R."""
        a, c = self.positive_part(pos, threshold)
        column = None if threshold is None else threshold.unsqueeze(-1)
        return a + c * self.negative_part.aggregate(neg, column, mask)
