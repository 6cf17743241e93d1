"""Unlucky moments and places: two trainings at once, folders of somebody else, a closed terminal, a lost Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from talos import cli
from talos.model.store import lock_run
from talos.training.callbacks import PlainProgress, stop_signals

Run = Callable[..., subprocess.CompletedProcess[str]]
Start = Callable[..., subprocess.Popen[str]]
Written = Callable[[Path, subprocess.Popen[str]], None]

SMALL = ("--k", 5, "--dim", 8, "--tau", 0.1, "--set", "training.batch_size=8")
LONG = (*SMALL, "--epochs", 5000, "--patience", 5000, "--set", "training.checkpoint_every=1000")


def test_a_second_training_is_refused_and_a_closed_terminal_leaves_a_checkpoint(
    talos: Run, start: Start, written: Written, clicks: Path, tmp_path: Path
) -> None:
    first = start("train", clicks, "--out", "run", *LONG)
    written(tmp_path / "run" / "history.jsonl", first)
    for resume in ((), ("--resume",)):
        second = talos("train", clicks, "--out", "run", *LONG, *resume)
        assert second.returncode in (1, 2), second.stderr
        if resume:
            assert f"is being written by process {first.pid} (talos train" in second.stderr
    assert first.stderr is not None
    first.stderr.close()  # nobody reads any more
    for _ in range(2):  # a terminal may send it twice
        first.send_signal(signal.SIGHUP)
    assert first.wait() in (130, 120)  # 120: Python could not flush what nobody reads
    assert list((tmp_path / "run").glob("**/state.json"))  # of the run, or of a candidate of its race
    assert not (tmp_path / "run" / ".lock").exists()


def test_the_lock_of_a_killed_training_is_taken_over(
    talos: Run, start: Start, written: Written, clicks: Path, tmp_path: Path
) -> None:
    first = start("train", clicks, "--out", "run", *LONG)
    written(tmp_path / "run" / "history.jsonl", first)
    first.kill()
    first.wait()
    assert (tmp_path / "run" / ".lock").exists()
    done = talos("train", clicks, "--out", "run", *SMALL, "--epochs", 2, "--resume")
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "run" / ".lock").exists()


def test_a_line_that_nobody_reads_does_not_stop_training() -> None:
    receive, send = os.pipe()
    os.close(receive)
    stream = os.fdopen(send, "w")
    progress = PlainProgress(stream)
    for epoch in (1, 2):
        progress.on_epoch({"epoch": epoch, "loss": 0.0, "seconds": 0.0, "metrics": {"recall@5": 0.1}})
    assert progress.stream is None
    with pytest.raises(BrokenPipeError):
        stream.close()


def test_resume_leaves_a_folder_of_somebody_else_alone(talos: Run, clicks: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "users.parquet").write_text("mine")
    done = talos("train", clicks, "--out", "mine", *SMALL, "--epochs", 1, "--resume")
    assert done.returncode == 2
    assert "has no checkpoint, but has users.parquet" in done.stderr
    (tmp_path / "mine" / "users.parquet").rename(tmp_path / "mine" / "history.jsonl")
    done = talos("train", clicks, "--out", "mine", *SMALL, "--epochs", 1, "--resume")
    assert done.returncode == 2
    assert "history.jsonl, line" in done.stderr or "is damaged" in done.stderr, done.stderr
    assert (tmp_path / "mine" / "history.jsonl").read_text() == "mine"


def test_reports_and_exports_leave_other_files_alone(talos: Run, clicks: Path, tmp_path: Path) -> None:
    assert talos("train", clicks, "--out", "run", *SMALL, "--epochs", 1).returncode == 0
    (tmp_path / "notes.html").write_text("mine")
    done = talos("report", "run", "--out", "notes.html")
    assert (done.returncode, "exists and is not a report" in done.stderr) == (2, True), done.stderr
    assert (tmp_path / "notes.html").read_text() == "mine"
    for more in ((), (), ("--overwrite",)):  # new, over itself, over something else when told so
        target = "notes.html" if more else "page.html"
        done = talos("report", "run", "--out", target, *more)
        assert done.returncode == 0, done.stderr

    export = ("export", "run", "--format", "parquet", "--out", "vectors", "--overwrite")
    assert talos(*export).returncode == 0
    assert talos(*export).returncode == 0
    (tmp_path / "vectors" / "notes.txt").write_text("mine")
    done = talos(*export)
    assert (done.returncode, "has notes.txt, which no export has made" in done.stderr) == (2, True), (
        done.stderr
    )
    assert (tmp_path / "vectors" / "notes.txt").read_text() == "mine"


def test_parts_are_not_written_through_a_link(talos: Run, clicks: Path, tmp_path: Path) -> None:
    assert talos("train", clicks, "--out", "run", *SMALL, "--epochs", 1).returncode == 0
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "precious").write_text("data")
    (tmp_path / ".recs.csv.parts").symlink_to(tmp_path / "other")
    done = talos("recommend", "run", "--all", "--out", "recs.csv")
    assert (done.returncode, "is a link" in done.stderr) == (2, True), done.stderr
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["precious"]


def test_a_ctrl_c_that_got_lost_is_remembered() -> None:
    """Whatever swallowed what the handler raised, training stops when it begins."""
    before = cli._listen_for_ctrl_c()
    assert before is not None
    try:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        asked: list[str] = []
        with stop_signals(lambda: asked.append("stop")):
            assert asked == ["stop"]
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("module", ["talos.errors", "typer", "talos.cli.application", "numpy", "polars"])
def test_ctrl_c_while_modules_are_imported_ends_quietly(clicks: Path, module: str) -> None:
    line = [sys.executable, "-X", "importtime", "-m", "talos", "data", "describe", str(clicks)]
    with subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for imported in process.stderr:  # a line for each module
            if imported.endswith(f" {module}\n"):
                process.send_signal(signal.SIGINT)
                break
        rest = process.communicate(timeout=60)[1]
    said = [one for one in rest.splitlines() if not one.startswith("import time:")]
    assert (process.returncode, said) == (130, ["interrupted"]), rest


def test_a_ctrl_c_that_a_library_turned_into_an_error(
    talos: Run, clicks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def turned(*_: object, **__: object) -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise ImportError("cannot be imported") from None

    monkeypatch.setattr("talos.data.open.open_interactions", turned)
    done = talos("data", "describe", clicks)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


def test_sighup_stays_ignored_under_nohup() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_signals(lambda: pytest.fail("asked")):
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_folder_that_another_process_writes(talos: Run, clicks: Path, tmp_path: Path) -> None:
    """The study's own storage is refused before it is touched, whatever it holds."""
    (tmp_path / "notes").write_text("my notes")
    done = talos("tune", clicks, "--out", "study", "--trials", 1, "--storage", "notes")
    assert (done.returncode, "file is not a database" in done.stderr) == (2, True), done.stderr
    assert (tmp_path / "notes").read_text() == "my notes"
    with lock_run(tmp_path / "run", "a test"):
        assert json.loads((tmp_path / "run" / ".lock").read_text())["purpose"] == "a test"
