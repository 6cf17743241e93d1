from __future__ import annotations

from collections import Counter

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from talos.data.interactions import Interactions, gini
from talos.data.vocabulary import IdColumn, Vocabulary
from talos.errors import ArgumentError, DataError

rows = st.lists(st.tuples(st.integers(-5, 5), st.integers(0, 6), st.integers(0, 9)), max_size=60)


def naive(rows: list[tuple[int, int, int]]) -> dict[tuple[int, int], int]:
    latest: dict[tuple[int, int], int] = {}
    for user, item, stamp in rows:
        latest[user, item] = max(stamp, latest.get((user, item), stamp))
    return latest


@given(rows)
def test_from_ids_keeps_each_pair_once_with_its_latest_timestamp(rows: list[tuple[int, int, int]]) -> None:
    users, items, stamps = (np.array([row[i] for row in rows], np.int64) for i in range(3))
    data = Interactions.from_ids(users, items, timestamps=stamps)
    expected = naive(rows)
    frame = data.to_polars()
    got = {(u, i): t for u, i, t in frame.rows()}
    assert got == expected
    assert data.provenance.duplicates == len(rows) - len(expected)
    assert frame.select("user_id", "item_id").rows() == sorted(expected)


@given(rows)
def test_string_ids_give_the_same_structure(rows: list[tuple[int, int, int]]) -> None:
    users, items = [f"u{row[0] + 5:02d}" for row in rows], [f"i{row[1]}" for row in rows]
    if not rows:
        users, items = pl.Series([], dtype=pl.String), pl.Series([], dtype=pl.String)
    text = Interactions.from_ids(users, items)
    plain = Interactions.from_ids(
        np.array([r[0] for r in rows], np.int64), np.array([r[1] for r in rows], np.int64)
    )
    assert text.indptr.tolist() == plain.indptr.tolist()
    assert text.indices.tolist() == plain.indices.tolist()


def test_rows_too_wide_to_pack_are_sorted_all_the_same() -> None:
    """User, item and row number that do not fit into 64 bits take the other path; the result is the same."""
    rng = np.random.default_rng(0)
    users, items, stamps = rng.integers(0, 50, 400), rng.integers(0, 20, 400), rng.integers(0, 9, 400)
    from talos.data.arrays import sort_rows

    narrow = sort_rows(users, items, 50, 20, stamps)
    wide = sort_rows(users, items, 50, 2**60, stamps)
    assert narrow.items.tolist() == wide.items.tolist()
    assert narrow.rows.tolist() == wide.rows.tolist()
    assert narrow.indptr.tolist() == wide.indptr.tolist()


def test_without_timestamps_the_last_row_wins() -> None:
    data = Interactions.from_ids([1, 1], [2, 2], ratings=[5, 3])
    assert data.ratings is not None
    assert data.ratings.tolist() == [3]


@pytest.mark.parametrize("ids", [[10**12, -7, 10**12], [3, 1, 2], ["b", "a", "b"]])
def test_vocabulary_round_trip(ids: list[int] | list[str]) -> None:
    column = IdColumn("user")
    column.add(pl.Series(ids))
    vocabulary, codes = column.finish()
    assert vocabulary.decode(codes).to_list() == ids
    assert vocabulary.encode(ids).tolist() == codes.tolist()
    assert vocabulary.ids.to_list() == sorted(set(ids))
    assert vocabulary == Vocabulary.of(ids)


def test_unknown_and_wrongly_typed_ids_encode_to_minus_one() -> None:
    vocabulary = Vocabulary.of(["a", "b"])
    assert vocabulary.encode(["c", "a"]).tolist() == [-1, 0]
    assert vocabulary.encode([1]).tolist() == [-1]
    assert Vocabulary.of([1, 5]).encode([9, 0, 5]).tolist() == [-1, -1, 1]


