"""Building the site, or a small part of it, as `make docs` does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
Build = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """Builds a folder of pages with the site's own settings into tmp_path/site; notebooks run anew."""
    for package in ("sphinx", "myst_nb", "furo"):
        pytest.importorskip(package, reason=f"{package} is not installed (extra `docs`)")

    def run(source: Path, *options: str) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-m", "sphinx", "--quiet", "--conf-dir", str(DOCS)]
        return subprocess.run(
            [*line, "--define", "nb_execution_mode=force", *options, str(source), str(tmp_path / "site")],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )

    return run
