"""The interfaces around the user-batch formula: what it asks of a loss, of the passes and of other processes.

There are three kinds of losses. Of a user-separable one (`LossParts`) all positives of a user share the sum over the
negatives: users × items evaluations. Of a pairwise one (`PairwiseLoss`) every positive has a sum of its own,
Σ_j g(s_j - s_i): positives × items evaluations, in the core far fewer. Of a `ListLoss` a positive's value depends on
the user's whole list. All need the same three products, scores and two gradients.

Kernels don't import `talos.losses`; every `talos.losses.UserSeparableLoss` satisfies `LossParts` by its structure,
every `talos.losses.PairwiseLoss` the `PairwiseLoss` here, every `talos.losses.ListLoss` the `ListLoss` here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from torch import Tensor, nn

__all__ = [
    "BatchLoss",
    "Exchange",
    "ListLoss",
    "LogSumPairs",
    "LogSumPart",
    "LossParts",
    "MeanPart",
    "NegativePart",
    "PairSweep",
    "PairwiseLoss",
    "PairwisePart",
    "Passes",
    "PositiveSweep",
    "SampleScores",
    "Samples",
    "SumPairs",
    "Sweep",
]


class NegativePart(Protocol):
    """R_u of a user's negatives: scale·log Σφ ("log-sum"), scale·mean φ ("mean") or scale ("constant").

    `kind` and `params` describe φ as plain data, from which the compiled core selects its own implementation.
    """

    @property
    def kind(self) -> str:
        """Name of φ."""

    @property
    def reduction(self) -> Literal["log-sum", "mean", "constant"]:
        """How φ is reduced over the negatives."""

    @property
    def params(self) -> tuple[float, ...]:
        """Numerical parameters of φ."""

    @property
    def scale(self) -> float:
        """Factor of R."""


class LogSumPart(NegativePart, Protocol):
    """A part with reduction "log-sum"."""

    def log_phi_and_slope(self, s: Tensor, threshold: Tensor | None) -> tuple[Tensor, Tensor]:
        """The logarithm of φ(s, β), as a new tensor that the caller may overwrite, and its derivative in s."""


class MeanPart(NegativePart, Protocol):
    """A part with reduction "mean"."""

    def phi(self, s: Tensor, threshold: Tensor | None) -> Tensor:
        """φ(s, β)."""

    def dphi(self, s: Tensor, threshold: Tensor | None) -> Tensor:
        """∂φ/∂s."""

    def dphi_dparameters(self, s: Tensor, threshold: Tensor | None) -> Mapping[str, Tensor]:
        """∂φ/∂p of the loss's learnt scalars, by name."""

    def from_moments(self, moments: Tensor) -> Mapping[str, Tensor]:
        """Sums of `dphi_dparameters`, computed from the two sums (..., 2) that the compiled core returns."""


class LossNeeds(Protocol):
    """The properties of a loss that the formula depends on."""

    @property
    def threshold(self) -> bool:
        """Whether the loss uses β_u."""

    @property
    def user_separable(self) -> bool:
        """Whether the loss, with its current options, has the form a + c·R."""

    @property
    def pairwise(self) -> bool:
        """Whether the loss, with its current options, has the form h(R_i)."""

    @property
    def lists(self) -> bool:
        """Whether the loss can say what whole lists cost."""

    @property
    def ids(self) -> bool:
        """Whether it needs to know which users these are."""


class _AnyLoss(Protocol):
    """What every loss offers, whatever its form."""

    @property
    def needs(self) -> LossNeeds:
        """Its form, and what else it asks for."""

    @property
    def user_power(self) -> float:
        """p: a user with n positives weighs n^p."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The parameters that the loss learns."""


@runtime_checkable
class LossParts(_AnyLoss, Protocol):
    """A loss a(s_ui, β_u) + c(s_ui, β_u)·R_u; every `UserSeparableLoss` is one.

    >>> from talos.losses import BPR, Talos
    >>> isinstance(Talos(tau=0.1), LossParts), isinstance(BPR(), LossParts)
    (True, False)
    """

    @property
    def positive_power(self) -> float:
        """ρ: the exponent of the power mean over a user's positives; 0 is the mean of a."""

    @property
    def negative_weight(self) -> float:
        """λ, the factor of R_u."""

    @property
    def negative_part(self) -> NegativePart:
        """R."""

    def positive_part(self, pos: Tensor, threshold: Tensor | None) -> tuple[Tensor, Tensor]:
        """The pair a, c; c is a constant for the gradient."""

    def da(self, pos: Tensor, threshold: Tensor | None) -> Tensor:
        """∂a/∂s."""

    def da_dparameters(self, pos: Tensor, threshold: Tensor | None) -> Mapping[str, Tensor]:
        """∂a/∂p of the loss's learnt scalars, by name."""


