"""Split interactions that arrive block by block, in the order of users and items.

The split depends on the data and the seed alone, not on the size of the blocks. By `user`, `last` and `future` it is
that of `talos.data.splits.split`: the generator for validation is advanced past the draws that were made for test.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from talos.data.interactions import Interactions
from talos.data.options import SplitBy
from talos.data.splits import last_of_each, leave_one, random_share

__all__ = ["Smallest", "StreamingSplit"]

# Numbers held at a time.
_BLOCK = 1 << 20


class Smallest:
    """Flags the `count` smallest of numbers that arrive in blocks; of equal numbers, the first ones.

    All numbers are written to a temporary file in `folder` and partitioned there: memory does not grow with them.

    >>> blocks = [np.array([5, 3]), np.array([9, 3])]
    >>> smallest = Smallest(blocks, 3)
    >>> [smallest.of(block).tolist() for block in blocks]
    [[True, True], [False, True]]
    """

    def __init__(self, blocks: Iterable[NDArray[Any]], count: int, folder: Path | None = None) -> None:
        with tempfile.TemporaryFile(dir=folder) as file:
            for block in blocks:
                file.write(block.tobytes())
            file.flush()
            numbers = np.memmap(file, block.dtype, "r+")
            numbers.partition(max(count - 1, 0))
            self.bound = numbers[max(count - 1, 0)]
            below = sum(
                np.count_nonzero(numbers[start : start + _BLOCK] < self.bound)
                for start in range(0, count, _BLOCK)
            )
        self.equals = count - below

    def of(self, numbers: NDArray[Any]) -> NDArray[np.bool_]:
        """The flags of the next block."""
        chosen: NDArray[np.bool_] = numbers < self.bound
        equal = np.flatnonzero(numbers == self.bound)[: self.equals]
        chosen[equal] = True
        self.equals -= len(equal)
        return chosen


class StreamingSplit:
    """Assigns the interactions of consecutive users, in their order, to train, validation and test.

    Args:
        by: `user`, `time`, `future` or `last`, as in `talos.data.splits.split`.
        test: share for test.
        valid: share of the rest for validation.
        seed: of the random draws.
        total: number of all interactions.
        stamps: returns the timestamps of all interactions in blocks, each time it is called; used by `time` and
            `future`.
        folder: for temporary files.

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
        stamps: Callable[[], Iterable[NDArray[Any]]] = lambda: (),
        folder: Path | None = None,
    ) -> None:
        self.by, self.test, self.valid = by, test, valid
        self.for_test, self.for_valid = np.random.default_rng(seed), np.random.default_rng(seed)
        if by == "user" and test > 0:
            # `default_rng(seed)` after one draw of `random()` for each interaction
            self.for_valid = np.random.Generator(np.random.PCG64(seed).advance(total))
        early = total - round(test * total)
        in_valid = round(valid * early)
        if by in ("time", "future"):
            self.earlier = Smallest(stamps(), early, folder)
        if by == "future":
            self.earliest = Smallest(stamps(), early - in_valid, folder)
        elif by == "time":
            self.drawn = Smallest(_draws(seed, max(early, 1)), in_valid, folder)

    def of(self, data: Interactions) -> NDArray[np.int8]:
        """0 for train, 1 for validation or 2 for test, for each interaction of the next users."""
        stamps: Any = data.timestamps
        in_valid = np.zeros(len(data), bool)
        if self.by == "last":
            in_test, in_valid = last_of_each(data, with_valid=self.valid > 0)
        elif self.by == "user":
            in_test = random_share(data, self.test, self.for_test)
            in_valid[~in_test] = random_share(data.where(~in_test), self.valid, self.for_valid)
        elif self.by == "future":
            in_test = ~self.earlier.of(stamps)
            in_valid = ~in_test & ~self.earliest.of(stamps)
        else:
            in_test = ~self.earlier.of(stamps)
            rest = data.where(~in_test)
            in_valid[~in_test] = leave_one(rest, self.drawn.of(_integers(self.for_valid, len(rest))))
        return np.where(in_test, 2, in_valid).astype(np.int8)


def _integers(rng: np.random.Generator, count: int) -> NDArray[np.uint64]:
    return rng.integers(0, 1 << 64, size=count, dtype=np.uint64)


def _draws(seed: int, count: int) -> Iterator[NDArray[np.uint64]]:
    rng = np.random.default_rng(seed)
    for start in range(0, count, _BLOCK):
        yield _integers(rng, min(_BLOCK, count - start))
