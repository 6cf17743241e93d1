"""What somebody else sends or leaves lying about: runs, studies and folders never do more than they are asked to."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from talos import Recommender
from talos.data.datasets.cache import _from_package_index
from talos.data.open import open_split
from talos.errors import DownloadError
from talos.files import digest_of

Talos = Callable[..., subprocess.CompletedProcess[str]]
QUICK = ("--dim", "4", "--epochs", "1", "--k", "3")
TUNED = ("--set", "backbone.dim=4", "--epochs", "1", "--k", "3", "--trials", "1")


@pytest.fixture
def shop(clicks: Path, tmp_path: Path) -> str:
    """The clicks in a SQLite file."""
    rows = pl.read_csv(clicks).select("user", "item").rows()
    with closing(sqlite3.connect(tmp_path / "shop.db")) as database, database:
        database.execute("CREATE TABLE clicks (user TEXT, item TEXT)")
        database.executemany("INSERT INTO clicks VALUES (?, ?)", rows)
    return f"sqlite:///{tmp_path / 'shop.db'}"


def rewrite(path: Path, **changes: object) -> None:
    """Change a JSON file as its owner can, digest included."""
    values = json.loads(path.read_text())
    sealed = values.pop("sha256", None)
    values |= changes
    path.write_text(json.dumps({**values, **({"sha256": digest_of(values)} if sealed else {})}))


# ----------------------------------------------------------------------------------------- databases


def test_a_run_opens_no_database_by_itself(talos: Talos, shop: str) -> None:
    query = ("--query", "SELECT user, item FROM clicks")
    assert talos("train", shop, *query, "--out", "run", *QUICK).returncode == 0
    metrics = json.loads(Path("run/model.json").read_text())["metrics"]
    Path("shop.db").rename("elsewhere.db")
    for command in ("evaluate", "report", "card"):
        assert talos(command, "run").returncode == 0  # by the test part that the run has
    assert not Path("shop.db").exists()
    Path("elsewhere.db").rename("shop.db")
    done = talos("evaluate", "run", "--data", shop)
    assert done.returncode == 2
    assert "the rows of a query, and a run's SQL is not run by itself" in done.stderr
    done = talos("evaluate", "run", "--data", shop, *query, "--json", "--k", "3,5")
    found = json.loads(done.stdout)["metrics"]
    assert {name: metrics[name] for name in found} == found
    assert talos("report", "run", "--data", shop, *query).returncode == 0


def test_the_sql_of_a_run_is_not_run(talos: Talos, shop: str, clicks: Path, tmp_path: Path) -> None:
    """A run that was trained on a file is given the address of somebody's database."""
    assert talos("train", clicks, "--out", "run", *QUICK).returncode == 0
    source = json.loads(Path("run/model.json").read_text())["source"]
    for address in (shop, "postgresql://127.0.0.1:1/x", f"{shop}?query=SELECT 1 AS user, 2 AS item"):
        record = {**source, "path": address, "query": "SELECT 1 AS user, 2 AS item"}
        rewrite(tmp_path / "run" / "model.json", source=record)
        before = Path("shop.db").read_bytes()
        for command in ("evaluate", "report"):
            assert talos(command, "run").returncode == 0  # nothing is opened: the run has its test part
        done = talos("evaluate", "run", "--data", shop)
        assert (done.returncode, "a run's SQL is not run by itself" in done.stderr) == (2, True), done.stderr
        assert Path("shop.db").read_bytes() == before


def test_a_study_opens_no_database_by_itself(talos: Talos, shop: str) -> None:
    done = talos("tune", f"{shop}?table=clicks", "--out", "study", *TUNED)
    assert done.returncode == 0, done.stderr
    assert f"talos tune '{shop}?table=clicks' --out study --finalize" in done.stderr
    done = talos("tune", "--out", "study", "--finalize")
    assert (done.returncode, "does not open it by itself" in done.stderr) == (2, True)
    assert talos("tune", f"{shop}?table=clicks", "--out", "study", "--finalize").returncode == 0


@pytest.mark.parametrize("elsewhere", ["postgresql://127.0.0.1:1/x", "notes.txt", "sqlite:///notes.txt"])
def test_a_study_opens_no_storage_elsewhere_by_itself(
    talos: Talos, clicks: Path, tmp_path: Path, elsewhere: str
) -> None:
    assert talos("tune", clicks, "--out", "study", *TUNED).returncode == 0
    (tmp_path / "notes.txt").write_text("precious, without a line break")
    rewrite(tmp_path / "study" / "tune.json", storage=elsewhere)
    done = talos("tune", "--out", "study", "--finalize")
    assert (done.returncode, "does not open by itself" in done.stderr) == (2, True), done.stderr
    assert (tmp_path / "notes.txt").read_text() == "precious, without a line break"
    assert "--storage" in done.stderr


