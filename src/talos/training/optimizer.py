"""Adam for rows that have a gradient, and which optimizer steps which parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Adam
from torch.optim.lr_scheduler import LambdaLR

from talos.config import OptimizerConfig
from talos.kernels.core import adam_rows_
from talos.kernels.vectors import in_core
from talos.losses import Loss
from talos.training.checkpoint import flatten, unflatten

__all__ = ["Optimizers", "RowAdam", "row_adam_", "visited_row_adam_"]

# Learning-rate multiplier for rows that get one gradient an epoch: they have few steps (docs/scale.md).
VISITED_ONCE_RATE = 6.0


class RowAdam(Adam):
    """Adam (Kingma & Ba, ICLR 2015) with coupled L2 weight decay that updates only the rows with a gradient.

    For tables with sparse gradients (COO, one sparse dimension, as `F.embedding(..., sparse=True)` gives): values and
    moments of all other rows stay as they are, without weight decay ("lazy" Adam). Apart from the two moments nothing
    of the table's size is allocated. The bias correction uses the step count of the table, not of the row. A dense
    gradient is one of all rows.

    If every row has a gradient in every step, the result is that of `torch.optim.Adam`. Otherwise a row without a
    gradient does not move, where Adam would keep moving it by its momentum and decay, and its moments do not fade. A
    row of 64 out of a million takes 170 ns of CPU in the compiled core, 630 ns in torch and 52 ns in fused Adam, so
    this pays off where fewer than a third (a tenth) of the rows have a gradient.

    The arguments are `lr`, `betas`, `eps` and `weight_decay` of `torch.optim.Adam`. So is the state: `step` (a scalar
    on the CPU), `exp_avg`, `exp_avg_sq`. A group of parameters with `visited_once` has rows that get a gradient about
    once an epoch, as users in batches of users do. `visited_row_adam_` updates these, at 6 times the learning rate;
    their state has one second moment and the number of `visits` of each row.

    >>> table = torch.nn.Parameter(torch.zeros(3, 2))
    >>> optimizer = RowAdam([table], lr=0.1)
    >>> torch.nn.functional.embedding(torch.tensor([2]), table, sparse=True).sum().backward()
    >>> optimizer.step()
    >>> table.detach()
    tensor([[ 0.0000,  0.0000],
            [ 0.0000,  0.0000],
            [-0.1000, -0.1000]])
    """

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update the tables that have a gradient. A closure is not supported."""
        for group in self.param_groups:
            options = {name: group[name] for name in ("lr", "betas", "eps", "weight_decay")}
            for table in group["params"]:
                if table.grad is not None:
                    changed = _distinct_rows(table.grad)
                    self._update(table, *changed, options, visited_once=group.get("visited_once", False))

    def _update(
        self, table: Tensor, rows: Tensor, gradient: Tensor, options: dict[str, Any], *, visited_once: bool
    ) -> None:
        state = self.state[table]
        if not state:
            state["step"], state["exp_avg"] = torch.zeros(()), torch.zeros_like(table)
            if visited_once:
                state["exp_avg_sq"], state["visits"] = table.new_zeros(2, len(table)).unbind()
            else:
                state["exp_avg_sq"] = torch.zeros_like(table)
        state["step"] += 1
        moments = state["exp_avg"], state["exp_avg_sq"]
        if visited_once:
            faster = options | {"lr": options["lr"] * VISITED_ONCE_RATE}
            visited_row_adam_(table, rows, gradient, *moments, state["visits"], **faster)
        else:
            row_adam_(table, rows, gradient, *moments, step=int(state["step"]), **options)


