"""One pass over the bytes of a delimited file, for what polars reads silently and wrongly.

Polars takes everything after a quote that is not closed as one field, and reads `0100001` as the number 100001. Both
are found here for the whole file, in blocks, before polars is asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

import numpy as np
from numpy.typing import NDArray

__all__ = ["Oddities", "find_oddities"]

_BLOCK = 1 << 18  # fits into a core's cache, with a few arrays of its size
_QUOTE, _LINE, _RETURN, _MINUS = b'"'[0], b"\n"[0], b"\r"[0], b"-"[0]


@dataclass(frozen=True)
class Oddities:
    """What was found in a file.

    Attributes:
        quotes: whether a quote stands where a quoted field neither begins nor ends, or the last one is not closed.
        spellings: whether a field begins like a number in an unusual spelling: `007`, `+7`, `-0`.
    """

    quotes: bool
    spellings: bool


def find_oddities(stream: IO[bytes], separator: str, *, quoted: bool, spellings: bool) -> Oddities:
    r"""Look through a file; stops as soon as nothing more can be found.

    Args:
        stream: the content, at its beginning.
        separator: one byte between fields.
        quoted: whether quotes mean anything, and are looked for.
        spellings: whether to look for spellings of numbers.

    >>> import io
    >>> find_oddities(io.BytesIO(b'u,"i\n1,2\n'), ",", quoted=True, spellings=True)
    Oddities(quotes=True, spellings=False)
    >>> find_oddities(io.BytesIO(b'"a ""b"" c",007\n'), ",", quoted=True, spellings=True)
    Oddities(quotes=False, spellings=True)
    """
    mark = separator.encode()[0]
    odd_quotes = odd_spellings = False
    inside = False  # a quoted field, at the end of the block before
    before = b"\n"
    for block, after in _blocks(stream):
        # one byte on each side, so that every byte of the block has its neighbours
        near = np.frombuffer(before + block + after, np.uint8)
        if quoted and not odd_quotes and b'"' in block:
            odd_quotes, inside = _odd_quotes(near, mark, inside)
        if spellings and not odd_spellings:
            odd_spellings = _odd_spellings(near, mark, signs=b"+" in block or b"-" in block)
        if (odd_quotes or not quoted) and (odd_spellings or not spellings):
            break
        before = block[-1:]
    return Oddities(odd_quotes or (quoted and inside), odd_spellings)


def _blocks(stream: IO[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Blocks of the content, each with the byte after it; a line end stands for the end of the file."""
    block = stream.read(_BLOCK).removeprefix(b"\xef\xbb\xbf")
    while block:
        following = stream.read(_BLOCK)
        yield block, following[:1] or b"\n"
        block = following


def _odd_quotes(near: NDArray[np.uint8], mark: int, inside: bool) -> tuple[bool, bool]:
    """Whether a quote is out of place, and whether a quoted field is open at the end.

    Every quote opens or closes, in turn; the two of `""` within a field close it and open it again. One that opens
    stands after a separator, a line end or a closing quote, and one that closes stands before a separator, a line end
    or an opening quote.
    """
    places = np.flatnonzero(near[1:-1] == _QUOTE) + 1
    if not len(places):
        return False, inside
    opening, closing = places[int(inside) :: 2], places[int(not inside) :: 2]
    left, right = near[opening - 1], near[closing + 1]
    fine_left = (left == mark) | (left == _LINE) | (left == _QUOTE)
    fine_right = (right == mark) | (right == _LINE) | (right == _RETURN) | (right == _QUOTE)
    return not (fine_left.all() and fine_right.all()), inside ^ bool(len(places) % 2)


def _odd_spellings(near: NDArray[np.uint8], mark: int, *, signs: bool) -> bool:
    """Whether a field begins with a zero before another digit or, with `signs`, with a plus or minus zero."""
    left, here, right = near[:-2], near[1:-1], near[2:]
    # comma, tab, blank, quote and line end come before the minus, and digits after it; what else does, does no harm
    begins = left < _MINUS
    if mark > _MINUS:
        begins |= left == mark
    odd = (here == b"0"[0]) & ((right - np.uint8(b"0"[0])) < 10)
    if signs:
        odd |= here == b"+"[0]
        odd |= (here == _MINUS) & (right == b"0"[0])
    return bool((begins & odd).any())
