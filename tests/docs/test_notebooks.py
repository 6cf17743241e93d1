"""The notebooks, executed as the site executes them: cell by cell in a kernel, the first error fails."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Build

NOTEBOOKS = Path(__file__).parents[2] / "docs" / "notebooks"
# Notebook → what its outputs must show.
SHOWN = {
    "csv-to-lists": [r"line \d+: .{1,5}last tuesday", r"1 row skipped, 1 duplicate", r"<th>user_id</th>"],
    "own-loss": [r"drifting +talos +[-+]0\.\d+", r"<img[^>]*\.svg"],
    "reading-the-report": [
        r"14–18 +\d+ +0\.\d+",
        r"<iframe[^>]*Accuracy by group",
        r"<iframe[^>]*Beyond accuracy",
    ],
    "run-to-service": [r"1 i\d+ -?0\.\d+ because of i\d+", r"folded \[", r">stopped\n"],
}
QUICK = "csv-to-lists"


def test_every_notebook_is_executed() -> None:
    assert {page.stem for page in NOTEBOOKS.glob("*.md")} == set(SHOWN)


@pytest.mark.parametrize(
    "name", [name if name == QUICK else pytest.param(name, marks=pytest.mark.slow) for name in SHOWN]
)
def test_the_notebook_runs(build: Build, tmp_path: Path, name: str) -> None:
    """Links to other pages are warnings here: only the notebook is built."""
    pages = tmp_path / "pages"
    pages.mkdir()
    shutil.copy(NOTEBOOKS / f"{name}.md", pages / "index.md")
    done = build(pages)
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "site" / "index.html").read_text("utf-8")
    for pattern in SHOWN[name]:
        assert re.search(pattern, page), pattern
    assert "Traceback" not in page
