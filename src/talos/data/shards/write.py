"""Write a folder of shards from interactions larger than memory, split into train, validation and test."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from talos.data.interactions import Interactions, Provenance, values_in
from talos.data.options import SourceOptions, SplitBy
from talos.data.parquet import scan_file
from talos.data.shards.external_sort import ExternalSort
from talos.data.shards.index import FORMAT, INDEX, PARTS
from talos.data.shards.streaming_split import StreamingSplit
from talos.data.source import Pass, Source, read_through
from talos.data.splits import how_to_split, no_timestamps
from talos.data.vocabulary import Vocabulary, add_ids
from talos.errors import ArgumentError, ConfigError, DataError, TalosError, first_line
from talos.files import checksum_of, locked, remove_leftovers, sync, write_sealed

__all__ = ["DEFAULT_ROWS", "write_shards"]

DEFAULT_ROWS = 1 << 20
"""Rows held in memory at a time."""

# Rows per row group: at each end of its range a process reads up to so many rows of other users.
_ROW_GROUP = 1 << 16


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

    Holds about `rows_at_once` rows in memory, and the ids of the items with a few numbers each; everything else goes
    through temporary files beside `out`. Ids, duplicates and errors are those of `talos.read`. The split depends on the
    data and the seed, not on the number of shards. By `user` and by `last` it is that of `talos.data.splits.split`; by
    `time` the test part is the same, and validation is another random draw of the same size.

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
    found = source if isinstance(source, Interactions | Source) else Source.of(source)
    split_already = isinstance(found, Source) and found.kind == "parts"
    if isinstance(found, Source) and "test" not in found.parts and split_already:
        raise DataError("has a train file and no test file", where=found.name, expected="a test set")
    how = {"by": "predefined"} if split_already else how_to_split(by, test, valid, seed)
    for option, number in (("shards", shards), ("rows_at_once", rows_at_once)):
        if number < 1:
            raise ArgumentError(f"{number}", where=option, expected="1 or more")
    _check_out(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        stack.enter_context(_disk_errors(out))
        lock = out.with_name(f".{out.name}.lock")
        stack.enter_context(locked(lock, guards=out, purpose="writing shards"))
        remove_leftovers(out)
        _check_out(out)  # again: another process may have finished in between
        made = tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.", suffix=".tmp")
        scratch = stack.enter_context(made)
        folders = {part: Path(scratch) / part for part in ("runs", "pieces", "shards", "out")}
        for folder in folders.values():
            folder.mkdir()
        if isinstance(found, Interactions):
            runs, provenance = _sorted_interactions(found, folders["runs"], rows_at_once)
        else:
            sort = partial(_sorted, folder=folders["runs"], with_parts=split_already)
            runs, provenance = read_through(
                found, SourceOptions.of(options, **changes), sort, rows=rows_at_once
            )
        if provenance.guesses:
            notify(f"{provenance.source}: {provenance.guesses}")
        notify(f"{provenance.rows:,} rows read")
        pieces = _Pieces.of(runs, folders["pieces"], rows_at_once, provenance, min_rating)
        if not split_already and by != "user" and "timestamp" not in pieces.columns:
            raise no_timestamps(provenance, by)
        if shards > pieces.num_users:
            raise ConfigError(
                f"{shards}", where="shards", expected=f"at most {pieces.num_users:,}, the number of users"
            )
        notify(f"{pieces.interactions:,} interactions of {pieces.num_users:,} users are sorted")
        staging = folders["out"]
        with_valid = "valid" in found.parts if split_already else valid > 0  # type: ignore[union-attr]
        writer = _ShardWriter(staging, folders["shards"], pieces, shards, with_valid=with_valid)
        if split_already:
            for number, data in enumerate(pieces):
                writer.add(data, pieces.parts(number))
        else:
            splitter = StreamingSplit(
                by=by, test=test, valid=valid, seed=seed, total=pieces.interactions, stamps=pieces.stamps
            )
            for data in pieces:
                writer.add(data, splitter.of(data))
        titles = runs.titles_of(pieces.item_ids.ids)
        record: dict[str, Any] = {
            "format": FORMAT,
            "source": {
                "path": name or provenance.source,
                "format": provenance.format,
                "rows": provenance.rows,
                "bad_rows": provenance.bad_rows,
                "duplicates": provenance.duplicates + pieces.duplicates,
                "notes": list(provenance.notes),
            },
            "how": how,
            "cleaned": {} if min_rating is None else {"min_rating": min_rating},
            "users": pieces.num_users,
            "items": len(pieces.item_ids),
            "columns": [column for column in ("timestamp", "rating") if column in pieces.columns],
            **writer.finish(titles, provenance.source),
        }
        write_sealed(staging / INDEX, record)
        for entry in (*staging.rglob("*"), staging):
            sync(entry)
        staging.rename(out)  # an empty folder there is replaced
        sync(out.parent)
    return record


def _check_out(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError("exists and is not empty", where=str(out), expected="a new or empty folder")


@contextmanager
def _disk_errors(out: Path) -> Iterator[None]:
    """Turn errors of the disk into a `TalosError`; errors in the source are `DataError`s already."""
    try:
        yield
    except (OSError, pl.exceptions.PolarsError) as error:
        raise TalosError(f"{out} could not be written ({first_line(error)[:160]})") from error


def _sorted(one: Pass, *, folder: Path, with_parts: bool) -> tuple[ExternalSort, Provenance]:
    """The rows of a pass by user, each marked by its part where the source is split."""
    runs = ExternalSort(folder, as_strings=one.options.ids == "string")
    for part, block in one:
        if len(block.frame):
            marked = (
                block.frame.with_columns(part=pl.lit(PARTS.index(part), pl.Int8))
                if with_parts
                else block.frame
            )
            runs.add(marked, text=one.text)
    return runs, one.provenance()


def _sorted_interactions(data: Interactions, folder: Path, rows: int) -> tuple[ExternalSort, Provenance]:
    runs = ExternalSort(folder)
    frame = data.to_polars().rename({"user_id": "user", "item_id": "item"})
    if data.item_titles is not None:
        frame = frame.with_columns(title=data.item_titles.gather(data.indices))
    for block in frame.iter_slices(rows):
        runs.add(block)
    return runs, data.provenance


@dataclass
class _Pieces:
    """The clean interactions of all users on disk, in pieces of consecutive users, over one vocabulary of items."""

    folder: Path
    columns: tuple[str, ...] = ()
    users: list[int] = field(default_factory=list)  # in each piece
    interactions: int = 0
    duplicates: int = 0
    item_ids: Vocabulary = field(default_factory=lambda: Vocabulary(pl.Series([], dtype=pl.Int64)))

    @classmethod
    def of(
        cls, runs: ExternalSort, folder: Path, rows: int, provenance: Provenance, min_rating: float | None
    ) -> _Pieces:
        """Keep each pair once, drop low ratings, and collect the users and items that are left."""
        pieces = cls(folder)
        for bucket in runs.buckets(rows):
            if min_rating is not None and "rating" not in bucket.columns:
                raise DataError(
                    "no ratings", where=provenance.source, expected="a rating column to filter by"
                )
            data = Interactions.from_ids(bucket["user"], bucket["item"], **values_in(bucket))
            pieces.duplicates += data.provenance.duplicates
            pieces.columns = tuple(bucket.columns)
            parts = _parts_in(bucket, provenance.source) if "part" in bucket.columns else None
            if min_rating is not None:
                assert data.ratings is not None
                kept = data.ratings >= min_rating
                data, parts = data.where(kept).compact(), None if parts is None else parts[kept]
            if len(data):
                pieces._write(data, parts)
        if not pieces.interactions:
            raise DataError(
                f"no rating of {min_rating:g} or higher", where=provenance.source, expected="at least one"
            )
        items = scan_file(sorted(folder.glob("items-*.parquet"))).unique()
        pieces.item_ids = Vocabulary(items.collect(engine="streaming")["item_id"].sort())
        return pieces

    def _write(self, data: Interactions, parts: NDArray[np.int8] | None) -> None:
        users = {"user_id": data.user_ids.ids, "degree": data.user_degrees}
        tables = {
            "rows": data.to_frame(item=data.indices, source_row=pl.Series(data.source_rows)),
            "users": pl.DataFrame(users),
            "items": pl.DataFrame({"item_id": data.item_ids.ids}),
        }
        if parts is not None:
            tables["parts"] = pl.DataFrame({"part": parts})
        for kind, table in tables.items():
            table.write_parquet(self._path(len(self.users), kind), compression="lz4")
        self.users.append(data.num_users)
        self.interactions += len(data)

    @property
    def num_users(self) -> int:
        return sum(self.users)

    def __iter__(self) -> Iterator[Interactions]:
        """The pieces in the order of their users, each over its own users and all items."""
        for number in range(len(self.users)):
            rows, users, items = (
                scan_file(self._path(number, kind)).collect() for kind in ("rows", "users", "items")
            )
            positions = self.item_ids.encode(items["item_id"]).astype(np.int32)
            yield Interactions(
                indptr=np.append(0, np.cumsum(users["degree"].to_numpy())),
                indices=positions[rows["item"].to_numpy()],  # both vocabularies ascend, and so do the rows
                user_ids=Vocabulary(users["user_id"]),
                item_ids=self.item_ids,
                source_rows=rows["source_row"].to_numpy(),
                **values_in(rows),
            )

    def parts(self, number: int) -> NDArray[np.int8]:
        """The part of each interaction of a piece, where the source says it."""
        flags: NDArray[np.int8] = scan_file(self._path(number, "parts")).collect()["part"].to_numpy()
        return flags

    def stamps(self) -> Iterator[NDArray[Any]]:
        """All timestamps, a piece at a time."""
        for number in range(len(self.users)):
            yield scan_file(self._path(number, "rows")).select("timestamp").collect()["timestamp"].to_numpy()

    def _path(self, number: int, kind: str) -> Path:
        return self.folder / f"{kind}-{number:06d}.parquet"


def _parts_in(bucket: pl.DataFrame, source: str) -> NDArray[np.int8]:
    """The part of each pair of a bucket, in the order of `Interactions`: by user and item, each pair once."""
    pairs = bucket.select("user", "item", "part").unique()
    once = pairs.unique(["user", "item"])
    if len(once) < len(pairs):
        user, item = (
            pairs.filter(pairs.select("user", "item").is_duplicated()).sort("user", "item").row(0)[:2]
        )
        raise DataError(
            f"user {user!r} and item {item!r} are together in two parts",
            where=source,
            expected="every pair in one part",
        )
    flags: NDArray[np.int8] = once.sort("user", "item")["part"].to_numpy()
    return flags


class _ShardWriter:
    """Writes shards from interactions that arrive in the order of users, with the part of each."""

    def __init__(self, out: Path, scratch: Path, pieces: _Pieces, shards: int, *, with_valid: bool) -> None:
        self.out, self.scratch, self.pieces, self.shards = out, scratch, pieces, shards
        self.parts = [part for part in PARTS if part != "valid" or with_valid]
        self.users = self.interactions = self.number = 0
        self.ends = [0] * shards  # of each shard, in users
        self.counts = {part: [0] * shards for part in self.parts}
        self.active = dict.fromkeys(self.parts, 0)
        self.cold = {part: [0, 0] for part in self.parts}  # users absent from train, and their interactions
        self.item_degrees = {part: np.zeros(len(pieces.item_ids), np.int64) for part in self.parts}
        self.shared_users = 0  # with something in both train and test
        self.prints = {part: hashlib.blake2b(digest_size=16) for part in self.parts}
        self.edges = dict.fromkeys(self.parts, 0)
        for digest in self.prints.values():
            digest.update(np.zeros(1, np.int64).data)

    def add(self, data: Interactions, flags: NDArray[np.int8]) -> None:
        """Add the interactions of the next users; `flags` says which part each belongs to."""
        # a user belongs to the shard that the number of interactions of all users before falls into
        before = data.indptr[:-1] + self.interactions
        shard_of = np.minimum(before * self.shards // self.pieces.interactions, self.shards - 1)
        in_train = None
        for part in self.parts:
            kept = data.where(flags == PARTS.index(part))
            active = kept.user_degrees > 0
            in_train = active if in_train is None else in_train
            self.active[part] += int(active.sum())
            self.cold[part][0] += int((active & ~in_train).sum())
            self.cold[part][1] += int(kept.user_degrees[active & ~in_train].sum())
            self.item_degrees[part] += kept.item_degrees
            self.prints[part].update(np.ascontiguousarray(kept.indptr[1:] + self.edges[part]).data)
            self.edges[part] += len(kept)
            if part == "test":
                self.shared_users += int((active & in_train).sum())
            frame = kept.to_frame(user=kept.rows + np.int32(self.users), item=kept.indices)
            owner = shard_of[kept.rows]
            for shard in np.unique(owner).tolist():
                start, stop = np.searchsorted(owner, [shard, shard + 1])
                piece = self.scratch / f"{shard:04d}-{part}-{self.number:06d}.parquet"
                frame[start:stop].write_parquet(piece, compression="lz4")
                self.counts[part][shard] += int(stop - start)
            if not self.number:
                self.empty = frame.clear()
        for shard in np.unique(shard_of).tolist():
            self.ends[shard] = self.users + int(np.searchsorted(shard_of, shard, side="right"))
        self.users += data.num_users
        self.interactions += len(data)
        self.number += 1

    def finish(self, titles: pl.Series | None, source: str) -> dict[str, Any]:
        """Write the files of all shards; returns what `shards.json` says about them."""
        if self.edges["test"] and not self.shared_users:
            raise DataError(
                "the test part has no user in common with train",
                where=source,
                expected="at least one user of train",
            )
        if "valid" in self.parts and not self.edges["valid"]:
            self.parts.remove("valid")  # as in `talos.data.splits.split`
        shards = [self._join(shard) for shard in range(self.shards)]
        users = scan_file(sorted(self.pieces.folder.glob("users-*.parquet"))).select("user_id")
        users.sink_parquet(self.out / "users.parquet", row_group_size=_ROW_GROUP)
        items = pl.DataFrame(
            {"item_id": self.pieces.item_ids.ids, "train_interactions": self.item_degrees["train"]}
        )
        if titles is not None:
            items = items.with_columns(title=titles)
        items.write_parquet(self.out / "items.parquet")
        in_train = self.item_degrees["train"] > 0
        record: dict[str, Any] = {"parts": {}, "cold": {}}
        for part in self.parts:
            degrees = self.item_degrees[part]
            record["parts"][part] = {
                "users": self.active[part],
                "items": int((degrees > 0).sum()),
                "interactions": self.edges[part],
                "fingerprint": self._fingerprint(part),
            }
            if part != "train":
                record["cold"][part] = {
                    "users": self.cold[part][0],
                    "items": int(((degrees > 0) & ~in_train).sum()),
                    "interactions_of_cold_users": self.cold[part][1],
                    "interactions_of_cold_items": int(degrees[~in_train].sum()),
                }
        record["shards"] = shards
        record["checksums"] = {
            name: checksum_of(self.out / name) for name in ("users.parquet", "items.parquet")
        }
        return record

    def _join(self, shard: int) -> dict[str, Any]:
        folder = self.out / f"shard-{shard:04d}"
        folder.mkdir()
        parts = {}
        for part in self.parts:
            pieces, target = sorted(self.scratch.glob(f"{shard:04d}-{part}-*")), folder / f"{part}.parquet"
            if pieces:
                scan_file(pieces).sink_parquet(target, row_group_size=_ROW_GROUP)
            else:
                self.empty.write_parquet(target)
            parts[part] = {"interactions": self.counts[part][shard], "checksum": checksum_of(target)}
        start = max(self.ends[:shard], default=0)
        return {"folder": folder.name, "users": [start, max(start, self.ends[shard])], "parts": parts}

    def _fingerprint(self, part: str) -> str:
        """`Interactions.fingerprint` of a whole part; `add` has digested the row ends already."""
        digest = self.prints[part]
        for shard in range(self.shards):
            scan = scan_file(self.out / f"shard-{shard:04d}" / f"{part}.parquet").select("item")
            for block in scan.collect_batches(chunk_size=DEFAULT_ROWS, maintain_order=True):
                digest.update(np.ascontiguousarray(block["item"].to_numpy()).data)
        for name, column in (("users.parquet", "user_id"), ("items.parquet", "item_id")):
            scan = scan_file(self.out / name).select(column)
            blocks = scan.collect_batches(chunk_size=DEFAULT_ROWS, maintain_order=True)
            add_ids(digest, scan.collect_schema()[column], (block[column] for block in blocks))
        return digest.hexdigest()
