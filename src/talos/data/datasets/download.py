"""Download one file: resumable, compared with its checksum, and put in place only when complete and correct.

Not by pooch, which cannot resume a partial download and takes no wheels from the package index.
"""

from __future__ import annotations

import http.client
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from email.message import Message
from pathlib import Path
from typing import Any, TypeAlias

from talos.errors import DownloadError
from talos.files import checksum_of, replace_text, sync

__all__ = ["ChecksumError", "Progress", "download"]

Progress: TypeAlias = Callable[[int, int | None], None]
"""Called with the number of bytes received and the number expected, None if the server does not say."""

_TIMEOUT = 10.0
_PIP_TIMEOUT = 300.0
_CHUNK = 1 << 18
_ATTEMPTS = 3


class ChecksumError(DownloadError):
    """A download, or a file in the cache, has another checksum than expected; the command line exits with 2."""

    exit_code = 2


def download(
    url: str,
    target: Path,
    *,
    checksum: str | None = None,
    progress: Progress | None = None,
    timeout: float = _TIMEOUT,
) -> None:
    """Download `url` to `target`, or raise an error and leave `target` as it was.

    The partial download is kept in `target.part`, and an interrupted download is resumed from it. What it came from is
    in `target.part.json`: the address, and the version by which the server knows the file (ETag or date). The rest of
    another version is never appended: the server is asked for the rest of that one only (`If-Range`).

    Args:
        url: http(s), or `pip:NAME==VERSION` for a wheel.
        target: the file to write; its folder must exist.
        checksum: `sha256:…` or `md5:…` that the file must have.
        progress: called after each piece.
        timeout: seconds to wait for an answer of the server.

    Raises:
        ChecksumError: the complete file has another checksum; it is deleted.
        DownloadError: no connection, no such file, or the connection broke several times.
    """
    part = target.with_name(target.name + ".part")
    if url.startswith("pip:"):
        _from_package_index(url.removeprefix("pip:"), part)
    else:
        resumed = part.exists()
        _keep_if_resumable(url, part, checked=checksum is not None)
        _from_server(url, part, progress, timeout)
        if resumed and checksum is not None and checksum_of(part, checksum.partition(":")[0]) != checksum:
            # the partial download of an earlier run may belong to another version of the file
            _discard(part)
            _from_server(url, part, progress, timeout)
    if checksum is not None and (actual := checksum_of(part, checksum.partition(":")[0])) != checksum:
        _discard(part)
        raise ChecksumError(f"{url}: checksum {actual}, expected {checksum}")
    sync(part)
    part.replace(target)
    _discard(part)


def _from_server(url: str, part: Path, progress: Progress | None, timeout: float) -> None:
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            if _one_request(url, part, progress, timeout):
                return
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 416 and part.exists():  # the partial download is longer than the file
                _discard(part)
                continue
            raise DownloadError(f"{url}: the server says {error.code} {error.reason}") from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            # without a single byte received another attempt would only wait as long again
            if attempt == _ATTEMPTS or not part.exists():
                raise DownloadError(f"{url}: {reason or type(error).__name__}") from error
    raise DownloadError(f"{url}: the connection broke {_ATTEMPTS} times; run again to resume the download")


def _one_request(url: str, part: Path, progress: Progress | None, timeout: float) -> bool:
    """Request the missing bytes; returns whether the file is complete."""
    have = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "talos-rec", "Accept-Encoding": "identity"}
    known = _origin(part).get("version") if have else None
    if have:
        headers["Range"] = f"bytes={have}-"
        if known is not None:
            headers["If-Range"] = known
    if not url.startswith(("http://", "https://")):
        raise DownloadError(f"{url}: not an http(s) address")
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=timeout) as response:
        given = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range") or "")
        resumes = response.status == 206 and given is not None and int(given[1]) == have
        version = _version(response.headers)
        if resumes and known is not None and version not in (None, known):  # a server that ignores If-Range
            _discard(part)
            return False
        if response.status == 206 and not resumes:
            _discard(part)
            return False
        if not resumes:
            replace_text(_origin_file(part), json.dumps({"url": url, "version": version}))
        done = have if resumes else 0
        length = response.headers.get("Content-Length")
        total = done + int(length) if length is not None else None
        with part.open("ab" if resumes else "wb") as file:
            while piece := response.read(_CHUNK):
                file.write(piece)
                done += len(piece)
                if progress is not None:
                    progress(done, total)
    return total is None or done == total


def _version(headers: Message) -> str | None:
    """By what a server tells this version of a file from others: a strong ETag, or else the date of its last change."""
    tag = headers.get("ETag")
    return tag if tag is not None and not tag.startswith("W/") else headers.get("Last-Modified")


def _origin_file(part: Path) -> Path:
    return part.with_name(part.name + ".json")


def _origin(part: Path) -> dict[str, Any]:
    """Where a partial download came from, `url` and `version`; empty if that is unknown."""
    try:
        found = json.loads(_origin_file(part).read_text(encoding="utf-8"))
        known = isinstance(found, dict) and isinstance(found.get("version"), str | None)
        return found if known else {}
    except (OSError, ValueError, RecursionError):
        return {}


def _keep_if_resumable(url: str, part: Path, *, checked: bool) -> None:
    """Discard a partial download of another file, and one of which nothing would show that its rest is of another."""
    origin = _origin(part)
    other = origin.get("url", url) != url
    if part.exists() and (other or (not checked and origin.get("version") is None)):
        _discard(part)


def _discard(part: Path) -> None:
    part.unlink(missing_ok=True)
    _origin_file(part).unlink(missing_ok=True)


def _from_package_index(requirement: str, part: Path) -> None:
    """Download a wheel by pip, which is configured for the indexes and proxies of this machine."""
    if importlib.util.find_spec("pip") is None:
        raise DownloadError(f"pip:{requirement}: pip is not installed in this environment")
    with tempfile.TemporaryDirectory(dir=part.parent) as folder:
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
        try:
            done = subprocess.run(
                [*command, "--dest", folder, requirement],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_PIP_TIMEOUT,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise DownloadError(f"pip:{requirement}: {error}") from error
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or not wheels:
            reason = (done.stderr.strip().splitlines() or ["pip downloaded no wheel"])[-1]
            raise DownloadError(f"pip:{requirement}: {reason}")
        shutil.move(wheels[0], part)
