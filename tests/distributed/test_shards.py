"""Folders of shards and several processes: nobody reads all of them, and the result is that of one process."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from talos import Recommender
from talos.cli import app
from talos.model.model import Model

OPTIONS = ("--k", "5", "--dim", "8", "--batch-size", "16", "--epochs", "2", "--seed", "3",
           "--set", "training.arithmetic=float32")  # fmt: skip
WHOLE = (*OPTIONS, "--valid", "0.2", "--init", "random", "--parallel", "users")
Command = Sequence[str | Path]
Environment = Callable[..., dict[str, str]]


def talos(*arguments: str | Path) -> str:
    """A command in this process, and what it prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        app(list(map(str, arguments)), standalone_mode=False)
    return printed.getvalue()


def together(out: Path, environment: Environment, port: int, *commands: Command) -> list[Any]:
    """Commands one after the other on two ranks: what each rank printed or raised."""
    plan = out / "plan.json"
    plan.write_text(json.dumps({"out": str(out), "commands": [list(map(str, one)) for one in commands]}))
    ranks = [
        subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("commands.py")), str(plan)],
            env=environment(rank, 2, port),
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for process in ranks:
            _, errors = process.communicate(timeout=170)
            assert process.returncode == 0, errors
    finally:
        for process in ranks:
            process.kill()
            process.communicate()
    return [json.loads((out / f"rank{rank}.json").read_text()) for rank in range(2)]


def model_of(run: Path) -> Model:
    model = Recommender.load(run).model
    assert model is not None
    return model


