"""`Interactions`: users × items as an immutable sparse matrix with the caller's ids, and statistics of it.

`ItemRows` is such a matrix without ids.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray

from talos.checks import require
from talos.data.arrays import ROWS_AT_ONCE, Codes, sort_rows, take
from talos.data.vocabulary import IdColumn, Ids, Vocabulary, as_id_series
from talos.errors import DataError

if TYPE_CHECKING:
    import scipy.sparse

    from talos.data.splits import Split

__all__ = [
    "Description",
    "Interactions",
    "ItemRows",
    "Provenance",
    "Rows",
    "fingerprint_of",
    "gini",
    "titles_by_item",
    "values_in",
]


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Where interactions came from, and how many rows were dropped while reading them.

    Attributes:
        source: the path, URL, dataset or kind of frame.
        format: of the source.
        rows: read, bad ones included.
        duplicates: rows dropped because their (user, item) pair occurred before or after.
        bad_rows: rows skipped because a value could not be used.
        notes: remarks for people.
        guesses: which column was taken for what, in words; empty if the names are plain or were given.
        unused: the names of the columns that were not read.
    """

    source: str = "memory"
    format: str = "memory"
    rows: int = 0
    duplicates: int = 0
    bad_rows: int = 0
    notes: tuple[str, ...] = ()
    guesses: str = ""
    unused: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Rows:
    """Items of rows in CSR form: `indices[indptr[r]:indptr[r + 1]]` are those of row r."""

    indptr: NDArray[np.int64]  # (rows + 1,)
    indices: NDArray[Any]

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def num_users(self) -> int:
        """The number of rows, with items or not."""
        return len(self.indptr) - 1

    @cached_property
    def user_degrees(self) -> NDArray[np.int64]:
        """How many items each row has, (num_users,)."""
        return np.diff(self.indptr)

    def pairs_of(self, codes: NDArray[np.integer[Any]]) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """All items of some rows: for each, the position of its row in `codes`, and the item.

        >>> rows = ItemRows(np.array([0, 2, 3]), np.array([7, 8, 9]), num_items=10)
        >>> [column.tolist() for column in rows.pairs_of(np.array([1, 0]))]
        [[0, 1, 1], [9, 7, 8]]
        """
        counts = self.indptr[codes + 1] - self.indptr[codes]
        owner = np.repeat(np.arange(len(codes)), counts)
        shift = np.repeat(self.indptr[codes] - (np.cumsum(counts) - counts), counts)
        return owner, self.indices[np.arange(len(owner)) + shift]


