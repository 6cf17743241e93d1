"""Lists for everybody and exports from the command line, as other programs would use them."""

from __future__ import annotations

import json
import re
import shlex
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from talos.data.interactions import Interactions
from talos.data.vocabulary import Vocabulary
from talos.model.model import Model, Vectors
from talos.model.recommender import Recommender

Run = Callable[..., subprocess.CompletedProcess[str]]
Start = Callable[..., subprocess.Popen[str]]


def save_run(folder: Path, users: int, items: int, k: int, *, thresholds: bool = False) -> Recommender:
    """A run directory with random vectors: what is tested here does not depend on training."""
    rng = np.random.default_rng(0)
    pairs = rng.integers(0, (users, items), (users * 3, 2))
    everybody = np.arange(users)
    pairs = np.concatenate([pairs, np.stack([everybody, everybody % items], 1)])  # and everything occurs
    names = [f"item{i:04d}" for i in range(items)]
    train = Interactions.from_codes(
        pairs[:, 0],
        pairs[:, 1],
        user_ids=Vocabulary(pl.Series(range(users))),
        item_ids=Vocabulary(pl.Series(names)),
        item_titles=pl.Series([f"Title {i}" for i in range(items)]),
    )
    torch.manual_seed(0)
    recommender = Recommender(k=k)
    recommender.model = Model(
        # eighths: scores are exact in whatever order they are added up
        scored_by=Vectors(
            torch.randint(-16, 17, (users, 8)) / 8,
            torch.randint(-16, 17, (items, 8)) / 8,
            torch.rand(users) if thresholds else None,
        ),
        train=train,
        metadata={"config": recommender.config.as_dict()},
    )
    recommender.save(folder)
    return recommender


@pytest.fixture
def model(tmp_path: Path) -> Recommender:
    return save_run(tmp_path / "run", users=50, items=30, k=4)


def test_everybodys_lists_in_files_and_a_database(talos: Run, model: Recommender, tmp_path: Path) -> None:
    done = talos("recommend", "run", "--all", "--out", "recs.parquet", "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert {name: summary[name] for name in ("out", "users", "rows", "k", "resumed_at")} == {
        "out": "recs.parquet",
        "users": 50,
        "rows": 200,
        "k": 4,
        "resumed_at": 0,
    }
    assert summary["seconds"] > 0
    assert done.stderr == "50 of 50 users\n"
    lists = pl.read_parquet(tmp_path / "recs.parquet")
    assert lists.drop("title").equals(model.recommend())
    assert lists["title"][0] == f"Title {int(lists['item_id'][0][4:])}"

    plain = talos(
        "recommend", "run", "--all", "--out", "sqlite:///shop.db?table=recs", "--k", 3, "--keep-seen"
    )
    assert plain.stdout.startswith("150 rows for 50 users in "), plain.stderr
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        rows = connection.execute("SELECT * FROM recs ORDER BY user_id, rank").fetchall()
    assert rows == model.recommend(k=3, filter_seen=False).rows()