def test_a_study_that_was_copied_uses_its_own_trials(talos: Talos, clicks: Path) -> None:
    assert talos("tune", clicks, "--out", "study", *TUNED).returncode == 0
    shutil.copytree("study", "copy")
    Path("study/study.db").unlink()
    done = talos("tune", "--out", "copy", "--finalize")
    assert done.returncode == 0, done.stderr
    assert not Path("study/study.db").exists()


@pytest.mark.parametrize(
    "name", ["config", "metrics", "valid", "loss_state", "epoch", "versions", "baseline"]
)
def test_metadata_of_another_type(talos: Talos, clicks: Path, tmp_path: Path, name: str) -> None:
    assert talos("train", clicks, "--out", "run", *QUICK).returncode == 0
    for value in (None, "x", [], True):
        rewrite(tmp_path / "run" / "model.json", **{name: value})
        for command in (
            ("evaluate", "run", "--k", 3),
            ("report", "run"),
            ("recommend", "run", "--user", "user00"),
        ):
            done = talos(*command)
            assert (done.returncode, f"model.json: {name} is" in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize("source", ["x", {}, {"path": 1}, {"path": "x", "columns": 1, "split": {}}])
def test_a_damaged_record_of_the_data(talos: Talos, clicks: Path, tmp_path: Path, source: object) -> None:
    assert talos("train", clicks, "--out", "run", *QUICK).returncode == 0
    rewrite(tmp_path / "run" / "model.json", source=source)
    done = talos("evaluate", "run", "--data", clicks)
    assert (done.returncode, "the record of its data" in done.stderr or "source is" in done.stderr) == (
        2,
        True,
    )


# ----------------------------------------------------------------------------------------- passwords


@pytest.fixture
def server(postgres: str) -> Iterator[Any]:
    """A connection to the server that all tests share; the tables of this one are gone before and after it."""
    import psycopg

    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS recs, shop")
        yield connection
        connection.execute("DROP TABLE IF EXISTS recs, shop")


def test_passwords_are_neither_stored_nor_printed(
    talos: Talos, postgres: str, server: Any, tmp_path: Path, clicks: Path
) -> None:
    rows = pl.read_csv(clicks).select("user", "item").rows()
    server.execute('CREATE TABLE shop ("user" TEXT, item TEXT)')
    server.cursor().executemany("INSERT INTO shop VALUES (%s, %s)", rows)
    hidden = "hid%2Fd%40n"
    place = f"{postgres.replace(':secret@', f':{hidden}@')}?table=shop&password={hidden}"
    clicks.unlink()
    said = ""
    for line in (
        ("init", place, "--out", "run.toml"),
        ("train", place, "--out", "run", *QUICK),
        ("data", "split", place, "--out", "split"),
        ("data", "split", place, "--out", "shards", "--shards", "2"),
        ("data", "describe", place),
        ("tune", place, "--out", "study", *TUNED),
        ("tune", place, "--out", "study", "--finalize"),
        (
            "compare",
            place,
            "--out",
            "compared",
            "--losses",
            "sl",
            "--seeds",
            "1",
            "--set",
            "training.epochs=1",
        ),
        ("evaluate", "run", "--data", place, "--k", "3"),
        ("recommend", "run", "--all", "--out", place.replace("shop", "recs")),
    ):
        done = talos(*line)
        assert done.returncode == 0, (line, done.stderr)
        said += done.stdout + done.stderr
    for line in (
        ("evaluate", "run", "--data", place.replace("table=shop", "table=nothing")),
        ("train", f"mysql://me:{hidden}@host/x", "--out", "y"),
    ):
        done = talos(*line)
        assert done.returncode == 2, (line, done.stderr)
        said += done.stdout + done.stderr
    assert "d%40n" not in said
    assert "hid" not in said
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 20
    for path in files:
        assert b"d%40n" not in path.read_bytes(), path
        assert b"hid%2F" not in path.read_bytes(), path


# ------------------------------------------------------------------------------------------- globbing


@pytest.mark.parametrize("name", ["runs[1]", "run*", "{a,b}", "run?", "a=1"])
def test_every_path_is_that_path(talos: Talos, clicks: Path, tmp_path: Path, name: str) -> None:
    """Beside each stands one that the name would match as a pattern, with other items."""
    near = {"runs[1]": "runs1", "run*": "run-near", "{a,b}": "a", "run?": "runs", "a=1": "a"}[name]
    other = tmp_path / "other.csv"
    other.write_text(clicks.read_text().replace(",item", ",other").replace("user,other", "user,item"))
    for folder, data in ((near, other), (name, clicks)):
        source = tmp_path / folder / "data"
        for parts, more in (
            ("split", ()),
            ("shards", ("--shards", "2")),
            ("tables", ("--format", "parquet")),
        ):
            done = talos("data", "split", data, "--out", source / parts, *more)
            assert done.returncode == 0, done.stderr
        for parts in ("split", "shards", "tables"):
            out = tmp_path / folder / f"run-{parts}"
            assert talos("train", source / parts, "--out", out, *QUICK).returncode == 0
        compared = ("--losses", "sl", "--seeds", "1", "--set", "training.epochs=1", "--k", "3")
        for _ in range(2):  # the second time the stored fits are read
            done = talos("compare", source / "split", "--out", tmp_path / folder / "compared", *compared)
            assert done.returncode == 0, done.stderr
        tuned = talos("tune", source / "split", "--out", tmp_path / folder / "tuned", *TUNED)
        assert tuned.returncode == 0, tuned.stderr
    for parts in ("split", "shards", "tables"):
        run = tmp_path / name / f"run-{parts}"
        lists = json.loads(talos("recommend", run, "--user", "user00", "--json").stdout)
        assert [row["item_id"][:4] for row in lists] == ["item"] * 3
        done = talos("recommend", run, "--all", "--out", run / "recs.parquet")
        assert done.returncode == 0, done.stderr
        written = pl.read_parquet((run / "recs.parquet").read_bytes())
        assert set(written["item_id"].str.slice(0, 4)) == {"item"}
        assert talos("evaluate", run, "--k", "3").returncode == 0


# ---------------------------------------------------------------------- code in the current folder


def test_workers_import_nothing_from_the_current_folder(talos: Talos, clicks: Path, tmp_path: Path) -> None:
    for module in ("hashlib", "tomllib", "csv", "sqlalchemy"):
        (tmp_path / f"{module}.py").write_text("open('it-ran', 'w').close(); raise SystemExit(1)\n")
    done = talos("tune", clicks, "--out", "study", *TUNED[:-1], "2", "--workers", "2")
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "it-ran").exists()


