"""Lists in a parquet, csv, tsv or JSON lines file: parts are collected in a hidden folder and joined at the end.

A part appears under its name when it is complete on the disk, and `progress.json` counts it after that. If the process
dies in between, the next one writes that part again.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import polars as pl

from talos.data.parquet import scan_file
from talos.errors import ArgumentError, TalosError, first_line, nearest
from talos.files import (
    checksum_of,
    locked,
    remove_leftovers,
    replace_file,
    replace_text,
    sealed_text,
    unseal,
)

if TYPE_CHECKING:
    from talos.exports.lists import ListSettings

__all__ = ["FileSink", "check_out", "file_kind", "join_files", "make_parent"]

_FORMAT = 2  # 1 had no checksums
_OURS = re.compile(r"part-\d{6}|progress\.json|\..*\.tmp")
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
        self.users = self.rows = 0
        self.checksums: list[str] = []  # of the parts
        self._held = ExitStack()
        self._mine = False  # parts with other settings are not ours to remove

    def begin(self) -> tuple[int, int]:
        """Users and rows in the parts that an interrupted export has left."""
        # beside the folder of the parts, which is removed
        lock = self.path.with_name(f".{self.path.name}.lock")
        make_parent(self.path)
        try:
            self.folder.mkdir(exist_ok=True)
            self._held.enter_context(locked(lock, guards=self.path, purpose="writing lists"))
            remove_leftovers(self.path)
            self.folder.mkdir(exist_ok=True)  # another process that has finished in between has removed it
            facts = self.folder.lstat()
        except OSError as error:
            what = f"cannot be written to ({error.strerror})"
            raise ArgumentError(what, where=str(self.path.parent), expected="a folder for output") from None
        if self.folder.is_symlink() or (hasattr(os, "geteuid") and facts.st_uid != os.geteuid()):
            what = "is a link or belongs to somebody else"
            raise ArgumentError(what, where=str(self.folder), expected="a folder of this user, or none")
        found = self._read_record()
        same = found is not None and self.settings.same_as(
            found["job"], name=self.name, overwrite=self.overwrite, hint=f", or remove {self.folder}"
        )
        self._mine = True
        if found is not None and same:
            self.users, self.rows, self.checksums = found["users"], found["rows"], found["checksums"]
            return self.users, self.rows
        self._remove_parts()
        with _disk_errors(self.path):
            self.folder.mkdir(exist_ok=True)
            self._write_record()
        return 0, 0

    def add(self, rows: pl.DataFrame, users: int) -> None:
        """Write the next part, and count it."""
        with _disk_errors(self.path):
            part = self._part(self.parts)
            replace_file(part, lambda path: self._write(rows, path))
            self.users, self.rows = users, self.rows + len(rows)
            self.checksums.append(checksum_of(part))
            self._write_record()

    def finish(self) -> None:
        """Join the parts into the file, then remove them."""
        parts = [self._part(number) for number in range(self.parts)]
        with _disk_errors(self.path):
            replace_file(self.path, lambda path: join_files(parts, path, self.kind))
        self._remove_parts()

    def close(self) -> None:
        """Let other processes write; remove the folder if it holds no part."""
        if self._mine and self.parts == 0:
            self._remove_parts()
        self._held.close()

    @property
    def parts(self) -> int:
        """The number of parts that are written."""
        return len(self.checksums)

    def _remove_parts(self) -> None:
        """Remove the folder with what an export puts there; what somebody else has put there stays."""
        with suppress(OSError):
            for entry in list(self.folder.iterdir()):
                if _OURS.fullmatch(entry.name) and entry.is_dir() and not entry.is_symlink():
                    shutil.rmtree(entry)  # of a process that was killed while it wrote a part
                elif _OURS.fullmatch(entry.name):
                    entry.unlink(missing_ok=True)
            self.folder.rmdir()

    def _part(self, number: int) -> Path:
        return self.folder / f"part-{number:06d}"

    def _write_record(self) -> None:
        record = {"format": _FORMAT, "job": asdict(self.settings),
                  "users": self.users, "rows": self.rows, "checksums": self.checksums}  # fmt: skip
        replace_text(self.record, sealed_text(record))

    def _read_record(self) -> dict[str, Any] | None:
        """The record of an interrupted export, if it is intact and all parts that it counts are there."""
        try:
            record = unseal(json.loads(self.record.read_text(encoding="utf-8")))
            intact = (
                record["format"] == _FORMAT
                and isinstance(record["job"], dict)
                and all(isinstance(record[name], int) for name in ("users", "rows"))
                and all(
                    checksum_of(self._part(number)) == checksum
                    for number, checksum in enumerate(record["checksums"])
                )
            )
            return record if intact else None
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
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
    """Refuse an `out` in a read-only folder, one that exists, or a folder where a file is meant."""
    above = next(place for place in path.absolute().parents if place.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise ArgumentError("cannot be written to", where=str(above), expected="a folder for output")
    if path.is_dir() and not folder:
        raise ArgumentError("is a folder", where=str(path), expected="the name of a file")
    if path.exists() and not overwrite:
        raise ArgumentError("exists", where=str(path), expected="a new name", hint="or overwrite=True")


def make_parent(path: Path) -> None:
    """Create the folder that `path` is in."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        what = f"cannot be created ({error.strerror})"
        raise ArgumentError(what, where=str(path.parent), expected="a folder for output") from None


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
