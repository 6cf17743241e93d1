"""Careful disk work, once: atomic writes, folder swaps, checksums, sealed JSON and locks.

Whatever these functions write appears under its name complete and on the disk, or not at all. Temporary names are
random and created exclusively, so that nobody can put a symbolic link in their place beforehand.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import json
import os
import platform
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from safetensors import SafetensorError

from talos.errors import ArgumentError, ConfigError, DataError, InUseError, TalosError

__all__ = [
    "WRONG_NAME",
    "built_library",
    "checksum_of",
    "digest_of",
    "expanded",
    "is_leftover",
    "locked",
    "locked_folder",
    "read_record",
    "read_sealed",
    "remove",
    "remove_leftovers",
    "replace_file",
    "replace_folder",
    "replace_text",
    "sealed_text",
    "sync",
    "unseal",
    "write_record",
    "write_sealed",
]

WRONG_NAME = frozenset(
    {
        *(errno.ENOENT, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR, errno.EEXIST),
        *(
            errno.ENAMETOOLONG,
            errno.ELOOP,
            errno.EINVAL,
            errno.EROFS,
            errno.ENOTEMPTY,
            errno.ENXIO,
            errno.EILSEQ,
        ),
    }
)
"""Errors that are the user's to mend: a wrong name, a missing permission. A full disk or a failing one is not."""

_LARGEST_SEALED = 64 << 20
_LONGEST_PREFIX = (
    100  # characters of a name that its temporary name repeats; a name may have 255 bytes in all
)


