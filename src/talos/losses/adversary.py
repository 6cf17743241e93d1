"""How the parameters of a loss are to be stepped, as data that a trainer reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import nn

__all__ = ["Adversary"]


@dataclass(frozen=True, kw_only=True)
class Adversary:
    """One group of a loss's own parameters: which way, when and how fast they are stepped.

    Args:
        parameters: their names in `loss.named_parameters()`.
        direction: `climb` the loss (an adversary proper) or `descend` it.
        when: `joint`, in every step of the model, or `own-epoch`, where for one epoch nothing but this
            group is stepped.
        lr: the learning rate of the group's own Adam; None for the model's.
        lr_multiplier: a factor on the rate.
        every_epochs: for `own-epoch`: one such epoch after every so many epochs of the model.
        max_times: for `own-epoch`: at most so many of them; None for no limit.
        clamps: name → (lowest, highest), applied before each step.

    >>> group = Adversary(
    ...     parameters=("gamma",), direction="climb", lr_multiplier=2.0, clamps={"gamma": (-1, 1)})
    >>> loss = nn.Module(); loss.gamma = nn.Parameter(torch.tensor(3.0))
    >>> group.clamp_(loss); loss.gamma.item()
    1.0
    >>> group.param_group(loss, lr=0.1)["lr"], group.param_group(loss, lr=0.1)["maximize"]
    (0.2, True)
    """

    parameters: tuple[str, ...]
    direction: Literal["climb", "descend"]
    when: Literal["joint", "own-epoch"] = "joint"
    lr: float | None = None
    lr_multiplier: float = 1.0
    every_epochs: int | None = None
    max_times: int | None = None
    clamps: Mapping[str, tuple[float, float]] = field(default_factory=lambda: MappingProxyType({}))

    def param_group(self, loss: nn.Module, *, lr: float) -> dict[str, Any]:
        """The group as `torch.optim.Adam` takes it; `lr` is the model's rate.

        Weight decay is 0: a penalty on an adversary is no part of any of the methods.
        """
        return {
            "params": [loss.get_parameter(name) for name in self.parameters],
            "lr": (lr if self.lr is None else self.lr) * self.lr_multiplier,
            "maximize": self.direction == "climb",
            "weight_decay": 0.0,
        }

    @torch.no_grad()
    def clamp_(self, loss: nn.Module) -> None:
        """Bring the group's parameters into their intervals, in place."""
        for name, (lowest, highest) in self.clamps.items():
            loss.get_parameter(name).clamp_(lowest, highest)

    def due(self, *, epochs_done: int, times_done: int) -> bool:
        """Whether an epoch of the group's own comes next, after so many epochs of the model.

        >>> group = Adversary(
        ...     parameters=("a",), direction="climb", when="own-epoch", every_epochs=5, max_times=2)
        >>> [epoch for epoch in range(1, 21) if group.due(epochs_done=epoch, times_done=min(2, epoch // 6))]
        [5, 10]
        """
        if self.when != "own-epoch" or self.every_epochs is None or epochs_done == 0:
            return False
        within = self.max_times is None or times_done < self.max_times
        return within and epochs_done % self.every_epochs == 0
