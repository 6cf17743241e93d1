"""The interface of all losses, and the properties of a loss that a trainer needs to know."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from talos.checks import check_result, describe, number_from, positive_number, require
from talos.errors import ArgumentError, ConfigError
from talos.losses import functional
from talos.losses.phi import PairPhi, Phi

__all__ = [
    "TAU_SPACE",
    "Adversary",
    "ListLoss",
    "Loss",
    "Needs",
    "PairwiseLoss",
    "Scores",
    "UserSeparableLoss",
    "check_argument",
]

# Where to search for the temperature of a softmax over cosines.
TAU_SPACE: Mapping[str, Any] = MappingProxyType({"low": 0.03, "high": 0.4, "log": True})


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
    # The form by which kernels can take all items; none of the three: the loss takes drawn negatives only.
    user_separable: bool = False  # `UserSeparableLoss`
    pairwise: bool = False  # `PairwiseLoss`
    lists: bool = False  # `ListLoss`
    bfloat16: bool = True  # whether kernels may score all items in bfloat16
    ids: bool = False  # whether `users` and `items` must be given
    adversary: bool = False  # whether the loss has parameters of its own: `adversaries()`
    # Options that were not given and the values that the loss chose; stored with the run.
    chosen: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Adversary:
    """How a trainer updates some of a loss's own parameters: direction, timing and learning rate.

    >>> adversary = Adversary(
    ...     parameters=("gamma",), direction="climb", lr_multiplier=2.0, clamps={"gamma": (-1, 1)})
    >>> loss = nn.Module(); loss.gamma = nn.Parameter(torch.tensor(3.0))
    >>> adversary.clamp_(loss); loss.gamma.item()
    1.0
    >>> adversary.param_group(loss, lr=0.1)["lr"], adversary.param_group(loss, lr=0.1)["maximize"]
    (0.2, True)
    """

    parameters: tuple[str, ...]  # names in `loss.named_parameters()`
    direction: Literal["climb", "descend"]  # `climb` maximises the loss (an adversary proper)
    when: Literal["joint", "own-epoch"] = "joint"  # in every step of the model, or in epochs of its own
    lr: float | None = None  # learning rate of their Adam; None for the model's
    lr_multiplier: float = 1.0
    every_epochs: int | None = None  # for `own-epoch`: the model's epochs between two of theirs
    max_times: int | None = None  # for `own-epoch`: epochs of their own at most; None for no limit
    # name → (lowest, highest), applied before each step
    clamps: Mapping[str, tuple[float, float]] = field(default_factory=lambda: MappingProxyType({}))

    def param_group(self, loss: nn.Module, *, lr: float) -> dict[str, Any]:
        """The parameters as `torch.optim.Adam` takes a group of them; `lr` is the model's learning rate.

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
        """Clamp the parameters to their intervals, in place."""
        for name, (lowest, highest) in self.clamps.items():
            loss.get_parameter(name).clamp_(lowest, highest)

    def due(self, *, epochs_done: int, times_done: int) -> bool:
        """Whether the next epoch is one of the adversary's own, after these epochs of the model and of the adversary.

        >>> adversary = Adversary(
        ...     parameters=("a",), direction="climb", when="own-epoch", every_epochs=5, max_times=2)
        >>> [epoch for epoch in range(1, 21) if adversary.due(epochs_done=epoch, times_done=min(2, epoch // 6))]
        [5, 10]
        """
        if self.when != "own-epoch" or self.every_epochs is None or epochs_done == 0:
            return False
        within = self.max_times is None or times_done < self.max_times
        return within and epochs_done % self.every_epochs == 0


@dataclass(frozen=True)
class Scores:
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


