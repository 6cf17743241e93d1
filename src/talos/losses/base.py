"""The interface of all losses, and what a loss tells a trainer about itself."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from talos.checks import check_result, describe, number_from, positive_number
from talos.errors import ArgumentError, ConfigError
from talos.losses import functional
from talos.losses.pairs import PairwisePart
from talos.losses.parts import NegativePart

__all__ = [
    "TAU_SPACE",
    "Adversary",
    "Batch",
    "ListLoss",
    "Loss",
    "Needs",
    "PairwiseLoss",
    "UserSeparableLoss",
    "sampled_products",
]

TAU_SPACE: Mapping[str, Any] = MappingProxyType({"low": 0.03, "high": 0.4, "log": True})
"""Where to search for the temperature of a softmax over cosines."""


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What a loss asks of a trainer.

    >>> Needs(threshold=True, default_threshold="regression").scores
    'cosine'
    """

    threshold: bool = False  # whether `threshold` must be given
    default_threshold: str | None = None  # short name of the estimator that the published method uses
    negatives: Literal["one", "many"] = "many"  # per positive
    scores: Literal["cosine", "dot"] = "cosine"  # of normalised vectors, in [-1, 1], or raw products
    user_separable: bool = (
        False  # whether all positives of a user share the negatives' part: `UserSeparableLoss`
    )
    pairwise: bool = (
        False  # whether kernels can go over all pairs of a user's positives and items: `PairwiseLoss`
    )
    lists: bool = False  # whether kernels can go over users' whole lists, the scores of all items: `ListLoss`
    bfloat16: bool = True  # whether kernels can go over all items with products of bfloat16
    ids: bool = False  # whether `users` and `items` must be given
    adversary: bool = False  # whether the loss has parameters to be updated as `adversaries()` says
    chosen: tuple[
        tuple[str, float], ...
    ] = ()  # values the loss chose for options not given; stored with the run


@dataclass(frozen=True, kw_only=True)
class Adversary:
    """How a trainer updates one group of a loss's own parameters: direction, timing and learning rate.

    >>> group = Adversary(
    ...     parameters=("gamma",), direction="climb", lr_multiplier=2.0, clamps={"gamma": (-1, 1)})
    >>> loss = nn.Module(); loss.gamma = nn.Parameter(torch.tensor(3.0))
    >>> group.clamp_(loss); loss.gamma.item()
    1.0
    >>> group.param_group(loss, lr=0.1)["lr"], group.param_group(loss, lr=0.1)["maximize"]
    (0.2, True)
    """

    parameters: tuple[str, ...]  # names in `loss.named_parameters()`
    direction: Literal["climb", "descend"]  # `climb` maximises the loss (an adversary proper)
    when: Literal["joint", "own-epoch"] = "joint"  # in every step of the model, or in epochs of its own
    lr: float | None = None  # learning rate of the group's Adam; None for the model's
    lr_multiplier: float = 1.0
    every_epochs: int | None = None  # for `own-epoch`: the model's epochs between two of the group's
    max_times: int | None = None  # for `own-epoch`: the group's epochs at most; None for no limit
    # name → (lowest, highest), applied before each step
    clamps: Mapping[str, tuple[float, float]] = field(default_factory=lambda: MappingProxyType({}))

    def param_group(self, loss: nn.Module, *, lr: float) -> dict[str, Any]:
        """The group as `torch.optim.Adam` takes it; `lr` is the model's learning rate.

        Weight decay is 0: none of the methods penalises its adversary.
        """
        return {
            "params": [loss.get_parameter(name) for name in self.parameters],
            "lr": (lr if self.lr is None else self.lr) * self.lr_multiplier,
            "maximize": self.direction == "climb",
            "weight_decay": 0.0,
        }

    @torch.no_grad()
    def clamp_(self, loss: nn.Module) -> None:
        """Clamp the group's parameters to their intervals, in place."""
        for name, (lowest, highest) in self.clamps.items():
            loss.get_parameter(name).clamp_(lowest, highest)

    def due(self, *, epochs_done: int, times_done: int) -> bool:
        """Whether the next epoch is one of the group's own, after these epochs of the model and of the group.

        >>> group = Adversary(
        ...     parameters=("a",), direction="climb", when="own-epoch", every_epochs=5, max_times=2)
        >>> [epoch for epoch in range(1, 21) if group.due(epochs_done=epoch, times_done=min(2, epoch // 6))]
        [5, 10]
        """
        if self.when != "own-epoch" or self.every_epochs is None or epochs_done == 0:
            return False
        within = self.max_times is None or times_done < self.max_times
        return within and epochs_done % self.every_epochs == 0


