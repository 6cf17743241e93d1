"""The cache of named datasets: download what is missing, check what is there, read it."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import platformdirs
import polars as pl

from talos.checks import require
from talos.data.catalogue import Counts, DatasetInfo, Download, info
from talos.data.interactions import Interactions
from talos.data.options import SourceOptions
from talos.data.source import Source, read_parts
from talos.errors import ConfigError, DataError, DownloadError
from talos.files import checksum_of, expanded, locked, remove_leftovers, replace_folder

__all__ = ["ChecksumError", "Fetched", "cache_folder", "fetch", "is_cached", "load"]

_RECORD = "source.json"
_LARGEST_MEMBER = 1 << 30
_CHUNK = 1 << 18
_TIMEOUT = 10.0
_HEADERS = {"User-Agent": "talos-rec", "Accept-Encoding": "identity"}
_log = logging.getLogger("talos.datasets")


class ChecksumError(DownloadError):
    """A download, or a file in the cache, has another checksum than expected; the command line exits with 2."""

    exit_code = 2


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """A dataset in the cache.

    Attributes:
        info: which dataset.
        files: its files in the cache.
        download: the source they came from.
        notes: remarks for people on the download.
    """

    info: DatasetInfo
    files: tuple[Path, ...]
    download: Download
    notes: tuple[str, ...]


def cache_folder() -> Path:
    """The folder that datasets are kept in: `TALOS_CACHE` if it is set, else the platform's folder for caches.

    >>> import os
    >>> before = os.environ.get("TALOS_CACHE"); os.environ["TALOS_CACHE"] = "somewhere"
    >>> str(cache_folder())
    'somewhere'
    >>> _ = os.environ.pop("TALOS_CACHE") if before is None else os.environ.update(TALOS_CACHE=before)
    """
    if chosen := os.environ.get("TALOS_CACHE"):
        return expanded(chosen)
    try:
        return platformdirs.user_cache_path("talos", appauthor=False, opinion=False)
    except RuntimeError:  # as for the user of a container
        what = "is not set, and there is no home folder to keep datasets in"
        raise ConfigError(what, where="TALOS_CACHE", expected="a folder") from None


def is_cached(name: str | DatasetInfo, *, cache: str | os.PathLike[str] | None = None) -> bool:
    """Whether a dataset is in the cache, so that `load` needs no network; checksums are not compared.

    >>> is_cached("gowalla", cache="no/such/folder")
    False
    """
    try:
        one, folder = _place(name, cache)
    except ConfigError:  # there is nowhere to keep one
        return False
    return _read_record(one, folder) is not None


def fetch(
    name: str | DatasetInfo,
    *,
    cache: str | os.PathLike[str] | None = None,
    notify: Callable[[str], None] | None = None,
) -> Fetched:
    """Download a dataset unless it is in the cache, and compare its files with their checksums.

    The sources are tried in order until one works. A download that breaks off or has a wrong checksum is deleted. To
    download a dataset again, delete its folder.

    Args:
        name: a name from `available()`, or a dataset of your own.
        cache: the folder to keep datasets in, instead of `cache_folder()`.
        notify: called with one line at a time: the licence, on the first download, and which source worked. If None,
            the lines go to the logger `talos.datasets`.

    Raises:
        ArgumentError: there is no such dataset.
        DownloadError: no source worked (with the reason for each), or a file in the cache was changed.

    >>> fetch("movielens-2m")
    Traceback (most recent call last):
    talos.errors.ArgumentError: name: no dataset 'movielens-2m'; ...
    """
    (one, folder), tell = _place(name, cache), notify or _log.info
    record = _read_record(one, folder)
    if record is None:
        tell(f"{one.title}. {one.licence}")
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            lock = folder.with_name(f".{folder.name}.lock")
            with locked(lock, guards=folder, purpose="downloading", wait=tell):
                remove_leftovers(folder)
                # another process may have finished in between
                record = _read_record(one, folder) or _download(one, folder, tell)
        except OSError as error:
            raise DownloadError(
                f"{one.name}: cannot write to {folder} ({error.strerror or error})"
            ) from error
    source = next(source for source in one.downloads if source.url == record["url"])
    files = {folder / name: checksum for name, checksum in record["files"].items()}
    for path, expected in files.items():
        actual = checksum_of(path) if path.is_file() else "no such file"
        if actual != expected:
            raise ChecksumError(
                f"{path} was changed ({actual}, expected {expected}): delete {folder} to download it again"
            )
    return Fetched(info=one, files=tuple(files), download=source, notes=tuple(record.get("notes", ())))


def load(
    name: str | DatasetInfo,
    *,
    cache: str | os.PathLike[str] | None = None,
    notify: Callable[[str], None] | None = None,
) -> Interactions:
    """The interactions of a named dataset as published, downloaded if need be; the arguments are those of `fetch`.

    The paper's clean-up is not part of it: see `min_rating` and `k_core` of `info(name)`. `provenance`
    names the source. MovieLens comes with titles.

    Raises:
        DownloadError: it could not be downloaded.
        DataError: the files cannot be read, or have other numbers of users, items or interactions than published.

    >>> load("movielens-2m")
    Traceback (most recent call last):
    talos.errors.ArgumentError: name: no dataset 'movielens-2m'; ...
    """
    fetched = fetch(name, cache=cache, notify=notify)
    data = _LAYOUTS[fetched.download.layout](fetched.files)
    counts = Counts(data.num_users, data.num_items, len(data))
    wanted = fetched.download.counts or counts
    require(
        counts == wanted,
        f"{counts.users:,} users, {counts.items:,} items, {counts.interactions:,} interactions",
        where=f"{fetched.info.name} from {fetched.download.url}",
        expected=f"{wanted.users:,}, {wanted.items:,} and {wanted.interactions:,}",
        error=DataError,
    )
    notes = (f"source: {fetched.download.url}", *fetched.notes, *data.provenance.notes)
    return replace(data, provenance=replace(data.provenance, source=fetched.info.name, notes=notes))


def _place(name: str | DatasetInfo, cache: str | os.PathLike[str] | None) -> tuple[DatasetInfo, Path]:
    """A dataset, and its folder in the cache."""
    one = info(name) if isinstance(name, str) else name
    return one, (cache_folder() if cache is None else expanded(cache)) / one.name


def _read_record(one: DatasetInfo, folder: Path) -> dict[str, Any] | None:
    """What was downloaded; None if nothing was from a source of the dataset, or if the record is damaged."""
    try:
        record = json.loads((folder / _RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    urls = [source.url for source in one.downloads]
    whole = isinstance(record, dict) and isinstance(record.get("files"), dict) and record.get("url") in urls
    return record if whole else None


# ---------------------------------------------------------------------- downloading


def _download(one: DatasetInfo, folder: Path, tell: Callable[[str], object]) -> dict[str, Any]:
    """Fill the folder from the first source that works; returns the record of its files."""
    failures: list[DownloadError] = []
    for source in one.downloads:
        try:
            with replace_folder(folder) as fresh:
                record = _fill(fresh, source, [f"not available: {failure}" for failure in failures])
            tell(f"{one.name}: downloaded from {source.url}")
            return record
        except DownloadError as error:
            failures.append(error)
    reasons = "; ".join(map(str, failures)) or "it has no source"
    wrong = any(isinstance(failure, ChecksumError) for failure in failures)
    raise (ChecksumError if wrong else DownloadError)(f"{one.name} could not be fetched: {reasons}")


def _fill(folder: Path, source: Download, notes: list[str]) -> dict[str, Any]:
    """Download the files of a source into a new folder, and write a record of them; returns the record."""
    download = _from_package_index if source.url.startswith("pip:") else _from_server
    target = download(source.url, folder)
    if source.checksum is None:
        notes.append("no checksum is published for this source: that of the download was recorded")
    else:
        found = checksum_of(target, source.checksum.partition(":")[0])
        if found != source.checksum:
            raise ChecksumError(f"{source.url}: wrong checksum, expected {source.checksum} but got {found}")
    files = [target]
    if source.files:
        files = _unpack(target, source.files)
        target.unlink()
    record = {
        "url": source.url,
        "files": {file.name: checksum_of(file) for file in files},
        "notes": notes,
    }
    (folder / _RECORD).write_text(json.dumps(record, indent=1), encoding="utf-8")
    return record


def _from_server(url: str, folder: Path) -> Path:
    import requests

    target, done, total, outer = folder / PurePosixPath(url).name, 0, None, sys.exc_info()[1]
    try:
        with (
            requests.get(url, stream=True, timeout=_TIMEOUT, headers=_HEADERS) as answer,
            target.open("wb") as file,
        ):
            answer.raise_for_status()
            total = int(answer.headers.get("Content-Length", 0)) or None
            for piece in answer.iter_content(_CHUNK):
                done += file.write(piece)
    except requests.RequestException as error:
        reason: BaseException = error  # the last one: requests wraps it in others that repeat the address
        while reason.__context__ not in (None, outer):
            reason = reason.__context__
        raise DownloadError(f"{url}: {reason}") from error
    if total not in (None, done):  # urllib3 before 2 does not notice
        raise DownloadError(f"{url}: the connection broke after {done:,} of {total:,} bytes")
    return target


def _from_package_index(url: str, folder: Path) -> Path:
    """Download the wheel of `pip:NAME==VERSION` by pip, which is configured for this machine's indexes and proxies."""
    # -P: without it a folder `pip` in the current folder would be run
    command = [
        *(sys.executable, "-P", "-m", "pip", "download", "--dest", str(folder), url.removeprefix("pip:")),
        *("--quiet", "--no-deps", "--only-binary=:all:", "--timeout", "10", "--retries", "1"),
        *("--disable-pip-version-check", "--no-input"),
    ]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        reason = (done.stderr.strip().splitlines() or ["pip downloaded no wheel"])[-1]
        raise DownloadError(f"{url}: {reason}")
    return wheels[0]


