"""Whole commands, as a user runs them: output, exit codes, and nothing half-written."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def clicks(tmp_path: Path) -> Path:
    rows = [
        f"user{u},item{i},{1_600_000_000 + 97 * u + i}"
        for u in range(12)
        for i in range(10)
        if (u * i) % 3 != 1
    ]
    path = tmp_path / "clicks.csv"
    path.write_text("user_id,item_id,timestamp\n" + "\n".join(rows) + "\n")
    return path


def test_help_answers_without_torch() -> None:
    code = (
        "import sys\n"
        "sys.argv = ['talos', '--help']\n"
        "from talos.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "assert 'torch' not in sys.modules and 'polars' not in sys.modules, 'a heavy import at the top'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_import_talos_is_light() -> None:
    code = (
        "import sys, talos; assert 'torch' not in sys.modules; talos.metrics; assert 'torch' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_public_name_is_there() -> None:
    import talos

    for name in talos.__all__:
        assert getattr(talos, name).__doc__, name
    assert dir(talos) == sorted([*talos.__all__, "__version__"])
    with pytest.raises(AttributeError, match="no_such_name"):
        talos.no_such_name  # noqa: B018


def test_a_process_of_its_own_prints_and_ends_the_same(talos: Run, start: Start, clicks: Path) -> None:
    for arguments in (("data", "describe", clicks, "--json"), ("data", "describe", "nothing.csv")):
        process, done = start(*arguments), talos(*arguments)
        assert process.communicate(timeout=120) == (done.stdout, done.stderr)
        assert process.returncode == done.returncode


def test_describe(talos: Run, clicks: Path) -> None:
    done = talos("data", "describe", clicks, "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert (facts["users"], facts["items"]) == (12, 10)
    assert facts["interactions"] == len(clicks.read_text().splitlines()) - 1
    plain = talos("data", "describe", clicks)
    assert "interactions per user" in plain.stdout


def test_split_then_evaluate_lists(talos: Run, clicks: Path, tmp_path: Path) -> None:
    done = talos("data", "split", clicks, "--out", "parts", "--seed", 3, "--json")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record == json.loads((tmp_path / "parts" / "split.json").read_text())
    again = talos("data", "split", clicks, "--out", "again", "--seed", 3)
    assert again.returncode == 0
    for name in ("train", "valid", "test"):
        assert (tmp_path / "parts" / f"{name}.tsv").read_bytes() == (
            tmp_path / "again" / f"{name}.tsv"
        ).read_bytes()
    lists = tmp_path / "lists.csv"
    lists.write_text("user_id,item_id,score\nuser1,item0,0.5\nuser1,item3,0.75\n")
    done = talos("evaluate", "--recs", lists, "--truth", "parts/test.tsv", "--k", "1,2", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert {"precision@1", "recall@2", "ndcg@2", "mrr@1"} <= set(result["metrics"])
    assert result["users_without_list"] == result["users"] - 1
    assert "count as zero" in talos("evaluate", "--recs", lists, "--truth", "parts/test.tsv").stderr


def test_generated_events_are_data_for_every_command(talos: Run, tmp_path: Path) -> None:
    sizes = ("--users", 60, "--items", 40, "--events", 1200, "--held-out", 30, "--dim", 4)
    done = talos("data", "generate", "--out", "planted", *sizes, "--json")
    record = json.loads(done.stdout)
    assert done.returncode == 0
    assert 0 < record["best"]["metrics"]["recall@20"] <= 1
    described = json.loads(talos("data", "describe", "planted", "--json").stdout)
    assert described["interactions"] == sum(record["events"].values()) == 1200
    assert "1,200 of 1,200 events" in done.stderr
    again = talos("data", "generate", "--out", "planted", *sizes)
    assert again.returncode == 2
    assert "not empty" in again.stderr
    wrong = talos("data", "generate", "--out", "other", "--users", 10, "--items", 2, "--events", 21)
    assert wrong.returncode == 2
    assert "events" in wrong.stderr
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(("items", "k"), [(5, 5), (12, 10), (30, 20)])
def test_best_lists_of_generated_events_fit_the_items(talos: Run, items: int, k: int) -> None:
    size = ("--users", 40, "--items", items, "--events", 40 * items // 2)
    done = talos("data", "generate", *size, "--out", "world")
    assert done.returncode == 0, done.stderr
    assert f"best recall@{k} " in done.stdout
    best = json.loads(Path("world/planted.json").read_text())["best"]["metrics"]
    assert best[f"recall@{k}"] > 0


def test_existing_output_is_refused(talos: Run, clicks: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("precious")
    done = talos("data", "split", clicks, "--out", "full")
    assert done.returncode == 2
    assert [entry.name for entry in (tmp_path / "full").iterdir()] == ["mine.txt"]


def bad_inputs() -> dict[str, tuple[str, bytes, tuple[str, ...]]]:
    ok = b"user_id,item_id,timestamp\na,x,1\nb,y,2\n"
    return {
        "empty": ("data.csv", b"", ("data.csv", "empty")),
        "header only": ("data.csv", b"user_id,item_id\n", ("data.csv",)),
        "no such column": ("data.csv", b"usr,itm\na,x\n", ("data.csv", "usr")),
        "few fields": ("data.csv", ok + b"c\n", ("data.csv", "line 4")),
        "bad timestamp": ("data.csv", ok + b"c,z,soon\n", ("data.csv", "line 4", "soon")),
        "empty id": ("data.csv", ok + b",z,3\n", ("data.csv", "line 4", "user_id")),
        "binary": ("data.csv", bytes(range(256)) * 4, ("data.csv",)),
        "truncated gz": ("data.csv.gz", gzip.compress(ok * 50)[:-20], ("data.csv.gz",)),
        "not parquet": ("data.parquet", b"PAR1 nothing of the kind", ("data.parquet",)),
    }


@pytest.mark.parametrize("name", bad_inputs())
def test_bad_input_is_one_clear_message(talos: Run, tmp_path: Path, name: str) -> None:
    file, content, words = bad_inputs()[name]
    (tmp_path / file).write_bytes(content)
    done = talos("data", "split", file, "--out", "out")
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert [line[:7] for line in done.stderr.splitlines() if line[:2] != "  "] == ["error: "], done.stderr
    for word in words:
        assert word in done.stderr, done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["data", "describe", "nothing.csv"], "no such file, folder or dataset"),
        (["data", "describe", "movielens-10k"], "did you mean 'movielens-100k'"),
        (["data", "split", "clicks.csv", "--out", "o", "--k-core", "50"], "nothing is left after 50-core"),
        (["data", "split", "clicks.csv", "--out", "o", "--test", "1.5"], "error: --test: 1.5"),
        (["data", "describe", "clicks.csv", "--user-column", "usr_id"], "user_id"),
        (["data", "describe", "clicks.csv", "--input-format", "cvs"], "error: --input-format: 'cvs'"),
        (["data", "describe", "clicks.csv", "--k-core", "0"], "error: --k-core: 0"),
        (["data", "describe", "clicks.csv", "--on-bad-row", "ignore"], "'--on-bad-row'"),
        (["evaluate", "--recs", "clicks.csv", "--truth", "clicks.csv", "--k", "0"], "k: 0"),
        (["evaluate", "--recs", "clicks.csv", "--truth", "clicks.csv", "--k", "ten"], "--k: 'ten'"),
        (["evaluate", "--recs", "clicks.csv", "--truth", "clicks.csv", "--dialect", "latin"], "--dialect"),
        (["data", "get", "movielens-2m"], "movielens-1m"),
        (["data", "describe", "clicks.csv", "--jsn"], "--json"),
    ],
)
def test_wrong_arguments(talos: Run, clicks: Path, arguments: list[str], words: str) -> None:
    done = talos(*arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(entry.name for entry in clicks.parent.iterdir()) == ["clicks.csv"]


def test_hints_name_flags_and_not_arguments(talos: Run, tmp_path: Path) -> None:
    (tmp_path / "clicks.csv").write_text("user_id,item_id,timestamp\na,x,1\nb,y,soon\n")
    done = talos("data", "describe", "clicks.csv")
    assert "(--time-column '' leaves the column out, --on-bad-row skip skips such rows)" in done.stderr
    assert talos("data", "describe", "clicks.csv", "--time-column", "").returncode == 0
    (tmp_path / "parts").mkdir()
    pl.DataFrame({"user_id": [1, 2], "item_id": ["a", "b"]}).write_parquet(tmp_path / "parts" / "1.parquet")
    pl.DataFrame({"user_id": ["1"], "item_id": ["a"]}).write_parquet(tmp_path / "parts" / "2.parquet")
    mixed = talos("data", "describe", "parts")
    assert mixed.returncode == 2
    assert "expected ids of one type (--ids string makes them all strings)\n" in mixed.stderr
    assert talos("data", "describe", "parts", "--ids", "string").returncode == 0


def test_debug_shows_the_traceback(start: Start) -> None:
    process = start("data", "describe", "nothing.csv", "--debug")
    _, said = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "Traceback" in said


def test_bad_rows_can_be_skipped_and_are_counted(talos: Run, tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("user_id,item_id,timestamp\na,x,1\nb,y,soon\n,z,3\nc,z,4\n")
    done = talos("data", "describe", "data.csv", "--on-bad-row", "skip", "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert (facts["interactions"], facts["bad_rows"]) == (2, 2)


def test_list_and_doctor(talos: Run) -> None:
    names = [info["name"] for info in json.loads(talos("data", "list", "--json").stdout)]
    assert "movielens-100k" in names
    assert "torch" in json.loads(talos("doctor", "--json").stdout)


@pytest.mark.parametrize(
    ("name", "users", "items", "interactions"),
    [("beauty", 15_603, 8_692, 139_554), ("gowalla", 29_858, 40_988, 1_027_464)],
)
def test_real_data(
    talos: Run, real_data: Callable[[str], Path], name: str, users: int, items: int, interactions: int
) -> None:
    facts = json.loads(talos("data", "describe", real_data(name), "--json").stdout)
    assert (facts["users"], facts["items"], facts["interactions"]) == (users, items, interactions)
