"""`talos tune` from the command line: what it may open, what it writes, how it goes on, what it refuses."""

from __future__ import annotations

import contextlib
import csv
import json
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from talos.cli.shared import space_for
from talos.config import RunConfig
from talos_paper.published import GRID

pytest.importorskip("optuna", reason="optuna is not installed (extra `tune`)")

SMALL = ("--k", 5, "--epochs", 3, "--set", "backbone.dim=4", "--set", "training.evaluate_every=1")
SPACE = "[loss]\ntau = [0.1, 0.2, 0.3]\n"


Run = Callable[..., subprocess.CompletedProcess[str]]
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def clicks(clicks: Path, tmp_path: Path) -> Path:
    (tmp_path / "space.toml").write_text(SPACE)
    return clicks


def test_the_test_file_does_not_exist_until_the_end(talos: Run, clicks: Path, tmp_path: Path) -> None:
    assert talos("data", "split", clicks, "--out", "parts").returncode == 0
    hidden = tmp_path / "parts" / "test.tsv"
    hidden.rename(tmp_path / "kept-away")
    tuned = talos("tune", "parts", "--space", "space.toml", *SMALL, "--out", "study", "--json")
    assert tuned.returncode == 0, tuned.stderr
    values = json.loads(tuned.stdout)
    assert values["trials"] == {"complete": 3, "pruned": 0, "failed": 0}
    assert values["peak_mb"] > 1
    assert values["dashboard"] == "optuna-dashboard sqlite:///study/study.db"

    missing = talos("tune", "--out", "study", "--finalize")
    assert missing.returncode != 0
    assert not (tmp_path / "study" / "final.json").exists()

    (tmp_path / "kept-away").rename(hidden)
    final = talos("tune", "--out", "study", "--finalize", "--json")
    assert final.returncode == 0, final.stderr
    answer = json.loads(final.stdout)
    assert answer["fresh"]
    assert 0 < answer["metrics"]["recall@5"] <= 1
    evaluated = talos("evaluate", "study/final", "--k", 5, "--json")
    assert json.loads(evaluated.stdout)["metrics"]["recall@5"] == pytest.approx(answer["metrics"]["recall@5"])

    hidden.unlink()  # asked again, it is not opened again
    again = talos("tune", "--out", "study", "--finalize")
    assert again.returncode == 0, again.stderr
    assert "this is the stored result" in again.stderr
    assert f"{answer['metrics']['recall@5']:.4f}" in again.stdout
    more = talos("tune", "parts", "--space", "space.toml", *SMALL, "--out", "study", "--trials", 9)
    assert more.returncode == 2
    assert "is finalised" in more.stderr


def test_a_test_file_that_cannot_be_read_is_not_opened(talos: Run, clicks: Path, tmp_path: Path) -> None:
    talos("data", "split", clicks, "--out", "parts")
    (tmp_path / "parts" / "test.tsv").write_bytes(b"\xff\xfe not a table \x00" * 9)
    tuned = talos("tune", "parts", "--space", "space.toml", *SMALL, "--out", "study")
    assert tuned.returncode == 0, tuned.stderr


def test_one_file_is_split_and_its_test_part_is_kept_nowhere(
    talos: Run, clicks: Path, tmp_path: Path
) -> None:
    arguments = ("tune", clicks, "--space", "space.toml", *SMALL, "--out", "study")
    done = talos(*arguments, "--trials", 2)
    assert done.returncode == 0, done.stderr
    assert "MB a worker at most" in done.stdout
    assert "optuna-dashboard sqlite:///study/study.db" in done.stderr
    written = {path.name for path in (tmp_path / "study").iterdir()}
    assert written >= {"run.toml", "trials.csv", "report.html", "tune.json", "study.db", "data"}
    train, valid = (
        np.load(tmp_path / "study" / "data" / f"{name}.indices.npy") for name in ("train", "valid")
    )
    # of twelve each, two or three are test
    assert 40 * 9 <= len(train) + len(valid) <= 40 * 10
    page = (tmp_path / "study" / "report.html").read_text()
    assert "Parallel coordinates" in page
    assert "has not been evaluated" in page
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")

    went_on = talos(*arguments, "--trials", 3, "--finalize")
    assert went_on.returncode == 0, went_on.stderr
    assert "2 trials were finished before" in went_on.stderr
    assert "fitted on train and validation" in went_on.stdout
    assert "was evaluated once" in (tmp_path / "study" / "report.html").read_text()
    trained = talos("train", clicks, "--config", "study/run.toml", "--out", "again")
    assert trained.returncode == 0, trained.stderr


