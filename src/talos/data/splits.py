"""Clean-up (minimum rating, k-core) and splits into train, validation and test.

Every interaction is in exactly one part. All parts share the vocabularies of the data they were made from, so a code
means the same user or item in each of them. Users and items that train does not have are kept in the other parts:
`Split.cold` counts them, `Split.warm()` drops them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from talos.checks import is_integer, of_type, require
from talos.data.databases import without_password
from talos.data.event_weights import in_seconds
from talos.data.interactions import Interactions, Provenance
from talos.data.options import SplitBy
from talos.errors import ConfigError, DataError, Option
from talos.files import locked_folder

__all__ = [
    "Split",
    "how_to_split",
    "k_core",
    "last_of_each",
    "leave_one",
    "min_rating",
    "no_timestamps",
    "predefined",
    "random_share",
    "split",
    "write_split",
]


def min_rating(data: Interactions, minimum: float) -> Interactions:
    """Keep the interactions rated `minimum` or higher, and the users and items that still have any.

    >>> data = Interactions.from_ids(["a", "a"], ["x", "y"], ratings=[5, 2])
    >>> len(min_rating(data, 3))
    1
    """
    if data.ratings is None:
        raise DataError("no ratings", where=data.provenance.source, expected="a rating column to filter by")
    kept = data.where(data.ratings >= minimum)
    require(
        len(kept) > 0,
        f"no rating of {minimum:g} or higher",
        where=data.provenance.source,
        expected="at least one",
        error=DataError,
    )
    return kept.compact()


def k_core(data: Interactions, k: int) -> Interactions:
    """The largest subset in which every user and every item has at least `k` interactions.

    Users and items with fewer are removed until there are none; the order does not change the result.

    >>> data = Interactions.from_ids([1, 1, 2, 2, 3], [7, 8, 7, 8, 9])
    >>> k_core(data, 2).user_ids.ids.to_list()
    [1, 2]
    """
    require(k >= 1, f"{k}", where="k_core", expected="1 or more")
    while len(data):
        keep = (data.user_degrees >= k)[data.rows] & (data.item_degrees >= k)[data.indices]
        if keep.all():
            return data.compact()
        data = data.where(keep)
    raise DataError(
        f"nothing is left after {k}-core",
        where=data.provenance.source,
        expected=f"a k below {k}, or more data",
    )


@dataclass(frozen=True, kw_only=True)
class Split:
    """Train, validation (None if there is none) and test over the same vocabularies.

    `how` says how the split was made: the arguments of `split`, or `{"by": "predefined"}`. It unpacks as
    `train, valid, test`.
    """

    train: Interactions
    valid: Interactions | None
    test: Interactions
    how: dict[str, Any] = field(default_factory=dict)

    @property
    def parts(self) -> dict[str, Interactions]:
        """The parts that exist, by name."""
        parts = {"train": self.train, "valid": self.valid, "test": self.test}
        return {name: part for name, part in parts.items() if part is not None}

    def cold(self, part: str = "test") -> dict[str, int]:
        """Count the users and items of a part that are absent from train, and their interactions in that part.

        >>> data = Interactions.from_ids([1, 2, 2], [7, 7, 8])
        >>> Split(train=data.where(data.rows == 0), valid=None, test=data.where(data.rows == 1)).cold()
        {'users': 1, 'items': 1, 'interactions_of_cold_users': 2, 'interactions_of_cold_items': 1}
        """
        data = self.parts[part]
        cold_user = (self.train.user_degrees == 0) & (data.user_degrees > 0)
        cold_item = (self.train.item_degrees == 0) & (data.item_degrees > 0)
        return {
            "users": int(cold_user.sum()),
            "items": int(cold_item.sum()),
            "interactions_of_cold_users": int(data.user_degrees[cold_user].sum()),
            "interactions_of_cold_items": int(data.item_degrees[cold_item].sum()),
        }

    def cold_notes(self) -> list[str]:
        """A line for each part that has users or items without training events.

        >>> data = Interactions.from_ids([1, 2, 2], [7, 7, 8])
        >>> Split(train=data.where(data.rows == 0), valid=None, test=data.where(data.rows == 1)).cold_notes()
        ['test: 1 of 1 users and 1 of 2 items have no training events']
        """
        notes = []
        for name, part in self.parts.items():
            cold, items = self.cold(name), int((part.item_degrees > 0).sum())
            if cold["users"] or cold["items"]:
                notes.append(
                    f"{name}: {cold['users']:,} of {part.active_users:,} users and {cold['items']:,} of "
                    f"{items:,} items have no training events"
                )
        return notes

    def warm(self) -> Split:
        """The split without the validation and test interactions of users or items that are absent from train."""
        known_user, known_item = self.train.user_degrees > 0, self.train.item_degrees > 0
        parts = {
            name: part.where(known_user[part.rows] & known_item[part.indices])
            for name, part in self.parts.items()
        }
        return replace(self, **parts, how={**self.how, "warm": True})

    def __iter__(self) -> Any:
        return iter((self.train, self.valid, self.test))

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name} {len(part):,}" for name, part in self.parts.items())
        return f"Split({sizes}; {self.train.num_users:,} users × {self.train.num_items:,} items)"


def split(
    data: Interactions,
    *,
    test: float = 0.2,
    valid: float = 0.1,
    by: SplitBy = "user",
    seed: int = 0,
    paper: bool = False,
) -> Split:
    """Divide interactions into train, validation and test.

    By `user`, a user's share is rounded up or down at random, so that the parts have the shares that were asked for
    also where users have few interactions. Every user keeps at least one in train: a user with a single one is in no
    other part. By `time`, the draw for validation leaves every user one as well.

    Args:
        data: the interactions to divide.
        test: share of the interactions for test; ignored by `last`.
        valid: share of the rest for validation, 0 for none; with `last`, any share above 0 means one interaction
            per user.
        by: `user`: at random within each user; `time`: the latest of all interactions for test (the paper's temporal
            shift), and a random draw from the rest for validation; `future`: the latest for test, and the latest of
            the rest for validation, so that what is chosen on validation has been tried on what came later; `last`:
            each user's last interaction for test and the one before it for validation, while users with too few
            interactions keep theirs in train.
        seed: of the random draws; the same seed gives the same split.
        paper: split as the paper does: by `user`, shares are rounded up for every user, and nobody is kept in train.

    >>> data = Interactions.from_ids([1] * 10, list(range(10)))
    >>> split(data, seed=1)
    Split(train 7, valid 1, test 2; 1 users × 10 items)
    """
    how = how_to_split(by, test, valid, seed) | ({"paper": True} if paper else {})
    if by != "user":
        if data.timestamps is None:
            raise no_timestamps(data.provenance, by)
        in_seconds(data.timestamps)  # refuses times of different units
    rng = np.random.default_rng(seed)
    if by == "last":
        in_test, in_valid = last_of_each(data, with_valid=valid > 0)
    else:
        in_test = random_share(data, test, rng, paper=paper) if by == "user" else _latest_share(data, test)
        rest = data.where(~in_test)
        if by == "user":
            picked = random_share(rest, valid, rng, paper=paper)
        elif by == "time":
            picked = np.zeros(len(rest), bool)
            picked[rng.permutation(len(rest))[: round(valid * len(rest))]] = True
            picked = picked if paper else leave_one(rest, picked)
        else:
            picked = _latest_share(rest, valid)
        in_valid = np.zeros(len(data), bool)
        in_valid[~in_test] = picked
    require(
        by != "user" or test == 0 or len(data) == 0 or bool((data.user_degrees > 1).any()),
        "no user has more than one interaction, so none can be held out",
        where=data.provenance.source,
        expected="users with two or more",
        hint="test=0 and valid=0 train without holding anything out",
        error=DataError,
    )
    parts = Split(
        train=data.where(~in_test & ~in_valid),
        valid=data.where(in_valid) if in_valid.any() else None,
        test=data.where(in_test),
        how=how,
    )
    _check_overlap(parts)
    return parts


def no_timestamps(read: Provenance, by: str) -> DataError:
    """The error about data without times that are to be split by them; names the columns that were not read."""
    return DataError(
        "no timestamps",
        where=read.source,
        expected=f"a time column to split by {by}",
        hint=f"columns not read: {', '.join(map(repr, read.unused[:12]))}" if read.unused else None,
        option=Option("timestamp", "NAME", "names it"),
    )


def how_to_split(by: str, test: Any, valid: Any, seed: Any) -> dict[str, Any]:
    """The arguments of `split` as `Split.how` has them; an error names a wrong one."""
    of_type("by", by, SplitBy)
    for name, share in (("test", test), ("valid", valid)):
        require(
            0 <= of_type(name, share, float) < 1,
            f"{share!r}",
            where=name,
            expected="a share from 0 to below 1",
            error=ConfigError,
        )
    require(
        is_integer(seed) and seed >= 0,
        f"{seed!r}",
        where="split_seed",
        expected="a whole number from 0 on",
        error=ConfigError,
    )
    return {"by": by, "seed": seed} | ({} if by == "last" else {"test": test, "valid": valid})


def predefined(train: Interactions, valid: Interactions | None, test: Interactions) -> Split:
    """A split that was made elsewhere; its parts must share vocabularies, and train and test must share users."""
    parts = Split(train=train, valid=valid, test=test, how={"by": "predefined"})
    for name, part in parts.parts.items():
        require(
            part.user_ids == train.user_ids and part.item_ids == train.item_ids,
            "other users or items than train",
            where=name,
            expected="shared vocabularies",
        )
    _check_overlap(parts)
    return parts


def _check_overlap(parts: Split) -> None:
    shared = (parts.train.user_degrees > 0) & (parts.test.user_degrees > 0)
    require(
        len(parts.test) == 0 or bool(shared.any()),
        "the test part has no user in common with train",
        where=parts.test.provenance.source,
        expected="at least one user of train",
        error=DataError,
    )


def random_share(
    data: Interactions, share: float, rng: np.random.Generator, *, paper: bool = False
) -> NDArray[np.bool_]:
    """A flag per interaction, true for a random share of each user's.

    `share · degree` is rounded up or down at random, so that its mean over users is exact, and every user keeps one
    interaction. As in the `paper`, it is rounded up, and nothing need be kept.
    """
    if share == 0 or len(data) == 0:
        return np.zeros(len(data), bool)
    degrees, noise = data.user_degrees, rng.random(len(data))
    # sorting by user + noise in [0, 1) keeps the order of users and shuffles within each
    order = pl.Series(data.rows + noise).arg_sort().to_numpy()
    # the small offset absorbs rounding errors: 0.2 · 5 is 1, not more
    quota = share * degrees - 1e-9
    if not paper:
        # the sum of a user's noise modulo 1 is uniform, and independent of the order of the noise
        active = degrees > 0
        quota[active] -= np.add.reduceat(noise, data.indptr[:-1][active]) % 1
        quota = np.minimum(quota, degrees - 1)
    quota = np.ceil(quota).astype(np.int64)
    rank_in_user = np.arange(len(data)) - np.repeat(data.indptr[:-1], degrees)
    chosen = np.zeros(len(data), bool)
    chosen[order] = rank_in_user < np.repeat(quota, degrees)
    return chosen


def leave_one(data: Interactions, picked: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The flags `picked`, without the first interaction of each user of whom all are picked.

    >>> data = Interactions.from_ids([1, 2, 2], [7, 7, 8])
    >>> leave_one(data, np.array([True, True, False])).tolist()
    [False, True, False]
    """
    count = np.bincount(data.rows[picked], minlength=data.num_users)
    picked = picked.copy()
    picked[data.indptr[:-1][(count > 0) & (count == data.user_degrees)]] = False
    return picked


