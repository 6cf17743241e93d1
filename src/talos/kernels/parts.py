"""What a kernel asks of a loss: the shape of its parts, by structure and not by import."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, Protocol, runtime_checkable

from torch import Tensor, nn

__all__ = ["LossParts", "NegativePart"]


class NegativePart(Protocol):
    """R_u of a user's negatives: scale·log Σφ ("log-sum"), scale·mean φ ("mean") or scale ("constant").

    `kind` and `params` name φ as plain data, for a core that has its own version of it. Of the functions only
    those of the part's own `reduction` are called.
    """

    @property
    def kind(self) -> str:
        """Which φ."""

    @property
    def reduction(self) -> Literal["log-sum", "mean", "constant"]:
        """How φ is summed up."""

    @property
    def params(self) -> tuple[float, ...]:
        """The numbers in φ."""

    @property
    def scale(self) -> float:
        """The factor of R."""


class LogSumPart(NegativePart, Protocol):
    """A part with reduction "log-sum"."""

    def log_phi_and_slope(self, s: Tensor, threshold: Tensor | None) -> tuple[Tensor, Tensor]:
        """Logarithm of φ(s, β), as a tensor of its own, and its derivative in s."""


class MeanPart(NegativePart, Protocol):
    """A part with reduction "mean"."""

    def phi(self, s: Tensor, threshold: Tensor | None) -> Tensor:
        """φ(s, β)."""

    def dphi(self, s: Tensor, threshold: Tensor | None) -> Tensor:
        """Its derivative in s."""

    def dphi_dparameters(self, s: Tensor, threshold: Tensor | None) -> Mapping[str, Tensor]:
        """Its derivatives in the loss's learnt scalars, by name."""

    def from_moments(self, moments: Tensor) -> Mapping[str, Tensor]:
        """Sums of these derivatives, from the two sums of which a core makes them, (..., 2)."""


class PartsNeeds(Protocol):
    """What a loss says of itself, as far as a kernel cares."""

    @property
    def threshold(self) -> bool:
        """Whether β_u must be given."""

    @property
    def user_separable(self) -> bool:
        """Whether the loss has the form a + c·R as it is set up."""


@runtime_checkable
class LossParts(Protocol):
    """A loss a(s_ui, β_u) + c(s_ui, β_u)·R_u; every `UserSeparableLoss` is one.

    >>> from talos.losses import BPR, Talos
    >>> isinstance(Talos(tau=0.1), LossParts), isinstance(BPR(), LossParts)
    (True, False)
    """

    @property
    def needs(self) -> PartsNeeds:
        """What it asks for."""

    @property
    def negative_part(self) -> NegativePart:
        """R."""

    def positive_part(self, pos: Tensor, threshold: Tensor | None) -> tuple[Tensor, Tensor]:
        """The pair a, c; c is a constant for the gradient."""

    def da(self, pos: Tensor, threshold: Tensor | None) -> Tensor:
        """∂a/∂s."""

    def da_dparameters(self, pos: Tensor, threshold: Tensor | None) -> Mapping[str, Tensor]:
        """∂a/∂p of the loss's learnt scalars, by name."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The learnt scalars."""