@dataclass(frozen=True)
class Batch:
    """The arguments of a loss, checked and in one floating-point type; see `Loss.forward` for each."""

    pos: Tensor
    neg: Tensor
    threshold: Tensor | None = None
    mask: Tensor | None = None
    users: Tensor | None = None
    items: Tensor | None = None

    @property
    def threshold_column(self) -> Tensor | None:
        """The thresholds as (B, 1), to broadcast against the negatives."""
        return None if self.threshold is None else self.threshold.unsqueeze(-1)


def sampled_products(vectors: Tensor, table: Tensor, items: Tensor) -> Tensor:
    """Products ⟨v_b, t_j⟩ of each row of `vectors` (B, d) with the rows j of a table that `items` (B, N) names, (B, N).

    By way of the smaller of (B, rows of the table) and (B, N, d).

    >>> sampled_products(torch.eye(2), torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[0], [1]]))
    tensor([[1.],
            [4.]])
    """
    rows, dim = table.shape
    if rows <= items.shape[1] * dim:
        return (vectors @ table.T).gather(1, items)
    return torch.einsum("bd,bnd->bn", vectors, F.embedding(items, table))


class Loss(nn.Module):
    """A loss over positives and their negatives that returns one value per positive, unreduced.

    A subclass states what it `needs` and implements `compute`; `talos.registry` says how it describes its options.

    Scores in half precision are computed with in float32 and give float32 values, as losses under autocast
    do; gradients come back in the scores' own type. An empty batch gives an empty result.

    >>> class Hinge(Loss):
    ...     def compute(self, batch):
    ...         return (1 + batch.neg - batch.pos.unsqueeze(-1)).relu().mean(dim=-1)
    >>> Hinge()(torch.tensor([0.5]), torch.tensor([[0.0, 1.0]]))
    tensor([1.])
    """

    short_name: ClassVar[str] = ""
    # Scores by tables of the loss's own; a trainer may have a faster function for it.
    products: Callable[[Tensor, Tensor, Tensor], Tensor] = staticmethod(sampled_products)
    # How much a user with n positives weighs, n^p: 1 counts positives, 0 counts users. Whoever reduces the values
    # multiplies those of a user by n^(p-1); the loss does not know n.
    user_power: float = 1.0
    context: ClassVar[tuple[str, ...]] = ("k", "num_users", "num_items", "generator")
    search_space: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    # What a race decides if it is not given: stages in the order in which they matter, each with the candidates for
    # some options; one without options leaves everything as it is. The first stage is about the temperature. After it,
    # of candidates that validation cannot tell apart the one named first is taken.
    race: ClassVar[tuple[tuple[Mapping[str, float], ...], ...]] = ()
    # Options that a race does not take further than to these values.
    race_bounds: ClassVar[Mapping[str, tuple[float, float]]] = MappingProxyType({})

    def __init__(self) -> None:
        # `nn.Module` would take any arguments at all; a loss without hyperparameters takes none.
        super().__init__()

    @property
    def needs(self) -> Needs:
        """What this loss asks of a trainer."""
        return Needs()

    def adversaries(self) -> list[Adversary]:
        """How the loss's own parameters are to be updated; empty where it has none."""
        return []

    def set_progress(self, progress: float) -> None:
        """Adjust to the share of training done, in [0, 1]; the trainer calls it at the start of every epoch."""

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
        """Compute the loss of every positive.

        Args:
            pos: scores of positives (B,).
            neg: scores of each positive's negatives (B, N).
            threshold: β_u of each row (B,), where needed; a constant for the gradient.
            mask: (B, N), True where a negative is really a positive of that user and is left out. Where all
                of a row are, its negatives' part is 0.
            users: (B,), ids of the rows' users, for losses with `needs.ids`.
            items: (B, N), ids of the negatives, likewise.

        Returns:
            (B,) values.

        Raises:
            ArgumentError: a shape, a type or a score (NaN, infinite) that cannot be used, by name.
            ConfigError: `compute` of a subclass returned something else.
        """
        needs = self.needs
        _check_scores(pos, neg, threshold, mask, needs_threshold=needs.threshold)
        threshold = threshold.detach() if needs.threshold and threshold is not None else None
        dtype = torch.promote_types(torch.promote_types(pos.dtype, neg.dtype), torch.float32)
        beta = None if threshold is None else threshold.to(dtype)
        values = self.compute(Batch(pos.to(dtype), neg.to(dtype), beta, mask, users, items))
        self._check_values(values, pos)
        check_result(values, mask, pos=pos, neg=neg, threshold=threshold)
        return values

    def _check_values(self, values: object, pos: Tensor) -> None:
        """Refuse a result of a subclass's `compute` that cannot be trained with."""
        where = f"the result of {type(self).__module__}:{type(self).__qualname__}.compute"
        if not isinstance(values, Tensor) or values.shape != pos.shape:
            expected = f"one value per positive, shape {tuple(pos.shape)}"
            raise ConfigError(describe(values), where=where, expected=expected)
        if torch.is_grad_enabled() and pos.requires_grad and not values.requires_grad:
            raise ConfigError("has no gradient", where=where, expected="a function of the scores")

    @abstractmethod
    def compute(self, batch: Batch) -> Tensor:
        """The values (B,) of a batch whose shapes and types have been checked."""

    def extra_repr(self) -> str:
        """The constructor's arguments that are also attributes, for `repr`."""
        names = [name for name in inspect.signature(type(self)).parameters if hasattr(self, name)]
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in names)


