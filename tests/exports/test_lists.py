"""Lists of all users: every destination, every point at which a process can die, every refusal."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from talos.config import RunConfig
from talos.data.open import read_lists
from talos.errors import ArgumentError, DataError, MissingExtraError, TalosError
from talos.exports import InterruptedExportError, lists, write_lists
from talos.model.model import Model
from talos.model.recommender import Recommender

Make = Callable[..., Model]
SUFFIXES = ["parquet", "csv", "tsv", "jsonl", "ndjson", "csv.gz", "jsonl.gz"]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of twelve users at K = 5, so that small models have several."""
    monkeypatch.setattr(lists, "_ROWS_IN_A_PART", 60)


def recommended(model: Model, **options: Any) -> pl.DataFrame:
    recommender = Recommender(config=RunConfig())
    recommender.model = model
    return recommender.recommend(**options)


def read(path: Path) -> pl.DataFrame:
    kind = path.name.removesuffix(".gz").rpartition(".")[2]
    types = {"user_id": pl.String, "item_id": pl.String, "score": pl.Float32, "rank": pl.Int64}
    if kind == "parquet":
        return pl.read_parquet(path)
    if kind in ("csv", "tsv"):
        return pl.read_csv(path, schema_overrides=types, separator="\t" if kind == "tsv" else ",")
    import gzip

    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return pl.read_ndjson(data, schema=types)


def rows_of(database: Path, table: str = "recs") -> list[Any]:
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute(f'SELECT * FROM "{table}" ORDER BY user_id, rank').fetchall()


def tables_of(database: Path) -> list[str]:
    with closing(sqlite3.connect(database)) as connection:
        return [row[0] for row in connection.execute("SELECT name FROM sqlite_master ORDER BY 1")]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_format_holds_what_recommend_says(make: Make, tmp_path: Path, suffix: str) -> None:
    model = make()
    out = tmp_path / f"recs.{suffix}"
    calls: list[tuple[int, int]] = []
    done = write_lists(model, out, progress=lambda *call: calls.append(call))
    expected = recommended(model, k=5)
    assert read(out).equals(expected)
    assert done["users"] == 90
    assert done["rows"] == len(expected) == 90 * 5 - 3  # somebody has all items but two
    assert done["resumed_at"] == 0
    assert calls[0] == (0, 90)
    assert calls[-1] == (90, 90)
    assert [path.name for path in tmp_path.iterdir()] == [out.name]


def test_a_recommender_and_its_options(make: Make, tmp_path: Path) -> None:
    model = make(strings=False)
    recommender = Recommender(config=RunConfig())
    recommender.model = model
    write_lists(recommender, str(tmp_path / "recs.parquet"), k=40, filter_seen=False)
    assert pl.read_parquet(tmp_path / "recs.parquet").equals(recommended(model, k=40, filter_seen=False))
    with pytest.raises(ArgumentError, match="not fitted"):
        write_lists(Recommender(), tmp_path / "none.csv")


def test_candidates_and_excluded_items(make: Make, tmp_path: Path) -> None:
    model, out = make(), tmp_path / "recs.csv"
    ids = model.train.item_ids.ids.to_list()
    wish: dict[str, Any] = {"candidates": ids[:20], "exclude": ids[3:9]}
    with pytest.raises(InterruptedExportError):
        write_lists(model, out, **wish, progress=interrupt_at(60))
    with pytest.raises(DataError, match="other candidates, excluded items or filters"):
        write_lists(model, out, candidates=ids[:20])
    write_lists(model, out, **wish)
    assert read(out).equals(recommended(model, k=5, **wish))
    with pytest.raises(ArgumentError, match="exclude: no item 'tea'"):
        write_lists(model, tmp_path / "other.csv", exclude=["tea"])


def test_the_evaluation_reads_the_lists(make: Make, tmp_path: Path) -> None:
    model = make()
    write_lists(model, tmp_path / "recs.csv")
    ours = recommended(model, k=5).select("user_id", "item_id", "rank")
    assert (
        read_lists(tmp_path / "recs.csv")
        .select("user_id", "item_id", pl.col("rank").cast(pl.Int64))
        .equals(ours)
    )


