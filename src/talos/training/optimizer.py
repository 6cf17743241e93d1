"""Adam that updates only the rows with a gradient, and which optimizer steps which parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.optimizer import Optimizer

from talos.config import OptimizerConfig
from talos.errors import ArgumentError
from talos.kernels import library
from talos.kernels.core_samples import core_adam_rows_
from talos.losses import Loss
from talos.training.checkpoint import flatten, unflatten

__all__ = ["Optimizers", "RowAdam", "row_adam_", "visited_row_adam_"]

# Numbers handled at a time: four blocks of that size are in use and stay in cache.
_BLOCK = 2**16
_OPTIONS = ("lr", "betas", "eps", "weight_decay")
# How much faster rows move that are visited once an epoch: what they don't reach in a few epochs they never do
# (docs/scale.md).
VISITED_ONCE_RATE = 6.0


class RowAdam(Optimizer):
    """Adam (Kingma & Ba, ICLR 2015) with coupled L2 weight decay that updates only the rows with a gradient.

    A dense gradient is handled by torch's own Adam, fused where the device has it. A sparse gradient (COO, one sparse
    dimension, as `F.embedding(..., sparse=True)` gives) changes its rows only ("lazy" Adam): values and moments of
    all other rows stay as they are, without weight decay. Apart from the two moments nothing of the table's size is
    allocated. The bias correction uses the step count of the parameter, not of the row.

    If every row has a gradient in every step, the result is that of dense Adam. Otherwise a row without a gradient
    does not move, where dense Adam would keep moving it by its momentum and decay, and its moments do not fade. A
    row of 64 out of a million takes 170 ns of CPU in the compiled core, 630 ns in torch and 52 ns in a dense update, so
    this pays off where fewer than a third (a tenth) of the rows have a gradient.

    The arguments are those of `torch.optim.Adam`, and so is the state: `step` (a scalar), `exp_avg`, `exp_avg_sq`. A
    group of parameters with `visited_once` has rows that get a gradient about once an epoch, as users in batches of
    users do: sparse gradients of these are handled by `visited_row_adam_`, at 6 times the rate, and their state has
    one second moment and the number of `visits` of each row.

    >>> table = torch.nn.Parameter(torch.zeros(3, 2))
    >>> optimizer = RowAdam([table], lr=0.1)
    >>> torch.nn.functional.embedding(torch.tensor([2]), table, sparse=True).sum().backward()
    >>> optimizer.step()
    >>> table.detach()
    tensor([[ 0.0000,  0.0000],
            [ 0.0000,  0.0000],
            [-0.1000, -0.1000]])
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        for name, value, valid in (
            ("lr", lr, lr >= 0),
            ("eps", eps, eps >= 0),
            ("weight_decay", weight_decay, weight_decay >= 0),
        ):
            if not valid:
                raise ArgumentError(f"{value}", where=name, expected="0 or more")
        if not all(0 <= beta < 1 for beta in betas):
            raise ArgumentError(f"{betas}", where="betas", expected="two numbers from 0 to below 1")
        options = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "visited_once": False}
        super().__init__(params, options)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every parameter that has a gradient; returns the value of `closure`, if given."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            dense: dict[torch.device, list[Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                by_visits = group["visited_once"] and parameter.grad.is_sparse
                self._start(parameter, by_visits=by_visits)
                if by_visits:
                    self._step_visited(parameter, group)
                elif parameter.grad.is_sparse:
                    self._step_rows(parameter, group)
                else:
                    dense.setdefault(parameter.device, []).append(parameter)
            for parameters in dense.values():
                self._step_dense(parameters, group)
        return loss

    def _start(self, parameter: Tensor, *, by_visits: bool) -> None:
        state = self.state[parameter]
        if not state:
            # fused Adam needs the step count on the parameter's device
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            state["exp_avg"] = torch.zeros_like(parameter)
            if by_visits:
                state["exp_avg_sq"], state["visits"] = parameter.new_zeros(2, len(parameter)).unbind()
            else:
                state["exp_avg_sq"] = torch.zeros_like(parameter)
        elif state["step"].device != parameter.device:  # loaded from a file: torch does not move it
            state["step"] = state["step"].to(parameter.device)

    def _step_rows(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state, options = self.state[parameter], {name: group[name] for name in _OPTIONS}
        rows, values = _distinct_rows(parameter.grad)  # type: ignore[arg-type]  # not None, see `step`
        state["step"] += 1
        moments = state["exp_avg"], state["exp_avg_sq"]
        row_adam_(parameter, rows, values, *moments, step=int(state["step"]), **options)

    def _step_visited(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state, options = self.state[parameter], {name: group[name] for name in _OPTIONS}
        options["lr"] *= VISITED_ONCE_RATE
        rows, values = _distinct_rows(parameter.grad)  # type: ignore[arg-type]
        state["step"] += 1
        moments = state["exp_avg"], state["exp_avg_sq"], state["visits"]
        visited_row_adam_(parameter, rows, values, *moments, **options)

    def _step_dense(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        states = [self.state[parameter] for parameter in parameters]
        _adam(
            parameters,
            [parameter.grad for parameter in parameters],  # type: ignore[misc]  # none is None
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [state["step"] for state in states],
            **{name: group[name] for name in _OPTIONS},
        )


def _adam(
    parameters: list[Tensor],
    gradients: list[Tensor],
    exp_avgs: list[Tensor],
    exp_avg_sqs: list[Tensor],
    steps: list[Tensor],
    *,
    betas: tuple[float, float],
    **options: Any,
) -> None:
    """Torch's own Adam, fused where the device has it; increments `steps`."""
    adam(
        parameters,
        gradients,
        exp_avgs,
        exp_avg_sqs,
        [],
        steps,
        fused=parameters[0].device.type in ("cpu", "cuda"),
        amsgrad=False,
        beta1=betas[0],
        beta2=betas[1],
        maximize=False,
        **options,
    )


def _distinct_rows(gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Distinct rows (m,) and their gradients (m, …) of a sparse gradient."""
    if gradient.sparse_dim() != 1:
        raise ArgumentError(
            f"a gradient with {gradient.sparse_dim()} sparse dimensions", where="params", expected="one, rows"
        )
    rows = gradient._indices()[0]
    # A look-up of sorted distinct rows gives such a gradient without the coalesced flag. Checking costs far less than
    # `coalesce`, which sorts and copies the values.
    if gradient.is_coalesced() or bool((rows[1:] > rows[:-1]).all()):
        return rows, gradient._values()
    gradient = gradient.coalesce()
    return gradient.indices()[0], gradient.values()


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
    if _core_takes(parameter, gradient, exp_avg, exp_avg_sq):
        given = parameter, rows, gradient, exp_avg, exp_avg_sq
        core_adam_rows_(*given, step=step, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
        return
    width = max(1, parameter[0].numel()) if len(parameter) else 1
    count = max(1, _BLOCK // width)
    tables = (parameter, exp_avg, exp_avg_sq)
    for start in range(0, len(rows), count):
        some = rows[start : start + count]
        p, m, v = (table.index_select(0, some) for table in tables)
        before = torch.full((), step - 1, dtype=torch.float32, device=parameter.device)
        g = gradient[start : start + count]
        _adam([p], [g], [m], [v], [before], lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
        for table, changed in zip(tables, (p, m, v), strict=True):
            table.index_copy_(0, some, changed)


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


def _core_takes(*tables: Tensor) -> bool:
    """Whether the compiled core can update these tables in place."""
    plain = all(
        table.ndim == 2
        and table.dtype == torch.float32
        and table.device.type == "cpu"
        and table.is_contiguous()
        for table in tables
    )
    return plain and library.available()


class Optimizers:
    """The optimizer of the model, that of joint adversaries, and one for each adversary with epochs of its own.

    Of the model's parameters, rows of `visited_once` get a gradient about once an epoch (see `RowAdam`).
    """

    def __init__(
        self,
        model: Iterable[Tensor],
        loss: Loss,
        options: OptimizerConfig,
        *,
        visited_once: Tensor | None = None,
    ) -> None:
        self.loss, self.rate = loss, float(options.lr)
        # a group each, so that a checkpoint numbers them in their order
        groups = [{"params": [one], "visited_once": one is visited_once} for one in model]
        self.model = RowAdam(groups, lr=self.rate, weight_decay=options.weight_decay)
        adversaries = loss.adversaries()
        # stepped, and slowed down, with the model
        self.joint = [group for group in adversaries if group.when == "joint"]
        self.adversaries = [group for group in adversaries if group.when == "own-epoch"]
        self._of_joint = (
            torch.optim.Adam([group.param_group(loss, lr=self.rate) for group in self.joint])
            if self.joint
            else None
        )
        self._of_adversaries = [
            torch.optim.Adam([group.param_group(loss, lr=self.rate)]) for group in self.adversaries
        ]

    def begin_pass(self, adversary: int | None) -> list[torch.optim.Optimizer]:
        """The optimizers that step in a pass over the batches: of the model (None), or of an adversary.

        Adversaries with epochs of their own get gradients in these alone: those of tables are half of the work.
        """
        for number, optimizer in enumerate(self._of_adversaries):
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.requires_grad_(number == adversary)
        if adversary is not None:
            return [self._of_adversaries[adversary]]
        return [self.model] if self._of_joint is None else [self.model, self._of_joint]

    def due(self, *, epochs_done: int) -> list[int]:
        """The adversaries that are trained for an epoch after the next epoch of the model."""
        return [
            number
            for number, group in enumerate(self.adversaries)
            if group.due(epochs_done=epochs_done + 1, times_done=epochs_done // (group.every_epochs or 1))
        ]

    def scale_rate(self, factor: float) -> None:
        """Set the learning rates of the model and of joint adversaries to the configured ones times a factor."""
        joint = [] if self._of_joint is None else self._of_joint.param_groups
        for group in (*self.model.param_groups, *joint):
            group["lr"] = group.setdefault("initial_lr", group["lr"]) * factor

    def clamp_joint_(self) -> None:
        """Clamp the parameters of joint adversaries to their intervals."""
        for group in self.joint:
            group.clamp_(self.loss)

    def _named(self) -> dict[str, torch.optim.Optimizer]:
        named: dict[str, torch.optim.Optimizer] = {"model": self.model}
        if self._of_joint is not None:
            named["joint"] = self._of_joint
        return named | {f"adversary{i}": optimizer for i, optimizer in enumerate(self._of_adversaries)}

    def state(self) -> dict[str, Tensor]:
        """Moments and step counts, by names that begin with `optimizer.`, for a checkpoint."""
        tensors: dict[str, Tensor] = {}
        for name, optimizer in self._named().items():
            tensors |= flatten(f"optimizer.{name}", optimizer.state_dict()["state"])
        return tensors

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Load what `state` returned."""
        for name, optimizer in self._named().items():
            state: dict[int, dict[str, Tensor]] = {}
            for key, tensor in unflatten(f"optimizer.{name}", tensors).items():
                number, _, slot = key.partition(".")
                state.setdefault(int(number), {})[slot] = tensor
            optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
        for group in self.model.param_groups:
            # a parameter without a step has no state yet
            states = [self.model.state[one] for one in group["params"] if one in self.model.state]
            if group["visited_once"] and any(state and "visits" not in state for state in states):
                raise ValueError("the optimizer's state has no visits: an earlier version wrote it")