class UserSeparableLoss(Loss):
    """A loss of the form a(s_ui, β_u) + c(s_ui, β_u)·R_u, where R_u does not depend on the positive.

    c is a constant for the gradient. All positives of a user share R_u, so a batch of users with all their
    positives costs users × items scores where drawing negatives per positive costs positives × n: this is
    what `talos.kernels` builds on. The kernels go over items without autograd, hence the closed forms.

    A user's loss has two more degrees of freedom, which every subclass may offer as options (with the values below
    they have no effect, and the loss is the mean of a + c·R over the user's positives):

        L_u = n^p · [ -(1/ρ) log mean_{i ∈ P_u} e^{-ρ a_i} + λ c R_u ]

    - `positive_power` ρ ≥ 0: the mean of a becomes the power mean of e^{-a} with exponent ρ. A positive's gradient is
      multiplied by n·softmax_i(-ρ a): positives that already score high count more, hopeless ones less. By Jensen's
      inequality the value falls as ρ rises, down to the logarithm of the arithmetic mean at ρ = 1.
    - `negative_weight` λ > 0: how hard negatives are pushed down, relative to the positives.

    and, like every loss, `user_power` p.

    >>> from talos.losses import Softmax
    >>> Softmax(tau=0.5).positive_part(torch.tensor([1.0]), None)
    (tensor([-2.]), tensor([1.]))
    """

    positive_power: float = 0.0
    negative_weight: float = 1.0

    @property
    def needs(self) -> Needs:
        """Nothing but scores."""
        return Needs(user_separable=True)

    @property
    @abstractmethod
    def negative_part(self) -> NegativePart:
        """R as an object: φ, its derivative and how the sum is used, at the parameters' current values."""

    @abstractmethod
    def positive_part(self, pos: Tensor, threshold: Tensor | None) -> tuple[Tensor, Tensor]:
        """The pair a, c of positive scores and their thresholds, all of one shape."""

    @abstractmethod
    def da(self, pos: Tensor, threshold: Tensor | None) -> Tensor:
        """∂a/∂s."""

    def da_dparameters(self, pos: Tensor, threshold: Tensor | None) -> Mapping[str, Tensor]:
        """∂a/∂p for every learnt parameter p that a depends on, by name."""
        return {}

    def compute(self, batch: Batch) -> Tensor:
        """The sum a + λ·c·R; for ρ > 0, a is the power mean over the rows with the same id in `users`."""
        a, c = self.positive_part(batch.pos, batch.threshold)
        if self.positive_power != 0 and batch.users is not None:
            a = functional.power_mean_by(a, self.positive_power, batch.users)
        negative = self.negative_part.aggregate(batch.neg, batch.threshold_column, batch.mask)
        return a + self.negative_weight * c * negative

    def _set_balance(
        self, *, user_power: float = 1.0, positive_power: float = 0.0, negative_weight: float = 1.0
    ) -> None:
        """Check and keep p, ρ and λ."""
        self.user_power = number_from("user_power", user_power, 0.0)
        self.positive_power = number_from("positive_power", positive_power, 0.0)
        self.negative_weight = positive_number("negative_weight", negative_weight)


