"""The data of a tuning study: train and validation on disk, written once and memory-mapped by every worker.

The folder holds what a trial may see and nothing else. Its vocabularies are those of train and validation, so not
even the existence of a test item can be read from it.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from tokenize import TokenError
from typing import NamedTuple

import numpy as np
import polars as pl

from talos.checks import require
from talos.data.interactions import Interactions, Provenance
from talos.data.vocabulary import Vocabulary
from talos.errors import DataError
from talos.files import read_record, replace_file, write_record

__all__ = ["FitParts", "fit_parts", "map_parts", "write_parts"]

_INDEX = "parts.json"
_FILES = (
    "users.arrow",
    "items.arrow",
    *(f"{part}.{kind}.npy" for part in ("train", "valid") for kind in ("indptr", "indices")),
)
_HINT = "tune in a new folder"


class FitParts(NamedTuple):
    """Train and validation of a split; it has no test part, so code that is given this cannot look at one."""

    train: Interactions
    valid: Interactions

    def fingerprints(self) -> dict[str, str]:
        """The fingerprint of each part, by name."""
        return {name: part.fingerprint() for name, part in self._asdict().items()}


def fit_parts(train: Interactions, valid: Interactions | None) -> FitParts:
    """Both parts over the users and items that occur in at least one of them, and no others.

    >>> data = Interactions.from_ids([1, 1, 2], [7, 8, 9])
    >>> fit_parts(data.where(data.indices == 0), data.where(data.indices == 1)).train.item_ids.ids.to_list()
    [7, 8]
    """
    if valid is None or len(valid) == 0:
        raise DataError(
            "no validation part",
            where=train.provenance.source,
            expected="one to tune on",
            hint="`talos data split` makes one",
        )
    require(
        bool(((train.user_degrees > 0) & (valid.user_degrees > 0)).any()),
        "no user of the validation part is in train",
        where=valid.provenance.source,
        expected="at least one user with interactions in both",
        error=DataError,
    )
    both = train.union(valid).compact()
    return FitParts(train.aligned_to(both)[0], valid.aligned_to(both)[0])


def write_parts(folder: Path, parts: FitParts) -> None:
    """Write both parts as the record `parts.json`."""
    folder.mkdir(exist_ok=True)
    for name, ids in (("users", parts.train.user_ids.ids), ("items", parts.train.item_ids.ids)):
        replace_file(folder / f"{name}.arrow", ids.rename("id").to_frame().write_ipc)
    for name, part in parts._asdict().items():
        for kind in ("indptr", "indices"):
            replace_file(
                folder / f"{name}.{kind}.npy", partial(np.save, arr=getattr(part, kind), allow_pickle=False)
            )
    write_record(folder / _INDEX, {}, _FILES)


def map_parts(folder: Path) -> FitParts:
    """The parts that `write_parts` wrote; their arrays are memory-mapped and shared between processes."""
    read_record(folder / _INDEX, _FILES, hint=_HINT)
    try:
        # scanned, because `read_ipc` takes a path for a pattern
        ids = (
            pl.scan_ipc(folder / f"{name}.arrow", glob=False, hive_partitioning=False).collect()["id"]
            for name in ("users", "items")
        )
        users, items = map(Vocabulary, ids)
        return FitParts(*(_map_part(folder, name, users, items) for name in FitParts._fields))
    # numpy's reader of headers passes on what Python's tokenizer says about a damaged one
    except (OSError, ValueError, TokenError, pl.exceptions.PolarsError) as error:
        raise DataError(f"cannot be read ({error})", where=str(folder), hint=_HINT) from None


def _map_part(folder: Path, name: str, users: Vocabulary, items: Vocabulary) -> Interactions:
    indptr, indices = (
        np.asarray(np.load(folder / f"{name}.{kind}.npy", mmap_mode="r", allow_pickle=False))
        for kind in ("indptr", "indices")
    )
    if indptr.dtype != np.int64 or indices.dtype != np.int32 or len(indptr) != len(users) + 1:
        raise ValueError(f"{name} does not match the users")
    return Interactions(
        indptr=indptr,
        indices=indices,
        user_ids=users,
        item_ids=items,
        provenance=Provenance(source=str(folder), format="prepared"),
    )
