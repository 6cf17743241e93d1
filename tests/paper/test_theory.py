"""The theory as data: against sums written out, against the theorems, and where it has to fail."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from talos.errors import ArgumentError
from talos_paper.theory import (
    bound_constant,
    bound_curve,
    bound_sides,
    convergence,
    made_up_scores,
    tau_interval,
    worst_cases,
)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def naive_sides(scores, positive, k, tau, epsilon) -> tuple[float, float]:
    beta = sorted(scores, reverse=True)[k - 1]
    step = [1.0 if s >= beta else epsilon for s in scores]
    phi = [sigmoid(s - beta) ** (1 / tau) for s in scores]
    left = -math.log(sum(x for x, p in zip(step, positive, strict=True) if p) / sum(step))
    loss = -math.log(sum(x for x, p in zip(phi, positive, strict=True) if p) / sum(phi))
    return left, loss + math.log(1 + math.e**2 / 2) / tau


@pytest.mark.parametrize("tau", [0.05, 0.1, 1.0])
def test_both_sides_written_out(tau):
    data = made_up_scores(users=6, items=30, positives=4, seed=1)
    left, right = bound_sides(*data, k=7, tau=tau, epsilon=1e-4)
    scores, positive = (one.tolist() for one in data)
    for user in range(6):
        want = naive_sides(scores[user], positive[user], 7, tau, 1e-4)
        assert (left[user].item(), right[user].item()) == pytest.approx(want, rel=1e-9)


@pytest.mark.parametrize("epsilon", [1e-12, 1e-3, 0.3])
def test_the_ends_of_the_interval_are_where_a_term_gives_way(epsilon):
    """σ(x)^(1/τ) ≤ ε just below x = 0 up to the high end; (1+e²/2)^(1/τ)·σ(-2)^(1/τ) ≥ ε from the low end on."""
    low, high = tau_interval(epsilon)
    assert 0.5 ** (1 / high) == pytest.approx(epsilon)
    assert 0.5 ** (1 / (high * 1.01)) > epsilon
    assert math.exp(bound_constant(low)) * sigmoid(-2) ** (1 / low) == pytest.approx(epsilon)
    assert low / high == pytest.approx(0.8375, abs=1e-3)


@given(st.integers(0, 10**6), st.integers(1, 30), st.floats(-10, -0.5), st.floats(0, 1), st.floats(-2, 2))
def test_the_bound_holds_inside_the_interval(seed, k, exponent, where, signal):
    data = made_up_scores(users=4, items=30, positives=5, signal=signal, seed=seed)
    low, high = tau_interval(10**exponent)
    tau = low + where * (high - low)
    left, right = bound_sides(*data, k=k, tau=tau, epsilon=10**exponent)
    assert (left <= right + 1e-9).all()


def test_the_curve():
    taus = (0.05, 0.09, 0.1, 0.5, 2.0)
    curve = bound_curve(taus, signal=-1.0, seed=3)
    assert [point["tau"] for point in curve] == list(taus)
    assert [point["inside"] for point in curve] == [False, True, True, False, False]
    assert len({point["left"] for point in curve}) == 1  # precision knows no τ
    for point in curve:
        assert point["right"] == pytest.approx(point["loss"] + point["constant"])
        assert point["gap"] == pytest.approx(point["right"] - point["left"])
        assert (point["least_gap"] >= 0) == (point["holds"] == 1.0)
        assert point["least_gap"] <= point["gap"]
        assert point["holds"] == 1.0 or not point["inside"]
    assert [point["gap"] for point in curve] == sorted((point["gap"] for point in curve), reverse=True)
    assert curve[-1]["holds"] < 0.1, "with τ far too large and positives at the bottom it breaks"


def test_the_curve_is_the_seeds():
    one = {"users": 5, "items": 20, "positives": 3, "k": 4}
    assert bound_curve([0.1], **one, seed=1) == bound_curve([0.1], **one, seed=1)
    assert bound_curve([0.1], **one, seed=1) != bound_curve([0.1], **one, seed=2)


def test_made_up_scores_are_cosines_with_a_signal():
    scores, positive = made_up_scores(users=300, items=40, positives=6, signal=0.5, seed=0)
    assert scores.abs().max() < 1
    assert (positive.sum(dim=1) == 6).all()
    assert positive.double().mean(dim=0) == pytest.approx(torch.full((40,), 0.15).double(), abs=0.08)
    difference = scores[positive].mean() - scores[~positive].mean()
    assert 0.3 < difference < 0.5
    none, positive = made_up_scores(users=300, items=40, positives=6, signal=0.0, seed=0)
    assert abs(none[positive].mean()) < 0.05


@pytest.mark.parametrize("tau", [0.02, 0.1, 1.0, 10.0])
def test_a_worst_case_written_out(tau):
    scores, beta = [-0.9, -0.2, 0.1, 0.4, 0.95], 0.3
    (found,) = worst_cases(scores, [tau], threshold=beta)
    g = [math.log(sigmoid(s - beta)) for s in scores]
    highest = max(g)
    tilted = [math.exp((x - highest) / tau) for x in g]
    q = [x / sum(tilted) for x in tilted]
    assert found["weights"] == pytest.approx(q, rel=1e-9)
    assert sum(found["weights"]) == pytest.approx(1)
    assert found["eta"] == pytest.approx(sum(x * math.log(x * 5) for x in q if x > 0), abs=1e-9)
    assert found["worst"] == pytest.approx(sum(x * y for x, y in zip(q, g, strict=True)))
    # the duality of the theorem
    assert found["robust"] == pytest.approx(found["worst"] - tau * found["eta"], abs=1e-12)


@given(st.integers(0, 10**6), st.floats(0.03, 2.0))
def test_nothing_within_the_radius_is_worse(seed, tau):
    rng = torch.Generator().manual_seed(seed)
    scores = torch.rand(10, generator=rng, dtype=torch.float64) * 2 - 1
    (found,) = worst_cases(scores.tolist(), [tau], threshold=0.2)
    g = torch.nn.functional.logsigmoid(scores - 0.2)
    q = torch.softmax(3 * torch.randn(10, generator=rng, dtype=torch.float64), dim=0)
    while (q * (10 * q).log()).sum() > found["eta"] and (q - 0.1).abs().max() > 1e-12:
        q = 0.9 * q + 0.01
    assert (q @ g).item() <= found["worst"] + 1e-10


def test_the_radius_shrinks_as_the_temperature_rises():
    scores = made_up_scores(users=1, items=200, positives=1, seed=0)[0][0].tolist()
    radii = [case["eta"] for case in worst_cases(scores, [1e-4, 0.05, 0.1, 0.3, 1.0, 100.0], threshold=0.5)]
    assert radii == sorted(radii, reverse=True)
    assert radii[0] == pytest.approx(math.log(200), abs=1e-6)  # all weight on one item
    assert radii[-1] == pytest.approx(0, abs=1e-4)  # uniform
    (flat,) = worst_cases([0.3] * 7, [0.1], threshold=0.0)
    assert flat["eta"] == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("tau", [0.1, 0.3])
def test_convergence_falls_like_one_over_t_under_its_bound(tau):
    curve = convergence(tau=tau, steps=800, users=8, items=60, positives=8, k=4, seed=5)
    assert len(curve["loss"]) == len(curve["running_mean"]) == 800
    assert all(mean <= bound for mean, bound in zip(curve["running_mean"], curve["allowed"], strict=True))
    for t in (150, 200):
        assert (
            curve["running_mean"][4 * t - 1] / curve["running_mean"][t - 1] < 0.35
        )  # a quarter is 1/T, one is none
    assert curve["loss"][-1] < 0.1 * curve["loss"][0]
    for t in (1, 10, 800):
        assert curve["running_mean"][t - 1] == pytest.approx(sum(curve["squared_gradient"][:t]) / t)
        assert curve["allowed"][t - 1] == pytest.approx(4 * curve["loss"][0] / (curve["step_size"] * t))


def test_the_first_gradient_is_that_of_finite_differences():
    """One user, differences of the loss with the threshold held where it was."""
    sizes = {"users": 1, "items": 12, "positives": 4}
    curve = convergence(tau=0.3, steps=1, k=3, seed=2, **sizes)
    data = made_up_scores(**sizes, seed=2)
    beta = data[0].topk(3).values[0, -1].item()
    positive = data[1][0].tolist()

    def loss(scores: list[float]) -> float:
        phi = [sigmoid(s - beta) ** (1 / 0.3) for s in scores]
        return -math.log(sum(x for x, p in zip(phi, positive, strict=True) if p) / sum(phi))

    start, total, h = data[0][0].tolist(), 0.0, 1e-6
    for place in range(12):
        up, down = list(start), list(start)
        up[place] += h
        down[place] -= h
        total += ((loss(up) - loss(down)) / (2 * h)) ** 2
    assert curve["squared_gradient"][0] == pytest.approx(total, rel=1e-6)
    assert curve["loss"][0] == pytest.approx(loss(start))


@pytest.mark.parametrize(
    ("call", "where"),
    [
        (lambda: tau_interval(1.0), "epsilon"),
        (lambda: tau_interval(0.0), "epsilon"),
        (lambda: bound_constant(0.0), "tau"),
        (lambda: made_up_scores(users=1, items=3, positives=3, seed=0), "positives"),
        (lambda: bound_curve([0.1], items=30, k=31), "k"),
        (lambda: worst_cases([], [0.1], threshold=0.0), "scores"),
        (lambda: worst_cases([0.1], [0.0], threshold=0.0), "taus"),
        (lambda: convergence(tau=-1.0), "tau"),
        (lambda: convergence(positives=4, k=5), "positives"),
        (lambda: convergence(steps=0), "steps"),
    ],
)
def test_bad_arguments(call, where):
    with pytest.raises(ArgumentError) as error:
        call()
    assert error.value.where == where


def test_own_scores_may_be_given():
    """One user, perfect: all K places hold positives, Precision@K = 1 but for ε."""
    scores = torch.tensor([[0.9, 0.8, 0.1, -0.3]], dtype=torch.float64)
    positive = torch.tensor([[True, True, False, False]])
    left, right = bound_sides(scores, positive, k=2, tau=0.1, epsilon=1e-3)
    assert left.item() == pytest.approx(math.log(2.002 / 2))
    assert right.item() > left.item()
