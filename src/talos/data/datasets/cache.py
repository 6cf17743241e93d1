"""The cache of named datasets: download what is missing, check what is there, read it."""

from __future__ import annotations

import json
import logging
import os
import shutil
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import platformdirs
import polars as pl

from talos.data.catalogue import Counts, DatasetInfo, Download, info
from talos.data.datasets.download import ChecksumError, Progress, download
from talos.data.encode import read_whole
from talos.data.interactions import Interactions
from talos.data.options import SourceOptions
from talos.data.source import Source
from talos.errors import ConfigError, DataError, DownloadError
from talos.files import checksum_of, expanded, locked, remove_leftovers, replace_folder

__all__ = ["LOCAL", "Fetched", "cache_folder", "fetch", "is_cached", "load", "local_copy"]

LOCAL = "TALOS_DATA"
"""The environment variable that names a user's own folder of datasets, one subfolder each."""

_RECORD = "source.json"
_LARGEST_MEMBER = 1 << 30
_log = logging.getLogger("talos.datasets")


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """A dataset in the cache.

    Attributes:
        info: which dataset.
        folder: its folder in the cache.
        files: its files.
        download: the source they came from.
        notes: remarks for people.
    """

    info: DatasetInfo
    folder: Path
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
        return _read_record(_folder(name, cache)) is not None
    except ConfigError:  # there is nowhere to keep one
        return False


def fetch(
    name: str | DatasetInfo,
    *,
    cache: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    notify: Callable[[str], None] | None = None,
    force: bool = False,
) -> Fetched:
    """Download a dataset unless it is in the cache, and compare its files with their checksums.

    The sources are tried in order until one works. A download that breaks off or has a wrong checksum is deleted. What
    is in the cache stays until a complete and correct download replaces it.

    Args:
        name: a name from `available()`, or a dataset of your own.
        cache: the folder to keep datasets in, instead of `cache_folder()`.
        progress: called with the number of bytes received and the number expected (None if unknown).
        notify: called with one line at a time: the licence, on the first download, and which source worked. If None,
            the lines go to the logger `talos.datasets`.
        force: download again even if the dataset is in the cache.

    Raises:
        ArgumentError: there is no such dataset.
        DownloadError: no source worked (with the reason for each), or a file in the cache was changed.

    >>> fetch("movielens-2m")
    Traceback (most recent call last):
    talos.errors.ArgumentError: name: no dataset 'movielens-2m'; ...
    """
    one = info(name) if isinstance(name, str) else name
    tell, folder = notify or _log.info, _folder(one, cache)
    record, notes = _read_record(folder), tuple[str, ...]()
    if record is None:
        tell(f"{one.title}. {one.licence}")
    if record is None or force:
        lock = folder.with_name(f".{folder.name}.lock")
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with locked(lock, guards=folder, purpose="downloading", wait=tell):
                remove_leftovers(folder)
                record = _read_record(folder)  # again: another process may have finished in between
                if record is None or force:
                    record, notes = _download(one, folder, record or {}, progress, tell)
        except OSError as error:
            what = f"cannot write to {folder} ({error.strerror or error})"
            raise DownloadError(f"{one.name}: {what}") from error
    return _checked(one, folder, record, notes)


