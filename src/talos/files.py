"""Careful disk work, once: atomic writes, folder swaps, checksums and sealed JSON.

Whatever these functions write appears under its name complete and on the disk, or not at all.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from talos.errors import DataError, TalosError

__all__ = [
    "checksum_of",
    "digest_of",
    "expanded",
    "read_sealed",
    "replace_file",
    "replace_folder",
    "replace_text",
    "sync",
    "write_sealed",
]

_LARGEST_SEALED = 64 << 20


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file under a temporary name, flush it to the disk and rename it into place.

    Args:
        path: the file to create or replace.
        write: called with the temporary path; if it fails, the old file stays and the temporary one is removed.

    Raises:
        TalosError: the file could not be written.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     replace_file(Path(folder, "a.txt"), lambda temporary: temporary.write_text("a"))
    ...     os.listdir(folder)
    ['a.txt']
    """
    temporary = _temporary(path)
    try:
        write(temporary)
        # the permissions any new file gets: safetensors creates files for the owner alone
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        sync(temporary)
        temporary.replace(path)
        sync(path.parent)
    except (OSError, SafetensorError) as error:
        raise TalosError(f"{path} could not be written ({error}); what was there before is intact") from error
    finally:
        temporary.unlink(missing_ok=True)


def replace_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8 by `replace_file`."""
    replace_file(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


@contextmanager
def replace_folder(path: Path) -> Iterator[Path]:
    """A new folder to fill; it takes the place of `path` if the block succeeds and is removed if it does not.

    The old folder, if there is one, is moved aside for the swap and removed after it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as parent:
    ...     with replace_folder(Path(parent, "new")) as folder:
    ...         _ = (folder / "a.txt").write_text("a")
    ...     os.listdir(Path(parent, "new"))
    ['a.txt']
    """
    temporary = _temporary(path)
    temporary.mkdir()
    try:
        yield temporary
        for entry in (*temporary.rglob("*"), temporary):
            sync(entry)
        old = path.with_name(f".{path.name}.{os.getpid()}.old")
        if path.exists():
            path.rename(old)
        temporary.rename(path)
        sync(path.parent)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def sync(path: Path) -> None:
    """Flush a file or a folder to the disk; without effect on platforms that cannot open a folder for it."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def checksum_of(path: Path, kind: str = "sha256") -> str:
    """The checksum of a file with its kind in front; the file is read in pieces.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "empty").write_bytes(b"")
    ...     checksum_of(Path(folder, "empty"), "md5")
    'md5:d41d8cd98f00b204e9800998ecf8427e'
    """
    with path.open("rb") as file:
        return f"{kind}:{hashlib.file_digest(file, kind).hexdigest()}"


def digest_of(value: Any) -> str:
    """The SHA-256 of a plain value, whatever the order of its keys.

    >>> digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "a": 1})
    True
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def write_sealed(path: Path, values: dict[str, Any]) -> None:
    """Write a JSON object that carries its own digest, atomically."""
    text = json.dumps({**values, "sha256": digest_of(values)}, indent=1, ensure_ascii=False) + "\n"
    replace_text(path, text)


def read_sealed(path: Path, *, hint: str, format: int = 1) -> dict[str, Any]:  # noqa: A002
    """The values of a file of `write_sealed`.

    Args:
        path: the file.
        hint: what to do about a damaged file, for the message.
        format: the value that its key `format` must have.

    Raises:
        DataError: the file is missing, damaged, too large or of another format.
    """
    try:
        if path.stat().st_size > _LARGEST_SEALED:
            raise ValueError("it is too large")
        values = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(values, dict):
            raise ValueError("it is not a JSON object")
        if values.pop("sha256", None) != digest_of(values):
            raise ValueError("its content differs from the digest it carries")
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"is damaged: {error}", where=str(path), hint=hint) from None
    if values.get("format") != format:
        raise DataError(f"format {values.get('format')!r}", where=str(path), expected=f"{format}", hint=hint)
    return values


def expanded(path: str | os.PathLike[str]) -> Path:
    """A path with the home folder in place of `~`; as it is where there is no such home.

    >>> str(expanded("~no-such-user/clicks.csv"))
    '~no-such-user/clicks.csv'
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:  # no such user, or no home
        return Path(path)


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")