def test_workers_find_classes_where_the_command_does(
    start: Callable[..., subprocess.Popen[str]], clicks: Path, tmp_path: Path
) -> None:
    """`python -m talos` looks for classes of one's own in the current folder, and so do its workers."""
    (tmp_path / "our_loss.py").write_text(
        "from talos.losses import Softmax\nclass Ours(Softmax):\n    short_name = ''\n"
    )
    space = tmp_path / "space.toml"
    space.write_text("[loss]\ntau = [0.1, 0.2]\n")
    options = ("--loss", "our_loss:Ours", "--space", space, "--workers", "2", "--epochs", "1", "--k", "3")
    process = start("tune", clicks, "--out", "study", *options, "--trials", "2", "--json")
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert json.loads(out)["trials"] == {"complete": 2, "pruned": 0, "failed": 0}


def test_the_download_by_pip_runs_no_folder_called_pip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pip").mkdir()
    (tmp_path / "pip" / "__main__.py").write_text("open('it-ran', 'w').close()\n")
    (tmp_path / "pip" / "__init__.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(DownloadError):
        _from_package_index("pip:no-such-package==1", tmp_path)
    assert not (tmp_path / "it-ran").exists()


def test_child_processes_are_isolated() -> None:
    """Whoever starts Python from the library says -P, or the current folder is on its search path."""
    sources = Path(sys.modules["talos"].__file__ or "").parent.rglob("*.py")
    starts = re.findall(r"sys\.executable,\s*(\S+)", "".join(path.read_text() for path in sources))
    assert starts == ['"-P",'] * 2


# -------------------------------------------------------------------------------------- changed data


def test_changed_data_are_not_split_again(talos: Talos, clicks: Path, tmp_path: Path) -> None:
    assert talos("train", clicks, "--out", "run", *QUICK).returncode == 0
    before = talos("evaluate", "run", "--json", "--k", "3")
    rows = clicks.read_text()
    clicks.write_text(rows + "".join(f"user{user:02d},new,T\n" for user in range(40)))
    assert talos("evaluate", "run", "--json", "--k", "3").stdout == before.stdout
    for command in ("evaluate", "report"):
        done = talos(command, "run", "--data", clicks)
        assert done.returncode == 2
        assert (
            f"{clicks}: not the data of run: another train and valid and test part than at training"
            in done.stderr
        )
    moved = clicks.rename(tmp_path / "moved.csv")
    moved.write_text(rows)
    assert talos("evaluate", "run", "--json", "--k", "3", "--data", moved).stdout == before.stdout
    assert talos("evaluate", "run", moved, "--k", "3").returncode == 0  # as a test set of its own


def test_a_run_that_was_saved_in_python_is_checked_by_the_test_part_it_carries(
    talos: Talos, clicks: Path
) -> None:
    """Its data are read by the options on the line, since it has no record of them."""
    parts = open_split(clicks, test=0.3, split_seed=5)
    recommender = Recommender(dim=4, epochs=1, k=3).fit(parts.train, parts.valid)
    recommender.evaluate(parts.test, 3)
    recommender.save("run")
    before = talos("evaluate", "run", "--json", "--k", "3")
    split = ("--test", "0.3", "--split-seed", "5")
    assert talos("evaluate", "run", "--json", "--k", "3", "--data", clicks, *split).stdout == before.stdout
    assert talos("report", "run", "--data", clicks, *split).returncode == 0
    rows = clicks.read_text()
    clicks.write_text(rows.replace("user,item", "who,what", 1))
    columns = ("--user-column", "who", "--item-column", "what")
    assert talos("evaluate", "run", "--k", "3", "--data", clicks, *columns, *split).returncode == 0
    clicks.write_text(rows)
    assert talos("evaluate", "run", "--k", "3", "--data", clicks).returncode == 2  # split in another way
    clicks.write_text(rows + "user01,new,9\n")
    for command in ("evaluate", "report"):
        done = talos(command, "run", "--data", clicks, *split)
        assert done.returncode == 2
        assert f"{clicks}: not the data of run: another test part than at training" in done.stderr
    Recommender(dim=4, epochs=1, k=3).fit(parts.train, parts.valid).save("untested")
    done = talos("evaluate", "untested", "--data", clicks)
    assert (done.returncode, "does not say what it was tested on" in done.stderr) == (2, True)


def test_a_changed_test_file_is_noticed(talos: Talos, clicks: Path, tmp_path: Path) -> None:
    assert talos("data", "split", clicks, "--out", "parts").returncode == 0
    assert talos("train", "parts", "--out", "run", *QUICK).returncode == 0
    assert talos("evaluate", "run", "--k", "3").returncode == 0
    test = tmp_path / "parts" / "test.tsv"
    test.write_text("".join(test.read_text().splitlines(keepends=True)[:-3]))
    done = talos("evaluate", "run", "--data", "parts")
    assert (done.returncode, "another test part than at training" in done.stderr) == (2, True), done.stderr


def test_a_finalised_run_knows_its_data(talos: Talos, clicks: Path) -> None:
    assert talos("tune", clicks, "--out", "study", *TUNED, "--finalize").returncode == 0
    assert talos("evaluate", "study/final", "--k", "3").returncode == 0
    clicks.write_text(clicks.read_text() + "user00,new,T\n")
    assert talos("evaluate", "study/final", "--data", clicks).returncode == 2
    clicks.unlink()
    assert talos("evaluate", "study/final", "--k", "3").returncode == 0


# ------------------------------------------------------------------------------------------- modules


def test_a_run_or_a_study_does_not_choose_what_is_imported(
    talos: Talos, clicks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module on Python's search path, whose code would run when it is imported."""
    folder = tmp_path / "installed"
    folder.mkdir()
    (folder / "somebodys.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=":")
    assert talos("train", clicks, "--out", "run", *QUICK).returncode == 0
    assert talos("tune", clicks, "--out", "study", *TUNED).returncode == 0
    config = json.loads(Path("run/model.json").read_text())["config"]
    for section in ("loss", "backbone"):
        rewrite(Path("run/model.json"), config={**config, section: {"name": "somebodys:Thing"}})
        Path("events.csv").write_text("user,item\nuser00,item01\n")
        for line in (
            ("recommend", "run", "--user", "user00"),
            ("recommend", "run", "--history", "item01,item02"),
            ("evaluate", "run"),
            ("report", "run"),
            ("export", "run", "--format", "parquet", "--out", f"vectors-{section}"),
            ("update", "run", "events.csv", "--out", f"updated-{section}"),
        ):
            done = talos(*line)
            assert done.returncode in (0, 2), (line, done.stderr)
            assert "Traceback" not in done.stderr
            assert not (tmp_path / "ran").exists(), line
    done = talos("recommend", "run", "--history", "item01")
    assert (done.returncode, "talos --import somebodys" in done.stderr) == (2, True)