class PairwiseLoss(Loss):
    """A loss h(R_i) of each positive i, where R_i reduces g(s_uj - s_ui) over the user's negatives j.

    Every positive has a sum of its own, so a batch of users costs positives × items evaluations of g and g' besides the
    products that a `UserSeparableLoss` costs; the core makes do with far fewer. The kernels go over them without
    autograd, hence the closed forms in `pairwise_part`. The gradient is h'(R_i)·∂R_i/∂s_uj at every negative, and minus
    the sum of these at the positive.

    A user's positives may have weights, and `user_power` p weighs users as everywhere. There is no ρ and no λ: a
    positive has no part of its own that could be averaged otherwise, or weighed against the negatives.

    >>> from talos.losses import BPR
    >>> part = BPR().pairwise_part
    >>> part.aggregate(torch.tensor([[0.0, 0.0]]), None)   # log 2
    tensor([0.6931])
    """

    @property
    def needs(self) -> Needs:
        """Nothing but scores."""
        return Needs(pairwise=True)

    @property
    @abstractmethod
    def pairwise_part(self) -> PairwisePart:
        """g, its derivative, how its sum is reduced, and h with its derivative."""

    def compute(self, batch: Batch) -> Tensor:
        """h(R)."""
        part = self.pairwise_part
        return part.outer(part.aggregate(batch.neg - batch.pos.unsqueeze(-1), batch.mask))


class ListLoss(Loss):
    """A loss whose value for a positive depends on the user's whole list in a way that is neither of the two above.

    Over all items, the kernels take the scores of a few users at a time, ask the loss itself what these lists cost, and
    autograd for the gradient; the core has a version of its own for some.

    >>> from talos.losses import SmoothI
    >>> loss, scores = SmoothI(k=2, tau=0.01, delta=0.1), torch.tensor([[0.5, 0.9, 0.1, 0.0]])
    >>> loss.of_lists(scores, torch.tensor([0, 0]), torch.tensor([0, 2]), None)   # second of the list, and third
    tensor([0.5000, 1.0000])
    """

    @property
    def needs(self) -> Needs:
        """Nothing but scores."""
        return Needs(lists=True, bfloat16=False)

    @property
    def list_kernel(self) -> tuple[str, tuple[float, ...]] | None:
        """Kind and parameters from which the kernels select a faster version of `of_lists`; None where there is none.

        - "smooth-places": `SmoothI`, with K, 1/τ and δ.
        - "weighted-softmax": softplus(log(ω n) + log Σ_j p_j e^{s_j/τ} - s_i/τ) with p = softmax_j(a_u·b_j) over the n
          items that are no positives, with 1/τ and ω; the loss has two parameters, the tables a and b.
        """
        return None

    @abstractmethod
    def of_lists(self, scores: Tensor, rows: Tensor, columns: Tensor, users: Tensor | None) -> Tensor:
        """The values (P,) of all positives of some users, differentiable.

        Args:
            scores: (B, I), of every user with all items.
            rows: (P,), the users of the positives, as rows of `scores`.
            columns: (P,), their items; each pair once.
            users: (B,), ids of the users, for losses with `needs.ids`.
        """


def _check_scores(
    pos: object, neg: object, threshold: object, mask: object, *, needs_threshold: bool
) -> None:
    """Check shapes and types of a loss's arguments."""
    if not isinstance(pos, Tensor) or pos.ndim != 1 or not pos.is_floating_point():
        raise ArgumentError(
            describe(pos), where="pos", expected="positive scores of shape (B,), floating point"
        )
    rows = pos.shape[0]
    if not isinstance(neg, Tensor) or neg.ndim != 2 or not neg.is_floating_point():
        raise ArgumentError(describe(neg), where="neg", expected="negative scores (B, N), floating point")
    if neg.shape[0] != rows or neg.shape[1] == 0:
        raise ArgumentError(describe(neg), where="neg", expected=f"shape ({rows}, N) with N of at least 1")
    if needs_threshold and threshold is None:
        raise ArgumentError(
            "is missing", where="threshold", expected=f"one threshold per row, shape ({rows},)"
        )
    if needs_threshold and (not isinstance(threshold, Tensor) or threshold.shape != (rows,)):
        raise ArgumentError(describe(threshold), where="threshold", expected=f"shape ({rows},)")
    if mask is not None and (
        not isinstance(mask, Tensor) or mask.shape != neg.shape or mask.dtype != torch.bool
    ):
        expected = f"booleans of shape {tuple(neg.shape)}, True where a negative is left out"
        raise ArgumentError(describe(mask), where="mask", expected=expected)
