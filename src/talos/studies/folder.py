"""The folder of a study: a sealed manifest with its settings, and one sealed result for each finished fit.

A folder belongs to one study. The manifest says which settings and data it was made with; a call with other settings
is refused and the first difference named, so results of different studies never mix. Results are written once, when
their fit is finished, so a study that was killed continues with what is missing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from talos.data.parquet import scan_file
from talos.errors import ConfigError, DataError
from talos.files import checksum_of, is_leftover, read_sealed, replace_file, write_sealed

__all__ = ["FORMAT", "FolderKind", "file_name", "load_fit", "open_folder", "read_folder", "save_fit"]

FORMAT = 1


@dataclass(frozen=True)
class FolderKind:
    """What the folders of one kind of study have in common."""

    noun: str  # what messages call the study, such as `comparison`
    manifest: str  # the name of its manifest
    may_exist: tuple[str, ...] = ()  # entries that a folder without a manifest may hold already


def open_folder(
    out: Path,
    kind: FolderKind,
    settings: Mapping[str, Any],
    facts: Mapping[str, Any],
    *,
    keep: tuple[str, ...] = (),
    parse: Callable[[Any], Any] = lambda stored: stored,
) -> dict[str, Any]:
    """Create the folder of a study, or reopen the one with the same settings; refuse any other content.

    Settings must be equal to those stored, after `parse` has brought these to the keys of this version. Facts are
    written beside them and may change from call to call; for those named in `keep` the stored value wins. Returns the
    facts as written. Both are plain values.
    """
    manifest, kept = out / kind.manifest, dict(facts)
    if out.exists() and not out.is_dir():
        expected = f"a new folder or that of a {kind.noun}"
        raise ConfigError("is not a folder", where=str(out), expected=expected)
    if manifest.exists():
        stored, before = read_folder(out, kind)
        difference = first_difference(parse(stored), settings)
        if difference:
            raise ConfigError(
                f"holds a {kind.noun} with other settings ({difference})",
                where=str(out),
                expected="the same settings and data, or a new folder",
            )
        kept |= {name: before[name] for name in keep if name in before}
    elif out.exists() and any(
        entry.name not in kind.may_exist and not is_leftover(entry, manifest) for entry in out.iterdir()
    ):
        expected = f"a new folder or that of the same {kind.noun}"
        raise ConfigError("is not empty", where=str(out), expected=expected)
    out.mkdir(parents=True, exist_ok=True)
    write_sealed(manifest, {"format": FORMAT, "settings": dict(settings), **kept})
    return kept


def read_folder(out: Path, kind: FolderKind) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings and facts that `open_folder` wrote, as plain values."""
    manifest = out / kind.manifest
    if not manifest.is_file():
        raise DataError(f"has no {kind.manifest}", where=str(out), expected=f"the folder of a {kind.noun}")
    values = read_sealed(manifest, hint="use a new folder")
    del values["format"]
    return values.pop("settings", {}), values


def file_name(name: str) -> str:
    """A name as part of a file name: in lower case, a hyphen for everything but letters and digits."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def save_fit(folder: Path, stem: str, values: dict[str, Any], per_user: pl.DataFrame, digest: str) -> None:
    """Write a finished fit: the per-user values as `stem.parquet`, then everything else as sealed `stem.json`.

    The JSON file is written last and has the checksum of the parquet file, so a fit whose JSON file exists is complete.
    `digest` is that of everything that decides the fit; `load_fit` asks for it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    table = folder / f"{stem}.parquet"
    replace_file(table, per_user.write_parquet)
    stored = {"file": table.name, "sha256": _sha256(table)}
    write_sealed(
        folder / f"{stem}.json", {"format": FORMAT, "fingerprint": digest, **values, "per_user": stored}
    )


def load_fit(folder: Path, stem: str, digest: str) -> tuple[dict[str, Any], pl.DataFrame] | None:
    """The values and per-user table of a finished fit; None if there is none.

    Raises:
        DataError: a file is damaged, or its fit was made with other settings or data.
    """
    path, table = folder / f"{stem}.json", folder / f"{stem}.parquet"
    if not path.exists():
        return None
    hint = f"delete {path} to fit it again"
    values = read_sealed(path, hint=hint)
    if values.get("fingerprint") != digest:
        raise DataError("was made with other settings or data", where=str(path), hint=hint)
    if not table.is_file() or _sha256(table) != dict(values.get("per_user") or {}).get("sha256"):
        what = f"is missing or differs from its checksum in {path.name}"
        raise DataError(what, where=str(table), hint=hint)
    try:
        return values, scan_file(table).collect()
    except pl.exceptions.PolarsError as error:
        raise DataError(f"is damaged: {error}", where=str(table), hint=hint) from None


def first_difference(stored: Any, given: Any, key: str = "") -> str:
    """The first dotted key at which two plain values differ, with both values; empty if they are equal.

    >>> first_difference({"k": 5, "loss": {"tau": 0.1}}, {"k": 5, "loss": {"tau": 0.2}})
    'loss.tau: 0.1 there, 0.2 now'
    """
    if stored == given:
        return ""
    if isinstance(stored, Mapping) and isinstance(given, Mapping):
        names = [*stored, *(name for name in given if name not in stored)]
        places = {name: f"{key}.{name}".lstrip(".") for name in names}
        found = (first_difference(stored.get(name), given.get(name), places[name]) for name in names)
        return next(filter(None, found), f"{key}: other keys")
    return f"{key}: {_shortened(stored)} there, {_shortened(given)} now"


def _shortened(value: Any) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 40 else f"{text[:37]}…"


def _sha256(path: Path) -> str:
    return checksum_of(path).removeprefix("sha256:")
