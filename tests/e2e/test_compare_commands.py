"""`talos compare` and `talos report` from the command line: files, exit codes, going on after a kill."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from talos.data.open import read as talos_read
from talos.model.recommender import Recommender

SMALL = ("--k", 5, "--set", "backbone.dim=4", "--set", "training.epochs=3",
         "--set", "training.evaluate_every=1")  # fmt: skip
Run = Callable[..., subprocess.CompletedProcess[str]]
Start = Callable[..., subprocess.Popen[str]]


def test_compare_writes_everything_and_goes_on(talos: Run, clicks: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ("compare", clicks, "--losses", "talos,sl", "--seeds", 2, *SMALL, "--set", "sl.loss.tau=0.2")
    done = talos(*arguments, "--out", out)
    assert done.returncode == 0, done.stderr
    assert "talos differs from the other model" in " ".join(done.stdout.split())
    assert "±" in done.stdout
    names = {path.name for path in out.iterdir()}
    assert names == {"compare.json", "compare.csv", "compare.tex", "compare.html", "runs"}
    assert len(list((out / "runs").glob("*.json"))) == len(list((out / "runs").glob("*.parquet"))) == 4

    again = talos(*arguments, "--out", out, "--json")
    assert again.returncode == 0, again.stderr
    assert again.stderr.count("finished before") == 4
    values = json.loads(again.stdout)
    assert [model["model"] for model in values["models"]] == ["talos", "sl"]
    assert set(values["models"][0]["metrics"]) == {"precision@5", "recall@5", "ndcg@5", "mrr@5"}

    page = talos("report", out, "--out", tmp_path / "page.html")
    assert page.returncode == 0, page.stderr
    assert "<!doctype html>" in (tmp_path / "page.html").read_text()

    other = talos(*arguments, "--set", "loss.tau=0.5", "--out", out)
    assert other.returncode == 2
    assert "loss.tau" in other.stderr
    stored = next((out / "runs").glob("00-*.json"))
    stored.write_text(stored.read_text()[:-9])
    damaged = talos(*arguments, "--out", out)
    assert damaged.returncode == 2
    assert str(stored.name) in damaged.stderr
    assert "Traceback" not in damaged.stderr


def test_runs_are_compared_on_the_test_part_that_they_carry(talos: Run, clicks: Path, tmp_path: Path) -> None:
    small = ("--k", 5, "--dim", 4, "--epochs", 3, "--tau", 0.2)
    for name, options in (
        ("one", small),
        ("other", ("--baseline", "ease", "--k", 5)),
        ("split", (*small, "--split-seed", 7)),
    ):
        assert talos("train", clicks, *options, "--out", tmp_path / name).returncode == 0
    wanted = {
        name: json.loads((tmp_path / name / "model.json").read_text())["metrics"] for name in ("one", "other")
    }
    clicks.unlink()
    done = talos("compare", tmp_path / "one", tmp_path / "other", "--json")
    assert done.returncode == 0, done.stderr
    first, second = json.loads(done.stdout)["models"]
    for row, name in ((first, "one"), (second, "other")):
        assert row["metrics"]["recall@5"] == pytest.approx(wanted[name]["recall@5"])
    against = second["against"]["recall@5"]
    assert against["difference"] == pytest.approx(wanted["one"]["recall@5"] - wanted["other"]["recall@5"])
    for line, words in (
        (("compare", tmp_path / "one", tmp_path / "split"), "has another test part than the first run"),
        (("compare", tmp_path / "one"), "one run; expected two or more"),
        (("compare", tmp_path / "one", tmp_path / "other", "--losses", "sl"), "--losses: together with runs"),
        (
            ("compare", tmp_path / "one", clicks),
            "is no run directory; expected one PATH of data, or runs alone",
        ),
    ):
        refused = talos(*line)
        assert (refused.returncode, words in refused.stderr) == (2, True), refused.stderr


def test_a_killed_comparison_goes_on(talos: Run, start: Start, clicks: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ("compare", clicks, "--losses", "sl", "--seeds", 3, "--k", 5, "--out", out,
                 "--set", "training.epochs=60", "--set", "training.patience=999")  # fmt: skip
    process = start(*arguments)
    deadline = time.monotonic() + 60
    while not list(out.glob("runs/*.json")) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    process.wait(timeout=30)
    finished = {path.name: path.read_bytes() for path in out.glob("runs/*.json")}
    assert finished
    done = talos(*arguments)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("finished before") == len(finished)
    assert {path.name: path.read_bytes() for path in out.glob("runs/*.json")}.items() >= finished.items()
    assert not list(out.rglob(".*"))


def test_what_a_kill_left_is_removed(talos: Run, clicks: Path, tmp_path: Path) -> None:
    """A kill can come between the renaming of a file and the removal of the folder that it was written in."""
    out = tmp_path / "out"
    (out / ".compare.json.abcdefgh.tmp").mkdir(parents=True)  # in the middle of the very first write
    arguments = ("compare", clicks, "--losses", "sl", "--seeds", 1, *SMALL, "--out", out)
    done = talos(*arguments)
    assert done.returncode == 0, done.stderr
    assert not list(out.rglob(".*"))
    stem = next((out / "runs").glob("*.json")).name
    for name in (f".{stem}.abcdefgh.tmp", f".{stem.replace('json', 'parquet')}.abcdefgh.tmp"):
        (out / "runs" / name).mkdir()
    (out / ".compare.csv.abcdefgh.tmp").mkdir()
    (out / ".mine.tmp").write_text("not ours")
    again = talos(*arguments)
    assert again.returncode == 0, again.stderr
    assert [path.name for path in out.rglob(".*")] == [".mine.tmp"]


def test_a_folder_has_one_comparison_at_a_time(
    talos: Run, start: Start, clicks: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    arguments = ("compare", clicks, "--losses", "sl", "--seeds", 1, "--k", 5, "--out", out,
                 "--set", "training.epochs=100000", "--set", "training.patience=100000")  # fmt: skip
    process = start(*arguments)
    deadline = time.monotonic() + 60
    while not (out / ".lock").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    second = talos(*arguments)
    process.kill()
    process.wait(timeout=30)
    assert second.returncode == 1, second.stderr
    assert f"process {process.pid}" in second.stderr
    assert "working on a comparison" in second.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--losses", "talso"), "did you mean 'talos'"),
        (("--losses", "talos,"), "--losses"),
        (("--losses", "sl", "--backbones", "lightgnc"), "did you mean 'lightgcn'"),
        (("--losses", "sl", "--seeds", 0), "--seeds: got 0"),
        (("--losses", "sl", "--budget", "soon"), "--budget: 'soon'"),
        (("--losses", "sl", "--set", "bpr.loss.x=1"), "--set bpr.loss.x=1"),
        (("--losses", "talos", "--set", "talso.loss.tau=1"), "did you mean 'talos'"),
        (("--losses", "sl", "--set", "sl.loss.tua=1"), "did you mean 'tau'"),
        (("--losses", "sl", "--set", "seed=1"), "expected --seeds"),
        (("--losses", "sl", "--metrics", "recal@5"), "did you mean 'recall'"),
    ],
)
def test_bad_input_is_one_message(
    talos: Run, clicks: Path, tmp_path: Path, arguments: tuple[object, ...], message: str
) -> None:
    done = talos("compare", clicks, *arguments, "--out", tmp_path / "out")
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert [line[:7] for line in done.stderr.splitlines() if line[:2] != "  "] == ["error: "], done.stderr
    assert not (tmp_path / "out").exists()


def test_every_loss_on_every_backbone(talos: Run, clicks: Path, tmp_path: Path) -> None:
    names = ("--losses", "sl,bpr", "--backbones", "mf,lightgcn", "--seeds", 1)
    changes = ("--set", "lightgcn.backbone.layers=1", "--set", "training.epochs=1")
    done = talos("compare", clicks, *names, *SMALL, *changes, "--json", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    models = json.loads(done.stdout)["models"]
    assert [model["model"] for model in models] == ["mf/sl", "mf/bpr", "lightgcn/sl", "lightgcn/bpr"]
    stored = json.loads((tmp_path / "out" / "runs" / "02-lightgcn-sl-seed0.json").read_text())
    assert stored["config"]["backbone"]["layers"] == 1


def test_report_of_a_run(talos: Run, clicks: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    trained = talos("train", clicks, "--out", run, *SMALL)
    assert trained.returncode == 0, trained.stderr
    done = talos("report", run)
    assert done.returncode == 0, done.stderr
    text = (run / "report.html").read_text()
    assert "&lt;script&gt;Title" in text
    assert "<script" not in text
    first = talos("report", run, "--out", tmp_path / "a.html", "--json")
    assert json.loads(first.stdout)["bytes"] == (tmp_path / "a.html").stat().st_size
    undated = re.compile(r"Written \S+ by")  # midnight may pass between the two
    assert undated.sub("", (tmp_path / "a.html").read_text()) == undated.sub("", text)
    for arguments in (("report", tmp_path / "nothing"), ("report", run, "--out", tmp_path)):
        wrong = talos(*arguments)
        assert wrong.returncode == 2
        assert [line[:7] for line in wrong.stderr.splitlines() if line[:2] != "  "] == ["error: "], (
            wrong.stderr
        )


PAGE = Path(__file__).parents[2] / "docs" / "compare.md"
# The page compares on real data for minutes; here the same is done on a small file, for two seeds and two epochs.
SMALLER = (
    ("movielens-100k", "small.csv"),
    ("--seeds 5", "--seeds 2 --set backbone.dim=4 --set training.epochs=2"),
    ("seeds=5", "seeds=2"),
    ('"training.epochs": 50', '"training.epochs": 2'),
)


def smaller(text: str) -> str:
    for long, short in SMALLER:
        text = text.replace(long, short)
    return text


def words(text: str) -> list[str]:
    """Lines without numbers, signs, marks of significance and rules, which differ from run to run."""
    plain = [re.sub(r"[-+±*†<\d.,/]+", " ", line).split() for line in text.splitlines()]
    return [" ".join(line) for line in plain if line]


def test_the_page_is_true(talos: Run, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pairs = np.argwhere(rng.random((60, 50)) < 0.25)
    rows = "".join(f"{user},{item}\n" for user, item in pairs)
    (tmp_path / "small.csv").write_text("user_id,item_id\n" + rows)
    talos("train", "small.csv", "--out", "ml", "--set", "backbone.dim=4", "--epochs", 2)
    page, first = PAGE.read_text(), ""
    sessions = re.findall(r"^\$ (talos (?:.*\\\n)*.*)\n((?:(?!\$ |```).*\n)*)", page, flags=re.MULTILINE)
    assert len(sessions) == 5
    for command, expected in sessions:
        line = smaller(command.replace("\\\n", " "))
        first = first or line.replace("--out ml-losses", "")
        line = line.replace("talos compare small.csv …", first)
        done = talos(*shlex.split(line)[1:])
        assert done.returncode == (2 if expected.startswith("error") else 0), (line, done.stderr)
        printed = words(done.stderr + done.stdout)
        for wanted in words(expected.replace("…", "").replace("movielens-100k", "small.csv")):
            assert wanted in printed, (line, wanted, printed)
    data = talos_read(tmp_path / "small.csv")
    split = data.split()
    names: dict[str, Any] = {"data": data, "split": split, "model": Recommender.load("ml"), "history": ()}
    for code in re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL):
        exec(smaller(code), names)
    assert len(names["table"].rows) == 3
    assert (tmp_path / "k-study" / "compare.csv").is_file()
    assert (tmp_path / "table.tex").is_file()