class PairwisePart(Protocol):
    """The loss h(R_i) of a positive i: R_i is log Σ_j g(d_j) ("log-sum"), Σ_j g(d_j) ("sum") or the mean ("mean").

    d_j = s_j - s_i runs over the user's negatives. `kind` and `params` describe g and h as plain data, from which the
    compiled core selects its own implementation; a kind that it does not have runs in torch.
    """

    @property
    def kind(self) -> str:
        """Name of the pair g, h."""

    @property
    def reduction(self) -> Literal["log-sum", "mean", "sum"]:
        """How g is reduced over the negatives."""

    @property
    def params(self) -> tuple[float, ...]:
        """Numerical parameters of g and h."""

    def outer(self, inner: Tensor) -> Tensor:
        """h(R); R is 0 for a positive without negatives."""

    def outer_slope(self, inner: Tensor) -> Tensor:
        """h'(R)."""


class LogSumPairs(PairwisePart, Protocol):
    """A part with reduction "log-sum"."""

    def log_g(self, d: Tensor) -> Tensor:
        """The logarithm of g(d)."""

    def dlog_g(self, d: Tensor) -> Tensor:
        """∂ log g / ∂d."""


class SumPairs(PairwisePart, Protocol):
    """A part with reduction "sum" or "mean"."""

    def g(self, d: Tensor) -> Tensor:
        """What a negative adds to the sum."""

    def dg(self, d: Tensor) -> Tensor:
        """∂g/∂d."""


@runtime_checkable
class PairwiseLoss(_AnyLoss, Protocol):
    """A loss h(R_i) with a sum over negatives for every positive; every `talos.losses.PairwiseLoss` is one.

    >>> from talos.losses import BPR, Talos
    >>> isinstance(BPR(), PairwiseLoss), isinstance(Talos(tau=0.1), PairwiseLoss)
    (True, False)
    """

    @property
    def pairwise_part(self) -> PairwisePart:
        """The functions g and h."""


@runtime_checkable
class ListLoss(_AnyLoss, Protocol):
    """A loss of a user's whole list; every `talos.losses.ListLoss` is one.

    >>> from talos.losses import SmoothI, Talos
    >>> isinstance(SmoothI(k=5), ListLoss), isinstance(Talos(tau=0.1), ListLoss)
    (True, False)
    """

    @property
    def list_kernel(self) -> tuple[str, tuple[float, ...]] | None:
        """Kind and parameters from which the kernels select a version of their own; None where there is none."""

    def of_lists(self, scores: Tensor, rows: Tensor, columns: Tensor, users: Tensor | None) -> Tensor:
        """The values (P,) of positives at `rows`, `columns` of the lists (B, I) of `users` (B,), differentiable."""


BatchLoss: TypeAlias = LossParts | PairwiseLoss | ListLoss


@dataclass(frozen=True)
class PairSweep:
    """The result of one pass over all pairs of a positive and an item, for a batch of users.

    Attributes:
        inner: R_i over the items of this pass, (P,); -inf for a log-sum over nothing, 0 for other reductions.
        slopes: the gradient of Σ_i coefficient_i · h(R_i) with respect to the scores of the positives, (P,); empty if
            gradients were not requested.
        user_gradient: of the same, by way of the negatives, (B, d); likewise.
        item_gradient: of the same, by way of the negatives, with respect to the vectors that are scored, (I, d).
        kth: K-th best score of every user, (B,); None if not requested.
    """

    inner: Tensor
    slopes: Tensor
    user_gradient: Tensor
    item_gradient: Tensor
    kth: Tensor | None = None


@dataclass(frozen=True)
class PositiveSweep:
    """The result of a loss that has a value of its own for every positive, for a batch of users.

    Attributes:
        values: of the positives, (P,).
        user_gradient: of Σ_i coefficient_i · value_i, (B, d).
        item_gradient: of the same, (I, d).
        parameter_gradients: of the same, with respect to those of the loss's parameters that require one, by name.
        kth: K-th best score of every user, (B,); None if not requested.
    """

    values: Tensor
    user_gradient: Tensor
    item_gradient: Tensor
    parameter_gradients: dict[str, Tensor] = field(default_factory=dict)
    kth: Tensor | None = None


