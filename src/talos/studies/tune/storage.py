"""Where trials are stored, and which of them count.

Storage is a journal file (the default), SQLite, or PostgreSQL for workers on several machines. A journal gets one line
for each change, appended under a file lock that the kernel releases when its process dies, so a killed worker neither
damages the file nor blocks the others; Optuna's own locks are files that a killed process leaves behind. SQLite cannot
lock a row, so changes of a trial's state take a file lock there, too. An unreachable server is reported before
anything else happens.

A trial whose worker died is run again. The trials of a study therefore form *chains* of attempts: a trial without
`retry_of` starts a chain, and the first trial that names another one in `retry_of` continues it. Only the last attempt
of a chain counts, so however workers die and whoever notices it, no trial is lost or counted twice.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit, urlunsplit

from filelock import FileLock

from talos.errors import ConfigError, MissingExtraError, TalosError

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial

__all__ = [
    "RETRIES",
    "StorageAddress",
    "TrialCounts",
    "TrialStore",
    "check_reachable",
    "count_trials",
    "import_optuna",
    "open_store",
    "parse_storage",
    "quiet",
]

JOURNAL = "study.journal"
RETRIES = 3  # how often a trial whose worker died is run again
_OPEN_ATTEMPTS = (
    5  # opening fails for the slower of two machines that create the tables of a new database at once
)
_LOCK_POLL = 0.01  # seconds between attempts to take a file lock


def import_optuna() -> Any:
    """Optuna, or an error that names the extra to install."""
    try:
        import optuna
    except ImportError:
        raise MissingExtraError("tuning", extra="tune") from None
    return optuna


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hide Optuna's log lines and its warnings about experimental features."""
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
class StorageAddress:
    """Where trials are stored: a file name, or the URL of a server, which may contain a password."""

    kind: Literal["journal", "sqlite", "postgresql"]
    url: str  # of a server; for files, their name

    @property
    def shown(self) -> str:
        """The address without a password, for messages and files."""
        if self.kind != "postgresql":
            return self.url if self.kind == "journal" else f"sqlite:///{self.url}"
        parts = urlsplit(self.url)
        user, at, host = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(netloc=f"{user.partition(':')[0]}{at}{host}"))


def parse_storage(text: str | None, folder: Path) -> StorageAddress:
    """Read a file name, `sqlite:///FILE` or `postgresql://…`; None is the journal in the folder.

    >>> parse_storage(None, Path("out")).url
    'out/study.journal'
    >>> parse_storage("postgresql://ann:secret@db.example/tune", Path("out")).shown
    'postgresql://ann@db.example/tune'
    >>> parse_storage("mysql://db/tune", Path("out"))
    Traceback (most recent call last):
    talos.errors.ConfigError: storage: 'mysql://db/tune'; expected a file, sqlite:///FILE or postgresql://USER@HOST/DATABASE
    """
    if text is None:
        return StorageAddress(kind="journal", url=str(folder / JOURNAL))
    scheme, colon, rest = text.partition("://")
    if not colon and text:
        return StorageAddress(kind="journal", url=text)
    if scheme == "sqlite" and rest.startswith("/") and len(rest) > 1:
        return StorageAddress(kind="sqlite", url=rest[1:])
    if scheme in ("postgresql", "postgres") and rest:
        return StorageAddress(kind="postgresql", url=f"postgresql://{rest}")
    expected = "a file, sqlite:///FILE or postgresql://USER@HOST/DATABASE"
    raise ConfigError(f"{text!r}" if text else "is empty", where="storage", expected=expected)


def check_reachable(address: StorageAddress) -> None:
    """Check within about a second that the storage can be written to or its server answers."""
    if address.kind != "postgresql":
        parent = Path(address.url).resolve().parent
        if Path(address.url).is_dir():
            raise ConfigError(f"{address.shown} is a folder", where="storage", expected="a file")
        while not parent.exists():
            parent = parent.parent
        if not parent.is_dir() or not os.access(parent, os.W_OK):
            raise ConfigError(
                f"{address.shown} cannot be written to",
                where="storage",
                expected="a file in a writable folder",
            )
        return
    try:
        parts = urlsplit(address.url)
        host, port = parts.hostname, parts.port or 5432
    except ValueError as error:
        raise ConfigError(
            f"{address.shown}: {error}", where="storage", expected="postgresql://USER@HOST/DATABASE"
        ) from None
    try:
        import psycopg  # noqa: F401  # only to see that it is installed
    except ImportError:
        raise MissingExtraError("tuning with PostgreSQL", extra="postgres") from None
    if host is None:  # a Unix socket, or a host from the environment
        return
    try:
        socket.create_connection((host, port), timeout=1.0).close()
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(
            f"{address.shown}: cannot be reached ({reason})",
            where="storage",
            expected="a server that answers",
        ) from None


@dataclass(frozen=True, kw_only=True)
class TrialStore:
    """An opened study: Optuna's storage and study, and for SQLite the lock under which states change."""

    address: StorageAddress
    storage: Any
    study: optuna.Study
    lock: FileLock | None

    def exclusive(self) -> contextlib.AbstractContextManager[object]:
        """A block in which no other process changes a trial's state; journal and server need no lock for that."""
        return contextlib.nullcontext() if self.lock is None else self.lock

    def id_of(self, number: int) -> int:
        """The id that the storage has for the trial of this number."""
        study = self.storage.get_study_id_from_name(self.study.study_name)
        return int(self.storage.get_trial_id_from_study_id_trial_number(study, number))


