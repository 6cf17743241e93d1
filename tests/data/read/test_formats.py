from __future__ import annotations

import gzip
import json
import shutil
import sqlite3
import subprocess
from contextlib import closing

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse

from talos.data.interactions import Interactions
from talos.data.open import read
from talos.errors import DataError

ROWS = [(1, 10, 3.0, 100), (1, 11, 4.0, 101), (2, 10, 5.0, 102)]
HEADER = "user_id,item_id,rating,timestamp\n"
CSV = HEADER + "".join(f"{u},{i},{r},{t}\n" for u, i, r, t in ROWS)


def as_rows(data: Interactions) -> list[tuple]:
    return data.to_polars().select("user_id", "item_id", "rating", "timestamp").rows()


FILES = {
    "events.csv": (CSV, "csv"),
    "events.tsv": (CSV.replace(",", "\t"), "tsv"),
    "events.txt": (CSV.replace(",", ";"), "text"),
    "pipes.txt": (CSV.replace(",", "|"), "text"),
    "blanks.txt": (CSV.replace(",", " "), "text"),
    "windows.csv": (CSV.replace("\n", "\r\n"), "csv"),
    "bom.csv": ("\ufeff" + CSV, "csv"),
    "blank-lines.csv": ("\n" + CSV.replace("\n1,11", "\n\n1,11") + "\n\n", "csv"),
    "quoted.csv": (
        CSV.replace(HEADER, '"user_id","item_id","rating","timestamp"\n').replace("1,10", '"1","10"'),
        "csv",
    ),
    "ml.inter": (
        CSV.replace(HEADER, "user_id:token,item_id:token,rating:float,timestamp:float\n").replace(",", "\t"),
        "inter",
    ),
    "u.data": (CSV[len(HEADER) :].replace(",", "\t"), "movielens"),
    "ratings.dat": (CSV[len(HEADER) :].replace(",", "::"), "movielens"),
    "events.csv.gz": (gzip.compress(CSV.encode()), "csv"),
    "two-members.csv.gz": (gzip.compress(CSV[:40].encode()) + gzip.compress(CSV[40:].encode()), "csv"),
    "events.jsonl": (
        "".join(json.dumps({"userId": u, "movieId": i, "stars": r, "ts": t}) + "\n" for u, i, r, t in ROWS),
        "jsonl",
    ),
    "array.json": (
        json.dumps([{"uid": u, "iid": i, "rating": r, "time": t} for u, i, r, t in ROWS]),
        "jsonl",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_every_text_format_gives_the_same_interactions(write, name):
    content, format_name = FILES[name]
    data = read(write(name, content))
    assert as_rows(data) == ROWS
    assert data.provenance.format == format_name
    assert data.provenance.rows == 3
    assert data.timestamps.dtype == np.int64


def test_parquet_and_a_folder_of_parquet_parts(tmp_path):
    frame = pl.DataFrame(ROWS, schema=["user", "item", "rating", "timestamp"], orient="row")
    frame.write_parquet(tmp_path / "all.parquet")
    assert as_rows(read(tmp_path / "all.parquet")) == ROWS
    parts = tmp_path / "parts"
    parts.mkdir()
    frame[:1].write_parquet(parts / "part-0.parquet")
    frame[1:].write_parquet(parts / "part-1.parquet")
    (parts / "_SUCCESS").touch()
    data = read(parts)
    assert as_rows(data) == ROWS
    assert "2 files" in data.provenance.notes[0]


def test_frames_matrices_and_databases(tmp_path):
    frame = pl.DataFrame(ROWS, schema=["user", "item", "rating", "timestamp"], orient="row")
    pandas = pd.DataFrame(ROWS, columns=["user", "item", "rating", "timestamp"])
    for source in (frame, frame.lazy(), pandas):
        assert as_rows(read(source)) == ROWS
    matrix = scipy.sparse.coo_array(([3.0, 4.0, 5.0, 0.0], ([0, 0, 1, 1], [0, 1, 0, 1])), shape=(2, 2))
    assert read(matrix).to_polars().rows() == [(0, 0, 3.0), (0, 1, 4.0), (1, 0, 5.0)]
    assert read(matrix > 0).ratings is None
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection, connection:
        connection.execute("CREATE TABLE clicks (user_id INT, item_id INT, rating REAL, timestamp INT)")
        connection.executemany("INSERT INTO clicks VALUES (?, ?, ?, ?)", ROWS)
    url = f"sqlite:///{tmp_path}/shop.db"
    for source, options in (
        (url, {}),
        (url, {"table": "clicks"}),
        (f"{url}?table=clicks", {}),
        (url, {"query": "SELECT * FROM clicks;"}),
        (f"{url}?query=SELECT * FROM clicks WHERE rating > 0", {}),
        (f"{url}?query=SELECT%20*%20FROM%20clicks", {}),
    ):
        assert as_rows(read(source, **options)) == ROWS


def test_pandas_types():
    frame = pd.DataFrame(
        {
            "user": pd.array([1, 2], dtype="Int64"),
            "item": pd.Categorical(["x", "y"]),
            "date": pd.to_datetime(["1970-01-01 00:01", "1970-01-02 00:00"]),
            "title": pd.array(["X", None], dtype="string"),
        }
    )
    zoned = frame.assign(date=frame["date"].dt.tz_localize("Europe/Paris"))
    assert read(zoned).timestamps.tolist() == [60 - 3600, 86400 - 3600]
    data = read(frame)
    assert data.to_polars().rows() == [(1, "x", 60), (2, "y", 86400)]
    assert data.item_titles.to_list() == ["X", None]
    gaps = pd.DataFrame({"user": [1.0, np.nan], "item": ["x", "y"]})
    assert read(gaps, on_bad_row="skip").to_polars().rows() == [(1, "x")]


def test_amazon_files(write):
    reviews = [
        {
            "reviewerID": "A1",
            "asin": "0005080789",
            "overall": 5.0,
            "unixReviewTime": 7,
            "reviewText": '"asin": "no',
        },
        {"reviewerID": "A2", "asin": "B00", "overall": 2.0, "unixReviewTime": 8, "reviewText": "ok"},
    ]
    lines = "".join(json.dumps(review) + "\n" for review in reviews)
    expected = [("A1", "0005080789", 5.0, 7), ("A2", "B00", 2.0, 8)]
    assert as_rows(read(write("reviews_X_5.json.gz", gzip.compress(lines.encode())))) == expected
    csv = "A1ZZZZZZZZZZZZ,0005080789,5.0,1369699200\nA2ZZZZZZZZZZZZ,B000000001,2.0,1355443200\n"
    data = read(write("ratings_X.csv", csv))
    assert data.provenance.format == "amazon"
    assert as_rows(data)[0] == ("A1ZZZZZZZZZZZZ", "0005080789", 5.0, 1369699200)
    newer = {
        "rating": 5.0,
        "title": "good",
        "text": "",
        "asin": "B1",
        "parent_asin": "B0",
        "user_id": "U",
        "timestamp": 9,
    }
    data = read(write("Beauty.jsonl", json.dumps(newer)))
    assert as_rows(data) == [("U", "B1", 5.0, 9)]
    assert data.item_titles is None


def test_gowalla_checkins(write):
    line = "{}\t2010-10-19T23:55:27Z\t30.2359091167\t-97.7951395833\t{}\n"
    data = read(write("loc.txt", line.format(0, 22847) + line.format(0, 420315) + line.format(1, 22847)))
    assert data.to_polars().rows() == [
        (0, 22847, 1287532527),
        (0, 420315, 1287532527),
        (1, 22847, 1287532527),
    ]


def test_lightgcn_lines(write):
    data = read(write("train.txt", "0 1 2 3 4 5\n1 2\n2\n3 9  8 7 \n"))
    assert data.provenance.format == "lightgcn"
    assert data.to_polars().rows() == [(0, i) for i in range(1, 6)] + [(1, 2), (3, 7), (3, 8), (3, 9)]
    named = read(write("named.txt", "ann tea jam\nbob tea\n"), format="lightgcn")
    assert named.to_polars().rows() == [("ann", "jam"), ("ann", "tea"), ("bob", "tea")]
    bad = read(write("bad.txt", b"0 1 2 3 4 5\n1 \xff\n2 3\n"), on_bad_row="skip")
    assert bad.provenance.bad_rows == 1
    assert bad.to_polars().rows() == [(0, i) for i in range(1, 6)] + [(2, 3)]


def test_columns_by_position_and_left_out(write):
    path = write("x.txt", "7\t1\t5.5\n8\t2\tbad\n")
    assert read(path, user="2", item="1").to_polars().rows() == [(1, 7), (2, 8)]
    path = write("y.csv", "user,item,rating\n1,2,good\n")
    assert read(path, rating="").ratings is None


def test_titles_come_along(write):
    data = read(write("x.csv", 'user,item,title\n1,7,"Alien, again"\n2,8,Brazil\n'))
    assert data.item_titles.to_list() == ["Alien, again", "Brazil"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["5", "6"], np.array([5, 6])),
        (["5.0", "6.0"], np.array([5, 6])),
        (["5.5", "6"], np.array([5.5, 6.0])),
        (["8e8", "9e8"], np.array([800_000_000, 900_000_000])),
        (["1970-01-02", "1970-01-03"], np.array([86400, 172800])),
        (["1970-01-02 00:00:01", "1970-01-03 00:00:00"], np.array([86401, 172800])),
        (["1970-01-02T00:00:00.5Z", "1970-01-02T02:00:00+02:00"], np.array([86400, 86400])),
        (["1970-01-02", "1970-01-02 00:00:01"], np.array([86400, 86401])),
    ],
)
def test_timestamps(write, values, expected):
    data = read(write("x.csv", f"user,item,ts\n1,1,{values[0]}\n2,2,{values[1]}\n"))
    np.testing.assert_array_equal(data.timestamps, expected)
    assert data.timestamps.dtype == expected.dtype


