"""The paper's data sets as far as they are available, split as the paper splits them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from talos.checks import one_of
from talos.data import datasets, splits
from talos.data.open import open_split, read
from talos.data.source import Source
from talos.errors import DataError

__all__ = [
    "DATASETS",
    "LOCAL",
    "Scenario",
    "load",
    "local_copy",
    "notes_on",
    "split_facts",
    "why_absent",
]

Scenario: TypeAlias = Literal["iid", "temporal"]

LOCAL = "TALOS_DATA"
"""The environment variable that names a user's own folder of datasets, one subfolder each."""

DATASETS: dict[str, str] = {
    "beauty": "Beauty",
    "gowalla": "Gowalla",
    "games": "Games",
    "electronics": "Electronics",
    "movielens-100k": "MovieLens-100K",
}
"""Name on the command line → name in tables."""

_DIFFERENCES = {
    ("beauty", "temporal"): "timestamps recovered by alignment with another copy, 42 of them unknown",
    ("gowalla", "iid"): "test part of the common 80/20 split, validation drawn from its train part",
    ("games", "iid"): "5-core with all ratings (the paper dropped ratings below 3), split drawn here",
    ("movielens-100k", "iid"): "split drawn here: the paper does not print which MovieLens it used",
    ("movielens-100k", "temporal"): "not in the paper",
}


def local_copy(name: str, folder: Path | None = None) -> Path | None:
    """The subfolder `name` of `folder`, or else of the folder that `LOCAL` names; None if neither has one."""
    roots = [folder, Path(os.environ[LOCAL]) if os.environ.get(LOCAL) else None]
    return next((root / name for root in roots if root is not None and (root / name).is_dir()), None)


def load(dataset: str, scenario: Scenario = "iid", *, folder: Path | None = None) -> splits.Split:
    """The split of a data set, from `folder` or TALOS_DATA; MovieLens-100K comes from the library's cache.

    Raises:
        DataError: the data are not there, or have no timestamps for a temporal split.
    """
    one_of("--dataset", dataset, tuple(DATASETS))
    reason = why_absent(dataset, scenario, folder=folder)
    if reason is not None:
        raise DataError(reason, where=dataset, expected=f"the data in --data or {LOCAL}")
    place = local_copy(dataset, folder)
    if scenario == "iid" and place is not None and Source.of(place).kind == "parts":
        parts = open_split(place)
        if parts.valid is not None:
            return parts
        # a tenth of train becomes validation where there is no such file
        drawn = splits.split(parts.train, test=0.1, valid=0.0, seed=0, paper=True)
        split = splits.predefined(drawn.train, drawn.test, parts.test)
        return replace(split, how={"by": "predefined", "valid": 0.1, "seed": 0})
    if dataset == "movielens-100k":
        info = datasets.info(dataset)
        data = datasets.load(info)
        data = data if info.min_rating is None else splits.min_rating(data, info.min_rating)
        data = data if info.k_core is None else splits.k_core(data, info.k_core)
    else:
        assert place is not None  # `why_absent` would have said so
        data = read(place / "interactions.tsv")
    if scenario == "temporal":
        return splits.split(data, by="time", seed=0, paper=True).warm()
    return splits.split(data, seed=0, paper=True)


def notes_on(dataset: str, scenario: Scenario = "iid") -> tuple[str, ...]:
    """What differs between the split that `load` returns and the paper's, in words."""
    late = (
        "users and items that train never saw are left out of the test part" if scenario == "temporal" else ""
    )
    return tuple(note for note in (_DIFFERENCES.get((dataset, scenario)), late) if note)


def why_absent(dataset: str, scenario: Scenario = "iid", *, folder: Path | None = None) -> str | None:
    """Why a data set cannot be loaded here; None if it can."""
    if dataset == "movielens-100k":
        return None if datasets.is_cached(datasets.info(dataset)) else "`talos data get movielens-100k` first"
    if dataset != "made-up" and local_copy(dataset, folder) is None:
        return f"no folder {dataset}/ in --data or {LOCAL}"
    return "no timestamps" if scenario == "temporal" and dataset != "beauty" else None


def split_facts(split: splits.Split) -> dict[str, Any]:
    """How a split was made, how large its parts are, and their fingerprints."""
    return {
        "how": split.how,
        "users": split.train.num_users,
        "items": split.train.num_items,
        "interactions": {name: len(part) for name, part in split.parts.items()},
        "fingerprints": {name: part.fingerprint() for name, part in split.parts.items()},
    }
