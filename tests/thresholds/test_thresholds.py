"""The five estimators: what all must do, and what each is for."""

from __future__ import annotations

import io

import pytest
import torch

from talos import registry, thresholds
from talos.errors import ArgumentError

USERS, ITEMS, K = 12, 60, 5


def build(name: str) -> thresholds.Threshold:
    return registry.make_threshold(name, num_users=USERS, k=K, num_items=ITEMS)


@pytest.fixture(params=registry.names("threshold"))
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def rows() -> torch.Tensor:
    return torch.rand(USERS, ITEMS, generator=torch.Generator().manual_seed(0)) * 2 - 1


def feed(estimator, rows, users):
    """One update from what the estimator can use: full rows, or two positives' rows with negatives."""
    if estimator.needs_full_row:
        estimator.update_rows(users, rows[users])
    else:
        estimator.update(users, rows[users, 0], rows[users, 1:40])


def test_names():
    assert {"regression", "running", "exact", "monte-carlo", "fixed"} <= set(registry.names("threshold"))


def test_value_is_one_detached_number_per_user(name, rows):
    estimator = build(name)
    users = torch.tensor([3, 3, 0])
    feed(estimator, rows, torch.tensor([3, 0]))
    value = estimator.value(users)
    assert value.shape == (3,)
    assert not value.requires_grad
    assert value[0] == value[1]
    assert not list(estimator.parameters())


def test_users_never_seen_have_a_value(name, rows):
    estimator = build(name)
    feed(estimator, rows, torch.tensor([1, 2]))
    assert estimator.value(torch.tensor([7])).item() == 0.0


def test_state_goes_through_a_file(name, rows):
    estimator, other = build(name), build(name)
    users = torch.arange(6)
    for _ in range(3):
        feed(estimator, rows, users)
    file = io.BytesIO()
    torch.save(estimator.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    feed(estimator, rows, users)
    feed(other, rows, users)
    assert torch.equal(estimator.value(torch.arange(USERS)), other.value(torch.arange(USERS)))


def test_empty_batches_change_nothing(name, rows):
    estimator = build(name)
    none = torch.zeros(0, dtype=torch.long)
    before = estimator.value(torch.arange(USERS)).clone()
    feed(estimator, rows, none)
    estimator.update_rows(none, rows[none])
    assert torch.equal(estimator.value(torch.arange(USERS)), before)


def test_scores_are_left_alone(name, rows):
    rows = rows.requires_grad_()
    before = rows.detach().clone()
    feed(build(name), rows, torch.arange(4))
    assert torch.equal(rows.detach(), before)
    assert rows.grad is None


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_any_precision(name, rows, dtype):
    estimator = build(name)
    feed(estimator, rows.to(dtype), torch.arange(4))
    assert torch.isfinite(estimator.value(torch.arange(4))).all()


@pytest.mark.parametrize("k", [0, -1, ITEMS + 1])
def test_k_outside_the_catalogue(name, k):
    if name == "fixed":
        pytest.skip("has no k")
    with pytest.raises(ArgumentError, match=r"^k: got"):
        registry.make_threshold(name, num_users=USERS, k=k, num_items=ITEMS)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"users": torch.zeros(3)}, "users"),
        ({"positives": torch.zeros(4)}, "positives"),
        ({"negatives": torch.zeros(5)}, "negatives"),
        ({"negatives": torch.zeros(2, 5)}, "negatives"),
        ({"mask": torch.zeros(3, 4, dtype=torch.bool)}, "mask"),
        ({"owner": torch.zeros(5, dtype=torch.long)}, "positives"),
    ],
)
def test_wrong_shapes_are_named(name, change, named):
    estimator = build(name)
    call = {"users": torch.tensor([0, 1, 2]), "positives": torch.zeros(3), "negatives": torch.zeros(3, 5)}
    if estimator.needs_full_row:
        with pytest.raises(ArgumentError, match=r"^scores: has shape"):
            estimator.update_rows(call["users"], torch.zeros(3, ITEMS - 1))
    else:
        with pytest.raises(ArgumentError, match=f"^{named}: has shape .*expected"):
            estimator.update(**{**call, **change})


