"""Download one file by pooch, which compares it with its checksum and puts it in place only when it is complete.

`pip:NAME==VERSION` is a wheel from the package index, which pooch cannot fetch by itself.
"""

from __future__ import annotations

import importlib.util
import logging
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from talos.errors import DownloadError

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


class _Bar:
    """What pooch takes for a progress bar."""

    total = 0  # as the server says; 0 if it does not

    def __init__(self, show: Progress | None) -> None:
        self.show, self.done = show, 0

    def update(self, size: int) -> None:
        self.done = min(
            self.done + size, self.total or self.done + size
        )  # pooch counts the last piece as a whole one
        if self.show is not None:
            self.show(self.done, self.total or None)

    def reset(self) -> None:
        """Called before the last `update`, which is of the total."""

    close = reset


def download(
    url: str, target: Path, *, checksum: str | None = None, progress: Progress | None = None
) -> None:
    """Download `url` to `target`, or raise an error and leave nothing behind.

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
    import pooch

    fetch = _from_package_index if url.startswith("pip:") else partial(_from_server, progress=progress)
    logger = pooch.get_logger()
    level = logger.level
    logger.setLevel(logging.WARNING)  # it would tell on stderr what `notify` of `talos.datasets.fetch` tells
    try:
        pooch.retrieve(url, checksum, fname=target.name, path=target.parent, downloader=fetch)
    except ValueError as error:  # of the checksum alone: the downloaders raise no other
        raise ChecksumError(f"{url}: {error}") from None
    finally:
        logger.setLevel(level)


def _from_server(url: str, file: str, pooch: object, *, progress: Progress | None) -> None:
    import requests
    from pooch import HTTPDownloader

    bar, outer = _Bar(progress), sys.exc_info()[1]
    how: dict[str, Any] = {"timeout": _TIMEOUT, "headers": _HEADERS}
    try:
        with ExitStack() as opened:

            def close_at_the_end(answer: requests.Response, **_: object) -> None:  # pooch does not close it
                opened.callback(answer.close)

            how["hooks"] = {"response": close_at_the_end}
            HTTPDownloader(progressbar=bar, chunk_size=_CHUNK, **how)(url, file, pooch)
    except (requests.RequestException, ValueError) as error:
        reason: BaseException = error  # the last one: requests wraps it in others that repeat the address
        while reason.__context__ not in (None, outer):
            reason = reason.__context__
        raise DownloadError(f"{url}: {reason}") from error
    if bar.total and bar.total != (size := Path(file).stat().st_size):  # urllib3 before 2 does not notice
        raise DownloadError(f"{url}: the connection broke after {size:,} of {bar.total:,} bytes")


def _from_package_index(url: str, file: str, pooch: object) -> None:
    """Download a wheel by pip, which is configured for the indexes and proxies of this machine."""
    if importlib.util.find_spec("pip") is None:
        raise DownloadError(f"{url}: pip is not installed in this environment")
    with tempfile.TemporaryDirectory(dir=Path(file).parent) as folder:
        # -P: without it a folder `pip` in the current folder would be run
        command = [
            sys.executable,
            "-P",
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--only-binary=:all:",
        ]
        command += ["--disable-pip-version-check", "--no-input", "--timeout", "10", "--retries", "1"]
        command += ["--dest", folder, url.removeprefix("pip:")]
        how: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
        try:
            done = subprocess.run(command, **how, timeout=_PIP_TIMEOUT, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise DownloadError(f"{url}: {error}") from error
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or not wheels:
            reason = (done.stderr.strip().splitlines() or ["pip downloaded no wheel"])[-1]
            raise DownloadError(f"{url}: {reason}")
        shutil.move(wheels[0], file)