@pytest.mark.parametrize("kind", [str, int])
def test_few_ids_are_found_where_many_are(kind: type) -> None:
    """One by one and all at once, in one order: characters beyond 16 bits come after all others."""
    if kind is str:
        ids = ["", "a", "aa", "b", "é", "漢", "\uffff", "\U0001f600", "\x00", *(f"x{n}" for n in range(60))]
        wanted = [*ids, "A", "ab", "\U0001f601", "zz", "\x01"]
    else:
        ids = [-(2**63), -5, 0, 7, 2**53 + 1, 2**63 - 1, *range(100, 160)]
        wanted = [*ids, -6, 1, 2**53, 2**63 - 2]
    vocabulary = Vocabulary.of(ids)
    together = vocabulary.encode(wanted)
    assert vocabulary.decode(together[: len(ids)]).to_list() == ids
    assert (together[len(ids) :] == -1).all()
    assert [int(vocabulary.encode([one])[0]) for one in wanted] == together.tolist()


@pytest.mark.parametrize(
    ("users", "message"),
    [
        ([1, "a"], "users: mixed types; expected all strings or all integers"),
        ([1, None], "users: missing id at row 1"),
        ([1.5, 2.0], "users: values of type Float64"),
        (np.array([2**64 - 1, 0], np.uint64), "users: an integer beyond 64 bits"),
    ],
)
def test_bad_ids_are_refused(users: list[object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Interactions.from_ids(users, [1, 2])  # type: ignore[arg-type]


def test_lengths_must_agree() -> None:
    with pytest.raises(ArgumentError, match="users, items"):
        Interactions.from_ids([1, 2], [1])
    with pytest.raises(ArgumentError, match="timestamps: 1 values"):
        Interactions.from_ids([1, 2], [1, 2], timestamps=[1])


def test_it_is_immutable() -> None:
    data = Interactions.from_ids([1], [2])
    with pytest.raises(ValueError, match="read-only"):
        data.indices[0] = 5
    with pytest.raises(AttributeError):
        data.indices = data.indptr  # type: ignore[misc,assignment]


def test_views() -> None:
    data = Interactions.from_ids(
        ["a", "a", "b"], ["x", "y", "y"], titles=["Ex", "Why", "Why"], ratings=[1, 2, 3]
    )
    assert data.items_of("a").to_list() == ["x", "y"]
    only_b = data.where(data.rows == 1)
    assert only_b.num_users == 2
    assert only_b.to_polars().rows() == [("b", "y", 3.0)]
    compact = only_b.compact()
    assert compact.user_ids.ids.to_list() == ["b"]
    assert compact.item_titles is not None
    assert compact.item_titles.to_list() == ["Why"]
    with pytest.raises(ArgumentError, match="no user 'z'"):
        data.items_of("z")
    numbers = Interactions.from_ids([5, 7], [1, 2])
    assert [numbers.items_of(user).to_list() for user in (5, "7")] == [[1], [2]]
    with pytest.raises(ArgumentError, match="no user '05'"):
        numbers.items_of("05")
    assert data.to_scipy().toarray().tolist() == [[1, 1], [0, 1]]
    assert data.with_titles(pl.Series(["1", "2"])).item_titles is not None
    with pytest.raises(ArgumentError, match="1 titles"):
        data.with_titles(pl.Series(["1"]))


def test_union_needs_the_same_vocabularies() -> None:
    data = Interactions.from_ids([1, 1, 2], [7, 8, 8])
    first, second = data.where(np.array([True, False, True])), data.where(np.array([False, True, True]))
    assert first.union(second).to_polars().rows() == data.to_polars().rows()
    with pytest.raises(ArgumentError, match="other"):
        data.union(Interactions.from_ids([1], [7]))


@given(st.lists(st.integers(0, 9), min_size=1, max_size=30))
def test_gini_is_the_mean_absolute_difference(counts: list[int]) -> None:
    total = sum(counts)
    expected = sum(abs(a - b) for a in counts for b in counts) / (2 * len(counts) * total) if total else 0
    assert gini(np.array(counts)) == pytest.approx(expected)


def test_describe_leaves_out_the_inactive() -> None:
    data = Interactions.from_ids([1, 1, 2], [7, 8, 8], timestamps=[0, 86400, 5])
    data = data.where(data.rows == 0)
    description = data.describe()
    assert [description[name] for name in ("users", "items", "interactions", "density")] == [1, 2, 2, 1]
    assert "1970-01-01 00:00 to 1970-01-02 00:00" in str(description)
    empty = data.where(np.zeros(2, bool)).describe()
    assert (empty["users"], empty["density"], empty["first_timestamp"]) == (0, 0, None)


def test_many_rows_go_through_blocks_and_threads() -> None:
    """More rows than a block holds, with duplicates across block borders, against polars."""
    rng = np.random.default_rng(0)
    n = 1_300_000
    frame = pl.DataFrame(
        {
            "u": rng.integers(-3, 3000, n),
            "i": rng.integers(0, 200, n),
            "t": rng.integers(0, 50, n),
            "row": np.arange(n),
        }
    )
    data = Interactions.from_ids(
        frame["u"], frame["i"], timestamps=frame["t"].to_numpy(), ratings=frame["row"].to_numpy() % 1000
    )
    best = frame.sort("u", "i", "t", "row").group_by("u", "i", maintain_order=True).last()
    assert (
        data.to_polars().select("user_id", "item_id", "timestamp").rows() == best.select("u", "i", "t").rows()
    )
    assert data.ratings is not None
    assert np.array_equal(data.ratings, (best["row"].to_numpy() % 1000).astype(np.float32))
    assert data.provenance.duplicates == n - len(best)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=40), st.integers(0, 40))