def test_ids_keep_their_spelling(write):
    data = read(write("x.csv", "user,item\n1,0005\n2,7\n"))
    assert data.to_polars().rows() == [(1, "0005"), (2, "7")]
    assert read(write("y.csv", "user,item\n1,x\nb,7\n")).user_ids.ids.to_list() == ["1", "b"]
    assert read(write("z.csv", "user,item\n1,2\n"), ids="string").to_polars().rows() == [("1", "2")]
    snowflakes = '{"user": 1234567890123456789, "item": 1}\n' * 9
    for more in ("", '{"user": [], "item": 1}\n'):  # also by the careful pass
        data = read(write("w.jsonl", snowflakes + more), on_bad_row="skip")
        assert data.to_polars().rows() == [("1234567890123456789", 1)]
    huge = "99999999999999999999"
    assert read(write("w.csv", f"user,item\n{huge},2\n")).user_ids.ids.to_list() == [huge]
    assert read(write("v.csv", "user,item\n1, a b \n")).item_ids.ids.to_list() == ["a b"]


def test_ids_of_json_are_integers_if_all_of_them_can_be(write):
    lines = '{"user": 5, "item": "7"}\n{"user": "6", "item": 8}\n'
    assert read(write("x.jsonl", lines)).to_polars().rows() == [(5, 7), (6, 8)]
    late = '{"user": 9, "item": "x"}\n' * 200 + '{"user": "007", "item": -0}\n'
    assert read(write("y.jsonl", late)).to_polars().rows() == [("007", "0"), ("9", "x")]
    huge = '{"user": 99999999999999999999999, "item": 1}\n'
    assert read(write("z.jsonl", huge)).user_ids.ids.to_list() == ["99999999999999999999999"]