def distance(one: Model, other: Model) -> float:
    """The largest difference of two models' tables, each as a share of its length."""
    names = ("users", "items", "thresholds")
    pairs = [(getattr(one.vectors, name), getattr(other.vectors, name)) for name in names]
    return max(float((a - b).norm() / a.norm()) for a, b in pairs)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three shards (the ranges of two ranks cut through the one in the middle), a copy of which one is broken."""
    rng = np.random.default_rng(1)
    rows = [f"u{user},i{item}" for user in range(91) for item in range(40)
            if rng.random() < (0.5 if item % 5 == user % 5 else 0.08)]  # fmt: skip
    root = tmp_path_factory.mktemp("shards")
    (root / "clicks.csv").write_text("user_id,item_id\n" + "\n".join(rows) + "\n")
    for name in ("parts", "broken"):
        talos("data", "split", root / "clicks.csv", "--out", root / name, "--shards", "3", "--valid", "0.2")
    shard = root / "broken" / "shard-0002" / "train.parquet"
    shard.write_bytes(shard.read_bytes()[:-30])
    return root


@pytest.fixture(scope="module")
def ranks(root: Path, environment: Environment, new_port: Callable[[], int]) -> list[Any]:
    """All commands that two ranks do, in one go: starting processes takes longest."""
    parts, run = root / "parts", root / "random"
    talos("train", parts, *OPTIONS, "--init", "random", "--out", root / "alone")
    shutil.copytree(root / "alone" / "checkpoint", root / "resumed" / "checkpoint")
    return together(
        root,
        environment,
        new_port(),
        ("train", parts, *OPTIONS, "--init", "random", "--parallel", "users", "--out", run),
        ("recommend", run, "--all", "--out", root / "both.parquet"),
        ("evaluate", run, "--json", "--k", "3,10"),
        ("train", parts, *OPTIONS, "--init", "als", "--parallel", "users", "--out", root / "users"),
        ("train", parts, *OPTIONS, "--init", "als", "--parallel", "items", "--out", root / "items"),
        ("train", root / "broken", *OPTIONS, "--out", root / "never"),
        (
            "train",
            parts,
            *OPTIONS,
            "--init",
            "random",
            "--parallel",
            "users",
            "--out",
            root / "resumed",
            "--resume",
        ),
        ("train", parts, *OPTIONS, "--init", "svd", "--out", root / "never"),
        ("train", parts, *OPTIONS, "--refit", "--out", root / "never"),
        ("train", root / "clicks.csv", *WHOLE, "--refit", "all", "--out", root / "refitted"),
    )


def test_two_ranks_give_the_run_of_one_process(root: Path, ranks: list[Any]) -> None:
    assert ranks[0][0]["error"] is None
    alone, both = model_of(root / "alone"), model_of(root / "random")
    assert distance(alone, both) < 1e-5
    assert both.metadata["metrics"] == pytest.approx(alone.metadata["metrics"], rel=1e-9)
    assert both.metadata["baseline"]["popularity"] == pytest.approx(
        alone.metadata["baseline"]["popularity"], rel=1e-9
    )
    assert both.train.fingerprint() == alone.train.fingerprint()
    assert both.valid is not None
    assert alone.valid is not None
    assert both.valid.fingerprint() == alone.valid.fingerprint()
    assert (root / "random" / "users-0-45.safetensors").is_file()
    assert (root / "random" / "users-45-91.safetensors").is_file()


def test_two_ranks_go_on_with_what_one_process_began(root: Path, ranks: list[Any]) -> None:
    assert [rank[6]["error"] for rank in ranks] == [None, None]
    assert distance(model_of(root / "alone"), model_of(root / "resumed")) < 1e-6


def test_lists_and_metrics_are_those_of_one_process(root: Path, ranks: list[Any]) -> None:
    talos("recommend", root / "random", "--all", "--out", root / "one.parquet")
    lists = [pl.read_parquet(root / f"{name}.parquet").drop("score") for name in ("one", "both")]
    assert lists[0].equals(lists[1])
    measured = [talos("evaluate", root / "random", "--json", "--k", "3,10"), ranks[0][2]["out"]]
    figures = [json.loads(text) for text in measured]
    assert figures[1]["metrics"] == pytest.approx(figures[0]["metrics"], rel=1e-9)
    assert figures[1]["users"] == figures[0]["users"]
    assert ranks[1][2]["out"] == ""  # rank 0 speaks for all


@pytest.mark.parametrize("parallel", ["users", "items"])
def test_from_least_squares_it_is_as_good(root: Path, ranks: list[Any], parallel: str) -> None:
    start = root / f"als-{parallel}"
    talos("train", root / "parts", *OPTIONS, "--init", "als", "--out", start)
    # sweeps amplify the rounding of sums that are made in another order, and so do the steps after them
    assert distance(model_of(start), model_of(root / parallel)) < 0.01
    metrics = [model_of(run).metadata["metrics"] for run in (start, root / parallel)]
    assert metrics[1] == pytest.approx(metrics[0], abs=0.01)


def test_a_broken_shard_is_named_and_no_run_appears(root: Path, ranks: list[Any]) -> None:
    shard = root / "broken" / "shard-0002" / "train.parquet"
    (_, other), (code, message) = ranks[0][5]["error"], ranks[1][5]["error"]
    assert code == 2
    assert message.startswith(f"{shard}: differs from its checksum in shards.json; expected the file as")
    assert other == f"{root / 'broken'}: rank 1 could not do its part"
    for rank in range(2):
        code, message = ranks[rank][7]["error"]
        assert code == 2
        assert message.startswith("training.init: 'svd' without all interactions in every process")
        code, message = ranks[rank][8]["error"]
        assert code == 2
        assert message.startswith("refit: shards in several processes; expected one process, or a PATH")
    assert not (root / "never").exists()


def test_ranks_that_have_all_interactions_refit_together(root: Path, ranks: list[Any]) -> None:
    assert [rank[9]["error"] for rank in ranks] == [None, None]
    talos("train", root / "clicks.csv", *WHOLE, "--refit", "all", "--out", root / "refitted-alone")
    alone, both = model_of(root / "refitted-alone"), model_of(root / "refitted")
    assert distance(alone, both) < 1e-5
    assert both.metadata["trained_on"] == alone.metadata["trained_on"]
    assert both.metadata["chosen_from"]["metrics"] == pytest.approx(
        alone.metadata["chosen_from"]["metrics"], rel=1e-6
    )


def test_no_rank_offers_what_its_users_have(root: Path, ranks: list[Any]) -> None:
    has = set(pl.read_csv(root / "clicks.csv").rows())
    lists = pl.read_parquet(root / "both.parquet")
    assert len(lists)
    assert not set(lists.select("user_id", "item_id").rows()) & has
    both, alone = model_of(root / "random").held_out, model_of(root / "alone").held_out
    assert both is not None
    assert alone is not None
    assert both.fingerprint() == alone.fingerprint()