def open_store(address: StorageAddress, name: str) -> TrialStore:
    """Open the study of this name, or create it."""
    optuna = import_optuna()
    lock = None
    if address.kind != "postgresql":
        Path(address.url).parent.mkdir(parents=True, exist_ok=True)
    if address.kind == "sqlite":
        lock = _lock(address)
    for attempt in range(_OPEN_ATTEMPTS):
        try:
            storage = _storage(address, optuna)
            study = optuna.create_study(
                storage=storage, study_name=name, direction="maximize", load_if_exists=True
            )
            return TrialStore(address=address, storage=study._storage, study=study, lock=lock)
        except Exception as error:
            if attempt == _OPEN_ATTEMPTS - 1 or not _is_race(error):
                raise _input_error(error, address) from None
            time.sleep(0.2 * 2**attempt)
    raise AssertionError("unreachable")


def _storage(address: StorageAddress, optuna: Any) -> Any:
    if address.kind == "journal":
        lock = _lock(address)
        _cut_torn_line(Path(address.url), lock)
        return optuna.storages.JournalStorage(
            optuna.storages.journal.JournalFileBackend(address.url, lock_obj=lock)
        )
    from sqlalchemy.pool import NullPool

    # without a pool each change opens and closes its connection: none stays open for hours or breaks in a restart
    if address.kind == "sqlite":
        return optuna.storages.RDBStorage(
            f"sqlite:///{address.url}",
            engine_kwargs={"poolclass": NullPool, "connect_args": {"timeout": 60}},
        )
    return optuna.storages.RDBStorage(
        address.url.replace("postgresql://", "postgresql+psycopg://", 1),
        engine_kwargs={"poolclass": NullPool, "connect_args": {"connect_timeout": 5}},
    )


def _lock(address: StorageAddress) -> FileLock:
    return FileLock(f"{address.url}.lock", poll_interval=_LOCK_POLL)


def _cut_torn_line(path: Path, lock: FileLock) -> None:
    """Remove a last line that a power cut left half written; its writer never reported it as stored."""
    if not path.exists():
        return
    with lock, path.open("r+b") as file:
        content = file.read()
        complete = content.rfind(b"\n") + 1
        if complete < len(content):
            file.truncate(complete)


def _is_database_error(error: Exception) -> bool:
    return type(error).__module__.startswith(("sqlalchemy", "optuna", "alembic"))


def _is_race(error: Exception) -> bool:
    """Whether the error may be due to another process that opened the storage at the same time."""
    return any(
        type(one).__name__ in ("IntegrityError", "ProgrammingError")
        or "locked" in str(one)
        or "already exists" in str(one)
        for one in (error, error.__cause__, error.__context__)
        if one is not None
    )


def _input_error(error: Exception, address: StorageAddress) -> Exception:
    if isinstance(error, TalosError) or not (
        _is_database_error(error) or isinstance(error, OSError | ValueError)
    ):
        return error
    cause = error.__cause__ or error
    reason = (str(cause).strip() or type(cause).__name__).splitlines()[0]
    return ConfigError(
        f"{address.shown} cannot be used ({reason})",
        where="storage",
        expected="a database or file of a study",
    )


@dataclass(frozen=True, kw_only=True)
class TrialCounts:
    """The last attempt of every chain, by its state.

    Attributes:
        started: the number of chains, including those beyond the number of trials wanted.
        waiting: trials to run, in order.
        running: trials that a worker has taken.
        finished: complete or pruned trials.
        failed: trials that are not run again: they raised an error, or their workers died too often.
        lost: trials whose worker died and that have to be run again.
    """

    started: int
    waiting: tuple[FrozenTrial, ...]
    running: tuple[FrozenTrial, ...]
    finished: tuple[FrozenTrial, ...]
    failed: tuple[FrozenTrial, ...]
    lost: tuple[FrozenTrial, ...]

    @property
    def done(self) -> int:
        """The number of chains that are finished or failed."""
        return len(self.finished) + len(self.failed)

    @property
    def open(self) -> int:
        """The number of chains that are neither."""
        return len(self.waiting) + len(self.running) + len(self.lost)


def count_trials(trials: Sequence[FrozenTrial], wanted: int | None = None) -> TrialCounts:
    """Sort the trials of a study by state; chains beyond the first `wanted` are ignored."""
    followers: dict[int, FrozenTrial] = {}
    heads = []
    for trial in sorted(trials, key=lambda trial: trial.number):
        parent = trial.user_attrs.get("retry_of")
        if parent is None:
            heads.append(trial)
        else:
            followers.setdefault(int(parent), trial)
    found: dict[str, list[Any]] = {name: [] for name in ("waiting", "running", "finished", "failed", "lost")}
    for head in heads if wanted is None else heads[:wanted]:
        last = head
        while last.number in followers:
            last = followers[last.number]
        found[_state_of(last)].append(last)
    return TrialCounts(started=len(heads), **{name: tuple(ones) for name, ones in found.items()})


def _state_of(trial: FrozenTrial) -> str:
    state = trial.state.name
    if state in ("WAITING", "RUNNING"):
        return state.lower()
    if state != "FAIL":
        return "finished"
    if "error" in trial.user_attrs:
        return "failed"
    again = bool(trial.user_attrs.get("interrupted")) or int(trial.user_attrs.get("attempt", 0)) < RETRIES
    return "lost" if again else "failed"
