"""`talos train --refit`, and lists without what users have, from the command line."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import talos as library
from talos.config import RunConfig
from talos.model.recommender import Recommender

Run = Callable[..., subprocess.CompletedProcess[str]]
Start = Callable[..., subprocess.Popen[str]]
Written = Callable[[Path, subprocess.Popen[str]], None]

SMALL = ("--k", 5, "--dim", 8, "--epochs", 12, "--set", "training.batch_size=8")


def done(result: subprocess.CompletedProcess[str]) -> str:
    assert result.returncode == 0, result.stderr
    return result.stdout


def facts_of(run: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((run / "model.json").read_text())
    return facts


def bytes_of(run: Path) -> bytes:
    return (run / "model.safetensors").read_bytes()


def parts_of(talos: Run, clicks: Path, folder: Path) -> dict[str, pl.DataFrame]:
    done(talos("data", "split", clicks, "--out", folder))
    return {name: pl.read_csv(folder / f"{name}.tsv", separator="\t") for name in ("train", "valid", "test")}


def test_a_refitted_run_is_that_of_the_joined_data(talos: Run, clicks: Path, tmp_path: Path) -> None:
    parts = parts_of(talos, clicks, tmp_path / "parts")
    printed = json.loads(done(talos("train", "parts", "--refit", "--out", "refit", *SMALL, "--json")))
    facts = facts_of(tmp_path / "refit")
    assert facts["trained_on"] == {"train": len(parts["train"]), "valid": len(parts["valid"])}
    assert facts["chosen_from"]["trained_on"] == {"train": len(parts["train"])}
    assert facts["chosen_from"]["valid"]["precision@5"] > 0
    assert facts["chosen_from"]["metrics"] == {}  # the test part was opened once, for the refitted model
    assert {name: printed[name] for name in ("trained_on", "epochs_from", "chosen_from", "metrics")} == {
        name: facts[name] for name in ("trained_on", "epochs_from", "chosen_from", "metrics")
    }
    measured = json.loads(done(talos("evaluate", "refit", "--k", 5, "--json")))
    assert measured["metrics"]["recall@5"] == facts["metrics"]["recall@5"] > 0

    (tmp_path / "joined").mkdir()
    both = pl.concat([parts["train"], parts["valid"]])
    both.write_csv(tmp_path / "joined" / "train.tsv", separator="\t")
    parts["test"].write_csv(tmp_path / "joined" / "test.tsv", separator="\t")
    (tmp_path / "chosen.toml").write_text(RunConfig.from_dict(facts["config"]).to_toml())
    done(talos("train", "joined", "--config", "chosen.toml", "--out", "again"))
    assert bytes_of(tmp_path / "refit") == bytes_of(tmp_path / "again")
    again = facts_of(tmp_path / "again")
    assert (again["metrics"], again["baseline"]) == (facts["metrics"], facts["baseline"])
    plain = done(talos("train", "parts", "--out", "said", "--refit", *SMALL))
    assert "; fitted again on train and validation for as many epochs" in plain


def test_a_model_of_all_the_data_shows_whose_figures_it_shows(
    talos: Run, clicks: Path, tmp_path: Path
) -> None:
    done(talos("train", clicks, "--out", "plain", *SMALL))
    printed = json.loads(done(talos("train", clicks, "--out", "run", *SMALL, "--refit", "all", "--json")))
    facts, plain = facts_of(tmp_path / "run"), facts_of(tmp_path / "plain")
    assert list(facts["trained_on"]) == ["train", "valid", "test"]
    assert sum(facts["trained_on"].values()) == 40 * 12
    assert printed["metrics"] == facts["metrics"] == facts["baseline"] == {}
    assert printed["chosen_from"] == facts["chosen_from"]
    assert facts["chosen_from"]["metrics"] == plain["metrics"]
    assert facts["chosen_from"]["baseline"] == plain["baseline"]

    config = RunConfig.from_dict(facts["config"])
    again = Recommender(config=config).fit(library.read(clicks))
    again.save(tmp_path / "again")
    assert bytes_of(tmp_path / "run") == bytes_of(tmp_path / "again")

    refused = talos("evaluate", "run", "--k", 5)
    assert (refused.returncode, "the model was fitted on these interactions" in refused.stderr) == (2, True)
    (tmp_path / "later.csv").write_text("user,item\nuser00,item20\nuser01,item01\n")
    assert talos("evaluate", "run", "later.csv", "--k", 5).returncode == 0
    done(talos("report", "run"))
    page = (tmp_path / "run" / "report.html").read_text()
    assert "No test metrics: this model was fitted on train, validation and test." in page
    assert "were chosen from a model fitted on train; the metrics are those of that model." in page
    assert f"{plain['metrics']['recall@5']:.4g}"[:5] in page
    assert "Training loss of the refit" in page
    assert "Accuracy" not in page
    lines = done(talos("train", clicks, "--out", "said", *SMALL, "--refit=all"))
    assert "test, of the model it was chosen from, 40 users" in lines
    assert "no test figure: this model was fitted on the test part too." in lines


@pytest.mark.parametrize("refit", [(), ("--refit",), ("--refit", "all")])
def test_nobody_is_offered_what_the_source_has_for_them(
    talos: Run, clicks: Path, tmp_path: Path, refit: tuple[str, ...]
) -> None:
    has = set(library.read(clicks).to_polars().select("user_id", "item_id").rows())
    done(talos("train", clicks, "--out", "run", *SMALL, *refit))
    some = json.loads(
        done(talos("recommend", "run", "--user", "user00", "--user", "user01", "--k", 40, "--json"))
    )
    assert len(some) == 2 * (40 - 12)
    assert not {(row["user_id"], row["item_id"]) for row in some} & has
    done(talos("recommend", "run", "--all", "--out", "lists.parquet", "--k", 40))
    lists = pl.read_parquet(tmp_path / "lists.parquet")
    assert len(lists) == 40 * (40 - 12)
    assert not set(lists.select("user_id", "item_id").rows()) & has
    done(talos("recommend", "run", "--all", "--out", "all.parquet", "--k", 40, "--keep-seen"))
    assert len(pl.read_parquet(tmp_path / "all.parquet")) == 40 * 40


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--refit", "--valid", "0"], "error: --refit: there is no validation part"),
        (["--refit", "all", "--test", "0"], "error: --refit: there is no test part to add"),
        (["--refit=everything"], "error: --refit: 'everything'; expected train+valid or all"),
        (["--refit", "al"], "error: --refit: 'al'; expected train+valid or all"),
        (["--refit", "valid"], "error: --refit: 'valid'; expected train+valid or all"),
        (["--refit", "ALL", "--test", "0"], "error: --refit: there is no test part to add"),
        (["--refit=ALL", "--test", "0"], "error: --refit: there is no test part to add"),
    ],
)
def test_what_cannot_be_refitted_is_refused_before_the_first_fit(
    talos: Run, clicks: Path, tmp_path: Path, arguments: list[str], words: str
) -> None:
    refused = talos("train", clicks, "--out", "run", *arguments)
    assert refused.returncode == 2
    assert words in refused.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clicks.csv"]


# a low rate: validation is best late, so that the refit is long, and a signal arrives before its end
LONG = (*SMALL[:4], "--epochs", 30, "--lr", 0.002, "--init", "random",
        "--set", "training.batch_size=8")  # fmt: skip


@pytest.mark.parametrize(
    ("stop", "phase"), [(signal.SIGINT, "history.jsonl"), (signal.SIGKILL, "history-refit.jsonl")]
)
def test_stopped_in_either_phase_it_goes_on_to_the_same_bytes(
    talos: Run,
    start: Start,
    written: Written,
    clicks: Path,
    tmp_path: Path,
    stop: signal.Signals,
    phase: str,
) -> None:
    process = start("train", clicks, "--refit", "--out", "part", *LONG)
    written(tmp_path / "part" / phase, process)
    process.send_signal(stop)
    process.communicate(timeout=120)
    if not (tmp_path / "part" / "model.json").exists():  # else it was quicker than the signal
        if phase == "history-refit.jsonl":
            for other in ((), ("--refit", "all")):
                refused = talos("train", clicks, *other, "--out", "part", *LONG, "--resume")
                assert refused.returncode == 2
                assert (
                    "fitted again on train+valid; expected the same (--refit train+valid continues it)"
                    in refused.stderr
                )
        done(talos("train", clicks, "--refit", "--out", "part", *LONG, "--resume"))
    done(talos("train", clicks, "--refit", "--out", "whole", *LONG))
    assert bytes_of(tmp_path / "part") == bytes_of(tmp_path / "whole")


def test_init_explains_it(talos: Run, clicks: Path, tmp_path: Path) -> None:
    printed = done(talos("init", clicks))
    comment = (tmp_path / "run.toml").read_text()
    assert "--refit all" in printed
    assert "# part too, for deployment" in comment
    assert RunConfig.from_toml(tmp_path / "run.toml").k == 20
