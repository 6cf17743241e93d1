"""Weights averaged over epochs: what is validated, kept as the best, and returned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from talos.backbones import Backbone

__all__ = ["AveragedWeights"]


class AveragedWeights:
    """A running average of a backbone's parameters, with weight `newest` for those of the newest epoch.

    After epoch t the average moves by max(`newest`, 1/t) of the way to the current parameters: the plain mean of all
    epochs at first, an exponential average later. In a `short` run it moves by max(`newest`, 3/(t + 2)): epoch t counts
    as t·(t + 1) at first (polynomial-decay averaging: Shamir & Zhang, ICML 2013), because there the first epochs are a
    good part of the run, and far from where it ends. Training itself does not see the average. The noise of single
    steps, which makes the validation metric of one epoch a matter of luck, is averaged out, so a learning rate that is
    still high does no harm. With `newest` = 1 nothing is kept and the current parameters are used.

    >>> from talos.backbones import MF
    >>> mf = MF(1, 1, dim=1, generator=torch.Generator().manual_seed(0))
    >>> average = AveragedWeights(mf, newest=0.5)
    >>> for value in (1.0, 3.0, 6.0):
    ...     _ = mf.users.data.fill_(value); average.update()
    >>> with average.applied():
    ...     mf.users.item()          # halfway between (1 + 3)/2 and 6
    4.0
    >>> mf.users.item()
    6.0
    """

    def __init__(self, backbone: Backbone, *, newest: float, short: bool = False) -> None:
        self.backbone, self.newest, self.short = backbone, newest, short
        self.epochs = 0
        self.values: dict[str, Tensor] = {}

    @property
    def active(self) -> bool:
        """Whether there is an average that differs from the current parameters."""
        return self.newest < 1 and self.epochs > 1

    @torch.no_grad()
    def update(self) -> None:
        """Take in the parameters at the end of an epoch."""
        self.epochs += 1
        if self.newest >= 1:
            return
        share = 3 / (self.epochs + 2) if self.short else 1 / self.epochs
        for name, parameter in self.backbone.named_parameters():
            if name in self.values:
                self.values[name].lerp_(parameter.detach(), max(self.newest, share))
            else:
                self.values[name] = parameter.detach().clone()

    @contextmanager
    @torch.no_grad()
    def applied(self) -> Iterator[None]:
        """Exchange the backbone's parameters for their average while the context lasts."""
        if not self.active:
            yield
            return
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def apply(self) -> None:
        """Give the backbone the average for good."""
        if self.active:
            with torch.no_grad():
                self._exchange()
        self.values, self.epochs = {}, 0

    def _exchange(self) -> None:
        """Swap memory, so that nothing of a table's size is allocated and optimizers keep their parameters."""
        for name, parameter in self.backbone.named_parameters():
            parameter.data, self.values[name] = self.values[name], parameter.data

    def state(self) -> dict[str, Tensor]:
        """The average as tensors of a checkpoint, by name."""
        return {f"average.backbone.{name}": value.cpu() for name, value in self.values.items()}

    def load_state(self, tensors: Mapping[str, Tensor], epochs: int) -> None:
        """Restore what `state` returned after that many epochs."""
        self.epochs = epochs
        for name, parameter in self.backbone.named_parameters():
            stored = tensors.get(f"average.backbone.{name}")
            if stored is not None:
                self.values[name] = stored.to(parameter.device).clone()
