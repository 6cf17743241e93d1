"""Baselines from the command line."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.parametrize("name", ["popularity", "itemknn", "ease", "rp3beta", "als"])
def test_train_evaluate_recommend(talos: Run, clicks: Path, tmp_path: Path, name: str) -> None:
    run = tmp_path / "run"
    done = talos("train", clicks, "--baseline", name, "--k", 5, "--out", run)
    assert done.returncode == 0, done.stderr
    assert "computed, " in done.stdout
    stored = json.loads((run / "model.json").read_text())["metrics"]
    measured = json.loads(talos("evaluate", run, "--k", "5", "--json").stdout)["metrics"]
    assert measured["recall@5"] == stored["recall@5"]
    lists = json.loads(talos("recommend", run, "--history", "item01,item02", "--k", 3, "--json").stdout)
    assert [row["rank"] for row in lists] == [1, 2, 3]
    written = talos("recommend", run, "--all", "--out", tmp_path / "lists.csv", "--k", 3)
    assert written.returncode == 0, written.stderr
    page = talos("report", run, "--out", tmp_path / "page.html")
    assert page.returncode == 0, page.stderr
    assert f"Baseline {name}" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize("name", ["popularity", "itemknn"])
def test_refit(talos: Run, clicks: Path, tmp_path: Path, name: str) -> None:
    small = ("--baseline", name, "--k", 5)
    plain = talos("train", clicks, *small, "--refit", "--out", tmp_path / "both")
    assert plain.returncode == 0, plain.stderr
    assert "computed again on train and validation, " in plain.stdout
    both = json.loads((tmp_path / "both" / "model.json").read_text())
    assert list(both["trained_on"]) == ["train", "valid"]
    measured = json.loads(talos("evaluate", tmp_path / "both", "--k", "5", "--json").stdout)["metrics"]
    assert measured["recall@5"] == both["metrics"]["recall@5"]
    done = talos("train", clicks, *small, "--refit", "all", "--out", tmp_path / "all", "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert list(facts["trained_on"]) == ["train", "valid", "test"]
    assert facts["metrics"] == {}
    assert facts["chosen_from"]["metrics"]["recall@5"] > 0
    page = talos("report", tmp_path / "all", "--out", tmp_path / "page.html")
    assert page.returncode == 0, page.stderr
    assert "No test metrics" in (tmp_path / "page.html").read_text()


def test_explain_shows_every_option(talos: Run, clicks: Path) -> None:
    done = talos("train", clicks, "--baseline", "itemknn", "--set", "baseline.neighbours=7", "--explain")
    assert done.returncode == 0, done.stderr
    assert "neighbours = 7" in done.stdout
    assert "shrinkage = " in done.stdout
    assert "loss" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--baseline", "eese"), "baseline: 'eese' is not known"),
        (("--baseline", "ease", "--half-life", "30d"), "has no effect with a baseline"),
        (("--baseline", "ease", "--tau", 0.2), "loss: has no effect with a baseline"),
        (("--baseline", "ease", "--loss", "sl"), "loss: has no effect with a baseline"),
        (("--baseline", "ease", "--epochs", 3), "--epochs: has no effect with a baseline"),
        (
            ("--baseline", "ease", "--set", "baseline.neighbours=3"),
            "neighbours: the baseline 'ease' has no such",
        ),
        (("--baseline", "ease", "--set", "baseline.memory_gb=1e-9"), "items need a matrix of"),
    ],
)
def test_wrong_input(
    talos: Run, clicks: Path, tmp_path: Path, arguments: tuple[object, ...], message: str
) -> None:
    done = talos("train", clicks, *arguments, "--out", tmp_path / "run")
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


def test_options_are_checked_before_the_data_are_read(talos: Run, tmp_path: Path) -> None:
    wrong = ("--baseline", "ease", "--set", "baseline.regularization=-1", "--out", tmp_path / "run")
    done = talos("train", tmp_path / "missing.csv", *wrong)
    assert done.returncode == 2
    assert "regularization: got -1" in done.stderr
    compared = ("--losses", "sl", "--baselines", "ease", "--set", "ease.baseline.regularization=-1")
    done = talos("compare", tmp_path / "missing.csv", *compared, "--out", tmp_path / "out")
    assert done.returncode == 2
    assert "regularization: got -1" in done.stderr


def test_exports_of_weights_say_why_not(talos: Run, clicks: Path, tmp_path: Path) -> None:
    talos("train", clicks, "--baseline", "ease", "--k", 5, "--out", tmp_path / "run")
    done = talos("export", tmp_path / "run", "--format", "faiss", "--out", tmp_path / "vectors")
    assert done.returncode == 2
    assert "baseline 'ease': scores with weights between items and has no vectors" in done.stderr
    assert not (tmp_path / "vectors").exists()


def test_compare_holds_losses_against_baselines(talos: Run, clicks: Path, tmp_path: Path) -> None:
    small = ("--k", 5, "--set", "backbone.dim=4", "--set", "training.epochs=2")
    done = talos("compare", clicks, "--losses", "talos", "--baselines", "popularity,als", *small, "--seeds", 1,
                 "--set", "als.baseline.dim=4", "--out", tmp_path / "out", "--json")  # fmt: skip
    assert done.returncode == 0, done.stderr
    models = json.loads(done.stdout)["models"]
    assert [model["model"] for model in models] == ["talos", "popularity", "als"]
    wrong = talos("compare", clicks, "--losses", "talos", "--baselines", "eese", "--out", tmp_path / "other")
    assert wrong.returncode == 2
    assert "--baselines: 'eese' is not known" in wrong.stderr


def test_compare_tunes_baselines_as_well(talos: Run, clicks: Path, tmp_path: Path) -> None:
    small = ("--k", 5, "--set", "backbone.dim=4", "--set", "training.epochs=1", "--seeds", 1, "--tuned", 2)
    done = talos("compare", clicks, "--losses", "sl", "--baselines", "popularity,itemknn", *small,
                 "--out", tmp_path / "out", "--json")  # fmt: skip
    assert done.returncode == 0, done.stderr
    values = json.loads(done.stdout)
    assert set(values["tuned"]) == {"sl", "itemknn"}
    assert len(values["models"]) == 3


def test_tune(talos: Run, clicks: Path, tmp_path: Path) -> None:
    done = talos("tune", clicks, "--baseline", "rp3beta", "--k", 5, "--trials", 3, "--out", tmp_path / "study",
                 "--finalize", "--json")  # fmt: skip
    assert done.returncode == 0, done.stderr
    final = json.loads(done.stdout)
    assert final["config"]["baseline"]["name"] == "rp3beta"
    assert final["epochs"] == 0
    stored = json.loads((tmp_path / "study" / "final" / "model.json").read_text())
    assert list(stored["trained_on"]) == ["train", "valid"]
    assert stored["chosen_from"]["valid"] == final["validation"]
    told = talos("tune", "--out", tmp_path / "study", "--finalize")
    assert "fitted on train and validation; written to" in told.stdout
    assert {"alpha", "beta", "neighbours"} <= set(final["config"]["baseline"])
    nothing = talos("tune", clicks, "--baseline", "popularity", "--out", tmp_path / "other")
    assert nothing.returncode == 2
    assert "nothing to choose" in nothing.stderr
