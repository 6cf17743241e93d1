"""Lists as parquet, csv, tsv or JSON lines: parts in a hidden folder beside the file, joined when all are there.

A part gets its name when it is on the disk, and `progress.json` counts it after that. A process that dies in between
writes the same part again.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import polars as pl

from talos.errors import ArgumentError, DataError, TalosError, nearest
from talos.files import replace_file, replace_text

if TYPE_CHECKING:
    from talos.exports.lists import Job

__all__ = ["FileSink", "check_place", "join_files", "kind_of"]

_FORMAT = 1
_KINDS = {".parquet": "parquet", ".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl"}


class FileSink:
    """One file. Its parts are in `.NAME.parts` beside it until all of them are there.

    Args:
        path: the suffix says the format.
        job: what the lists are made from and how.
        overwrite: an existing file may be replaced.
        header: whether the file begins with the names of the columns, if it is of a kind that does.
    """

    def __init__(self, path: Path, job: Job, overwrite: bool, *, header: bool = True) -> None:
        self.path, self.job, self.overwrite, self.header = path, job, overwrite, header
        self.kind, self.zipped = kind_of(path)
        check_place(path, overwrite=overwrite)
        self.folder = path.with_name(f".{path.name}.parts")
        self.record = self.folder / "progress.json"
        self.users = self.rows = self.parts = 0
        self._lock: int | None = None
        self._mine = False  # parts of somebody else's job are not ours to remove

    @property
    def name(self) -> str:
        """The path."""
        return str(self.path)

    def begin(self) -> tuple[int, int]:
        """How far the parts reach that are there already."""
        try:
            self.folder.mkdir(exist_ok=True)
        except OSError as error:
            raise ArgumentError(
                f"cannot be written to ({error.strerror})",
                where=str(self.path.parent),
                expected="a folder for output",
            ) from None
        self._lock = _locked(self.folder)
        begun = self._begun()
        if begun is not None:
            difference = self.job.difference(begun["job"])
            if difference is None:
                self._mine = True
                self.users, self.rows, self.parts = begun["users"], begun["rows"], begun["parts"]
                return self.users, self.rows
            if not self.overwrite:
                raise DataError(
                    f"was begun with {difference}",
                    where=str(self.path),
                    expected="the same model and options",
                    hint=f"start anew with --overwrite, or remove {self.folder}",
                )
        self._mine = True
        for left in self.folder.iterdir():
            left.unlink()
        self._remember()
        return 0, 0

    def add(self, rows: pl.DataFrame, users: int) -> None:
        """One more part."""
        with _disk_errors(self.path):
            replace_file(self._part(self.parts), lambda path: self._write(rows, path))
            self.users, self.rows, self.parts = users, self.rows + len(rows), self.parts + 1
            self._remember()

    def finish(self) -> None:
        """Join the parts into the file, then remove them."""
        parts = [self._part(number) for number in range(self.parts)]
        with _disk_errors(self.path):
            replace_file(self.path, lambda path: join_files(parts, path, self.kind))
        shutil.rmtree(self.folder, ignore_errors=True)

    def close(self) -> None:
        """Let others write; a folder in which nothing has been kept goes."""
        if self._lock is not None:
            if self._mine and self.parts == 0:
                shutil.rmtree(self.folder, ignore_errors=True)
            os.close(self._lock)
            self._lock = None

    def _part(self, number: int) -> Path:
        return self.folder / f"part-{number:06d}"

    def _remember(self) -> None:
        state = {"format": _FORMAT, "job": self.job.as_dict(),
                 "users": self.users, "rows": self.rows, "parts": self.parts}  # fmt: skip
        text = json.dumps(state, indent=2) + "\n"
        replace_text(self.record, text)

    def _begun(self) -> dict[str, Any] | None:
        """What an earlier try says about itself, if all that it counts is still there."""
        try:
            state = json.loads(self.record.read_text(encoding="utf-8"))
            counts = [state[name] for name in ("users", "rows", "parts")]
            whole = (
                state["format"] == _FORMAT
                and isinstance(state["job"], dict)
                and all(isinstance(count, int) for count in counts)
                and all(self._part(number).is_file() for number in range(state["parts"]))
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return state if whole else None

    def _write(self, rows: pl.DataFrame, path: Path) -> None:
        if self.kind == "parquet":
            rows.write_parquet(path)
            return
        with path.open("wb") as file:
            # without name and time in the header, the same lists are the same bytes
            target = gzip.GzipFile("", "wb", 6, file, mtime=0) if self.zipped else file
            if self.kind == "jsonl":
                rows.write_ndjson(cast(BinaryIO, target))
            else:
                separator = "\t" if self.kind == "tsv" else ","
                rows.write_csv(
                    cast(BinaryIO, target),
                    include_header=self.header and self.parts == 0,
                    separator=separator,
                )
            if self.zipped:
                target.close()


def join_files(parts: Sequence[Path], path: Path, kind: str) -> None:
    """Parts of lists, one after the other, as one file; only the first of them may have a header."""
    if kind == "parquet":
        pl.scan_parquet(list(parts)).sink_parquet(path, row_group_size=1 << 18)
        return
    with path.open("wb") as whole:  # gzip members one after another are a gzip file
        for part in parts:
            with part.open("rb") as file:
                shutil.copyfileobj(file, whole, 1 << 20)


def check_place(path: Path, *, overwrite: bool) -> None:
    """Refuse an `out` that exists, unless it may be replaced, and one whose folder is not there."""
    if not path.parent.is_dir():
        raise ArgumentError("no such folder", where=str(path.parent), expected="an existing folder")
    if not os.access(path.parent, os.W_OK):
        raise ArgumentError("cannot be written to", where=str(path.parent), expected="a folder for output")
    if path.is_dir():
        raise ArgumentError("is a folder", where=str(path), expected="the name of a file")
    if path.exists() and not overwrite:
        raise ArgumentError("exists", where=str(path), expected="a new name", hint="or --overwrite")


def kind_of(path: Path) -> tuple[str, bool]:
    """The format that a suffix means, and whether it is gzipped."""
    suffix, zipped = path.suffix.lower(), False
    if suffix == ".gz":
        suffix, zipped = Path(path.stem).suffix.lower(), True
    kind = _KINDS.get(suffix)
    if kind is None or (zipped and kind == "parquet"):
        shown = "".join(path.suffixes[-2:]) if zipped else path.suffix
        raise ArgumentError(
            f"no format for {shown!r}" if shown else "has no suffix",
            where=str(path),
            expected=".parquet, .csv, .tsv or .jsonl, or the address of a database",
            hint=nearest(suffix, _KINDS)
            if suffix and kind is None
            else "parquet is compressed already"
            if kind
            else None,
        )
    return kind, zipped


def _locked(folder: Path) -> int | None:
    """Keep a second process from writing the same parts; the lock goes with the process, however it ends."""
    descriptor = os.open(folder, os.O_RDONLY)
    if sys.platform != "win32":
        import fcntl

        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise TalosError(f"another process is writing {folder}") from None
        except OSError:  # a file system without locks
            pass
    return descriptor


@contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, pl.exceptions.PolarsError, TalosError) as error:
        cause = error.__cause__ or error  # `replace_file` speaks of a part, which is nobody's concern
        reason = (str(cause).strip().splitlines() or [type(cause).__name__])[0]
        raise TalosError(
            f"{path} could not be written ({reason}); the same command goes on from here"
        ) from error
