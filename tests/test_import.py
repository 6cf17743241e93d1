"""`import talos` is light: what is heavy is imported when it is first used."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "numpy", "scipy", "polars", "pydantic", "typer", "rich", "safetensors")


@pytest.mark.parametrize(
    ("code", "allowed"),
    [
        ("import talos; talos.__version__; dir(talos)", ()),
        ("import talos; talos.errors", ()),
        # The command line shows its help and its version without torch.
        ("import talos.cli", ("typer", "safetensors")),
    ],
)
def test_nothing_heavy_is_imported_before_it_is_needed(code: str, allowed: tuple[str, ...]) -> None:
    shown = f"import sys; {code}; print(*(name for name in {HEAVY!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) <= set(allowed)
