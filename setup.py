"""The part of the build that pyproject.toml cannot express: compiling the C++ core and the compiled part of reading."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

CORE = Path("src") / "talos" / "kernels" / "core"
ROWS = Path("src") / "talos" / "data" / "core"
PER_LEVEL = ("sweep.cpp", "rows.cpp", "least_squares.cpp")
FLAGS = ["-O3", "-g0", "-std=c++17", "-fPIC", "-ffp-contract=fast", "-fvisibility=hidden", "-pthread"]
# These sources are compiled once for each instruction set. Plain comes first: where several objects define the same
# function, such as one of the standard library, the linker takes the first, which must run on every processor.
LEVELS = {
    "plain": [],
    "avx2": ["-mavx2", "-mfma"],
    "avx512": ["-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl", "-mfma", "-mprefer-vector-width=512"],
}
# The sweep once more with bfloat16 products; compilers from before 2020 do not support them.
BFLOAT16 = [*LEVELS["avx512"], "-mavx512bf16", "-DTALOS_PAIRS"]


class BuildCore(build_ext):
    """Compile the core into a shared library for ctypes; without a compiler the package is built without the core."""

    def get_ext_filename(self, fullname: str) -> str:
        """A file name without a Python version: the core does not use Python's C interface."""
        return str(Path(*fullname.split("."))) + (".dylib" if sys.platform == "darwin" else ".so")

    def get_export_symbols(self, ext: Extension) -> list[str]:
        """No symbols, since the core is not an extension module with an init function."""
        return []

    def build_extension(self, ext: Extension) -> None:
        """Compile and link a library; the sources of the core once for each instruction set."""
        x86 = platform.machine().lower() in ("x86_64", "amd64")
        common = [*FLAGS, *os.environ.get("TALOS_CORE_FLAGS", "").split(), *(["-DTALOS_X86"] if x86 else [])]
        if ext.name == "talos.data._rows":
            sources = [str(ROWS / "rows.cpp")]
            self.link(ext, self.compiler.compile(sources, output_dir=self.build_temp, extra_postargs=common))
            return
        objects: list[str] = []
        for level in LEVELS if x86 else ["plain"]:
            objects += self.compile_level(level, PER_LEVEL, [*common, *LEVELS[level]])
        try:
            objects += self.compile_bfloat16(common) if x86 else self.compile_dispatch(common)
        except CompileError:
            print("the compiler does not support bfloat16: the core is built without it", file=sys.stderr)
            objects += self.compile_dispatch(common)
        self.link(ext, objects)

    def link(self, ext: Extension, objects: list[str]) -> None:
        """Link a library under the name that its loader looks for."""
        target = self.get_ext_fullpath(ext.name)
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        self.compiler.link_shared_object(
            objects,
            target,
            target_lang="c++",
            extra_postargs=["-pthread", *os.environ.get("TALOS_CORE_FLAGS", "").split()],
        )

    def compile_bfloat16(self, common: list[str]) -> list[str]:
        """Compile the bfloat16 sweep, and the dispatcher that selects it."""
        sweep = self.compile_level("avx512bf16", ["sweep.cpp"], [*common, *BFLOAT16])
        return sweep + self.compile_dispatch([*common, "-DTALOS_BFLOAT16"])

    def compile_dispatch(self, flags: list[str]) -> list[str]:
        """Compile the dispatcher, which has the C interface."""
        objects: list[str] = self.compiler.compile(
            [str(CORE / "dispatch.cpp")], output_dir=self.build_temp, extra_postargs=flags
        )
        return objects

    def compile_level(self, level: str, names: Sequence[str], flags: list[str]) -> list[str]:
        """Compile sources with the flags of an instruction set."""
        objects: list[str] = self.compiler.compile(
            [str(CORE / name) for name in names],
            output_dir=str(Path(self.build_temp) / level),
            macros=[("TALOS_LEVEL", level)],
            extra_postargs=flags,
        )
        return objects


setup(
    # src/talos_paper is a distribution of its own
    packages=find_packages("src", include=["talos", "talos.*"]),
    package_dir={"": "src"},
    # The sources of the core, so that a source archive can be built, and the page of the service.
    package_data={
        "talos.kernels": ["core/*.h", "core/*.cpp"],
        "talos.data": ["core/*.h", "core/*.cpp"],
        "talos.serving": ["page/*.html", "page/*.css", "page/*.js", "page/*.svg"],
    },
    ext_modules=[
        Extension(
            "talos.kernels._core",
            sources=[str(CORE / name) for name in (*PER_LEVEL, "dispatch.cpp")],
            depends=[str(path) for path in sorted(CORE.glob("*.h"))],
            language="c++",
            optional=True,
        ),
        Extension(
            "talos.data._rows",
            sources=[str(ROWS / "rows.cpp")],
            depends=[str(ROWS / "arrow.h")],
            language="c++",
            optional=True,
        ),
    ],
    cmdclass={"build_ext": BuildCore},
)