class Loss(nn.Module):
    """A loss over positives and their negatives that returns one value per positive, unreduced.

    A subclass implements `compute` and, unless scores are all it takes, `needs`. `talos.registry` says how it describes
    its options.

    Scores in half precision are converted to float32 and give float32 values, as in other losses under autocast;
    gradients have the type of the scores. An empty batch gives an empty result.

    >>> class Hinge(Loss):
    ...     def compute(self, given):
    ...         return (1 + given.neg - given.pos.unsqueeze(-1)).relu().mean(dim=-1)
    >>> Hinge()(torch.tensor([0.5]), torch.tensor([[0.0, 1.0]]))
    tensor([1.])
    """

    short_name: ClassVar[str] = ""
    needs: Needs = Needs()  # what the loss asks of a trainer; set in `__init__` if it depends on the options
    context: ClassVar[tuple[str, ...]] = ("k", "num_users", "num_items", "generator")
    search_space: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    # The stages of a race, in order; each has candidates for options that are not given. A candidate without options
    # changes nothing. The first stage is about the temperature. In later stages the first of the candidates that
    # validation cannot tell apart wins.
    race: ClassVar[tuple[tuple[Mapping[str, float], ...], ...]] = ()
    # Lowest and highest value that a race gives an option.
    race_bounds: ClassVar[Mapping[str, tuple[float, float]]] = MappingProxyType({})

    def __init__(self, *, user_power: float = 1.0) -> None:
        super().__init__()
        # p: a user with n positives weighs n^p. 1 counts positives, 0 counts users. The loss does not know n: the code
        # that reduces its values multiplies those of a user by n^(p-1).
        self.user_power = number_from("user_power", user_power, 0.0)

    def adversaries(self) -> list[Adversary]:
        """How to update the loss's own parameters; empty if it has none."""
        return []

    def set_progress(self, progress: float) -> None:
        """Adjust to the progress of training, from 0 to 1; the trainer calls it at the start of every epoch."""

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
            threshold: β_u of each row (B,), for losses with `needs.threshold`; a constant for the gradient.
            mask: (B, N), True where a negative is a positive of the same user and does not count. If all negatives of a
                row are masked, their term is 0.
            users: (B,), ids of the rows' users, for losses with `needs.ids`.
            items: (B, N), ids of the negatives, for losses with `needs.ids`.

        Returns:
            (B,) values.

        Raises:
            ArgumentError: an argument has a wrong shape or type, or a score is NaN or infinite.
            ConfigError: `compute` of a subclass returned something else than one value per positive.
        """
        threshold = threshold if self.needs.threshold else None
        _check_scores(pos, neg, threshold, mask, needs_threshold=self.needs.threshold)
        dtype = torch.promote_types(torch.promote_types(pos.dtype, neg.dtype), torch.float32)
        beta = None if threshold is None else threshold.detach().to(dtype)
        values = self.compute(Scores(pos.to(dtype), neg.to(dtype), beta, mask, users, items))
        self._check_values(values, pos)
        check_result(values, mask, pos=pos, neg=neg, threshold=threshold)
        return values

    def _check_values(self, values: object, pos: Tensor) -> None:
        """Refuse a result of a subclass's `compute` that cannot be trained with."""
        where = f"the result of {type(self).__module__}:{type(self).__qualname__}.compute"
        if not isinstance(values, Tensor) or values.shape != pos.shape:
            raise ConfigError(
                describe(values),
                where=where,
                expected=f"one value per positive, shape {tuple(pos.shape)}",
            )
        require(
            values.requires_grad or not (pos.requires_grad and torch.is_grad_enabled()),
            "has no gradient",
            where=where,
            expected="a function of the scores",
            error=ConfigError,
        )

    @abstractmethod
    def compute(self, given: Scores) -> Tensor:
        """The values (B,) of a batch whose shapes and types are checked."""

    def extra_repr(self) -> str:
        """The constructor's arguments that are also attributes, for `repr`."""
        names = [name for name in inspect.signature(type(self)).parameters if hasattr(self, name)]
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in names)


class UserSeparableLoss(Loss):
    """A loss of the form a(s_ui, β_u) + c(s_ui, β_u)·R_u, where R_u does not depend on the positive.

    R_u sums φ over the user's negatives (`Phi`). All positives of a user share R_u: a batch of users with all their
    positives costs users × items scores, against positives × n for n negatives drawn per positive. A positive's own
    gradient is a' + c'·R_u. `talos.kernels` builds on this.

    A user with n positives has the loss

        L_u = n^p · [ -(1/ρ) log mean_{i ∈ P_u} e^{-ρ a_i} + λ c R_u ]

    A subclass may offer its three weights as options; with their defaults L_u is the sum of a + c·R over the positives:

    - `positive_power` ρ ≥ 0: the mean of a becomes the power mean of e^{-a} with exponent ρ; 0 is the limit, the mean.
      A positive's gradient is multiplied by n·softmax_i(-ρ a): positives that already score high count more. By
      Jensen's inequality the value falls as ρ rises, down to the logarithm of the arithmetic mean at ρ = 1.
    - `negative_weight` λ > 0: how hard negatives are pushed down, relative to the positives.
    - `user_power` p ≥ 0: how much a user with many positives weighs.

    >>> from talos.losses import Softmax
    >>> Softmax(tau=0.5).positive_part(torch.tensor([1.0]), None)
    (tensor([-2.]), tensor([1.]))
    """

    needs = Needs(user_separable=True)
    # c, where it is the same for every score and threshold; None where it is not.
    constant_weight: float | None = 1.0

    def __init__(
        self, *, user_power: float = 1.0, positive_power: float = 0.0, negative_weight: float = 1.0
    ) -> None:
        super().__init__(user_power=user_power)
        self.positive_power = number_from("positive_power", positive_power, 0.0)
        self.negative_weight = positive_number("negative_weight", negative_weight)

    @property
    @abstractmethod
    def phi(self) -> Phi:
        """φ and how it is reduced to R, at the current values of the loss's parameters."""

    @abstractmethod
    def positive_part(self, pos: Tensor, beta: Tensor | None) -> tuple[Tensor, Tensor]:
        """The pair a, c of positive scores and their thresholds, all of one shape."""

    def compute(self, given: Scores) -> Tensor:
        """The sum a + λ·c·R; for ρ > 0, a is the power mean over the rows with the same id in `users`."""
        a, c = self.positive_part(given.pos, given.threshold)
        if self.positive_power != 0 and given.users is not None:
            distinct, rows = torch.unique(given.users, return_inverse=True)
            means = functional.power_mean(a, self.positive_power, rows, len(distinct))
            # The gradient of `index_select` adds up in a fixed order with several threads too, unlike that of [].
            a = means.index_select(0, rows)
        negative = self.phi.aggregate(given.neg, given.threshold_column, given.mask)
        return a + self.negative_weight * c * negative


