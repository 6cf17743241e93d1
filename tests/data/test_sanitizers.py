"""The compiled part of reading under the address and undefined-behaviour sanitisers, with its own tests as input."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from talos.data import arrays
from talos.files import built_library

HERE = Path(__file__).parent
SOURCE = Path(arrays.__file__).parent / "core" / "encode.cpp"
# Loaded before the tests: they read with another build of the library.
PLUGIN = """
from pathlib import Path

import talos.data.arrays

talos.data.arrays.built_library = lambda *place: Path({library!r})
assert talos.data.arrays.library()
"""


def run(library: Path, folder: Path, *tests: str, **settings: str) -> None:
    """Run some tests with another build of the library."""
    (folder / "other_rows.py").write_text(PLUGIN.format(library=str(library)))
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    found = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "other_rows",
            "-n",
            "0",
            *tests,
        ],
        env={**os.environ, **settings, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout[-4000:] + found.stderr[-4000:]


def test_the_tests_take_another_build(tmp_path: Path) -> None:
    """With the ordinary library under another name, so that a mistake here shows without the slow test."""
    built = built_library(arrays.__file__, "_encode")
    if built is None:
        pytest.skip("the library is not built")
    run(Path(shutil.copy(built, tmp_path / "other.so")), tmp_path, str(HERE / "test_arrays.py"))


@pytest.mark.slow
def test_reading_is_clean(tmp_path: Path) -> None:
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    library = tmp_path / "_encode.so"
    flags = ["-O1", "-g", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-pthread", "-fPIC", "-shared"]
    flags += ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    subprocess.run([compiler, *flags, str(SOURCE), "-o", str(library)], check=True)
    linked = subprocess.run(["ldd", str(library)], capture_output=True, text=True, check=False).stdout
    runtimes = [line.split()[2] for line in linked.splitlines() if "asan" in line or "ubsan" in line]
    if not runtimes:
        pytest.skip("the sanitisers' run-time libraries are not shared ones")
    # leaks are not looked for: Python and polars don't free everything at the end
    options = {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"}
    tests = [str(HERE / "test_arrays.py"), str(HERE / "read")]
    tests.append(f"--ignore={HERE / 'read' / 'test_postgres.py'}")  # starts a server, which does not bear it
    run(library, tmp_path, *tests, LD_PRELOAD=":".join(runtimes), **options)
