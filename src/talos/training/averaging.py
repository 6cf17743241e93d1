"""Weights averaged over epochs: training validates, keeps and returns the average."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from talos.backbones import Backbone

__all__ = ["AveragedWeights"]


class AveragedWeights:
    """A running average of a backbone's parameters, with weight `newest` for those of the newest epoch.

    After epoch t the average moves by max(`newest`, 1/t) of the way to the current parameters: the plain mean of all
    epochs at first, an exponential average later. In a `short` run it moves by max(`newest`, 3/(t + 2)), so that epoch
    t has weight t·(t + 1) at first (polynomial-decay averaging: Shamir & Zhang, ICML 2013): there the first epochs are
    much of the run, and far from its end. Training itself does not see the average. It removes the noise of
    single steps from the validation metric, so a learning rate that is still high does no harm. With `newest` = 1
    there is no average, and the current parameters are used.

    >>> import torch
    >>> from talos.backbones import MF
    >>> mf = MF(1, 1, dim=1, generator=torch.Generator().manual_seed(0))
    >>> average = AveragedWeights(mf, newest=0.5)
    >>> for value in (1.0, 3.0, 6.0):
    ...     _ = mf.user_table.data.fill_(value); average.update()
    >>> with average.applied():
    ...     mf.user_table.item()          # halfway between (1 + 3)/2 and 6
    4.0
    >>> mf.user_table.item()
    6.0
    """

    def __init__(self, backbone: Backbone, *, newest: float, short: bool = False) -> None:
        def move_(averages: Sequence[Tensor], parameters: Sequence[Tensor], epochs: Tensor | int) -> None:
            weight = 3 / (int(epochs) + 3) if short else 1 / (int(epochs) + 1)
            for average, parameter in zip(averages, parameters, strict=True):
                average.lerp_(parameter, max(newest, weight))

        self.names = [name for name, _ in backbone.named_parameters()]
        # without the backbone's buffers: `AveragedModel` would copy its graph
        self.current = nn.ParameterList(backbone.parameters())
        self.average = AveragedModel(self.current, multi_avg_fn=move_) if newest < 1 else None

    def update(self) -> None:
        """Take in the parameters at the end of an epoch."""
        if self.average is not None:
            self.average.update_parameters(self.current)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Exchange the backbone's parameters for their average while the context lasts."""
        self.exchange()
        try:
            yield
        finally:
            self.exchange()

    def exchange(self) -> None:
        """Exchange the two: memory is swapped, so nothing is allocated, and optimizers keep their parameters."""
        if self.average is not None and self.average.n_averaged > 0:
            for parameter, average in zip(self.current, self.average.parameters(), strict=True):
                parameter.data, average.data = average.data, parameter.data

    def _named(self) -> dict[str, Tensor]:
        averages = () if self.average is None else self.average.parameters()
        return {
            f"average.backbone.{name}": value.data for name, value in zip(self.names, averages, strict=False)
        }

    def state(self) -> dict[str, Tensor]:
        """The average as tensors of a checkpoint, by name."""
        return {name: value.cpu() for name, value in self._named().items()}

    def load_state(self, tensors: Mapping[str, Tensor], epochs: int) -> None:
        """Restore what `state` returned after that many epochs."""
        if self.average is not None:
            self.average.n_averaged.fill_(epochs)
        for name, value in self._named().items():
            value.copy_(tensors[name])
