"""The wheel holds the library with its core and nothing else; `make smoke` installs one and uses it."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

import talos

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel that is built from a copy of the sources, without what earlier builds left in the tree."""
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
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def names(wheel: Path) -> list[str]:
    """The files in it."""
    with zipfile.ZipFile(wheel) as opened:
        return opened.namelist()


def test_the_wheel_is_for_every_python_on_this_platform(wheel: Path) -> None:
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    assert wheel.name == f"talos_rec-{talos.__version__}-py3-none-{platform}.whl"


def test_all_distributions_have_one_version() -> None:
    for place in ("src/talos_paper", "benchmarks"):
        project = tomllib.loads((ROOT / place / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        assert project["version"] == talos.__version__, place
    version = "Unreleased" if ".dev" in talos.__version__ else f"{talos.__version__} - "
    assert f"\n## {version}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_what_is_installed_without_extras() -> None:
    """In full, so that an addition is a decision: torch is large, the others are small beside it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {re.split(r"[^\w-]", line)[0] for line in project["dependencies"]}
    numbers = {"torch", "numpy", "scipy", "polars"}
    assert names == numbers | {
        "safetensors",
        "filelock",
        "requests",
        "pydantic",
        "typer",
        "rich",
        "platformdirs",
        "jinja2",
    }


def test_the_wheel_holds_the_library_alone(names: list[str]) -> None:
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"talos"}


def test_every_module_is_in_the_wheel(names: list[str]) -> None:
    source = ROOT / "src"
    expected = {str(path.relative_to(source)) for path in (source / "talos").rglob("*.py")}
    expected |= {"talos/py.typed", "talos/kernels/core/sweep.cpp", "talos/kernels/core/task.h"}
    expected |= {"talos/data/core/encode.cpp", "talos/data/core/arrow.h"}
    page = source / "talos" / "serving" / "page"
    templates = source / "talos" / "report" / "templates"
    expected |= {str(path.relative_to(source)) for folder in (page, templates) for path in folder.iterdir()}
    assert expected <= set(names)
