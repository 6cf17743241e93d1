"""A run.toml with the section `[data]` is all that `train`, `tune` and `compare` need."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from talos.config import RunConfig
from talos.data.options import SourceOptions, read_source

Talos = Callable[..., subprocess.CompletedProcess[str]]
QUICK = ("--dim", 4, "--epochs", 1, "--k", 3, "--effort", "quick")
MAY = '[data]\npath = "may.csv"\nuser = "who"\nitem = "what"\n'


@pytest.fixture
def may(clicks: Path, tmp_path: Path) -> Path:
    """Clicks whose columns have no usual names."""
    path = tmp_path / "may.csv"
    path.write_text(clicks.read_text().replace("user,item,title", "who,what,name", 1))
    clicks.unlink()
    return path


def source_of(run: str) -> dict[str, Any]:
    source: dict[str, Any] = json.loads(Path(run, "model.json").read_text())["source"]
    return source


def test_init_writes_all_that_train_needs(talos: Talos, may: Path) -> None:
    columns = ("--user-column", "who", "--item-column", "what", "--title-column", "name")
    assert talos("init", may.name, *columns, "--test", 0.3).returncode == 0
    assert talos("train", "-c", "run.toml", "-o", "one", *QUICK).returncode == 0
    assert talos("train", may.name, *columns, "--test", 0.3, "-o", "other", *QUICK).returncode == 0
    assert source_of("one") == source_of("other")
    assert Path("one/users.parquet").read_bytes() == Path("other/users.parquet").read_bytes()
    path, options = read_source("run.toml")
    assert (path, options) == ("may.csv", SourceOptions.of(user="who", item="what", title="name", test=0.3))
    assert RunConfig.from_toml(Path("run.toml")).k == 20


def test_the_line_wins_over_the_file(talos: Talos, may: Path) -> None:
    Path("run.toml").write_text(MAY + "test = 0.4\nmax_bytes = 1000000\n")
    may.rename("june.csv")
    gone = talos("train", "-c", "run.toml", "-o", "run", *QUICK)
    assert (gone.returncode, "may.csv: no such file" in gone.stderr) == (2, True)
    # the option of the line is the default, and wins all the same
    done = talos("train", "june.csv", "-c", "run.toml", "--test", 0.2, "-o", "run", *QUICK)
    assert done.returncode == 0, done.stderr
    source = source_of("run")
    assert (source["path"], source["split"]["test"], source["columns"]["user"]) == ("june.csv", 0.2, "who")
    assert source["max_bytes"] == 1_000_000


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ('[data]\npth = "may.csv"', "run.toml: data.pth: no such key (did you mean 'path'?)"),
        ('[data]\nusr = "who"', "run.toml: data.usr: no such key (did you mean 'user'?)"),
        ('[data]\nby = "tim"', "run.toml: data.by: 'tim'; expected 'user', 'time', 'future' or 'last'"),
        ('[data]\ntest = "0.2"', "run.toml: data.test: '0.2'; expected a valid number"),
        ("[data]\npath = 3", "run.toml: data.path: 3; expected a valid string"),
        ("data = 3", "run.toml: data: 3; expected a section"),
        ("[data]\n[dat]", "run.toml: dat: no such key"),
    ],
)
def test_mistakes_are_named(talos: Talos, may: Path, section: str, message: str) -> None:
    Path("run.toml").write_text(section + "\n")
    for command in (("train",), ("tune",), ("compare", "--losses", "sl")):
        done = talos(*command, may.name, "-c", "run.toml", "-o", "out")
        assert (done.returncode, done.stdout) == (2, "")
        assert message in done.stderr, done.stderr
        assert "Traceback" not in done.stderr
        assert not Path("out").exists()


def test_without_a_path_anywhere_the_first_steps_are_named(talos: Talos, may: Path) -> None:
    Path("run.toml").write_text(RunConfig().to_toml())
    for command in (("train",), ("tune",), ("compare", "--losses", "sl")):
        done = talos(*command, "-c", "run.toml", "-o", "out")
        assert done.returncode == 2
        assert "PATH: is missing" in done.stderr
        assert "talos init clicks.csv" in done.stderr


def test_tune_and_compare_take_it_too(talos: Talos, may: Path) -> None:
    pytest.importorskip("optuna", reason="optuna is not installed (extra `tune`)")
    Path("run.toml").write_text("k = 3\n" + MAY)
    small = ("--set", "backbone.dim=4", "--set", "training.epochs=1")
    tuned = talos("tune", "-c", "run.toml", "-o", "study", *small, "--trials", 1)
    assert tuned.returncode == 0, tuned.stderr
    path, options = read_source("study/run.toml")
    assert (path, options.given()) == ("may.csv", {"user": "who", "item": "what"})
    again = talos("train", "-c", "study/run.toml", "-o", "run", "--epochs", 1)
    assert again.returncode == 0, again.stderr
    compared = talos("compare", "-c", "run.toml", "-o", "table", "--losses", "sl", "--seeds", 1, *small)
    assert compared.returncode == 0, compared.stderr
