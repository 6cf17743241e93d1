"""Shards: a split larger than memory, in a folder with separate files for ranges of consecutive users.

`write_shards` makes the folder from a source of any size, and `read_shards` reads all of it as a `Split`;
`talos.distributed.share` reads one process's part of the split. The split does not depend on the number of shards.

To write them, rows become codes in files sorted by user, then distinct pairs in files of consecutive users (`_Rows`).
Each pair gets the number of its part, and the pairs are written once more, shard by shard and part by part.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, starmap
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray
from pydantic import BaseModel, Field, ValidationError, model_validator

from talos.checks import positive_integer, require
from talos.data.arrays import Codes
from talos.data.interactions import Interactions, Provenance, fingerprint_of, titles_by_item, values_in
from talos.data.options import SourceOptions, SplitBy
from talos.data.parquet import scan_file
from talos.data.read.clean import polars_errors
from talos.data.source import SHARDS, Pass, Source, id_columns, read_through
from talos.data.splits import Split, how_to_split, last_of_each, leave_one, no_timestamps, random_share
from talos.data.vocabulary import Vocabulary
from talos.errors import ConfigError, DataError, TalosError, first_line
from talos.files import checksum_of, expanded, locked_folder, read_sealed, write_sealed

__all__ = ["DEFAULT_ROWS", "ShardIndex", "read_fit_shards", "read_shards", "write_shards"]

_FORMAT = 2
_PARTS = ("train", "valid", "test")
_AS_WRITTEN = "the file as it was written"

DEFAULT_ROWS = 1 << 20
"""Rows held in memory at a time."""

# Rows per row group, all of which are decoded if any is wanted: at each end of a range of users, up to so many others.
_ROW_GROUP = 1 << 16

Degrees: TypeAlias = NDArray[np.int64]
"""Interactions of each user or item in each part, (3, number of users or items)."""


def _part_file(shard: int, part: str) -> str:
    """The name of the file that holds a shard's interactions of a part."""
    return f"shard-{shard:04d}/{part}.parquet"


class _ShardFile(BaseModel, frozen=True):
    """A parquet file of the folder."""

    rows: int
    checksum: str


