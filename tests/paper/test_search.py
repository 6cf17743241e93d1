"""The search from option to option, on made-up figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from talos_paper.recipes import GRIDS, OptionSearch, Trial

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
    figures=st.dictionaries(
        st.tuples(*(st.sampled_from(values) for values in GRID.values())),
        st.tuples(*3 * [st.integers(0, 9)]),
    ),
    settings=st.integers(1, 30),
)
def test_what_is_kept_is_not_worse_than_what_it_was_compared_with(
    figures: dict[tuple[int, ...], tuple[int, ...]], settings: int
) -> None:
    """Whatever each setting reaches after each number of epochs."""
    search = OptionSearch(grid=GRID, settings=settings)

    def value(one: Mapping[str, Any], epochs: int) -> float:
        return figures.get(tuple(one.values()), (0, 0, 0))[search.epochs.index(epochs)]

    found = search.run(dict.fromkeys(GRID, 0), noting([], value))
    keys = [tuple(one.values()) for one in found.candidates]
    assert len(set(keys)) == len(keys) == len(found.trials) <= settings + len(GRID["a"]) - 1
    assert [trial["epochs"] for trial in found.trials] == [
        search.epochs[trial["leg"]] for trial in found.trials
    ]
    last = [one for one, trial in zip(found.candidates, found.trials, strict=True) if trial["leg"] == 2]
    assert len(last) == 2
    assert last[0]["a"] != last[1]["a"]
    assert {**last[0], "a": 0} == {**last[1], "a": 0}
    chosen = found.candidates[found.best]
    assert value(chosen, 40) == max(value(one, 40) for one in last)
    # of all that was trained for longer, one of the two was the best
    longer = [one for one, trial in zip(found.candidates, found.trials, strict=True) if trial["leg"] >= 1]
    assert max(value(one, 15) for one in last) == max(value(one, 15) for one in longer)


@pytest.mark.parametrize("loss", GRIDS)
def test_two_rates_are_trained_for_longer_whatever_the_number_of_options(loss: str) -> None:
    """From the start of a protocol whose best lies elsewhere in every option."""
    grid = GRIDS[loss]
    start = {name: values[0] for name, values in grid.items()}
    wanted = {name: values[-1] for name, values in grid.items()}
    train = noting([], lambda one, _: sum(one[name] == value for name, value in wanted.items()))
    found = OptionSearch(grid=grid, settings=16).run(start, train)
    longest = [one for one, trial in zip(found.candidates, found.trials, strict=True) if trial["leg"] == 2]
    assert len({one["optimizer.lr"] for one in longest}) == len(longest) == 2


def test_the_two_best_of_an_option_are_trained_longer() -> None:
    calls: list[tuple[tuple[Any, ...], int]] = []
    late = {0: 0.0, 1: 3.0, 2: 2.0, 3: 1.0}
    train = noting(calls, lambda one, epochs: late[one["a"]] + (one["a"] == 2) * (epochs == 6) * 5)
    grid = {"rate": (0,), "a": (0, 1, 2, 3)}
    found = OptionSearch(grid=grid, epochs=(2, 6, 9)).run({"rate": 0, "a": 0}, train)
    assert found.candidates[found.best] == {"rate": 0, "a": 2}
    # the start was the only one when the first option was searched
    assert {one for one, epochs in calls if epochs == 6} == {(0, 0), (0, 1), (0, 2)}
    trials = [(one["a"], trial["epochs"]) for one, trial in zip(found.candidates, found.trials, strict=True)]
    assert trials == [(0, 6), (1, 6), (2, 9), (3, 2)]


def test_a_rate_that_is_slow_but_better_wins_at_the_end() -> None:
    train = noting(
        [], lambda one, epochs: min(epochs, 10 if one["rate"] else 20) * (2 if one["rate"] else 1.1)
    )
    found = OptionSearch(grid={"rate": (0, 1), "a": (0, 1)}, epochs=(5, 10, 40)).run(
        {"rate": 1, "a": 0}, train
    )
    assert found.candidates[found.best]["rate"] == 0


@pytest.mark.parametrize(("start", "tried"), [(3, [3, 2]), (0, [0, 1]), (7, [7, 3]), (1.8, [1.8, 2])])
def test_the_nearest_values_come_first(start: float, tried: list[float]) -> None:
    """A start that is not on the grid is one of the settings."""
    train = noting([], lambda one, _: 0.0)
    grid = {"rate": (0,), "a": (0, 1, 2, 3)}
    found = OptionSearch(grid=grid, settings=2).run({"rate": 0, "a": start}, train)
    assert [one["a"] for one in found.candidates] == tried
