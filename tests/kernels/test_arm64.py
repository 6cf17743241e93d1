"""The core for 64-bit ARM: cross-compiled by setup.py, run under QEMU, its NEON version compared with the plain one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CORE = ROOT / "src" / "talos" / "kernels" / "core"
COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
LIBRARIES = Path("/usr/aarch64-linux-gnu")  # where Debian has those of the emulated system

needs_tools = pytest.mark.skipif(
    not (shutil.which(COMPILER) and shutil.which(EMULATOR) and LIBRARIES.is_dir()),
    reason=f"needs {COMPILER} and {EMULATOR} (Debian: g++-aarch64-linux-gnu, qemu-user)",
)
pytestmark = [needs_tools, pytest.mark.slow]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """core_check.cpp, linked with the shared library that setup.py builds for this processor."""
    folder = tmp_path_factory.mktemp("arm64")
    cross = {"CC": COMPILER.replace("g++", "gcc"), "CXX": COMPILER, "_PYTHON_HOST_PLATFORM": "linux-aarch64"}
    build = ["setup.py", "-q", "build_ext", "--build-lib", folder / "lib", "--build-temp", folder / "objects"]
    subprocess.run([sys.executable, *map(str, build)], cwd=ROOT, env={**os.environ, **cross}, check=True)
    shared = folder / "lib" / "talos" / "kernels" / "_core.so"
    assert shared.read_bytes()[18:20] == (183).to_bytes(2, "little"), "no ELF file for AArch64"
    target = folder / "core_check"
    flags = ["-O1", "-std=c++17", "-Wall", "-Wextra", "-Werror", f"-I{CORE}"]
    sources = [str(HERE / "core_check.cpp"), str(shared), f"-Wl,-rpath,{shared.parent}"]
    subprocess.run([COMPILER, *flags, *sources, "-o", str(target)], check=True)
    return target


def emulated(program: Path, mode: str, *options: str) -> subprocess.CompletedProcess[str]:
    # Symbols are bound at the start, so that no call is charged for looking them up.
    started = [EMULATOR, "-L", str(LIBRARIES), "-E", "LD_BIND_NOW=1", *options, str(program), mode]
    return subprocess.run(started, capture_output=True, text=True, check=False)


def test_neon_agrees_with_plain(program: Path) -> None:
    found = emulated(program, "small")
    assert found.returncode == 0, found.stdout + found.stderr
    assert found.stdout.endswith("runs\n")


def test_neon_runs_fewer_instructions(program: Path, tmp_path: Path) -> None:
    """Counted, not timed: what an emulator takes says nothing about a processor."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler for QEMU's plugin")
    plugin = tmp_path / "count_instructions.so"
    source = str(HERE / "count_instructions.c")
    subprocess.run(
        [compiler, "-O2", "-Wall", "-Werror", "-shared", "-fPIC", source, "-o", plugin], check=True
    )
    found = emulated(program, "count", "-plugin", str(plugin))
    if found.returncode != 0 and "plugin" in found.stderr:
        pytest.skip(f"this QEMU does not take the plugin: {found.stderr}")
    assert found.returncode == 0, found.stderr
    counts: dict[str, dict[str, int]] = defaultdict(dict)
    for line, number in zip(found.stdout.splitlines(), found.stderr.splitlines(), strict=True):
        function, level = line.split()
        counts[function][level] = int(number)
    table = "".join(
        f"{function:<14} {each['plain']:>12,} {each['NEON']:>12,}\n" for function, each in counts.items()
    )
    print(table)
    assert all(each["NEON"] <= each["plain"] for each in counts.values()), table
    sweeps = [each for function, each in counts.items() if function.startswith("sweep")]
    assert all(each["NEON"] < 0.96 * each["plain"] for each in sweeps), table
