"""The core under the address, undefined-behaviour and thread sanitisers."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from talos.files import built_library
from talos.kernels import core

HERE = Path(__file__).parent
CORE = HERE.parents[1] / "src" / "talos" / "kernels" / "core"
X86 = platform.machine().lower() in ("x86_64", "amd64")
LEVELS = {
    "plain": [],
    "avx2": ["-mavx2", "-mfma"],
    "avx512": ["-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl", "-mfma"],
}
SWEEPS = ("sweep", "pair_sweep")
BFLOAT16 = [*LEVELS["avx512"], "-mavx512bf16", "-DTALOS_PAIRS"]


def build(kind: str, folder: Path, *more: str, sources: tuple[Path, ...] = ()) -> Path:
    """The core with a sanitiser: a program with these further sources, or with -shared a library."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    flags = ["-O1", "-g", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-Wno-psabi", "-pthread", f"-I{CORE}"]
    flags += [f"-fsanitize={kind}", "-fno-sanitize-recover=all", *(["-DTALOS_X86"] if X86 else []), *more]

    def compiled(source: Path, name: str, *level: str) -> str:
        target = str(folder / f"{name}.o")
        subprocess.run([compiler, *flags, *level, "-c", str(source), "-o", target], check=True)
        return target

    tried = subprocess.run(
        [compiler, *BFLOAT16, "-E", "-xc++", "/dev/null"], capture_output=True, check=False
    )
    known = X86 and tried.returncode == 0
    objects = [compiled(CORE / "dispatch.cpp", "dispatch", *(["-DTALOS_BFLOAT16"] if known else []))]
    objects += [compiled(source, source.stem) for source in sources]
    for level in LEVELS if X86 else ["plain"]:
        for source in (*SWEEPS, "rows", "least_squares", "smooth_places"):
            level_flags = (f"-DTALOS_LEVEL={level}", *LEVELS[level])
            objects.append(compiled(CORE / f"{source}.cpp", f"{source}-{level}", *level_flags))
    if known:  # after the others: of a function that several objects define the linker takes the first
        level_flags = ("-DTALOS_LEVEL=avx512bf16", *BFLOAT16)
        objects += [compiled(CORE / f"{name}.cpp", f"{name}-bfloat16", *level_flags) for name in SWEEPS]
    target = folder / "_core.so"
    subprocess.run([compiler, *flags, *objects, "-o", str(target)], check=True)
    return target


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["address,undefined", "thread"])
def test_the_core_is_clean(kind: str, tmp_path: Path) -> None:
    program = build(kind, tmp_path, sources=(HERE / "core_check.cpp",))
    found = subprocess.run([str(program)], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    assert found.stdout.endswith("runs\n")


def fuzz(built: Path, **settings: str) -> None:
    """Run the fuzz with another build of the core."""
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "-qs", "-p", "no:cacheprovider", str(HERE / "test_fuzz.py")],
        env={**os.environ, **settings, "TALOS_FUZZ_CORE": str(built), "TALOS_KERNEL": "compiled"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout[-4000:] + found.stderr[-4000:]


def test_the_fuzz_takes_another_build(tmp_path: Path) -> None:
    """With the ordinary core under another name, so that a mistake here shows without the slow tests."""
    built = built_library(core.__file__, "_core")
    if built is None:
        pytest.skip("the core is not built")
    fuzz(Path(shutil.copy(built, tmp_path / "other.so")), TALOS_FUZZ_CALLS="50")


@pytest.mark.slow
def test_random_calls_are_clean(tmp_path: Path) -> None:
    """The fuzz with a sanitised core; `TALOS_FUZZ_CALLS` applies here too."""
    built = build("address,undefined", tmp_path, "-fPIC", "-shared")
    linked = subprocess.run(["ldd", str(built)], capture_output=True, text=True, check=False).stdout
    runtimes = [line.split()[2] for line in linked.splitlines() if "asan" in line or "ubsan" in line]
    if not runtimes:
        pytest.skip("the sanitisers' run-time libraries are not shared ones")
    # leaks are not looked for: Python and torch don't free everything at the end
    options = {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"}
    fuzz(built, LD_PRELOAD=":".join(runtimes), **options)
