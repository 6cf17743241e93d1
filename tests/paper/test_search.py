"""The search from option to option, on made-up figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from talos_paper.search import OptionSearch, Trial

GRID = {"a": (0, 1, 2, 3), "b": (0, 1, 2), "c": (0, 1)}
Train = Callable[[Mapping[str, Any], int], tuple[float, Trial]]


def noting(
    calls: list[tuple[tuple[Any, ...], int]], value: Callable[[Mapping[str, Any], int], float]
) -> Train:
    def train(one: Mapping[str, Any], epochs: int) -> tuple[float, Trial]:
        calls.append((tuple(one.values()), epochs))
        return value(one, epochs), {"epochs": epochs}

    return train


@given(
    peak=st.tuples(*(st.sampled_from(values) for values in GRID.values())),
    start=st.tuples(*(st.sampled_from(values) for values in GRID.values())),
)
def test_separate_options_are_all_found(peak: tuple[int, ...], start: tuple[int, ...]) -> None:
    wanted = dict(zip(GRID, peak, strict=True))
    train = noting([], lambda one, _: -sum(abs(one[name] - best) for name, best in wanted.items()))
    found = OptionSearch(grid=GRID, settings=99).run(dict(zip(GRID, start, strict=True)), train)
    assert found.candidates[found.best] == wanted
    assert found.candidates[0] == dict(zip(GRID, start, strict=True))


@given(
    figures=st.dictionaries(st.tuples(*(st.sampled_from(v) for v in GRID.values())), st.integers(0, 9)),
    settings=st.integers(1, 30),
)
def test_no_setting_twice_and_no_more_than_allowed(
    figures: dict[tuple[int, ...], int], settings: int
) -> None:
    train = noting([], lambda one, _: figures.get(tuple(one.values()), 0))
    found = OptionSearch(grid=GRID, settings=settings).run(dict.fromkeys(GRID, 0), train)
    keys = [tuple(one.values()) for one in found.candidates]
    assert len(set(keys)) == len(keys) == len(found.trials) <= settings
    # what was kept is at least as good as all that was trained as long
    long = [figures.get(key, 0) for key, trial in zip(keys, found.trials, strict=True) if trial["leg"]]
    assert figures.get(keys[found.best], 0) == max(long)


def test_the_two_best_of_an_option_are_trained_longer() -> None:
    calls: list[tuple[tuple[Any, ...], int]] = []
    late = {0: 0.0, 1: 3.0, 2: 2.0, 3: 1.0}
    train = noting(calls, lambda one, epochs: late[one["a"]] + (one["a"] == 2) * (epochs == 6) * 5)
    found = OptionSearch(grid={"a": (0, 1, 2, 3)}, epochs=(2, 6)).run({"a": 0}, train)
    assert found.candidates[found.best] == {"a": 2}
    assert {one for one, epochs in calls if epochs == 6} == {(1,), (2,)}
    assert [(trial["leg"], trial["epochs"]) for trial in found.trials] == [(0, 2), (1, 6), (1, 6), (0, 2)]


@pytest.mark.parametrize(("start", "tried"), [(3, [3, 2]), (0, [0, 1]), (7, [7, 0])])
def test_the_nearest_values_come_first(start: int, tried: list[int]) -> None:
    """A start that is not on the grid is one of the settings."""
    train = noting([], lambda one, _: 0.0)
    found = OptionSearch(grid={"a": (0, 1, 2, 3)}, settings=2).run({"a": start}, train)
    assert [one["a"] for one in found.candidates] == tried


def test_the_estimate_counts_every_setting_once() -> None:
    # one setting of the start and one for every other value; the start and the next one twice as long
    assert OptionSearch(grid={"a": (0, 1, 2), "b": (0, 1)}, epochs=(5, 10)).total_epochs(
        {"a": 0, "b": 0}
    ) == (10 + 10 + 5 + 10)
