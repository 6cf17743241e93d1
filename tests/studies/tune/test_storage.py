"""Storage of trials: addresses, locks that end with their process, a journal after a power cut."""

from __future__ import annotations

import socketserver
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock, Timeout

from talos.errors import ConfigError, DataError
from talos.studies.tune.data import FitParts, map_parts, write_parts
from talos.studies.tune.storage import TrialStore, check_reachable, open_store, parse_storage


@pytest.mark.parametrize("text", ["", "mysql://x/y", "sqlite:///", "sqlite://", "postgresql://", "redis://x"])
def test_addresses_that_mean_nothing(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="storage: "):
        parse_storage(text, tmp_path)


def test_passwords_are_never_shown(tmp_path: Path) -> None:
    place = parse_storage("postgresql://ann:secret@127.0.0.1:1/x", tmp_path)
    assert place.shown == "postgresql://ann@127.0.0.1:1/x"
    pytest.importorskip("psycopg", reason="psycopg is not installed (extra `postgres`)")
    with pytest.raises(ConfigError) as error:
        check_reachable(place)
    assert "cannot be reached" in str(error.value)
    assert "secret" not in str(error.value)


class HangsUp(socketserver.BaseRequestHandler):
    """Closes every connection without a word, as no database server does."""


def test_a_server_that_is_none(tmp_path: Path) -> None:
    pytest.importorskip("psycopg", reason="psycopg is not installed (extra `postgres`)")
    with socketserver.TCPServer(("127.0.0.1", 0), HangsUp) as server:
        listening = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        listening.start()
        try:
            place = parse_storage(f"postgresql://ann:secret@127.0.0.1:{server.server_address[1]}/x", tmp_path)
            check_reachable(place)
            with pytest.raises(ConfigError) as error:
                open_store(place, "study")
        finally:
            server.shutdown()
            listening.join()
    assert "storage: postgresql://ann@127.0.0.1" in str(error.value)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("scheme", ["", "sqlite:///"])
def test_a_file_that_is_something_else(scheme: str, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("hello\nworld\n")
    with pytest.raises(ConfigError, match=r"notes\.txt"):
        open_store(parse_storage(f"{scheme}{path}", tmp_path), "study")
    with pytest.raises(ConfigError, match="is a folder"):
        check_reachable(parse_storage(f"{scheme}{tmp_path}", tmp_path))


def numbers(store: TrialStore) -> list[int]:
    return [trial.number for trial in store.study.get_trials(deepcopy=False)]


def test_a_line_that_a_power_cut_tore_is_cut_off(tmp_path: Path) -> None:
    place = parse_storage(None, tmp_path)
    store = open_store(place, "study")
    store.study.enqueue_trial({})
    journal = Path(place.url)
    whole = journal.read_bytes()
    journal.write_bytes(whole + b'{"op_code":4,"wor')
    again = open_store(place, "study")
    assert numbers(again) == [0]
    again.study.enqueue_trial({})
    assert numbers(open_store(place, "study")) == [0, 1]


def test_a_lock_ends_with_its_holder(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    code = (
        f"import time; from filelock import FileLock; lock = FileLock({path!r}); lock.acquire(); "
        "print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        lock = FileLock(path)
        with pytest.raises(Timeout):
            lock.acquire(blocking=False)
        holder.kill()
        lock.acquire(timeout=60)
        lock.release()


def test_parts_come_back_as_they_were(tmp_path: Path, parts: FitParts) -> None:
    write_parts(tmp_path, parts)
    for before, after in zip(parts, map_parts(tmp_path), strict=True):
        assert before.fingerprint() == after.fingerprint()
        assert isinstance(after.indices.base, np.memmap)
    (tmp_path / "train.indices.npy").write_bytes(b"nothing")
    with pytest.raises(DataError, match="cannot be read"):
        map_parts(tmp_path)


@pytest.mark.parametrize("header", ["{'descr': (", "(" * 9, "", "{'descr': '<i4', 'shape': (-1,)}"])
def test_a_damaged_header_of_an_array_is_an_error_of_ours(
    tmp_path: Path, parts: FitParts, header: str
) -> None:
    write_parts(tmp_path, parts)
    (tmp_path / "parts.json").unlink()  # a forger would have renewed the checksums in it
    length = len(header).to_bytes(2, "little")
    (tmp_path / "train.indices.npy").write_bytes(b"\x93NUMPY\x01\x00" + length + header.encode())
    with pytest.raises(DataError, match="cannot be read"):
        map_parts(tmp_path)