def test_narrowed_lists_and_histories(talos: Run, model: Recommender) -> None:
    named = talos("recommend", "run", "--user", 7, "--candidates", "item0001,item0002", "--json")
    assert {row["item_id"] for row in json.loads(named.stdout)} <= {"item0001", "item0002"}
    history = talos("recommend", "run", "--history", "item0003,item0004", "--exclude", "item0005", "--json")
    rows = json.loads(history.stdout)
    assert [row["user_id"] for row in rows] == ["history"] * 4
    assert not {"item0003", "item0004", "item0005"} & {row["item_id"] for row in rows}
    popular = talos("recommend", "run", "--user", 7000, "--on-unknown", "popular")
    assert "Title" in popular.stdout, popular.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["recommend", "run"], "--user: is missing; expected a user id, or --history or --all"),
        (["recommend", "run", "--all"], "--out: is missing"),
        (["recommend", "run", "--all", "--user", "1", "--out", "r.csv"], "--user: together with --all"),
        (
            ["recommend", "run", "--user", "1", "--out", "r.csv"],
            "--out: does not go with --user; expected --all",
        ),
        (
            ["recommend", "run", "--all", "--out", "r.csv", "--on-unknown", "skip"],
            "--on-unknown: does not go",
        ),
        (["recommend", "run", "--user", "1", "--on-unknown", "skp"], "did you mean 'skip'"),
        (
            ["recommend", "run", "--user", "ann"],
            "no user 'ann'; expected users that were trained on, which are int",
        ),
        (["recommend", "run", "--all", "--out", "r.cvs"], "did you mean '.csv'"),
        (["recommend", "run", "--all", "--out", "r.csv", "--k", "31"], "k: 31; expected 1 to 30"),
        (["recommend", "gone", "--all", "--out", "r.csv"], "gone: no such run directory"),
        (
            ["export", "run", "--out", "o"],
            "--format: is missing; expected parquet or npz (vectors), faiss or onnx",
        ),
        (["export", "run", "--format", "onx", "--out", "o"], "did you mean 'onnx'"),
        (["export", "run", "--format", "npz"], "--out: is missing"),
        (["export", "run", "--format", "parquet", "--out", "run"], "run: exists; expected a new name"),
        (["export", "run", "--format", "npz", "--out", "o", "--index", "flat"], "no option 'index' of npz"),
        (["export", "gone", "--format", "npz", "--out", "o"], "gone: no such run directory"),
    ],
)
def test_refusals(talos: Run, model: Recommender, tmp_path: Path, arguments: list[str], words: str) -> None:
    done = talos(*arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert [line[:7] for line in done.stderr.splitlines() if line[:2] != "  "] == ["error: "], done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_damaged_run_writes_nothing(talos: Run, model: Recommender, tmp_path: Path) -> None:
    vectors = tmp_path / "run" / "model.safetensors"
    vectors.write_bytes(vectors.read_bytes()[:-4])
    done = talos("export", "run", "--format", "npz", "--out", "vectors.npz")
    assert (done.returncode, "checksum" in done.stderr) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_exports(talos: Run, model: Recommender, tmp_path: Path) -> None:
    plain = talos("export", "run", "--format", "parquet", "--out", "vectors")
    assert plain.returncode == 0, plain.stderr
    assert plain.stdout.startswith("written to vectors\n")
    assert len(pl.read_parquet(tmp_path / "vectors" / "users.parquet")) == 50
    done = json.loads(talos("export", "run", "--format", "npz", "--out", "vectors.npz", "--json").stdout)
    assert (done["format"], done["users"], done["items"], done["dim"]) == ("npz", 50, 30, 8)


def test_export_of_an_index(talos: Run, model: Recommender) -> None:
    pytest.importorskip("faiss", reason="faiss is not installed (extra `faiss`)")
    done = talos("export", "run", "--format", "faiss", "--out", "index", "--k", 7)
    assert "recall@7" in done.stdout, done.stderr


def test_export_of_a_graph(talos: Run, model: Recommender) -> None:
    pytest.importorskip("onnx", reason="onnx is not installed (extra `onnx`)")
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra `onnx`)")
    done = json.loads(talos("export", "run", "--format", "onnx", "--out", "graph", "--json").stdout)
    assert (done["k"], done["identical_lists"]) == (4, 1.0)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_stopped_and_resumed(talos: Run, start: Start, tmp_path: Path, how: signal.Signals) -> None:
    model = save_run(
        tmp_path / "run", users=40_000, items=2_000, k=100
    )  # twenty parts: time to be stopped in
    arguments = ("recommend", "run", "--all", "--out", "recs.parquet")
    process = start(*arguments)
    second = tmp_path / ".recs.parquet.parts" / "part-000001"  # the first is then counted
    deadline = time.monotonic() + 60
    while not second.exists():
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(how)
    _, message = process.communicate(timeout=60)
    assert not (tmp_path / "recs.parquet").exists()
    assert second.exists()
    if how == signal.SIGINT:
        assert process.returncode == 130
        assert "of 40,000 users; run it again to continue" in message
    done = talos(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["resumed_at"] >= 2_000
    assert pl.read_parquet(tmp_path / "recs.parquet").drop("title").equals(model.recommend())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["recs.parquet", "run"]


def blocks(page: Path) -> list[tuple[str, str]]:
    """The console sessions and Python of a page, in order."""
    return re.findall(r"```(console|python)\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def pattern_of(lines: list[str]) -> str:
    """Lines as they stand, up to numbers and blanks; `...` alone stands for any lines."""
    pieces = [
        r"(?:.*\n)*?"
        if line == "..."
        else re.sub(r"(?:\\ )+", r"\\s+", _any_number(re.escape(line))) + r"\s*\n"
        for line in lines
    ]
    return "".join(pieces) + r"(?:.*\n)*"


def _any_number(text: str) -> str:
    return re.sub(r"(?<![\w@.])\d[\d,]*(?:\\\.\d+)?(?!\w)", r"[\\d,]+(?:\\.\\d+)?", text)


def test_the_page_is_true(talos: Run, tmp_path: Path) -> None:
    for package in ("faiss", "onnx", "onnxruntime"):
        pytest.importorskip(package, reason=f"{package} is not installed (extras `faiss`, `onnx`)")
    save_run(tmp_path / "run", users=300, items=200, k=20, thresholds=True)
    names: dict[str, object] = {}
    commands = 0
    for kind, text in blocks(Path(__file__).parents[2] / "docs" / "exports.md"):
        if kind == "python":
            exec(text, names)
            continue
        for session in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            command_line, *expected = session.splitlines()
            done = talos(*shlex.split(command_line)[1:])
            output = done.stderr + done.stdout
            assert re.fullmatch(pattern_of(expected), output), (command_line, output)
            commands += 1
    assert commands == 11
    model = Recommender.load(tmp_path / "run")
    lists = model.recommend([0, 3], k=5)
    assert model.model is not None
    codes = model.model.train.item_ids.encode(lists["item_id"]).reshape(2, 5)
    np.testing.assert_array_equal(names["items"], codes)
    assert list(names["best"]) == model.recommend([3], k=10)["item_id"].to_list()
