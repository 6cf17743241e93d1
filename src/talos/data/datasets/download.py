"""Download one file, and compare it with its checksum.

`pip:NAME==VERSION` is a wheel from the package index.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from talos.errors import DownloadError
from talos.files import checksum_of

__all__ = ["ChecksumError", "Progress", "download"]

Progress: TypeAlias = Callable[[int, int | None], None]
"""Called with the number of bytes received and the number expected, None if the server does not say."""

_TIMEOUT = 10.0
_PIP_TIMEOUT = 300.0
_CHUNK = 1 << 18
_HEADERS = {"User-Agent": "talos-rec", "Accept-Encoding": "identity"}


class ChecksumError(DownloadError):
    """A download, or a file in the cache, has another checksum than expected; the command line exits with 2."""

    exit_code = 2


def download(url: str, target: Path, *, checksum: str | None = None, progress: Progress | None = None) -> str:
    """Download `url` to `target` and return its checksum, or raise an error and leave nothing behind.

    Args:
        url: http(s), or `pip:NAME==VERSION` for a wheel.
        target: the file to write, which must not exist; its folder must.
        checksum: `sha256:…` or `md5:…` that the file must have.
        progress: called after each piece.

    Raises:
        ChecksumError: the complete file has another checksum.
        DownloadError: no connection, no such file, or the connection broke.
        OSError: the file cannot be written.
    """
    try:
        if url.startswith("pip:"):
            _from_package_index(url, target)
        else:
            _from_server(url, target, progress)
        found = checksum_of(target, checksum.partition(":")[0] if checksum else "sha256")
        if checksum not in (None, found):
            raise ChecksumError(f"{url}: wrong checksum, expected {checksum} but got {found}")
    except BaseException:
        target.unlink(missing_ok=True)
        raise
    return found


def _from_server(url: str, target: Path, progress: Progress | None) -> None:
    import requests

    done, total, outer = 0, None, sys.exc_info()[1]
    try:
        with (
            requests.get(url, stream=True, timeout=_TIMEOUT, headers=_HEADERS) as answer,
            target.open("wb") as file,
        ):
            answer.raise_for_status()
            total = int(answer.headers.get("Content-Length", 0)) or None
            for piece in answer.iter_content(_CHUNK):
                done += file.write(piece)
                if progress is not None:
                    progress(done, total)
    except requests.RequestException as error:
        reason: BaseException = error  # the last one: requests wraps it in others that repeat the address
        while reason.__context__ not in (None, outer):
            reason = reason.__context__
        raise DownloadError(f"{url}: {reason}") from error
    if total not in (None, done):  # urllib3 before 2 does not notice
        raise DownloadError(f"{url}: the connection broke after {done:,} of {total:,} bytes")


def _from_package_index(url: str, target: Path) -> None:
    """Download a wheel by pip, which is configured for the indexes and proxies of this machine."""
    if importlib.util.find_spec("pip") is None:
        raise DownloadError(f"{url}: pip is not installed in this environment")
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        # -P: without it a folder `pip` in the current folder would be run
        command = [
            *(sys.executable, "-P", "-m", "pip", "download", "--dest", folder, url.removeprefix("pip:")),
            *("--quiet", "--no-deps", "--only-binary=:all:", "--timeout", "10", "--retries", "1"),
            *("--disable-pip-version-check", "--no-input"),
        ]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_PIP_TIMEOUT,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise DownloadError(f"{url}: {error}") from error
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or not wheels:
            reason = (done.stderr.strip().splitlines() or ["pip downloaded no wheel"])[-1]
            raise DownloadError(f"{url}: {reason}")
        wheels[0].rename(target)
