"""The wheel holds the library with its core and nothing else; `make smoke` installs one and uses it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The files of a wheel that is built from a copy of the sources, without what earlier builds left in the tree."""
    for module in ("setuptools", "pip"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed: no wheel can be built")
    folder = tmp_path_factory.mktemp("wheel")
    ignored = shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info", "build")
    for name in ("src", "benchmarks", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / name)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    # The core is left uncompiled, which takes half a minute: without a compiler the wheel is built without it.
    environment = {**os.environ, "CC": "false", "CXX": "false"}
    subprocess.run([*command, "--wheel-dir", folder, folder], check=True, env=environment)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        return wheel.namelist()


def test_the_wheel_holds_the_library_alone(names: list[str]) -> None:
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"talos"}


def test_every_module_is_in_the_wheel(names: list[str]) -> None:
    source = ROOT / "src"
    expected = {str(path.relative_to(source)) for path in (source / "talos").rglob("*.py")}
    expected |= {"talos/py.typed", "talos/kernels/core/sweep.cpp", "talos/kernels/core/sweep.h"}
    expected |= {"talos/data/core/rows.cpp", "talos/data/core/arrow.h"}
    page = source / "talos" / "serving" / "page"
    expected |= {str(path.relative_to(source)) for path in page.iterdir()}
    assert expected <= set(names)