def built_library(module: str, name: str) -> Path | None:
    """A shared library beside a module, under the name that `setup.py` gives it on this system; None if there is none.

    No other name is tried: what is left of another build, or put there by somebody, is not loaded.

    >>> built_library(__file__, "_nothing") is None
    True
    """
    suffix = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")
    place = Path(module).with_name(f"{name}{suffix}")
    return place if place.is_file() else None


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file under a temporary name, flush it to the disk and rename it into place.

    Args:
        path: the file to create or replace.
        write: called with the temporary path; if it fails, the old file stays and the temporary one is removed.

    Raises:
        ArgumentError: the name or the folder is the reason that the file could not be written.
        TalosError: the disk is.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     replace_file(Path(folder, "a.txt"), lambda temporary: temporary.write_text("a"))
    ...     os.listdir(folder)
    ['a.txt']
    """
    folder: Path | None = None
    renamed = False
    try:
        # Exclusive and random: what somebody else has put under a name that could be guessed is never written to. A
        # folder, because some libraries write to a name of their own beside the one they are given: safetensors does.
        folder = Path(tempfile.mkdtemp(dir=path.parent, prefix=_prefix(path), suffix=".tmp"))
        temporary = folder / path.name
        write(temporary)
        temporary.chmod(_mode(path, 0o666))  # safetensors creates files for the owner alone
        sync(temporary)
        temporary.replace(path)
        renamed = True
        sync(path.parent)
    except Exception as error:
        if not _is_of_the_disk(error):
            raise
        if renamed:
            raise TalosError(f"{path} was written, but may not be on the disk yet ({error})") from error
        raise _unwritable(path, error, "; what was there before is intact") from error
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def replace_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8 by `replace_file`."""
    replace_file(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


@contextmanager
def replace_folder(path: Path) -> Iterator[Path]:
    """A new folder to fill; it takes the place of `path` if the block succeeds and is removed if it does not.

    The old folder, if there is one, is exchanged with the new one and removed after that. Where the file system cannot
    exchange two names in one operation, it is moved aside for a moment.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as parent:
    ...     with replace_folder(Path(parent, "new")) as folder:
    ...         _ = (folder / "a.txt").write_text("a")
    ...     os.listdir(Path(parent, "new"))
    ['a.txt']
    """
    temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=_prefix(path), suffix=".tmp"))
    try:
        yield temporary
        temporary.chmod(_mode(path, 0o777))
        for entry in (*temporary.rglob("*"), temporary):
            sync(entry)
        if not path.exists():
            temporary.rename(path)
        elif not _exchange(temporary, path):
            old = Path(tempfile.mkdtemp(dir=path.parent, prefix=_prefix(path), suffix=".tmp"))
            path.rename(old)
            try:
                temporary.rename(path)
            except BaseException:
                old.rename(path)
                raise
            shutil.rmtree(old, ignore_errors=True)
        sync(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def locked_folder(path: Path, *, purpose: str, new: bool = False) -> Iterator[Path]:
    """`replace_folder` under a lock beside `path`; leftovers of killed processes are removed first.

    Args:
        path: the folder.
        purpose: what this process does, for the message that another one gets.
        new: refuse a path where something is already, other than an empty folder.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as parent:
    ...     with locked_folder(Path(parent, "new"), purpose="writing") as folder:
    ...         _ = (folder / "a.txt").write_text("a")
    ...     os.listdir(parent)
    ['new']
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.with_name(f".{path.name}.lock"), guards=path, purpose=purpose):
        if new and path.exists() and (not path.is_dir() or any(path.iterdir())):
            what = "exists and is not empty"
            raise ConfigError(what, where=str(path), expected="a new or empty folder")
        remove_leftovers(path)  # before the new folder exists, whose name is that of a leftover
        with replace_folder(path) as folder:
            yield folder


def remove_leftovers(path: Path) -> None:
    """Remove what killed processes left of unfinished writes of `path`; call it only while holding a lock on it.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, ".a.txt.12345678.tmp").write_text("half of")
    ...     remove_leftovers(Path(folder, "a.txt"))
    ...     os.listdir(folder)
    []
    """
    with contextlib.suppress(OSError):
        for entry in list(path.parent.iterdir()):
            if is_leftover(entry, path):
                remove(entry)


def remove(entry: Path) -> None:
    """Remove a file, a link or a folder with all that is in it, if it is there; a link is never followed.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Path(folder, "a").mkdir()
    ...     Path(folder, "b").symlink_to("a")
    ...     remove(Path(folder, "b"))
    ...     os.listdir(folder)
    ['a']
    """
    if entry.is_dir() and not entry.is_symlink():
        shutil.rmtree(entry, ignore_errors=True)
    else:
        entry.unlink(missing_ok=True)


def is_leftover(entry: Path, path: Path) -> bool:
    """Whether the name of an entry in the folder of `path` is one under which `path` is written.

    >>> is_leftover(Path("run/.a.txt.12345678.tmp"), Path("run/a.txt")), is_leftover(Path("b.txt"), Path("a.txt"))
    (True, False)
    """
    return entry.name.startswith(_prefix(path)) and entry.name.endswith(".tmp")


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


def sealed_text(values: dict[str, Any], *, indent: int = 1) -> str:
    """A JSON object as text, with the digest of its values as the last key `sha256`; `unseal` checks it.

    A digest that the values have already is replaced.

    >>> unseal(json.loads(sealed_text({"a": 1})))
    {'a': 1}
    """
    plain = json.loads(json.dumps(values))  # as it will be read: keys are strings, tuples are lists
    plain.pop("sha256", None)
    return json.dumps({**plain, "sha256": digest_of(plain)}, indent=indent, ensure_ascii=False) + "\n"


def unseal(values: Any) -> dict[str, Any]:
    """The values of a JSON object that carries their digest, without the digest; a ValueError if it is another."""
    if not isinstance(values, dict):
        raise ValueError("it is not a JSON object")
    rest = {name: value for name, value in values.items() if name != "sha256"}
    if values.get("sha256") != digest_of(rest):
        raise ValueError("its content differs from the digest it carries")
    return rest


def write_sealed(path: Path, values: dict[str, Any]) -> None:
    """Write a JSON object that carries its own digest, atomically."""
    replace_text(path, sealed_text(values))


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
        values = unseal(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"is damaged: {error}", where=str(path), hint=hint) from None
    if values.get("format") != format:
        raise DataError(f"format {values.get('format')!r}", where=str(path), expected=f"{format}", hint=hint)
    return values


def write_record(path: Path, values: Mapping[str, Any], files: Iterable[str], *, format: int = 1) -> None:  # noqa: A002
    """Write values as sealed JSON, with the checksums of `files` beside it: last of all, so what it says is complete.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "fit.txt").write_text("x")
    ...     write_record(Path(folder, "fit.json"), {"epoch": 3}, ["fit.txt"])
    ...     read_record(Path(folder, "fit.json"), hint="fit again")["epoch"]
    3
    """
    checksums = {name: checksum_of(path.with_name(name)) for name in files}
    write_sealed(path, {"format": format, **values, "checksums": checksums})


def read_record(
    path: Path,
    files: Iterable[str] | None = None,
    *,
    hint: str,
    format: int = 1,  # noqa: A002
) -> dict[str, Any]:
    """The values of a file of `write_record`, after a look at `files`, by default at all that it lists.

    Raises:
        DataError: the record or a file is missing or damaged; the message names it and gives the hint.
    """
    values = read_sealed(path, hint=hint, format=format)
    stored = values.get("checksums")
    checksums = stored if isinstance(stored, dict) else {}
    for name in checksums if files is None else files:
        file = path.with_name(name)
        if not file.is_file() or checksum_of(file) != checksums.get(name):
            what = f"is missing or differs from its checksum in {path.name}"
            raise DataError(what, where=str(file), hint=hint)
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


# ---------------------------------------------------------------------- locks


class _Held(threading.local):
    """The lock files that this thread holds, and how many blocks are inside each."""

    def __init__(self) -> None:
        self.depth: dict[Path, int] = {}


_held = _Held()


@contextmanager
def locked(
    file: Path,
    *,
    guards: Path,
    purpose: str,
    wait: Callable[[str], object] | None = None,
    nested: bool = False,
) -> Iterator[None]:
    """Hold a lock within this block; an error if another process holds it, unless `wait` is given.

    The lock belongs to the process and ends with it, however it ends: what a killed process left is taken over. The
    file says who holds it, and is removed at the end. On a file system without locks the block runs without one.

    Args:
        file: the lock file; its folder must exist.
        guards: what must not be written by two at once, for the message.
        purpose: what this process does, for the message that another one gets.
        wait: wait for the other process, after calling this with a line that says so.
        nested: a thread that holds this lock already may take it again.

    Raises:
        InUseError: another process, or another thread of this one, holds the lock.
        TalosError: the lock file cannot be written.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with locked(Path(folder, ".lock"), guards=Path(folder), purpose="train"):
    ...         os.listdir(folder)
    ['.lock']
    """
    place = file.parent.resolve() / file.name
    if nested and place in _held.depth:
        _held.depth[place] += 1
        try:
            yield
        finally:
            _held.depth[place] -= 1
        return
    with_lock, lock, holder = True, FileLock(place), None
    try:
        holder = _owner(place) if place in _held.depth else _acquire(lock, place)
    except OSError as error:
        if error.errno not in _WITHOUT_LOCKS:
            raise _unwritable(guards, error) from error
        with_lock = False
    if holder is not None:
        message = f"{guards} is being written by {holder}"
        if wait is None:
            raise InUseError(message)
        wait(f"{message}: waiting for it")
        lock.acquire(poll_interval=0.1)
    _held.depth[place] = 1
    try:
        if with_lock:
            _sign(place, purpose)
        yield
    finally:
        del _held.depth[place]
        if with_lock:
            # removed while it is locked: a process that opened it before sees that it is gone, and makes a new one
            with contextlib.suppress(OSError):
                place.unlink(missing_ok=True)
            lock.release()


_WITHOUT_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}


def _acquire(lock: FileLock, file: Path) -> str | None:
    """Take a lock, or say who holds it.

    A holder without a name has not signed yet or is about to end: it gets a moment for either.
    """
    os.close(os.open(file, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666))
    until = time.monotonic() + _TO_SIGN
    while True:
        with contextlib.suppress(Timeout):
            lock.acquire(blocking=False)
            return None
        holder = _owner(file)
        if holder != _NAMELESS or time.monotonic() > until:
            return holder
        time.sleep(0.01)


_TO_SIGN = 1.0  # seconds
_NAMELESS = "another process"


def _sign(file: Path, purpose: str) -> None:
    since = datetime.now(UTC).isoformat(timespec="seconds")
    owner = {"process": os.getpid(), "machine": platform.node(), "purpose": purpose, "since": since}
    with contextlib.suppress(OSError):  # a full disk: the lock holds, without a name
        file.write_text(json.dumps(owner), encoding="utf-8")


def _owner(file: Path) -> str:
    """Who holds a lock, by what is written in its file."""
    try:
        found = json.loads(file.read_text(encoding="utf-8")[:1000])
        where = "" if found["machine"] == platform.node() else f" on {str(found['machine'])[:80]}"
        number, purpose, since = int(found["process"]), str(found["purpose"])[:80], str(found["since"])[:40]
        return f"process {number}{where} ({purpose}, since {since})"
    except (OSError, ValueError, KeyError, TypeError):  # it has not signed yet, or its disk is full
        return _NAMELESS


# --------------------------------------------------------------------- helpers


def _prefix(path: Path) -> str:
    """What the temporary names of a path begin with."""
    return f".{path.name[:_LONGEST_PREFIX]}."


def _mode(path: Path, default: int) -> int:
    """The permissions of what is replaced, or those that any new file or folder gets."""
    with contextlib.suppress(OSError):
        return path.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return default & ~mask


def _unwritable(path: Path, error: Exception, comfort: str = "") -> TalosError:
    """The error about a file that could not be written: the user's, if its name or its folder is the reason."""
    if isinstance(error, OSError) and error.errno in WRONG_NAME:
        what = f"could not be written ({error.strerror})"
        return ArgumentError(what, where=str(path), expected="a name in a folder that can be written to")
    return TalosError(f"{path} could not be written ({error}){comfort}")


def _is_of_the_disk(error: Exception) -> bool:
    """Whether an error means that a file could not be written; polars has errors of its own for that."""
    return isinstance(error, OSError | SafetensorError) or type(error).__module__.startswith("polars")


_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # of Linux


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two names in one operation; False where the system or the file system cannot."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if os.name == "posix" else None
    if rename is None:
        return False
    if rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
        return False
    raise OSError(number, os.strerror(number), str(other))
