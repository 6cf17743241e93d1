"""The core under the address, undefined-behaviour and thread sanitisers."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

CORE = Path(__file__).parents[2] / "src" / "talos" / "kernels" / "core"
X86 = platform.machine().lower() in ("x86_64", "amd64")
LEVELS = {
    "plain": [],
    "avx2": ["-mavx2", "-mfma"],
    "avx512": ["-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl", "-mfma"],
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["address,undefined", "thread"])
def test_the_core_is_clean(kind, tmp_path):
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    flags = ["-O1", "-g", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-Wno-psabi", "-pthread", f"-I{CORE}"]
    flags += [f"-fsanitize={kind}", "-fno-sanitize-recover=all", *(["-DTALOS_X86"] if X86 else [])]

    def build(source: Path, name: str, *more: str) -> str:
        target = str(tmp_path / f"{name}.o")
        subprocess.run([compiler, *flags, *more, "-c", str(source), "-o", target], check=True)
        return target

    bfloat16 = [*LEVELS["avx512"], "-mavx512bf16", "-DTALOS_PAIRS"]
    tried = subprocess.run(
        [compiler, *bfloat16, "-E", "-xc++", "/dev/null"], capture_output=True, check=False
    )
    known = X86 and tried.returncode == 0
    objects = [
        build(CORE / "dispatch.cpp", "dispatch", *(["-DTALOS_BFLOAT16"] if known else [])),
        build(Path(__file__).parent / "core_check.cpp", "main"),
    ]
    for level in LEVELS if X86 else ["plain"]:
        for source in ("sweep", "rows", "least_squares"):
            level_flags = (f"-DTALOS_LEVEL={level}", *LEVELS[level])
            objects.append(build(CORE / f"{source}.cpp", f"{source}-{level}", *level_flags))
    if known:  # after the others: of a function that several objects hold the linker takes the first
        objects.append(build(CORE / "sweep.cpp", "sweep-avx512bf16", "-DTALOS_LEVEL=avx512bf16", *bfloat16))
    program = str(tmp_path / "check")
    subprocess.run([compiler, *flags, *objects, "-o", program], check=True)
    found = subprocess.run([program], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    assert found.stdout.endswith("runs\n")