@dataclass(frozen=True, eq=False, kw_only=True)
class Interactions(Rows):
    """Users × items as CSR, with the caller's ids; immutable.

    Row `u` holds `indices[indptr[u]:indptr[u+1]]`: the codes of the user's items, ascending and distinct.
    `timestamps` and `ratings`, where known, have one value for each of `indices`, and `item_titles` one for each
    item; `repeats` is the number of events that each pair stands for, None if every pair occurred once;
    `source_rows` is the row of the source that each pair was kept from, which orders equal times. Build one
    with `talos.read`, `Interactions.from_ids` or `Interactions.from_codes`; the constructor itself does not check
    its arguments.

    >>> data = Interactions.from_ids(["ann", "bob", "ann"], ["tea", "tea", "jam"])
    >>> data.num_users, data.num_items, len(data)
    (2, 2, 3)
    >>> data.items_of("ann").to_list()
    ['jam', 'tea']
    """

    user_ids: Vocabulary
    item_ids: Vocabulary
    timestamps: NDArray[Any] | None = None
    ratings: NDArray[np.float32] | None = None
    repeats: NDArray[np.int32] | None = None
    source_rows: NDArray[np.uint32] | None = None
    item_titles: pl.Series | None = None
    provenance: Provenance = field(default_factory=Provenance)

    def __post_init__(self) -> None:
        for array in (self.indptr, self.indices, *self._values_at(slice(None)).values()):
            if array is not None:
                array.flags.writeable = False

    # ---------------------------------------------------------------- building

    @classmethod
    def from_ids(
        cls,
        users: Ids,
        items: Ids,
        *,
        timestamps: NDArray[Any] | Sequence[float] | None = None,
        ratings: NDArray[Any] | Sequence[float] | None = None,
        titles: Ids | None = None,
        provenance: Provenance | None = None,
    ) -> Interactions:
        """From one row per event: user id, item id, and optionally timestamp, rating and the item's title.

        Ids are strings or integers, users and items each of one type. A pair that occurs more than once is kept
        once: its latest row, or the last one where timestamps are equal or absent. `repeats` counts the rows of each
        pair, `provenance.duplicates` those dropped.

        >>> Interactions.from_ids(["ann", "ann", "bob"], ["tea", "tea", "tea"]).repeats.tolist()
        [2, 1]
        """
        user_ids, user_codes = _codes_of(users, "users")
        item_ids, item_codes = _codes_of(items, "items")
        return cls.from_codes(
            user_codes,
            item_codes,
            user_ids=user_ids,
            item_ids=item_ids,
            timestamps=timestamps,
            ratings=ratings,
            item_titles=None if titles is None else titles_by_item(item_codes, len(item_ids), titles),
            provenance=provenance,
        )

    @classmethod
    def from_codes(
        cls,
        users: NDArray[np.integer[Any]],
        items: NDArray[np.integer[Any]],
        *,
        user_ids: Vocabulary,
        item_ids: Vocabulary,
        timestamps: NDArray[Any] | Sequence[float] | None = None,
        ratings: NDArray[Any] | Sequence[float] | None = None,
        repeats: NDArray[np.int32] | None = None,
        source_rows: NDArray[np.uint32] | None = None,
        item_titles: pl.Series | None = None,
        provenance: Provenance | None = None,
        in_place: bool = False,
    ) -> Interactions:
        """From codes, that is positions in the given vocabularies, in any order; duplicates as in `from_ids`.

        A row that stands for several events says so in `repeats`. `source_rows` numbers the rows where they are not in
        the order of the source. With `in_place` the result may be written over `users` and `items`, which saves memory.
        """
        stamps = None if timestamps is None else np.asarray(timestamps)
        stars = None if ratings is None else np.asarray(ratings, np.float32)
        for name, column in (
            ("users, items", items),
            ("timestamps", stamps),
            ("ratings", stars),
            ("repeats", repeats),
        ):
            count = len(users) if column is None else len(column)
            require(
                count == len(users), f"{count} values", where=name, expected=f"{len(users)}, one per user"
            )
        in_place = in_place and repeats is None  # they are added up by pair below
        kept = sort_rows(users, items, len(user_ids), len(item_ids), stamps, in_place=in_place)
        provenance = provenance or Provenance(rows=len(users))
        if repeats is not None:
            counts = np.ones(len(users), np.int32) if kept.repeats is None else kept.repeats
            first = np.cumsum(counts, dtype=np.int64) - counts
            repeats = np.add.reduceat(repeats[np.lexsort((items, users))], first, dtype=np.int32)
        return cls(
            indptr=kept.indptr,
            indices=kept.items,
            user_ids=user_ids,
            item_ids=item_ids,
            timestamps=None if stamps is None else take(stamps, kept.rows),
            ratings=None if stars is None else take(stars, kept.rows),
            repeats=kept.repeats if repeats is None else repeats,
            source_rows=kept.rows if source_rows is None else take(source_rows, kept.rows),
            item_titles=item_titles,
            provenance=replace(provenance, duplicates=provenance.duplicates + len(users) - len(kept.items)),
        )

    # ----------------------------------------------------------------- reading

    @property
    def num_items(self) -> int:
        """Items in the vocabulary, with interactions or not."""
        return len(self.item_ids)

    @cached_property
    def item_degrees(self) -> NDArray[np.int64]:
        """Interactions per item, (num_items,)."""
        return np.bincount(self.indices, minlength=self.num_items)

    @cached_property
    def active_users(self) -> int:
        """Users with at least one interaction."""
        return int((self.user_degrees > 0).sum())

    @cached_property
    def rows(self) -> Codes:
        """The user's code of each interaction, (len(self),)."""
        return np.repeat(np.arange(self.num_users, dtype=np.int32), self.user_degrees)

    def items_of(self, user: str | int) -> pl.Series:
        """The ids of one user's items; an unknown user is an error.

        >>> Interactions.from_ids([5, 5, 7], ["tea", "jam", "tea"]).items_of("5").to_list()
        ['jam', 'tea']
        """
        code = self.user_ids.encode([user])[0]
        require(code >= 0, f"no user {user!r}", where="user", expected=f"one of {self.num_users:,} users")
        return self.item_ids.decode(self.indices[self.indptr[code] : self.indptr[code + 1]])

    def user_range(self, users: range) -> Interactions:
        """The rows of consecutive users as a matrix of their own; its arrays share memory with this one's.

        >>> Interactions.from_ids([1, 1, 2], [7, 8, 8]).user_range(range(1, 2)).to_polars().rows()
        [(2, 8)]
        """
        if users == range(self.num_users):
            return self
        edges = slice(int(self.indptr[users.start]), int(self.indptr[users.stop]))
        return replace(
            self,
            indptr=self.indptr[users.start : users.stop + 1] - self.indptr[users.start],
            indices=self.indices[edges],
            user_ids=Vocabulary(self.user_ids.ids[users.start : users.stop]),
            **self._values_at(edges),
        )

    def where(self, keep: NDArray[np.bool_]) -> Interactions:
        """The interactions whose flag in `keep` (len(self),) is true; the vocabularies stay."""
        degrees = np.bincount(self.rows[keep], minlength=self.num_users)
        indptr = np.concatenate([[0], np.cumsum(degrees)])
        return replace(self, indptr=indptr, indices=self.indices[keep], **self._values_at(keep))

    def of_users_in(self, other: Interactions) -> Interactions:
        """Keep the interactions of users who have some in `other`, which has the same vocabularies.

        >>> data = Interactions.from_ids([1, 1, 2], [7, 8, 8])
        >>> len(data.of_users_in(data.where(data.rows == 0)))
        2
        """
        return self.where(other.user_degrees[self.rows] > 0)

    def _values_at(self, where: slice | NDArray[np.bool_]) -> dict[str, Any]:
        """The values beside each of some interactions, as arguments of the constructor."""
        columns = {name: getattr(self, name) for name in ("timestamps", "ratings", "repeats", "source_rows")}
        return {name: None if column is None else column[where] for name, column in columns.items()}

    def in_time_order(self) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The positions of all interactions, those of each user in order of time, and which are ties.

        Equal times keep the order of the source; without timestamps the order of the source is that of time. A tie is
        an interaction at the same time as the one before it of the same user.

        >>> data = Interactions.from_ids([1, 1, 1], ["c", "b", "a"], timestamps=[5, 7, 7])
        >>> order, ties = data.in_time_order()
        >>> data.item_ids.decode(data.indices[order]).to_list(), ties.tolist()
        (['c', 'b', 'a'], [False, False, True])
        """
        rows = np.arange(len(self)) if self.source_rows is None else self.source_rows
        stamps = rows if self.timestamps is None else self.timestamps
        order = np.lexsort((rows, stamps, self.rows))
        ties = np.zeros(len(self), bool)
        ties[1:] = (stamps[order[1:]] == stamps[order[:-1]]) & (self.rows[order[1:]] == self.rows[order[:-1]])
        return order, ties

    def compact(self) -> Interactions:
        """The same interactions over vocabularies without the users and items that have none."""
        users = np.flatnonzero(self.user_degrees)
        items = np.flatnonzero(self.item_degrees)
        position = np.cumsum(self.item_degrees > 0, dtype=np.int32) - np.int32(1)
        return replace(
            self,
            indptr=np.concatenate([[0], np.cumsum(self.user_degrees[users])]),
            indices=position[self.indices],
            user_ids=Vocabulary(self.user_ids.decode(users)),
            item_ids=Vocabulary(self.item_ids.decode(items)),
            item_titles=None if self.item_titles is None else self.item_titles.gather(items),
        )

    def with_titles(self, titles: pl.Series) -> Interactions:
        """The same interactions with titles, one for each item of `item_ids` in its order."""
        require(
            len(titles) == self.num_items,
            f"{len(titles)} titles",
            where="titles",
            expected=f"{self.num_items}, one per item",
        )
        return replace(self, item_titles=titles)

    def aligned_to(self, other: Interactions) -> tuple[Interactions, int]:
        """The same interactions over the vocabularies of `other`, and how many were dropped for an id not in them.

        If ids are strings in one and integers in the other, an integer equals the string it is printed as.

        Raises:
            DataError: ids are of different types, and none of them is known.

        >>> model = Interactions.from_ids(["a", "b"], ["x", "y"])
        >>> test = Interactions.from_ids(["b", "c"], ["x", "x"])
        >>> aligned, dropped = test.aligned_to(model)
        >>> aligned.to_polars().rows(), dropped
        ([('b', 'x')], 1)
        """
        if self.user_ids == other.user_ids and self.item_ids == other.item_ids:
            return self, 0
        users = self._known("user", self.user_ids, other.user_ids)[self.rows]
        items = self._known("item", self.item_ids, other.item_ids)[self.indices]
        known = (users >= 0) & (items >= 0)
        aligned = Interactions.from_codes(
            users[known],
            items[known],
            user_ids=other.user_ids,
            item_ids=other.item_ids,
            **self._values_at(known),
            item_titles=other.item_titles,
            provenance=self.provenance,
        )
        return aligned, int((~known).sum())

    def _known(self, role: str, mine: Vocabulary, others: Vocabulary) -> NDArray[np.int64]:
        """The position in another vocabulary of each id of one of this object's; see `aligned_to`."""
        codes = others.encode(mine.ids)
        if mine.ids.dtype != others.ids.dtype and len(mine) and len(others) and not (codes >= 0).any():
            what, expected = (
                f"{'strings' if one.ids.dtype == pl.String else 'integers'} such as {one.ids[0]!r}"
                for one in (mine, others)
            )
            raise DataError(f"{role} ids are {what}", where=self.provenance.source, expected=expected)
        return codes

    def union(self, other: Interactions) -> Interactions:
        """The interactions of both, which must share vocabularies; timestamps and ratings if both have them.

        A pair that both have stands for the events of both.
        """
        require(
            self.user_ids == other.user_ids and self.item_ids == other.item_ids,
            "other users or items",
            where="other",
            expected="the same vocabularies",
        )

        def both(mine: NDArray[Any] | None, theirs: NDArray[Any] | None) -> NDArray[Any] | None:
            return None if mine is None or theirs is None else np.concatenate([mine, theirs])

        counts = [
            np.ones(len(one), np.int32) if one.repeats is None else one.repeats for one in (self, other)
        ]
        after = other.source_rows  # the rows of the other come later
        if self.source_rows is not None and after is not None:
            after = after + self.source_rows.max(initial=0) + np.uint32(1)
        return Interactions.from_codes(
            np.concatenate([self.rows, other.rows]),
            np.concatenate([self.indices, other.indices]),
            user_ids=self.user_ids,
            item_ids=self.item_ids,
            timestamps=both(self.timestamps, other.timestamps),
            ratings=both(self.ratings, other.ratings),
            repeats=None if self.repeats is None and other.repeats is None else np.concatenate(counts),
            source_rows=both(self.source_rows, after),
            item_titles=self.item_titles,
            provenance=self.provenance,
        )

    def difference(self, other: Interactions) -> Interactions:
        """The interactions that `other` does not have; both must share vocabularies.

        >>> data = Interactions.from_ids([1, 1, 2], [7, 8, 8])
        >>> data.difference(data.where(np.array([True, False, True]))).to_polars().rows()
        [(1, 8)]
        """
        require(
            self.user_ids == other.user_ids and self.item_ids == other.item_ids,
            "other users or items",
            where="other",
            expected="the same vocabularies",
        )
        # of `other` only the users that are here: it may be a thousand times as large
        users = np.flatnonzero(self.user_degrees)
        owner, items = other.pairs_of(users)
        theirs = users[owner] * np.int64(self.num_items) + items
        mine = self.rows * np.int64(self.num_items) + self.indices
        return self.where(~np.isin(mine, theirs, assume_unique=True))

    # -------------------------------------------------------------- converting

    def to_scipy(self) -> scipy.sparse.csr_array:
        """A `scipy.sparse.csr_array` of ones that shares the index arrays of this object."""
        import scipy.sparse

        ones = np.ones(len(self), np.float32)
        return scipy.sparse.csr_array(
            (ones, self.indices, self.indptr), shape=(self.num_users, self.num_items)
        )

    def to_polars(self) -> pl.DataFrame:
        """One row per interaction: user_id, item_id and, where known, timestamp and rating."""
        return self.to_frame(
            user_id=self.user_ids.decode(self.rows), item_id=self.item_ids.decode(self.indices)
        )

    def to_frame(self, **columns: pl.Series | NDArray[Any]) -> pl.DataFrame:
        """These columns, one value per interaction, and where known timestamp and rating."""
        values = {"timestamp": self.timestamps, "rating": self.ratings}
        return pl.DataFrame(columns | {name: column for name, column in values.items() if column is not None})

    def fingerprint(self) -> str:
        """A hash of the pairs and their ids, the same on every machine; timestamps, ratings and titles do not count.

        >>> data = Interactions.from_ids([1, 1], [7, 8])
        >>> data.fingerprint() == Interactions.from_ids([1, 1], [8, 7]).fingerprint()
        True
        """
        return fingerprint_of(self.indptr, [self.indices], self.user_ids, self.item_ids)

    def split(self, **options: Any) -> Split:
        """Divide into train, validation and test; `options` are those of `talos.data.splits.split`."""
        from talos.data.splits import split

        return split(self, **options)

    def describe(self) -> Description:
        """Counts, density, degree quantiles, popularity skew and time span.

        Users and items without any interaction here do not count.

        >>> print(Interactions.from_ids([1, 1, 2], [7, 8, 8]).describe())
        users                      2
        items                      2
        interactions               3
        density                    75.0000%
        ...
        """
        users = self.user_degrees[self.user_degrees > 0]
        items = np.sort(self.item_degrees[self.item_degrees > 0])
        stamps = self.timestamps if len(self) else None
        return Description(
            source=self.provenance.source,
            users=len(users),
            items=len(items),
            interactions=len(self),
            density=len(self) / max(1, len(users) * len(items)),
            per_user=_quantiles(users),
            per_item=_quantiles(items),
            popularity_gini=gini(items),
            top_1pct_share=float(items[-max(1, len(items) // 100) :].sum() / max(1, len(self))),
            first_timestamp=None if stamps is None else stamps.min().item(),
            last_timestamp=None if stamps is None else stamps.max().item(),
            duplicates=self.provenance.duplicates,
            bad_rows=self.provenance.bad_rows,
            notes=list(self.provenance.notes),
        )

    def __repr__(self) -> str:
        extras = [
            name
            for name in ("timestamps", "ratings", "repeats", "item_titles")
            if getattr(self, name) is not None
        ]
        with_extras = f", with {', '.join(extras)}" if extras else ""
        return f"Interactions({self.num_users:,} users × {self.num_items:,} items, {len(self):,} pairs{with_extras})"


@dataclass(frozen=True, eq=False)
class ItemRows(Rows):
    """The items of each of some rows: what a list is made from, or what it may not offer.

    >>> rows = ItemRows.of(np.array([1, 0, 1]), np.array([7, 8, 9]), num_rows=2, num_items=10)
    >>> [part.tolist() for part in rows.pairs_of(np.array([1]))]
    [[0, 0], [7, 9]]
    """

    num_items: int

    @classmethod
    def of(
        cls,
        owner: NDArray[np.integer[Any]],
        items: NDArray[np.integer[Any]],
        *,
        num_rows: int,
        num_items: int,
    ) -> Self:
        """The rows of pairs (owner, item), which may be in any order."""
        order = np.argsort(owner, kind="stable")
        counts = np.bincount(owner, minlength=num_rows)
        return cls(np.concatenate([[0], np.cumsum(counts)]), np.asarray(items, np.int64)[order], num_items)

    def user_range(self, rows: range) -> Self:
        """Consecutive rows, as rows of their own."""
        ends = self.indptr[rows.start : rows.stop + 1]
        return type(self)(ends - ends[0], self.indices[ends[0] : ends[-1]], self.num_items)


class Description(dict[str, Any]):
    """What `Interactions.describe` returns: plain values by name, ready for JSON; `str()` is a table for people."""

    def rows(self) -> list[tuple[str, str]]:
        """Label and value of each line of a table."""
        per_user, per_item = (
            "  ".join(f"{name} {value:g}" for name, value in self[of].items())
            for of in ("per_user", "per_item")
        )
        first, last = self["first_timestamp"], self["last_timestamp"]
        lines = [
            ("users", f"{self['users']:,}"),
            ("items", f"{self['items']:,}"),
            ("interactions", f"{self['interactions']:,}"),
            ("density", f"{self['density']:.4%}"),
            ("interactions per user", per_user),
            ("interactions per item", per_item),
            ("popularity Gini", f"{self['popularity_gini']:.3f}"),
            ("share of the top 1% items", f"{self['top_1pct_share']:.1%}"),
            ("time span", "" if first is None else f"{_when(first)} to {_when(last)}"),
            ("duplicated pairs collapsed", self["duplicates"] and f"{self['duplicates']:,}"),
            ("bad rows skipped", self["bad_rows"] and f"{self['bad_rows']:,}"),
            *(("note", note) for note in self["notes"]),
        ]
        return [(label, text) for label, text in lines if text]

    def __str__(self) -> str:
        rows = self.rows()
        width = max(len(label) for label, _ in rows)
        return "\n".join(f"{label:<{width}}  {text}" for label, text in rows)


def gini(counts: NDArray[Any]) -> float:
    """Gini coefficient of non-negative counts: 0 if all are equal, close to 1 if one has nearly everything.

    >>> gini(np.array([1, 1, 1, 1]))
    0.0
    >>> gini(np.array([0, 0, 0, 8]))
    0.75
    """
    ascending, n = np.sort(counts), len(counts)
    weights = 2 * np.arange(1, n + 1) - n - 1
    return max(0.0, float((weights * ascending).sum()) / (n * float(ascending.sum()) or 1.0))


def _quantiles(degrees: NDArray[Any]) -> dict[str, float]:
    """Minimum, quartiles, maximum and mean; empty if there are no counts."""
    if len(degrees) == 0:
        return {}
    shares = {"min": 0, "q1": 0.25, "median": 0.5, "q3": 0.75, "max": 1}
    quantiles = dict(zip(shares, np.quantile(degrees, [*shares.values()]).tolist(), strict=True))
    return {**quantiles, "mean": round(float(degrees.mean()), 2)}


def _when(timestamp: float) -> str:
    """A date if the number can be seconds, milliseconds or microseconds since 1970, else the number itself."""
    for scale in (1, 1000, 1_000_000):
        seconds = timestamp / scale
        if 0 <= seconds < 4_102_444_800:  # before the year 2100
            return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")
    return f"{timestamp:g}"


def _codes_of(ids: Ids, name: str) -> tuple[Vocabulary, Codes]:
    column = IdColumn(name)
    column.add(as_id_series(ids, name))
    return column.finish()


def fingerprint_of(
    indptr: NDArray[np.int64], indices: Iterable[NDArray[Any]], *vocabularies: Vocabulary
) -> str:
    """`Interactions.fingerprint` of interactions whose items come in blocks.

    It is the same for any division into blocks, on any machine, in any version of polars, which has hashes of its own
    that other versions and processors compute differently.

    >>> start, items = np.array([0, 1, 2]), [np.array([0, 1], np.int32)]
    >>> one, other = Vocabulary(pl.Series(["ab", "c"])), Vocabulary(pl.Series(["a", "bc"]))
    >>> fingerprint_of(start, items, one) == fingerprint_of(start, items, other)
    False
    """
    digest = hashlib.blake2b(digest_size=16)
    for array in chain([indptr], indices):
        digest.update(np.ascontiguousarray(array).data)
    for ids in (vocabulary.ids for vocabulary in vocabularies):
        digest.update(str(ids.dtype).encode())
        lengths = hashlib.blake2b()  # without them "ab", "c" would be "a", "bc"
        for start in range(0, len(ids), ROWS_AT_ONCE):  # the text of all ids would take too much memory
            block = ids[start : start + ROWS_AT_ONCE]
            if ids.dtype == pl.String:
                digest.update("".join(block.to_list()).encode())
                lengths.update(block.str.len_bytes().cast(pl.Int64).to_numpy().tobytes())
            else:
                digest.update(np.ascontiguousarray(block.to_numpy()).data)
        digest.update(lengths.digest())
    return digest.hexdigest()


def titles_by_item(item_codes: Codes, num_items: int, titles: Ids) -> pl.Series:
    """The title of each item, taken from the item's last row."""
    column = pl.Series("title", titles).cast(pl.String)
    row_of_item = np.zeros(num_items, np.int64)
    row_of_item[item_codes] = np.arange(len(item_codes))
    return column.gather(row_of_item)


def values_in(frame: pl.DataFrame) -> dict[str, Any]:
    """The timestamps and ratings of a table, None where it has no such column, as arguments of `Interactions`."""
    names = {"timestamps": "timestamp", "ratings": "rating"}
    return {name: frame[of].to_numpy() if of in frame.columns else None for name, of in names.items()}