class ShardIndex(BaseModel, frozen=True):
    """The content of `shards.json`.

    Attributes:
        folder: the folder of shards.
        num_users: rows of `users.parquet`.
        num_items: rows of `items.parquet`.
        columns: `timestamp` and `rating`, if the parts have them.
        parts: `interactions`, `users` (those with interactions) and `fingerprint` of each part.
        shards: the first of each shard's users and the end of them; together the shards have all users, in order.
        files: all files, by their names within the folder.
        how: how the split was made, as in `talos.data.splits.Split.how`.
        provenance: of the source.
    """

    folder: Path
    num_users: int = Field(alias="users")
    num_items: int = Field(alias="items")
    columns: tuple[str, ...]
    parts: Mapping[str, Mapping[str, Any]]
    shards: tuple[tuple[int, int], ...]
    files: Mapping[str, _ShardFile]
    how: Mapping[str, Any]
    provenance: Provenance = Field(alias="source")

    @classmethod
    def read(cls, folder: str | Path) -> ShardIndex:
        """Read and check `shards.json`; a `DataError` if it was edited or is damaged."""
        folder = expanded(folder)
        path = folder / SHARDS
        record = read_sealed(path, hint="write the shards again", format=_FORMAT)
        try:
            index = cls.model_validate({**record, "folder": folder})
        except ValidationError as error:
            raise DataError(
                f"is damaged: {error.errors()[0]['msg']}", where=str(path), expected=_AS_WRITTEN
            ) from None
        provenance = replace(index.provenance, source=str(folder), format="shards")
        return index.model_copy(update={"provenance": provenance})

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        edges = [0, *(edge for users in self.shards for edge in users), self.num_users]
        files = {_part_file(shard, part) for shard in range(len(self.shards)) for part in self.parts}
        if (
            edges != sorted(edges)
            or edges[::2] != edges[1::2]
            or not {"train", "test"} <= set(self.parts) <= set(_PARTS)
            or set(self.files) != {"users.parquet", "items.parquet", *files}
            or self.files["users.parquet"].rows != self.num_users
            or self.files["items.parquet"].rows != self.num_items
        ):
            raise ValueError("users, items, parts or files are missing")
        return self

    def collect(self, name: str, query: Callable[[pl.LazyFrame], pl.LazyFrame]) -> pl.DataFrame:
        """What a query gives for a file, once its checksum and its number of rows are found to be right."""
        path, written = self.folder / name, self.files[name]
        check = partial(require, where=str(path), error=DataError)
        with polars_errors(str(path), _AS_WRITTEN):
            unchanged = checksum_of(path) == written.checksum
            check(unchanged, "differs from its checksum in shards.json", expected=_AS_WRITTEN)
            scan = scan_file(path)
            rows = scan.select(pl.len()).collect().item()
            check(rows == written.rows, f"{rows:,} rows", expected=f"{written.rows:,}")
            return query(scan).collect()

    def table(self, kind: str, rows: range | None = None) -> pl.DataFrame:
        """Consecutive rows of `users.parquet` or `items.parquet`; all if None."""
        name = f"{kind}s.parquet"
        rows = range(self.files[name].rows) if rows is None else rows
        table = self.collect(name, lambda scan: scan.slice(rows.start, len(rows)))
        ids = table[f"{kind}_id"]
        require(
            ids.dtype in (pl.String, pl.Int64) and not ids.null_count() and (ids[1:] > ids[:-1]).all(),
            "ids that are not distinct and ascending",
            where=str(self.folder / name),
            expected=_AS_WRITTEN,
            error=DataError,
        )
        return table

    def matrix(
        self, part: str, users: range, items: range, columns: Sequence[str] = ()
    ) -> tuple[NDArray[np.int64], pl.DataFrame]:
        """Consecutive users × consecutive items of a part as CSR.

        Of other users, at most the rest of a row group is read.

        Returns:
            (users + 1,) row ends; and a table of `item`, counted from the first of all items, and the given columns.
        """
        indptr = np.zeros(len(users) + 1, np.int64)
        found = [pl.DataFrame(schema={"item": pl.Int32})]
        in_items = pl.lit(items == range(self.num_items)) | pl.col("item").is_between(
            items.start, items.stop - 1
        )
        for shard, (first, end) in enumerate(self.shards):
            low, high = max(first, users.start), min(end, users.stop)
            if low >= high:
                continue
            whole = (low, high) == (first, end)
            wanted = in_items if whole else in_items & pl.col("user").is_between(low, high - 1)
            name = _part_file(shard, part)
            rows = self.collect(name, lambda scan: scan.filter(wanted).select("user", "item", *columns))  # noqa: B023
            user, item = rows["user"].to_numpy(), rows["item"].to_numpy()
            require(
                user.dtype == item.dtype == np.int32
                and 0 <= item.min(initial=0) <= item.max(initial=0) < self.num_items
                and bool((np.diff(user.astype(np.int64) * self.num_items + item) > 0).all())
                and (rows.is_empty() or low <= user[0] <= user[-1] < high),
                "rows of another type, order or range than shards.json says",
                where=str(self.folder / name),
                expected=_AS_WRITTEN,
                error=DataError,
            )
            indptr[1:] += np.bincount(user - np.int32(users.start), minlength=len(users))
            found.append(rows.drop("user"))
        return np.cumsum(indptr), pl.concat(found, how="diagonal")

    def interactions(
        self, names: Iterable[str], users: range, columns: Sequence[str] = ()
    ) -> dict[str, Interactions]:
        """Some parts of the interactions of consecutive users, over shared vocabularies."""
        items = self.table("item")
        user_ids, item_ids = Vocabulary(self.table("user", users)["user_id"]), Vocabulary(items["item_id"])
        parts = {}
        for name in names:
            indptr, rows = self.matrix(name, users, range(self.num_items), columns)
            parts[name] = Interactions(
                indptr=indptr,
                indices=rows["item"].to_numpy(),
                user_ids=user_ids,
                item_ids=item_ids,
                item_titles=items["title"] if "title" in items.columns else None,
                provenance=self.provenance,
                **values_in(rows),
            )
        return parts


