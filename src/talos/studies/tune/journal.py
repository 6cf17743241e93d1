"""The journal of a study: one line for each change, each with a checksum.

A journal is Optuna's, with one more key in each line. A line that a full disk or a power cut left unfinished is removed
by the next writer, before it writes: its own writer never reported it as stored. No other file is ever changed: what is
not a journal is refused as it is.
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Generator
from pathlib import Path
from typing import IO, Any

from filelock import FileLock

from talos.errors import ConfigError, DataError, MissingExtraError
from talos.studies.tune.storage import StorageError

try:
    from optuna.storages.journal import JournalFileBackend
except ImportError:
    raise MissingExtraError("tuning", extra="tune") from None

__all__ = ["SealedJournal", "check_journal"]

_CRC = "talos_crc32"
_START = b'{"op_code":'  # how each line begins
_LONGEST = 1 << 20  # of the first line, which is short


class SealedJournal(JournalFileBackend):
    """Optuna's journal file, whose lines have checksums.

    Args:
        path: the file; created if it does not exist.
        lock: held while a line is written.
    """

    def __init__(self, path: Path, lock: FileLock) -> None:
        check_journal(path)
        super().__init__(str(path), lock_obj=lock)  # type: ignore[arg-type]  # it has acquire and release
        self.path, self.lock = path, lock
        self.offsets = {0: 0}  # number of an entry → where it begins

    def read_logs(self, log_number_from: int) -> Generator[dict[str, Any], None, None]:
        """The entries from a number on; a DataError if one is damaged. Those without a checksum are Optuna's own."""
        start = max(known for known in self.offsets if known <= log_number_from)
        with self.path.open("rb") as file:
            file.seek(self.offsets[start])
            for number, line in enumerate(file, start=start):
                if not line.endswith(b"\n"):  # it is being written, or was torn
                    return
                self.offsets[number + 1] = self.offsets[number] + len(line)
                if number >= log_number_from:
                    yield self._entry(line, number + 1)

    def _entry(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            entry = json.loads(line)
            if not isinstance(entry, dict) or "op_code" not in entry:
                raise ValueError("it is no entry of a journal")
            crc = entry.pop(_CRC, None)
            if crc is not None and crc != _crc(entry):
                raise ValueError("it differs from its checksum")
            return entry
        except (ValueError, RecursionError) as error:
            where, hint = (
                f"{self.path}, line {number}",
                "copy the lines before it to another file to use them",
            )
            raise DataError(f"is damaged: {error}", where=where, hint=hint) from None

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append entries: all of them, on the disk, or none; a StorageError if they cannot be written."""
        try:
            self._append(logs)
        except OSError as error:
            raise StorageError(f"{self.path} could not be written ({error})") from error

    def _append(self, logs: list[dict[str, Any]]) -> None:
        lines = [json.dumps({**log, _CRC: _crc(log)}, separators=(",", ":")) + "\n" for log in logs]
        with self.lock, self.path.open("r+b", buffering=0) as file:
            end = _end_of_lines(file)
            file.truncate(end)
            file.seek(end)
            try:
                content = memoryview("".join(lines).encode())
                while content:
                    content = content[file.write(content) or 0 :]
                os.fsync(file.fileno())
            except BaseException:
                with contextlib.suppress(OSError):
                    file.truncate(end)
                raise


def check_journal(path: Path) -> None:
    """Raise an error unless a file is a journal, is empty or does not exist; nothing is written.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     notes = Path(folder, "notes.txt")
    ...     _ = notes.write_text("to do")
    ...     check_journal(notes)
    Traceback (most recent call last):
    talos.errors.ConfigError: storage: ...notes.txt is not the journal of a study; expected a new file or a journal
    """
    try:
        with path.open("rb") as file:
            first = file.readline(_LONGEST)
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror})", where="storage") from None
    if first.startswith(b"SQLite format 3"):
        what, hint = f"{path} is a SQLite database", f"sqlite:///{path} uses it"
        raise ConfigError(what, where="storage", expected="a journal", hint=hint)
    whole = False
    with contextlib.suppress(ValueError, RecursionError):
        entry = json.loads(first)
        whole = isinstance(entry, dict) and "op_code" in entry and "worker_id" in entry
    torn = not first.endswith(b"\n") and first.startswith(_START[: len(first)])
    if not whole and not torn:
        what, expected = f"{path} is not the journal of a study", "a new file or a journal"
        raise ConfigError(what, where="storage", expected=expected)


def _end_of_lines(file: IO[bytes]) -> int:
    """Where the last complete line of a file ends."""
    end = file.seek(0, os.SEEK_END)
    step = 1 << 16
    while end:
        start = max(0, end - step)
        file.seek(start)
        block = file.read(end - start)
        newline = block.rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def _crc(entry: dict[str, Any]) -> str:
    text = json.dumps(entry, sort_keys=True, separators=(",", ":"))
    return f"{zlib.crc32(text.encode()):08x}"
