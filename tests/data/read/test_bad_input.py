from __future__ import annotations

import gzip
import os
import sqlite3
import sys
from contextlib import closing

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse

from talos.data.open import read
from talos.errors import ArgumentError, DataError, MissingExtraError

BAD_FILES = [
    ("empty.csv", "", r"empty\.csv: is empty"),
    ("blank.csv", " \n\n", r"is empty"),
    ("header.csv", "user,item\n", r"has no rows; expected one interaction per row"),
    ("nobody.csv", "usr,item,shop\na,b,c\n", r"no user column among 'usr', 'item'.*did you mean 'usr'"),
    ("unknown.csv", "ann,tea\nbob,jam\n", r"no user column among 'ann', 'tea'"),
    ("one.csv", "user\n1\n", r"one field in the first line"),
    ("twice.csv", "user,uid,item\n1,2,3\n", r"'user' and 'uid' could each be the user column"),
    ("few.csv", "user,item,ts\n1,2,3\n4\n", r"line 3: 1 field; expected 3"),
    ("few-after-blank.csv", "user,item,ts\n\n1,2,3\n\n4,5\n", r"line 5: 2 fields; expected 3"),
    ("many.csv", "user,item\n1,2\n3,4,5\n", r"line 3: 3 fields; expected 2"),
    (
        "time.csv",
        "user,item,ts\n1,2,3\n3,4,soon\n",
        r"line 3: 'soon' is not a timestamp in column 'ts'; expected a number",
    ),
    (
        "date.csv",
        "user,item,date\n1,2,2020-01-31\n3,4,2020-02-31\n",
        r"line 3: '2020-02-31' is not a timestamp",
    ),
    ("inf.csv", "user,item,ts\n1,2,3\n3,4,inf\n", r"line 3: 'inf' is not a timestamp"),
    ("no-time.csv", "user,item,ts\n1,2,3\n3,4,\n", r"line 3: no timestamp in column 'ts'"),
    ("rating.csv", "user,item,rating\n1,2,3\n3,4,good\n", r"line 3: 'good' is not a rating"),
    ("huge.csv", "user,item,rating\n1,2,1e300\n", r"line 2: '1e300' is not a rating"),
    ("no-id.csv", "user,item\n1,2\n,4\n", r"line 3: no user in column 'user'; expected an id in every row"),
    ("nan.csv", "user,item\n1,2\n3,NaN\n", r"line 3: 'NaN' is not a valid id in column 'item'"),
    ("null.csv", "user,item\na,b\nc,null\n", r"line 3: 'null' is not a valid id"),
    ("quoted.csv", 'user,item,title\na,2,"A\nB"\nc,,C\n', r"line 4: no item"),
    ("latin.csv", b"user,item\na,b\nc,caf\xe9\n", r"line 3: bytes that are not UTF-8"),
    ("dos.csv", "user,item,ts\r\n1,2,3\r\n1,3,x\r\n", r"line 3: 'x' is not"),
    ("first.csv", "user,item,ts\n1,,3\n2\n", r"line 2: no item"),  # the first of two bad rows
    (
        "ratings.dat",
        "1::2::3::978300760\n1::4::5::never\n",
        r"line 2: 'never' is not a timestamp in column '4'",
    ),
    ("x.inter", "user_id:token\titem_id:token\n1\t2\n3\t\n", r"line 3: no item in column 'item_id'"),
    ("binary.csv", bytes(range(256)), r"binary file"),
    ("table.zip", b"PK\x03\x04" + bytes(50), r"zip archive"),
    ("utf16.csv", "user,item\n1,2\n".encode("utf-16"), r"UTF-16.*UTF-8"),
    (
        "short.csv.gz",
        gzip.compress(b"user,item\n" + os.urandom(999).hex().encode())[:-20],
        r"ended before .*whole \.gz file",
    ),
    (
        "broken.csv.gz",
        gzip.compress(b"user,item\n1,2\n")[:-8] + bytes(8),
        r"CRC check failed.*whole \.gz file",
    ),
    ("tail.csv.gz", gzip.compress(b"user,item\n1,2\n") + b"tail", r"[Nn]ot a gzipped file.*whole \.gz file"),
    ("empty.csv.gz", gzip.compress(b""), r"is empty"),
    ("not.parquet", b"user,item\n1,2\n", r"cannot be read .*expected data that is whole"),
    ("lines.jsonl", '{"user": 1, "item": 2}\n{"user": 1\n', r"line 2: not JSON"),
    (
        "late.jsonl",
        '{"user": "a", "item": 2}\n{"user": ["b"], "item": 2}\n',
        r"line 2: \['b'\] in 'user'; expected text or an integer",
    ),
    ("float.jsonl", '{"user": 5, "item": 2}\n{"user": 5.0, "item": 2}\n', r"line 2: 5.0 in 'user'; expected"),
    ("truth.jsonl", '{"user": "a", "item": true}\n', r"line 1: True in 'item'; expected text or an integer"),
    ("gone.jsonl", '{"user": 1, "item": 2}\n\n{"user": 1}\n', r"line 3: no item in column 'item'"),
    ("list.jsonl", '{"user": 1, "item": 2}\n[1]\n', r"line 2: \[1\]; expected a JSON object"),
    (
        "nested.jsonl",
        '{"user": 1, "item": {"a": 1}}\n',
        r"line 1: \{'a': 1\} in 'item'; expected text or an integer",
    ),
    ("keys.jsonl", '{"who": 1, "item": 2, "shop": 3}\n', r"no user column among 'who', 'item'"),
    ("python.json", "{'user': 1, 'item': 2}\n", r"line 1: not JSON"),
    ("array.json", '[{"user": 1, "item": 2}, {"user": 2}]', r"object 2: no item"),
    (
        "nul.jsonl",
        '{"user": "a", "item": "x"}\n{"user": "a\\u0000b", "item": "x"}\n',
        r"line 2: 'a\\x00b' is not a valid id in column 'user'; expected .*without control characters",
    ),
    ("break.jsonl", '{"user": "a\\nb", "item": "x"}\n', r"line 1: 'a\\nb' is not a valid id"),
    ("tab.csv", "user,item\na\tb,x\n", r"line 2: 'a\\tb' is not a valid id"),
    ("lightgcn.txt", "0 1 2 3 4 5\n1 2 nan\n", r"line 2: 'nan' is not a valid id in column 'item'"),
    ("table.txt", "1 2 3 978300760\n" * 9 + "1 2 3 4 5\n", r"line 10: 5 fields; expected 4"),
    (
        "wide.txt",
        "1\t2\t3\t4\t5\t6\n",
        r"\(no header: columns are called by position\): no user column among '1', .* expected its position",
    ),
]