def read_shards(folder: str | Path) -> Split:
    """Read all shards as one `Split`.

    Raises:
        DataError: a file is missing, was changed, or disagrees with `shards.json`.

    >>> import tempfile
    >>> data = Interactions.from_ids([1] * 10 + [2] * 5, [*range(10), *range(5)])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = write_shards(data, Path(folder, "out"), shards=2)
    ...     read_shards(Path(folder, "out"))
    Split(train 11, valid 1, test 3; 2 users × 10 items)
    """
    index = ShardIndex.read(folder)
    parts = index.interactions(index.parts, range(index.num_users), index.columns)
    return Split(train=parts["train"], valid=parts.get("valid"), test=parts["test"], how=dict(index.how))


def read_fit_shards(folder: str | Path) -> tuple[Interactions, Interactions | None]:
    """Read train and, if there is one, validation, without opening the files of the test part."""
    index = ShardIndex.read(folder)
    parts = index.interactions(index.parts.keys() - {"test"}, range(index.num_users), index.columns)
    return parts["train"], parts.get("valid")


# ---------------------------------------------------------------------- writing


def write_shards(
    source: str | Path | Source | Interactions,
    out: Path,
    *,
    shards: int,
    by: SplitBy = "user",
    test: float = 0.2,
    valid: float = 0.1,
    seed: int = 0,
    min_rating: float | None = None,
    rows_at_once: int = DEFAULT_ROWS,
    name: str | None = None,
    notify: Callable[[str], None] = lambda line: None,
    options: SourceOptions | None = None,
    **changes: Any,
) -> dict[str, Any]:
    r"""Split interactions into train, validation and test, and write them as shards.

    A folder with train and test files is split already: its parts stay as they are, and `by`, `test`, `valid` and
    `seed` have no effect. No pair may be in two of them.

    Holds about `rows_at_once` rows in memory, and the ids of users and items with a few numbers each; everything else
    goes through temporary files beside `out`. Ids, duplicates and errors are those of `talos.read`. The split depends
    on the data and the seed, not on the number of shards. By `user`, `last` and `future` it is that of
    `talos.data.splits.split`; by `time` the test part is the same, and validation is another random draw of the same
    size.

    The folder appears under its name only when it is complete. It has `shards.json`, `users.parquet` and
    `items.parquet` (positions are row numbers), and `shard-0000/train.parquet`, … with user and item positions,
    sorted. A shard has consecutive users, and all have about the same number of interactions.

    Args:
        source: a file, a folder of files that are one table, a folder of train and test files, or interactions.
        out: the folder to write; must not exist or be empty.
        shards: how many shards.
        by: `user`, `time` or `last`, see `talos.data.splits.split`.
        test: share for test.
        valid: share of the rest for validation.
        seed: of the random draws.
        min_rating: drop ratings below this.
        rows_at_once: rows held in memory at a time.
        name: what `shards.json` calls the source; its path if None.
        notify: called with a line on the progress.
        options: how to read the source.
        **changes: options by name, as in `talos.read`.

    Returns:
        The content of `shards.json`.

    >>> data = Interactions.from_ids([1] * 10 + [2] * 5, [*range(10), *range(5)])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     record = write_shards(data, Path(folder, "out"), shards=2)
    >>> record["shards"], record["parts"]["test"]["interactions"]
    ([[0, 1], [1, 2]], 3)
    """
    found = Source.of(source)
    split_already = found.kind == "parts"
    require(
        "test" in found.parts or not split_already,
        "has a train file and no test file",
        where=found.name,
        expected="a test set",
        error=DataError,
    )
    how = {"by": "predefined"} if split_already else how_to_split(by, test, valid, seed)
    positive_integer("shards", shards)
    positive_integer("rows_at_once", rows_at_once)
    try:
        with (
            locked_folder(out, purpose="writing shards", new=True) as staging,
            tempfile.TemporaryDirectory(dir=staging) as scratch,
        ):
            folder = Path(scratch)
            if isinstance(found.data, Interactions):
                rows = _Rows.of(found.data, folder)
            else:
                into = partial(_Rows.read, folder=folder)
                rows = read_through(found, SourceOptions.of(options, **changes), into, rows=rows_at_once)
            if rows.provenance.guesses:
                notify(f"{rows.provenance.source}: {rows.provenance.guesses}")
            notify(f"{rows.provenance.rows:,} rows read")
            pairs = rows.distinct(rows_at_once, min_rating)
            number = int(scan_file(pairs.files).select(pl.len()).collect().item())
            users, origin = len(pairs.user_ids), pairs.provenance
            if not split_already and by != "user" and "timestamp" not in pairs.columns:
                raise no_timestamps(origin, by)
            require(
                shards <= users,
                f"{shards}",
                where="shards",
                expected=f"at most {users:,}, the number of users",
                error=ConfigError,
            )
            notify(f"{number:,} interactions of {users:,} users are sorted")
            if not split_already:
                _add_parts(pairs, number, by=by, test=test, valid=valid, seed=seed)
            user_degrees, item_degrees = pairs.degrees("user"), pairs.degrees("item")
            in_train, in_test = user_degrees[0] > 0, user_degrees[-1] > 0
            require(
                bool((in_train & in_test).any()) or not in_test.any(),
                "the test part has no user in common with train",
                where=origin.source,
                expected="at least one user of train",
                error=DataError,
            )
            record: dict[str, Any] = {
                "format": _FORMAT,
                "source": {
                    "path": name or origin.source,
                    "format": origin.format,
                    "rows": origin.rows,
                    "bad_rows": origin.bad_rows,
                    "duplicates": origin.duplicates,
                    "notes": list(origin.notes),
                },
                "how": how,
                "cleaned": {} if min_rating is None else {"min_rating": min_rating},
                "users": users,
                "items": len(pairs.item_ids),
                "columns": [name for name in ("timestamp", "rating") if name in pairs.columns],
                **_write_files(pairs, user_degrees, item_degrees, shards, staging),
            }
            write_sealed(staging / SHARDS, record)
    except (
        OSError,
        pl.exceptions.PolarsError,
    ) as error:  # of the disk: errors in the source are `DataError`s
        raise TalosError(f"{out} could not be written ({first_line(error)[:160]})") from error
    return record


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """Rows in files that are sorted by user; the rows of a user are in the order of the source, file after file.

    Attributes:
        folder: of the files.
        files: with columns `user` and `item`, which are codes, and others.
        columns: those that all files have.
        user_ids: the id of each code.
        item_ids: the id of each code.
        titles: the title of each item, None if there are none.
        provenance: of the source.

    >>> import tempfile
    >>> data = Interactions.from_ids(["b", "a", "a"], [1, 2, 3])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     rows = _Rows.of(data, Path(folder))
    ...     [bucket.rows() for bucket in rows.buckets(1)]
    [[(0, 1), (0, 2)], [(1, 0)]]
    """

    folder: Path
    files: Sequence[Path]
    columns: Sequence[str]
    user_ids: Vocabulary
    item_ids: Vocabulary
    titles: pl.Series | None
    provenance: Provenance

    @classmethod
    def read(cls, one: Pass, folder: Path) -> _Rows:
        """The rows of a pass, each with the number of its `part` where the source is split already."""
        ids = id_columns(one)
        files, columns = list[Path](), list[str]()
        titles = pl.DataFrame(schema={"item": pl.Int32, "title": pl.String})
        for part, block in one:
            rows = block.frame
            if rows.is_empty():
                continue
            for role, column in ids.items():
                rows = rows.with_columns(pl.Series(role, column.codes_of(rows[role], text=one.text)))
            if one.source.kind == "parts":
                rows = rows.with_columns(part=pl.lit(_PARTS.index(part), pl.Int8))
            columns = [name for name in (columns if files else rows.columns) if name in rows.columns]
            if "title" in columns:
                titles = titles.vstack(rows.select("item", "title")).unique("item", keep="last")
            files.append(folder / f"rows-{len(files):06d}.parquet")
            rows = rows.drop("title", strict=False).with_columns(pl.col("^rating$").cast(pl.Float32))
            _rewrite(rows, files[-1])
        (user_ids, user_codes), (item_ids, item_codes) = (column.order() for column in ids.values())
        for file in files:
            _recode(file, user_codes, item_codes)
        codes = item_codes[titles["item"]]
        return cls(
            folder=folder,
            files=files,
            columns=[name for name in columns if name != "title"],
            user_ids=user_ids,
            item_ids=item_ids,
            titles=titles_by_item(codes, len(item_ids), titles["title"]) if "title" in columns else None,
            provenance=one.provenance(),
        )

    @classmethod
    def of(cls, data: Interactions, folder: Path) -> _Rows:
        """The rows of interactions that are in memory."""
        rows, file = data.to_frame(user=data.rows, item=data.indices), folder / "rows.parquet"
        if data.source_rows is not None:
            rows = rows[np.lexsort((data.source_rows, data.rows))]
        _rewrite(rows, file)
        return cls(
            folder=folder,
            files=[file],
            columns=rows.columns,
            user_ids=data.user_ids,
            item_ids=data.item_ids,
            titles=data.item_titles,
            provenance=data.provenance,
        )

    def timestamps(self) -> Iterator[NDArray[Any]]:
        """All timestamps, those of a file at a time."""
        for file in self.files:
            yield scan_file(file).select("timestamp").collect()["timestamp"].to_numpy()

    def buckets(self, size: int) -> Iterator[pl.DataFrame]:
        """All rows in buckets of consecutive users, with about `size` rows each."""
        degrees = np.zeros(len(self.user_ids), np.int64)
        for file in self.files:
            some, counts = np.unique(scan_file(file).select("user").collect().to_series(), return_counts=True)
            degrees[some] += counts
        upto = np.cumsum(degrees)
        full = np.searchsorted(upto, np.arange(size, upto[-1], size)) + 1
        for users in starmap(range, pairwise(np.unique([0, *full, len(upto)]).tolist())):
            inside = pl.col("user").is_between(users.start, users.stop - 1)
            rows = [scan_file(file).filter(inside).select(self.columns).collect() for file in self.files]
            if any(map(len, rows)):  # interactions in memory may have users without any
                yield pl.concat(rows, how="vertical_relaxed")

    def distinct(self, size: int, min_rating: float | None) -> _Rows:
        """Each pair once, as in `Interactions`, without low ratings, and without ids that have no pair left.

        Every file has all rows of consecutive users, about `size` of them, sorted by user and item.
        """
        source = self.provenance.source
        require(
            min_rating is None or "rating" in self.columns,
            "no ratings",
            where=source,
            expected="a rating column to filter by",
            error=DataError,
        )
        files, duplicates = list[Path](), 0
        with_user, with_item = np.zeros(len(self.user_ids), bool), np.zeros(len(self.item_ids), bool)
        for bucket in self.buckets(size):
            data = _interactions(bucket, len(self.item_ids))
            if "part" in self.columns:
                placed = bucket.unique(["user", "item", "part"])
                twice = placed.filter(placed.select("user", "item").is_duplicated()).sort("user", "item")
                if len(twice):
                    user, item = twice.select("user", "item").row(0)
                    what = f"user {self.user_ids.ids[user]!r} and item {self.item_ids.ids[item]!r}"
                    raise DataError(
                        f"{what} are together in two parts", where=source, expected="every pair in one part"
                    )
            assert data.source_rows is not None
            pairs = bucket.with_row_index("source_row")[data.source_rows]
            duplicates += len(bucket) - len(pairs)
            if data.ratings is not None and min_rating is not None:
                pairs = pairs.filter(data.ratings >= min_rating)
            if len(pairs):
                files.append(self.folder / f"pairs-{len(files):06d}.parquet")
                _rewrite(pairs, files[-1])
            with_user[pairs["user"]] = True
            with_item[pairs["item"]] = True
        what = "no interactions" if min_rating is None else f"no rating of {min_rating:g} or higher"
        require(bool(files), what, where=source, expected="at least one", error=DataError)
        if not (with_user.all() and with_item.all()):
            for file in files:
                _recode(
                    file, np.cumsum(with_user, dtype=np.int32) - 1, np.cumsum(with_item, dtype=np.int32) - 1
                )
        return replace(
            self,
            files=files,
            user_ids=Vocabulary(self.user_ids.ids.filter(with_user)),
            item_ids=Vocabulary(self.item_ids.ids.filter(with_item)),
            titles=None if self.titles is None else self.titles.filter(with_item),
            provenance=replace(self.provenance, duplicates=self.provenance.duplicates + duplicates),
        )

    def degrees(self, role: Literal["user", "item"]) -> Degrees:
        """How many pairs each user or item has in each part."""
        degrees = np.zeros((len(_PARTS), len(self.user_ids if role == "user" else self.item_ids)), np.int64)
        for file in self.files:
            counts = scan_file(file).group_by("part", role).len().collect()
            degrees[counts["part"], counts[role]] += counts["len"].to_numpy()
        return degrees


