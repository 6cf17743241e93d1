"""Files about the project that nobody runs here: they parse, and agree with what they speak of."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]


def make_targets(text: str) -> list[str]:
    return re.findall(r"^\s*(?:- run: )?make ([a-z-]+)$", text, flags=re.MULTILINE)


def test_the_workflow_runs_what_is_run_here() -> None:
    workflow = (ROOT / ".github" / "workflows" / "check.yml").read_text()
    jobs: dict[str, Any] = yaml.safe_load(workflow)["jobs"]
    steps = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert steps == [
        f"make {target}" for target in make_targets(workflow)
    ]  # targets alone, no script of its own
    here = make_targets((ROOT / ".ci" / "run").read_text())
    assert here
    assert set(here) <= {step.removeprefix("make ") for step in steps}


# The command of a row of the README's table → the page that has what it printed.
PAGES = {
    "talos bench --only quality": "docs/performance.md",
    "talos bench --only recommending": "docs/recommend.md",
    "talos reproduce overall --dataset beauty": "docs/results/overall.md",
    "talos demo": "README.md",
    "talos evaluate --recs LISTS --truth TEST": None,
}


def test_every_figure_of_the_comparison_is_on_the_page_of_its_command() -> None:
    table = (ROOT / "README.md").read_text().split("## What people pick instead")[1].split("\n\n")[1]
    rows = [line[2:-2].split(" | ") for line in table.splitlines()[2:]]
    assert len(rows) >= 6
    for _, theirs, ours, command in rows:
        page = PAGES[command.split("`")[1]]
        figures = re.findall(r"(?<![\w@])\d*\.\d+|\d,\d{3}", f"{theirs} {ours}")
        assert bool(figures) == (page is not None) or ours == "as above", command
        text = "" if page is None else (ROOT / page).read_text()
        if page == "README.md":
            text = text.split("## The demo")[1]
        for figure in figures:
            assert figure in text, (figure, page)


def test_the_lowest_versions_cover_every_dependency() -> None:
    """What `make test-lowest` installs: each dependency of the library once, at its lower bound."""
    found = subprocess.run(
        [sys.executable, ROOT / ".ci" / "lowest.py"], capture_output=True, text=True, check=True, timeout=60
    ).stdout.split()
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    names = [re.split(r"[>=\[]", line)[0] for line in wanted]
    pinned = [pin.split("==")[0] for pin in found]
    assert pinned[: len(names)] == names
    assert all("==" in pin for pin in found)
    bounds = dict(line.split(">=") for line in wanted if not line.startswith("torch"))
    assert {pin.split("==")[0]: pin.split("==")[1] for pin in found if pin.split("==")[0] in bounds} == bounds