@pytest.mark.parametrize(
    ("space", "options", "said"),
    [
        ("[loss]\ntua = [0.1]\n", (), "loss.tua: the loss 'talos' has no such option (did you mean 'tau' or 'eta'?)"),
        ("[los]\ntau = [0.1]\n", (), "space.toml: los: no such key (did you mean 'loss'?)"),
        ("[loss]\ntau = []\n", (), "space.toml: loss.tau: []; expected a list"),
        ("[loss]\ntau = {low = 0.3, high = 0.1}\n", (), "space.toml: loss.tau: an empty range, 0.3 to 0.1"),
        ("[loss]\ntau = [0.1, -1]\n", (), "space.toml: loss.tau: got -1; expected a finite number above 0"),
        ("[loss\n", (), "space.toml: not TOML"),
        (SPACE, ("--storage", "postgresql://ann:secret@127.0.0.1:1/x"), "ann@127.0.0.1:1/x: cannot be reached"),
        (SPACE, ("--storage", "mysql://x"), "--storage: 'mysql://x'"),
        (SPACE, ("--trials", 0), "--trials: got 0; expected an integer of at least 1"),
        (SPACE, ("--workers", 0), "--workers: got 0"),
        (SPACE, ("--budget", "soon"), "--budget: 'soon'"),
        (SPACE, ("--metric", "auc"), "error: --metric: 'auc'"),
        (SPACE, ("--space", "papr"), "--space: 'papr' is no space and no file (did you mean 'paper'?)"),
        (SPACE, ("--space", "paper", "--loss", "sl@k"), "--space paper: the paper has no grid for the loss 'sl@k'"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_before_anything_is_read(
    talos: Run, tmp_path: Path, space: str, options: tuple[object, ...], said: str
) -> None:
    (tmp_path / "space.toml").write_text(space)
    # the data do not exist: whoever complains about them has looked too early
    done = talos("tune", "nowhere.csv", "--space", "space.toml", "--out", "study", *options)
    assert done.returncode == 2
    assert said in done.stderr
    assert "secret" not in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "study").exists()


def test_without_optuna_the_extra_is_named(talos: Run, clicks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("talos.studies.tune")]:
        monkeypatch.delitem(sys.modules, name)  # an earlier test has imported them
    monkeypatch.setitem(sys.modules, "optuna", None)
    done = talos("tune", clicks, "--out", "study")
    assert done.returncode == 2
    assert done.stderr == "error: tuning needs an optional package: pip install 'talos-rec[tune]'\n"


@pytest.mark.usefixtures("talos")  # for its one thread
def test_the_paper_space_is_the_paper_s_grid() -> None:
    for loss, grid in GRID.items():
        for backbone in ("mf", "xsimgcl"):
            base = RunConfig().with_values({"loss.name": loss, "backbone.name": backbone})
            space, settled = space_for("paper", base)
            expected = {
                name: values
                for name, values in grid.items()
                if backbone == "xsimgcl" or name != "contrast_weight"
            }
            found = {key.rpartition(".")[2]: entry.choices for key, entry in space.entries.items()}
            if loss == "aatp":
                assert settled.threshold.name == "regression"
                found["lr_quantile"] = space.entries["threshold.lr"].choices
                found["lr"] = space.entries["optimizer.lr"].choices
            assert found == expected


def test_compare_tunes_every_loss_with_the_same_number_of_trials(
    talos: Run, clicks: Path, tmp_path: Path
) -> None:
    small = ("--k", 5, "--set", "backbone.dim=4", "--set", "training.epochs=3",
             "--set", "training.evaluate_every=1")  # fmt: skip
    arguments = (
        "compare",
        clicks,
        "--losses",
        "talos,sl,bpr",
        "--seeds",
        2,
        *small,
        "--tuned",
        4,
        "--space",
        "paper",
    )
    done = talos(*arguments, "--out", "table", "--json")
    assert done.returncode == 0, done.stderr
    values = json.loads(done.stdout)
    assert {name: one["trials"] for name, one in values["tuned"].items()} == {"talos": 4, "sl": 4, "bpr": 4}
    assert [row["model"] for row in values["models"]] == ["talos", "sl", "bpr"]
    compared = json.loads((tmp_path / "table" / "compare.json").read_text())["settings"]["models"]
    for name, one in values["tuned"].items():
        for key, value in one["parameters"].items():
            section, _, last = key.partition(".")
            assert compared[name][section][last] == value
            assert value in GRID[name][last]
    assert (tmp_path / "table" / "tuned" / "01-sl" / "report.html").exists()

    again = talos(*arguments, "--out", "table")
    assert again.returncode == 0, again.stderr
    assert again.stderr.count("finished before") == 3 + 6  # searches and fits
    wrong = talos(
        "compare", "nowhere.csv", "--losses", "talos,sl@k", "--tuned", 4, "--space", "paper", "--out", "x"
    )
    assert wrong.returncode == 2
    assert "no grid for the loss 'sl@k'" in wrong.stderr
    assert talos("compare", clicks, "--losses", "sl", "--tuned", 0, "--out", "y").returncode == 2


def _wait_for_a_trial(file: Path) -> None:
    """Wait until a trial has reported an epoch."""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        with (
            contextlib.suppress(sqlite3.OperationalError),
            contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as database,
        ):
            if database.execute("SELECT count(*) FROM trial_intermediate_values").fetchone()[0]:
                return
        time.sleep(0.05)
    raise AssertionError("no trial was begun in time")


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_ctrl_c_gives_back_what_was_under_way(
    talos: Run, start: Start, workers: int, clicks: Path, tmp_path: Path
) -> None:
    """Stopped in the middle; the same command goes on, and no attempt is counted as a loss."""
    arguments = ["tune", clicks, "--space", "space.toml", "--k", 5, "--out", "study",
                 "--epochs", 100_000, "--set", "training.patience=100000", "--set", "training.evaluate_every=1",
                 "--set", "backbone.dim=4"]  # fmt: skip
    journal = tmp_path / "study" / "study.db"
    process = start(*arguments, "--workers", workers)
    _wait_for_a_trial(journal)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130, said
    assert "run it again to continue" in said
    went_on = talos(*arguments, "--budget", "1s")
    assert went_on.returncode == 0, went_on.stderr
    (row,) = csv.DictReader((tmp_path / "study" / "trials.csv").read_text().splitlines())
    assert (row["state"], int(row["runs"])) == ("complete", 2)
    assert row["loss.tau"] in ("0.1", "0.2", "0.3")


@pytest.mark.slow
def test_workers_end_with_the_process_that_started_them(
    talos: Run, start: Start, clicks: Path, tmp_path: Path
) -> None:
    """Killed outright, it leaves no workers behind, and the same command takes up what they had begun."""
    arguments = ["tune", clicks, "--space", "space.toml", "--out", "study",
                 "--k", 5, "--epochs", 300, "--set", "training.patience=1000", "--set", "backbone.dim=4",
                 "--set", "training.evaluate_every=1", "--workers", 2]  # fmt: skip
    process = start(*arguments)
    _wait_for_a_trial(tmp_path / "study" / "study.db")
    tasks = Path(f"/proc/{process.pid}/task").glob("*/children")
    listed = [one for task in tasks for one in task.read_text().split()]
    process.kill()
    process.wait(timeout=30)
    assert listed
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and any(Path(f"/proc/{one}").exists() for one in listed):
        time.sleep(0.1)
    assert not [one for one in listed if Path(f"/proc/{one}").exists()]
    again = talos(*arguments, "--json")
    assert again.returncode == 0, again.stderr
    values = json.loads(again.stdout)
    assert values["trials"]["complete"] == 3
    assert values["open"] == 0
