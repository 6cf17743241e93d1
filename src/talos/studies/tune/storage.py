"""Where trials are stored, and which of them count.

Storage is a journal file (the default), SQLite, or PostgreSQL for workers on several machines. A journal gets one line
for each change (`talos.studies.tune.journal`), appended under a file lock that the kernel releases when its process
dies, so a killed worker neither damages the file nor blocks the others; Optuna's own locks are files that a killed
process leaves behind. SQLite cannot lock a row, so changes of a trial's state take a file lock there, too. An
unreachable server is reported before anything else happens.

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
from urllib.parse import urlsplit

from filelock import FileLock

from talos.data.databases import DatabaseURL, without_password, without_passwords
from talos.errors import ConfigError, MissingExtraError, TalosError, first_line

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial

__all__ = [
    "StorageAddress",
    "StorageError",
    "TrialStore",
    "check_reachable",
    "count_trials",
    "open_store",
    "parse_storage",
]

RETRIES = 3  # how often a trial whose worker died is run again
# opening fails for the slower of two machines that create the tables of a new database at once
_OPEN_ATTEMPTS = 5


def import_optuna() -> Any:
    """Optuna, or an error that names the extra to install."""
    try:
        import optuna
    except ImportError:
        raise MissingExtraError("tuning", extra="tune") from None
    return optuna


class StorageError(TalosError):
    """A result could not be stored, as on a full disk; the trial is run again."""


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
        return without_password(self.url)


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
        return StorageAddress(kind="journal", url=str(folder / "study.journal"))
    scheme, colon, rest = text.partition("://")
    if not colon and text:
        return StorageAddress(kind="journal", url=text)
    if scheme == "sqlite" and rest.startswith("/") and len(rest) > 1:
        return StorageAddress(kind="sqlite", url=rest[1:])
    if scheme in ("postgresql", "postgres") and rest:
        # taken apart once, so that a password with / or @ in it is one
        return StorageAddress(kind="postgresql", url=DatabaseURL.parse(f"postgresql://{rest}").address)
    expected = "a file, sqlite:///FILE or postgresql://USER@HOST/DATABASE"
    what = repr(without_passwords(text)) if text else "is empty"
    raise ConfigError(what, where="storage", expected=expected)


def recorded_storage(text: Any, folder: Path) -> StorageAddress:
    """The storage that a study's record names, where it is a file in the study's own folder.

    A record may be a stranger's: it neither opens a server nor a file elsewhere by itself.

    >>> recorded_storage("postgresql://db.example/tune", Path("out"))
    Traceback (most recent call last):
    talos.errors.ConfigError: storage: the trials are in postgresql://db.example/tune, which a study does not open ...
    """
    if text is None:
        return parse_storage(None, folder)
    address, own = parse_storage(str(text), folder), parse_storage(None, folder)
    if address.kind == "journal" and Path(address.url).name == Path(own.url).name and Path(own.url).is_file():
        return own  # of a study that was copied or moved
    if address.kind == "postgresql" or Path(address.url).resolve().parent != folder.resolve():
        raise ConfigError(
            f"the trials are in {address.shown}, which a study does not open by itself",
            where="storage",
            expected="storage= to name it again",
        )
    return address


def check_reachable(address: StorageAddress) -> None:
    """Check within about a second that the storage can be written to or its server answers."""
    if address.kind != "postgresql":
        parent = Path(address.url).resolve().parent
        if Path(address.url).is_dir():
            raise ConfigError(f"{address.shown} is a folder", where="storage", expected="a file")
        while not parent.exists():
            parent = parent.parent
        if not parent.is_dir() or not os.access(parent, os.W_OK):
            what = f"{address.shown} cannot be written to"
            raise ConfigError(what, where="storage", expected="a file in a writable folder")
        if address.kind == "journal":
            from talos.studies.tune.journal import check_journal

            check_journal(Path(address.url))
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
        what = f"{address.shown}: cannot be reached ({reason})"
        raise ConfigError(what, where="storage", expected="a server that answers") from None


@dataclass(frozen=True, kw_only=True)
class TrialStore:
    """An opened study: Optuna's storage and study, and the lock under which a trial's state changes."""

    address: StorageAddress
    storage: Any
    study: optuna.Study
    lock: contextlib.AbstractContextManager[object]  # a real one for SQLite only

    def id_of(self, number: int) -> int:
        """The id that the storage has for the trial of this number."""
        study = self.storage.get_study_id_from_name(self.study.study_name)
        return int(self.storage.get_trial_id_from_study_id_trial_number(study, number))


def open_store(address: StorageAddress, name: str) -> TrialStore:
    """Open the study of this name, or create it."""
    optuna = import_optuna()
    lock = _lock(address) if address.kind == "sqlite" else contextlib.nullcontext()
    attempt = 0
    while True:
        try:
            if address.kind != "postgresql":
                Path(address.url).parent.mkdir(parents=True, exist_ok=True)
            study = optuna.create_study(
                storage=_storage(address, optuna), study_name=name, direction="maximize", load_if_exists=True
            )
            return TrialStore(address=address, storage=study._storage, study=study, lock=lock)
        except Exception as error:
            attempt += 1
            if attempt == _OPEN_ATTEMPTS or not _is_race(error):
                raise _input_error(error, address) from None
            time.sleep(0.1 * 2**attempt)


def _storage(address: StorageAddress, optuna: Any) -> Any:
    if address.kind == "journal":
        from talos.studies.tune.journal import SealedJournal

        return optuna.storages.JournalStorage(SealedJournal(Path(address.url), _lock(address)))
    from sqlalchemy.pool import NullPool

    url, limits = f"sqlite:///{address.url}", {"timeout": 60}
    if address.kind == "postgresql":
        url, limits = address.url.replace("postgresql:", "postgresql+psycopg:", 1), {"connect_timeout": 5}
    # without a pool each change opens and closes its connection: none stays open for hours or breaks in a restart
    return optuna.storages.RDBStorage(url, engine_kwargs={"poolclass": NullPool, "connect_args": limits})


def _lock(address: StorageAddress) -> FileLock:
    return FileLock(f"{address.url}.lock", poll_interval=0.01)


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
    foreign = type(error).__module__.startswith(("sqlalchemy", "optuna", "alembic"))
    # what Optuna raises for entries that do not fit together
    damaged = isinstance(
        error, OSError | ValueError | LookupError | TypeError | AttributeError | AssertionError
    )
    if isinstance(error, TalosError) or not (foreign or damaged):
        return error
    return ConfigError(
        f"{address.shown} cannot be used ({without_passwords(first_line(error.__cause__ or error))})",
        where="storage",
        expected="a database or file of a study",
    )


@dataclass(frozen=True, kw_only=True)
class TrialCounts:
    """The last attempt of every chain, by its state."""

    started: int  # the number of chains, including those beyond the number of trials wanted
    waiting: tuple[FrozenTrial, ...]  # trials to run, in order
    running: tuple[FrozenTrial, ...]  # trials that a worker has taken
    finished: tuple[FrozenTrial, ...]  # complete or pruned trials
    # trials that are not run again: they raised an error, or their workers died too often
    failed: tuple[FrozenTrial, ...]
    lost: tuple[FrozenTrial, ...]  # trials whose worker died and that have to be run again

    @property
    def ended(self) -> list[FrozenTrial]:
        """The trials that are finished or failed, by number."""
        return sorted((*self.finished, *self.failed), key=lambda trial: trial.number)

    @property
    def open(self) -> int:
        """The number of chains that have not ended."""
        return len(self.waiting) + len(self.running) + len(self.lost)


def chains(trials: Sequence[FrozenTrial]) -> list[list[FrozenTrial]]:
    """The attempts of every chain, in the order in which the chains were started."""
    followers: dict[int, FrozenTrial] = {}
    found = []
    for trial in sorted(trials, key=lambda trial: trial.number):
        parent = trial.user_attrs.get("retry_of")
        if parent is None:
            found.append([trial])
        else:
            followers.setdefault(int(parent), trial)
    for chain in found:
        while chain[-1].number in followers:
            chain.append(followers[chain[-1].number])
    return found


def count_trials(trials: Sequence[FrozenTrial], wanted: int | None = None) -> TrialCounts:
    """Sort the trials of a study by state; chains beyond the first `wanted` are ignored."""
    found: dict[str, list[Any]] = {name: [] for name in ("waiting", "running", "finished", "failed", "lost")}
    started = chains(trials)
    for chain in started[:wanted]:
        found[_state_of(chain[-1])].append(chain[-1])
    return TrialCounts(started=len(started), **{name: tuple(ones) for name, ones in found.items()})


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