def _latest_share(data: Interactions, share: float) -> NDArray[np.bool_]:
    """A flag per interaction, true for the latest `share` of all; equal times are ordered by user and item."""
    stamps: Any = data.timestamps
    chosen = np.zeros(len(data), bool)
    chosen[np.argsort(stamps, kind="stable")[len(data) - round(share * len(data)) :]] = True
    return chosen


def last_of_each(data: Interactions, *, with_valid: bool) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Two flags per interaction: each user's last, for test, and the one before it, for validation.

    Equal times are in the order of the source. Users with too few interactions to keep one in train have no flag set.
    """
    order, _ = data.in_time_order()
    from_end = np.repeat(data.indptr[1:], data.user_degrees) - 1 - np.arange(len(data))
    enough = np.repeat(data.user_degrees > (2 if with_valid else 1), data.user_degrees)
    in_test, in_valid = np.zeros(len(data), bool), np.zeros(len(data), bool)
    in_test[order] = enough & (from_end == 0)
    in_valid[order] = enough & (from_end == 1) & with_valid
    return in_test, in_valid


def write_split(
    parts: Split,
    out: Path,
    *,
    format: Literal["tsv", "parquet"] = "tsv",  # noqa: A002  # the word users know
    source: str,
    cleaned: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Write `train`, `valid` and `test` files, and a `split.json` that says how they were made.

    The folder appears under its name only when it is complete; an existing folder must be empty.

    Args:
        parts: the split.
        out: the folder.
        format: of the files.
        source: what the split was made from, for `split.json`.
        cleaned: how the source was cleaned, for `split.json`.

    Returns:
        The content of `split.json`.
    """
    record: dict[str, Any] = {
        "source": without_password(source),
        "how": parts.how,
        "cleaned": {name: value for name, value in (cleaned or {}).items() if value is not None},
        "format": format,
        "parts": {
            name: {
                "users": part.active_users,
                "items": int((part.item_degrees > 0).sum()),
                "interactions": len(part),
            }
            for name, part in parts.parts.items()
        },
        "cold": {name: parts.cold(name) for name in ("valid", "test") if name in parts.parts},
    }
    with locked_folder(out, purpose="writing a split", new=True) as staging:
        for name, part in parts.parts.items():
            if format == "tsv":
                part.to_polars().write_csv(staging / f"{name}.tsv", separator="\t")
            else:
                part.to_polars().write_parquet(staging / f"{name}.parquet")
        (staging / "split.json").write_text(json.dumps(record, indent=2) + "\n")
    return record
