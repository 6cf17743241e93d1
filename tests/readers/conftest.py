from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str | bytes], Path]:
    """Write a file and return its path."""

    def _write(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return _write


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder with real data, or skip."""
    places = [os.environ.get("TALOS_DATA"), Path(__file__).parents[2].parent / "shared" / "data"]
    for place in places:
        if place is not None and (Path(place) / "beauty" / "train.tsv").is_file():
            return Path(place)
    pytest.skip("no real data: set TALOS_DATA to a folder with beauty/ and gowalla/")
