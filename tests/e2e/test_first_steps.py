"""What helps people who type a command for the first time: short flags, completion, and what to do after an error."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import typer

from talos.cli import app

Done = subprocess.CompletedProcess[str]
Talos = Callable[..., Done]
SHORT = {"--k": "-k", "--out": "-o", "--user": "-u", "--config": "-c"}


def commands() -> Iterator[tuple[str, Any]]:
    """Every command of the library and of the packages beside it, by its name."""
    top: Any = typer.main.get_command(app)
    context = top.make_context("talos", ["doctor"])
    for name in top.list_commands(context):
        command = top.get_command(context, name)
        inner = getattr(command, "commands", {})
        yield from ((f"{name} {other}", one) for other, one in inner.items()) if inner else [(name, command)]


def test_every_command_with_the_long_flag_has_the_short_one() -> None:
    found = {flag: [] for flag in SHORT}
    for name, command in commands():
        spelled = [flag for one in command.params for flag in one.opts if flag.startswith("-")]
        assert len(spelled) == len(set(spelled)), name
        for flag, short in SHORT.items():
            assert (flag in spelled) == (short in spelled), (name, flag)
            found[flag] += [name] if flag in spelled else []
    assert {"train", "data split", "recommend", "card", "reproduce"} <= set(found["--out"])
    assert {"train", "evaluate", "recommend", "tune", "compare", "export"} <= set(found["--k"])
    assert found["--user"] == ["recommend"]
    assert set(found["--config"]) == {"train", "tune", "compare"}


def test_short_flags_do_what_the_long_ones_do(talos: Talos, clicks: Path) -> None:
    assert talos("init", clicks, "-o", "run.toml").returncode == 0
    done = talos("train", clicks, "-c", "run.toml", "-o", "run", "-k5", "--epochs", 2, "--effort", "quick")
    assert done.returncode == 0, done.stderr
    lists = talos("recommend", "run", "-u", "user01", "-u", "user02", "-k", 3)
    assert lists.stdout == talos("recommend", "run", "--user", "user01", "--user", "user02", "--k", 3).stdout
    wrong = talos("train", clicks, "-o", "other", "-k0")
    assert (wrong.returncode, wrong.stderr.splitlines()[0][:11]) == (2, "error: --k:")
    assert talos("train", "-h").stdout == talos("train", "--help").stdout


def advice(done: Done) -> list[str]:
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    first, *others = done.stderr.splitlines()
    assert first.startswith("error: ")
    assert all(line.startswith("  talos ") for line in others)
    return others


def test_a_command_without_arguments_says_what_to_do_first(talos: Talos) -> None:
    told = advice(talos("train"))
    for command in ("talos demo", "talos init", "talos train clicks.csv", "talos data list"):
        assert sum(line.strip().startswith(command) for line in told) == 1, told
    assert [line.split("  ")[1] for line in advice(talos("recommend"))] == [
        "talos demo",
        "talos train clicks.csv -o runs/clicks",
    ]
    assert list(Path().iterdir()) == []


def test_an_error_names_the_command_that_helps(talos: Talos, clicks: Path) -> None:
    Path("odd.csv").write_text("user_a_id,user_b_id,sku\n1,2,3\n")
    Path("run.toml").write_text("kk = 3\n")
    for line, command in (
        (("train", "nothing.csv", "-o", "run"), "talos data list"),
        (("train", "odd.csv", "-o", "run"), "talos data describe odd.csv"),
        (("train", clicks, "-o", "run", "--dim", "x.y"), None),  # click's own message names --help
        (("train", clicks, "-o", "run", "--loss", "tallos"), "talos train --help"),
        (("train", clicks, "-o", "run", "-c", "run.toml"), "talos init PATH -o run.toml"),
        (("train", clicks), "talos train --help"),
        (("recommend", "no/run", "-u", "a"), "talos train PATH -o RUN"),
        (("evaluate",), "talos evaluate --help"),
        (("data", "split", clicks, "-o", "parts", "--test", 1.5), "talos data split --help"),
    ):
        done = talos(*line)
        if command is None:
            assert "Try 'talos train --help'" in done.stderr
        else:
            assert [one.strip().split("   ")[0] for one in advice(done)] == [command], done.stderr
    ambiguous = talos("data", "describe", "odd.csv").stderr
    assert "'user_a_id' and 'user_b_id' could each be the user column" in ambiguous
    assert "--user-column NAME" in ambiguous


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_completion_in_bash(tmp_path: Path) -> None:
    """The script that the program prints, run by the shell it is for."""
    # whatever shell has started the tests, the one that is named
    environment = {**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    environment["PATH"] = f"{tmp_path}:{os.environ['PATH']}"
    program = tmp_path / "talos"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m talos "$@"\n')
    program.chmod(0o755)
    script = subprocess.run(
        [program, "--show-completion", "bash"], env=environment, capture_output=True, text=True, check=True
    ).stdout
    asked = {"tr": "train", "train --ba": "--backbone --baseline --batch-size", "train x --by fu": "future"}
    for line, expected in asked.items():
        words = ["talos", *line.split()]
        code = (
            f"{script}\nCOMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}\n"
            '_talos_completion talos; echo "${COMPREPLY[@]}"'
        )
        done = subprocess.run(
            ["bash", "-c", code], env=environment, capture_output=True, text=True, check=True
        )
        assert done.stdout.split() == expected.split(), (line, done.stdout)


def test_three_commands_from_a_file_that_nobody_prepared(talos: Talos, tmp_path: Path) -> None:
    """The three commands of the README, on what a shop's program exports; the second as the first one prints it."""
    rng = np.random.default_rng(0)
    lines = ["Bestelldatum;Customer No.;SKU-Code;product_name;qty;price"]
    for user in range(40):
        customer = f"K-{user}" if user % 2 else str(10_000 + user)
        for item in rng.permutation(20)[:10] + 20 * (user % 2):
            code = f"A{item:03d}" if item % 3 else str(1000 + item)
            name = f'"Tea, ""green""; {item}"' if item % 2 else f"Käse {item}"
            lines.append(f'{1 + item % 28:02d}.07.2024;{customer};{code};{name};1;"4,50"')
    file = tmp_path / "Export 2024 (1).csv"
    file.write_text("\r\n".join(lines) + "\r\n", encoding="utf-8-sig")
    begun = talos("init", file.name)
    assert begun.returncode == 0, begun.stderr
    assert begun.stderr == (
        f"{file.name}: column 'Customer No.' is taken for the user, 'SKU-Code' for the item, "
        "'Bestelldatum' for the timestamp, 'product_name' for the title; 'price' is not used; "
        "'qty' could be a weight: rating column 'qty' with weights 'rating'\n"
    )
    (line,) = [one.strip() for one in begun.stdout.splitlines() if one.strip().startswith("talos train ")]
    trained = talos(*shlex.split(line)[1:], "--epochs", 2, "--effort", "quick")
    assert trained.returncode == 0, trained.stderr
    one, everybody = re.findall(
        r"talos (recommend .+?)(?:   or for all   |$)", trained.stderr.splitlines()[-1]
    )
    assert "Tea, " in talos(*shlex.split(one), "-k", 5).stdout
    assert talos(*shlex.split(everybody)).returncode == 0
    lists = pl.read_csv("recs.csv", infer_schema=False)
    assert lists["user_id"].n_unique() == 40
    assert {"K-1", "10000"} <= set(lists["user_id"])
    assert {"A001", "1000"} <= set(lists["item_id"])