def _distinct_rows(gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Distinct rows (m,) and their gradients (m, …)."""
    if not gradient.is_sparse:
        return torch.arange(len(gradient), device=gradient.device), gradient
    rows = gradient._indices()[0]
    # A look-up of sorted distinct rows gives such a gradient without the coalesced flag. Checking costs far less than
    # `coalesce`, which sorts and copies the values.
    if not gradient.is_coalesced() and not bool((rows[1:] > rows[:-1]).all()):
        gradient = gradient.coalesce()
    return gradient._indices()[0], gradient._values()


@torch.no_grad()
def row_adam_(
    parameter: Tensor,
    rows: Tensor,
    gradient: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    *,
    step: int,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> None:
    """Adam for some rows of a table, in place; other rows and their moments are neither read nor written.

    For each row p with gradient g, at step t:

        g ← g + λp,  m ← β1·m + (1-β1)·g,  v ← β2·v + (1-β2)·g²
        p ← p - lr/(1-β1^t) · m / ( √v / √(1-β2^t) + ε )

    `parameter`, `exp_avg` (m) and `exp_avg_sq` (v) are (N, …); `rows` (n,) are distinct, `gradient` is (n, …). Steps t
    count from 1.

    >>> p, m, v = torch.ones(2, 1), torch.zeros(2, 1), torch.zeros(2, 1)
    >>> row_adam_(p, torch.tensor([0]), torch.tensor([[3.0]]), m, v, step=1, lr=0.5)
    >>> p.flatten().tolist(), m.flatten().tolist()
    ([0.5, 1.0], [0.3000..., 0.0])
    """
    tables = (parameter, exp_avg, exp_avg_sq)
    if parameter.ndim == 2 and in_core(gradient, *tables):
        adam_rows_(
            parameter,
            rows,
            gradient,
            exp_avg,
            exp_avg_sq,
            step=step,
            lr=lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
        )
        return
    p, m, v = (table.index_select(0, rows) for table in tables)
    g = gradient + weight_decay * p if weight_decay else gradient
    m.lerp_(g, 1 - betas[0])
    v.mul_(betas[1]).addcmul_(g, g, value=1 - betas[1])
    size = (v.sqrt() / (1 - betas[1] ** step) ** 0.5).add_(eps)
    p.addcdiv_(m, size, value=-lr / (1 - betas[0] ** step))
    for table, changed in zip(tables, (p, m, v), strict=True):
        table.index_copy_(0, rows, changed)


@torch.no_grad()
def visited_row_adam_(
    parameter: Tensor,
    rows: Tensor,
    gradient: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    visits: Tensor,
    *,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> None:
    """Adam for rows that are seldom visited, in place: one second moment a row, corrected by the row's own visits.

    For each row p of d numbers with gradient g:

        t ← t + 1,  g ← g + λp,  m ← β1·m + (1-β1)·g,  v ← β2·v + (1-β2)·|g|²/d
        p ← p - lr · m/(1-β1^t) / ( √( v/(1-β2^t) ) + ε )

    A second moment of each number would be the square of the one gradient it has seen, and the step no more than the
    signs of that gradient: a first visit moves a row by lr·√d along its gradient instead. `parameter` and `exp_avg` (m)
    are (N, d), `exp_avg_sq` (v) and `visits` (t) are (N,); `rows` (n,) are distinct, `gradient` is (n, d).

    >>> p, m, v, t = torch.zeros(2, 2), torch.zeros(2, 2), torch.zeros(2), torch.zeros(2)
    >>> visited_row_adam_(p, torch.tensor([0]), torch.tensor([[3.0, 4.0]]), m, v, t, lr=0.5)
    >>> p, t             # a step of length ½·√2 along (3, 4)
    (tensor([[-0.4243, -0.5657],
            [ 0.0000,  0.0000]]), tensor([1., 0.]))
    """
    p, m, v, t = (table.index_select(0, rows) for table in (parameter, exp_avg, exp_avg_sq, visits))
    g = gradient + weight_decay * p if weight_decay else gradient
    t += 1
    m.lerp_(g, 1 - betas[0])
    v.lerp_(g.square().mean(1), 1 - betas[1])
    size = (v / (1 - betas[1] ** t)).sqrt_().add_(eps)
    p -= m * (lr / ((1 - betas[0] ** t) * size)).unsqueeze(1)
    for table, changed in zip((parameter, exp_avg, exp_avg_sq, visits), (p, m, v, t), strict=True):
        table.index_copy_(0, rows, changed)


class Optimizers:
    """The optimizers of the model with joint adversaries, and one for each adversary with epochs of its own.

    `RowAdam` updates the `touched` parameters of the backbone, those with row-sparse gradients. `torch.optim.Adam`
    updates the others, fused where the device has it. Rows of `visited_once`, one of the touched, get a gradient about
    once an epoch. `options` has numbers for `lr` and `lr_decay`.
    """

    def __init__(
        self,
        backbone: nn.Module,
        loss: Loss,
        options: OptimizerConfig,
        *,
        touched: Sequence[Tensor] = (),
        visited_once: Tensor | None = None,
    ) -> None:
        self.loss, self.lr_decay, lr = loss, float(options.lr_decay), float(options.lr)
        parameters, by_rows, adversaries = list(backbone.parameters()), set(touched), loss.adversaries()
        self.joint = [one for one in adversaries if one.when == "joint"]
        self.adversaries = [one for one in adversaries if one.when == "own-epoch"]
        # the names in a checkpoint
        modules = nn.ModuleDict({"backbone": backbone, "loss": loss})
        self.names: dict[Tensor, str] = {one: f"optimizer.{name}" for name, one in modules.named_parameters()}
        dense = [{"params": [one]} for one in parameters if one not in by_rows]
        dense += [one.param_group(loss, lr=lr) for one in self.joint]
        sparse = [
            {"params": [one], "visited_once": one is visited_once} for one in parameters if one in by_rows
        ]
        self.model: list[Adam] = []
        if dense:
            self.model.append(
                Adam(
                    dense,
                    lr=lr,
                    weight_decay=options.weight_decay,
                    fused=parameters[0].device.type in ("cpu", "cuda"),
                )
            )
        if sparse:
            self.model.append(RowAdam(sparse, lr=lr, weight_decay=options.weight_decay))
        self.own_epoch = [Adam([one.param_group(loss, lr=lr)]) for one in self.adversaries]
        self.start_epoch(0)

    def start_epoch(self, epoch: int) -> None:
        """Set the learning rates of the model and of joint adversaries to those of an epoch, counted from 0."""
        for optimizer in self.model:
            LambdaLR(optimizer, lambda epoch: self.lr_decay**epoch, last_epoch=epoch - 1)

    def start_pass(self, adversary: int | None) -> list[Adam]:
        """The optimizers that step in a pass over the batches: of the model (None), or of an adversary.

        Adversaries with epochs of their own get gradients in these alone: those of tables are half of the work.
        """
        for number, one in enumerate(self.adversaries):
            for name in one.parameters:
                self.loss.get_parameter(name).requires_grad_(number == adversary)
        return self.model if adversary is None else [self.own_epoch[adversary]]

    def due(self, *, epochs_done: int) -> list[int]:
        """The adversaries that are trained for an epoch after the next epoch of the model."""
        return [
            number
            for number, one in enumerate(self.adversaries)
            if one.due(epochs_done=epochs_done + 1, times_done=epochs_done // (one.every_epochs or 1))
        ]

    def state(self) -> dict[str, Tensor]:
        """Moments and step counts, by names that begin with `optimizer.`, for a checkpoint."""
        tensors: dict[str, Tensor] = {}
        for optimizer in (*self.model, *self.own_epoch):
            for parameter, slots in optimizer.state.items():
                tensors |= flatten(self.names[parameter], slots)
        return tensors

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Load what `state` returned. Learning rates follow from the epoch: see `start_epoch`."""
        for optimizer in (*self.model, *self.own_epoch):
            parameters = [one for group in optimizer.param_groups for one in group["params"]]
            slots = {number: unflatten(self.names[one], tensors) for number, one in enumerate(parameters)}
            optimizer.load_state_dict({**optimizer.state_dict(), "state": slots})
