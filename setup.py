"""The part of the build that pyproject.toml cannot express: compiling the C++ core and the compiled part of reading."""

from __future__ import annotations

import os
import re
import shutil
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

CORE = Path("src") / "talos" / "kernels" / "core"
SWEEPS = tuple(CORE / f"{name}.cpp" for name in ("sweep", "pair_sweep"))
PER_LEVEL = (*SWEEPS, *(CORE / f"{name}.cpp" for name in ("rows", "least_squares", "smooth_places")))
ONCE = (CORE / "dispatch.cpp",)  # the C interface
ENCODE = (
    Path("src") / "talos" / "data" / "core" / "encode.cpp"
)  # the compiled part of reading, a library of its own
WINDOWS = sys.platform == "win32"
# The processor that is built for, which may be another one: win-amd64, macosx-11.0-arm64, linux-aarch64.
PROCESSOR = sysconfig.get_platform().rsplit("-", 1)[-1]
X86 = PROCESSOR in ("x86_64", "amd64")
ARM64 = PROCESSOR in ("aarch64", "arm64")
# The suffix that `talos.files.built_library` looks for.
SUFFIX = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")
# Without errno the compiler makes vectors of square roots.
FLAGS = ["-O3", "-g0", "-std=c++17", "-ffp-contract=fast", "-fno-math-errno"]
FLAGS += [] if WINDOWS else ["-fPIC", "-fvisibility=hidden", "-pthread"]
# These sources are compiled once for each instruction set. Plain comes first: where several objects define the same
# function, such as one of the standard library, the linker takes the first, which must run on every processor.
LEVELS: dict[str, list[str]] = {"plain": []}
if X86:
    LEVELS["avx2"] = ["-mavx2", "-mfma"]
    LEVELS["avx512"] = [
        "-mavx512f",
        "-mavx512dq",
        "-mavx512bw",
        "-mavx512vl",
        "-mfma",
        "-mprefer-vector-width=512",
    ]
    FLAGS.append("-DTALOS_X86")
if ARM64:
    LEVELS["neon"] = ["-DTALOS_NEON"]
    FLAGS.append("-DTALOS_ARM64")


class PlatformWheel(bdist_wheel):
    """A wheel for any Python 3 on one platform: the core uses neither Python's C interface nor torch's."""

    def get_tag(self) -> tuple[str, str, str]:
        """The platform's part of the tag with `py3` and `none`."""
        return "py3", "none", super().get_tag()[2]


class BuildCore(build_ext):
    """Compile the core into a shared library for ctypes; without a compiler the package is built without the core."""

    def get_ext_filename(self, fullname: str) -> str:
        """A file name without a Python version: the core does not use Python's C interface."""
        return str(Path(*fullname.split("."))) + SUFFIX

    def get_export_symbols(self, ext: Extension) -> list[str]:
        """The functions of the C interface, which Windows wants by name; elsewhere their visibility says it."""
        interface = Path(ext.sources[-1]).read_text(encoding="utf-8")
        return sorted(set(re.findall(r"\b(talos_(?:core|rows|ids)_\w+)\(", interface))) if WINDOWS else []

    def build_extension(self, ext: Extension) -> None:
        """Compile and link a library; the sources of the core once for each instruction set."""
        if self.compiler.compiler_type == "msvc":
            self.use_clang()
        more = os.environ.get("TALOS_CORE_FLAGS", "").split()
        if ext.name == "talos.data._encode":
            self.link(ext, self.compile_sources([ENCODE], more), more)
            return
        objects: list[str] = []
        for level, flags in LEVELS.items():
            objects += self.compile_sources(PER_LEVEL, [*more, *flags], level)
        try:
            objects += self.compile_bfloat16(more)
        except CompileError:
            print("the compiler does not support bfloat16: the core is built without it", file=sys.stderr)
            objects += self.compile_sources(ONCE, more)
        self.link(ext, objects, more)

    def link(self, ext: Extension, objects: list[str], more: list[str]) -> None:
        """Link a library under the name that its loader looks for."""
        target = self.get_ext_fullpath(ext.name)
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        self.compiler.link_shared_object(
            objects,
            target,
            target_lang="c++",
            export_symbols=self.get_export_symbols(ext),
            extra_postargs=more if WINDOWS else ["-pthread", *more],
        )

    def use_clang(self) -> None:
        """Replace Microsoft's compiler, which lacks vector types, by LLVM's of the same command line."""
        clang = shutil.which("clang-cl")
        if clang is None:
            raise CompileError(
                "the core needs clang-cl, which is part of LLVM and of Visual Studio's C++ tools"
            )
        self.compiler.initialize()
        self.compiler.cc = clang

    def compile_bfloat16(self, more: list[str]) -> list[str]:
        """Compile the dispatcher, and sweeps with bfloat16 products; compilers from before 2020 do not have them."""
        if not X86 or WINDOWS:
            return self.compile_sources(ONCE, more)
        flags = [*more, *LEVELS["avx512"], "-mavx512bf16", "-DTALOS_PAIRS"]
        sweeps = self.compile_sources(SWEEPS, flags, "avx512bf16")
        return sweeps + self.compile_sources(ONCE, [*more, "-DTALOS_BFLOAT16"])

    def compile_sources(self, sources: Sequence[Path], flags: list[str], level: str = "") -> list[str]:
        """Compile sources with these flags, for an instruction set if one is named."""
        options = [*FLAGS, *flags]
        if self.compiler.compiler_type == "msvc":
            options = ["/EHsc", *(f"/clang:{option}" for option in options)]
        objects: list[str] = self.compiler.compile(
            [str(source) for source in sources],
            output_dir=str(Path(self.build_temp) / level),
            macros=[("TALOS_LEVEL", level)] if level else [],
            extra_postargs=options,
        )
        return objects


setup(
    # src/talos_paper is a distribution of its own
    packages=find_packages("src", include=["talos", "talos.*"]),
    package_dir={"": "src"},
    ext_modules=[
        Extension(
            "talos.kernels._core",
            sources=[str(source) for source in (*PER_LEVEL, *ONCE)],
            depends=[str(path) for path in sorted(CORE.glob("*.h"))],
            language="c++",
            optional=True,
        ),
        Extension(
            "talos.data._encode",
            sources=[str(ENCODE)],
            depends=[str(ENCODE.with_name("arrow.h"))],
            language="c++",
            optional=True,
        ),
    ],
    cmdclass={"build_ext": BuildCore, "bdist_wheel": PlatformWheel},
)
