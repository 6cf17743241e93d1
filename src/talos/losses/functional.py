"""The formulas behind the losses: stateless, unreduced, numerically safe; and the two ways to reduce them.

Scores are `s`; thresholds are `beta` and are constants for the gradient. A `mask` marks with True the
negatives that are to be left out. A sum or a mean over nothing (every negative masked) is defined as 0 with
gradient 0, so that such a row contributes its positive part alone.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = [
    "log_sigmoid",
    "log_sigmoid_and_slope_",
    "log_sum_exp_by",
    "log_sum_sigmoid_power",
    "masked_log_sum_exp",
    "masked_mean",
    "power_mean_by",
    "reduce_per_positive",
    "reduce_per_user",
    "sharp_softplus",
    "smooth_indicators",
    "soft_rank",
]

# Elements per thread in a block of rows on the CPU: temporaries of this size stay in the second-level cache.
_BLOCK = 2**17
# Largest β - s for which log σ(s - β) is computed from the slope, as log1p(-σ(β - s)): six bits of precision are lost
# at most. Differences of a cosine and a threshold stay within 2.
_NEAR = 4.0


def log_sigmoid(x: Tensor) -> Tensor:
    """The logarithm of σ(x), exact to rounding for every finite x.

    `softplus` switches to its linear branch at 40 here: at its default of 20 the error would show in float64.

    >>> log_sigmoid(torch.tensor([0.0, -1e4, 1e4])).tolist()
    [-0.6931..., -10000.0, -0.0]
    """
    return -F.softplus(-x, threshold=40.0)


def log_sigmoid_and_slope_(y: Tensor) -> tuple[Tensor, Tensor]:
    """The pair log σ(-y) and σ(y), which is the slope of log σ at -y; y is overwritten.

    Where no y is large the logarithm is computed from the slope, in little more than half the time. On other
    devices than the CPU the test for that would cost more than it saves.

    >>> log_sigmoid_and_slope_(torch.zeros(1))
    (tensor([-0.6931]), tensor([0.5000]))
    """
    if y.device.type == "cpu" and y.numel() and y.amax() <= _NEAR:
        slope = y.sigmoid_()
        return (-slope).log1p_(), slope
    value = log_sigmoid(-y)
    return value, y.sigmoid_()


def masked_log_sum_exp(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """The sum log Σ_j e^{x_j} over the last dimension, without the masked entries; 0 where all are masked.

    >>> x = torch.tensor([[0.0, 0.0, 5.0], [1.0, 2.0, 3.0]])
    >>> mask = torch.tensor([[False, False, True], [True, True, True]])
    >>> masked_log_sum_exp(x, mask).tolist()
    [0.6931..., 0.0]
    """
    if mask is None:
        return torch.logsumexp(x, dim=-1)
    # The lowest finite number, not -inf: the gradient of a row of -inf would be NaN before `where` drops it.
    total = torch.logsumexp(x.masked_fill(mask, torch.finfo(x.dtype).min), dim=-1)
    return torch.where(mask.all(dim=-1), torch.zeros_like(total), total)


def masked_mean(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """The mean over the last dimension, without the masked entries; 0 where all are masked.

    >>> masked_mean(torch.tensor([[1.0, 3.0, 9.0]]), torch.tensor([[False, False, True]])).tolist()
    [2.0]
    """
    if mask is None:
        return x.mean(dim=-1)
    kept = (~mask).sum(dim=-1).clamp(min=1)
    return x.masked_fill(mask, 0.0).sum(dim=-1) / kept


def _log_sum_and_slopes(
    s: Tensor,
    beta: Tensor | None,
    mask: Tensor | None,
    power: float | Tensor,
    slope: float | Tensor,
    *,
    want_slopes: bool,
) -> tuple[Tensor, Tensor | None]:
    """The sum log Σ_j σ(ω(s_j - β))^κ, (B,), and its gradient but for the factor κω, (B, N).

    Each block of rows goes through all operations while it is in cache, where autograd would write (B, N) for each.
    """
    total = s.new_empty(s.shape[0])
    slopes = torch.empty_like(s) if want_slopes else None
    cached = _BLOCK * torch.get_num_threads() if s.device.type == "cpu" else s.numel()
    rows = max(1, cached // max(1, s.shape[1]))
    for start in range(0, s.shape[0], rows):
        block = slice(start, start + rows)
        kappa, omega = (p[block] if isinstance(p, Tensor) else p for p in (power, slope))
        y = -s[block] if beta is None else beta[block] - s[block]
        if isinstance(omega, Tensor) or omega != 1.0:
            y.mul_(omega)
        log_phi, below = log_sigmoid_and_slope_(y)
        log_phi.mul_(kappa)
        if mask is not None:
            log_phi.masked_fill_(mask[block], torch.finfo(s.dtype).min)
        share = torch.softmax(log_phi, dim=-1)
        # The largest share is e^{max - log Z} and at least 1/N: log Z without a second exponential.
        total[block] = log_phi.amax(dim=-1) - share.amax(dim=-1).log()
        if slopes is not None:
            torch.mul(share, below, out=slopes[block])
    if mask is not None:
        total.masked_fill_(mask.all(dim=-1), 0.0)
        if slopes is not None:
            slopes.masked_fill_(mask, 0.0)
    return total, slopes


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
        want = ctx.needs_input_grad[0]
        total, ctx.slopes = _log_sum_and_slopes(s, beta, mask, power, slope, want_slopes=want)
        ctx.save_for_backward(s, beta, mask)
        ctx.power, ctx.slope = power, slope
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, None, None, None, None]:
        # scaled in place, as fresh memory costs as much as the arithmetic; a second pass computes it again
        slopes, ctx.slopes = ctx.slopes, None
        if slopes is None:
            s, beta, mask = ctx.saved_tensors
            slopes = _log_sum_and_slopes(s, beta, mask, ctx.power, ctx.slope, want_slopes=True)[1]
        return slopes.mul_(outer.unsqueeze(-1) * (ctx.power * ctx.slope)), None, None, None, None


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
    constant = None if beta is None else beta.detach()
    total: Tensor = _LogSumSigmoidPower.apply(s, constant, mask, power, slope)  # type: ignore[no-untyped-call]
    return total


def sharp_softplus(x: Tensor, sharpness: float = 5.0) -> Tensor:
    """log(1 + e^{κx}) / κ: a smooth (x)+ that tends to it as κ grows.

    >>> sharp_softplus(torch.tensor([0.0, 2.0])).tolist()
    [0.1386..., 2.0000...]
    """
    return F.softplus(x, beta=sharpness, threshold=40.0)


def soft_rank(pos: Tensor, neg: Tensor, tau: float, mask: Tensor | None = None) -> Tensor:
    """1 + Σ_j σ((s_j - s_i)/τ): tends to the rank of the positive among its negatives as τ → 0.

    >>> soft_rank(torch.tensor([0.5]), torch.tensor([[0.9, 0.1, 0.0]]), tau=1e-3).tolist()
    [2.0]
    """
    ahead = torch.sigmoid((neg - pos.unsqueeze(-1)) / tau)
    if mask is not None:
        ahead = ahead.masked_fill(mask, 0.0)
    return 1 + ahead.sum(dim=-1)


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
    """I^1, …, I^K of some entries (P,), (P,) of the rows: how much each is the r-th largest of its row, (P, K).

    A row is shifted so that its smallest kept entry is 0; I^r = softmax(l/τ · Π_{q<r}(1 - I^q - δ)), the
    product per entry and detached. An entry that was taken has a factor of about -δ and falls below the rest.

    >>> first = torch.tensor([0]), torch.tensor([0])
    >>> smooth_indicators(torch.tensor([[0.3, 0.9, 0.1]]), *first, k=2, tau=0.01, delta=0.1).tolist()
    [[8.75...e-27, 1.0]]
    """
    if mask is None:
        lowest = scores.amin(dim=-1, keepdim=True)
    else:
        lowest = scores.masked_fill(mask, torch.finfo(scores.dtype).max).amin(dim=-1, keepdim=True)
    scaled = (scores - lowest) / tau
    left = torch.ones_like(scaled)
    found = []
    for _ in range(k):
        x = scaled * left
        if mask is not None:
            x = x.masked_fill(mask, torch.finfo(x.dtype).min)
        indicator = torch.softmax(x, dim=-1)
        found.append(indicator[rows, columns])
        left = left * (1 - indicator.detach() - delta)
    return torch.stack(found, dim=-1)


def log_sum_exp_by(x: Tensor, groups: Tensor) -> Tensor:
    """For every entry of x (B,), the log-sum-exp over the entries of its group.

    >>> log_sum_exp_by(torch.zeros(3), torch.tensor([7, 7, 3])).exp()
    tensor([2., 2., 1.])
    """
    distinct, row_of = torch.unique(groups, return_inverse=True)
    highest = x.new_full((len(distinct),), -torch.inf)
    highest = highest.scatter_reduce(0, row_of, x.detach(), "amax")
    total = x.new_zeros(len(distinct)).index_add(0, row_of, torch.exp(x - highest[row_of]))
    # its gradient adds up in a fixed order also with several threads, unlike that of an index in brackets
    return (highest + total.log()).index_select(0, row_of)


def power_mean_by(a: Tensor, rho: float, groups: Tensor, weights: Tensor | None = None) -> Tensor:
    """For every entry of a (B,), -(1/ρ) log mean e^{-ρ a} over the entries of its group.

    With `weights` (B,) the mean is weighted. It lies between the mean of a (ρ → 0) and its minimum (ρ → ∞).

    >>> power_mean_by(torch.tensor([0.0, 0.0, 5.0]), 1.0, torch.tensor([7, 7, 3]))
    tensor([0., 0., 5.])
    """
    weights = torch.ones_like(a) if weights is None else weights
    mass = log_sum_exp_by(weights.log(), groups)
    mean: Tensor = (mass - log_sum_exp_by(weights.log() - rho * a, groups)) / rho
    return mean


def reduce_per_positive(values: Tensor) -> Tensor:
    """The mean over positives, so that users with more positives weigh more: what the published code does.

    An empty batch gives 0, still attached to the graph.

    >>> reduce_per_positive(torch.tensor([1.0, 1.0, 4.0])).item()
    2.0
    """
    return values.sum() / max(1, values.numel())


def reduce_per_user(values: Tensor, users: Tensor) -> Tensor:
    """The mean over users of the mean over their positives: the formula of the paper.

    >>> reduce_per_user(torch.tensor([1.0, 1.0, 4.0]), torch.tensor([7, 7, 3])).item()
    2.5
    """
    distinct, row_of, count = torch.unique(users, return_inverse=True, return_counts=True)
    per_user: Tensor = (values / count[row_of]).sum() / max(1, distinct.numel())
    return per_user