@pytest.mark.parametrize("place", ["start", "middle", "end"])
def test_leading_zeros_are_seen_wherever_samples_are_taken(write, place):
    rows = ["1,12345678"] * 200_000
    at = {"start": 10, "middle": 100_100, "end": 199_990}[place]
    rows[at] = "1,00345678"
    data = read(write("x.csv", "user,item\n" + "\n".join(rows) + "\n"))
    assert data.item_ids.ids.to_list() == ["00345678", "12345678"]


def test_a_late_string_id_makes_all_strings(write):
    rows = ["1,2"] * 300_000
    rows[75_000] = "x,2"  # between the samples
    data = read(write("x.csv", "user,item\n" + "\n".join(rows)))
    assert data.user_ids.ids.to_list() == ["1", "x"]
    assert data.provenance.duplicates == 300_000 - 2


@pytest.mark.parametrize("kind", ["csv", "parquet", "jsonl", "frame", "pandas", "sqlite"])
def test_blanks_around_ids_are_dropped(tmp_path, kind):
    frame = pl.DataFrame({"user": [" a", "a", "b "], "item": ["x", "x ", "y"]})
    path = tmp_path / f"events.{kind}"
    source: object = path
    if kind == "frame":
        source = frame
    elif kind == "pandas":
        source = frame.to_pandas()
    elif kind == "sqlite":
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("CREATE TABLE events (user TEXT, item TEXT)")
            connection.executemany("INSERT INTO events VALUES (?, ?)", frame.rows())
        source = f"sqlite:///{path}"
    else:
        {"csv": frame.write_csv, "parquet": frame.write_parquet, "jsonl": frame.write_ndjson}[kind](path)
    data = read(source)
    assert data.to_polars().rows() == [("a", "x"), ("b", "y")]
    assert data.provenance.duplicates == 1


