from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from talos.data import arrays
from talos.errors import ArgumentError


@pytest.fixture(params=["compiled", "reference"], autouse=True)
def _both(request, monkeypatch):
    """Every test twice: with the compiled library, and without it."""
    if request.param == "reference":
        monkeypatch.setenv("TALOS_KERNEL", "torch")
    elif arrays.library() is None:
        pytest.skip("the library is not built")


@pytest.mark.parametrize("kind", ["short", "long", "both", "whole"])
def test_codes_are_those_of_a_dictionary(kind):
    rng = np.random.default_rng(0)
    numbers = rng.integers(-(2**62), 2**62, 300)[rng.integers(0, 300, 5000)]
    texts = {
        "short": [f"u{n % 1000:04d}" for n in numbers],
        "long": [f"somebody-with-a-long-name-{n}" for n in numbers],
        "both": ["" if n % 7 == 0 else "é" * int(n % 20) + str(n % 5) for n in numbers],
    }
    ids = pl.Series(numbers) if kind == "whole" else pl.Series(texts[kind])
    known: dict[object, int] = {}
    expected = [known.setdefault(one, len(known)) for one in ids.to_list()]
    encoder, found, new = arrays.IdEncoder(), [], []
    for start in range(0, len(ids), 700):  # slices have offsets, and two of them are chunks of one series
        block = pl.concat([ids[start : start + 300], ids[start + 300 : start + 700]])
        codes, fresh = encoder.encode(block)
        found += codes.tolist()
        new += block.gather(fresh).to_list()
    assert found == expected
    assert new == list(known)


@pytest.mark.parametrize("ids", [["a", None, "b"], [1, None, 2]])
def test_a_missing_id_is_noticed(ids):
    with pytest.raises(ArgumentError, match="a missing id"):
        arrays.IdEncoder().encode(pl.Series(ids))


@pytest.mark.parametrize("kind", [pl.String, pl.Int64])
def test_a_block_may_be_empty(kind):
    assert [len(part) for part in arrays.IdEncoder().encode(pl.Series([], dtype=kind))] == [0, 0]


@pytest.mark.parametrize("rows", [1, 40, 5000, 200_000])
@pytest.mark.parametrize("stamps", [None, np.int64, np.float64])
def test_sorted_rows_are_those_of_numpy(monkeypatch, rows, stamps):
    rng = np.random.default_rng(rows)
    num_users, num_items = max(1, rows // 10), 13
    users, items = rng.integers(0, num_users, rows), rng.integers(0, num_items, rows)
    times = None if stamps is None else rng.integers(0, 5, rows).astype(stamps)
    ours = arrays.sort_rows(users, items, num_users, num_items, times)
    monkeypatch.setenv("TALOS_KERNEL", "torch")
    theirs = arrays.sort_rows(users, items, num_users, num_items, times)
    for name in ("indptr", "items", "rows", "repeats"):
        mine, other = getattr(ours, name), getattr(theirs, name)
        assert (mine is None) == (other is None)
        assert mine is None or np.array_equal(mine, other)


def test_one_user_may_have_nearly_all_rows():
    rng = np.random.default_rng(0)
    users = np.where(rng.random(300_000) < 0.9, 3, rng.integers(0, 70_000, 300_000)).astype(np.int32)
    items = rng.permutation(1 << 20)[:300_000].astype(np.int32)
    found = arrays.sort_rows(users, items, 70_000, 1 << 20, None)
    order = np.lexsort((items, users))
    assert np.array_equal(found.items, items[order])
    assert np.array_equal(found.rows, order)
    assert np.array_equal(np.diff(found.indptr), np.bincount(users, minlength=70_000))


def test_times_of_any_type_and_no_rows():
    users, items = np.array([1, 1], np.int32), np.array([5, 5], np.int32)
    for times in (np.array(["b", "a"]), np.array([2, 1], "datetime64[s]"), np.array([2, 1], np.uint8)):
        assert arrays.sort_rows(users, items, 2, 6, times).rows.tolist() == [0]
    assert arrays.sort_rows(users[:0], items[:0], 1, 1, None).indptr.tolist() == [0, 0]


def test_the_callers_arrays_stay_unless_they_may_be_overwritten():
    users, items = np.array([1, 0, 1], np.int32), np.array([0, 1, 0], np.int32)
    kept = arrays.sort_rows(users, items, 2, 2, None)
    assert users.tolist() == [1, 0, 1]
    assert items.tolist() == [0, 1, 0]
    again = arrays.sort_rows(users, items, 2, 2, None, in_place=True)
    for name in ("indptr", "items", "rows", "repeats"):
        assert getattr(kept, name).tolist() == getattr(again, name).tolist()
    assert arrays.library() is None or np.shares_memory(again.items, items)


def test_memory_that_is_not_in_one_piece():
    users, items = np.array([1, 9, 0, 9], np.int32)[::2], np.array([0, 9, 1, 9], np.int32)[::2]
    for in_place in (False, True):
        found = arrays.sort_rows(users, items, 2, 2, np.array([3, 4, 5, 6])[::2], in_place=in_place)
        assert found.items.tolist() == [1, 0]
    assert arrays.take(np.arange(6)[::2], np.array([2, 9, 1, 9], np.uint32)[::2]).tolist() == [4, 2]
