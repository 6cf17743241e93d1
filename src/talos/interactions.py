"""Who interacted with what: the one data structure that everything else in Talos reads.

`Interactions` is an immutable sparse matrix of users × items (CSR) together with the caller's own ids.
Positions ("codes") are internal; ids go in and ids come out.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from talos.errors import ArgumentError, DataError

if TYPE_CHECKING:
    import scipy.sparse

    from talos.splits import Split

__all__ = ["Description", "Interactions", "Provenance", "Vocabulary"]

Codes: TypeAlias = NDArray[np.int32]
Ids: TypeAlias = pl.Series | Sequence[str] | Sequence[int] | Sequence[str | int] | NDArray[Any]


class Vocabulary:
    """The caller's ids, each with a position; sorted, so that the same ids always get the same positions.

    Args:
        ids: distinct, ascending ids, all strings or all integers.

    >>> animals = Vocabulary.of(["dog", "cat", "dog"])
    >>> animals.ids.to_list()
    ['cat', 'dog']
    >>> animals.encode(["dog", "bird"]).tolist()
    [1, -1]
    >>> animals.decode([1, 0]).to_list()
    ['dog', 'cat']
    """

    __slots__ = ("ids",)

    def __init__(self, ids: pl.Series) -> None:
        self.ids = ids

    @classmethod
    def of(cls, ids: Ids) -> Vocabulary:
        """The vocabulary of all distinct values of `ids`."""
        return cls(_as_id_series(ids, "ids").unique().sort())

    @classmethod
    def encoding(cls, ids: pl.Series) -> tuple[Vocabulary, Codes]:
        """A vocabulary and the positions of `ids` in it, in one go: much faster than `of` then `encode`."""
        ids = _as_id_series(ids, ids.name or "ids")
        if ids.dtype == pl.String:
            distinct = ids.unique().sort()
            # An Enum cast is polars' quickest way from strings to positions in a given order.
            return cls(distinct), ids.cast(pl.Enum(distinct)).to_physical().cast(pl.Int32).to_numpy()
        if len(ids) == 0:
            return cls(ids), np.empty(0, np.int32)
        low, high = (int(bound) for bound in (ids.min(), ids.max()))  # type: ignore[arg-type]  # integers, not empty
        width = high - low + 1
        if width > max(4 * len(ids), 1 << 16):
            distinct_values, places = np.unique(ids.to_numpy(), return_inverse=True)
            return cls(pl.Series(distinct_values)), places.astype(np.int32)
        # Ids in a narrow range: a table look-up instead of sorting or hashing, chunk by chunk as polars
        # holds them, because joining the chunks first would cost as much again.
        chunks = [chunk.to_numpy() for chunk in ids.get_chunks()]
        starts = np.cumsum([0, *map(len, chunks)])
        present = np.zeros(width, bool)

        def mark(i: int) -> None:
            present[chunks[i] - low if low else chunks[i]] = True

        _in_threads(mark, range(len(chunks)))
        position = np.cumsum(present, dtype=np.int32)
        position -= 1
        codes = np.empty(len(ids), np.int32)

        def look_up(i: int) -> None:
            # every offset is in range; numpy's default of raising would go through a second buffer
            part = codes[starts[i] : starts[i + 1]]
            np.take(position, chunks[i] - low if low else chunks[i], out=part, mode="clip")

        _in_threads(look_up, range(len(chunks)))
        return cls(pl.Series(np.flatnonzero(present).astype(np.int64) + low)), codes

    def __len__(self) -> int:
        return len(self.ids)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Vocabulary) and self.ids.dtype == other.ids.dtype and self.ids.equals(other.ids)
        )

    __hash__ = None  # type: ignore[assignment]  # equality is by content and the content is large

    def __repr__(self) -> str:
        kind = "strings" if self.ids.dtype == pl.String else "integers"
        return f"Vocabulary({len(self)} {kind})"

    def encode(self, ids: Ids) -> NDArray[np.int64]:
        """Positions of `ids`; -1 for those that are not in the vocabulary (also when their type differs)."""
        wanted = _as_id_series(ids, "ids")
        if len(self) == 0 or len(wanted) == 0 or wanted.dtype != self.ids.dtype:
            return np.full(len(wanted), -1, np.int64)
        places = np.minimum(np.asarray(self.ids.search_sorted(wanted), np.int64), len(self) - 1)
        found = (self.ids.gather(places) == wanted).to_numpy()
        return np.where(found, places, -1)

    def decode(self, codes: NDArray[np.integer[Any]] | Sequence[int]) -> pl.Series:
        """The ids at the given positions."""
        return self.ids.gather(np.asarray(codes, np.int64))


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Where interactions came from and what was done to the rows on the way."""

    source: str = "memory"
    format: str = "memory"
    rows: int = 0
    duplicates: int = 0
    bad_rows: int = 0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Description:
    """What `Interactions.describe` found; `as_dict` for JSON, `str` for people."""

    source: str
    users: int
    items: int
    interactions: int
    density: float
    per_user: dict[str, float]
    per_item: dict[str, float]
    popularity_gini: float
    top_1pct_share: float
    first_timestamp: float | None
    last_timestamp: float | None
    duplicates: int
    bad_rows: int
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in vars(self).items()}

    def rows(self) -> list[tuple[str, str]]:
        """Label and text of each line, for a table."""

        def quantiles(of: dict[str, float]) -> str:
            return "  ".join(f"{name} {value:g}" for name, value in of.items())

        lines = [
            ("users", f"{self.users:,}"),
            ("items", f"{self.items:,}"),
            ("interactions", f"{self.interactions:,}"),
            ("density", f"{self.density:.4%}"),
            ("interactions per user", quantiles(self.per_user)),
            ("interactions per item", quantiles(self.per_item)),
            ("popularity Gini", f"{self.popularity_gini:.3f}"),
            ("share of the top 1% items", f"{self.top_1pct_share:.1%}"),
        ]
        if self.first_timestamp is not None and self.last_timestamp is not None:
            lines.append(("time span", f"{_when(self.first_timestamp)} to {_when(self.last_timestamp)}"))
        if self.duplicates:
            lines.append(("duplicated pairs collapsed", f"{self.duplicates:,}"))
        if self.bad_rows:
            lines.append(("bad rows skipped", f"{self.bad_rows:,}"))
        return lines + [("note", note) for note in self.notes]

    def __str__(self) -> str:
        rows = self.rows()
        width = max(len(label) for label, _ in rows)
        return "\n".join(f"{label:<{width}}  {text}" for label, text in rows)


