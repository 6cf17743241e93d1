from __future__ import annotations

import itertools

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from talos.errors import ArgumentError
from talos.evaluation.evaluate import Report
from talos.evaluation.significance import compare, compare_reports, compare_seeds, holm


def report(values: list[float], users: list[int] | None = None) -> Report:
    per_user = {"recall@2": np.array(values, float)}
    ids = pl.Series(users if users is not None else range(len(values)))
    return Report(
        metrics={"recall@2": float(np.mean(values))}, per_user=per_user, user_ids=ids, dialect="standard"
    )


@given(
    st.lists(st.integers(-3, 3), min_size=2, max_size=9), st.sampled_from(["two-sided", "greater", "less"])
)
def test_randomisation_is_exact_for_few_pairs(delta: list[int], alternative: str) -> None:
    observed = sum(delta)
    extreme = {
        "two-sided": lambda total: abs(total) >= abs(observed),
        "greater": lambda total: total >= observed,
        "less": lambda total: total <= observed,
    }[alternative]
    totals = [
        sum(s * d for s, d in zip(signs, delta, strict=True))
        for signs in itertools.product([1, -1], repeat=len(delta))
    ]
    expected = np.mean([extreme(total) for total in totals]) if any(delta) else 1.0
    result = compare(delta, [0] * len(delta), alternative=alternative)  # type: ignore[arg-type]
    assert result.p_values["randomisation"] == pytest.approx(expected)


def test_all_three_tests_agree_on_a_clear_difference_and_on_none() -> None:
    rng = np.random.default_rng(0)
    base = rng.random(500)
    better = base + 0.05 + 0.1 * rng.standard_normal(500)
    assert max(compare(better, base, alternative="greater").p_values.values()) < 1e-4
    assert min(compare(better, base, alternative="less").p_values.values()) > 0.99
    noise = base + 0.1 * rng.standard_normal(500)
    assert min(compare(noise, base).p_values.values()) > 0.01


def test_false_alarms_are_as_frequent_as_they_should_be() -> None:
    rng = np.random.default_rng(1)
    alarms = [
        [p < 0.1 for p in compare(rng.standard_normal(30), np.zeros(30), flips=400, seed=i).p_values.values()]
        for i in range(200)
    ]
    assert np.abs(np.mean(alarms, axis=0) - 0.1).max() < 0.07


def test_words_effect_and_counts() -> None:
    result = compare([2.0, 1.0, 3.0, 1.0], [1.0, 1.0, 1.0, 2.0], alternative="greater", names=("Talos", "SL"))
    assert result.hypothesis == "Talos is higher than SL"
    assert (result.wins, result.losses, result.pairs) == (2, 1, 4)
    delta = np.array([1, 0, 2, -1])
    assert result.effect_size == pytest.approx(delta.mean() / delta.std(ddof=1))
    assert "alternative: Talos is higher than SL" in str(result)


def test_degenerate_differences() -> None:
    same = compare([1, 2], [1, 2])
    assert set(same.p_values.values()) == {1.0}
    assert same.effect_size == 0
    constant = compare([2, 3, 4], [1, 2, 3], alternative="greater")
    assert constant.p_values["t"] == 0
    assert constant.effect_size == np.inf
    assert compare([2, 3, 4], [1, 2, 3], alternative="less").p_values["t"] == 1


def test_reports_must_be_about_the_same_users() -> None:
    a, b = report([1, 0, 1]), report([0, 0, 1])
    assert compare_reports(a, b, metric="recall@2").difference == pytest.approx(1 / 3)
    with pytest.raises(ArgumentError, match="different users"):
        compare_reports(a, report([0, 0, 1], users=[7, 8, 9]), metric="recall@2")
    with pytest.raises(ArgumentError, match="did you mean 'recall@2'"):
        compare_reports(a, b, metric="recal@2")


def test_across_seeds() -> None:
    runs_a = [report([1, 0.5]), report([1, 0.6]), report([0.9, 0.6])]
    runs_b = [report([0.4, 0.5]), report([0.3, 0.6]), report([0.9, 0.2])]
    result = compare_seeds(runs_a, runs_b, metric="recall@2", alternative="greater")
    assert (result.pairs, result.wins) == (3, 3)
    assert result.p_values["randomisation"] == 0.125
    with pytest.raises(ArgumentError, match="the same seeds"):
        compare_seeds(runs_a, runs_b[:2], metric="recall@2")


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_against_its_definition(p: list[float]) -> None:
    ordered = sorted(range(len(p)), key=lambda i: p[i])
    expected, running = [0.0] * len(p), 0.0
    for step, i in enumerate(ordered):
        running = max(running, (len(p) - step) * p[i])
        expected[i] = min(1.0, running)
    assert holm(p) == pytest.approx(expected)


def test_bad_arguments() -> None:
    with pytest.raises(ArgumentError, match="shapes"):
        compare([1, 2], [1])
    with pytest.raises(ArgumentError, match="did you mean 'greater'"):
        compare([1, 2], [1, 3], alternative="grater")  # type: ignore[arg-type]
