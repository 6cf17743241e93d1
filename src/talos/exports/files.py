"""Lists in a parquet, csv, tsv or JSON lines file: parts are collected in a hidden folder and joined at the end.

A part appears under its name when it is complete on the disk, and `progress.json` counts it after that. If the process
dies in between, the next one writes that part again.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import polars as pl
from filelock import FileLock, Timeout

from talos.data.parquet import scan_file
from talos.errors import ArgumentError, TalosError, first_line, nearest
from talos.files import replace_file, replace_text

if TYPE_CHECKING:
    from talos.exports.lists import ListSettings

__all__ = ["FileSink", "check_out", "file_kind", "join_files"]

_FORMAT = 1
_KINDS = {".parquet": "parquet", ".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl"}


class FileSink:
    """A file of lists in the format of its suffix; until it is complete, its parts are in `.NAME.parts` beside it."""

    def __init__(self, path: Path, settings: ListSettings, overwrite: bool, *, header: bool = True) -> None:
        self.path, self.settings, self.overwrite, self.header = path, settings, overwrite, header
        self.name = str(path)
        self.kind, self.zipped = file_kind(path)
        check_out(path, overwrite=overwrite)
        self.folder = path.with_name(f".{path.name}.parts")
        self.record = self.folder / "progress.json"
        self.users = self.rows = self.parts = 0
        # on Unix this is flock, which ends with the process, however it ends; not in the folder, which is removed
        self._lock = FileLock(path.with_name(f".{path.name}.lock"), blocking=False)
        self._mine = False  # parts with other settings are not ours to remove

    def begin(self) -> tuple[int, int]:
        """Users and rows in the parts that an interrupted export has left."""
        try:
            self.folder.mkdir(exist_ok=True)
        except OSError as error:
            what = f"cannot be written to ({error.strerror})"
            raise ArgumentError(what, where=str(self.path.parent), expected="a folder for output") from None
        try:
            self._lock.acquire()
        except Timeout:
            raise TalosError(f"another process is writing {self.path}") from None
        except OSError:  # a file system without locks
            pass
        found = self._read_record()
        same = found is not None and self.settings.same_as(
            found["job"], name=self.name, overwrite=self.overwrite, hint=f", or remove {self.folder}"
        )
        self._mine = True
        if found is not None and same:
            self.users, self.rows, self.parts = found["users"], found["rows"], found["parts"]
            return self.users, self.rows
        for left in self.folder.iterdir():
            left.unlink()
        self._write_record()
        return 0, 0

    def add(self, rows: pl.DataFrame, users: int) -> None:
        """Write the next part, and count it."""
        with _disk_errors(self.path):
            replace_file(self._part(self.parts), lambda path: self._write(rows, path))
            self.users, self.rows, self.parts = users, self.rows + len(rows), self.parts + 1
            self._write_record()

    def finish(self) -> None:
        """Join the parts into the file, then remove them."""
        parts = [self._part(number) for number in range(self.parts)]
        with _disk_errors(self.path):
            replace_file(self.path, lambda path: join_files(parts, path, self.kind))
        shutil.rmtree(self.folder, ignore_errors=True)

    def close(self) -> None:
        """Let other processes write; remove the folder if it holds no part."""
        if self._mine and self.parts == 0:
            shutil.rmtree(self.folder, ignore_errors=True)
        if self._lock.is_locked:
            # removed while it is locked: a process that opened it before sees that it is gone, and makes a new one
            Path(self._lock.lock_file).unlink(missing_ok=True)
            self._lock.release()

    def _part(self, number: int) -> Path:
        return self.folder / f"part-{number:06d}"

    def _write_record(self) -> None:
        record = {"format": _FORMAT, "job": asdict(self.settings),
                  "users": self.users, "rows": self.rows, "parts": self.parts}  # fmt: skip
        replace_text(self.record, json.dumps(record, indent=2) + "\n")

    def _read_record(self) -> dict[str, Any] | None:
        """The record of an interrupted export, if it is intact and all parts that it counts are there."""
        try:
            record = json.loads(self.record.read_text(encoding="utf-8"))
            counts = [record[name] for name in ("users", "rows", "parts")]
            intact = (
                record["format"] == _FORMAT
                and isinstance(record["job"], dict)
                and all(isinstance(count, int) for count in counts)
                and all(self._part(number).is_file() for number in range(record["parts"]))
            )
            return record if intact else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _write(self, rows: pl.DataFrame, path: Path) -> None:
        if self.kind == "parquet":
            rows.write_parquet(path)
            return
        with path.open("wb") as file:
            # no name and no time in the gzip header, so that the same lists give the same bytes
            target = gzip.GzipFile("", "wb", 6, file, mtime=0) if self.zipped else file
            if self.kind == "jsonl":
                rows.write_ndjson(cast(BinaryIO, target))
            else:
                header, separator = self.header and self.parts == 0, "\t" if self.kind == "tsv" else ","
                rows.write_csv(cast(BinaryIO, target), include_header=header, separator=separator)
            if self.zipped:
                target.close()


def join_files(parts: Sequence[Path], path: Path, kind: str) -> None:
    """Concatenate files of lists; only the first of them may have a header."""
    if kind == "parquet":
        scan_file(list(parts)).sink_parquet(path, row_group_size=1 << 18)
        return
    with path.open("wb") as whole:  # gzip files one after the other are a gzip file
        for part in parts:
            with part.open("rb") as file:
                shutil.copyfileobj(file, whole, 1 << 20)


def check_out(path: Path, *, overwrite: bool, folder: bool = False) -> None:
    """Refuse an `out` whose parent is missing or read-only, that exists, or that is a folder where a file is meant."""
    if not path.parent.is_dir():
        raise ArgumentError("no such folder", where=str(path.parent), expected="an existing folder")
    if not os.access(path.parent, os.W_OK):
        raise ArgumentError("cannot be written to", where=str(path.parent), expected="a folder for output")
    if path.is_dir() and not folder:
        raise ArgumentError("is a folder", where=str(path), expected="the name of a file")
    if path.exists() and not overwrite:
        raise ArgumentError("exists", where=str(path), expected="a new name", hint="or overwrite=True")


def file_kind(path: Path) -> tuple[str, bool]:
    """The format that the suffix stands for, and whether the file is gzipped.

    >>> file_kind(Path("recs.ndjson.gz"))
    ('jsonl', True)
    """
    suffix, zipped = path.suffix.lower(), False
    if suffix == ".gz":
        suffix, zipped = Path(path.stem).suffix.lower(), True
    kind = _KINDS.get(suffix)
    if kind is None or (zipped and kind == "parquet"):
        shown = "".join(path.suffixes[-2:]) if zipped else path.suffix
        hint = "parquet is compressed already" if kind else nearest(suffix, _KINDS) if suffix else None
        raise ArgumentError(
            f"no format for {shown!r}" if shown else "has no suffix",
            where=str(path),
            expected=".parquet, .csv, .tsv or .jsonl, or the address of a database",
            hint=hint,
        )
    return kind, zipped


@contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, pl.exceptions.PolarsError, TalosError) as error:
        # the message of `replace_file` names a part, which the user does not know
        reason = first_line(error.__cause__ or error)
        raise TalosError(f"{path} could not be written ({reason}); run it again to continue") from error
