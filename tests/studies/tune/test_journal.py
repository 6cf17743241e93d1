"""The file of a study is looked at before it is touched, and every line of it is checked."""

from __future__ import annotations

import errno
import json
import sqlite3
from pathlib import Path

import pytest
from filelock import FileLock

from talos.errors import ConfigError, DataError, TalosError
from talos.studies.tune.journal import SealedJournal, check_journal
from talos.studies.tune.storage import StorageError, check_reachable, open_store, parse_storage


def journal(path: Path) -> SealedJournal:
    return SealedJournal(path, FileLock(f"{path}.lock"))


def study(path: Path) -> list[str]:
    """Two trials in a study."""
    store = open_store(parse_storage(str(path), path.parent), "s")
    for _ in range(2):
        store.study.enqueue_trial({"x": 1.0})
    return [str(trial.system_attrs) for trial in store.study.get_trials()]


@pytest.mark.parametrize(
    "content", [b"my notes\nwithout an end", b"{}", b"[1]\n", b"\0" * 5000, b'{"a": 1}\n']
)
def test_a_file_of_something_else_stays_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    address = parse_storage(str(path), tmp_path)
    for look in (lambda: check_reachable(address), lambda: open_store(address, "s")):
        with pytest.raises(ConfigError, match="is not the journal of a study"):
            look()
    assert path.read_bytes() == content


def test_a_database_named_as_a_file(tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE t (a)")
    database.close()
    content = path.read_bytes()
    with pytest.raises(ConfigError, match=r"is a SQLite database.*sqlite:///.*study.db uses it"):
        check_reachable(parse_storage(str(path), tmp_path))
    assert path.read_bytes() == content


def test_a_torn_line_is_removed_by_the_next_writer(tmp_path: Path) -> None:
    path = tmp_path / "study.journal"
    before = study(path)
    whole = path.read_bytes()
    for torn in (b'{"op', b'{"op_code":4,"worker_id":"x"'):
        path.write_bytes(whole + torn)
        assert study(path)[:2] == before[:2]
        lines = path.read_bytes().splitlines()
        assert all(json.loads(line) for line in lines)
    path.write_bytes(b'{"op_co')  # all that was written of the first line
    assert len(study(path)) == 2


def test_every_flipped_bit_is_refused_or_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "study.journal"
    study(path)
    content = path.read_bytes()
    entries = list(journal(path).read_logs(0))
    for place in range(0, len(content), 3):
        bad = bytearray(content)
        bad[place] ^= 1 << (place % 8)
        path.write_bytes(bad)
        try:
            found = list(journal(path).read_logs(0))
        except TalosError:
            continue
        # a flip in the name of the checksum leaves all else as it was; one in the last newline, a torn line
        kept = [{name: one.get(name) for name in entry} for one, entry in zip(found, entries, strict=False)]
        assert kept == entries or bad.count(b"\n") < content.count(b"\n"), place


def test_a_journal_of_optuna_itself_is_read(tmp_path: Path) -> None:
    from optuna.storages.journal import JournalFileBackend

    path = tmp_path / "study.journal"
    entries = [{"op_code": 0, "worker_id": "a", "study_name": "s"}]
    JournalFileBackend(str(path)).append_logs(entries)
    check_journal(path)
    assert list(journal(path).read_logs(0)) == entries


def test_a_full_disk_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "study.journal"
    study(path)
    content = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StorageError, match=r"study\.journal could not be written .*No space"):
        journal(path).append_logs([{"op_code": 0, "worker_id": "a", "study_name": "t"}])
    assert path.read_bytes() == content


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "study.journal"
    study(path)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], lines[1].replace('"op_code":', '"op_code": '), *lines[2:], ""]))
    list(journal(path).read_logs(0))  # the same values
    path.write_text("\n".join([lines[0], lines[1].replace("1", "2", 1), *lines[2:], ""]))
    with pytest.raises(DataError, match=r"study\.journal, line 2: is damaged: it differs from its checksum"):
        list(journal(path).read_logs(0))
