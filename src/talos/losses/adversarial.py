"""AdvInfoNCE: a softmax loss whose negatives are weighted by an adversary."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from talos.checks import positive_integer, positive_number, require
from talos.losses import functional
from talos.losses.base import TAU_SPACE, Adversary, ListLoss, Needs, Scores, check_argument

__all__ = ["AdvInfoNCE"]


class AdvInfoNCE(ListLoss):
    """AdvInfoNCE: -log[ e^{s_ui/τ} / (e^{s_ui/τ} + ω·n·Σ_j p_j e^{s_uj/τ}) ], p = softmax_j(a_u·b_j).

    a and b are two further tables of small vectors, of users and of items, which set the weight of each negative. The
    adversary's epochs maximise the loss over them, the model's epochs minimise it. n is the number of
    negatives not masked; a row with every negative masked gives 0. An Zhang et al., "Empowering Collaborative Filtering
    with Principled Adversarial Contrastive Loss", NeurIPS 2023.

    Args:
        num_users: rows of a.
        num_items: rows of b.
        tau: temperature τ > 0.
        negative_weight: ω.
        dim: length of the adversary's vectors.
        adv_every: T_adv, epochs of the model between two epochs of the adversary.
        adv_epochs: E_adv, the largest number of the adversary's epochs.
        adv_lr: learning rate of the adversary's Adam.
        generator: draws the tables' starting values; torch's global generator if not given.

    >>> loss = AdvInfoNCE(num_users=3, num_items=5, tau=0.1)
    >>> ids = {"users": torch.tensor([2]), "items": torch.tensor([[0, 4]])}
    >>> loss(torch.tensor([0.5]), torch.tensor([[0.5, 0.5]]), **ids)   # log(1 + 64·2) for any p
    tensor([4.8598], grad_fn=...)
    """

    short_name = "advinfonce"
    needs = Needs(ids=True, adversary=True, lists=True)
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
    def list_kernel(self) -> tuple[str, tuple[float, ...]]:
        """1/τ and ω."""
        return "weighted-softmax", (1 / self.tau, self.negative_weight)

    def adversaries(self) -> list[Adversary]:
        """Both tables climb in epochs of their own: after every `adv_every` epochs, at most `adv_epochs` times."""
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

    def compute(self, given: Scores) -> Tensor:
        """softplus( log(ω·n) + log Σ_j p_j e^{s_j/τ} - s_i/τ )."""
        pos, neg, mask = given.pos, given.neg, given.mask
        users = _checked_ids("users", given.users, pos.shape)
        items = _checked_ids("items", given.items, neg.shape)
        # The gradient of `F.embedding` adds up in a fixed order with several threads too.
        vectors = F.embedding(users, self.user_table)
        hardness = functional.sampled_products(vectors, self.item_table, items).to(neg.dtype)
        return F.softplus(self._ahead(hardness, neg, mask) - pos / self.tau, threshold=40.0)

    def of_lists(self, scores: Tensor, rows: Tensor, columns: Tensor, users: Tensor | None) -> Tensor:
        """The same over all items except the user's positives; a user has one sum for all positives."""
        users = _checked_ids("users", users, scores.shape[:1])
        num_users, num_items = len(self.user_table), len(self.item_table)
        require(
            scores.shape[1] == num_items,
            f"has {scores.shape[1]} columns",
            where="scores",
            expected=f"scores of {num_items} items, num_items of the loss",
        )
        last = int(users.max()) if len(users) else -1
        require(
            last < num_users,
            f"has {last}",
            where="users",
            expected=f"below {num_users}, num_users of the loss",
        )
        own = torch.zeros_like(scores, dtype=torch.bool)
        own[rows, columns] = True
        hardness = (F.embedding(users, self.user_table) @ self.item_table.T).to(scores.dtype)
        ahead = self._ahead(hardness, scores, own).index_select(0, rows)
        return F.softplus(ahead - scores[rows, columns] / self.tau, threshold=40.0)

    def _ahead(self, hardness: Tensor, neg: Tensor, mask: Tensor | None) -> Tensor:
        """log(ω·n) + log Σ_j p_j e^{s_j/τ} of every row of negatives (B, N); -inf without negatives."""
        weighted = functional.masked_log_sum_exp(hardness + neg / self.tau, mask)
        log_p_norm = functional.masked_log_sum_exp(hardness, mask)
        count = (torch.ones_like(neg) if mask is None else (~mask).to(neg.dtype)).sum(dim=-1)
        return math.log(self.negative_weight) + count.log() + weighted - log_p_norm


def _checked_ids(name: str, ids: Tensor | None, shape: torch.Size) -> Tensor:
    check_argument(ids is not None and ids.shape == shape, name, ids, f"ids of shape {tuple(shape)}")
    return cast(Tensor, ids)
