"""Adam for tables of vectors: dense gradients as torch does it, sparse ones row by row."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.optimizer import Optimizer

from talos.errors import ArgumentError

__all__ = ["RowAdam", "row_adam_"]

# Numbers handled at a time: four such blocks are in use and stay in cache.
_BLOCK = 2**16


class RowAdam(Optimizer):
    """Adam (Kingma & Ba, ICLR 2015) with coupled L2 weight decay that updates only the rows with a gradient.

    A dense gradient is handled by torch's own Adam, fused where the device has it. A sparse gradient (COO,
    one sparse dimension, as `F.embedding(..., sparse=True)` gives) changes its rows alone: the moments, the
    weight decay and the values of every other row stay as they are ("lazy"), and nothing of the table's size
    is allocated but the two moments, once. The step count for the bias correction is the parameter's, not
    the row's.

    So, with sparse gradients: if every row has a gradient in every step the result is that of dense Adam.
    Otherwise a row that is left out keeps its place, where dense Adam would let it drift on with old momentum
    and decay, and its moments do not fade meanwhile. A row picked out of a table costs about ten times a row
    of a whole table (measured, a million rows of 64), so this pays where fewer than a tenth are touched.

    Args:
        params: tensors or groups of them, as for any optimiser.
        lr: step size.
        betas: of the first and the second moment.
        eps: added to the denominator.
        weight_decay: λ in g ← g + λ·p, as `torch.optim.Adam` has it.

    The state of a parameter is three tensors: `step` (a scalar), `exp_avg`, `exp_avg_sq`.

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
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update of every parameter that has a gradient; returns what `closure` does, if there is one."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            dense: dict[torch.device, list[Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                self._start(parameter)
                if parameter.grad.is_sparse:
                    self._step_rows(parameter, group)
                else:
                    dense.setdefault(parameter.device, []).append(parameter)
            for parameters in dense.values():
                self._step_dense(parameters, group)
        return loss

    def _start(self, parameter: Tensor) -> None:
        state = self.state[parameter]
        if not state:
            # A tensor on the parameter's device, because fused Adam counts there.
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        elif state["step"].device != parameter.device:  # loaded from a file: torch leaves it where it was
            state["step"] = state["step"].to(parameter.device)

    def _step_rows(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        rows, values = _distinct_rows(parameter.grad)  # type: ignore[arg-type]  # the caller looked
        state["step"] += 1
        row_adam_(
            parameter,
            rows,
            values,
            state["exp_avg"],
            state["exp_avg_sq"],
            step=int(state["step"]),
            lr=group["lr"],
            betas=group["betas"],
            eps=group["eps"],
            weight_decay=group["weight_decay"],
        )

    def _step_dense(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        states = [self.state[parameter] for parameter in parameters]
        _adam(
            parameters,
            [parameter.grad for parameter in parameters],  # type: ignore[misc]  # none is None
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [state["step"] for state in states],
            **{name: group[name] for name in ("lr", "betas", "eps", "weight_decay")},
        )


def _adam(
    parameters: list[Tensor],
    gradients: list[Tensor],
    exp_avgs: list[Tensor],
    exp_avg_sqs: list[Tensor],
    steps: list[Tensor],
    *,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
) -> None:
    """Torch's own Adam, in one pass over memory where the device has that; counts the steps up."""
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
        lr=lr,
        weight_decay=weight_decay,
        eps=eps,
        maximize=False,
    )


def _distinct_rows(gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Rows (m,) and their gradients (m, …) of a sparse gradient, each row once."""
    if gradient.sparse_dim() != 1:
        raise ArgumentError(
            f"a gradient with {gradient.sparse_dim()} sparse dimensions", where="params", expected="one, rows"
        )
    rows = gradient._indices()[0]
    # A look-up of sorted distinct rows leaves them so, but torch does not know: looking costs far less than
    # its sort, and `coalesce` would copy the values too.
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
    """Adam on some rows of a table, in place; other rows and their moments are neither read nor written.

    For each row p with gradient g, at step t:

        g ← g + λp,  m ← β1·m + (1-β1)·g,  v ← β2·v + (1-β2)·g²
        p ← p - lr/(1-β1^t) · m / ( √v / √(1-β2^t) + ε )

    Args:
        parameter: (N, …), changed.
        rows: (m,), distinct.
        gradient: (m, …), read.
        exp_avg: (N, …), first moments, changed.
        exp_avg_sq: (N, …), second moments, changed.
        step: t, from 1 on.
        lr: step size.
        betas: β1 and β2.
        eps: ε.
        weight_decay: λ.

    >>> p, m, v = torch.ones(2, 1), torch.zeros(2, 1), torch.zeros(2, 1)
    >>> row_adam_(p, torch.tensor([0]), torch.tensor([[3.0]]), m, v, step=1, lr=0.5)
    >>> p.flatten().tolist(), m.flatten().tolist()
    ([0.5, 1.0], [0.3000..., 0.0])
    """
    width = max(1, parameter[0].numel()) if len(parameter) else 1
    count = max(1, _BLOCK // width)
    tables = (parameter, exp_avg, exp_avg_sq)
    for start in range(0, len(rows), count):
        some = rows[start : start + count]
        p, m, v = (table.index_select(0, some) for table in tables)
        before = torch.full((), step - 1, dtype=torch.float32, device=parameter.device)
        _adam(
            [p],
            [gradient[start : start + count]],
            [m],
            [v],
            [before],
            lr=lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
        )
        for table, changed in zip(tables, (p, m, v), strict=True):
            table.index_copy_(0, some, changed)
