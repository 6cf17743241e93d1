"""`talos reproduce` from the command line: what it lists, refuses, keeps, and goes on with after a kill."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from talos.cli import plugins
from talos.data.datasets import synthetic
from talos_paper.recipes import EXPERIMENTS

Run = Callable[..., subprocess.CompletedProcess[str]]
Start = Callable[..., subprocess.Popen[str]]
INFLATION = ("reproduce", "inflation", "--dataset", "beauty")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A made-up `beauty` in the layout of the real one."""
    root = tmp_path_factory.mktemp("data")
    parts = synthetic(users=60, items=100, interactions=1500, seed=0).split(seed=0)
    (root / "beauty").mkdir()
    for name, part in parts.parts.items():
        table = part.to_polars().select("user_id", "item_id")
        table.write_csv(root / "beauty" / f"{name}.tsv", separator="\t")
    return root


def test_the_list_names_every_table_and_figure(talos: Run) -> None:
    done = talos("reproduce", "--list", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {line["table"] for line in found["tables"]} == set(EXPERIMENTS)
    assert all(line["done"] == 0 for line in found["tables"])
    words = " ".join([*(line["paper"] for line in found["tables"]), *found["not_run"]])
    for part in ("Table 1", "Table 2", "varying K", "temporal shift", "ablation", "sensitivity", "SL@K",
                 "quantile", "computational time", "statistics", "hyperparameters", "Figure 1"):  # fmt: skip
        assert part in words


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["reproduce"], "no table is named"),
        (["reproduce", "overal"], "did you mean 'overall'?"),
        (["reproduce", "overall", "--dataset", "beuty"], "did you mean 'beauty'?"),
        (["reproduce", "overall", "--loss", "talso"], "did you mean 'talos'?"),
        (["reproduce", "overall", "--budget", "soon"], "--budget"),
    ],
)
def test_wrong_input_is_exit_code_2(talos: Run, arguments: list[str], said: str) -> None:
    done = talos(*arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "distribution"),
    [
        (["reproduce", "overall", "--dataset", "beauty"], "talos-rec-paper"),
        (["bench", "--only", "engine"], "talos-rec-benchmarks"),
        (["tune", "clicks.csv", "--space", "paper", "--trials", "1", "--out", "study"], "talos-rec-paper"),
    ],
)
def test_without_its_distribution_a_command_says_how_to_get_it(
    talos: Run, monkeypatch: pytest.MonkeyPatch, arguments: list[str], distribution: str
) -> None:
    monkeypatch.setattr(plugins, "entry_points", lambda group: ())
    done = talos(*arguments)
    assert done.returncode == 2
    assert f"pip install {distribution}" in done.stderr
    assert [line[:7] for line in done.stderr.splitlines() if line[:2] != "  "] == ["error: "], done.stderr


def test_a_command_that_cannot_be_imported_harms_no_other(
    talos: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = EntryPoint("broken", "no_such_module:command", "talos.commands")
    monkeypatch.setattr(plugins, "entry_points", lambda group: (broken,))
    assert "(cannot be imported)" in talos("--help").stdout
    done = talos("broken", "--anything")
    assert done.returncode == 1
    assert "no_such_module" in done.stderr


def test_help_imports_no_torch() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "talos", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "reproduce" in done.stdout
    assert not re.search(r"\b(torch|polars|numpy)$", done.stderr, re.MULTILINE)


def test_a_killed_call_goes_on_where_it_stopped(
    talos: Run, start: Start, tmp_path: Path, folder: Path
) -> None:
    whole = tmp_path
    assert talos(*INFLATION, "--data", folder).returncode == 0
    killed = tmp_path / "killed"
    killed.mkdir()
    kills = 0
    for _ in range(2):  # the one that is killed, and the one that goes on
        process = start(*INFLATION, "--data", folder, cwd=killed)
        began = time.monotonic()
        while process.poll() is None and time.monotonic() - began < 60:
            if kills < 1 and list(killed.glob("runs/reproduce/runs/beauty/*/checkpoint/0*")):
                time.sleep(0.05)
                process.kill()
                kills += 1
                break
            time.sleep(0.01)
        process.wait(60)
    assert kills == 1
    one, other = (
        [json.loads(line) for line in (root / "results" / "runs.jsonl").read_text().splitlines()]
        for root in (whole, killed)
    )
    for values in (*one, *other):
        del values["cpu_seconds"], values["sha256"]
    assert one == other
    assert len(one) == 2


def test_an_edited_result_is_refused(talos: Run, tmp_path: Path, folder: Path) -> None:
    assert talos(*INFLATION, "--data", folder).returncode == 0
    path = tmp_path / "results" / "runs.jsonl"
    first, *others = path.read_text().splitlines()
    values = json.loads(first)
    values["metrics"]["recall@20"] = 0.9
    path.write_text("\n".join([json.dumps(values), *others]))
    for arguments in (["reproduce", "--pages"], [*INFLATION, "--data", folder]):
        done = talos(*arguments)
        assert done.returncode == 2
        assert path.name in done.stderr
        assert "differs from the digest" in done.stderr


def test_budget_and_json(talos: Run, tmp_path: Path, folder: Path) -> None:
    first = talos(*INFLATION, "--data", folder, "--budget", "0.01s", "--json")
    assert first.returncode == 0, first.stderr
    assert json.loads(first.stdout)["left"] == 2
    second = talos(*INFLATION, "--data", folder, "--json")
    assert json.loads(second.stdout)["made"] == 2
    results = tmp_path / "results"
    assert "w/o denominator" in (results / "inflation.md").read_text()
    assert not list(results.glob("*.html"))
    for form, ending in (("html", "html"), ("latex", "tex")):
        assert talos("reproduce", "--pages", "--format", form).returncode == 0
        assert "w/o denominator" in (results / f"inflation.{ending}").read_text()


def test_ctrl_c_is_130_and_says_that_it_saved(start: Start, tmp_path: Path, folder: Path) -> None:
    process = start("reproduce", "overall", "--dataset", "beauty", "--data", folder)
    until = time.monotonic() + 60
    while not list(tmp_path.glob("runs/reproduce/runs/beauty/*/history.jsonl")):
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "saved" in said or "interrupted" in said
