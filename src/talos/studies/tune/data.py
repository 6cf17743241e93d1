"""Train and validation parts on disk, written once and mapped by every worker.

The folder holds what a trial may see and nothing else: the vocabularies are those of train and validation, so not
even the existence of a test item can be read from it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from talos.data.interactions import Interactions, Provenance
from talos.data.vocabulary import Vocabulary
from talos.errors import DataError
from talos.files import replace_file

__all__ = ["FitParts", "fit_parts", "map_parts", "write_parts"]

FitParts = tuple[Interactions, Interactions]


def fit_parts(train: Interactions, valid: Interactions | None) -> FitParts:
    """Both parts over the users and items that occur in them, and no others.

    >>> data = Interactions.from_ids([1, 1, 2], [7, 8, 9])
    >>> train, valid = fit_parts(data.where(data.indices == 0), data.where(data.indices == 1))
    >>> train.item_ids.ids.to_list()
    [7, 8]
    """
    if valid is None or len(valid) == 0:
        raise DataError(
            "no validation part",
            where=train.provenance.source,
            expected="one to tune on",
            hint="`talos data split` makes one",
        )
    if not ((train.user_degrees > 0) & (valid.user_degrees > 0)).any():
        raise DataError(
            "the validation part has no user in common with train",
            where=valid.provenance.source,
            expected="users that train knows",
        )
    both = train.union(valid).compact()
    return train.aligned_to(both)[0], valid.aligned_to(both)[0]


def write_parts(folder: Path, parts: FitParts) -> None:
    """Write the parts, each file under another name first."""
    folder.mkdir(parents=True, exist_ok=True)
    train = parts[0]
    ids = {"users": train.user_ids.ids.rename("id"), "items": train.item_ids.ids.rename("id")}
    for name, series in ids.items():
        replace_file(folder / f"{name}.arrow", series.to_frame().write_ipc)
    for name, part in zip(("train", "valid"), parts, strict=True):
        for kind, array in (("indptr", part.indptr), ("indices", part.indices)):
            _save(folder / f"{name}.{kind}.npy", array)


def map_parts(folder: Path) -> FitParts:
    """The parts as `write_parts` left them; the arrays stay on disk until looked at and are shared by processes.

    >>> import tempfile
    >>> data = Interactions.from_ids(["a", "a", "b"], [7, 8, 8])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_parts(Path(folder), (data, data))
    ...     train, _ = map_parts(Path(folder))
    ...     train.fingerprint() == data.fingerprint(), type(train.indices.base).__name__
    (True, 'memmap')
    """
    try:
        users, items = (
            Vocabulary(pl.read_ipc(folder / f"{name}.arrow")["id"]) for name in ("users", "items")
        )
        parts = []
        for name in ("train", "valid"):
            indptr, indices = (
                np.asarray(np.load(folder / f"{name}.{kind}.npy", mmap_mode="r", allow_pickle=False))
                for kind in ("indptr", "indices")
            )
            if indptr.dtype != np.int64 or indices.dtype != np.int32 or len(indptr) != len(users) + 1:
                raise ValueError(f"{name} does not fit the users")
            parts.append(
                Interactions(
                    indptr=indptr,
                    indices=indices,
                    user_ids=users,
                    item_ids=items,
                    provenance=Provenance(source=str(folder), format="prepared"),
                )
            )
    except (OSError, ValueError, KeyError, pl.exceptions.PolarsError) as error:
        raise DataError(f"cannot be read ({error})", where=str(folder), hint="tune in a new folder") from None
    return parts[0], parts[1]


def _save(path: Path, array: np.ndarray) -> None:
    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:  # np.save would add a suffix to the name
            np.save(file, array, allow_pickle=False)

    replace_file(path, write)
