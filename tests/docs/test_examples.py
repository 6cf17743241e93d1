"""The console sessions and the Python of the documentation, run as they stand; and no page is left out."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import talos
from talos.data.datasets import is_cached

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
# Page → the test file that runs its blocks of Python and its console sessions. Notebooks are in test_notebooks.py.
RUN_BY = {
    "CONTRIBUTING.md": "e2e/test_own_classes.py",
    "docs/baselines.md": "docs/test_examples.py",
    "docs/compare.md": "e2e/test_compare_commands.py",
    "docs/data.md": "docs/test_examples.py",
    "docs/ecosystem.md": "training/test_loggers.py",
    "docs/exports.md": "e2e/test_export_commands.py",
    "docs/index.md": "docs/test_examples.py",
    "docs/losses.md": "losses/test_documentation.py",
    "docs/quickstart.md": "docs/test_examples.py",
    "docs/recommend.md": "docs/test_examples.py",
    "docs/training.md": "docs/test_examples.py",
    "docs/tuning.md": "docs/test_examples.py",
    "docs/use-the-loss.md": "losses/test_documentation.py",
}


def sessions(page: Path) -> list[tuple[str, list[str]]]:
    """(command, lines of expected output) of every `$` in the console blocks of a page."""
    found = []
    for block in re.findall(r"```console\n(.*?)```", page.read_text(), flags=re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            lines = part.splitlines()
            # a command goes on until its quotes are closed
            end = next(i for i in range(1, len(lines) + 1) if "\n".join(lines[:i]).count('"') % 2 == 0)
            found.append(("\n".join(lines[:end]), lines[end:]))
    return found


def matches(expected: list[str], output: str) -> bool:
    """Lines in order; `...` alone stands for any lines, within a line for any text; numbers may differ."""
    pattern = ""
    for line in expected:
        if line.strip() == "...":
            pattern += r"(?:.*\n)*?"
        else:
            piece = re.escape(line.rstrip()).replace(re.escape("..."), ".*")
            pattern += re.sub(r"\d+(?:\\\.\d+)?", r"[\\d.,]+", piece) + r"\s*\n"
    return re.fullmatch(pattern + r"(?:.*\n)*", output + "\n") is not None


def programs(page: Path) -> list[tuple[str, list[str]]]:
    """(code, lines of expected output) of every Python block of a page; output stands in a text block after it."""
    blocks = re.findall(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```)?", page.read_text(), flags=re.DOTALL)
    return [(code, output.splitlines()) for code, output in blocks]


def without_numbers(lines: list[str]) -> str:
    """What is left of lines when numbers, rules and spacing are taken out: they differ from run to run."""
    plain = [re.sub(r"[-+]?\d[\d.,/]*(e-?\d+)?", "0", line) for line in lines]
    bare = [" ".join(re.sub(r"[─═┌┐└┘┬┴╞╡╪-]{2,}", " ", line).split()) for line in plain]
    return "\n".join(line for line in bare if line)


@pytest.mark.parametrize("page", ["quickstart.md", "tuning.md", "recommend.md"])
def test_the_page_is_true(page: str, tmp_path: Path) -> None:
    scripts = str(Path(sys.executable).parent)
    environment = {**os.environ, "PATH": f"{scripts}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    commands = sessions(DOCS / page)
    assert len(commands) >= 5
    for command, expected in commands:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, (command, done.stderr)
        assert matches(expected, done.stdout), (command, done.stdout)
    if programs(DOCS / page) and page != "tuning.md":
        check_programs(DOCS / page, tmp_path)


def test_every_page_with_examples_is_run() -> None:
    pages = [ROOT / "CONTRIBUTING.md", *DOCS.glob("*.md"), *DOCS.glob("explanation/*.md")]
    with_examples = {
        str(page.relative_to(ROOT))
        for page in pages
        if re.search(r"^```(python|console)$", page.read_text(), flags=re.MULTILINE)
    }
    assert with_examples == set(RUN_BY)
    for page, test in RUN_BY.items():
        assert Path(page).stem in (ROOT / "tests" / test).read_text(), (page, test)


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that the short examples name."""
    rng = np.random.default_rng(0)
    names = ["alice", "bob", *(f"user{number}" for number in range(58))]
    rows = [
        (name, f"i{item + 20 * (place % 4)}", 1_700_000_000 + place * 100 + int(item))
        for place, name in enumerate(names)
        for item in rng.permutation(20)[:12]
    ]
    clicks = pl.DataFrame(rows, schema=["user_id", "item_id", "ts"], orient="row")
    clicks.write_csv(tmp_path / "clicks.csv")
    clicks.write_csv(tmp_path / "events.csv")
    (tmp_path / "clicks").mkdir()
    clicks.write_parquet(tmp_path / "clicks" / "part.parquet")
    with sqlite3.connect(tmp_path / "shop.db") as database:
        database.execute("CREATE TABLE clicks (user_id TEXT, item_id TEXT, ts INTEGER)")
        database.executemany("INSERT INTO clicks VALUES (?, ?, ?)", rows)
    database.close()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_blocks(page: str, changes: dict[str, str], names: dict[str, Any]) -> dict[str, Any]:
    """Run every Python block of a page in this process, after changes that make it small."""
    for code, _ in programs(DOCS / page):
        for long, short in changes.items():
            assert long in code, (page, long)
            code = code.replace(long, short)
        exec(compile(code, page, "exec"), names)
    return names


