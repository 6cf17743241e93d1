"""`talos demo` on a small set: every model in the table, lists with titles, a run and its page."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from talos.cli import demo as module
from talos.cli import main
from talos.data import datasets
from talos.data import open as opening
from talos.data.interactions import Interactions
from talos.errors import DownloadError


@pytest.fixture
def demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[str, str]]:
    """The command, with a few epochs, where MovieLens-100K cannot be had; what it prints."""
    monkeypatch.chdir(tmp_path)
    quick = {name: {**settings, "epochs": 2, "dim": 8} for name, settings in module.MODELS.items()}
    monkeypatch.setattr(module, "MODELS", quick)

    def offline(*_: Any, **__: Any) -> Interactions:
        raise DownloadError("movielens-100k: no network")

    real = datasets.synthetic

    def small(**options: Any) -> Interactions:
        made = real(**{**options, "users": 60, "items": 80, "interactions": 1500})
        return made.with_titles(pl.Series([f"Film {item}" for item in made.item_ids.ids]))

    monkeypatch.setattr(opening, "open_interactions", offline)
    monkeypatch.setattr(datasets, "synthetic", small)

    def run(*arguments: str) -> tuple[str, str]:
        monkeypatch.setattr(sys, "argv", ["talos", "demo", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
        captured = capsys.readouterr()
        return captured.out, captured.err

    return run


def test_a_table_lists_and_a_page(demo: Callable[..., tuple[str, str]], tmp_path: Path) -> None:
    out, err = demo()
    assert "using a synthetic set" in err
    table = out[out.index("ranked by") :].splitlines()
    names = [line.split()[0] for line in table[2:10]]
    assert names == ["popularity", "itemknn", "rp3beta", "ease", "als", "bpr", "sl", "talos"]
    assert all(" ± " in line for line in table[2:9])
    assert " ± " not in table[9]  # talos itself
    assert table[10].startswith("ahead in recall@20, ± the 95 % interval over users; level with talos: ")
    assert out.count(" has, among others: Film ") == 3
    assert out.count("\n  10. Film ") == 3
    assert (tmp_path / "runs" / "demo" / "report.html").is_file()
    *_, before, last = out.rstrip().splitlines()
    assert before.endswith("plots and more in runs/demo/report.html")
    assert last.endswith(": talos serve runs/demo")


def test_its_run_answers_every_command_without_data(
    demo: Callable[..., tuple[str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = json.loads(demo("--json")[0])["models"]["talos"]["metrics"]
    lists = ("recommend", "runs/demo", "--all", "--for-test", "--out", "lists.parquet")
    measure = ("evaluate", "runs/demo", "-k", "20", "--json")
    for line in (("report", "runs/demo"), ("card", "runs/demo"), lists, measure):
        monkeypatch.setattr(sys, "argv", ["talos", *line])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code, capsys.readouterr().err
    out = capsys.readouterr().out
    measured = json.loads(out[out.index("{\n") :])["metrics"]
    assert measured["recall@20"] == found["recall@20"]
    assert "Accuracy" in (tmp_path / "runs" / "demo" / "report.html").read_text()
    card = (tmp_path / "runs" / "demo" / "README.md").read_text()
    assert "Recall@20" in card
    assert 'dataset: {type: "synthetic-seed-0", name: "synthetic, seed 0"}' in card


def test_the_last_line_names_a_command_that_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "talos"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    for called, path, said in (
        (program, str(program.parent), "talos"),
        (program, "/nowhere", str(program)),  # as `make demo` calls it, with the environment not activated
        (tmp_path / "__main__.py", "/nowhere", "talos"),
    ):
        monkeypatch.setattr(sys, "argv", [str(called), "demo"])
        monkeypatch.setenv("PATH", path)
        assert module._command() == said


def test_json(demo: Callable[..., tuple[str, str]]) -> None:
    out, _ = demo("--json", "--out", "elsewhere")
    result = json.loads(out)
    assert set(result["models"]) == {*module.BASELINES, "bpr", "sl", "talos"}
    assert result["models"]["als"]["metrics"]["precision@20"] > 0
    assert result["report"] == "elsewhere/report.html"
