from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import talos
from talos.data.interactions import Interactions
from talos.data.splits import Split, k_core, min_rating, predefined, split, write_split
from talos.errors import ArgumentError, ConfigError, DataError, InputError

Make = Callable[..., Interactions]


def keys(data: Interactions | None) -> set[tuple[int, int]]:
    return set() if data is None else set(data.to_polars().select("user_id", "item_id").rows())


def naive_core(pairs: set[tuple[int, int]], k: int) -> set[tuple[int, int]]:
    while True:
        users = [u for u, _ in pairs]
        items = [i for _, i in pairs]
        kept = {(u, i) for u, i in pairs if users.count(u) >= k and items.count(i) >= k}
        if kept == pairs:
            return kept
        pairs = kept


@given(st.sets(st.tuples(st.integers(0, 8), st.integers(0, 8)), min_size=1), st.integers(1, 4))
def test_k_core_against_a_naive_loop(pairs: set[tuple[int, int]], k: int) -> None:
    data = Interactions.from_ids([u for u, _ in pairs], [i for _, i in pairs])
    expected = naive_core(pairs, k)
    if expected:
        core = k_core(data, k)
        assert keys(core) == expected
        assert core.user_degrees.min() >= k
        assert core.item_degrees.min() >= k
    else:
        with pytest.raises(DataError, match=f"nothing is left after {k}-core"):
            k_core(data, k)


def test_min_rating() -> None:
    data = Interactions.from_ids([1, 1, 2], [7, 8, 9], ratings=[3, 2.5, 5])
    assert keys(min_rating(data, 3)) == {(1, 7), (2, 9)}
    with pytest.raises(DataError, match="no rating of 6"):
        min_rating(data, 6)
    with pytest.raises(DataError, match="no ratings"):
        min_rating(Interactions.from_ids([1], [2]), 3)


@pytest.mark.parametrize("by", ["user", "time", "last"])
@pytest.mark.parametrize("seed", range(3))
def test_every_interaction_lands_in_exactly_one_part(random_data: Make, by: str, seed: int) -> None:
    data = random_data(seed=seed, stamps=True)
    parts = split(data, by=by, seed=seed)  # type: ignore[arg-type]
    pieces = [keys(part) for part in parts.parts.values()]
    assert sum(map(len, pieces)) == len(data)
    assert set.union(*pieces) == keys(data)


@given(st.integers(1, 40), st.sampled_from([0.1, 0.2, 0.5]), st.sampled_from([0.0, 0.1, 0.3]))
def test_user_split_sizes_are_the_papers(degree: int, test: float, valid: float) -> None:
    """⌈20 %⌉ of a user's items for test, then ⌈10 %⌉ of the rest for validation: 6 → 3/1/2, 31 → 21/3/7."""
    data = Interactions.from_ids([0] * degree + [1] * 100, [*range(degree), *range(100)])
    parts = split(data, test=test, valid=valid, seed=degree, paper=True)
    in_test = int(np.ceil(round(test * degree, 9)))
    in_valid = int(np.ceil(round(valid * (degree - in_test), 9)))
    assert parts.test.user_degrees[0] == in_test
    assert (parts.valid.user_degrees[0] if parts.valid else 0) == in_valid


@given(st.integers(1, 12), st.sampled_from([0.1, 0.2, 0.5]), st.sampled_from([0.0, 0.1, 0.3]))
@settings(max_examples=30)
def test_user_split_keeps_its_shares_and_its_users(degree: int, test: float, valid: float) -> None:
    """Shares are exact over many users, each is rounded to a neighbour, and nobody loses all interactions."""
    users = 2000
    data = Interactions.from_ids(np.repeat(np.arange(users), degree), np.tile(np.arange(degree), users))
    if degree == 1:
        with pytest.raises(DataError, match="no user has more than one interaction"):
            split(data, test=test, valid=valid)
        return
    parts = split(data, test=test, valid=valid, seed=degree)
    assert parts.train.user_degrees.min() >= 1
    held = parts.test.user_degrees
    assert held.min() >= np.floor(test * degree)
    assert held.max() <= np.ceil(round(test * degree, 9))
    possible = min(test * degree, degree - 1)
    assert abs(held.mean() - possible) < 4 * 0.5 / users**0.5
    if valid == 0:
        assert parts.valid is None