def _download(
    one: DatasetInfo,
    folder: Path,
    record: Mapping[str, Any],
    progress: Progress | None,
    tell: Callable[[str], object],
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Fill the folder from the first source that works; returns the new record, and remarks."""
    failures: list[DownloadError] = []
    for source in one.downloads:
        try:
            with replace_folder(folder) as fresh:
                written = _fetch_from(source, one, fresh, record.get("seen", {}), progress)
        except DownloadError as error:
            failures.append(error)
            continue
        tell(f"{one.name}: downloaded from {source.url}")
        notes = [f"not available: {failure}" for failure in failures]
        if source.checksum is None:
            notes.append(
                "no checksum is published for this source: the checksum of the first download was recorded"
            )
        return written, tuple(notes)
    reasons = "; ".join(map(str, failures)) or "it has no source"
    wrong = any(isinstance(failure, ChecksumError) for failure in failures)
    hint = " (delete it if the change is right)" if wrong else ""
    kept = f"; what is in {folder} is kept{hint}" if record else ""
    raise (ChecksumError if wrong else DownloadError)(f"{one.name} could not be fetched: {reasons}{kept}")


def load(
    name: str | DatasetInfo,
    *,
    cache: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
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
    fetched = fetch(name, cache=cache, progress=progress, notify=notify)
    data = _LAYOUTS[fetched.download.layout](fetched.files)
    counts = Counts(data.num_users, data.num_items, len(data))
    wanted = fetched.download.counts
    if wanted is not None and counts != wanted:
        raise DataError(
            f"{counts.users:,} users, {counts.items:,} items, {counts.interactions:,} interactions",
            where=f"{fetched.info.name} from {fetched.download.url}",
            expected=f"{wanted.users:,}, {wanted.items:,} and {wanted.interactions:,}",
        )
    notes = (f"source: {fetched.download.url}", *fetched.notes, *data.provenance.notes)
    return replace(data, provenance=replace(data.provenance, source=fetched.info.name, notes=notes))


def local_copy(name: str, folder: Path | None = None) -> Path | None:
    """The subfolder `name` of `folder`, or else of the folder that `LOCAL` names; None if neither has one."""
    roots = [folder, Path(os.environ[LOCAL]) if os.environ.get(LOCAL) else None]
    return next((root / name for root in roots if root is not None and (root / name).is_dir()), None)


# ------------------------------------------------------------------------ cache


def _folder(name: str | DatasetInfo, cache: str | os.PathLike[str] | None) -> Path:
    one = info(name) if isinstance(name, str) else name
    return (cache_folder() if cache is None else expanded(cache)) / one.name


def _fetch_from(
    source: Download, one: DatasetInfo, folder: Path, seen: Mapping[str, str], progress: Progress | None
) -> dict[str, Any]:
    """Fill a new folder with the files of a source and a record of them; returns the record."""
    target = folder / ("package.whl" if source.url.startswith("pip:") else PurePosixPath(source.url).name)
    checksum = download(
        source.url, target, checksum=source.checksum or seen.get(source.url), progress=progress
    )
    if source.files:
        _unpack(target, source.files, folder)
        target.unlink()
    names = [PurePosixPath(member).name for member in source.files] or [target.name]
    record = {
        "dataset": one.name,
        "url": source.url,
        "files": {name: checksum_of(folder / name) for name in names},
        "seen": {**seen, source.url: checksum},
    }
    (folder / _RECORD).write_text(json.dumps(record, indent=1), encoding="utf-8")
    return record


def _unpack(archive: Path, members: tuple[str, ...], folder: Path) -> None:
    try:
        with zipfile.ZipFile(archive) as packed:
            for member in members:
                if packed.getinfo(member).file_size > _LARGEST_MEMBER:
                    raise DownloadError(f"{archive.name}: {member} is larger than {_LARGEST_MEMBER:,} bytes")
                with packed.open(member) as source, (folder / PurePosixPath(member).name).open("wb") as file:
                    shutil.copyfileobj(source, file)
    except (zipfile.BadZipFile, KeyError, EOFError, NotImplementedError, RuntimeError) as error:
        raise DownloadError(f"{archive.name}: cannot be unpacked ({error})") from error


def _read_record(folder: Path) -> dict[str, Any] | None:
    try:
        record = json.loads((folder / _RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    whole = isinstance(record, dict) and all(isinstance(record.get(key), dict) for key in ("files", "seen"))
    return record if whole else None


def _checked(one: DatasetInfo, folder: Path, record: Mapping[str, Any], notes: tuple[str, ...]) -> Fetched:
    """What a record says is in the cache, once every file is found to be as it was downloaded."""
    source = next((source for source in one.downloads if source.url == record.get("url")), None)
    if source is None:
        raise DownloadError(
            f"{folder} came from {record.get('url')}, which is no source of {one.name}: delete it"
        )
    for name, expected in record["files"].items():
        path = folder / name
        actual = checksum_of(path) if path.is_file() else "no such file"
        if actual != expected:
            raise ChecksumError(
                f"{path} was changed ({actual}, expected {expected}): delete {folder} to download it again"
            )
    files = tuple(folder / name for name in record["files"])
    return Fetched(info=one, folder=folder, files=files, download=source, notes=notes)


# ---------------------------------------------------------------------- reading


def _read(file: Path, **options: Any) -> Interactions:
    return read_whole(Source.of(file), SourceOptions.of(**options))


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
