"""Files about the project that nobody runs here: they parse, and agree with what they speak of."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
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


def test_the_citation_names_software_and_paper() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (citation["cff-version"], citation["license"]) == ("1.2.0", project["license"])
    paper = citation["preferred-citation"]
    assert paper["title"] in (ROOT / "README.md").read_text().replace("*", "").replace("\n", " ")
    assert [one["family-names"] for one in paper["authors"]][0] == "Zhang"


@pytest.mark.parametrize("name", ["bug", "idea"])
def test_a_template_asks_for_something(name: str) -> None:
    form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml").read_text())
    questions = [one for one in form["body"] if one["type"] != "markdown"]
    assert any(one.get("validations", {}).get("required") for one in questions)
    assert len({one["id"] for one in questions}) == len(questions)