class Crash(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("suffix", ["parquet", "csv.gz"])
def test_after_a_crash_at_any_write_the_next_call_finishes(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    model = make(users=40)
    whole = tmp_path / f"whole.{suffix}"
    original = lists.replace_file
    count = 0

    def patch(function: Any) -> None:
        monkeypatch.setattr(lists, "replace_file", function)
        monkeypatch.setattr("talos.files.replace_file", function)  # by which `replace_text` writes

    def counting(path: Path, write: Any) -> None:
        nonlocal count
        count += 1
        original(path, write)

    patch(counting)
    write_lists(model, whole)
    writes = count
    assert writes == 1 + 2 * 4 + 1  # the record, four parts with a record each, the file
    for moment in range(2 * writes - 1):
        out = tmp_path / f"crash{moment}.{suffix}"
        seen = 0

        def crashing(path: Path, write: Any, moment: int = moment) -> None:
            nonlocal seen
            seen += 1
            before, after = 2 * seen - 2, 2 * seen - 1
            if before == moment:
                path.with_name(f".{path.name}.1.tmp").write_bytes(b"half of it")
                raise Crash
            original(path, write)
            if after == moment:
                raise Crash

        patch(crashing)
        with pytest.raises(Crash):
            write_lists(model, out)
        assert not out.exists()
        patch(original)
        done = write_lists(model, out)
        assert out.read_bytes() == whole.read_bytes(), moment
        assert done["rows"] == len(read(whole))
        assert (done["resumed_at"] > 0) == (moment >= 5)


def interrupt_at(users: int) -> Callable[[int, int], None]:
    def stop(done: int, total: int) -> None:
        if done >= users:
            raise KeyboardInterrupt

    return stop


def test_interrupted_and_resumed(make: Make, tmp_path: Path) -> None:
    model, out = make(), tmp_path / "recs.csv"
    with pytest.raises(InterruptedExportError, match="after 48 of 90 users"):
        write_lists(model, out, progress=interrupt_at(60))
    assert not out.exists()
    for other in ({"k": 3}, {"filter_seen": False}):
        with pytest.raises(DataError, match=r"was started with (k=5|mask=known)"):
            write_lists(model, out, **other)
    with pytest.raises(DataError, match="another model"):
        write_lists(make(seed=1), out)
    assert write_lists(model, out)["resumed_at"] == 48
    assert read(out).equals(recommended(model, k=5))


def test_overwriting(make: Make, tmp_path: Path) -> None:
    out = tmp_path / "recs.csv"
    write_lists(make(), out)
    before = out.read_bytes()
    with pytest.raises(ArgumentError, match=r"exists; expected a new name \(overwrite=True replaces it\)"):
        write_lists(make(), out)
    with pytest.raises(InterruptedExportError):
        write_lists(make(seed=1), out, overwrite=True, progress=interrupt_at(60))
    assert out.read_bytes() == before  # until the new one is whole
    write_lists(make(seed=2), out, overwrite=True)  # gives up on what was begun
    assert read(out).equals(recommended(make(seed=2), k=5))
    assert [path.name for path in tmp_path.iterdir()] == ["recs.csv"]


def test_two_at_once_are_refused(make: Make, tmp_path: Path) -> None:
    model, out = make(), tmp_path / "recs.csv"

    def second(done: int, total: int) -> None:
        with pytest.raises(TalosError, match="is being written by process"):
            write_lists(model, out)

    write_lists(model, out, progress=second)
    assert read(out).equals(recommended(model, k=5))


def test_a_damaged_record_means_starting_again(make: Make, tmp_path: Path) -> None:
    model, out = make(), tmp_path / "recs.csv"
    for damage in ("", "[]", '{"format": 1}', '{"format": 1, "job": 3, "users": 1, "rows": 1, "parts": 0}'):
        with pytest.raises(InterruptedExportError):
            write_lists(model, out, progress=interrupt_at(60))
        (tmp_path / ".recs.csv.parts" / "progress.json").write_text(damage)
        assert write_lists(model, out)["resumed_at"] == 0
        assert read(out).equals(recommended(model, k=5))
        out.unlink()


@pytest.mark.parametrize(
    ("out", "options", "words"),
    [
        ("recs.parqet", {}, "did you mean '.parquet'"),
        ("recs", {}, "has no suffix"),
        ("recs.parquet.gz", {}, "compressed already"),
        ("file/recs.csv", {}, "cannot be written to ("),
        ("folder.csv", {}, "is a folder"),
        ("recs.csv", {"k": 0}, "k: 0; expected 1 to 40"),
        ("recs.csv", {"k": 41}, "k: 41; expected 1 to 40"),
        ("mysql://host/shop", {}, "no way to write to 'mysql'"),
        ("sqlite://recs.db", {}, "names no file"),
        ("sqlite:///missing/recs.db", {}, "no such folder"),
        ("sqlite:///recs.db?table=", {}, "a name of 1 to 47 bytes"),
        ("sqlite:///recs.db?table=" + "x" * 48, {}, "a name of 1 to 47 bytes"),
        ("sqlite:///recs.db?table=a.b", {}, "without a dot"),
        ("sqlite:///file", {}, "file is not a database"),
        ("postgresql://me:secret@127.0.0.1:1/shop", {}, "cannot connect"),
    ],
)
def test_refusals_leave_nothing_behind(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str, options: dict[str, int], words: str
) -> None:
    if out.startswith("postgresql"):
        pytest.importorskip("psycopg", reason="psycopg is not installed (extra `postgres`)")
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("not a database, and long enough to be looked at: " + "x" * 200)
    Path("folder.csv").mkdir()
    with pytest.raises((ArgumentError, DataError)) as caught:
        write_lists(make(), out, **options)
    assert words in str(caught.value)
    assert "secret" not in str(caught.value)
    assert caught.value.exit_code == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder.csv"]


def test_a_folder_that_cannot_be_written(make: Make) -> None:
    if not Path("/proc/self").exists():
        pytest.skip("no /proc, the folder that not even root can write to")
    with pytest.raises(ArgumentError, match="could not be written"):
        write_lists(make(), "/proc/recs.csv")


def test_postgres_without_its_driver(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "psycopg", None)
    with pytest.raises(MissingExtraError, match=r"writing to PostgreSQL .*talos-rec\[postgres\]"):
        write_lists(make(), "postgresql://host/shop")


@pytest.mark.parametrize("strings", [True, False])
def test_sqlite(make: Make, tmp_path: Path, strings: bool) -> None:
    model = make(strings=strings)
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE clicks (n INTEGER)")
        connection.commit()
    url = f"sqlite:///{path}?table=recs"
    done = write_lists(model, url)
    assert rows_of(path) == recommended(model, k=5).rows()
    assert tables_of(path) == ["clicks", "recs"]
    assert done["out"] == f"sqlite:///{path}, table recs"
    with closing(sqlite3.connect(path)) as connection, pytest.raises(sqlite3.IntegrityError):
        connection.execute("INSERT INTO recs SELECT * FROM recs LIMIT 1")
    with pytest.raises(ArgumentError, match="exists"):
        write_lists(model, url)
    write_lists(model, f"sqlite:///{path}")
    assert "recommendations" in tables_of(path)


def test_sqlite_is_resumed_where_it_stopped(make: Make, tmp_path: Path) -> None:
    model, path = make(), tmp_path / "shop.db"
    url = f'sqlite:///{path}?table=my "recs" %3b'
    with pytest.raises(InterruptedExportError, match="after 48"):
        write_lists(model, url, progress=interrupt_at(60))
    name = 'my "recs" ;'
    assert tables_of(path) == [f"{name}__talos", f"{name}__talos_progress"]
    with pytest.raises(DataError, match="was started with k=5"):
        write_lists(model, url, k=4)
    assert write_lists(model, url)["resumed_at"] == 48
    assert tables_of(path) == [name]
    before = rows_of(path, name.replace('"', '""'))
    assert before == recommended(model, k=5).rows()
    with pytest.raises(InterruptedExportError):
        write_lists(make(seed=1), url, overwrite=True, progress=interrupt_at(60))
    assert rows_of(path, name.replace('"', '""')) == before
    write_lists(make(seed=2), url, overwrite=True)
    assert rows_of(path, name.replace('"', '""')) == recommended(make(seed=2), k=5).rows()
    assert tables_of(path) == [name]


def test_a_full_disk_under_sqlite_is_not_the_users_mistake(
    make: Make, tmp_path: Path, full_disk: Any
) -> None:
    """Exit code 1, and nothing is left of a file in which nothing could be written."""
    out = f"sqlite:///{tmp_path / 'recs.db'}"
    with (
        full_disk(100),
        pytest.raises(TalosError, match=r"recs\.db, table .*the database says: disk") as caught,
    ):
        write_lists(make(), out)
    assert caught.value.exit_code == 1
    assert not list(tmp_path.iterdir())
    (tmp_path / "notes.db").write_text("not a database, and long enough to be read as one" * 20)
    with pytest.raises(DataError, match="file is not a database") as caught:
        write_lists(make(), f"sqlite:///{tmp_path / 'notes.db'}")
    assert caught.value.exit_code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["notes.db"]


def test_a_damaged_progress_table_is_not_believed(make: Make, tmp_path: Path) -> None:
    model, path = make(), tmp_path / "shop.db"
    url = f"sqlite:///{path}?table=recs"
    for damage in (
        "DELETE FROM recs__talos_progress",
        "UPDATE recs__talos_progress SET record = '['",
        "UPDATE recs__talos_progress SET record = '3'",
        "DROP TABLE recs__talos; DELETE FROM recs__talos_progress",
    ):
        with pytest.raises(InterruptedExportError):
            write_lists(model, url, overwrite=True, progress=interrupt_at(60))
        with closing(sqlite3.connect(path)) as connection:
            connection.executescript(f"{damage}; DROP TABLE IF EXISTS recs")
        with pytest.raises(DataError, match="was started with another model"):
            write_lists(model, url)
        assert write_lists(model, url, overwrite=True)["resumed_at"] == 0
        assert rows_of(path) == recommended(model, k=5).rows()


def test_sqlite_written_by_two_processes_loses_and_repeats_nothing(make: Make, tmp_path: Path) -> None:
    model, path = make(), tmp_path / "shop.db"
    url, others = f"sqlite:///{path}?table=recs", []

    def second(done: int, total: int) -> None:
        if done == 60 and not others:
            others.append(write_lists(model, url)["resumed_at"])

    with pytest.raises((ArgumentError, TalosError)):
        write_lists(model, url, progress=second)
    assert others == [48]
    assert rows_of(path) == recommended(model, k=5).rows()


def query(url: str, statement: str) -> list[Any]:
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


@pytest.mark.parametrize("strings", [True, False])
def test_postgres(make: Make, postgres: str, strings: bool) -> None:
    model = make(strings=strings)
    query(postgres, "DROP TABLE IF EXISTS recs")
    url = f"{postgres}?connect_timeout=5&table=recs"
    done = write_lists(model, url)
    rows = query(postgres, 'SELECT * FROM recs ORDER BY user_id COLLATE "C", rank' if strings
                 else "SELECT * FROM recs ORDER BY user_id, rank")  # fmt: skip
    expected = recommended(model, k=5)
    assert [row[:2] + row[3:] for row in rows] == expected.drop("score").rows()
    assert [row[2] for row in rows] == pytest.approx(expected["score"].to_list())
    assert "secret" not in done["out"]
    with pytest.raises(ArgumentError, match="exists"):
        write_lists(model, url)
    with pytest.raises(InterruptedExportError, match="after 48"):
        write_lists(make(seed=1, strings=strings), url, overwrite=True, progress=interrupt_at(60))
    assert len(query(postgres, "SELECT * FROM recs")) == len(expected)
    query(postgres, "ALTER TABLE recs RENAME TO kept")
    with pytest.raises(DataError, match="another model"):
        write_lists(model, url)
    assert write_lists(make(seed=1, strings=strings), url, overwrite=True)["resumed_at"] == 48
    assert len(query(postgres, "SELECT * FROM recs")) == len(expected)
    names = {row[0] for row in query(postgres, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'")}
    assert names == {"recs", "kept"}
    query(postgres, "DROP TABLE kept")


def test_postgres_schemas_empty_ids_and_permissions(make: Make, postgres: str) -> None:
    model = make(users=30)
    ids = model.train.user_ids.ids.to_list()
    ids[0] = ""  # an empty id is not NULL
    model.train.user_ids.ids = pl.Series(ids)
    query(postgres, "DROP SCHEMA IF EXISTS shop CASCADE; CREATE SCHEMA shop; DROP ROLE IF EXISTS guest;"
                    "CREATE ROLE guest LOGIN")  # fmt: skip
    write_lists(model, f"{postgres}?table=shop.recs")
    assert query(postgres, "SELECT count(*) FROM shop.recs WHERE user_id = ''") == [(5,)]
    with pytest.raises(DataError, match="the database says: permission denied"):
        write_lists(model, f"{postgres.replace('talos:', 'guest:')}?table=shop.mine")