def test_nan_is_named(name, rows):
    if name == "fixed":
        pytest.skip("looks at no scores")
    estimator = build(name)
    users = torch.arange(4)
    bad = rows.clone()
    bad[2, 7] = float("nan")
    with pytest.raises(ArgumentError, match="nan"):
        estimator.update_rows(users, bad[users])
    if not estimator.needs_full_row:
        with pytest.raises(ArgumentError, match="nan"):
            estimator.update(users, bad[users, 0], bad[users, 1:])
        with pytest.raises(ArgumentError, match=r"^positives: has nan"):
            estimator.update(users, bad[users, 7], rows[users, 1:])


def test_error_against(rows):
    exact = build("exact")
    users = torch.arange(USERS)
    exact.update_rows(users, rows)
    fixed = thresholds.FixedThreshold(0.25)
    want = (exact.value(users) - 0.25).abs().mean().item()
    assert fixed.error_against(exact, users) == pytest.approx(want)
    assert fixed.error_against(exact.value(users)) == pytest.approx(want)
    assert exact.error_against(exact, users) == 0.0
    with pytest.raises(ArgumentError, match=r"^users: is missing"):
        fixed.error_against(exact)


def test_unknown_names_and_options():
    with pytest.raises(ArgumentError, match=r"did you mean 'regression'"):
        build("regresion")
    with pytest.raises(ArgumentError, match=r"^lrr: .*did you mean 'lr'"):
        registry.make_threshold("regression", num_users=1, k=1, num_items=2, lrr=0.1)


def test_exact_is_the_kth_largest(rows):
    exact = build("exact")
    exact.update_rows(torch.arange(USERS), rows)
    want = rows.sort(dim=-1, descending=True).values[:, K - 1]
    assert torch.equal(exact.value(torch.arange(USERS)), want)
    with pytest.raises(ArgumentError, match="update_rows"):
        exact.update(torch.tensor([0]), torch.zeros(1), torch.zeros(1, 3))
    exact.set(torch.tensor([2]), torch.tensor([0.5]))
    assert exact.value(torch.tensor([2])).item() == 0.5


def test_monte_carlo_by_hand():
    estimator = thresholds.MonteCarloQuantile(4, k=3)
    negatives = torch.tensor([[0.9, 0.5, 0.1], [0.2, 0.8, 0.4]])
    estimator.update(torch.tensor([0, 1]), torch.tensor([0.7, 0.3]), negatives)
    assert estimator.value(torch.tensor([0, 1])).tolist() == pytest.approx([0.5, 0.3])
    # All positives of a user at once, ragged; the second user has none.
    estimator.update(torch.tensor([2, 3]), torch.tensor([0.7, 0.95]), negatives, owner=torch.tensor([0, 0]))
    assert estimator.value(torch.tensor([2, 3])).tolist() == pytest.approx([0.7, 0.2])
    # Fewer than K left: the smallest.
    mask = torch.tensor([[False, True, True]])
    estimator.update(torch.tensor([0]), torch.tensor([0.7]), negatives[:1], mask=mask)
    assert estimator.value(torch.tensor([0])).item() == pytest.approx(0.7)
    # A user in two rows: the mean.
    estimator.update(torch.tensor([1, 1]), torch.tensor([0.7, 0.3]), negatives)
    assert estimator.value(torch.tensor([1])).item() == pytest.approx(0.4)


def gradient_of(estimator: thresholds.QuantileRegression, user: int = 0) -> float:
    """The gradient of a first step, from Adam's first moment."""
    return estimator.mean[user].item() / (1 - estimator.betas[0])


def test_regression_gradient_is_that_of_the_sampled_loss():
    """Counting gives what autograd gives for Q_K, written out with the pinball loss."""
    rng = torch.Generator().manual_seed(4)
    positives, negatives = torch.randn(3, generator=rng), torch.randn(1, 8, generator=rng)
    estimator = thresholds.QuantileRegression(1, k=K, num_items=ITEMS)
    estimator.update(torch.tensor([0]), positives, negatives, owner=torch.zeros(3, dtype=torch.long))
    beta = torch.zeros(1, requires_grad=True)
    level = 1 - K / ITEMS
    q = thresholds.pinball(positives - beta, level).sum()
    q = (q + (ITEMS - 3) / 8 * thresholds.pinball(negatives - beta, level).sum()) / ITEMS
    (want,) = torch.autograd.grad(q, beta)
    assert gradient_of(estimator) == pytest.approx(want.item(), rel=1e-5)


