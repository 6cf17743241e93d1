"""Draws against the definition: never a positive, uniform over the rest, unbiased weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from talos import negatives
from talos.data.interactions import Interactions
from talos.data.vocabulary import Vocabulary
from talos.errors import ArgumentError, ConfigError, DataError
from talos.kernels.csr import TrainIndex, meetings
from talos.negatives import AllItems, SharedNegatives, UniformNegatives, parse


def index_of(has: np.ndarray) -> TrainIndex:
    users, items = np.asarray(has, bool).nonzero()
    names = [Vocabulary.of([f"u{n:03}" for n in range(size)]) for size in has.shape]
    return TrainIndex.from_interactions(
        Interactions.from_codes(users, items, user_ids=names[0], item_ids=names[1])
    )


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@st.composite
def memberships(draw: st.DrawFn) -> np.ndarray:
    """Who has what, with at least one item left to every user."""
    users, items = draw(st.integers(1, 6)), draw(st.integers(1, 12))
    has = np.array(draw(st.lists(st.booleans(), min_size=users * items, max_size=users * items)))
    has = has.reshape(users, items)
    has[has.all(1), draw(st.integers(0, items - 1))] = False
    return has


# ------------------------------------------------------------------- the index


def test_index() -> None:
    has = np.array([[1, 0, 1], [0, 0, 0], [0, 1, 0]])
    index = index_of(has)
    assert index.degrees.tolist() == [2, 0, 1]
    (_, items, owner), _ = index.csr_of(torch.tensor([2, 1, 0, 2]))
    assert (owner.tolist(), items.tolist()) == ([0, 2, 2, 3], [1, 0, 2, 1])
    assert index.indices.dtype == index.indptr.dtype == torch.int64
    (_, items, owner), _ = index.csr_of(torch.tensor([], dtype=torch.long))
    assert len(owner) == len(items) == 0


# --------------------------------------------------------------------- uniform


@given(memberships(), st.integers(1, 40), st.integers(1, 64))
@settings(max_examples=150, deadline=None)
def test_uniform_never_draws_a_positive(has: np.ndarray, n: int, marks: int) -> None:
    index = index_of(has)
    users = torch.arange(len(has)).repeat(2).flip(0)
    before = negatives._MARKS
    negatives._MARKS = marks  # blocks of few rows
    try:
        drawn = UniformNegatives(n).draw(index, users, seeded())
    finally:
        negatives._MARKS = before
    assert drawn.shape == (len(users), n)
    assert drawn.dtype == torch.int64
    assert drawn.min() >= 0
    assert drawn.max() < has.shape[1]
    assert not has[users.unsqueeze(1).numpy(), drawn.numpy()].any()


@given(memberships())
@settings(max_examples=100, deadline=None)
def test_every_number_stands_for_another_negative(has: np.ndarray) -> None:
    """0..|N_u|-1 onto N_u, one to one: so that uniform numbers are uniform negatives."""
    index = index_of(has)
    for user, row in enumerate(has):
        count = int((~row).sum())
        numbers = torch.arange(count)
        hit = torch.from_numpy(row[:count]).nonzero().flatten()
        (_, items, owner), _ = index.csr_of(torch.tensor([user]))
        starts = torch.tensor([0, len(items)])
        numbers[hit] = negatives._stand_ins(
            index.num_items, owner, items, starts, torch.zeros_like(hit), numbers[hit]
        )
        assert sorted(numbers.tolist()) == np.flatnonzero(~row).tolist()


@pytest.mark.parametrize(
    "positives", [[], [0], [7], [0, 1, 2, 3, 4], [3, 4, 5, 6, 7], [1, 3, 5, 7], list(range(7))]
)
def test_uniform_is_uniform(positives: list[int]) -> None:
    has = np.zeros((2, 8), bool)
    has[1, positives] = True
    drawn = UniformNegatives(200).draw(index_of(has), torch.ones(100, dtype=torch.long), seeded())
    counts = np.bincount(drawn.flatten().numpy(), minlength=8)
    assert not counts[positives].any()
    rest = counts[~has[1]]
    assert len(rest) == 1 or stats.chisquare(rest).pvalue > 1e-3


def test_draws_are_independent_of_each_other() -> None:
    has = np.zeros((1, 5), bool)
    has[0, 1] = True
    drawn = UniformNegatives(2).draw(index_of(has), torch.zeros(20_000, dtype=torch.long), seeded())
    pairs = np.bincount((drawn[:, 0] * 5 + drawn[:, 1]).numpy(), minlength=25)
    assert stats.chisquare(pairs[pairs > 0]).pvalue > 1e-3
    assert (pairs > 0).sum() == 16


def test_the_generator_decides() -> None:
    index, users = index_of(np.eye(6, 9)), torch.arange(6)
    for source in (UniformNegatives(20), SharedNegatives(20)):
        before = torch.get_rng_state()
        first, again, other = (source.draw(index, users, seeded(s)) for s in (1, 1, 2))
        assert torch.equal(first, again)
        assert not torch.equal(first, other)
        assert torch.equal(before, torch.get_rng_state())


def test_who_has_everything_is_named() -> None:
    index = index_of(np.array([[1, 0], [1, 1], [0, 0]]))
    with pytest.raises(DataError, match="user 'u001' has all 2 items"):
        UniformNegatives(3).check(index)
    before = (rng := seeded()).get_state()
    with pytest.raises(DataError, match="user 'u001' has all 2 items"):
        UniformNegatives(3).draw(index, torch.tensor([0, 1]), rng)
    assert torch.equal(before, rng.get_state())
    assert UniformNegatives(3).draw(index, torch.tensor([0]), rng).tolist() == [[1, 1, 1]]
    for other in (SharedNegatives(3), AllItems()):
        other.check(index)


@pytest.mark.parametrize("source", [UniformNegatives, SharedNegatives])
def test_more_draws_than_items_are_refused(source: type[UniformNegatives | SharedNegatives]) -> None:
    few = index_of(np.eye(2, 30))
    source(16_384).check(few)
    with pytest.raises(
        ConfigError, match=r"negatives: 16,385 negatives; expected at most 16,384 for 30 items, or 'all'"
    ):
        source(16_385).check(few)
    many = index_of(np.eye(2, 20_000))
    source(20_000).check(many)
    with pytest.raises(ConfigError, match="at most 20,000 for 20,000 items"):
        source(20_001).check(many)


def test_uniform_edges() -> None:
    index = index_of(np.eye(2, 3))
    assert UniformNegatives(4).draw(index, torch.tensor([], dtype=torch.long), seeded()).shape == (0, 4)
    with pytest.raises(ArgumentError, match="users"):
        UniformNegatives(4).draw(index, torch.zeros(2, 2, dtype=torch.long), seeded())


# ---------------------------------------------------------------------- shared


def test_shared_draws_are_uniform_over_all_items() -> None:
    drawn = SharedNegatives(5000).draw(index_of(np.ones((1, 9))), torch.tensor([0]), seeded())
    assert drawn.shape == (1, 5000)
    assert stats.chisquare(np.bincount(drawn[0].numpy(), minlength=9)).pvalue > 1e-3


@pytest.mark.parametrize(("users", "groups"), [(1, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_every_few_users_share_a_draw_of_their_own(users: int, groups: int) -> None:
    drawn = SharedNegatives(50, users=4).draw(index_of(np.eye(9)), torch.arange(users), seeded())
    assert drawn.shape == (groups, 50)
    assert len({tuple(row) for row in drawn.tolist()}) == groups


@given(memberships(), st.integers(1, 20))
@settings(max_examples=100, deadline=None)
def test_meetings(has: np.ndarray, n: int) -> None:
    index, users = index_of(has), torch.arange(len(has))
    (drawn,) = SharedNegatives(n, users=len(has)).draw(index, users, seeded(n))
    (_, items, owner), _ = index.csr_of(users)
    rows, columns = meetings(owner, items, drawn)
    found = np.zeros((len(has), n), bool)
    found[rows.numpy(), columns.numpy()] = True
    assert len(rows) == found.sum()
    assert (found == has[:, drawn.numpy()]).all()


def test_draws_without_met_positives_leave_the_pinball_loss_unbiased() -> None:
    has = np.array([[1, 0, 0, 1, 0, 0, 1, 0, 0, 0], [0] * 10, [0, 1, 1, 1, 1, 1, 1, 1, 0, 0]])
    index, users, source = index_of(has), torch.arange(3), SharedNegatives(12)
    scores = torch.randn(3, 10, generator=seeded(5), dtype=torch.float64)
    beta = torch.tensor([[0.3], [-0.2], [0.1]])
    x = scores - beta
    rho = 0.8 * x.clamp(min=0) + 0.2 * (-x).clamp(min=0)
    positive = torch.from_numpy(has == 1)
    negatives = (~positive).sum(1)
    rng, estimates = seeded(), []
    for _ in range(4000):
        (drawn,) = source.draw(index, users, rng)
        left = len(drawn) - positive[:, drawn].sum(1)
        weights = torch.where(left > 0, negatives / left.clamp(min=1), 0.0)
        sampled = (rho * ~positive)[:, drawn].sum(1) * weights
        estimates.append(((rho * positive).sum(1) + sampled) / 10)
    estimates = torch.stack(estimates)
    error = (estimates.mean(0) - rho.mean(1)) / (estimates.std(0) / 4000**0.5)
    assert error.abs().max() < 4


# ------------------------------------------------------------------ all, names


def test_all_items() -> None:
    rng = seeded()
    before = rng.get_state()
    assert AllItems().draw(index_of(np.eye(2, 3)), torch.tensor([0]), rng).tolist() == [0, 1, 2]
    assert torch.equal(before, rng.get_state())


@pytest.mark.parametrize("text", ["all", "shared:1024", "1024", "1", "shared:1", "shared:64/512"])
def test_short_forms(text: str) -> None:
    assert str(parse(text)) == text
    assert parse(str(parse(text))) == parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "some",
        "shared",
        "shared:",
        "shared:0",
        "0",
        "-3",
        "1.5",
        "all:3",
        "uniform:5",
        "1e3",
        "²",
        ":5x",
        "5/3",
        "shared:5/0",
        "shared:5/",
    ],
)
def test_other_forms_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"negatives: .*expected 'all', 'shared:N' or 'N'"):
        parse(text)


@pytest.mark.parametrize("n", [0, -1, 1.5, True])
@pytest.mark.parametrize("source", [UniformNegatives, SharedNegatives])
def test_wrong_numbers_are_refused(source: type, n: object) -> None:
    with pytest.raises(ConfigError, match="whole number"):
        source(n)


def test_an_integer_will_do() -> None:
    assert parse(16) == UniformNegatives(16)