class Smallest:
    """Flags the `count` smallest of numbers that arrive in blocks; of equal numbers, the first ones.

    All numbers are written to a temporary file in `folder` and partitioned there: memory does not grow with them.

    >>> blocks = [np.array([5, 3]), np.array([9, 3])]
    >>> smallest = Smallest(blocks, 3)
    >>> [smallest.of(block).tolist() for block in blocks]
    [[True, True], [False, True]]
    """

    def __init__(self, blocks: Iterable[NDArray[Any]], count: int, folder: Path | None = None) -> None:
        with tempfile.TemporaryFile(dir=folder) as file:
            for block in blocks:
                file.write(block.tobytes())
            file.flush()
            numbers = np.memmap(file, block.dtype, "r+")
            numbers.partition(max(count - 1, 0))
            self.bound = numbers[max(count - 1, 0)]
            below = sum(
                np.count_nonzero(numbers[start : start + DEFAULT_ROWS] < self.bound)
                for start in range(0, count, DEFAULT_ROWS)
            )
        self.equals = count - below

    def of(self, numbers: NDArray[Any]) -> NDArray[np.bool_]:
        """The flags of the next block."""
        chosen: NDArray[np.bool_] = numbers < self.bound
        equal = np.flatnonzero(numbers == self.bound)[: self.equals]
        chosen[equal] = True
        self.equals -= len(equal)
        return chosen