def test_with_two_interactions_at_most_one_is_held_out() -> None:
    data = Interactions.from_ids(np.repeat(np.arange(1000), 2), np.tile([0, 1], 1000))
    parts = split(data, test=0.5, valid=0.5)
    assert parts.train.user_degrees.min() == 1
    single = Interactions.from_ids([1, 2, 2, 2], [5, 5, 6, 7])
    assert all(split(single, test=0.9, valid=0.5, seed=seed).train.user_degrees[0] == 1 for seed in range(20))


def test_by_time_the_draw_for_validation_leaves_every_user_one() -> None:
    data = Interactions.from_ids(range(500), np.arange(500) % 7, timestamps=range(500))
    again = [*range(500), *range(100)], [*(np.arange(500) % 7), *(np.arange(1, 101) % 7)]
    parts = split(Interactions.from_ids(*again, timestamps=range(600)), by="time", test=0.25, valid=0.5)
    assert (parts.train.user_degrees[:450] == 1).all()
    assert parts.valid is None
    assert parts.cold_notes() == ["test: 50 of 150 users and 0 of 7 items have no training events"]
    with pytest.raises(DataError, match="no user in common"):
        split(data, by="time")


def test_times_of_different_units_are_refused() -> None:
    stamps = np.array([1_700_000_000, 1_700_000_000_000, 1_700_000_001_000])
    data = Interactions.from_ids([1, 1, 2], [5, 6, 5], timestamps=stamps)
    with pytest.raises(DataError, match="1 of 3 are in another unit"):
        split(data, by="time")


def test_user_split_is_uniform() -> None:
    data = Interactions.from_ids([0] * 5, range(5))
    drawn = [next(iter(keys(split(data, seed=seed, valid=0).test)))[1] for seed in range(2000)]
    assert np.bincount(drawn, minlength=5).min() > 340  # 400 expected, 18 standard deviation


def test_time_split_puts_the_latest_into_test(random_data: Make) -> None:
    parts = split(random_data(stamps=True), by="time", test=0.25)
    assert parts.train.timestamps is not None
    assert parts.valid is not None
    assert parts.test.timestamps is not None
    assert parts.train.timestamps.max() <= parts.test.timestamps.min()
    total = sum(len(part) for part in parts.parts.values())
    assert len(parts.test) == round(0.25 * total)
    assert len(parts.valid) == round(0.1 * (total - len(parts.test)))


def test_future_split_has_each_part_after_the_one_before(random_data: Make) -> None:
    data = random_data(stamps=True)
    parts, by_time = split(data, by="future", test=0.25), split(data, by="time", test=0.25)
    train, valid, test = (part.timestamps for part in parts.parts.values())
    assert train is not None
    assert valid is not None
    assert train.max() <= valid.min() <= valid.max() <= test.min()
    assert [len(part) for part in parts.parts.values()] == [len(part) for part in by_time.parts.values()]
    assert keys(parts.test) == keys(by_time.test)


def test_last_split_takes_each_users_last_two() -> None:
    data = Interactions.from_ids([1, 1, 1, 2, 2], [7, 8, 9, 7, 8], timestamps=[30, 10, 20, 1, 2])
    parts = split(data, by="last")
    assert (keys(parts.test), keys(parts.valid)) == ({(1, 7)}, {(1, 9)})
    without = split(data, by="last", valid=0)
    assert keys(without.test) == {(1, 7), (2, 8)}


def test_same_seed_same_split_other_seed_other_split(random_data: Make) -> None:
    data = random_data()
    assert keys(split(data, seed=3).test) == keys(split(data, seed=3).test)
    assert keys(split(data, seed=3).test) != keys(split(data, seed=4).test)


