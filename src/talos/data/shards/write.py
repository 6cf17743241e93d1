"""Write a folder of shards from interactions larger than memory, split into train, validation and test.

Rows become codes in files sorted by user, then distinct pairs in files of consecutive users (`_Rows`). Each pair
gets the number of its part, and the pairs are written once more, shard by shard and part by part.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, starmap
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from talos.checks import positive_integer, require
from talos.data.arrays import Codes
from talos.data.encode import id_columns
from talos.data.interactions import Interactions, Provenance, titles_by_item, values_in
from talos.data.options import SourceOptions, SplitBy
from talos.data.parquet import scan_file
from talos.data.shards.read import FORMAT, INDEX, PARTS
from talos.data.shards.streaming_split import StreamingSplit
from talos.data.source import Pass, Source, read_through
from talos.data.splits import how_to_split, no_timestamps
from talos.data.vocabulary import Vocabulary, add_ids
from talos.errors import ConfigError, DataError, TalosError, first_line
from talos.files import checksum_of, locked_folder, write_sealed

__all__ = ["DEFAULT_ROWS", "write_shards"]

DEFAULT_ROWS = 1 << 20
"""Rows held in memory at a time."""

# Rows per row group, all of which are decoded if any is wanted: at each end of a range of users, up to so many others.
_ROW_GROUP = 1 << 16

Degrees: TypeAlias = NDArray[np.int64]
"""Interactions of each user or item in each part, (3, number of users or items)."""


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
    >>> [shard["users"] for shard in record["shards"]], record["parts"]["test"]["interactions"]
    ([[0, 1], [1, 2]], 3)
    """
    found = source if isinstance(source, Source) else Source.of(source)
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
    with (
        _disk_errors(out),
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
        number, users, origin = len(pairs), len(pairs.user_ids), pairs.provenance
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
        part_of = None
        if not split_already:
            part_of = StreamingSplit(
                by=by, test=test, valid=valid, seed=seed, total=number, stamps=pairs.timestamps, folder=folder
            ).of
        user_degrees, item_degrees = _divide(pairs, part_of)
        in_train, in_test = user_degrees[0] > 0, user_degrees[-1] > 0
        require(
            bool((in_train & in_test).any()) or not in_test.any(),
            "the test part has no user in common with train",
            where=origin.source,
            expected="at least one user of train",
            error=DataError,
        )
        record: dict[str, Any] = {
            "format": FORMAT,
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
            **_write_parts(pairs, user_degrees, item_degrees, shards, staging),
        }
        write_sealed(staging / INDEX, record)
    return record


@contextmanager
def _disk_errors(out: Path) -> Iterator[None]:
    """Turn errors of the disk into a `TalosError`; errors in the source are `DataError`s already."""
    try:
        yield
    except (OSError, pl.exceptions.PolarsError) as error:
        raise TalosError(f"{out} could not be written ({first_line(error)[:160]})") from error


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
    ...     [(users, bucket.rows()) for users, bucket in rows.buckets(1)]
    [(range(0, 1), [(0, 1), (0, 2)]), (range(1, 2), [(1, 0)])]
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
                rows = rows.with_columns(part=pl.lit(PARTS.index(part), pl.Int8))
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

    def __len__(self) -> int:
        return int(scan_file(self.files).select(pl.len()).collect().item())

    def timestamps(self) -> Iterator[NDArray[Any]]:
        """All timestamps, those of a file at a time."""
        for file in self.files:
            yield scan_file(file).select("timestamp").collect()["timestamp"].to_numpy()

    def buckets(self, size: int) -> Iterator[tuple[range, pl.DataFrame]]:
        """All rows in buckets of consecutive users, with about `size` rows each: these users, and their rows."""
        degrees = np.zeros(len(self.user_ids), np.int64)
        for file in self.files:
            some, counts = np.unique(scan_file(file).select("user").collect().to_series(), return_counts=True)
            degrees[some] += counts
        upto = np.cumsum(degrees)
        full = np.searchsorted(upto, np.arange(size, upto[-1], size)) + 1
        for users in starmap(range, pairwise(np.unique([0, *full, len(upto)]).tolist())):
            inside = pl.col("user").is_between(users.start, users.stop - 1)
            rows = [scan_file(file).filter(inside).select(self.columns).collect() for file in self.files]
            yield users, pl.concat(rows, how="vertical_relaxed")

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
        for users, bucket in self.buckets(size):
            data = _interactions(bucket, users, len(self.item_ids))
            if "part" in self.columns and bucket.n_unique(["user", "item", "part"]) > len(data):
                raise self._in_two_parts(bucket)
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
        if not files:
            raise DataError(f"no rating of {min_rating:g} or higher", where=source, expected="at least one")
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

    def _in_two_parts(self, bucket: pl.DataFrame) -> DataError:
        pairs = bucket.unique(["user", "item", "part"])
        user, item, *_ = (
            pairs.filter(pairs.select("user", "item").is_duplicated()).sort("user", "item").row(0)
        )
        return DataError(
            f"user {self.user_ids.ids[user]!r} and item {self.item_ids.ids[item]!r} are together in two parts",
            where=self.provenance.source,
            expected="every pair in one part",
        )


def _interactions(rows: pl.DataFrame, users: range, num_items: int) -> Interactions:
    """Rows of consecutive users, with codes for ids."""
    return Interactions.from_codes(
        rows["user"].to_numpy() - np.int32(users.start),
        rows["item"].to_numpy(),
        user_ids=Vocabulary(pl.int_range(len(users), eager=True)),
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


def _divide(
    pairs: _Rows, part_of: Callable[[Interactions], NDArray[np.int8]] | None
) -> tuple[Degrees, Degrees]:
    """Write beside each pair which part it belongs to, unless that is there; returns degrees of users and items."""
    user_degrees = np.zeros((len(PARTS), len(pairs.user_ids)), np.int64)
    item_degrees = np.zeros((len(PARTS), len(pairs.item_ids)), np.int64)
    for file in pairs.files:
        rows = scan_file(file).collect()
        users = range(rows["user"][0], rows["user"][-1] + 1)
        if part_of is not None:
            rows = rows.with_columns(part=part_of(_interactions(rows, users, len(pairs.item_ids))))
            _rewrite(rows, file)
        for (code,), some in rows.partition_by("part", as_dict=True).items():
            counts = np.bincount(some["user"].to_numpy() - users.start, minlength=len(users))
            user_degrees[code, users.start : users.stop] = counts
            item_degrees[code] += np.bincount(some["item"].to_numpy(), minlength=len(pairs.item_ids))
    return user_degrees, item_degrees


def _write_parts(
    pairs: _Rows, user_degrees: Degrees, item_degrees: Degrees, shards: int, out: Path
) -> dict[str, Any]:
    """Write the files of all shards; returns what `shards.json` says about them."""
    record: dict[str, Any] = {"parts": {}, "cold": {}, "shards": [], "checksums": {}}
    # as in `talos.data.splits.split`, there is no empty validation part
    codes = {part: code for code, part in enumerate(PARTS) if part != "valid" or user_degrees[code].any()}
    files: dict[str, list[Path]] = {part: [] for part in codes}
    # a user belongs to the shard that the number of interactions of all users before falls into
    degrees = user_degrees.sum(axis=0)
    before = np.cumsum(degrees) - degrees
    ends = np.searchsorted(before * shards, np.arange(1, shards + 1) * degrees.sum()).tolist()
    for number, users in enumerate(starmap(range, pairwise([0, *ends]))):
        folder, parts = out / f"shard-{number:04d}", {}
        folder.mkdir()
        for part, code in codes.items():
            inside = pl.col("user").is_between(users.start, users.stop - 1) & (pl.col("part") == code)
            rows, file = scan_file(pairs.files).filter(inside), folder / f"{part}.parquet"
            rows.drop("part", "source_row").sink_parquet(file, row_group_size=_ROW_GROUP)
            files[part].append(file)
            count = int(user_degrees[code, users.start : users.stop].sum())
            parts[part] = {"interactions": count, "checksum": checksum_of(file)}
        record["shards"].append({"folder": folder.name, "users": [users.start, users.stop], "parts": parts})
    user_ids, item_ids = pairs.user_ids.ids, pairs.item_ids.ids
    items = pl.DataFrame({"item_id": item_ids, "train_interactions": item_degrees[0]})
    if pairs.titles is not None:
        items = items.with_columns(title=pairs.titles)
    for name, table in (("users.parquet", pl.DataFrame({"user_id": user_ids})), ("items.parquet", items)):
        table.write_parquet(out / name, row_group_size=_ROW_GROUP)
        record["checksums"][name] = checksum_of(out / name)
    for part, code in codes.items():
        of_users, of_items = user_degrees[code], item_degrees[code]
        record["parts"][part] = {
            "users": int((of_users > 0).sum()),
            "items": int((of_items > 0).sum()),
            "interactions": int(of_users.sum()),
            "fingerprint": _fingerprint(of_users, files[part], (user_ids, item_ids)),
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


def _fingerprint(degrees: NDArray[np.int64], files: Sequence[Path], ids: Iterable[pl.Series]) -> str:
    """`Interactions.fingerprint` of a whole part."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(np.append(0, np.cumsum(degrees)).data)
    for block in (
        scan_file(files).select("item").collect_batches(chunk_size=DEFAULT_ROWS, maintain_order=True)
    ):
        digest.update(np.ascontiguousarray(block["item"].to_numpy()).data)
    for column in ids:
        blocks = column.to_frame().iter_slices(DEFAULT_ROWS)
        add_ids(digest, column.dtype, (block.to_series() for block in blocks))
    return digest.hexdigest()
