"""Every loss against a naive loop over Python numbers, written from the formulas alone."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from talos import losses
from talos.losses import LLPAUC, AdvInfoNCE
from talos.losses.functional import log_sum_exp_by, power_mean


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def h(x: float) -> float:
    return math.log1p(math.exp(5 * x)) / 5


def talos(s, neg, beta, loss):
    t = loss.tau
    power, slope = (1 / t, 1.0) if loss.temperature == "outer" else (1.0, 1 / t)
    phi = lambda x: sigmoid(slope * (x - beta)) ** power  # noqa: E731
    below = sum(phi(x) for x in neg) if loss.denominator else loss.k
    if loss.form == "full" and loss.denominator:
        below += phi(s)
    return -math.log(phi(s)) + loss.negative_weight * math.log(below)


def softmax(s, neg, beta, loss):
    return -s / loss.tau + loss.negative_weight * math.log(sum(math.exp(x / loss.tau) for x in neg))


def bilateral(s, neg, beta, loss):
    inner = math.log(sum(math.exp(x / loss.tau2) for x in neg))
    return -s / loss.tau1 + loss.tau2 / loss.tau1 * inner


def pairwise(s, neg, beta, loss):
    act = {"tanh": lambda d: math.tanh(d / 2), "atan": math.atan, "relu": lambda d: max(d, -1.0)}[
        loss.activation
    ]
    return math.log(sum(max(1 + act(x - s), 1e-8) ** (1 / loss.tau) for x in neg))


def llpauc(s, neg, beta, loss):
    a, b, g, sp, sn, ta, tb = (
        p.item() for p in (loss.a, loss.b, loss.gamma, loss.s_p, loss.s_n, loss.theta_a, loss.theta_b)
    )
    p = sigmoid(s)
    value = -sp - h(-((p - a) ** 2) + 2 * (1 + g) * p - sp) / loss.alpha + sn - g**2
    value += -tb * (b - 1 - g) + ta * (a + g)
    q = [sigmoid(x) for x in neg]
    return value + sum(h((x - b) ** 2 + 2 * (1 + g) * x - sn) for x in q) / len(q) / loss.beta


def aatp(s, neg, beta, loss):
    return sum(max(0.0, 1 + x - beta) for x in neg) / len(neg) + max(0.0, 1 + beta - s)


def recall(s, neg, beta, loss):
    rank = 1 + sum(sigmoid((x - s) / loss.tau1) for x in neg)
    return 1 - sigmoid((loss.k - rank) / loss.tau2)


def smooth_i(s, neg, beta, loss):
    row = [s, *neg]
    lowest = min(row)
    row = [(x - lowest) / loss.tau for x in row]
    left = [1.0] * len(row)
    total = 0.0
    for _ in range(loss.k):
        x = [v * f for v, f in zip(row, left, strict=True)]
        top = max(x)
        e = [math.exp(v - top) for v in x]
        indicator = [v / sum(e) for v in e]
        total += indicator[0]
        left = [f * (1 - i - loss.delta) for f, i in zip(left, indicator, strict=True)]
    return 1 - total / loss.k


def softmax_at_k(s, neg, beta, loss):
    weight = sigmoid((s - beta) / loss.tau_w)
    return weight * (math.log(sum(math.exp((x - s) / loss.tau) for x in neg)) + loss.offset)


def bpr(s, neg, beta, loss):
    return sum(-math.log(sigmoid(s - x)) for x in neg) / len(neg)


ORACLES = {
    "talos": talos,
    "sl": softmax,
    "bsl": bilateral,
    "psl": pairwise,
    "llpauc": llpauc,
    "aatp": aatp,
    "rs@k": recall,
    "smoothi@k": smooth_i,
    "sl@k": softmax_at_k,
    "bpr": bpr,
}
TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-5, torch.bfloat16: 2e-5}


@pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_value(case, scores, call, dtype, masked):
    loss = case.build()
    if loss.short_name == "advinfonce" or case.label == "talos-adaptive":
        pytest.skip("has a test of its own")
    pos, neg, beta = scores(dtype=dtype)
    mask = torch.rand(neg.shape, generator=torch.Generator().manual_seed(3)) < 0.4 if masked else None
    got = call(loss, pos, neg, beta, mask)
    for row in range(len(pos)):
        kept = [x for column, x in enumerate(neg[row].tolist()) if mask is None or not mask[row, column]]
        b = beta[row].item() if loss.needs.threshold else 0.0
        want = ORACLES[loss.short_name](pos[row].item(), kept, b, loss)
        assert got[row].item() == pytest.approx(want, rel=TOLERANCE[dtype], abs=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("num_items", [12, 5000], ids=["by-product", "by-gather"])
def test_advinfonce(scores, dtype, num_items):
    torch.manual_seed(0)
    loss = AdvInfoNCE(num_users=4, num_items=num_items, tau=0.2, dim=3)
    pos, neg, _ = scores(dtype=dtype)
    users, items = torch.arange(6) % 4, torch.randint(0, num_items, neg.shape)
    mask = torch.zeros(neg.shape, dtype=torch.bool)
    mask[2, :4] = True
    got = loss(pos, neg, users=users, items=items, mask=mask)
    for row in range(6):
        kept = [j for j in range(9) if not mask[row, j]]
        hard = [(loss.user_table[users[row]] @ loss.item_table[items[row, j]]).item() for j in kept]
        norm = sum(math.exp(x) for x in hard)
        weighted = sum(
            math.exp(x) / norm * math.exp(neg[row, j].item() / 0.2) for x, j in zip(hard, kept, strict=True)
        )
        up = math.exp(pos[row].item() / 0.2)
        want = -math.log(up / (up + 64 * len(kept) * weighted))
        assert got[row].item() == pytest.approx(want, rel=1e-5)


def test_full_form_groups_the_rows_of_a_user(scores):
    """Rows with one user id are that user's positives: -log(Σ_P φ / (Σ_P φ + Σ_N φ))."""
    pos, neg, beta = scores(rows=5)
    users, beta = torch.tensor([3, 1, 3, 3, 1]), beta[torch.tensor([0, 1, 0, 0, 1])]
    tau = 0.2
    got = losses.Talos(tau=tau, form="full")(pos, neg, threshold=beta, users=users)
    for row in range(5):
        phi = lambda x, row=row: sigmoid(x - beta[row].item()) ** (1 / tau)  # noqa: E731
        own = sum(phi(x.item()) for x, user in zip(pos, users, strict=True) if user == users[row])
        want = -math.log(own / (own + sum(phi(x) for x in neg[row].tolist())))
        assert got[row].item() == pytest.approx(want, rel=1e-12)