def test_the_front_page_is_true(shop: Path) -> None:
    names = run_blocks("index.md", {"k=20": "k=20, epochs=2, tau=0.1"}, {})
    assert names["model"].recommend(["alice", "bob"])["user_id"].n_unique() == 2


def test_short_examples_are_true(shop: Path) -> None:
    split = talos.read("clicks.csv").split(seed=0)
    small: dict[str, Any] = {"k": 20, "epochs": 2, "tau": 0.1}
    refitted = run_blocks("training.md", {}, {"model": talos.Recommender(**small), "split": split})["model"]
    assert refitted.model.metadata["trained_on"]["test"] == len(split.test)
    baseline = run_blocks("baselines.md", {}, {"talos": talos, "split": split})["model"]
    assert baseline.config.baseline.name == "ease"
    pytest.importorskip("optuna", reason="optuna is not installed (extra `tune`)")
    changes = {"trials=30": "trials=2, epochs=1", "workers=2": "workers=1"}
    names = run_blocks("tuning.md", changes, {"split": split})
    assert names["tuned"].config.backbone.name == "lightgcn"


def test_every_way_of_reading_is_true(shop: Path) -> None:
    """The first block on data, line by line; a named dataset only where it is at hand already."""
    code, _ = programs(DOCS / "data.md")[0]
    frame = pl.read_csv("clicks.csv").rename({"user_id": "customer", "item_id": "sku", "ts": "when"})
    lines = [line for line in code.splitlines() if line.startswith("data = ")]
    assert len(lines) == 6
    for line in lines:
        if "movielens-100k" in line and not is_cached("movielens-100k"):
            continue
        if 'user="customer"' in line:
            frame.write_csv("events.csv")
        names: dict[str, Any] = {"talos": talos, "frame": frame}
        exec(line, names)
        assert "movielens" in line or len(names["data"]) == 60 * 12, line


def test_the_examples_on_data_are_true(tmp_path: Path) -> None:
    """Of the other blocks those with output: one would need the network, one names an address of the reader's own."""
    check_programs(DOCS / "data.md", tmp_path, only_with_output=True)


def check_programs(page: Path, folder: Path, *, only_with_output: bool = False) -> None:
    """Run the Python blocks of a page one after the other, as one program, and compare what each prints."""
    found = [program for program in programs(page) if program[1] or not only_with_output]
    assert found
    mark = "--- end of a block ---"
    code = f"\nprint({mark!r})\n".join(block for block, _ in found)
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for (block, expected), printed in zip(found, done.stdout.split(f"{mark}\n"), strict=True):
        wanted, output = without_numbers(expected), without_numbers(printed.splitlines())
        pieces = [re.escape(piece.strip("\n")) for piece in re.split(r"^\.\.\.$", wanted, flags=re.MULTILINE)]
        assert re.fullmatch(r"(?:.|\n)*".join(pieces), output), (block, printed)