def test_duplicates_are_collapsed_and_counted(write):
    data = read(write("x.csv", "user,item,ts\n1,2,9\n1,2,5\n1,3,1\n"))
    assert data.to_polars().rows() == [(1, 2, 9), (1, 3, 1)]
    assert (data.provenance.rows, data.provenance.duplicates) == (3, 1)


def test_random_frames_survive_csv(tmp_path):
    rng = np.random.default_rng(0)
    pairs = np.unique(rng.integers(-50, 50, (500, 2)), axis=0)
    frame = pl.DataFrame(
        {"user": pairs[:, 0], "item": pairs[:, 1], "timestamp": rng.integers(0, 2**40, len(pairs))}
    )
    for separator in ",;|\t":
        frame.write_csv(tmp_path / "x.csv", separator=separator)
        back = read(tmp_path / "x.csv").to_polars().rename({"user_id": "user", "item_id": "item"})
        assert back.equals(frame)


def test_dates_with_dots_have_the_day_first(write):
    path = write(
        "export.csv", "date;user;item\n02.01.1970;a;x\n01.02.1970 00:01;b;y\n01.01.1970 00:00:05;c;z\n"
    )
    stamps = read(path).to_polars().sort("user_id")["timestamp"].to_list()
    assert stamps == [86_400, 31 * 86_400 + 60, 5]


def test_numbers_in_other_forms_late_in_a_file(write):
    """Blanks around a number, a fraction among whole times, a number as a JSON string."""
    rows = "1,2,5,1\n" * 200
    data = read(write("x.csv", f"user,item,rating,ts\n{rows}1,3, 4 ,7.5\n"))
    assert data.to_polars().rows() == [(1, 2, 1.0, 5.0), (1, 3, 7.5, 4.0)]
    lines = '{"user": "a", "item": "x", "stars": 5, "ts": 1}\n' * 200
    data = read(write("x.jsonl", lines + '{"user": "a", "item": "y", "stars": "4", "ts": "2"}\n'))
    assert data.to_polars().rows() == [("a", "x", 1, 5.0), ("a", "y", 2, 4.0)]


def test_a_file_in_latin_1_names_the_command_that_converts_it(write):
    path = write("my export.csv", b"user,item\na,caf\xe9\n")
    with pytest.raises(DataError, match="line 2: bytes that are not UTF-8") as caught:
        read(path)
    ((command, _),) = caught.value.commands
    assert command == f"iconv -f latin1 -t utf-8 '{path}' > 'utf8-my export.csv'"
    if shutil.which("iconv"):
        subprocess.run(command, shell=True, check=True, cwd=path.parent)
        assert read(path.with_name("utf8-my export.csv")).item_ids.ids.to_list() == ["café"]