def test_power_mean_over_the_rows_of_a_user(scores):
    """Rows with one user id are that user's positives: -(1/ρ)·log mean φ^ρ + λ·log Σ_N φ."""
    pos, neg, beta = scores(rows=5)
    users, beta = torch.tensor([3, 1, 3, 3, 1]), beta[torch.tensor([0, 1, 0, 0, 1])]
    tau, rho, weight = 0.2, 0.4, 1.3
    loss = losses.Talos(tau=tau, positive_power=rho, negative_weight=weight)
    got = loss(pos, neg, threshold=beta, users=users)
    for row in range(5):
        phi = lambda x, row=row: sigmoid(x - beta[row].item()) ** (1 / tau)  # noqa: E731
        own = [phi(x.item()) ** rho for x, user in zip(pos, users, strict=True) if user == users[row]]
        negative = math.log(sum(phi(x) for x in neg[row].tolist()))
        want = -math.log(sum(own) / len(own)) / rho + weight * negative
        assert got[row].item() == pytest.approx(want, rel=1e-12)


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=8), st.floats(0.01, 1), st.floats(0.01, 1))
def test_the_power_mean_lies_between_the_mean_and_the_full_form(scores, low, high):
    """What the options promise: the larger ρ, the smaller the loss, between those of ρ = 0 and ρ = 1."""
    a = -torch.tensor(scores, dtype=torch.float64) / 0.1
    one = torch.zeros(len(a), dtype=torch.long)
    smaller, larger, whole = (power_mean(a, rho, one, 1).item() for rho in (*sorted((low, high)), 1.0))
    assert a.mean().item() + 1e-9 >= smaller >= larger - 1e-9
    assert larger >= whole - 1e-9


