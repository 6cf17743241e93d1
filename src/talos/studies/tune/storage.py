"""Where the trials are kept: a journal file, SQLite, or PostgreSQL for workers on several machines.

The journal is the default: each change is one line, appended under a lock that the kernel lets go of when a
process dies, so a killed worker neither tears the file nor blocks the others. Optuna itself leaves two gaps that are
closed here: SQLite cannot lock a row, so changes of a trial's state are made under a file lock of their own; and a
server that cannot be reached is found out before anything else happens.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit, urlunsplit

from talos.errors import ConfigError, MissingExtraError, TalosError

if TYPE_CHECKING:
    import optuna

__all__ = [
    "FileLock",
    "Place",
    "Store",
    "check_reachable",
    "import_optuna",
    "open_store",
    "parse_storage",
    "quiet",
]

JOURNAL = "study.journal"
_TRIES = 5  # at opening: two machines that make the tables of a new database at once get in each other's way


def import_optuna() -> Any:
    """Optuna, or an error that says which extra brings it."""
    try:
        import optuna
    except ImportError:
        raise MissingExtraError("tuning", extra="tune") from None
    return optuna


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Optuna's own lines and its warnings about experimental parts are kept from the terminal."""
    optuna = import_optuna()
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(before)


@dataclass(frozen=True, kw_only=True)
class Place:
    """What `--storage` means: a file or a server.

    `address` may hold a password; `shown` never does.
    """

    kind: Literal["journal", "sqlite", "postgresql"]
    address: str

    @property
    def shown(self) -> str:
        """The address as it may be printed and written down."""
        if self.kind != "postgresql":
            return self.address if self.kind == "journal" else f"sqlite:///{self.address}"
        parts = urlsplit(self.address)
        user, at, host = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(netloc=f"{user.partition(':')[0]}{at}{host}"))


def parse_storage(text: str | None, folder: Path) -> Place:
    """A file name, `sqlite:///FILE` or `postgresql://…`; the journal in the folder if there is none.

    >>> parse_storage(None, Path("out")).address
    'out/study.journal'
    >>> parse_storage("postgresql://ann:secret@db.example/tune", Path("out")).shown
    'postgresql://ann@db.example/tune'
    >>> parse_storage("mysql://db/tune", Path("out"))
    Traceback (most recent call last):
    talos.errors.ConfigError: --storage: 'mysql://db/tune'; expected a file, sqlite:///FILE or postgresql://USER@HOST/DATABASE
    """
    if text is None:
        return Place(kind="journal", address=str(folder / JOURNAL))
    scheme, colon, rest = text.partition("://")
    if not colon and text:
        return Place(kind="journal", address=text)
    if scheme == "sqlite" and rest.startswith("/") and len(rest) > 1:
        return Place(kind="sqlite", address=rest[1:])
    if scheme in ("postgresql", "postgres") and rest:
        return Place(kind="postgresql", address=f"postgresql://{rest}")
    expected = "a file, sqlite:///FILE or postgresql://USER@HOST/DATABASE"
    raise ConfigError(f"{text!r}" if text else "is empty", where="--storage", expected=expected)


def check_reachable(place: Place) -> None:
    """Find out within about a second whether the storage can be used at all."""
    where = f"--storage {place.shown}"
    if place.kind != "postgresql":
        parent = Path(place.address).resolve().parent
        if Path(place.address).is_dir():
            raise ConfigError("is a folder", where=where, expected="a file")
        while not parent.exists():
            parent = parent.parent
        if not parent.is_dir() or not os.access(parent, os.W_OK):
            raise ConfigError("cannot be written to", where=where, expected="a file in a folder that can")
        return
    try:
        parts = urlsplit(place.address)
        host, port = parts.hostname, parts.port or 5432
    except ValueError as error:
        raise ConfigError(f"{error}", where=where, expected="postgresql://USER@HOST/DATABASE") from None
    try:
        import psycopg  # noqa: F401  # only whether it is there
    except ImportError:
        raise MissingExtraError("tuning with PostgreSQL", extra="postgres") from None
    if host is None:  # a socket in the file system, or the environment decides
        return
    try:
        socket.create_connection((host, port), timeout=1.0).close()
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(
            f"cannot be reached ({reason})", where=where, expected="a server that answers"
        ) from None


