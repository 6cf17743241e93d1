"""What is particular to one loss: detached parts, temperatures, adversaries, names, reductions."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from talos import losses, registry
from talos.errors import ArgumentError


def test_slk_gradient_is_the_weight_times_that_of_sl(scores):
    pos, neg, beta = scores()
    pos, neg = pos.requires_grad_(), neg.requires_grad_()
    weight = torch.sigmoid((pos.detach() - beta) / 0.5)
    got = torch.autograd.grad(
        losses.SoftmaxAtK(tau=0.1, tau_w=0.5)(pos, neg, threshold=beta).sum(), (pos, neg)
    )
    want = torch.autograd.grad((weight * losses.Softmax(tau=0.1)(pos, neg)).sum(), (pos, neg))
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w)


def test_smoothi_product_is_per_item_and_detached(scores):
    """Its gradient is that of the formula with the products frozen at their values."""
    pos, neg, _ = scores(rows=1, columns=5)
    row = torch.cat([pos[:, None], neg], dim=1)
    factors, left = [], torch.ones_like(row)
    shifted = (row - row.min()) / 0.2
    for _ in range(3):
        factors.append(left)
        left = left * (1 - torch.softmax(shifted * left, dim=-1) - 0.15)

    def frozen(pos, neg):
        x = torch.cat([pos[:, None], neg], dim=1)
        x = (x - x.min()) / 0.2
        return 1 - sum(torch.softmax(x * f, dim=-1)[:, 0] for f in factors) / 3

    pos, neg = pos.requires_grad_(), neg.requires_grad_()
    got = torch.autograd.grad(losses.SmoothI(k=3, tau=0.2, delta=0.15)(pos, neg).sum(), (pos, neg))
    want = torch.autograd.grad(frozen(pos, neg).sum(), (pos, neg))
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w)


def test_fused_denominator_is_that_of_autograd():
    rng = torch.Generator().manual_seed(0)
    s = torch.randn(300, 700, generator=rng, dtype=torch.float64).requires_grad_()
    beta = torch.randn(300, 1, generator=rng, dtype=torch.float64)
    mask = torch.rand(300, 700, generator=rng) < 0.1
    mask[17] = True
    got = losses.functional.log_sum_sigmoid_power(s, beta, power=10.0, slope=0.5, mask=mask)
    x = (10 * F.logsigmoid(0.5 * (s - beta))).masked_fill(mask, -1e30)
    want = torch.where(mask.all(1), 0.0, torch.logsumexp(x, dim=1))
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    weight = torch.randn(300, generator=rng, dtype=torch.float64)
    for g, w in zip(*(torch.autograd.grad(v @ weight, s) for v in (got, want)), strict=True):
        torch.testing.assert_close(g, w, rtol=1e-10, atol=1e-14)


def test_fused_denominator_may_be_differentiated_twice_over(scores):
    """`retain_graph` and a second backward pass: the same gradient, and the first one stays as it was."""
    _, neg, beta = scores()
    neg = neg.requires_grad_()
    mask = torch.zeros_like(neg, dtype=torch.bool)
    mask[0, 0] = True
    value = losses.functional.log_sum_sigmoid_power(neg, beta[:, None], power=5.0, mask=mask).sum()
    (first,) = torch.autograd.grad(value, neg, retain_graph=True)
    kept = first.clone()
    (second,) = torch.autograd.grad(2 * value, neg, retain_graph=True)
    assert torch.equal(first, kept)
    torch.testing.assert_close(second, 2 * first)


def test_radius_is_met_where_it_can_be(scores):
    _, neg, beta = scores(rows=8, columns=500)
    g = F.logsigmoid(neg * 3 - beta[:, None])
    for eta in (0.05, 0.5, 2.0):
        tau = losses.DRORadius(eta=eta, bounds=(1e-3, 1e3), steps=12)(g, None)
        q = torch.softmax(g / tau[:, None], dim=-1)
        radius = (q * torch.log(q * 500 + 1e-300)).sum(dim=-1)
        torch.testing.assert_close(radius, torch.full_like(radius, eta), rtol=1e-6, atol=0)


def test_radius_out_of_reach_ends_at_a_bound():
    radius = losses.DRORadius(eta=5.0, bounds=(0.05, 0.5), steps=20)
    g = F.logsigmoid(torch.linspace(-1, 1, 10)).unsqueeze(0)  # log 10 < 5
    assert radius(g, None).item() == pytest.approx(0.05, rel=1e-3)
    same = losses.DRORadius(eta=0.1, bounds=(0.05, 0.5))(torch.zeros(1, 10), None)
    assert same.item() == pytest.approx(0.05)


def test_radius_ignores_masked_negatives(scores):
    _, neg, _ = scores(rows=3, columns=40)
    g = F.logsigmoid(neg)
    mask = torch.zeros_like(g, dtype=torch.bool)
    mask[:, 30:] = True
    radius = losses.DRORadius(eta=0.3)
    torch.testing.assert_close(radius(g, mask), radius(g[:, :30], None))


def test_schedule_follows_progress(scores):
    pos, neg, beta = scores()
    loss = losses.Talos(tau=losses.geometric_schedule(0.4, 0.1))
    for progress, tau in ((0.0, 0.4), (0.5, 0.2), (1.0, 0.1)):
        loss.set_progress(progress)
        fixed = losses.Talos(tau=tau)
        torch.testing.assert_close(loss(pos, neg, threshold=beta), fixed(pos, neg, threshold=beta))
        assert loss.phi.params == pytest.approx((1 / tau, 1.0))


def test_options_that_do_not_go_together():
    with pytest.raises(ArgumentError, match=r"^k: is missing"):
        losses.Talos(denominator=False)
    with pytest.raises(ArgumentError, match=r"^temperature: got 'inner'"):
        losses.Talos(tau=losses.DRORadius(eta=0.5), temperature="inner")
    with pytest.raises(ArgumentError, match="eta"):
        losses.Talos(tau=0.1, eta=0.5)
    with pytest.raises(ArgumentError, match=r"^form: got"):
        losses.Talos(form="partial")
    with pytest.raises(ArgumentError, match=r"^bounds"):
        losses.DRORadius(eta=1.0, bounds=(0.5, 0.1))


def test_advinfonce_adversary_climbs_and_the_schedule_is_kept():
    torch.manual_seed(0)
    loss = losses.AdvInfoNCE(num_users=4, num_items=6, adv_every=5, adv_epochs=2, adv_lr=1e-2)
    (group,) = loss.adversaries()
    pos, neg = torch.tensor([0.1, 0.3]), torch.tensor([[0.9, -0.9, 0.0], [-0.5, 0.5, 0.2]])
    ids = {"users": torch.tensor([0, 3]), "items": torch.tensor([[0, 1, 2], [3, 4, 5]])}
    optimizer = torch.optim.Adam([group.param_group(loss, lr=0.1)])
    start = loss(pos, neg, **ids).sum().item()
    for _ in range(20):
        optimizer.zero_grad()
        loss(pos, neg, **ids).sum().backward()
        optimizer.step()
    assert loss(pos, neg, **ids).sum().item() > start + 0.1
    done = [epoch for epoch in range(40) if group.due(epochs_done=epoch, times_done=0)]
    assert done == [5, 10, 15, 20, 25, 30, 35]
    assert not group.due(epochs_done=15, times_done=2)


def test_llpauc_multipliers_fall_while_constraints_hold_and_rise_while_broken():
    loss = losses.LLPAUC()
    group = next(g for g in loss.adversaries() if "theta_a" in g.parameters)
    scores = torch.zeros(2), torch.zeros(2, 3)

    def step() -> tuple[float, float]:
        before = loss.theta_a.item(), loss.theta_b.item()
        optimizer = torch.optim.SGD([group.param_group(loss, lr=0.01)])
        optimizer.zero_grad()
        loss(*scores).mean().backward()
        optimizer.step()
        return loss.theta_a.item() - before[0], loss.theta_b.item() - before[1]

    assert max(step()) < 0  # a + γ = 1 > 0 and 1 + γ - b = 1 > 0
    with torch.no_grad():
        loss.a.fill_(0.2)
        loss.b.fill_(0.9)
        loss.gamma.fill_(-0.8)
    assert min(step()) > 0  # a + γ = -0.6, 1 + γ - b = -0.7


def test_llpauc_clamps():
    loss = losses.LLPAUC()
    with torch.no_grad():
        for parameter in loss.parameters():
            parameter.fill_(-9.0)
    for group in loss.adversaries():
        group.clamp_(loss)
    low = {name: value.item() for name, value in loss.named_parameters()}
    assert low == {"a": 0, "b": 0, "gamma": -1, "s_p": -1, "s_n": 0, "theta_a": 0, "theta_b": 0}
    with torch.no_grad():
        for parameter in loss.parameters():
            parameter.fill_(9.0)
    for group in loss.adversaries():
        group.clamp_(loss)
    high = {name: value.item() for name, value in loss.named_parameters()}
    assert high == {"a": 1, "b": 1, "gamma": 1, "s_p": 4, "s_n": 5, "theta_a": 9, "theta_b": 9}


def test_every_loss_is_made_by_name():
    for name in registry.names("loss"):
        loss = registry.make_loss(name, k=20, num_users=3, num_items=4)
        assert type(loss) is registry.resolve("loss", name)
    with pytest.raises(ArgumentError, match=r"^k: is missing"):
        registry.make_loss("rs@k")


def test_reductions():
    values = torch.tensor([1.0, 2.0, 3.0, 10.0])
    users = torch.tensor([5, 5, 5, 2])
    assert losses.reduce_per_positive(values).item() == 4.0
    assert losses.reduce_per_user(values, users).item() == 6.0
    assert losses.reduce_per_positive(values[:0]).item() == 0.0
    assert losses.reduce_per_user(values[:0], users[:0]).item() == 0.0


def test_full_form_is_below_the_training_form(scores):
    """Jensen: the mean over positives of the training form over all items bounds the full form."""
    pos, neg, beta = scores(rows=5, columns=30)
    beta, neg = beta[:1].expand(5), neg[:1].expand(5, -1)
    same = torch.zeros(5, dtype=torch.long)
    full = losses.Talos(tau=0.2, form="full")(pos, neg, threshold=beta, users=same)
    items = torch.cat([pos.expand(5, 5), neg], dim=1)
    training = losses.Talos(tau=0.2)(pos, items, threshold=beta)
    assert full[0] <= training.mean() + 1e-12
    assert full[0].item() == pytest.approx(full[4].item())
    assert math.isfinite(full[0].item())


@given(st.integers(1, 10**9), st.integers(1, 10**9))
def test_the_default_temperature_never_rises_with_the_catalogue(a: int, b: int) -> None:
    fewer, more = sorted((a, b))
    assert 0.05 <= losses.tau_for(more) <= losses.tau_for(fewer) <= 0.1


def test_a_temperature_left_open_is_chosen_and_said() -> None:
    left_open = registry.make_loss("talos", k=20, num_items=80_000)
    assert left_open.needs.chosen == (("tau", 0.05),)
    assert left_open.tau == 0.05
    given_one = registry.make_loss("talos", k=20, num_items=40_000, tau=0.1)
    assert given_one.needs.chosen == ()
    assert given_one.tau == 0.1


def test_a_radius_by_number_is_the_adaptive_temperature() -> None:
    scores = torch.randn(4, 30, generator=torch.Generator().manual_seed(0))
    by_number, by_object = losses.Talos(eta=0.4), losses.Talos(tau=losses.DRORadius(eta=0.4))
    beta = torch.zeros(4)
    assert torch.equal(
        by_number(scores[:, 0], scores[:, 1:], threshold=beta),
        by_object(scores[:, 0], scores[:, 1:], threshold=beta),
    )