def test_regression_averages_the_rows_of_a_user():
    """Duplicated users: a step on the mean of what each row would give, not two steps."""
    pos, neg = torch.tensor([0.5, -0.5]), torch.tensor([[0.2, -0.1, 0.4, 0.3], [-0.3, -0.2, -0.9, 0.1]])
    counts = torch.tensor([2])
    single = []
    for row in range(2):
        one = thresholds.QuantileRegression(1, k=K, num_items=ITEMS, num_positives=counts)
        one.update(torch.tensor([0]), pos[row : row + 1], neg[row : row + 1])
        single.append(gradient_of(one))
    both = thresholds.QuantileRegression(1, k=K, num_items=ITEMS, num_positives=counts)
    both.update(torch.tensor([0, 0]), pos, neg)
    assert gradient_of(both) == pytest.approx(sum(single) / 2, rel=1e-5)
    assert both.steps.item() == 1


def test_regression_with_everything_masked_takes_no_step():
    estimator = thresholds.QuantileRegression(1, k=K, num_items=ITEMS)
    estimator.update(
        torch.tensor([0]), torch.tensor([0.3]), torch.zeros(1, 4), mask=torch.ones(1, 4, dtype=torch.bool)
    )
    assert estimator.value(torch.tensor([0])).item() == 0.0


def test_regression_steps_as_adam_does():
    """For one user in every batch the estimator is `torch.optim.Adam` on the pinball loss."""
    rng = torch.Generator().manual_seed(0)
    estimator = thresholds.QuantileRegression(1, k=K, num_items=ITEMS, lr=0.01)
    beta = torch.nn.Parameter(torch.zeros(1))
    adam = torch.optim.Adam([beta], lr=0.01)
    for _ in range(40):
        row = torch.rand(1, ITEMS, generator=rng)
        estimator.update_rows(torch.tensor([0]), row)
        adam.zero_grad()
        thresholds.pinball(row - beta, 1 - K / ITEMS).mean().backward()
        adam.step()
    assert estimator.value(torch.tensor([0])).item() == pytest.approx(beta.item(), rel=1e-4)


def test_regression_moves_absent_users_as_adam_does():
    """Plain Adam over all users: a gradient of 0 for those outside the batch; nobody moves before a first visit."""
    rng = torch.Generator().manual_seed(1)
    estimator = thresholds.QuantileRegression(3, k=K, num_items=ITEMS, lr=0.01)
    beta = torch.nn.Parameter(torch.zeros(3))
    adam = torch.optim.Adam([beta], lr=0.01)
    for step in range(60):
        present = torch.tensor([0, 1] if step % 4 == 0 else [0])
        rows = torch.rand(len(present), ITEMS, generator=rng)
        estimator.update_rows(present, rows)
        adam.zero_grad()
        thresholds.pinball(rows - beta[present].unsqueeze(-1), 1 - K / ITEMS).mean(-1).sum().backward()
        adam.step()
    assert estimator.value(torch.arange(3)).tolist() == pytest.approx(beta.tolist(), rel=1e-4)
    assert estimator.value(torch.tensor([2])).item() == 0.0


def test_a_step_without_users_is_one_of_adam_and_nothing_elsewhere(name, rows):
    """A process without rows in a batch keeps step with the others, which see its users as absent."""
    alone, other, users = build(name), build(name), torch.arange(4)
    for estimator in (alone, other):
        feed(estimator, rows, users)
    before = alone.value(torch.arange(USERS)).clone()
    alone.step_without_users()
    if name != "regression":
        assert torch.equal(alone.value(torch.arange(USERS)), before)
        return
    feed(other, rows, torch.tensor([7]))
    assert not torch.equal(alone.value(users), before[users])
    assert torch.equal(alone.value(users), other.value(users))


def weighted_kth(positives: list[float], negatives: list[float], weight: float) -> float:
    """The largest score from which on there are K items, if a negative stands for `weight` of them: a plain loop."""
    for score in sorted([*positives, *negatives], reverse=True):
        if sum(p >= score for p in positives) + weight * sum(n >= score for n in negatives) >= K:
            return score
    return min([*positives, *negatives])


