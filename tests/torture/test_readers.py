"""Fuzzed files to the readers: a result or the library's own error, and the same in one piece and in blocks."""

from __future__ import annotations

import gzip
import io
import random
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from talos.data.interactions import Interactions
from talos.data.open import read
from talos.data.options import SourceOptions
from talos.data.read import text
from talos.data.source import FORMATS, Pass, Source, encoded, read_through
from talos.errors import TalosError

PAIRS = [(user, item, user % 5 + 1, 978300760 + item) for user in range(6) for item in range(user % 4 + 1)]
BLOCKS, WEIGHTS = (1, 3, 7, 1000), (1, 3, 6, 10)  # rows of a block; one at a time takes longest
TOKENS = [
    *(
        b"",
        b",",
        b"\t",
        b"::",
        b"\n",
        b"\r\n",
        b"\r",
        b'"',
        b'""',
        b'"\n',
        b'\n"',
        b"NaN",
        b"null",
        b"-1",
        b"1e999",
    ),
    *(
        b"9" * 25,
        b"007",
        b"+7",
        b"-0",
        b" ",
        b"\xff\xfe",
        b"\xed\xa0\x80",
        b"\\ud800",
        b"\0",
        b"{",
        b"[",
        b"}",
        b"]",
    ),
    *(
        b'{"user": 1, "item": 2}\n',
        b"a,b,c,d,e,f\n",
        b"2020-01-01",
        b"\xe2\x80\xae",
        b"\x1b[2J",
        b"=1+1",
        b"user",
    ),
]


def parquet() -> bytes:
    target = io.BytesIO()
    frame = pl.DataFrame(PAIRS, schema=["user", "item", "rating", "timestamp"], orient="row")
    frame.with_columns(title=pl.col("item").cast(pl.String)).write_parquet(target)
    return target.getvalue()


def joined(separator: str, header: str = "") -> bytes:
    return (header + "".join(separator.join(map(str, row)) + "\n" for row in PAIRS)).encode()


FILES = {
    "x.csv": joined(",", "user,item,rating,timestamp\n"),
    "dates.csv": b"user,item,date,title\na,b,2020-01-01,T\n" + b'c,"d, e",2020-02-01,"U ""u"" v"\n' * 5,
    "quoted.csv": b'user,item,title\n"a","b","two\nlines"\n"c","d","x"\n' * 3,
    "zeros.csv": b"user,item\n" + b"".join(b"%d,%d\n" % (n, n % 5) for n in range(30)) + b"07,3\n",
    "ratings_X.csv": b"A1ZZZZZZZZZZZZ,0005080789,5.0,1369699200\nA2ZZZZZZZZZZZZ,B000000001,2.0,1355443200\n"
    * 3,
    "x.tsv": joined("\t", "user_id\titem_id\tstars\tts\n"),
    "x.inter": joined("\t", "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"),
    "u.data": joined("\t"),
    "x.dat": joined("::"),
    "x.txt": b"0 1 2 3 4 5 6\n1 2 3\n2 7\n3\n",
    "x.jsonl": b'{"user": "a", "item": 1, "ts": 5, "rating": 2.5, "x": [1, {"y": "\\u00e9"}]}\n' * 4,
    "ids.jsonl": b"".join(b'{"user": "u%d", "item": "i%d"}\n' % (n % 4, n) for n in range(12)),
    "x.json": b'[{"user": "a", "item": 1}, {"user": "b", "item": 2}]',
    "x.json.gz": b'{"reviewerID": "A", "asin": "0001", "overall": 5.0, "unixReviewTime": 9}\n' * 3,
    "x.csv.gz": joined(",", "user,item,rating,timestamp\n"),
    "x.parquet": parquet(),
}
LETTERS = "01a,:;|\t \n\r\"'{}[]é-.\0"


@pytest.mark.parametrize("name", FILES)
def test_the_files_are_valid(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(packed(name, FILES[name]))
    assert len(read(path))


def packed(name: str, content: bytes) -> bytes:
    return gzip.compress(content) if name.endswith(".gz") else content


def fuzzed(name: str, rng: random.Random) -> bytes:
    """A damaged file, or bytes or text that never were one."""
    kind = rng.random()
    if kind < 0.05:
        return rng.randbytes(rng.randint(0, 200))
    if kind < 0.1:
        return "".join(rng.choices(LETTERS, k=rng.randint(0, 60))).encode()
    if kind < 0.2:  # damaged after packing, if it is packed
        return damaged(packed(name, FILES[name]), rng)
    return packed(name, damaged(FILES[name], rng))


def damaged(content: bytes, rng: random.Random) -> bytes:
    """A file with some of its bytes cut out, repeated, exchanged or replaced."""
    data = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        start = rng.randint(0, len(data))
        stop = min(len(data), start + rng.randint(0, 12))
        kind = rng.random()
        if kind < 0.6:
            data[start:stop] = rng.choice(TOKENS)
        elif kind < 0.8:
            data[start:stop] = rng.randbytes(rng.randint(0, 6))
        elif kind < 0.9 and start < len(data):
            data[start] ^= 1 << rng.randrange(8)
        else:
            data[start:start] = data[max(0, start - rng.randint(0, 200)) : stop]
    return bytes(data[: rng.randint(0, len(data))] if rng.random() < 0.15 else data)


def content_of(data: Interactions) -> Any:
    titles = data.item_titles
    return data.to_polars().rows(), None if titles is None else titles.to_list()


def in_one_piece(path: Path, **options: Any) -> Any:
    try:
        data = read(path, **options)
    except TalosError as error:
        return type(error)
    assert isinstance(data, Interactions)
    assert len(data) > 0
    data.describe()
    return content_of(data), data.provenance.rows, data.provenance.bad_rows


def in_blocks(
    path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, careful_from: int, **options: Any
) -> Any:
    """In small blocks and small pieces of the file, or row by row from the beginning."""
    monkeypatch.setattr(text, "_CHUNK", 16 * rows)
    how = SourceOptions.of(**options)
    try:
        source = Source.of(path)
        if careful_from:
            data = read_through(source, how, partial(encoded, whole=True), rows=rows)["all"]
        else:
            data = encoded(
                Pass(source, how, asdict(how.columns), rows, careful_from=careful_from), whole=True
            )["all"]
    except TalosError as error:
        return type(error)
    finally:
        monkeypatch.undo()
    return content_of(data), data.provenance.rows, data.provenance.bad_rows


def test_fuzzed_files(budget: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = budget.row("fuzzed files", short=150, full=100_000)
    for number in row:
        rng = row.rng(number)
        name = rng.choice(list(FILES))
        path = tmp_path / name
        path.write_bytes(fuzzed(name, rng))
        options: dict[str, Any] = {
            "on_bad_row": rng.choice(["raise", "skip"]),
            "ids": rng.choice(["auto", "string"]),
        }
        if rng.random() < 0.15:
            options["format"] = rng.choice(FORMATS)
        whole = in_one_piece(path, **options)
        (rows,) = rng.choices(BLOCKS, WEIGHTS)
        for careful_from in (sys.maxsize, 0):
            blocks = in_blocks(path, monkeypatch, rows, careful_from, **options)
            assert whole == blocks, (budget.seed, number, options, careful_from, path.read_bytes())
        row.counts["refused" if isinstance(whole, type) else f"read, {name}"] += 1
    assert 0 < row.counts["refused"] < row.done
