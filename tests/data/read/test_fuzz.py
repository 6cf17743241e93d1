"""Whatever is in a database or a frame: Interactions, or the library's own error (tests/torture has files)."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import polars as pl
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from talos.data.interactions import Interactions
from talos.data.open import read
from talos.errors import TalosError

PAIRS = [(user, item, user % 5 + 1, 978300760 + item) for user in range(12) for item in range(user % 4 + 1)]


def _sqlite(folder) -> bytes:
    path = folder / "seed.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE clicks (user_id INT, item_id INT, rating REAL, ts INT)")
        connection.executemany("INSERT INTO clicks VALUES (?, ?, ?, ?)", PAIRS)
    return path.read_bytes()


TOKENS = [
    b"",
    b",",
    b"\t",
    b"::",
    b"\n",
    b"\r\n",
    b'"',
    b"NaN",
    b"-1",
    b"1e999",
    b"9" * 25,
    b"\xff\xfe",
    b"\0",
    b"{",
    b"[",
    b"null",
    b"0" * 9,
]
MODES = st.sampled_from(["raise", "skip"])
BOUNDED = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@st.composite
def mutations(draw, seed: bytes) -> bytes:
    """A valid file with some of its bytes cut out, repeated or replaced."""
    data = bytearray(seed)
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        stop = min(len(data), start + draw(st.integers(0, 12)))
        data[start:stop] = draw(
            st.one_of(st.sampled_from(TOKENS), st.binary(max_size=6), st.just(bytes(data[:stop][-20:])))
        )
    return bytes(data[: draw(st.integers(0, len(data)))] if draw(st.integers(0, 4)) == 0 else data)


def check(source, **options) -> None:
    try:
        data = read(source, **options)
    except TalosError:
        return
    assert isinstance(data, Interactions)
    assert len(data) > 0
    data.describe()


@settings(BOUNDED, max_examples=40)
@given(data=st.data())
def test_mutated_databases(data, tmp_path):
    seed = _sqlite(tmp_path) if not (tmp_path / "seed.db").exists() else (tmp_path / "seed.db").read_bytes()
    path = tmp_path / "x.db"
    path.write_bytes(data.draw(mutations(seed)))
    check(f"sqlite:///{path}", on_bad_row=data.draw(MODES))


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.dates(),
)


@settings(BOUNDED, max_examples=150)
@given(columns=st.lists(st.lists(VALUES, min_size=3, max_size=3), min_size=4, max_size=4), mode=MODES)
def test_random_pandas_frames(columns, mode):
    import pandas as pd

    names = ["user", "item", "timestamp", "rating"]
    check(
        pd.DataFrame({name: pd.Series(v, dtype=object) for name, v in zip(names, columns, strict=True)}),
        on_bad_row=mode,
    )


@settings(BOUNDED, max_examples=100)
@given(data=st.data())
def test_random_polars_frames(data):
    kinds = [
        pl.Int64,
        pl.UInt64,
        pl.Float64,
        pl.String,
        pl.Boolean,
        pl.Date,
        pl.Datetime("us"),
        pl.Null,
        pl.Binary,
        pl.List(pl.Int64),
    ]
    count = data.draw(st.integers(0, 3))
    columns = {}
    for name in ("user", "item", "timestamp", "rating", "title"):
        kind = data.draw(st.sampled_from(kinds))
        columns[name] = pl.Series(name, [None] * count, dtype=kind)
        if kind in (pl.Int64, pl.Float64, pl.String):
            values = data.draw(st.lists(st.integers(-(2**53), 2**53), min_size=count, max_size=count))
            columns[name] = pl.Series(name, values, dtype=pl.Int64).cast(kind)
    check(pl.DataFrame(columns), on_bad_row=data.draw(MODES))
