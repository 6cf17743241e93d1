"""The built core: its description of itself, and that code for newer processors stays in the versions for them."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from talos.files import built_library
from talos.kernels import core

BUILT = built_library(core.__file__, "_core")
pytestmark = pytest.mark.skipif(BUILT is None, reason="the core was not built")
# A function of a version for an instruction set, by its mangled name: N5talos6avx512…
OF_LEVEL = re.compile(r"5talos(?:4avx2|6avx512|10avx512bf16)")


def disassembled(library: Path) -> dict[str, str]:
    """The machine code of every function, by its mangled name."""
    tool = shutil.which("objdump")
    if tool is None:
        pytest.skip("needs objdump")
    text = subprocess.run([tool, "-d", str(library)], capture_output=True, text=True, check=True).stdout
    functions = re.split(r"^[0-9a-f]+ <(.+)>:$", text, flags=re.MULTILINE)
    return dict(zip(functions[1::2], functions[2::2], strict=True))


def test_wide_registers_are_used_only_where_the_processor_has_them() -> None:
    """Several objects define functions of the standard library; the linker must take those that run everywhere."""
    assert BUILT is not None
    found = disassembled(BUILT)
    if not any(OF_LEVEL.search(name) for name in found):
        pytest.skip("no versions for x86, or no symbols")
    wide = {name for name, code in found.items() if re.search(r"%[yz]mm", code)}
    assert wide, "the versions for AVX use no wide registers"
    assert [name for name in wide if not OF_LEVEL.search(name)] == []
    narrow = [name for name, code in found.items() if "%zmm" in code and "5talos4avx2" in name]
    assert narrow == [], "AVX-512 in the version for AVX2"


def test_every_field_that_is_used_is_described() -> None:
    loaded, why = core._load()
    assert loaded is not None, why
    assert {name for name, _ in loaded.task._fields_} == set(core._FIELDS.split())
    assert set(loaded.operations) == set(core._OPERATIONS.split())


def changed(monkeypatch: pytest.MonkeyPatch, change: Any) -> str:
    """Why a core whose facts were changed is refused."""
    assert BUILT is not None
    library = ctypes.CDLL(str(BUILT))
    library.talos_core_facts.restype = ctypes.POINTER(core._Fact)
    real, facts = library.talos_core_facts(), []
    while real[len(facts)].topic is not None:
        facts.append(core._Fact.from_buffer_copy(real[len(facts)]))
    change(facts)
    table = (core._Fact * (len(facts) + 1))(*facts)

    class Library:
        """The C functions that are looked up, with another table."""

        def __init__(self, _: str) -> None:
            self.talos_core_workspace_bytes = self.talos_core_level_name = lambda: None
            self.talos_core_facts = lambda: table

    monkeypatch.setattr(core.ctypes, "CDLL", Library)
    core._load.cache_clear()
    loaded, why = core._load()
    core._load.cache_clear()
    assert loaded is None
    return why


def test_a_core_without_a_field_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def remove(facts: list[Any]) -> None:
        facts[:] = [fact for fact in facts if fact.name != b"normalizer"]

    assert "it has no normalizer" in changed(monkeypatch, remove)


def test_a_core_with_another_layout_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def move(facts: list[Any]) -> None:
        next(fact for fact in facts if fact.name == b"kth").values[1] += 8

    assert re.search(r"its field kth is at \d+, not at \d+", changed(monkeypatch, move))


def test_a_file_that_is_no_library_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "_core.so"
    broken.write_bytes(b"nothing")
    monkeypatch.setattr(core, "built_library", lambda *_: broken)
    core._load.cache_clear()
    loaded, why = core._load()
    core._load.cache_clear()
    assert loaded is None
    assert "cannot be loaded" in why