@dataclass(frozen=True)
class Sweep:
    """The result of one pass over the items for a batch of users.

    Attributes:
        negative: R_u over the items of this pass, (B,).
        normalizer: log Σφ for "log-sum", Σφ for "mean", (B,).
        user_gradient: of Σ_u coefficient_u · R_u, (B, d); empty if gradients were not requested.
        item_gradient: of the same, with respect to the vectors that are scored, (I, d); likewise.
        parameter_gradients: of the same, with respect to the loss's learnt scalars, by name.
        kth: K-th best score of every user, (B,); None if not requested.
        positive_scores: scores of the positives, (P,), where the pass has them anyway; else None.
    """

    negative: Tensor
    normalizer: Tensor
    user_gradient: Tensor
    item_gradient: Tensor
    parameter_gradients: dict[str, Tensor] = field(default_factory=dict)
    kth: Tensor | None = None
    positive_scores: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples of items, each shared by a group of consecutive users as their negatives.

    Attributes:
        items: (G, n), rows of the item table; an item that is drawn twice counts twice.
        bounds: (G + 1,), ascending from 0 to B: users `bounds[g]` to below `bounds[g + 1]` share sample g.
    """

    items: Tensor
    bounds: Tensor

    def groups(self) -> Iterator[tuple[slice, Tensor]]:
        """The users of each group that has any, and its sample (n,)."""
        ends = self.bounds.tolist()
        for first, last, items in zip(ends, ends[1:], self.items, strict=False):
            if last > first:
                yield slice(first, last), items


@dataclass(frozen=True, eq=False)
class SampleScores:
    """Scores of a batch of users with their positives and with the sample of their group.

    Attributes:
        owner: (P,), the user of each positive.
        positives: (P,).
        negatives: (B, n).
        mask: (B, n), True where the item is a positive of the user.
    """

    owner: Tensor
    positives: Tensor
    negatives: Tensor
    mask: Tensor


class Passes(Protocol):
    """The passes over an item table that the formula is made of, by torch or by the compiled core.

    Attributes:
        table: the item vectors that are scored, (I, d): normalised if that was requested.
        owner: the user (P,) of each positive, ascending.
        indices: the positives (P,) as rows of `table`; within a user in an order that the passes choose.
    """

    table: Tensor
    owner: Tensor
    indices: Tensor

    def parts(self, num_users: int) -> Sequence[Passes]:
        """Passes over consecutive ranges of the table, each small enough for a sweep in bounded memory."""

    def num_negatives(self) -> Tensor:
        """How many items of the table are negatives of each user, (B,)."""

    def best(self, users: Tensor, k: int) -> Tensor:
        """The K best scores (B, K) of every user over the whole table, in any order."""

    def kth(self, users: Tensor, k: int) -> Tensor:
        """The K-th best score (B,) of every user over the whole table."""

    def positive_scores(self, users: Tensor) -> Tensor:
        """The scores of the positives, (P,)."""

    def sample_scores(self, users: Tensor) -> SampleScores:
        """The scores of the positives and of each user's sample, where negatives are sampled."""

    def sweep(
        self,
        users: Tensor,
        thresholds: Tensor | None,
        part: NegativePart,
        coefficients: Tensor | None,
        *,
        k: int | None = None,
        kth_is_threshold: bool = False,
    ) -> Sweep:
        """Σφ over each user's negatives, and the gradients of Σ_u coefficient_u · R_u unless `coefficients` is None.

        With `k` the K-th best scores are found as well, and used as thresholds if `kth_is_threshold`.
        """

    def pair_sweep(
        self,
        users: Tensor,
        part: PairwisePart,
        coefficients: Tensor | None,
        *,
        positives: tuple[Tensor, Tensor] | None = None,
        inner_only: bool = False,
        k: int | None = None,
    ) -> PairSweep:
        """R_i of every positive, and the gradients of Σ_i coefficient_i · h(R_i) unless `coefficients` is None.

        `positives` are the offsets (B + 1,) and the scores (P,) of the users' positives; those of the passes themselves
        if None. `inner_only` asks for the gradients of Σ_i coefficient_i · R_i in place of h(R_i). With `k` the K-th
        best scores are found as well.
        """

    def add_positives(
        self, user_gradient: Tensor, item_gradient: Tensor, users: Tensor, slopes: Tensor
    ) -> Tensor:
        """Add the positives' slopes ∂L/∂s (P,) to both gradients, in place where possible.

        Returns the gradient with respect to the item vectors as they were given, before normalisation.
        """


class Exchange(Protocol):
    """Exchanges rows of a batch between processes, each of which owns some consecutive rows of it.

    The calls are collective: all processes make the same ones in the same order.
    """

    def spread(self, rows: Tensor) -> Tensor:
        """All-gather: the rows (own, …) of every process → (B, …) on all of them."""

    def collect(self, rows: Tensor) -> Tensor:
        """All-to-all: (B, …) on every process → (processes, own, …), each one's values for the rows owned here."""