def test_repeats_count_the_events_of_each_pair(rows: list[tuple[int, int]], cut: int) -> None:
    """However the events come: at once, in two parts, or over other vocabularies."""
    expected = Counter(rows)

    def counts(data: Interactions) -> Counter[tuple[int, int]]:
        pairs = data.to_polars().select("user_id", "item_id").rows()
        repeats = [1] * len(pairs) if data.repeats is None else data.repeats.tolist()
        return Counter(dict(zip(pairs, repeats, strict=True)))

    ids = Vocabulary.of([0, 1, 2, 3])

    def read(some: list[tuple[int, int]]) -> Interactions:
        users, items = (np.array([row[side] for row in some], np.int64) for side in (0, 1))
        return Interactions.from_codes(users, items, user_ids=ids, item_ids=ids)

    whole = read(rows)
    assert counts(whole) == expected
    assert (whole.repeats is None) == (len(expected) == len(rows))
    joined = read(rows[:cut]).union(read(rows[cut:]))
    assert counts(joined) == expected
    assert counts(whole.compact().aligned_to(whole)[0]) == expected


@given(
    st.sets(st.tuples(st.integers(0, 5), st.integers(0, 6))),
    st.sets(st.tuples(st.integers(0, 5), st.integers(0, 6))),
)
def test_difference_as_that_of_sets(mine: set[tuple[int, int]], theirs: set[tuple[int, int]]) -> None:
    pairs = sorted(mine | theirs | {(6, 7)})  # never empty
    data = Interactions.from_ids([user for user, _ in pairs], [item for _, item in pairs])
    kept, others = (data.where(np.array([pair in part for pair in pairs])) for part in (mine, theirs))
    rows = kept.difference(others).to_polars().select("user_id", "item_id").rows()
    assert rows == sorted(mine - theirs)


def test_ids_of_another_type_are_matched_by_their_spelling() -> None:
    numbers = Interactions.from_ids([1, 2, 10], [7, 8, 7])
    strings = Interactions.from_ids(["1", "02", "x", "10"], ["7", "8", "7", "7"])
    aligned, dropped = strings.aligned_to(numbers)
    assert (aligned.to_polars().rows(), dropped) == ([(1, 7), (10, 7)], 2)
    aligned, dropped = numbers.aligned_to(strings)
    assert (aligned.to_polars().rows(), dropped) == ([("1", "7"), ("10", "7")], 1)
    empty, _ = numbers.where(np.zeros(3, bool)).compact().aligned_to(strings)
    assert len(empty) == 0
    with pytest.raises(
        DataError, match="memory: item ids are strings such as 'tea'; expected integers such as 7"
    ):
        Interactions.from_ids(["1"], ["tea"]).aligned_to(numbers)