def test_cold_users_and_items_are_counted_not_dropped() -> None:
    data = Interactions.from_ids([1, 1, 2, 2, 3, 3], [7, 8, 8, 7, 9, 8], timestamps=[1, 2, 3, 4, 5, 6])
    parts = split(data, by="time", test=0.5, valid=0)  # train: 1-7, 1-8, 2-8; test: 2-7, 3-9, 3-8
    cold = parts.cold("test")
    assert (cold["users"], cold["interactions_of_cold_users"]) == (1, 2)
    assert (cold["items"], cold["interactions_of_cold_items"]) == (1, 1)
    assert len(parts.test) == 3
    assert keys(parts.warm().test) == {(2, 7)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"test": 1.0}, "test: 1.0; expected a share"),
        ({"valid": -0.1}, "valid"),
        ({"test": True}, "test: True; expected a valid number"),
        ({"seed": -1}, "split_seed: -1; expected a whole number"),
        ({"by": "usr"}, "did you mean 'user'"),
        ({"by": "time"}, "no timestamps"),
    ],
)
def test_bad_options(random_data: Make, options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        split(random_data(), **options)  # type: ignore[arg-type]


def test_an_error_about_times_names_the_columns_that_were_not_read(tmp_path: Path) -> None:
    (tmp_path / "sales.csv").write_text("user,item,qty,price\na,x,1,2\nb,x,1,2\n")
    with pytest.raises(DataError) as caught:
        talos.read(tmp_path / "sales.csv").split(by="time")
    assert str(caught.value).endswith(
        "no timestamps; expected a time column to split by time "
        "(columns not read: 'qty', 'price'; timestamp='NAME' names it)"
    )


def test_a_test_part_without_known_users_is_refused() -> None:
    data = Interactions.from_ids([1, 2], [7, 8], timestamps=[1, 2])
    with pytest.raises(DataError, match="no user in common"):
        split(data, by="time", test=0.5, valid=0)
    with pytest.raises(ArgumentError, match="shared vocabularies"):
        predefined(data, None, Interactions.from_ids([9], [9]))


@pytest.mark.parametrize("form", ["tsv", "parquet"])
def test_written_split_reads_back(random_data: Make, tmp_path: Path, form: str) -> None:
    from talos.data.open import open_split

    parts = split(random_data(stamps=True), seed=1)
    record = write_split(parts, tmp_path / "out", format=form, source="here")  # type: ignore[arg-type]
    assert json.loads((tmp_path / "out" / "split.json").read_text()) == record
    assert record["how"] == {"by": "user", "seed": 1, "test": 0.2, "valid": 0.1}
    again = open_split(tmp_path / "out")
    assert isinstance(again, Split)
    assert again.how == {"by": "predefined"}
    assert {name: keys(part) for name, part in again.parts.items()} == {
        n: keys(p) for n, p in parts.parts.items()
    }
    with pytest.raises(ConfigError, match="not empty"):
        write_split(parts, tmp_path / "out", source="here")
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


def test_last_breaks_ties_by_the_order_of_the_source() -> None:
    data = Interactions.from_ids([1] * 4, ["d", "c", "b", "a"], timestamps=[5, 7, 7, 7])
    parts = split(data, by="last")
    assert parts.valid is not None
    assert [part.to_polars()["item_id"].to_list() for part in parts] == [["c", "d"], ["b"], ["a"]]
    order, ties = data.in_time_order()
    assert data.item_ids.decode(data.indices[order]).to_list() == ["d", "c", "b", "a"]
    assert ties.tolist() == [False, False, True, True]
    bare = Interactions.from_ids([2, 1, 1], ["x", "y", "x"])
    order, ties = bare.union(Interactions.from_codes(
        np.array([1]), np.array([1]), user_ids=bare.user_ids, item_ids=bare.item_ids
    )).in_time_order()  # fmt: skip
    assert order.tolist() == [1, 0, 2, 3]
    assert not ties.any()
