"""The formulas behind the losses: stateless, unreduced and safe for large scores; and two ways to reduce them.

Scores are `s`. Thresholds are `beta`, constants for the gradient. A `mask` is True at negatives to leave out. A sum or
mean over no negatives is 0 with gradient 0, so that such a row keeps the term of its positive alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = [
    "log_sigmoid",
    "log_sum_exp_by",
    "log_sum_sigmoid_power",
    "masked_log_sum_exp",
    "masked_mean",
    "power_mean",
    "reduce_per_positive",
    "reduce_per_user",
    "sampled_products",
    "sharp_softplus",
    "smooth_indicators",
]

# Elements per thread in a block of rows on the CPU: temporaries of this size stay in the second-level cache.
_BLOCK = 2**17
# Largest β - s for which log σ(s - β) is computed as log1p(-σ(β - s)), which loses six bits of precision at most.
# The difference of a cosine and a threshold stays within 2.
_NEAR = 4.0


def log_sigmoid(x: Tensor) -> Tensor:
    """The logarithm of σ(x), exact to rounding for every finite x.

    `softplus` switches to its linear branch at 40 here: at its default of 20 the error would show in float64.

    >>> log_sigmoid(torch.tensor([0.0, -1e4, 1e4])).tolist()
    [-0.6931..., -10000.0, -0.0]
    """
    return -F.softplus(-x, threshold=40.0)


def masked_log_sum_exp(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """The sum log Σ_j e^{x_j} over the last dimension, without the masked entries; 0 where all are masked.

    >>> x = torch.tensor([[0.0, 0.0, 5.0], [1.0, 2.0, 3.0]])
    >>> mask = torch.tensor([[False, False, True], [True, True, True]])
    >>> masked_log_sum_exp(x, mask).tolist()
    [0.6931..., 0.0]
    """
    if mask is None:
        return torch.logsumexp(x, dim=-1)
    # The lowest finite number, not -inf: the gradient of a row of -inf would be NaN before `masked_fill` drops it.
    total = torch.logsumexp(x.masked_fill(mask, torch.finfo(x.dtype).min), dim=-1)
    return total.masked_fill(mask.all(dim=-1), 0.0)


def masked_mean(x: Tensor, mask: Tensor | None = None, weights: Tensor | None = None) -> Tensor:
    """The mean over the last dimension, without the masked entries; 0 where all are masked.

    `weights` are those of the columns.

    >>> masked_mean(torch.tensor([[1.0, 3.0, 9.0]]), torch.tensor([[False, False, True]])).tolist()
    [2.0]
    >>> masked_mean(torch.tensor([[1.0, 3.0]]), weights=torch.tensor([3.0, 1.0])).tolist()
    [1.5]
    """
    if mask is None and weights is None:
        return x.mean(dim=-1)
    x = x if mask is None else x.masked_fill(mask, 0.0)
    kept = torch.ones_like(x) if mask is None else (~mask).to(x.dtype)
    total, mass = (x.sum(-1), kept.sum(-1)) if weights is None else (x @ weights, kept @ weights)
    return total / mass.masked_fill(mass == 0, 1.0)


def _log_sum_and_gradient(
    s: Tensor,
    beta: Tensor | None,
    mask: Tensor | None,
    power: float | Tensor,
    slope: float | Tensor,
) -> tuple[Tensor, Tensor]:
    """The sum log Σ_j σ(ω(s_j - β))^κ, (B,), and its gradient but for the factor κω, (B, N).

    Each block of rows goes through all operations while it is in cache. Autograd would write (B, N) for each operation.
    """
    total, gradient = s.new_zeros(s.shape[0]), torch.empty_like(s)
    cached = _BLOCK * torch.get_num_threads() if s.device.type == "cpu" else s.numel()
    rows = max(1, cached // max(1, s.shape[1]))
    for start in range(0, s.shape[0] if s.shape[1] else 0, rows):
        block = slice(start, start + rows)
        kappa, omega = (p[block] if isinstance(p, Tensor) else p for p in (power, slope))
        y = -s[block] if beta is None else beta[block] - s[block]
        if isinstance(omega, Tensor) or omega != 1.0:
            y.mul_(omega)
        # σ(y) is the derivative of log σ at -y. From it the logarithm takes little more than half the time. On a GPU
        # the test would cost more than that saves.
        far = None if y.device.type == "cpu" and y.amax() <= _NEAR else log_sigmoid(-y)
        below = y.sigmoid_()
        log_phi = ((-below).log1p_() if far is None else far).mul_(kappa)
        if mask is not None:
            log_phi.masked_fill_(mask[block], torch.finfo(s.dtype).min)
        probability = torch.softmax(log_phi, dim=-1)
        # The largest is e^{max - log Z} and at least 1/N: log Z without a second exponential.
        total[block] = log_phi.amax(dim=-1) - probability.amax(dim=-1).log()
        torch.mul(probability, below, out=gradient[block])
    if mask is not None:
        total.masked_fill_(mask.all(dim=-1), 0.0)
        gradient.masked_fill_(mask, 0.0)
    return total, gradient


class _LogSumSigmoidPower(torch.autograd.Function):
    """Value and gradient in one pass; the gradient, kept for the backward pass, is the only new (B, N) tensor."""

    @staticmethod
    def forward(
        ctx: Any,
        s: Tensor,
        beta: Tensor | None,
        mask: Tensor | None,
        power: float | Tensor,
        slope: float | Tensor,
    ) -> Tensor:
        ctx.save_for_backward(s, beta, mask)
        ctx.powers = power, slope
        total, ctx.gradient = _log_sum_and_gradient(s, beta, mask, power, slope)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, None, None, None, None]:
        # Scaled in place: fresh memory costs as much as the arithmetic. A second backward pass computes it again.
        gradient, ctx.gradient = ctx.gradient, None
        power, slope = ctx.powers
        if gradient is None:
            s, beta, mask = ctx.saved_tensors
            gradient = _log_sum_and_gradient(s, beta, mask, power, slope)[1]
        return gradient.mul_(outer.unsqueeze(-1) * (power * slope)), None, None, None, None


def log_sum_sigmoid_power(
    s: Tensor,
    beta: Tensor | None = None,
    *,
    power: float | Tensor,
    slope: float | Tensor = 1.0,
    mask: Tensor | None = None,
) -> Tensor:
    """The denominator of Talos, log Σ_j σ(ω·(s_j - β))^κ over the last dimension, fused, in log space.

    `s` and `mask` are (B, N), `beta` (None for 0) is (B, 1); `power` κ and `slope` ω are numbers or (B, 1).
    Differentiable once, with respect to `s` alone.

    >>> log_sum_sigmoid_power(torch.zeros(1, 4), power=10.0)   # log(4 · 2^-10)
    tensor([-5.5452])
    """
    given = s, None if beta is None else beta.detach(), mask, power, slope
    return cast(Tensor, _LogSumSigmoidPower.apply(*given))  # type: ignore[no-untyped-call]


def sharp_softplus(x: Tensor, sharpness: float = 5.0) -> Tensor:
    """log(1 + e^{κx}) / κ: a smooth (x)+ that tends to it as κ grows.

    >>> sharp_softplus(torch.tensor([0.0, 2.0])).tolist()
    [0.1386..., 2.0000...]
    """
    return F.softplus(x, beta=sharpness, threshold=40.0)


def smooth_indicators(
    scores: Tensor,
    rows: Tensor,
    columns: Tensor,
    *,
    k: int,
    tau: float,
    delta: float,
    mask: Tensor | None = None,
) -> Tensor:
    """I^1, …, I^K of the entries (rows, columns), each (P,): how much each is the r-th largest of its row, (P, K).

    A row is shifted so that its smallest kept entry is 0; I^r = softmax(l/τ · Π_{q<r}(1 - I^q - δ)), the product per
    entry and detached. An entry with I^q near 1 gets a factor of about -δ and falls below all others.

    >>> first = torch.tensor([0]), torch.tensor([0])
    >>> smooth_indicators(torch.tensor([[0.3, 0.9, 0.1]]), *first, k=2, tau=0.01, delta=0.1).tolist()
    [[8.75...e-27, 1.0]]
    """
    limits = torch.finfo(scores.dtype)
    kept = scores if mask is None else scores.masked_fill(mask, limits.max)
    scaled = (scores - kept.amin(dim=-1, keepdim=True)) / tau
    left = torch.ones_like(scaled)
    indicators = []
    for _ in range(k):
        x = scaled * left
        indicator = torch.softmax(x if mask is None else x.masked_fill(mask, limits.min), dim=-1)
        indicators.append(indicator[rows, columns])
        left = left * (1 - indicator.detach() - delta)
    return torch.stack(indicators, dim=-1)


def sampled_products(vectors: Tensor, table: Tensor, items: Tensor) -> Tensor:
    """Products ⟨v_b, t_j⟩ of each row of `vectors` (B, d) with the rows j of `table` that `items` (B, N) names, (B, N).

    The largest temporary is the smaller of (B, rows of the table) and (B, N, d).

    >>> sampled_products(torch.eye(2), torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[0], [1]]))
    tensor([[1.],
            [4.]])
    """
    if table.shape[0] <= items.shape[1] * table.shape[1]:
        return (vectors @ table.T).gather(1, items)
    return torch.einsum("bd,bnd->bn", vectors, F.embedding(items, table))


def log_sum_exp_by(x: Tensor, rows: Tensor, num_rows: int) -> Tensor:
    """The sum log Σ e^x over the entries of every row, (num_rows,); -inf for a row without entries.

    Args:
        x: (P,).
        rows: (P,), the row of each entry, below `num_rows`.
        num_rows: number of rows.

    >>> log_sum_exp_by(torch.zeros(3), torch.tensor([0, 0, 2]), 3).exp()
    tensor([2., 0., 1.])
    """
    highest = x.new_full((num_rows,), -torch.inf).scatter_reduce(0, rows, x.detach(), "amax")
    # The lowest finite number where all entries are -inf: -inf less -inf would be NaN.
    shifted = x - highest.clamp(min=torch.finfo(x.dtype).min).index_select(0, rows)
    total = x.new_zeros(num_rows).index_add(0, rows, shifted.exp())
    # The highest entry of a row adds 1, so the clamp only changes empty rows, whose gradient would be NaN.
    return highest + total.clamp(min=1.0).log()


def power_mean(
    a: Tensor,
    rho: float,
    rows: Tensor,
    num_rows: int,
    weights: Tensor | None = None,
    merge: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """-(1/ρ) log( Σ_i w_i e^{-ρ a_i} / Σ_i w_i ) over the entries of every row, (num_rows,); 0 without entries.

    It lies between the mean of a (ρ → 0) and its minimum (ρ → ∞).

    Args:
        a: (P,).
        rho: ρ > 0.
        rows: (P,), the row of each entry, below `num_rows`.
        num_rows: number of rows.
        weights: w (P,); 1 if not given.
        merge: applied to the logarithm of either sum, (num_rows,), before they are combined. With it several processes
            add up theirs.

    >>> power_mean(torch.tensor([0.0, 0.0, 5.0]), 1.0, torch.tensor([1, 1, 0]), 3)
    tensor([5., 0., 0.])
    """
    log_weights = torch.zeros_like(a) if weights is None else weights.log()
    mass, total = (log_sum_exp_by(x, rows, num_rows) for x in (log_weights, log_weights - rho * a))
    if merge is not None:
        mass, total = merge(mass), merge(total)
    return ((mass - total) / rho).masked_fill(mass.isneginf(), 0.0)


def reduce_per_positive(values: Tensor) -> Tensor:
    """The mean over positives, which gives users with more positives more weight, as the published code does.

    An empty batch gives 0, still attached to the graph.

    >>> reduce_per_positive(torch.tensor([1.0, 1.0, 4.0])).item()
    2.0
    """
    return values.sum() / max(1, values.numel())


def reduce_per_user(values: Tensor, users: Tensor) -> Tensor:
    """The mean over users of the mean over their positives, as in the paper.

    >>> reduce_per_user(torch.tensor([1.0, 1.0, 4.0]), torch.tensor([7, 7, 3])).item()
    2.5
    """
    distinct, row_of, count = torch.unique(users, return_inverse=True, return_counts=True)
    return cast(Tensor, (values / count[row_of]).sum() / max(1, distinct.numel()))