@pytest.mark.parametrize("counts", [(0, 3), (1, 8), (4, 8), (7, 2), (9, 10)], ids=str)
def test_running_starts_at_the_kth_score_that_the_sample_suggests(counts):
    """As long as a negative stands for K items or more; otherwise the start may be the next negative below."""
    rng = torch.Generator().manual_seed(sum(counts))
    positives, negatives = torch.rand(counts[0], generator=rng), torch.rand(1, counts[1], generator=rng)
    estimator = build("running")
    owner = torch.zeros(counts[0], dtype=torch.int64)
    estimator.update(torch.tensor([4]), positives, negatives, owner=owner)
    want = weighted_kth(positives.tolist(), negatives[0].tolist(), (ITEMS - counts[0]) / counts[1])
    assert estimator.value(torch.tensor([4])).item() == pytest.approx(want)


@pytest.mark.parametrize("weight", [1.25, 3.0])
def test_running_starts_near_the_kth_score_if_negatives_stand_for_few_items(weight):
    rng = torch.Generator().manual_seed(0)
    drawn = int((ITEMS - 3) / weight)
    positives, negatives = torch.rand(3, generator=rng), torch.rand(1, drawn, generator=rng)
    estimator = build("running")
    estimator.update(torch.tensor([0]), positives, negatives, owner=torch.zeros(3, dtype=torch.int64))
    want = weighted_kth(positives.tolist(), negatives[0].tolist(), (ITEMS - 3) / drawn)
    below = max((n for n in negatives[0].tolist() if n <= want), default=want)
    assert below - 1e-6 <= estimator.value(torch.tensor([0])).item() <= want + 1e-6


def test_running_steps_by_hand():
    estimator = build("running")
    user, owner = torch.tensor([2]), torch.tensor([0])
    estimator.update(user, torch.tensor([0.9]), torch.tensor([[0.1, 0.5]]), owner=owner)  # w = 59/2: 0.5
    weight = 59 / 2
    estimator.update(user, torch.tensor([0.9]), torch.tensor([[0.6, 0.2]]), owner=owner)  # 1 + w above
    want = 0.5 + estimator.lr * (1 + weight - K) / weight
    assert estimator.value(user).item() == pytest.approx(want)
    estimator.update(user, torch.tensor([0.9]), torch.tensor([[0.7, 0.8]]), owner=owner)  # 1 + 2w above
    want += estimator.lr / 2**0.5 * (1 + 2 * weight - K) / weight
    assert estimator.value(user).item() == pytest.approx(want)
    mask = torch.ones(1, 2, dtype=torch.bool)
    estimator.update(user, torch.tensor([0.9]), torch.zeros(1, 2), owner=owner, mask=mask)
    assert estimator.value(user).item() == pytest.approx(want)  # nothing but masked negatives: no step
    assert estimator.visits[user].item() == 3


def test_running_leaves_other_users_alone(rows):
    estimator = build("running")
    for _ in range(3):
        feed(estimator, rows, torch.tensor([1, 2]))
        feed(estimator, rows, torch.tensor([5]))
    kept = estimator.value(torch.tensor([1, 2])).clone()
    feed(estimator, rows, torch.tensor([5]))
    assert torch.equal(estimator.value(torch.tensor([1, 2])), kept)


def test_running_approaches_the_kth_score(rows):
    """From small samples of fixed scores, on average over users."""
    rng = torch.Generator().manual_seed(3)
    estimator, users = build("running"), torch.arange(USERS)
    positives, owner = rows[:, :2].flatten(), users.repeat_interleave(2)
    for _ in range(400):
        drawn = torch.randint(2, ITEMS, (USERS, 10), generator=rng)
        estimator.update(users, positives, rows.gather(1, drawn), owner=owner)
    exact = rows.topk(K).values[:, -1]
    first = build("running")
    first.update(users, positives, rows.gather(1, drawn), owner=owner)
    assert estimator.error_against(exact) < 0.4 * first.error_against(exact)
    assert (estimator.value(users) - exact).mean().abs() < 0.03