def naive_power_mean(a, rho, weights):
    terms = zip(a, weights, strict=True)
    return -math.log(sum(w * math.exp(-rho * x) for x, w in terms) / sum(weights)) / rho if a else 0.0


def test_sums_and_power_means_of_rows():
    """Against loops, with rows that are empty, or have no weight; values and gradients are finite."""
    rng = torch.Generator().manual_seed(0)
    a = (torch.randn(12, generator=rng, dtype=torch.float64) * 3).requires_grad_()
    weights = torch.rand(12, generator=rng, dtype=torch.float64)
    rows = torch.tensor([4, 0, 4, 1, 1, 0, 4, 1, 0, 4, 5, 5])
    weights[-2:] = 0.0
    members = [[i for i in range(12) if rows[i] == row] for row in range(6)]
    sums = log_sum_exp_by(a, rows, 6)
    for row, own in enumerate(members):
        want = math.log(sum(math.exp(a[i].item()) for i in own)) if own else -math.inf
        assert sums[row].item() == pytest.approx(want, rel=1e-12)
    for use, kept in ((None, 12), (weights, 10)):
        got = power_mean(a, 0.7, rows, 6, use)
        w = torch.ones(12, dtype=torch.float64) if use is None else use
        for row, own in enumerate(members):
            own = [i for i in own if i < kept]
            want = naive_power_mean([a[i].item() for i in own], 0.7, [w[i].item() for i in own])
            assert got[row].item() == pytest.approx(want, rel=1e-12)
        (slope,) = torch.autograd.grad(got.sum(), a)
        assert torch.isfinite(slope).all()
    some = torch.tensor([0, 1, 4])
    assert torch.autograd.gradcheck(lambda x: log_sum_exp_by(x, rows, 6)[some], a)
    assert torch.autograd.gradcheck(lambda x: power_mean(x, 0.7, rows, 6, weights), a)


def test_power_mean_of_rows_that_two_processes_hold():
    """`merge` combines the logarithms of the sums: as if one process had all entries."""
    a = torch.linspace(-2, 3, 7, dtype=torch.float64)
    weights, rows = torch.linspace(0.5, 1.5, 7, dtype=torch.float64), torch.tensor([0, 2, 0, 2, 2, 0, 1])
    elsewhere = []

    def keep(log_sum):
        elsewhere.append(log_sum)
        return log_sum

    power_mean(a[4:], 0.7, rows[4:], 4, weights[4:], merge=keep)
    merge = lambda log_sum: torch.logaddexp(log_sum, elsewhere.pop(0))  # noqa: E731
    got = power_mean(a[:4], 0.7, rows[:4], 4, weights[:4], merge=merge)
    torch.testing.assert_close(got, power_mean(a, 0.7, rows, 4, weights))


def test_full_form_without_negatives_is_zero(scores):
    pos, neg, beta = scores()
    loss = losses.Talos(tau=0.1, form="full")
    assert torch.equal(loss(pos, neg, threshold=beta, mask=torch.ones_like(neg, dtype=torch.bool)), pos * 0)


def test_adaptive_is_talos_at_the_temperature_found(scores):
    pos, neg, beta = scores(rows=4, columns=200)
    radius = losses.DRORadius(eta=0.8, steps=8)
    got = losses.Talos(tau=radius)(pos, neg, threshold=beta)
    tau = radius(torch.nn.functional.logsigmoid(neg - beta[:, None]), None)
    assert len(set(tau.tolist())) == 4
    for row in range(4):
        one = losses.Talos(tau=tau[row].item())
        want = one(pos[row : row + 1], neg[row : row + 1], threshold=beta[row : row + 1])
        assert got[row].item() == pytest.approx(tau[row].item() * want.item(), rel=1e-10)


def test_llpauc_constants_are_where_the_method_starts():
    loss = LLPAUC()
    start = {name: value.item() for name, value in loss.named_parameters()}
    assert start == {"a": 1, "b": 0, "gamma": 0, "s_p": 0.5, "s_n": 0.5, "theta_a": 0.5, "theta_b": 0.5}