class PairwiseLoss(Loss):
    """A loss h(R_i) of each positive i, where R_i reduces g(s_uj - s_ui) over the user's negatives j.

    Every positive has a sum of its own, so a batch of users costs positives × items evaluations of g besides the scores
    of a `UserSeparableLoss`; the compiled core needs far fewer. The gradient is h'(R_i)·∂R_i/∂s_uj at every negative,
    and minus the sum of these at the positive.

    A user's positives may have weights, and `user_power` p weighs users. There is no ρ and no λ: a positive has no term
    of its own.

    >>> from talos.losses import BPR
    >>> BPR().phi.aggregate(torch.tensor([[0.0, 0.0]]), None)   # log 2
    tensor([0.6931])
    """

    needs = Needs(pairwise=True)

    @property
    @abstractmethod
    def phi(self) -> PairPhi:
        """g, how it is reduced to R, and h."""

    def compute(self, given: Scores) -> Tensor:
        """h(R)."""
        phi = self.phi
        return phi.outer(phi.aggregate(given.neg - given.pos.unsqueeze(-1), given.mask))


class ListLoss(Loss):
    """A loss whose value for a positive depends on the scores of all items in another way than the two above.

    Over all items, the kernels compute the scores of a few users at a time, pass them to `of_lists` and take the
    gradient from autograd. The compiled core has a version of its own for some losses.

    >>> from talos.losses import SmoothI
    >>> loss, scores = SmoothI(k=2, tau=0.01, delta=0.1), torch.tensor([[0.5, 0.9, 0.1, 0.0]])
    >>> loss.of_lists(scores, torch.tensor([0, 0]), torch.tensor([0, 2]), None)   # ranked second and third
    tensor([0.5000, 1.0000])
    """

    needs = Needs(lists=True, bfloat16=False)

    @property
    def list_kernel(self) -> tuple[str, tuple[float, ...]] | None:
        """Kind and parameters by which the kernels select a faster version of `of_lists`; None if there is none.

        - "smooth-places": `SmoothI`, with K, 1/τ and δ.
        - "weighted-softmax": softplus(log(ω n) + log Σ_j p_j e^{s_j/τ} - s_i/τ) with p = softmax_j(a_u·b_j) over the n
          items that are not positives, with 1/τ and ω; the loss has two parameters, the tables a and b.
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


def _check_scores(pos: Any, neg: Any, threshold: object, mask: object, *, needs_threshold: bool) -> None:
    """Check shapes and types of a loss's arguments."""
    check_argument(
        isinstance(pos, Tensor) and pos.ndim == 1 and pos.is_floating_point(),
        "pos",
        pos,
        "positive scores of shape (B,), floating point",
    )
    check_argument(
        isinstance(neg, Tensor) and neg.ndim == 2 and neg.is_floating_point(),
        "neg",
        neg,
        "negative scores (B, N), floating point",
    )
    rows, columns = len(pos), neg.shape[1]
    check_argument(len(neg) == rows and columns > 0, "neg", neg, f"shape ({rows}, N) with N of at least 1")
    check_argument(
        not needs_threshold or (isinstance(threshold, Tensor) and threshold.shape == (rows,)),
        "threshold",
        threshold,
        f"{'one threshold per row, ' if threshold is None else ''}shape ({rows},)",
    )
    check_argument(
        mask is None or (isinstance(mask, Tensor) and mask.shape == neg.shape and mask.dtype == torch.bool),
        "mask",
        mask,
        f"booleans of shape ({rows}, {columns}), True where a negative is left out",
    )


def check_argument(fits: bool, name: str, value: object, expected: str) -> None:
    """Raise an error that says what an argument is, unless it fits."""
    if not fits:
        raise ArgumentError("is missing" if value is None else describe(value), where=name, expected=expected)