def _add_parts(pairs: _Rows, total: int, *, by: SplitBy, test: float, valid: float, seed: int) -> None:
    """Write beside each pair which part it belongs to.

    The split depends on the data and the seed alone, not on the size of the files. By `user`, `last` and `future` it is
    that of `talos.data.splits.split`: the generator for validation is advanced past the draws that were made for test.
    """
    for_test, for_valid = np.random.default_rng(seed), np.random.default_rng(seed)
    if by == "user" and test > 0:
        # `default_rng(seed)` after one draw of `random()` for each interaction
        for_valid = np.random.Generator(np.random.PCG64(seed).advance(total))
    early = total - round(test * total)
    num_valid = round(valid * early)
    if by in ("time", "future"):
        earlier = Smallest(pairs.timestamps(), early, pairs.folder)
    if by == "future":
        earliest = Smallest(pairs.timestamps(), early - num_valid, pairs.folder)
    elif by == "time":
        rng, count = np.random.default_rng(seed), max(early, 1)
        draws = (rng.random(min(DEFAULT_ROWS, count - start)) for start in range(0, count, DEFAULT_ROWS))
        drawn = Smallest(draws, num_valid, pairs.folder)
    for file in pairs.files:
        rows = scan_file(file).collect()
        data = _interactions(rows, len(pairs.item_ids))
        in_valid = np.zeros(len(data), bool)
        if by == "last":
            in_test, in_valid = last_of_each(data, with_valid=valid > 0)
        elif by == "user":
            in_test = random_share(data, test, for_test)
            in_valid[~in_test] = random_share(data.where(~in_test), valid, for_valid)
        else:
            stamps = rows["timestamp"].to_numpy()
            in_test = ~earlier.of(stamps)
            if by == "future":
                in_valid = ~in_test & ~earliest.of(stamps)
            else:
                rest = data.where(~in_test)
                in_valid[~in_test] = leave_one(rest, drawn.of(for_valid.random(len(rest))))
        _rewrite(rows.with_columns(part=np.where(in_test, 2, in_valid).astype(np.int8)), file)


