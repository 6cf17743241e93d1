"""AdvInfoNCE: a softmax loss whose negatives are weighted by an adversary."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from talos.checks import describe, positive_integer, positive_number
from talos.errors import ArgumentError
from talos.losses import functional
from talos.losses.base import TAU_SPACE, Adversary, Batch, ListLoss, Needs

__all__ = ["AdvInfoNCE"]


class AdvInfoNCE(ListLoss):
    """AdvInfoNCE: -log[ e^{s_ui/τ} / (e^{s_ui/τ} + ω·n·Σ_j p_j e^{s_uj/τ}) ], p = softmax_j(a_u·b_j).

    a and b are two further tables of small vectors, of users and of items; they decide how much each negative
    counts. The adversary's epochs maximise the loss over them, the model's epochs minimise it. n is the number of
    negatives not masked; a row with every negative masked gives 0. An Zhang et al., "Empowering Collaborative Filtering
    with Principled Adversarial Contrastive Loss", NeurIPS 2023.

    Args:
        num_users: rows of a.
        num_items: rows of b.
        tau: temperature τ > 0.
        negative_weight: ω.
        dim: length of the adversary's vectors.
        adv_every: T_adv, epochs of the model between two epochs of the adversary.
        adv_epochs: E_adv, the adversary's epochs at most.
        adv_lr: learning rate of the adversary's Adam.
        generator: of the tables' starting values; torch's global generator if not given.

    >>> loss = AdvInfoNCE(num_users=3, num_items=5, tau=0.1)
    >>> ids = {"users": torch.tensor([2]), "items": torch.tensor([[0, 4]])}
    >>> loss(torch.tensor([0.5]), torch.tensor([[0.5, 0.5]]), **ids)   # log(1 + 64·2), whatever p is
    tensor([4.8598], grad_fn=...)
    """

    short_name = "advinfonce"
    search_space: ClassVar[Mapping[str, Any]] = {
        "tau": TAU_SPACE,
        "adv_every": {"low": 5, "high": 20},
        "adv_epochs": {"low": 5, "high": 30},
    }

    def __init__(
        self,
        *,
        num_users: int,
        num_items: int,
        tau: float = 0.1,
        negative_weight: float = 64.0,
        dim: int = 64,
        adv_every: int = 10,
        adv_epochs: int = 10,
        adv_lr: float = 1e-4,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.tau = positive_number("tau", tau)
        self.negative_weight = positive_number("negative_weight", negative_weight)
        self.adv_every = positive_integer("adv_every", adv_every)
        self.adv_epochs = positive_integer("adv_epochs", adv_epochs)
        self.adv_lr = positive_number("adv_lr", adv_lr)
        self.dim = positive_integer("dim", dim)
        self.user_table = nn.Parameter(torch.empty(positive_integer("num_users", num_users), self.dim))
        self.item_table = nn.Parameter(torch.empty(positive_integer("num_items", num_items), self.dim))
        nn.init.xavier_normal_(self.user_table, generator=generator)
        nn.init.xavier_normal_(self.item_table, generator=generator)

    @property
    def needs(self) -> Needs:
        """The ids of users and negatives, and epochs for the adversary."""
        return Needs(ids=True, adversary=True, lists=True)

    @property
    def list_kernel(self) -> tuple[str, tuple[float, ...]]:
        """1/τ and ω."""
        return "weighted-softmax", (1 / self.tau, self.negative_weight)

    def adversaries(self) -> list[Adversary]:
        """Both tables climb for an epoch of their own every `adv_every`, `adv_epochs` times at most."""
        return [
            Adversary(
                parameters=("user_table", "item_table"),
                direction="climb",
                when="own-epoch",
                lr=self.adv_lr,
                every_epochs=self.adv_every,
                max_times=self.adv_epochs,
            )
        ]

    def compute(self, batch: Batch) -> Tensor:
        """softplus( log(ω·n) + log Σ_j p_j e^{s_j/τ} - s_i/τ )."""
        pos, neg, mask, users, items = batch.pos, batch.neg, batch.mask, batch.users, batch.items
        for name, ids, shape in (("users", users, pos.shape), ("items", items, neg.shape)):
            if ids is None or ids.shape != shape:
                found = "is missing" if ids is None else describe(ids)
                raise ArgumentError(found, where=name, expected=f"ids of shape {tuple(shape)}")
        assert users is not None
        assert items is not None
        # by `F.embedding`, whose gradient adds up in a fixed order also with several threads
        hardness = self.products(F.embedding(users, self.user_table), self.item_table, items).to(neg.dtype)
        ahead, count = self._ahead(hardness, neg, mask)
        return _values(ahead - pos / self.tau, count)

    def of_lists(self, scores: Tensor, rows: Tensor, columns: Tensor, users: Tensor | None) -> Tensor:
        """The same over all items but the user's positives: all positives of a user share the sum."""
        if users is None or users.shape != scores.shape[:1]:
            found = "is missing" if users is None else describe(users)
            raise ArgumentError(found, where="users", expected=f"ids of shape ({len(scores)},)")
        if scores.shape[1] != len(self.item_table):
            expected = f"scores of {len(self.item_table)} items, num_items of the loss"
            raise ArgumentError(f"has {scores.shape[1]} columns", where="scores", expected=expected)
        if len(users) > 0 and int(users.max()) >= len(self.user_table):
            expected = f"below {len(self.user_table)}, num_users of the loss"
            raise ArgumentError(f"has {int(users.max())}", where="users", expected=expected)
        own = torch.zeros_like(scores, dtype=torch.bool)
        own[rows, columns] = True
        hardness = (F.embedding(users, self.user_table) @ self.item_table.T).to(scores.dtype)
        ahead, count = self._ahead(hardness, scores, own)
        return _values(ahead.index_select(0, rows) - scores[rows, columns] / self.tau, count[rows])

    def _ahead(self, hardness: Tensor, neg: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """log(ω·n) + log Σ_j p_j e^{s_j/τ} of every row (B, N) of negatives, and n."""
        weighted = functional.masked_log_sum_exp(hardness + neg / self.tau, mask)
        log_p_norm = functional.masked_log_sum_exp(hardness, mask)
        count = (
            neg.new_full(neg.shape[:1], neg.shape[1]) if mask is None else (~mask).sum(dim=-1).to(neg.dtype)
        )
        return math.log(self.negative_weight) + count.clamp(min=1).log() + weighted - log_p_norm, count


def _values(x: Tensor, count: Tensor) -> Tensor:
    """softplus(x); 0 without negatives."""
    values = F.softplus(x, threshold=40.0)
    return torch.where(count == 0, torch.zeros_like(values), values)
