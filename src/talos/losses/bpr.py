"""BPR, the oldest of them."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from talos.losses import functional
from talos.losses.base import Loss, Needs

__all__ = ["BPR"]


class BPR(Loss):
    """Bayesian personalised ranking: -log σ(s_ui - s_uj), one negative, on raw dot products.

    Several negatives are averaged; a row with all of them masked gives 0. Steffen Rendle et al., "BPR:
    Bayesian Personalized Ranking from Implicit Feedback", UAI 2009.

    >>> import torch
    >>> BPR()(torch.tensor([1.0]), torch.tensor([[1.0]]))   # log 2
    tensor([0.6931])
    """

    short_name = "bpr"

    @property
    def needs(self) -> Needs:
        """One negative, raw dot products."""
        return Needs(negatives="one", scores="dot")

    def compute(
        self,
        pos: Tensor,
        neg: Tensor,
        threshold: Tensor | None,
        mask: Tensor | None,
        users: Tensor | None,
        items: Tensor | None,
    ) -> Tensor:
        """mean_j softplus(s_j - s_i)."""
        return functional.masked_mean(F.softplus(neg - pos.unsqueeze(-1), threshold=40.0), mask)