def _unpack(archive: Path, members: tuple[str, ...]) -> list[Path]:
    """Extract files of a zip archive to its folder, without the folders within the archive."""
    targets = [archive.with_name(PurePosixPath(member).name) for member in members]
    try:
        with zipfile.ZipFile(archive) as packed:
            for member, target in zip(members, targets, strict=True):
                if packed.getinfo(member).file_size > _LARGEST_MEMBER:
                    raise DownloadError(f"{archive.name}: {member} is larger than {_LARGEST_MEMBER:,} bytes")
                with packed.open(member) as source, target.open("wb") as file:
                    shutil.copyfileobj(source, file)
    except (zipfile.BadZipFile, KeyError, EOFError, NotImplementedError, RuntimeError) as error:
        raise DownloadError(f"{archive.name}: cannot be unpacked ({error})") from error
    return targets


# ---------------------------------------------------------------------- reading


def _read(file: Path, **options: Any) -> Interactions:
    return read_parts(Source.of(file), SourceOptions.of(**options), whole=True)["all"]


def _movielens(
    files: tuple[Path, ...], *, kind: str, separator: str, encoding: str = "latin-1", title: str = "{1}"
) -> Interactions:
    """Ratings, and films as lines `id SEPARATOR title SEPARATOR …`; a line of names has no number in front."""
    rows = [line.split(separator) for line in files[1].read_text(encoding=encoding).splitlines()]
    titles = {int(row[0]): title.format(*row) for row in rows if len(row) > 2 and row[0].isdigit()}
    data = _read(files[0], format=kind)
    ordered = [titles.get(item) for item in data.item_ids.ids.to_list()]
    return data.with_titles(pl.Series("title", ordered, dtype=pl.String).str.strip_suffix(" ()"))


_LAYOUTS: Mapping[str, Callable[[tuple[Path, ...]], Interactions]] = {
    "table": lambda files: _read(files[0]),
    "movielens-100k": partial(_movielens, kind="movielens", separator="|"),
    "movielens-1m": partial(_movielens, kind="movielens", separator="::"),
    # the year stands in a column of its own
    "movielens-recbole": partial(
        _movielens, kind="inter", separator="\t", encoding="utf-8", title="{1} ({2})"
    ),
}