@dataclass(frozen=True, kw_only=True)
class Store:
    """An opened study: Optuna's storage and study, and the lock under which states change."""

    place: Place
    storage: Any
    study: optuna.Study
    lock: FileLock | None

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """No other process changes a trial's state meanwhile; journal and server see to it themselves."""
        if self.lock is None:
            yield
            return
        self.lock.acquire()
        try:
            yield
        finally:
            self.lock.release()

    def id_of(self, number: int) -> int:
        """The storage's id of a trial."""
        study = self.storage.get_study_id_from_name(self.study.study_name)
        return int(self.storage.get_trial_id_from_study_id_trial_number(study, number))


def open_store(place: Place, name: str) -> Store:
    """The study of this name, made if there is none."""
    optuna = import_optuna()
    lock = None
    if place.kind != "postgresql":
        Path(place.address).parent.mkdir(parents=True, exist_ok=True)
    if place.kind == "sqlite":
        lock = FileLock(f"{place.address}.lock")
    for attempt in range(_TRIES):
        try:
            storage = _storage(place, optuna)
            study = optuna.create_study(
                storage=storage, study_name=name, direction="maximize", load_if_exists=True
            )
            return Store(place=place, storage=study._storage, study=study, lock=lock)
        except Exception as error:
            if attempt == _TRIES - 1 or not _may_pass(error):
                raise _explained(error, place) from None
            time.sleep(0.2 * 2**attempt)
    raise AssertionError("unreachable")


def _storage(place: Place, optuna: Any) -> Any:
    if place.kind == "journal":
        lock = FileLock(f"{place.address}.lock")
        _mend(Path(place.address), lock)
        return optuna.storages.JournalStorage(
            optuna.storages.journal.JournalFileBackend(place.address, lock_obj=lock)
        )
    from sqlalchemy.pool import NullPool

    # a connection for each change, closed after it: none is left open for hours or cut off by a restart
    if place.kind == "sqlite":
        return optuna.storages.RDBStorage(
            f"sqlite:///{place.address}",
            engine_kwargs={"poolclass": NullPool, "connect_args": {"timeout": 60}},
        )
    return optuna.storages.RDBStorage(
        place.address.replace("postgresql://", "postgresql+psycopg://", 1),
        engine_kwargs={"poolclass": NullPool, "connect_args": {"connect_timeout": 5}},
    )


def _mend(path: Path, lock: FileLock) -> None:
    """Cut off a last line that a power cut left half written: nobody was told that it is there."""
    if not path.exists():
        return
    lock.acquire()
    try:
        with path.open("r+b") as file:
            content = file.read()
            whole = content.rfind(b"\n") + 1
            if whole < len(content):
                file.truncate(whole)
    finally:
        lock.release()


def _is_database_error(error: Exception) -> bool:
    return type(error).__module__.startswith(("sqlalchemy", "optuna", "alembic"))


def _may_pass(error: Exception) -> bool:
    """Whether somebody else who opened the storage at the same time may be the reason."""
    chain = (error, error.__cause__, error.__context__)
    in_the_way = ("IntegrityError", "ProgrammingError")
    said = ("locked", "already exists")
    return any(
        type(one).__name__ in in_the_way or any(word in str(one) for word in said)
        for one in chain
        if one is not None
    )


def _explained(error: Exception, place: Place) -> Exception:
    if isinstance(error, TalosError) or not (
        _is_database_error(error) or isinstance(error, OSError | ValueError)
    ):
        return error
    cause = error.__cause__ or error
    reason = (str(cause).strip() or type(cause).__name__).splitlines()[0]
    return ConfigError(
        f"cannot be used ({reason})",
        where=f"--storage {place.shown}",
        expected="a database or file of a study",
    )


class FileLock:
    """A lock between processes that ends with its holder, however it ends.

    Optuna's own locks are files that a killed process leaves behind.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     lock = FileLock(f"{folder}/lock")
    ...     lock.acquire(), lock.release()
    (True, None)
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._files: list[int] = []

    def acquire(self) -> bool:
        """Wait for the lock and take it."""
        number = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _flock(number)
        except BaseException:
            os.close(number)
            raise
        self._files.append(number)
        return True

    def release(self) -> None:
        """Let go of it."""
        os.close(self._files.pop())


def _flock(number: int) -> None:
    try:
        import fcntl
    except ImportError:  # Windows
        import msvcrt

        while True:
            with contextlib.suppress(OSError):
                msvcrt.locking(number, msvcrt.LK_LOCK, 1)  # type: ignore[attr-defined]
                return
    fcntl.flock(number, fcntl.LOCK_EX)
