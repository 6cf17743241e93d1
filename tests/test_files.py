"""Careful disk work: locks between processes, seals, and temporary names that nobody can prepare."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from filelock import FileLock

from talos import files
from talos.errors import DataError, InUseError, TalosError
from talos.files import (
    locked,
    locked_folder,
    read_sealed,
    remove_leftovers,
    replace_file,
    replace_folder,
    replace_text,
    sealed_text,
    unseal,
    write_sealed,
)

# Takes a lock, says so, and keeps it until its input ends.
HOLDER = """
import sys
from pathlib import Path
from talos.files import locked
folder = Path(sys.argv[1])
with locked(folder / ".lock", guards=folder, purpose="holding on"):
    print("locked", flush=True)
    sys.stdin.read()
"""


def holder(folder: Path) -> subprocess.Popen[str]:
    line = [sys.executable, "-c", HOLDER, str(folder)]
    process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"
    return process


def test_the_second_is_refused_by_the_name_of_the_first_and_a_dead_owner_is_replaced(tmp_path: Path) -> None:
    with holder(tmp_path) as first:
        with (
            pytest.raises(InUseError, match=rf"being written by process {first.pid} \(holding on, since 2"),
            locked(tmp_path / ".lock", guards=tmp_path, purpose="test"),
        ):
            pytest.fail("two at once")
        first.kill()  # as hard as it gets: the lock file stays
        first.wait()
        assert (tmp_path / ".lock").exists()
        with locked(tmp_path / ".lock", guards=tmp_path, purpose="test"):
            assert json.loads((tmp_path / ".lock").read_text())["process"] == os.getpid()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("ends", [False, True], ids=["signs", "ends"])
def test_a_holder_without_a_name_gets_a_moment_to_sign_or_to_end(tmp_path: Path, ends: bool) -> None:
    file = tmp_path / ".lock"
    first = FileLock(file, thread_local=False)
    first.acquire()
    signed = {"process": 7, "machine": platform.node(), "purpose": "being slow", "since": "2026"}
    later = threading.Timer(0.1, first.release if ends else lambda: file.write_text(json.dumps(signed)))
    later.start()
    refused = pytest.raises(InUseError, match=r"written by process 7 \(being slow")
    with contextlib.nullcontext() if ends else refused, locked(file, guards=tmp_path, purpose="test"):
        assert ends
    later.join()
    first.release()


def test_waiting_for_the_first(tmp_path: Path) -> None:
    with holder(tmp_path) as first:
        said: list[str] = []

        def let_go(line: str) -> None:
            said.append(line)
            assert first.stdin is not None
            first.stdin.close()

        with locked(tmp_path / ".lock", guards=tmp_path, purpose="test", wait=let_go):
            assert f"process {first.pid} " in said[0]


def test_another_thread_is_refused_and_nesting_has_to_be_asked_for(tmp_path: Path) -> None:
    found: list[str] = []

    def other() -> None:
        try:
            with locked(tmp_path / ".lock", guards=tmp_path, purpose="other", nested=True):
                found.append("in")
        except InUseError:
            found.append("refused")

    with locked(tmp_path / ".lock", guards=tmp_path, purpose="test"):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        with locked(tmp_path / ".lock", guards=tmp_path, purpose="test", nested=True):
            pass
        assert (tmp_path / ".lock").exists()
        with pytest.raises(InUseError), locked(tmp_path / ".lock", guards=tmp_path, purpose="test"):
            pytest.fail("two at once")
    assert found == ["refused"]


def test_a_lock_file_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("data")
    (tmp_path / ".lock").symlink_to(tmp_path / "precious")
    with pytest.raises(TalosError), locked(tmp_path / ".lock", guards=tmp_path, purpose="test"):
        pytest.fail("followed")
    assert (tmp_path / "precious").read_text() == "data"


def test_temporary_names_cannot_be_prepared(tmp_path: Path) -> None:
    """A link under the name that used to be chosen, after the process id, is neither followed nor in the way."""
    (tmp_path / "precious").write_text("data")
    (tmp_path / f".a.txt.{os.getpid()}.tmp").symlink_to(tmp_path / "precious")
    replace_text(tmp_path / "a.txt", "new")
    assert ((tmp_path / "precious").read_text(), (tmp_path / "a.txt").read_text()) == ("data", "new")


def test_permissions_of_what_is_replaced_are_kept(tmp_path: Path) -> None:
    replace_text(tmp_path / "a.txt", "one")
    mask = os.umask(0)
    os.umask(mask)
    assert (tmp_path / "a.txt").stat().st_mode & 0o777 == 0o666 & ~mask
    (tmp_path / "a.txt").chmod(0o600)
    replace_text(tmp_path / "a.txt", "two")
    assert (tmp_path / "a.txt").stat().st_mode & 0o777 == 0o600


def test_a_failed_write_leaves_what_was_there(tmp_path: Path) -> None:
    replace_text(tmp_path / "a.txt", "old")

    def fail(path: Path) -> None:
        path.write_text("half of")
        raise OSError("no space")

    with pytest.raises(TalosError, match=r"a\.txt could not be written \(no space\); what was there before"):
        replace_file(tmp_path / "a.txt", fail)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a.txt": "old"}


@pytest.mark.parametrize("exchange", [True, False], ids=["exchanged", "moved aside"])
def test_a_folder_is_swapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchange: bool) -> None:
    if not exchange:  # as on a file system without the operation
        monkeypatch.setattr(files, "_exchange", lambda one, other: False)
    for text in ("old", "new"):
        with replace_folder(tmp_path / "out") as folder:
            (folder / text).write_text(text)
    with pytest.raises(RuntimeError), replace_folder(tmp_path / "out") as folder:
        raise RuntimeError
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == ["out", "out/new"]


def test_what_a_writer_leaves_beside_its_file_goes_with_it(tmp_path: Path) -> None:
    """safetensors writes to a name of its own first: whoever is killed then must leave nothing under that name."""

    def interrupted(path: Path) -> None:
        (path.parent / ".tmp2dlcCV").write_text("half of")
        # what a process that is killed now leaves
        assert [entry.name.startswith(".a.txt.") for entry in tmp_path.iterdir()] == [True]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replace_file(tmp_path / "a.txt", interrupted)
    assert list(tmp_path.iterdir()) == []


def test_leftovers(tmp_path: Path) -> None:
    (tmp_path / ".out.abcd1234.tmp").mkdir()
    (tmp_path / ".out.abcd1234.tmp" / "half").write_text("")
    (tmp_path / ".other.abcd1234.tmp").write_text("")
    remove_leftovers(tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == [".other.abcd1234.tmp"]


def test_a_seal_survives_json_and_nothing_else(tmp_path: Path) -> None:
    values = {"format": 1, "by": {10: "x", 9: "y"}, "pair": (1, 2), "value": 0.1 + 0.2, "text": "Zoë"}
    write_sealed(tmp_path / "a.json", values)
    found = read_sealed(tmp_path / "a.json", hint="")
    assert found == {**values, "by": {"10": "x", "9": "y"}, "pair": [1, 2]}
    content = (tmp_path / "a.json").read_bytes()
    for place in range(len(content)):
        for bit in range(8):
            bad = bytearray(content)
            bad[place] ^= 1 << bit
            (tmp_path / "a.json").write_bytes(bad)
            try:
                assert (
                    read_sealed(tmp_path / "a.json", hint="") == found
                )  # a digit beyond a number's precision
            except DataError:
                pass
    assert unseal(json.loads(sealed_text(found))) == found


@pytest.mark.parametrize(
    ("system", "name"),
    [("linux", "_core.so"), ("darwin", "_core.dylib"), ("win32", "_core.dll"), ("freebsd14", "_core.so")],
)
def test_only_the_build_for_this_system_is_loaded(
    system: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    others = ("_core.cpython-27-other.so", "_core_evil.so", "_core.so.bak", "_core1.so")
    for other in {*others, "_core.so", "_core.dylib", "_core.dll"} - {name}:
        (tmp_path / other).write_bytes(b"")
    module = str(tmp_path / "library.py")
    assert files.built_library(module, "_core") is None
    (tmp_path / name).write_bytes(b"")
    assert files.built_library(module, "_core") == tmp_path / name


def test_a_folder_of_a_relative_path_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From Python 3.12 on `mkdtemp` returns an absolute path: it must not be taken for a leftover and removed."""
    monkeypatch.chdir(tmp_path)
    made = tempfile.mkdtemp
    monkeypatch.setattr(tempfile, "mkdtemp", lambda **options: str(Path(made(**options)).absolute()))
    Path(".out.abcd1234.tmp").mkdir()  # of a process that was killed
    with locked_folder(Path("out"), purpose="writing") as folder:
        (folder / "a.txt").write_text("a")
    assert [str(path) for path in sorted(Path().rglob("*"))] == ["out", "out/a.txt"]
