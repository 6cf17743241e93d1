"""Split interactions that arrive block by block, in the order of users and items.

The split depends on the data and the seed alone, not on the size of the blocks. By `user` and by `last` it is that of
`talos.data.splits.split`: the generator for validation is advanced past the draws that were made for test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from talos.data.interactions import Interactions
from talos.data.options import SplitBy
from talos.data.splits import last_of_each, leave_one, random_share

__all__ = ["TEST", "TRAIN", "VALID", "StreamingSplit", "ordered", "smallest"]

TRAIN, VALID, TEST = 0, 1, 2
# Random numbers drawn at a time.
_BLOCK = 1 << 20
# Bits of the result that one pass over all numbers determines.
_BITS = 16

Blocks = Callable[[], Iterable[NDArray[np.uint64]]]


def ordered(values: NDArray[Any]) -> NDArray[np.uint64]:
    """Map integers or floats to unsigned integers of the same order.

    >>> ordered(np.array([-2.0, 0.5, 3.0])).argsort().tolist(), ordered(np.array([5, -5])).argsort().tolist()
    ([0, 1, 2], [1, 0])
    """
    top = np.uint64(1 << 63)
    if values.dtype.kind == "f":
        bits = (values.astype(np.float64) + 0.0).view(np.uint64)  # + 0.0 turns -0.0 into 0.0
        return np.where(bits & top, ~bits, bits | top)
    return values.astype(np.int64).view(np.uint64) ^ top


def smallest(blocks: Blocks, count: int) -> tuple[int, int]:
    """The `count`-th smallest of many numbers, and how many of those equal to it are among the `count` smallest.

    A radix selection: it passes over all blocks four times and holds one block at a time.

    >>> smallest(lambda: [np.array([5, 3], np.uint64), np.array([9, 3], np.uint64)], 2)
    (3, 2)
    """
    prefix, left = 0, count
    for shift in range(64 - _BITS, -1, -_BITS):
        found = np.zeros(1 << _BITS, np.int64)
        for block in blocks():
            here = block if shift == 64 - _BITS else block[(block >> np.uint64(shift + _BITS)) == prefix]
            digits = (here >> np.uint64(shift)) & np.uint64((1 << _BITS) - 1)
            found += np.bincount(digits.astype(np.int64), minlength=len(found))
        digit = int(np.searchsorted(np.cumsum(found), left))
        left -= int(found[:digit].sum())
        prefix = prefix << _BITS | digit
    return prefix, left


class _Smallest:
    """Flags the `count` smallest of numbers that arrive in blocks; of equal numbers, the first ones."""

    def __init__(self, blocks: Blocks, count: int) -> None:
        self.bound, self.equals = smallest(blocks, count) if count else (0, 0)

    def of(self, numbers: NDArray[np.uint64]) -> NDArray[np.bool_]:
        bound = np.uint64(self.bound)
        chosen, equal = numbers < bound, np.flatnonzero(numbers == bound)
        chosen[equal[: self.equals]] = True
        self.equals -= min(self.equals, len(equal))
        return chosen


class StreamingSplit:
    """Assigns the interactions of consecutive users, in their order, to train, validation and test.

    Args:
        by: `user`, `time`, `future` or `last`, as in `talos.data.splits.split`.
        test: share for test.
        valid: share of the rest for validation.
        seed: of the random draws.
        total: number of all interactions.
        stamps: returns the timestamps of all interactions in blocks, each time it is called; not needed for
            `user` and `last`.

    >>> data = Interactions.from_ids([1] * 10, list(range(10)))
    >>> flags = StreamingSplit(by="user", test=0.2, valid=0.1, seed=1, total=10).of(data)
    >>> np.bincount(flags).tolist()
    [7, 1, 2]
    """

    def __init__(
        self,
        *,
        by: SplitBy,
        test: float,
        valid: float,
        seed: int,
        total: int,
        stamps: Callable[[], Iterable[NDArray[Any]]] | None = None,
    ) -> None:
        self.by, self.test, self.valid = by, test, valid
        self.for_test, self.for_valid = np.random.default_rng(seed), np.random.default_rng(seed)
        if by == "user" and test > 0:
            self.for_valid = _advanced(seed, total)
        if by in ("time", "future"):
            assert stamps is not None
            early = total - round(test * total)
            self.earlier = _Smallest(lambda: map(ordered, stamps()), early)
            if by == "time":
                self.drawn = _Smallest(lambda: _draws(seed, early), round(valid * early))
            else:
                self.earliest = _Smallest(lambda: map(ordered, stamps()), early - round(valid * early))

    def of(self, data: Interactions) -> NDArray[np.int8]:
        """`TRAIN`, `VALID` or `TEST` for each interaction of the next users."""
        if self.by == "last":
            in_test, in_valid = last_of_each(data, with_valid=self.valid > 0)
        else:
            if self.by == "user":
                in_test = random_share(data, self.test, self.for_test)
            else:
                assert data.timestamps is not None
                in_test = ~self.earlier.of(ordered(data.timestamps))
            rest = data.where(~in_test)
            if self.by == "user":
                picked = random_share(rest, self.valid, self.for_valid)
            elif self.by == "future":
                assert data.timestamps is not None
                picked = ~self.earliest.of(ordered(data.timestamps))[~in_test]
            else:
                picked = leave_one(rest, self.drawn.of(_integers(self.for_valid, len(rest))))
            in_valid = np.zeros(len(data), bool)
            in_valid[np.flatnonzero(~in_test)[picked]] = True
        return np.where(in_test, TEST, np.where(in_valid, VALID, TRAIN)).astype(np.int8)


def _advanced(seed: int, draws: int) -> np.random.Generator:
    """The generator of a seed after so many draws of `random()`, each of which takes one step of its stream."""
    bits = np.random.default_rng(seed).bit_generator
    assert isinstance(bits, np.random.PCG64)
    bits.advance(draws)
    return np.random.Generator(bits)


def _integers(rng: np.random.Generator, count: int) -> NDArray[np.uint64]:
    return rng.integers(0, 1 << 64, size=count, dtype=np.uint64)


def _draws(seed: int, count: int) -> Iterator[NDArray[np.uint64]]:
    rng = np.random.default_rng(seed)
    for start in range(0, count, _BLOCK):
        yield _integers(rng, min(_BLOCK, count - start))
