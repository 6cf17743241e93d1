"""Who steps which parameters, and when: the model, and the adversaries that a loss may bring."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from talos.config import OptimizerConfig
from talos.losses import Loss
from talos.training.checkpoint import flatten, unflatten
from talos.training.optim import RowAdam

__all__ = ["Optimizers"]


class Optimizers:
    """The model's optimiser, that of joint adversaries, and one for each adversary with its own epochs.

    Args:
        model: the parameters of the model.
        loss: has adversaries, or none.
        options: the rates.

    >>> from talos import registry
    >>> from talos.data.interactions import Interactions
    >>> train = Interactions.from_ids([1, 1, 2], [7, 8, 7])
    >>> backbone = registry.make_backbone("mf", train, dim=2, generator=None)
    >>> optimizers = Optimizers(backbone.parameters(), registry.make_loss("sl"), OptimizerConfig(lr=0.1))
    >>> optimizers.due(epochs_done=4), [type(one).__name__ for one in optimizers.of(None)]
    ([], ['RowAdam'])
    """

    def __init__(self, model: Iterable[Tensor], loss: Loss, options: OptimizerConfig) -> None:
        self.loss, self.rate = loss, float(options.lr)
        self.model = RowAdam(model, lr=self.rate, weight_decay=options.weight_decay)
        groups = loss.adversaries()
        self.joint = [group for group in groups if group.when == "joint"]
        self.adversaries = [group for group in groups if group.when == "own-epoch"]
        self._of_joint = (
            torch.optim.Adam([group.param_group(loss, lr=self.rate) for group in self.joint])
            if self.joint
            else None
        )
        self._of_adversaries = [
            torch.optim.Adam([group.param_group(loss, lr=self.rate)]) for group in self.adversaries
        ]

    def of(self, adversary: int | None) -> list[torch.optim.Optimizer]:
        """Those that step in a pass of the model's own (None), or of an adversary."""
        if adversary is not None:
            return [self._of_adversaries[adversary]]
        return [self.model] if self._of_joint is None else [self.model, self._of_joint]

    def due(self, *, epochs_done: int) -> list[int]:
        """Which adversaries get an epoch of their own after the next epoch of the model."""
        return [
            number
            for number, group in enumerate(self.adversaries)
            if group.due(epochs_done=epochs_done + 1, times_done=epochs_done // (group.every_epochs or 1))
        ]

    def scale_rate(self, factor: float) -> None:
        """Let the model step at its rate times a factor."""
        for group in self.model.param_groups:
            group["lr"] = self.rate * factor

    def clamp_joint_(self) -> None:
        """Bring the parameters of joint adversaries into their intervals."""
        for group in self.joint:
            group.clamp_(self.loss)

    def _named(self) -> dict[str, torch.optim.Optimizer]:
        named: dict[str, torch.optim.Optimizer] = {"model": self.model}
        if self._of_joint is not None:
            named["joint"] = self._of_joint
        return named | {f"adversary{i}": optimizer for i, optimizer in enumerate(self._of_adversaries)}

    def state(self) -> dict[str, Tensor]:
        """Moments and step counts, by names that begin with `optimizer.`."""
        tensors: dict[str, Tensor] = {}
        for name, optimizer in self._named().items():
            tensors |= flatten(f"optimizer.{name}", optimizer.state_dict()["state"])[0]
        return tensors

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Take up what `state` gave."""
        for name, optimizer in self._named().items():
            state: dict[int, dict[str, Tensor]] = {}
            for key, tensor in unflatten(f"optimizer.{name}", tensors).items():
                number, _, slot = key.partition(".")
                state.setdefault(int(number), {})[slot] = tensor
            optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
