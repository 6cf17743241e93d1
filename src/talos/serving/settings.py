"""What the service serves, where it listens, and its limits."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from talos.checks import require
from talos.errors import ConfigError, Option

__all__ = ["Keys", "Settings", "is_loopback"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of the service.

    Attributes:
        runs: run directories; the first is the default model. A model's name is the name of its directory.
        host: the address to listen on; beyond loopback, keys or `without_keys` are required.
        port: 0 for a free one.
        feedback: the log of events, a SQLite file; None refuses feedback.
        watch: reload a run when its `model.json` changes.
        read_key_file: a file with the key for reading; None lets everybody read.
        admin_key_file: a file with the key for feedback and reloading, which may also read.
        without_keys: listen on any address without keys.
        workers: processes.
        access_log: one JSON line on stderr for each request.
        max_body: largest body of a request in bytes.
        max_k: largest length of a list.
        max_users: most users of one call.
        max_items: most items in a history, in candidates or in exclude.
        max_explained: most users of one call with reasons.
        max_concurrency: requests at a time in a worker; others get 503 at once.
        max_rows: most lists that are ranked together.
        deadline: seconds until a request is given up.
        control: a folder that the workers share, made by the server; None with a single worker.
    """

    runs: tuple[str, ...]
    host: str = "127.0.0.1"
    port: int = 8080
    feedback: str | None = None
    watch: bool = False
    read_key_file: str | None = None
    admin_key_file: str | None = None
    without_keys: bool = False
    workers: int = 1
    access_log: bool = False
    max_body: int = 1 << 20
    max_k: int = 1000
    max_users: int = 1000
    max_items: int = 10_000
    max_explained: int = 100
    max_concurrency: int = 64
    max_rows: int = 1024
    deadline: float = 10.0
    control: str | None = None

    def __post_init__(self) -> None:
        names = [Path(run).resolve().name for run in self.runs]
        twice = next((name for name in names if names.count(name) > 1), None)
        whole = ("workers", "max_body", "max_k", "max_users", "max_items", "max_concurrency", "max_rows")
        rules = [
            (bool(names), "RUN", "no run", "a run directory"),
            (twice is None, "RUN", f"two runs are called {twice!r}", "different names"),
            *((getattr(self, name) >= 1, name, f"{getattr(self, name)}", "1 or more") for name in whole),
            (0 < self.deadline < float("inf"), "deadline", f"{self.deadline}", "seconds above 0"),
            (0 <= self.port < 65536, "port", f"{self.port}", "0 to 65535"),
        ]
        for held, where, what, expected in rules:
            require(held, what, where=where, expected=expected, error=ConfigError)
        require(
            not self.needs_no_key or self.without_keys or is_loopback(self.host),
            f"{self.host!r} without keys",
            where="host",
            expected="a loopback address such as 127.0.0.1, or keys",
            option=[
                Option("read_key_file", "FILE", "sets keys for reading"),
                Option("admin_key_file", "FILE", "those for the rest"),
                Option("without_keys", True, "allows it all the same"),
            ],
            error=ConfigError,
        )

    @property
    def needs_no_key(self) -> bool:
        """Whether every process that can connect is trusted."""
        return not (self.read_key_file or self.admin_key_file)


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to an address.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Keys:
    """The keys of the service, of which only digests are kept.

    >>> keys = Keys(read=b"r", admin=b"a")
    >>> [keys.allow(key, admin=True) for key in (b"r", b"a", None)]
    [False, True, False]
    >>> [keys.allow(key, admin=False) for key in (b"r", b"a", None)]
    [True, True, False]
    """

    def __init__(self, *, read: bytes | None = None, admin: bytes | None = None) -> None:
        self._read, self._admin = (key and hashlib.sha256(key).digest() for key in (read, admin))

    @classmethod
    def load(cls, settings: Settings) -> Keys:
        """Read the keys from their files; white space around a key does not count."""
        files = {"read": settings.read_key_file, "admin": settings.admin_key_file}
        return cls(**{name: _read_key(path, f"{name}_key_file") for name, path in files.items() if path})

    def allow(self, given: bytes | None, *, admin: bool) -> bool:
        """Whether a request with this key may read, or write if `admin`; compared in constant time.

        Without an admin key, writing needs the read key; without a read key, everybody may read.
        """
        wanted = self._admin or self._read if admin else self._read
        if wanted is None:
            return True
        digest = hashlib.sha256(given or b"").digest()
        # all comparisons are made, so that the time says nothing about which key was nearly right
        right = [hmac.compare_digest(digest, key) for key in (wanted, self._admin or wanted)]
        return given is not None and any(right)


def _read_key(path: str, where: str) -> bytes:
    try:
        key = Path(path).read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror})", where=where) from None
    require(
        len(key) >= 8,
        f"{path} holds {len(key)} bytes",
        where=where,
        expected="a key of 8 bytes or more",
        error=ConfigError,
    )
    return key
