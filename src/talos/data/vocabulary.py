"""Vocabularies: the caller's ids of users or items, and the position of each."""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from talos.errors import DataError

__all__ = ["Ids", "Vocabulary", "add_ids", "as_id_series", "spelled_as"]

# So few ids are looked up one by one, which is quicker than a search by polars: that wakes its threads and waits for
# them, on a busy machine for as long as a time slice of every other process takes.
_FEW = 16

Ids: TypeAlias = pl.Series | Sequence[str] | Sequence[int] | Sequence[str | int] | NDArray[Any]


class Vocabulary:
    """Distinct ids in ascending order; the position of an id is its code, so equal sets of ids get equal codes.

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

    def __init__(self, ids: pl.Series) -> None:
        self.ids = ids

    @classmethod
    def of(cls, ids: Ids) -> Vocabulary:
        """The vocabulary of all distinct values of `ids`."""
        return cls(as_id_series(ids, "ids").unique().sort())

    def __len__(self) -> int:
        return len(self.ids)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Vocabulary) and self.ids.dtype == other.ids.dtype and self.ids.equals(other.ids)
        )

    def __repr__(self) -> str:
        kind = "strings" if self.ids.dtype == pl.String else "integers"
        return f"Vocabulary({len(self)} {kind})"

    def encode(self, ids: Ids) -> NDArray[np.int64]:
        """Positions of `ids`; -1 for an id that is not in the vocabulary, or is of another type."""
        wanted = as_id_series(ids, "ids")
        if len(self) == 0 or len(wanted) == 0 or wanted.dtype != self.ids.dtype:
            return np.full(len(wanted), -1, np.int64)
        if len(wanted) <= _FEW:
            return np.array([self._position(one) for one in wanted.to_list()], np.int64)
        places = np.minimum(np.asarray(self.ids.search_sorted(wanted), np.int64), len(self) - 1)
        found = (self.ids.gather(places) == wanted).to_numpy()
        return np.where(found, places, -1)

    def encode_other(self, other: Vocabulary) -> NDArray[np.int64]:
        """Positions here of the ids of `other`; if types differ, an integer equals the string it is printed as.

        >>> Vocabulary.of(["7", "08", "x"]).encode_other(Vocabulary.of([7, 8])).tolist()
        [1, -1]
        >>> Vocabulary.of([7, 8]).encode_other(Vocabulary.of(["08", "7", "x"])).tolist()
        [-1, 0, -1]
        """
        spelled = spelled_as(other.ids, self.ids.dtype)
        codes, known = np.full(len(other), -1, np.int64), spelled.is_not_null().to_numpy()
        codes[known] = self.encode(spelled.drop_nulls())
        return codes

    def _position(self, wanted: str | int) -> int:
        """The position of one id, -1 if it is not there."""
        place = bisect_left(self.ids, wanted)
        return place if place < len(self) and self.ids[place] == wanted else -1

    def decode(self, codes: NDArray[np.integer[Any]] | Sequence[int]) -> pl.Series:
        """The ids at the given positions."""
        return self.ids[
            np.asarray(codes, np.int64)
        ]  # `gather` makes a query plan first, for half of its time


def add_ids(digest: hashlib.blake2b, kind: pl.DataType, blocks: Iterable[pl.Series]) -> None:
    """Add ids of one type to a digest; the same for any division into blocks, on any machine, in any version of polars.

    (Polars has hashes of its own, which other versions and processors compute differently.)

    >>> digests = hashlib.blake2b(), hashlib.blake2b()
    >>> add_ids(digests[0], pl.String(), [pl.Series(["ab", "c"])])
    >>> add_ids(digests[1], pl.String(), [pl.Series(["a"]), pl.Series(["bc"])])
    >>> digests[0].digest() == digests[1].digest()
    False
    """
    digest.update(str(kind).encode())
    lengths = hashlib.blake2b()  # without them "ab", "c" would be "a", "bc"
    for block in blocks:
        if kind == pl.String:
            digest.update("".join(block.to_list()).encode())
            lengths.update(block.str.len_bytes().cast(pl.Int64).to_numpy().tobytes())
        else:
            digest.update(np.ascontiguousarray(block.to_numpy()).data)
    digest.update(lengths.digest())


def spelled_as(ids: pl.Series, dtype: pl.DataType) -> pl.Series:
    """Ids as integers or as strings; null where a string is not what an integer is printed as.

    >>> spelled_as(pl.Series(["7", "08", "x"]), pl.Int64()).to_list()
    [7, None, None]
    >>> spelled_as(pl.Series([7, 8]), pl.String()).to_list()
    ['7', '8']
    """
    if ids.dtype == dtype or dtype == pl.String:
        return ids.cast(dtype)
    numbers = ids.cast(pl.Int64, strict=False)
    return numbers.set((numbers.cast(pl.String) != ids).fill_null(value=False), None)


def as_id_series(ids: Ids | Iterable[Any], name: str) -> pl.Series:
    """Ids as a polars series of strings or 64-bit integers; a `DataError` that names `name` if they are neither."""
    expected = "all strings or all integers"
    try:
        series = ids if isinstance(ids, pl.Series) else pl.Series(name, ids, strict=True)
    except UnicodeEncodeError as error:
        found = error.object[error.start : error.end]
        raise DataError(f"half a character ({found!r})", where=name, expected="valid Unicode") from None
    except (TypeError, pl.exceptions.PolarsError, OverflowError) as error:
        raise DataError("mixed types", where=name, expected=expected) from error
    if series.null_count():
        row = int(series.is_null().arg_max() or 0)
        raise DataError(f"missing id at row {row}", where=name, expected="an id in every row")
    if series.dtype in (pl.String, pl.Categorical, pl.Enum):
        return series.cast(pl.String)
    if len(series) and not series.dtype.is_integer():
        raise DataError(f"values of type {series.dtype}", where=name, expected=expected)
    numbers = series.cast(pl.Int64, strict=False)
    if numbers.null_count():
        raise DataError("an integer beyond 64 bits", where=name, expected="ids within 64 bits")
    return numbers
