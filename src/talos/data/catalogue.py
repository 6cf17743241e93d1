"""The named datasets: sources, licences, the paper's clean-up, and the counts that must result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from talos.checks import require
from talos.data.interactions import Interactions
from talos.errors import nearest

__all__ = ["CATALOGUE", "Counts", "DatasetInfo", "Download", "available", "info"]


class Counts(NamedTuple):
    """Numbers of users, items and interactions.

    >>> Counts(943, 1682, 100_000).interactions
    100000
    """

    users: int
    items: int
    interactions: int


@dataclass(frozen=True, kw_only=True)
class Download:
    """One source of a dataset.

    Args:
        url: an http(s) address, or `pip:NAME==VERSION` for a wheel of the Python package index.
        layout: how the files are read: "table" for a file that `talos.read` reads as it is, or the name of one of the
            layouts of MovieLens.
        checksum: `sha256:…` or `md5:…` of the download; None if none is published. What is in the cache is
            compared with checksums of its own, which are recorded after the download.
        files: the files to extract from a zip archive or wheel; empty if the download is the file itself.
        counts: what the files hold before any clean-up; None if not known for certain.

    >>> Download(url="https://example.org/clicks.csv", layout="table").checksum is None
    True
    """

    url: str
    layout: str
    checksum: str | None = None
    files: tuple[str, ...] = ()
    counts: Counts | None = None


@dataclass(frozen=True, kw_only=True)
class DatasetInfo:
    """A named dataset, and the paper's clean-up of it.

    `load` returns the data as published. The clean-up drops ratings below `min_rating`, and after that keeps
    the `k_core`; `expected` counts what is left.

    >>> ml = info("movielens-100k")
    >>> ml.min_rating, ml.k_core, ml.expected
    (3.0, 10, Counts(users=939, items=1016, interactions=80393))
    """

    name: str
    title: str
    homepage: str
    licence: str
    downloads: tuple[Download, ...]
    min_rating: float | None = None
    k_core: int | None = None
    expected: Counts | None = None

    def differences(self, cleaned: Interactions) -> tuple[str, ...]:
        """Sentences on how cleaned data differ from `expected`; none if they do not, or if nothing is expected.

        >>> info("gowalla").differences(Interactions.from_ids([1], [2]))[0]
        'gowalla: 1 users after the clean-up, 29,858 expected'
        """
        active = cleaned.active_users, int((cleaned.item_degrees > 0).sum()), len(cleaned)
        return tuple(
            f"{self.name}: {found:,} {what} after the clean-up, {wanted:,} expected"
            for what, found, wanted in zip(Counts._fields, active, self.expected or active, strict=True)
            if found != wanted
        )


_MOVIELENS_LICENCE = (
    "MovieLens data are free for research: do not imply endorsement by the University of Minnesota or the "
    "GroupLens Research Group, acknowledge their use in publications (F. M. Harper, J. A. Konstan: The "
    "MovieLens Datasets: History and Context, ACM TiiS 5(4), 2015), do not redistribute them without "
    "separate permission, nor use them commercially without permission of the GroupLens Research Group."
)
_AMAZON_LICENCE = (
    "Amazon product data (J. McAuley et al., UC San Diego), made available for research. Cite R. He, "
    "J. McAuley: Ups and downs, WWW 2016, and J. McAuley et al.: Image-based recommendations on styles and "
    "substitutes, SIGIR 2015. The reviews belong to their authors and to Amazon."
)
_GOWALLA_LICENCE = (
    "Gowalla check-ins, collected through Gowalla's public interface and published by the Stanford Network "
    "Analysis Project for research. Cite E. Cho, S. A. Myers, J. Leskovec: Friendship and Mobility, KDD 2011."
)
_SNAP = "https://snap.stanford.edu/data"


def _amazon(name: str, title: str, raw: Counts, expected: Counts) -> DatasetInfo:
    folder, category = f"{_SNAP}/amazon/productGraph/categoryFiles", title.replace(" ", "_")
    return DatasetInfo(
        name=name,
        title=f"Amazon {title} 2014, reviews",
        homepage="https://cseweb.ucsd.edu/~jmcauley/datasets/amazon/links.html",
        licence=_AMAZON_LICENCE,
        # The 5-core file is much smaller, and the clean-up gives the same result for both: the 5-core of some of the
        # ratings is a subset of the 5-core of all of them.
        downloads=(
            Download(url=f"{folder}/reviews_{category}_5.json.gz", layout="table", counts=raw),
            Download(url=f"{folder}/ratings_{category}.csv", layout="table"),
        ),
        min_rating=3.0,
        k_core=5,
        expected=expected,
    )


CATALOGUE: tuple[DatasetInfo, ...] = (
    DatasetInfo(
        name="movielens-100k",
        title="MovieLens 100K, film ratings of 1997-98",
        homepage="https://grouplens.org/datasets/movielens/100k/",
        licence=_MOVIELENS_LICENCE,
        downloads=(
            Download(
                url="https://files.grouplens.org/datasets/movielens/ml-100k.zip",
                checksum="sha256:50d2a982c66986937beb9ffb3aa76efe955bf3d5c6b761f4e3a7cd717c6a3229",
                files=("ml-100k/u.data", "ml-100k/u.item"),
                layout="movielens-100k",
                counts=Counts(943, 1682, 100_000),
            ),
            Download(
                url="pip:recbole==1.2.1",
                checksum="sha256:9c9948202011f37eb0a7c6768129313f00d6403ad221ec940d5e2d5d5f33a407",
                files=(
                    "recbole/dataset_example/ml-100k/ml-100k.inter",
                    "recbole/dataset_example/ml-100k/ml-100k.item",
                ),
                layout="movielens-recbole",
                counts=Counts(943, 1682, 100_000),
            ),
        ),
        min_rating=3.0,
        k_core=10,
        expected=Counts(939, 1016, 80_393),
    ),
    DatasetInfo(
        name="movielens-1m",
        title="MovieLens 1M, film ratings of 2000-03",
        homepage="https://grouplens.org/datasets/movielens/1m/",
        licence=_MOVIELENS_LICENCE,
        downloads=(
            Download(
                url="https://files.grouplens.org/datasets/movielens/ml-1m.zip",
                checksum="sha256:a6898adb50b9ca05aa231689da44c217cb524e7ebd39d264c56e2832f2c54e20",
                files=("ml-1m/ratings.dat", "ml-1m/movies.dat"),
                layout="movielens-1m",
                counts=Counts(6040, 3706, 1_000_209),
            ),
        ),
        min_rating=3.0,
        k_core=10,
    ),
    DatasetInfo(
        name="gowalla",
        title="Gowalla, check-ins of 2009-10",
        homepage=f"{_SNAP}/loc-gowalla.html",
        licence=_GOWALLA_LICENCE,
        downloads=tuple(
            Download(url=f"{server}/loc-gowalla_totalCheckins.txt.gz", layout="table")
            for server in (_SNAP, "https://paddlerec.bj.bcebos.com/datasets/Gowalla")
        ),
        k_core=10,
        expected=Counts(29_858, 40_988, 1_027_464),
    ),
    # The paper counts 8,693 items of Beauty; in its own files one of those ids never occurs.
    _amazon("amazon-beauty", "Beauty", Counts(22_363, 12_101, 198_502), Counts(15_603, 8_692, 139_554)),
    _amazon("amazon-games", "Video Games", Counts(24_303, 10_672, 231_780), Counts(18_813, 8_691, 177_572)),
    _amazon(
        "amazon-electronics",
        "Electronics",
        Counts(192_403, 63_001, 1_689_188),
        Counts(150_523, 52_024, 1_312_545),
    ),
)


def available() -> list[DatasetInfo]:
    """All named datasets.

    >>> [one.name for one in available()][:3]
    ['movielens-100k', 'movielens-1m', 'gowalla']
    """
    return list(CATALOGUE)


def info(name: str) -> DatasetInfo:
    """The named dataset of this name, in any case and with `_` or `-`.

    Raises:
        ArgumentError: there is no such dataset.

    >>> info("MovieLens_1M").k_core
    10
    >>> info("movielens")
    Traceback (most recent call last):
    talos.errors.ArgumentError: name: no dataset 'movielens'; expected ...(did you mean ...)
    """
    wanted = name.casefold().replace("_", "-")
    by_name = {one.name: one for one in CATALOGUE}
    require(
        wanted in by_name,
        f"no dataset {name!r}",
        where="name",
        expected=f"one of {', '.join(by_name)}",
        hint=nearest(wanted, by_name),
    )
    return by_name[wanted]