@dataclass(frozen=True, eq=False, kw_only=True)
class Interactions:
    """Users × items as CSR, with the caller's ids; immutable.

    Row `u` holds `indices[indptr[u]:indptr[u+1]]`: the codes of the user's items, ascending and distinct.
    `timestamps` and `ratings`, where known, stand beside `indices`. Build one with `talos.read`,
    `Interactions.from_ids` or `Interactions.from_codes`; the constructor itself trusts its arguments.

    >>> data = Interactions.from_ids(["ann", "bob", "ann"], ["tea", "tea", "jam"])
    >>> data.num_users, data.num_items, len(data)
    (2, 2, 3)
    >>> data.items_of("ann").to_list()
    ['jam', 'tea']
    """

    indptr: NDArray[np.int64]
    indices: Codes
    user_ids: Vocabulary
    item_ids: Vocabulary
    timestamps: NDArray[Any] | None = None
    ratings: NDArray[np.float32] | None = None
    item_titles: pl.Series | None = None
    provenance: Provenance = field(default_factory=Provenance)

    def __post_init__(self) -> None:
        for array in (self.indptr, self.indices, self.timestamps, self.ratings):
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
        """From one row per event: ids of any one type a side, optional timestamp, rating and item title.

        A pair that occurs more than once is kept once, with its latest timestamp (the last row, where there
        are no timestamps or several share the latest); how many rows went is in `provenance.duplicates`.
        """
        user_ids, user_codes = Vocabulary.encoding(_as_id_series(users, "users"))
        item_ids, item_codes = Vocabulary.encoding(_as_id_series(items, "items"))
        return cls.from_codes(
            user_codes,
            item_codes,
            user_ids=user_ids,
            item_ids=item_ids,
            timestamps=timestamps,
            ratings=ratings,
            item_titles=None if titles is None else _titles_by_item(item_codes, len(item_ids), titles),
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
        item_titles: pl.Series | None = None,
        provenance: Provenance | None = None,
    ) -> Interactions:
        """From positions in given vocabularies, in any order; duplicates are collapsed as in `from_ids`."""
        if len(users) != len(items):
            raise ArgumentError(
                f"{len(users)} users and {len(items)} items", where="users, items", expected="the same length"
            )
        stamps = None if timestamps is None else np.asarray(timestamps)
        stars = None if ratings is None else np.asarray(ratings, np.float32)
        for name, column in (("timestamps", stamps), ("ratings", stars)):
            if column is not None and len(column) != len(users):
                raise ArgumentError(f"{len(column)} values", where=name, expected=f"{len(users)}, one a row")
        kept = _sorted_rows(users, items, len(user_ids), len(item_ids), stamps)
        provenance = provenance or Provenance(rows=len(users))
        return cls(
            indptr=kept.indptr,
            indices=kept.items,
            user_ids=user_ids,
            item_ids=item_ids,
            timestamps=None if stamps is None else stamps[kept.rows],
            ratings=None if stars is None else stars[kept.rows],
            item_titles=item_titles,
            provenance=replace(provenance, duplicates=provenance.duplicates + len(users) - len(kept.items)),
        )

    # ----------------------------------------------------------------- reading

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def num_users(self) -> int:
        """Number of users in the vocabulary, active here or not."""
        return len(self.user_ids)

    @property
    def num_items(self) -> int:
        """Number of items in the vocabulary, active here or not."""
        return len(self.item_ids)

    @cached_property
    def user_degrees(self) -> NDArray[np.int64]:
        """Interactions per user, (num_users,)."""
        return np.diff(self.indptr)

    @cached_property
    def item_degrees(self) -> NDArray[np.int64]:
        """Interactions per item, (num_items,): popularity."""
        return np.bincount(self.indices, minlength=self.num_items)

    @cached_property
    def rows(self) -> Codes:
        """The user code of each interaction, beside `indices`."""
        return np.repeat(np.arange(self.num_users, dtype=np.int32), self.user_degrees)

    def items_of(self, user: str | int) -> pl.Series:
        """The ids of one user's items; an unknown user is an error."""
        code = self.user_ids.encode([user])[0]
        if code < 0:
            raise ArgumentError(
                f"no user {user!r}", where="user", expected=f"one of {self.num_users:,} users"
            )
        return self.item_ids.decode(self.indices[self.indptr[code] : self.indptr[code + 1]])

    def users(self, ids: Ids) -> Interactions:
        """The interactions of these users alone; vocabularies stay, so positions keep their meaning."""
        codes = self.user_ids.encode(ids)
        if (codes < 0).any():
            missing = _as_id_series(ids, "ids").filter(pl.Series(codes < 0)).to_list()
            raise ArgumentError(f"no user {missing[0]!r}", where="ids", expected="ids of known users")
        chosen = np.zeros(self.num_users, bool)
        chosen[codes] = True
        return self.where(np.repeat(chosen, self.user_degrees))

    def pairs_of(self, codes: NDArray[np.integer[Any]]) -> tuple[NDArray[np.int64], Codes]:
        """All interactions of some users: for each, its user's place in `codes`, and the item.

        >>> data = Interactions.from_ids([1, 1, 2], [7, 8, 8])
        >>> [column.tolist() for column in data.pairs_of(np.array([1, 0]))]
        [[0, 1, 1], [1, 0, 1]]
        """
        starts, degrees = self.indptr[codes], self.user_degrees[codes]
        owner = np.repeat(np.arange(len(codes)), degrees)
        shift = np.repeat(starts - (np.cumsum(degrees) - degrees), degrees)
        return owner, self.indices[np.arange(len(owner)) + shift]

    def where(self, keep: NDArray[np.bool_]) -> Interactions:
        """The interactions at which `keep` (one flag an interaction) is true; vocabularies stay."""
        counts = np.zeros(self.num_users + 1, np.int64)
        np.cumsum(np.bincount(self.rows[keep], minlength=self.num_users), out=counts[1:])
        return replace(
            self,
            indptr=counts,
            indices=self.indices[keep],
            timestamps=None if self.timestamps is None else self.timestamps[keep],
            ratings=None if self.ratings is None else self.ratings[keep],
        )

    def compact(self) -> Interactions:
        """The same interactions with users and items that have none left out of the vocabularies."""
        users = np.flatnonzero(self.user_degrees)
        items = np.flatnonzero(self.item_degrees)
        position = np.full(self.num_items, -1, np.int32)
        position[items] = np.arange(len(items), dtype=np.int32)
        return replace(
            self,
            indptr=np.concatenate([[0], np.cumsum(self.user_degrees[users])]).astype(np.int64),
            indices=position[self.indices],
            user_ids=Vocabulary(self.user_ids.decode(users)),
            item_ids=Vocabulary(self.item_ids.decode(items)),
            item_titles=None if self.item_titles is None else self.item_titles.gather(items),
        )

    def with_titles(self, titles: pl.Series) -> Interactions:
        """The same interactions with one title an item, in the order of `item_ids`."""
        if len(titles) != self.num_items:
            raise ArgumentError(
                f"{len(titles)} titles", where="titles", expected=f"{self.num_items}, one an item"
            )
        return replace(self, item_titles=titles)

    def aligned_to(self, other: Interactions) -> tuple[Interactions, int]:
        """The same interactions over the vocabularies of `other`, and how many were lost because it lacks an id.

        >>> model = Interactions.from_ids(["a", "b"], ["x", "y"])
        >>> test = Interactions.from_ids(["b", "c"], ["x", "x"])
        >>> aligned, lost = test.aligned_to(model)
        >>> aligned.to_polars().rows(), lost
        ([('b', 'x')], 1)
        """
        if self.user_ids == other.user_ids and self.item_ids == other.item_ids:
            return self, 0
        users, items = other.user_ids.encode(self.user_ids.ids), other.item_ids.encode(self.item_ids.ids)
        users, items = users[self.rows], items[self.indices]
        known = (users >= 0) & (items >= 0)
        aligned = Interactions.from_codes(
            users[known],
            items[known],
            user_ids=other.user_ids,
            item_ids=other.item_ids,
            timestamps=None if self.timestamps is None else self.timestamps[known],
            ratings=None if self.ratings is None else self.ratings[known],
            item_titles=other.item_titles,
            provenance=self.provenance,
        )
        return aligned, int((~known).sum())

    def union(self, other: Interactions) -> Interactions:
        """Both sets of interactions over the same vocabularies; timestamps stay where both have them."""
        if self.user_ids != other.user_ids or self.item_ids != other.item_ids:
            raise ArgumentError("other users or items", where="other", expected="the same vocabularies")

        def both(mine: NDArray[Any] | None, theirs: NDArray[Any] | None) -> NDArray[Any] | None:
            return None if mine is None or theirs is None else np.concatenate([mine, theirs])

        return Interactions.from_codes(
            np.concatenate([self.rows, other.rows]),
            np.concatenate([self.indices, other.indices]),
            user_ids=self.user_ids,
            item_ids=self.item_ids,
            timestamps=both(self.timestamps, other.timestamps),
            ratings=both(self.ratings, other.ratings),
            item_titles=self.item_titles,
            provenance=self.provenance,
        )

    # -------------------------------------------------------------- converting

    def to_scipy(self) -> scipy.sparse.csr_array:
        """A `scipy.sparse.csr_array` of ones, sharing this object's index arrays."""
        import scipy.sparse

        ones = np.ones(len(self), np.float32)
        return scipy.sparse.csr_array(
            (ones, self.indices, self.indptr), shape=(self.num_users, self.num_items)
        )

    def to_polars(self) -> pl.DataFrame:
        """One row an interaction: user_id, item_id and, where known, timestamp and rating."""
        columns: dict[str, Any] = {
            "user_id": self.user_ids.decode(self.rows),
            "item_id": self.item_ids.decode(self.indices),
        }
        if self.timestamps is not None:
            columns["timestamp"] = self.timestamps
        if self.ratings is not None:
            columns["rating"] = self.ratings
        return pl.DataFrame(columns)

    def fingerprint(self) -> str:
        """A short hash of who interacted with what, ids included; equal data give equal hashes.

        >>> data = Interactions.from_ids([1, 1], [7, 8])
        >>> data.fingerprint() == Interactions.from_ids([1, 1], [8, 7]).fingerprint()
        True
        """
        digest = hashlib.blake2b(digest_size=16)
        for array in (self.indptr, self.indices):
            digest.update(np.ascontiguousarray(array).data)
        for ids in (self.user_ids.ids, self.item_ids.ids):
            digest.update(str(ids.dtype).encode())
            digest.update(np.ascontiguousarray(ids.hash(seed=0).to_numpy()).data)
        return digest.hexdigest()

    def split(self, **options: Any) -> Split:
        """Divide into train, validation and test: see `talos.splits.split` for the options."""
        from talos.splits import split

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
        cells = len(users) * len(items)
        stamps = self.timestamps
        dated = stamps is not None and len(stamps) > 0
        return Description(
            source=self.provenance.source,
            users=len(users),
            items=len(items),
            interactions=len(self),
            density=len(self) / cells if cells else 0.0,
            per_user=_quantiles(users),
            per_item=_quantiles(items),
            popularity_gini=gini(items),
            top_1pct_share=float(items[-max(1, len(items) // 100) :].sum() / max(1, len(self))),
            first_timestamp=stamps.min().item() if stamps is not None and dated else None,
            last_timestamp=stamps.max().item() if stamps is not None and dated else None,
            duplicates=self.provenance.duplicates,
            bad_rows=self.provenance.bad_rows,
            notes=self.provenance.notes,
        )

    def __repr__(self) -> str:
        extras = [
            name for name in ("timestamps", "ratings", "item_titles") if getattr(self, name) is not None
        ]
        with_extras = f", with {', '.join(extras)}" if extras else ""
        size = f"{self.num_users:,} users × {self.num_items:,} items, {len(self):,} pairs"
        return f"Interactions({size}{with_extras})"


def gini(counts: NDArray[Any]) -> float:
    """Gini coefficient of non-negative counts: 0 if all are equal, towards 1 if one has everything.

    >>> gini(np.array([1, 1, 1, 1]))
    0.0
    >>> gini(np.array([0, 0, 0, 8]))
    0.75
    """
    ascending = np.sort(counts)
    total = float(ascending.sum())
    if total == 0:
        return 0.0
    n = len(ascending)
    weights = 2 * np.arange(1, n + 1) - n - 1
    return max(0.0, float((weights * ascending).sum() / (n * total)))


@dataclass(frozen=True)
class _SortedRows:
    indptr: NDArray[np.int64]
    items: Codes
    rows: NDArray[np.int64]  # which input row each kept interaction comes from


# Rows handled at a time while packing and unpacking: small enough to stay in a core's cache, because for
# tens of millions of rows fresh memory costs more than the arithmetic.
_BLOCK = 1 << 17


def _sorted_rows(
    users: NDArray[np.integer[Any]],
    items: NDArray[np.integer[Any]],
    num_users: int,
    num_items: int,
    timestamps: NDArray[Any] | None,
) -> _SortedRows:
    """Sort rows by (user, item) and keep the latest row of each pair.

    User, item and row number are packed into one unsigned integer where they fit, because sorting plain
    integers is several times faster than sorting anything with a payload.
    """
    n = len(users)
    user_bits, item_bits, row_bits = (max(0, size - 1).bit_length() for size in (num_users, num_items, n))
    if user_bits + item_bits + row_bits <= 64:
        packed = pl.Series(_pack(users, items, item_bits, row_bits)).sort().to_numpy()
        codes, rows, last = _unpack(packed, item_bits, row_bits)
        first_of_user = np.arange(num_users, dtype=np.uint64) << np.uint64(item_bits + row_bits)
        starts = np.searchsorted(packed, first_of_user)
    else:
        rows = np.lexsort((items, users))
        codes, sorted_users = items[rows].astype(np.int32), users[rows]
        last = np.ones(n, bool)
        last[:-1] = (sorted_users[1:] != sorted_users[:-1]) | (codes[1:] != codes[:-1])
        starts = np.searchsorted(sorted_users, np.arange(num_users))
    indptr = np.append(starts, n).astype(np.int64)
    if not last.all():
        if timestamps is not None:
            _latest_to_the_end(rows, last, timestamps)
        indptr -= np.searchsorted(np.flatnonzero(~last), indptr)
        codes, rows = codes[last], rows[last]
    return _SortedRows(indptr, codes, rows)


def _unpack(
    packed: NDArray[np.uint64], item_bits: int, row_bits: int
) -> tuple[Codes, NDArray[np.int64], NDArray[np.bool_]]:
    """Items, row numbers and whether the next row has another pair, of sorted packed rows."""
    n = len(packed)
    codes, rows, last = np.empty(n, np.int32), np.empty(n, np.int64), np.ones(n, bool)
    shift, item_mask, row_mask = (
        np.uint64(row_bits),
        np.uint64((1 << item_bits) - 1),
        np.uint64((1 << row_bits) - 1),
    )

    def unpack_block(start: int) -> None:
        stop = min(start + _BLOCK, n)
        block = packed[start : stop + 1]  # one more than is unpacked, to compare with the row that follows
        last[start : start + len(block) - 1] = (block[1:] ^ block[:-1]) > row_mask
        block = block[: stop - start]
        rows[start:stop] = block & row_mask
        codes[start:stop] = (block >> shift) & item_mask

    _in_threads(unpack_block, range(0, n, _BLOCK))
    return codes, rows, last


def _pack(
    users: NDArray[np.integer[Any]], items: NDArray[np.integer[Any]], item_bits: int, row_bits: int
) -> NDArray[np.uint64]:
    """(user, item, row number) in one integer a row."""
    packed = np.empty(len(users), np.uint64)

    def pack_block(start: int) -> None:
        block = users[start : start + _BLOCK].astype(np.uint64)
        block <<= np.uint64(item_bits)
        block |= items[start : start + _BLOCK].astype(np.uint64)
        block <<= np.uint64(row_bits)
        block |= np.arange(start, start + len(block), dtype=np.uint64)
        packed[start : start + len(block)] = block

    _in_threads(pack_block, range(0, len(users), _BLOCK))
    return packed


def _in_threads(work: Callable[[int], None], over: range) -> None:
    """Call `work` for each number, on all cores if there are many: numpy lets go of the interpreter inside."""
    if len(over) < 8:
        for i in over:
            work(i)
    else:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for _ in pool.map(work, over):
                pass


def _latest_to_the_end(rows: NDArray[np.int64], last: NDArray[np.bool_], timestamps: NDArray[Any]) -> None:
    """Where several rows hold the same pair, write the one with the latest timestamp last (in place).

    `rows` is sorted by pair and then by row number; `last` marks the end of each pair's rows.
    """
    repeats = np.flatnonzero(~last)
    # a pair's rows are its repeats and the row after them: mark and group them
    member = np.zeros(len(rows), bool)
    member[repeats] = True
    member[repeats + 1] = True
    places = np.flatnonzero(member)
    ends = np.flatnonzero(last[places])
    starts = np.concatenate([[0], ends[:-1] + 1])
    stamps = timestamps[rows[places]]
    latest = np.repeat(np.maximum.reduceat(stamps, starts), np.diff(np.append(starts, len(places))))
    # among equals the highest row number, which stands furthest right
    winner = np.maximum.reduceat(np.where(stamps == latest, np.arange(len(places)), -1), starts)
    rows[places[ends]] = rows[places[winner]]


def _as_id_series(ids: Ids | Iterable[Any], name: str) -> pl.Series:
    """Ids as a polars series of strings or 64-bit integers, refusing anything that is neither."""
    if isinstance(ids, np.ndarray) and ids.dtype.kind in "iu" and ids.dtype != np.uint64:
        return pl.Series(name, ids.astype(np.int64, copy=False))
    try:
        series = ids if isinstance(ids, pl.Series) else pl.Series(name, ids, strict=True)
    except (TypeError, pl.exceptions.PolarsError, OverflowError) as error:
        raise DataError("mixed types", where=name, expected="all strings or all integers") from error
    if series.null_count():
        row = int(series.is_null().arg_max() or 0)
        raise DataError(f"missing id at row {row}", where=name, expected="an id in every row")
    if series.dtype in (pl.Categorical, pl.Enum):
        series = series.cast(pl.String)
    if series.dtype == pl.String or series.dtype == pl.Int64:
        return series
    if series.dtype.is_integer():
        try:
            return series.cast(pl.Int64)
        except pl.exceptions.PolarsError as error:
            raise DataError("an integer beyond 64 bits", where=name, expected="ids within 64 bits") from error
    if len(series) == 0:
        return series.cast(pl.Int64)
    raise DataError(f"values of type {series.dtype}", where=name, expected="all strings or all integers")


def _titles_by_item(item_codes: Codes, num_items: int, titles: Ids) -> pl.Series:
    """One title an item: that of the item's last row."""
    column = pl.Series("title", titles).cast(pl.String)
    row_of_item = np.zeros(num_items, np.int64)
    row_of_item[item_codes] = np.arange(len(item_codes))
    return column.gather(row_of_item)


def _quantiles(degrees: NDArray[Any]) -> dict[str, float]:
    if len(degrees) == 0:
        return {}
    values = np.quantile(degrees, [0, 0.25, 0.5, 0.75, 1])
    quantiles = dict(zip(("min", "q1", "median", "q3", "max"), map(float, values), strict=True))
    return {**quantiles, "mean": round(float(degrees.mean()), 2)}


def _when(timestamp: float) -> str:
    """A date where the number can be one (seconds or milliseconds since 1970), else the number itself."""
    for scale in (1, 1000, 1_000_000):
        seconds = timestamp / scale
        if 0 <= seconds < 4_102_444_800:  # before the year 2100
            return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")
    return f"{timestamp:g}"
