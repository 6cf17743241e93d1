"""The folder of a study: one protocol for comparisons and searches.

A folder belongs to one study. Its sealed manifest says which settings and data it was made with; a call with other
settings is refused and the first difference named, so results of different studies never mix. A lock on the folder
admits one process at a time. Results are appended as records (`talos.files.write_record`), so one that exists is
complete and a study that was killed continues with what is missing.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from talos.checks import require
from talos.errors import ConfigError, DataError
from talos.files import locked, read_sealed, write_sealed

__all__ = [
    "FORMAT",
    "file_name",
    "first_difference",
    "read_manifest",
    "study_folder",
]

FORMAT = 1
_LOCK = ".lock"
_LEFTOVER = re.compile(r"\..+\.\w{8}\.tmp")  # what `talos.files` leaves of a write that was killed


@contextlib.contextmanager
def study_folder(
    manifest: Path,
    noun: str,
    settings: Mapping[str, Any],
    facts: Mapping[str, Any],
    *,
    may_hold: Sequence[str] = (),
) -> Iterator[None]:
    """Create the folder of a study, or reopen the one with the same settings, and lock it for the block.

    Args:
        manifest: the study's manifest, in its folder.
        noun: what messages call the study, such as `comparison`.
        settings: what decides the study; equal to those stored, or refused.
        facts: plain values written beside the settings; they may change from call to call.
        may_hold: entries that a folder without a manifest may hold already.

    Raises:
        ConfigError: the folder holds something else.
        InUseError: another process works in it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as parent:
    ...     with study_folder(Path(parent, "out", "trip.json"), "trip", {"days": 3}, {"note": "x"}):
    ...         read_manifest(Path(parent, "out", "trip.json"), "trip")
    ({'days': 3}, {'note': 'x'})
    """
    out, plain = manifest.parent, json.loads(json.dumps(settings))
    check = partial(require, where=str(out), error=ConfigError)
    check(out.is_dir() or not out.exists(), "is not a folder", expected=f"a new folder or that of a {noun}")
    held = [] if manifest.exists() or not out.exists() else [entry.name for entry in out.iterdir()]
    check(
        all(name in (_LOCK, *may_hold) or _LEFTOVER.fullmatch(name) for name in held),
        "is not empty",
        expected=f"a new folder or that of the same {noun}",
    )
    out.mkdir(parents=True, exist_ok=True)
    with locked(out / _LOCK, guards=out, purpose=f"working on a {noun}"):
        for entry in list(out.rglob(".*.tmp")):
            if _LEFTOVER.fullmatch(entry.name):
                shutil.rmtree(entry, ignore_errors=True)
        difference = first_difference(read_manifest(manifest, noun)[0], plain) if manifest.exists() else ""
        check(
            not difference,
            f"holds a {noun} with other settings ({difference})",
            expected="the same settings and data, or a new folder",
        )
        write_sealed(manifest, {"format": FORMAT, "settings": plain, **facts})
        yield


def read_manifest(manifest: Path, noun: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings and facts that `study_folder` wrote, as plain values."""
    require(
        manifest.is_file(),
        f"has no {manifest.name}",
        where=str(manifest.parent),
        expected=f"the folder of a {noun}",
        error=DataError,
    )
    values = read_sealed(manifest, hint="use a new folder")
    del values["format"]
    return values.pop("settings", {}), values


def file_name(name: str) -> str:
    """A name as part of a file name, or a tag: in lower case, a hyphen for everything but letters and digits.

    >>> file_name("SL@K, K=5")
    'sl-k-k-5'
    """
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def first_difference(stored: Any, given: Any, key: str = "") -> str:
    """The first dotted key at which two plain values differ, with both values; empty if they are equal.

    >>> first_difference({"k": 5, "loss": {"tau": 0.1}}, {"k": 5, "loss": {"tau": 0.2}})
    'loss.tau: 0.1 there, 0.2 now'
    """
    if stored == given:
        return ""
    if isinstance(stored, Mapping) and isinstance(given, Mapping):
        within = (
            first_difference(stored.get(name), given.get(name), f"{key}.{name}".lstrip("."))
            for name in (*stored, *given)
        )
        if found := next(filter(None, within), ""):
            return found
    there, now = ("nothing" if value is None else str(value) for value in (stored, given))
    return f"{key}: {there[:40]} there, {now[:40]} now"