def _interactions(rows: pl.DataFrame, num_items: int) -> Interactions:
    """Rows of consecutive users, with codes for ids."""
    users = rows["user"].to_numpy()
    users = users - users.min()
    return Interactions.from_codes(
        users,
        rows["item"].to_numpy(),
        user_ids=Vocabulary(pl.int_range(int(users.max()) + 1, eager=True)),
        item_ids=Vocabulary(pl.int_range(num_items, eager=True)),
        source_rows=rows["source_row"].to_numpy() if "source_row" in rows.columns else None,
        **values_in(rows),
    )


def _rewrite(rows: pl.DataFrame, file: Path) -> None:
    """Replace a file, of which the rows may be a view."""
    file.unlink(missing_ok=True)
    rows.write_parquet(file, row_group_size=_ROW_GROUP, compression="lz4")


def _recode(file: Path, user_codes: Codes, item_codes: Codes) -> None:
    """Replace the codes of a file, and sort it by user."""
    rows = scan_file(file).collect()
    rows = rows.with_columns(user=user_codes[rows["user"]], item=item_codes[rows["item"]])
    _rewrite(rows.sort("user", maintain_order=True), file)


def _write_files(
    pairs: _Rows, user_degrees: Degrees, item_degrees: Degrees, shards: int, out: Path
) -> dict[str, Any]:
    """Write the files of all shards; returns what `shards.json` says about them."""
    # as in `talos.data.splits.split`, there is no empty validation part
    codes = {part: code for code, part in enumerate(_PARTS) if part != "valid" or user_degrees[code].any()}
    # a user belongs to the shard that the number of interactions of all users before falls into
    degrees = user_degrees.sum(axis=0)
    before = np.cumsum(degrees) - degrees
    ends = np.searchsorted(before * shards, np.arange(1, shards + 1) * degrees.sum()).tolist()
    users_of = [[start, end] for start, end in pairwise([0, *ends])]
    record: dict[str, Any] = {"parts": {}, "cold": {}, "shards": users_of, "files": {}}
    titles = {} if pairs.titles is None else {"title": pairs.titles}
    for name, columns, degrees in (
        ("users.parquet", {"user_id": pairs.user_ids.ids}, user_degrees),
        ("items.parquet", {"item_id": pairs.item_ids.ids} | titles, item_degrees),
    ):
        counts = {f"{part}_interactions": degrees[code] for part, code in codes.items()}
        table = pl.DataFrame(columns | counts)
        table.write_parquet(out / name, row_group_size=_ROW_GROUP)
        record["files"][name] = {"rows": len(table), "checksum": checksum_of(out / name)}
    for part, code in codes.items():
        for number, (start, end) in enumerate(users_of):
            file = out / _part_file(number, part)
            file.parent.mkdir(exist_ok=True)
            inside = pl.col("user").is_between(start, end - 1) & (pl.col("part") == code)
            rows = scan_file(pairs.files).filter(inside).drop("part", "source_row")
            rows.sink_parquet(file, row_group_size=_ROW_GROUP)
            count = int(user_degrees[code, start:end].sum())
            record["files"][_part_file(number, part)] = {"rows": count, "checksum": checksum_of(file)}
        of_users, of_items = user_degrees[code], item_degrees[code]
        files = [out / _part_file(number, part) for number in range(shards)]
        blocks = scan_file(files).select("item").collect_batches(chunk_size=DEFAULT_ROWS, maintain_order=True)
        codes_of_items = (block["item"].to_numpy() for block in blocks)
        record["parts"][part] = {
            "users": int((of_users > 0).sum()),
            "items": int((of_items > 0).sum()),
            "interactions": int(of_users.sum()),
            "fingerprint": fingerprint_of(
                np.append(0, np.cumsum(of_users)), codes_of_items, pairs.user_ids, pairs.item_ids
            ),
        }
        if part != "train":
            cold_users, cold_items = of_users[user_degrees[0] == 0], of_items[item_degrees[0] == 0]
            record["cold"][part] = {
                "users": int((cold_users > 0).sum()),
                "items": int((cold_items > 0).sum()),
                "interactions_of_cold_users": int(cold_users.sum()),
                "interactions_of_cold_items": int(cold_items.sum()),
            }
    return record
