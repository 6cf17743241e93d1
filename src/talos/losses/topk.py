"""Other losses for the top of the list: AATP, RS@K, SmoothI@K."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from talos.checks import positive_integer, positive_number
from talos.losses import functional
from talos.losses.base import TAU_SPACE, ListLoss, Needs, PairwiseLoss, Scores, UserSeparableLoss
from talos.losses.phi import Hinge, PairPhi, Phi, SigmoidRankPairs

__all__ = ["AATP", "RecallSurrogate", "SmoothI"]


class AATP(UserSeparableLoss):
    """Accuracy at the top: mean_j (1 + s_uj - β_u)+ + (1 + β_u - s_ui)+.

    A hinge on either side of the K-th best score, which is estimated by quantile regression. Stephen Boyd et al.,
    "Accuracy at the Top", NeurIPS 2012.

    >>> AATP()(torch.tensor([0.5]), torch.tensor([[0.1, -0.1]]), threshold=torch.tensor([0.2]))
    tensor([1.5000])
    """

    short_name = "aatp"
    needs = Needs(threshold=True, default_threshold="regression", user_separable=True)

    def __init__(self) -> None:
        super().__init__()  # no weights as options: the published loss has none

    @property
    def phi(self) -> Phi:
        """R = mean_j (1 + s_j - β)+."""
        return Hinge()

    def positive_part(self, pos: Tensor, beta: Tensor | None) -> tuple[Tensor, Tensor]:
        """The pair a = (1 + β - s)+, c = 1."""
        return F.relu(1 - pos if beta is None else 1 + beta - pos), torch.ones_like(pos)


class RecallSurrogate(PairwiseLoss):
    """RS@K: 1 - σ((K - rank)/τ2) with the soft rank 1 + Σ_j σ((s_uj - s_ui)/τ1).

    Yash Patel et al., "Recall@k Surrogate Loss with Large Batches and Similarity Mixup", CVPR 2022.

    Args:
        k: list length K.
        tau1: temperature of the rank; as it goes to 0 the rank becomes the true one.
        tau2: temperature of the cut at K.
        user_power: p. A user with n positives weighs n^p in the mean: 1 is the published code, 0 a mean over users.

    >>> loss = RecallSurrogate(k=2, tau1=1e-3, tau2=1.0)
    >>> loss(torch.tensor([0.5]), torch.tensor([[0.9, 0.1, 0.0]]))   # rank 2 = K
    tensor([0.5000])
    """

    short_name = "rs@k"
    search_space: ClassVar[Mapping[str, Any]] = {
        "tau1": {"low": 0.01, "high": 0.3, "log": True},
        "tau2": {"low": 0.5, "high": 5.0},
    }

    def __init__(self, *, k: int, tau1: float = 0.1, tau2: float = 1.0, user_power: float = 1.0) -> None:
        super().__init__(user_power=user_power)
        self.k = positive_integer("k", k)
        self.tau1 = positive_number("tau1", tau1)
        self.tau2 = positive_number("tau2", tau2)

    @property
    def phi(self) -> PairPhi:
        """σ((rank - K)/τ2), rank = 1 + Σ_j σ(d_j/τ1)."""
        return SigmoidRankPairs(1 / self.tau1, float(self.k), 1 / self.tau2)


class SmoothI(ListLoss):
    """SmoothI@K: 1 - 1/K Σ_{r≤K} I^r_i, with I^r a smooth indicator of rank r.

    The list is l = (s_ui, s_uj…), shifted so that its minimum is 0; I^1 = softmax(l/τ) and
    I^r = softmax(l/τ · Π_{q<r}(1 - I^q - δ)), the product per item and detached: K softmaxes over a
    list. With drawn negatives every positive has a list of its own. Over all items a user has one list with all
    positives, as in the paper of SmoothI, and 1/K Σ_i Σ_r I^r_i is a smooth Precision@K. For a user with one positive
    both are the same. Thibaut Thonet et al., "SmoothI: Smooth Rank Indicators for
    Differentiable IR Metrics", AAAI 2022.

    Args:
        k: list length K.
        tau: temperature τ > 0.
        delta: δ in (0, 1], how far an item that already has a rank is pushed down.

    >>> loss = SmoothI(k=2, tau=0.01, delta=0.1)
    >>> loss(torch.tensor([0.5]), torch.tensor([[0.9, 0.1, 0.0]]))   # ranked second: one of K ranks
    tensor([0.5000])
    """

    short_name = "smoothi@k"
    search_space: ClassVar[Mapping[str, Any]] = {"tau": TAU_SPACE, "delta": {"low": 0.03, "high": 0.3}}

    def __init__(self, *, k: int, tau: float = 0.1, delta: float = 0.1) -> None:
        super().__init__()
        self.k = positive_integer("k", k)
        self.tau = positive_number("tau", tau)
        self.delta = positive_number("delta", delta, at_most=1.0)

    @property
    def list_kernel(self) -> tuple[str, tuple[float, ...]]:
        """K, 1/τ and δ."""
        return "smooth-places", (float(self.k), 1 / self.tau, self.delta)

    def compute(self, given: Scores) -> Tensor:
        """1 - 1/K Σ_r I^r, each positive in a list of its own."""
        scores = torch.cat([given.pos.unsqueeze(-1), given.neg], dim=-1)
        masked = None if given.mask is None else F.pad(given.mask, (1, 0), value=False)
        rows = torch.arange(len(scores), device=scores.device)
        return self._missed(scores, rows, torch.zeros_like(rows), masked)

    def of_lists(self, scores: Tensor, rows: Tensor, columns: Tensor, users: Tensor | None) -> Tensor:
        """The same, all positives of a user in one list."""
        return self._missed(scores, rows, columns, None)

    def _missed(self, scores: Tensor, rows: Tensor, columns: Tensor, mask: Tensor | None) -> Tensor:
        indicators = functional.smooth_indicators(
            scores, rows, columns, k=self.k, tau=self.tau, delta=self.delta, mask=mask
        )
        return 1 - indicators.mean(dim=-1)