@pytest.mark.parametrize(("name", "content", "message"), BAD_FILES, ids=[name for name, _, _ in BAD_FILES])
def test_one_error_that_says_what_and_where(write, name, content, message):
    path = write(name, content)
    with pytest.raises(DataError, match=message) as caught:
        read(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_given_columns_that_are_not_there(write):
    path = write("x.csv", "user_id,item_id\n1,2\n")
    with pytest.raises(DataError, match=r"no column 'usr_id'.*did you mean 'user_id'"):
        read(path, user="usr_id")
    with pytest.raises(DataError, match="'user_id' is both user and item"):
        read(path, item="user_id")
    assert len(read(path, user="USER_ID")) == 1
    with pytest.raises(DataError, match="no column '3'"):
        read(write("y.csv", "1,2\n"), item="3")


@pytest.mark.parametrize(
    ("name", "content", "bad"),
    [
        ("x.csv", "user,item,ts,rating\n1,2,3,4\n,2,3,4\n1,3,x,4\n1,4,3,x\n1\n1,2,3,4,5\n\n2,2,3,4\n", 5),
        ("x.csv", b"user,item\n1,2\n\xff,2\n2,2\n", 1),
        (
            "x.jsonl",
            '{"user":1,"item":2}\nnope\n{"user":[1],"item":2}\n{"user":1}\n[]\n{"user":2,"item":2}\n',
            4,
        ),
        ("x.dat", "1::2::3::978300760\n1::2\n2::2::3::978300760\n", 1),
        (
            "x.jsonl",
            '{"user":1,"item":2,"ts":1}\n{"user":1,"item":2,"ts":"\\ud800"}\n{"user":2,"item":2,"ts":2}\n',
            1,
        ),
    ],
)
def test_bad_rows_can_be_skipped_and_are_counted(write, name, content, bad):
    data = read(write(name, content), on_bad_row="skip")
    assert data.provenance.bad_rows == bad
    assert data.provenance.rows == bad + 2
    assert data.to_polars().select("user_id", "item_id").rows() == [(1, 2), (2, 2)]


def test_nothing_left_after_skipping(write):
    with pytest.raises(DataError, match="no usable row: all 2 are bad"):
        read(write("x.csv", "user,item\n,2\n1,\n"), on_bad_row="skip")


def test_compression_bombs(write):
    bomb = write("bomb.csv.gz", gzip.compress(b"user,item\n" + b"1,2\n" * 100_000))
    with pytest.raises(DataError, match="exceeds 1,000 bytes when decompressed"):
        read(bomb, max_bytes=1000)
    assert len(read(bomb)) == 1
    big = write("big.csv.gz", gzip.compress(b"user,item\n" + b"\n" * (70 << 20)))
    with pytest.raises(DataError, match=r"exceeds 67,108,864 bytes .* less than 250 times the size"):
        read(big)


def test_parquet_that_is_truncated_or_too_large(tmp_path):
    path = tmp_path / "x.parquet"
    pl.DataFrame({"user": np.zeros(10_000, int), "item": np.zeros(10_000, int)}).write_parquet(path)
    with pytest.raises(DataError, match="10,000 rows exceed 1,000 bytes"):
        read(path, max_bytes=1000)
    whole = path.read_bytes()
    for size in (4, 50, len(whole) // 2, len(whole) - 4):
        path.write_bytes(whole[:size])
        with pytest.raises(DataError, match="expected data that is whole"):
            read(path)


def test_missing_and_unreadable_files(tmp_path, write):
    write("events.csv", "user,item\n1,2\n")
    with pytest.raises(DataError, match=r"no such file.*did you mean 'events.csv'"):
        read(tmp_path / "event.csv")
    with pytest.raises(DataError):
        read("nul\0byte.csv")
    with pytest.raises(DataError):
        read(tmp_path / ("x" * 5000))
    if sys.platform != "win32" and os.geteuid() != 0:
        secret = write("secret.csv", "user,item\n1,2\n")
        secret.chmod(0)
        with pytest.raises(DataError, match="cannot be read"):
            read(secret)


def test_frames():
    good = {"user": ["a", "b"], "item": [1, 2]}
    cases = [
        (
            pd.DataFrame({**good, "user": ["a", 1]}),
            r"column 'user': .*found value of type Int64: 1\); expected values of one type",
        ),
        (pd.DataFrame({**good, "user": ["a", None]}), r"row 1 \(counting from 0\): no user"),
        (pd.DataFrame({**good, "item": [1.0, np.nan]}), r"row 1 .*: nan is not a valid id in column 'item'"),
        (pd.DataFrame({**good, "item": [1.5, 2.0]}), r"column 'item': 1.5 as an id"),
        (pd.DataFrame({**good, "ts": ["x", "y"]}), r"'x' is not a timestamp"),
        (pl.DataFrame({**good, "user": [["a"], ["b"]]}), r"column 'user': values of type List"),
        (pl.DataFrame({**good, "ts": [True, False]}), r"column 'ts': values of type Boolean"),
        (pl.DataFrame({**good, "rating": [[1], [2]]}), r"column 'rating': values of type List"),
        (pl.DataFrame({**good, "user": [None, None]}), r"row 0 .*no user"),
        (pl.DataFrame({"user": [], "item": []}), r"has no rows"),
        (pl.DataFrame({"user": [1]}), r"no item column"),
        (pl.DataFrame(), r"no user column"),
        (scipy.sparse.coo_array((2, 2)), r"scipy matrix: has no rows"),
        (scipy.sparse.coo_array(np.array([[np.nan]])), r"scipy matrix, row 0 .*: nan is not a rating"),
    ]
    for frame, message in cases:
        with pytest.raises(DataError, match=message):
            read(frame)
    with pytest.raises(ArgumentError, match="source: a int"):
        read(5)


def test_databases(tmp_path, write, monkeypatch):
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection, connection:
        connection.execute("CREATE TABLE clicks (user_id, item_id)")
        connection.execute("CREATE TABLE other (a)")
        connection.executemany("INSERT INTO clicks VALUES (?, ?)", [(b"a", 1), (5, 2)])
    url = f"sqlite:///{tmp_path}/shop.db"
    cases = [
        (url, {}, r"tables clicks, other; expected \?table=NAME at the end of the URL \(query='SQL' reads"),
        (url, {"table": "click"}, "no such table: click.*did you mean 'clicks'"),
        (url, {"table": "other"}, "no user column among 'a'"),
        (
            url,
            {"table": "clicks"},
            "table clicks: cannot be read .*; expected columns of numbers, texts or dates",
        ),
        (url, {"query": "SELEC 1"}, "syntax error"),
        (url, {"query": "DROP TABLE other"}, "the database says"),
        (url, {"query": "SELECT user_id, item_id FROM clicks WHERE item_id > 9"}, "has no rows"),
        (f"sqlite:///{tmp_path}/gone.db", {}, "no such file"),
        ("sqlite://gone.db", {}, "expected sqlite:///FILE"),
        (f"sqlite:///{write('x.csv', 'user,item' * 99)}", {}, "not a database"),
    ]
    for source, options, message in cases:
        with pytest.raises(DataError, match=message):
            read(source, **options)
    assert not (tmp_path / "gone.db").exists()
    with pytest.raises(DataError, match=r"SQLite database.*sqlite:///FILE"):
        read(tmp_path / "shop.db")
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtraError, match=r"talos-rec\[postgres\]"):
        read("postgresql://me:secret@localhost/shop?table=clicks")


def test_options_are_checked(write):
    path = write("x.csv", "user,item\n1,2\n")
    for options, message in [
        ({"format": "cvs"}, "format: 'cvs'.*did you mean 'csv'"),
        ({"on_bad_row": "ignore"}, "on_bad_row: 'ignore'; expected 'raise' or 'skip'"),
        ({"ids": "int"}, "ids: 'int'"),
        ({"max_bytes": 0}, "max_bytes"),
    ]:
        with pytest.raises(ArgumentError, match=message) as caught:
            read(path, **options)
        assert [caught.value.where] == list(options)  # the bare name, which the command line maps to a flag
