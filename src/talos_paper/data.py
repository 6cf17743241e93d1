"""The paper's data sets as far as they can be had, with what is different about each said beside it."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

from talos.data import datasets, readers, splits
from talos.data.interactions import Interactions
from talos.data.splits import Split
from talos.errors import ConfigError, DataError, nearest

__all__ = ["DATASETS", "PaperData", "Scenario", "absent", "load"]

Scenario: TypeAlias = Literal["iid", "temporal"]

SPLIT_SEED = 0

DATASETS: dict[str, str] = {
    "beauty": "Beauty",
    "gowalla": "Gowalla",
    "games": "Games",
    "electronics": "Electronics",
    "movielens-100k": "MovieLens-100K",
}
"""Name on the command line → name in tables."""

_VARIANTS = {
    ("beauty", "temporal"): "timestamps recovered by alignment with another copy, 42 of them unknown",
    ("gowalla", "iid"): "test part of the common 80/20 split, validation drawn from its train part",
    ("games", "iid"): "5-core with all ratings (the paper dropped ratings below 3), split drawn here",
    ("movielens-100k", "iid"): "split drawn here: the paper does not print which MovieLens it used",
    ("movielens-100k", "temporal"): "not in the paper",
}


@dataclass(frozen=True, kw_only=True)
class PaperData:
    """A split and what to know about it when it is held against the paper's."""

    dataset: str
    scenario: Scenario
    split: Split
    notes: tuple[str, ...]


def load(dataset: str, scenario: Scenario = "iid", *, folder: Path | None = None) -> PaperData:
    """The split of a data set, from `folder` or `TALOS_DATA`; MovieLens-100K from the library's cache.

    Raises:
        DataError: the data are not there, or this scenario cannot be had from them.
    """
    if dataset not in DATASETS:
        raise ConfigError(f"{dataset!r} is not known", where="--dataset", hint=nearest(dataset, DATASETS))
    reason = absent(dataset, scenario, folder=folder)
    if reason is not None:
        raise DataError(reason, where=dataset, expected="the data in --data or TALOS_DATA")
    notes = [_VARIANTS[dataset, scenario]] if (dataset, scenario) in _VARIANTS else []
    if scenario == "iid":
        parts = _iid(dataset, folder)
    else:
        parts = splits.split(_whole(dataset, folder), by="time", seed=SPLIT_SEED).warm()
        notes.append("users and items that train never saw are left out of the test part")
    return PaperData(dataset=dataset, scenario=scenario, split=parts, notes=tuple(notes))


def absent(dataset: str, scenario: Scenario = "iid", *, folder: Path | None = None) -> str | None:
    """Why a data set cannot be had here; None if it can."""
    if dataset == "movielens-100k":
        return None if datasets.is_cached(datasets.info(dataset)) else "`talos data get movielens-100k` first"
    place = _find(dataset, folder)
    if place is None:
        return f"no folder {dataset}/ in --data or TALOS_DATA"
    if scenario == "temporal" and dataset != "beauty":
        return "no timestamps"
    return None


def _find(dataset: str, folder: Path | None) -> Path | None:
    roots = [folder, *([Path(os.environ["TALOS_DATA"])] if "TALOS_DATA" in os.environ else [])]
    return next((root / dataset for root in roots if root is not None and (root / dataset).is_dir()), None)


def _iid(dataset: str, folder: Path | None) -> Split:
    place = _find(dataset, folder)
    if place is None or not readers.is_parts(place):
        return splits.split(_whole(dataset, folder), seed=SPLIT_SEED)
    parts = readers.read_parts(place)
    if parts.valid is not None:
        return splits.predefined(parts.train, parts.valid, parts.test)
    drawn = splits.split(parts.train, test=0.1, valid=0.0, seed=SPLIT_SEED)
    made = splits.predefined(drawn.train, drawn.test, parts.test)
    return replace(made, how={"by": "predefined", "valid": 0.1, "seed": SPLIT_SEED})


def _whole(dataset: str, folder: Path | None) -> Interactions:
    if dataset == "movielens-100k":
        info = datasets.info(dataset)
        data = datasets.load(info)
        if info.min_rating is not None:
            data = splits.min_rating(data, info.min_rating)
        return data if info.k_core is None else splits.k_core(data, info.k_core)
    place = _find(dataset, folder)
    assert place is not None
    return readers.read(place / "interactions.tsv")
